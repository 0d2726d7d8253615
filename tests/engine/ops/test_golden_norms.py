"""Golden values and policy of means and norms, on every face."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import FACES, INF, NAN, gradient, run

from llamita.engine import ops
from llamita.engine.errors import DTypeMismatch, DuplicateAxis, InvalidArgument, ShapeMismatch, UnsupportedDType
from llamita.engine.faces.traced import spec, trace

ROWS = np.array([[2.0, 2, 2, 2], [1, 2, 3, 4]])
X29 = np.array([[[3, 1, 4], [1, 5, 9]], [[2, 1, 7], [8, 2, 8]]], float)
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g13_layer_norm(face, dtype):
    expected = [[0, 0, 0, 0], [-1.3416354199689269, -0.447211806656309, 0.447211806656309, 1.3416354199689269]]
    y = run(face, lambda x: ops.layer_norm(x, -1, eps=1e-5), ROWS.astype(dtype))
    np.testing.assert_allclose(y, expected, rtol=4 * np.finfo(dtype).eps)


def test_g14_layer_norm_gradient():
    (g,) = gradient(lambda x: ops.layer_norm(x, -1, eps=1e-5), [ROWS], np.arange(1.0, 9).reshape(2, 4))
    expected = [-474.34164902525686, -158.11388300841895, 158.11388300841895, 474.34164902525686]
    np.testing.assert_allclose(g[0], expected, rtol=1e-14)
    expected = [-1.0732997495210839e-5, -3.5776658320330057e-6, 3.5776658320330057e-6, 1.0732997496099017e-5]
    np.testing.assert_allclose(g[1], expected, rtol=0, atol=1e-12)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g15_layer_norm_without_eps(face, dtype):
    y = run(face, lambda x: ops.layer_norm(x, -1, eps=0.0), ROWS.astype(dtype))
    expected = [[NAN] * 4, [-1.3416407864998738, -0.4472135954999579, 0.4472135954999579, 1.3416407864998738]]
    np.testing.assert_allclose(y, expected, rtol=4 * np.finfo(dtype).eps)


def test_g15_layer_norm_gradient_without_eps():
    (g,) = gradient(lambda x: ops.layer_norm(x, -1, eps=0.0), [ROWS], np.arange(1.0, 9).reshape(2, 4))
    assert np.isnan(g[0]).all()
    np.testing.assert_allclose(g[1], 0, atol=4e-15)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g16_rms_norm_of_zeros(face, dtype):
    np.testing.assert_array_equal(run(face, lambda x: ops.rms_norm(x, -1, eps=1e-6), np.zeros(3, dtype)), [0, 0, 0])
    np.testing.assert_array_equal(run(face, lambda x: ops.rms_norm(x, -1, eps=0.0), np.zeros(3, dtype)), [NAN] * 3)


@pytest.mark.parametrize("op", [ops.layer_norm, ops.rms_norm])
@pytest.mark.parametrize("eps", [-1, NAN, INF, -INF, "small"])
@pytest.mark.parametrize("face", FACES)
def test_g17_and_t25_bad_eps(face, op, eps):
    with pytest.raises(InvalidArgument, match=rf"{op.name}.*eps.*{'small' if eps == 'small' else ''}"):
        run(face, lambda x: op(x, -1, eps=eps), ROWS)


@pytest.mark.parametrize("face", FACES)
def test_g18_and_t11_two_pass_variance(face):
    x = np.array([[1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3]], np.float32)
    y = run(face, lambda v: ops.layer_norm(v, -1, eps=1e-5), x)
    np.testing.assert_allclose(y, [[-1.3416355, -0.44721183, 0.44721183, 1.3416355]], rtol=1e-6)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g19_two_values(face, dtype):
    np.testing.assert_array_equal(run(face, lambda x: ops.layer_norm(x, -1, eps=0.0), np.array([1, 3], dtype)), [-1, 1])


@pytest.mark.parametrize("face", FACES)
def test_g20_mean_of_nothing(face):
    np.testing.assert_array_equal(run(face, lambda x: ops.reduce_mean(x, 1), np.zeros((3, 0))), [NAN] * 3)
    np.testing.assert_array_equal(run(face, lambda x: ops.reduce_mean(x), np.zeros((0, 2))), NAN)
    assert run(face, lambda x: ops.reduce_mean(x, 0), np.zeros((0, 2, 0))).shape == (2, 0)
    program = trace(lambda x: ops.reduce_mean(x, 1), spec((3, 0)))
    assert not any(name.startswith("reduce") for name in program.op_list)


@pytest.mark.parametrize("face", FACES)
def test_reduce_mean(face):
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_allclose(run(face, lambda v: ops.reduce_mean(v, (0, -1)), x), x.mean((0, 2)))
    np.testing.assert_allclose(run(face, lambda v: ops.reduce_mean(v), x), x.mean())
    np.testing.assert_array_equal(run(face, lambda v: ops.reduce_mean(v, []), x), x)


def test_reduce_mean_dtypes_and_axes():
    z = np.array([[1 + 2j, 3 - 1j]], np.complex64)
    assert ops.reduce_mean(z) == np.complex64(2 + 0.5j)
    for dtype in (np.int32, np.bool_):
        with pytest.raises(UnsupportedDType, match="reduce_mean"):
            ops.reduce_mean(np.ones(3, dtype))
    with pytest.raises(DuplicateAxis, match="reduce_mean"):
        ops.reduce_mean(np.ones((2, 2)), (0, -2))


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g29_rms_norm_with_weight(face, dtype):
    y = run(face, lambda x, w: ops.rms_norm(x, -1, w, eps=1e-5), X29.astype(dtype), np.array([1, 2, 3], dtype))
    expected = [[[1.019, 0.6794, 4.0762], [0.1674, 1.6744, 4.521]], [[0.4714, 0.4714, 4.9497], [1.206, 0.603, 3.6181]]]
    np.testing.assert_allclose(y, expected, atol=6e-5)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g30_layer_norm_with_weight_and_bias(face, dtype):
    w, b = np.array([1, 2, 3], dtype), np.array([0.5, 0, -0.2], dtype)
    y = run(face, lambda x, w, b: ops.layer_norm(x, -1, w, b, 1e-5), X29.astype(dtype), w, b)
    expected = [[[0.7673, -2.6726, 3.0071], [-0.7247, 0, 3.4742]], [[-0.008, -1.778, 3.991], [1.2071, -2.8284, 1.9213]]]
    np.testing.assert_allclose(y, expected, atol=6e-5)


def test_g32_rms_norm_gradient_of_half_the_squares():
    x = np.array([[1.0, 2, 3, 4]])

    def loss(v, w):
        y = ops.rms_norm(v, -1, w, eps=1e-5)
        return ops.mul(ops.reduce_sum(ops.mul(y, y)), 0.5)

    (g,) = gradient(loss, [x, np.ones(4)], wrt=[0])
    np.testing.assert_allclose(g, x * 1e-5 / (7.5 + 1e-5) ** 2, rtol=1e-6)
    (g,) = gradient(loss, [x.astype(np.float32), np.ones(4, np.float32)], wrt=[0])
    np.testing.assert_allclose(g, [[1.6391277e-7, 3.2782555e-7, 5.066395e-7, 6.556511e-7]], atol=1e-7)


@DTYPES
@pytest.mark.parametrize("op", [ops.layer_norm, ops.rms_norm])
@pytest.mark.parametrize("face", ["direct", "eager", "traced"])
def test_t07_any_axis_of_any_view(op, face, dtype):
    x = np.random.default_rng(7).normal(size=(3, 4, 5, 6)).astype(dtype)
    for view in (x, x.transpose(2, 0, 3, 1), x[:, ::2, :, 1:]):
        for axis in range(-4, 4):
            w = np.linspace(0.5, 2, view.shape[axis]).astype(dtype)
            expected = run("composite", lambda v, w, axis=axis: op(v, axis, w, w), view.copy(), w)
            y = run(face, lambda v, w, axis=axis: op(v, axis, w, w), view, w)
            tolerance = 1e-6 if dtype == np.float32 else 1e-14
            np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("op", [ops.layer_norm, ops.rms_norm])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("n", [1, 31, 33])
def test_t12_nan_spoils_its_own_slice_only(op, dtype, face, n):
    x = np.random.default_rng(3).normal(size=(3, n)).astype(dtype)
    clean = run(face, op, x)
    for at in {0, n // 2, n - 1}:
        poisoned = x.copy()
        poisoned[1, at] = NAN
        y = run(face, op, poisoned)
        assert np.isnan(y[1]).all()
        np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("face", FACES)
def test_large_magnitude_stays_finite(face):
    x = np.random.default_rng(5).choice([-7e9, 7e9], size=(4, 6912)).astype(np.float32)
    for op in (ops.layer_norm, ops.rms_norm):
        y = run(face, op, x)
        assert np.isfinite(y).all()
        np.testing.assert_allclose(np.abs(y), 1, atol=5e-2)
        np.testing.assert_allclose(y, run("composite", op, x), atol=5e-3)


def test_weights_that_do_not_fit():
    x = np.zeros((2, 3))
    for op in (ops.layer_norm, ops.rms_norm):
        with pytest.raises(ShapeMismatch, match=rf"{op.name}.*weight"):
            op(x, -1, np.ones(2))
        with pytest.raises(ShapeMismatch, match=rf"{op.name}.*bias"):
            op(x, -1, None, np.ones((1, 3)))
        with pytest.raises(DTypeMismatch, match=rf"{op.name}.*weight"):
            op(x, -1, np.ones(3, np.float32))
