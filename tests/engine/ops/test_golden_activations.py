"""Golden values of the activations, on every face."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import FACES, INF, NAN, gradient, run, ulps

from llamita.engine import ops
from llamita.engine.errors import InvalidArgument, UnsupportedDType
from llamita.engine.faces.eager import grad, tracked
from llamita.engine.faces.gradient import vjp
from llamita.engine.faces.traced import spec, trace

POINTS = np.array([-1000.0, -40.0, 40.0, 1000.0])


@pytest.mark.parametrize("face", FACES)
def test_g01_sigmoid(face):
    assert ulps(run(face, ops.sigmoid, POINTS), np.array([0, 4.248354255291589e-18, 1, 1])) <= 1


@pytest.mark.parametrize("face", FACES)
def test_g02_softplus(face):
    assert ulps(run(face, ops.softplus, POINTS), np.array([0, 4.248354255291589e-18, 40, 1000])) <= 1


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("op", [ops.silu, ops.gelu, ops.gelu_tanh])
@pytest.mark.parametrize("face", FACES)
def test_g03_and_t24_minus_infinity_gives_nan(face, op, dtype):
    np.testing.assert_array_equal(run(face, op, np.array([-INF, INF], dtype)), [NAN, INF])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("op", "x", "expected", "tolerance"),
    [
        (ops.sigmoid, 1.0, 0.7310585786300049, 1e-15),
        (ops.silu, -1.0, -0.2689414213699951, 1e-15),
        (ops.softplus, 0.0, 0.6931471805599453, 1e-15),
        (ops.gelu, 1.0, 0.8413447460685429, 1e-15),
        (ops.gelu_tanh, 1.0, 0.8411919906082768, 1e-12),
    ],
)
def test_g04_points(face, op, x, expected, tolerance):
    assert abs(float(run(face, op, np.array([x]))[0]) - expected) <= tolerance


def test_g05_and_t01_gelu_is_exact_and_differs_from_the_tanh_form():
    x = np.linspace(-8, 8, 4001)
    distance = np.abs(ops.gelu(x) - ops.gelu_tanh(x))
    assert distance.max() == pytest.approx(4.732346e-4, rel=1e-6)
    # Both functions leave the same gap at +-x.
    assert abs(x[distance.argmax()]) == pytest.approx(2.7)
    assert ops.Activation("gelu")(2.7) == ops.gelu(2.7)
    assert ops.Activation("gelu_new")(2.7) == ops.gelu_tanh(2.7) == ops.Activation("gelu_pytorch_tanh")(2.7)
    assert abs(ops.Activation("gelu")(2.7) - ops.Activation("gelu_new")(2.7)) == pytest.approx(4.7e-4, rel=1e-2)


@pytest.mark.parametrize("face", FACES)
def test_g06_sigmoid_of_minus_700_does_not_vanish(face):
    assert 0 < float(run(face, ops.sigmoid, np.array([-700.0]))[0]) < 1e-300


@pytest.mark.parametrize("op", [ops.sigmoid, ops.silu, ops.softplus, ops.gelu, ops.gelu_tanh])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("at", [0, 18, 36])
def test_t12_nan_anywhere_stays_in_its_place(op, dtype, face, at):
    x = np.linspace(-3, 3, 37).astype(dtype)
    expected = run("composite", op, x)
    x[at] = NAN
    y = run(face, op, x)
    assert np.isnan(y[at]) and not np.isnan(np.delete(y, at)).any()
    np.testing.assert_allclose(np.delete(y, at), np.delete(expected, at), rtol=1e-6, atol=5e-7)


def test_g25_complex_and_symbolic():
    for face in FACES:
        with pytest.raises(UnsupportedDType, match=r"sigmoid.*C64"):
            run(face, ops.sigmoid, np.zeros(3, np.complex64))
    with pytest.raises(InvalidArgument, match=r"sigmoid.*missing shape hint"):
        trace(ops.sigmoid, spec((None, 3)))
    program = trace(ops.exp, spec((None, 3)))
    x = np.ones((5, 3), np.float32)
    np.testing.assert_array_equal(program.run(x), np.exp(x))
    erf = trace(ops.erf, spec((None,), "f64"))
    assert erf.run(np.array([0.5])) == ops.erf(np.array([0.5]))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_g26_derivatives_at_zero(zero):
    for op, first, second in ((ops.sigmoid, 0.25, 0.0), (ops.softplus, 0.5, 0.25)):
        x = tracked(np.array([zero]))
        (g,) = grad(op(x), [x], create_graph=True)
        (gg,) = grad(g, [x])
        assert g.numpy()[0] == first
        assert abs(gg.numpy()[0] - second) <= 1e-15
        program = vjp(trace(lambda x, op=op: ops.reduce_sum(op(x)), np.zeros(1)), [0])
        assert program.run(np.array([zero]), np.array(1.0)) == first
        again = vjp(program, [0])
        assert again.run(np.array([zero]), np.array(1.0), np.ones(1)) == gg.numpy()


def test_sigmoid_gradient_at_infinity_is_zero():
    (g,) = gradient(ops.sigmoid, [np.array([-INF, INF])])
    np.testing.assert_array_equal(g, [0, 0])


def test_names_of_hugging_face_configs():
    assert ops.Activation.from_config({"hidden_act": "silu"}).name == "silu"
    assert ops.Activation.from_config({"hidden_activation": "gelu_new"}).name == "gelu_new"
    assert ops.Activation.from_config({}).name == "gelu"
    with pytest.raises(InvalidArgument, match=r"expected one of .*relu6.*, got 'snake'"):
        ops.Activation("snake")
    with pytest.raises(InvalidArgument, match="parameter"):
        ops.Activation("relu", 0.5)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (ops.Activation("relu"), lambda x: np.maximum(x, 0)),
        (ops.Activation("relu2"), lambda x: np.maximum(x, 0) ** 2),
        (ops.Activation("relu6"), lambda x: np.clip(x, 0, 6)),
        (ops.Activation("swish"), lambda x: x / (1 + np.exp(-x))),
        (ops.Activation("hardsigmoid"), lambda x: np.clip((x + 3) / 6, 0, 1)),
        (ops.Activation("hardswish"), lambda x: x * np.clip((x + 3) / 6, 0, 1)),
        (ops.Activation("mish"), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        (ops.Activation("elu"), lambda x: np.where(x > 0, x, np.expm1(x))),
        (ops.Activation("elu", 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
        (ops.Activation("leakyrelu", 0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
        (ops.Activation("swiglu"), lambda x: x[:5] / (1 + np.exp(-x[:5])) * x[5:]),
    ],
    ids=lambda a: f"{a.name}-{a.parameter}" if isinstance(a, ops.Activation) else "",
)
@pytest.mark.parametrize("face", FACES)
def test_activation_table(face, activation, expected):
    x = np.array([-5.0, -2.5, -1.0, -0.5, 0.25, 0.5, 1.0, 2.5, 5.0, 7.0])
    np.testing.assert_allclose(run(face, activation, x), expected(x), rtol=1e-14)


def test_elu_gradient_survives_overflow_of_the_branch_not_taken():
    x = tracked(np.array([1000.0, -1.0]))
    (g,) = grad(ops.elu(x, 2.0), [x], np.ones(2))
    np.testing.assert_allclose(g.numpy(), [1.0, 2 * np.exp(-1.0)], rtol=1e-15)
