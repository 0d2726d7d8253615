"""Golden values of powf and its gradients, on every face."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import FACES, INF, NAN, gradient, run

from llamita.engine import ops
from llamita.engine.errors import ShapeMismatch
from llamita.engine.faces.eager import grad, tracked

BASE = np.array([[1.0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("face", FACES)
def test_g34_powf(face):
    y = run(face, ops.powf, BASE, np.array([[1.0, 1, 2], [3, 4, 2]]))
    np.testing.assert_allclose(y, [[1, 1, 4], [27, 256, 25]], rtol=1e-15)


def test_g34_gradients():
    a, b = gradient(ops.powf, [np.array([2.0, 7]), np.array([4.0, 2])])
    np.testing.assert_allclose(a, [32, 14], rtol=1e-14)
    np.testing.assert_allclose(b, [11.09035, 95.34960], rtol=1e-6)


@pytest.mark.parametrize("face", FACES)
def test_g35_fractions(face):
    y = run(face, ops.powf, BASE, np.array([[-0.95, -0.67, -0.45], [-0.24, -0.5, -0.6]]))
    np.testing.assert_allclose(y, [[1, 1, 0.73204285], [0.76822936, 0.5, 0.38073079]], rtol=1e-7)


@pytest.mark.parametrize("face", FACES)
def test_g36_and_t28_negative_bases(face):
    base = np.array([[1.0, -1, -2], [-3, -4, -5]])
    np.testing.assert_allclose(run(face, ops.powf, base, np.array([[2.0, 2, 4], [4, 4, 2]])), [[1, 1, 16], [81, 256, 25]])
    np.testing.assert_allclose(run(face, lambda a: ops.powf(a, 3.0), base), [[1, -1, -8], [-27, -64, -125]])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        ([[0, 1, 2], [3, 4, 5]], 0.71, [[0, 1, 1.6358], [2.1815, 2.67586, 3.13522]]),
        ([[1, 1, 2], [3, 4, 5]], -0.33, [[1, 1, 0.79553646], [0.695905, 0.6328783, 0.58794934]]),
        ([[0, -1, -2], [-3, -4, -5]], 4, [[0, 1, 16], [81, 256, 625]]),
        ([[0, -1, -2], [-3, -4, -5]], 3, [[0, -1, -8], [-27, -64, -125]]),
    ],
)
def test_g37_powf_scalar(face, base, exponent, expected):
    np.testing.assert_allclose(run(face, lambda a: ops.powf_scalar(a, exponent), np.array(base, float)), expected, rtol=1e-5)


@pytest.mark.parametrize("face", FACES)
def test_g38_broadcasting(face):
    np.testing.assert_array_equal(run(face, ops.powf, np.array([2.0, 3, 4]), np.array([1.0])), [2, 3, 4])
    np.testing.assert_array_equal(run(face, ops.powf, np.array([1.0]), np.array([2.0, 3, 4])), [1, 1, 1])
    with pytest.raises(ShapeMismatch, match="powf"):
        run(face, ops.powf, np.ones((2, 3)), np.ones((2, 2)))


def test_g39_through_matmul():
    t1, t2 = np.array([[0.0, 1], [3, 4]]), np.array([[6.0, 7], [9, 10]])
    d1, d2 = gradient(lambda a, b: ops.matmul(ops.matmul(a, ops.powf_scalar(b, 0.4)), b), [t1, t2])
    np.testing.assert_allclose(d1, [[68, 79.0328], [68, 79.0328]], rtol=1e-6)
    np.testing.assert_allclose(d2, [[23.5081, 25.2779], [26.0502, 28.6383]], rtol=1e-5)


@pytest.mark.parametrize("face", FACES)
def test_ieee_edges(face):
    base = np.array([0.0, 0.0, NAN, 1.0, -8.0, 0.0, -0.0])
    exponent = np.array([0.0, -1.0, 0.0, NAN, 1 / 3, 2.0, -1.0])
    np.testing.assert_array_equal(run(face, ops.powf, base, exponent), [1, INF, 1, 1, NAN, 0, -INF])


def test_gradients_at_zero_and_below():
    a, b = gradient(ops.powf, [np.zeros(4), np.array([0.0, 1, 2, 0.5])])
    np.testing.assert_array_equal(a, [0, 1, 0, INF])
    np.testing.assert_array_equal(b, [0, 0, 0, 0])
    a, b = gradient(ops.powf, [np.array([-2.0, -3]), np.array([3.0, 2])])
    np.testing.assert_array_equal(a, [12, -6])
    assert np.isnan(b).all()


def test_one_untracked_side_changes_nothing():
    x, y = np.array([2.0, 7.0]), np.array([4.0, 2.0])
    both = gradient(ops.powf, [x, y])
    np.testing.assert_array_equal(gradient(lambda a: ops.powf(a, y), [x])[0], both[0])
    np.testing.assert_array_equal(gradient(lambda b: ops.powf(x, b), [y])[0], both[1])


def test_gradient_of_broadcast_sides():
    x, y = tracked(np.array([[2.0], [3.0]])), tracked(np.array([1.0, 2.0, 3.0]))
    gx, gy = grad(ops.powf(x, y), [x, y], np.ones((2, 3)))
    b, e = x.numpy(), y.numpy()
    np.testing.assert_allclose(gx.numpy(), (e * b ** (e - 1)).sum(1, keepdims=True))
    np.testing.assert_allclose(gy.numpy(), (b**e * np.log(b)).sum(0))


def test_powi():
    y = ops.powi(np.array([2, -3, 0, 7]), np.array([10, 3, 0, 2]))
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, [1024, -27, 1, 49])
