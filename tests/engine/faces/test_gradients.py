"""Gradients of every op: finite differences, both strategies, eager against traced bit for bit, none lost."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import InvalidArgument, MissingGradient
from llamita.engine.faces.checkpoint import checkpointing
from llamita.engine.faces.eager import grad, tracked
from llamita.engine.faces.gradient import vjp
from llamita.engine.faces.traced import trace
from llamita.engine.gradcheck import gradcheck
from llamita.engine.ops.dispatch import OPS

RNG = np.random.default_rng(2)
X = RNG.normal(size=(3, 4))
Y = RNG.normal(size=(3, 4))
POSITIVE = np.abs(X) + 0.5
MASK = np.array([[True, False, True, True], [False] * 4, [True] * 4])
VISIBLE = MASK[[0, 2, 2]]
HEADS = RNG.normal(size=(1, 2, 3, 4))
ANGLES = RNG.normal(size=(3, 2))
CLASS_CONFIG = ops.GatherConfig(slice_sizes=(1, 4), collapsed=(0,), index_axes=(0,), offset_dims=(1,))

# One row an op: name -> (function of the float arrays, the arrays). Points stay away from kinks.
CASES = {
    "neg": (ops.neg, [X]),
    "exp": (ops.exp, [X]),
    "log": (ops.log, [POSITIVE]),
    "log1p": (ops.log1p, [POSITIVE]),
    "expm1": (ops.expm1, [X]),
    "tanh": (ops.tanh, [X]),
    "erf": (ops.erf, [X]),
    "sqrt": (ops.sqrt, [POSITIVE]),
    "rsqrt": (ops.rsqrt, [POSITIVE]),
    "sin": (ops.sin, [X]),
    "cos": (ops.cos, [X]),
    "abs": (ops.abs, [X]),
    "sign": (ops.sign, [X]),
    "floor": (ops.floor, [X]),
    "round": (ops.round, [X]),
    "conj": (ops.conj, [X]),
    "add": (ops.add, [X, Y[0]]),
    "sub": (ops.sub, [X[:, :1], Y]),
    "mul": (ops.mul, [X[0], Y]),
    "div": (ops.div, [X, POSITIVE[:, :1]]),
    "maximum": (ops.maximum, [X, Y]),
    "minimum": (ops.minimum, [X, Y[0]]),
    "remainder": (lambda a: ops.remainder(a, np.full((3, 4), 0.7)), [X]),
    "remainder both": (ops.remainder, [X, POSITIVE]),
    "select": (lambda a, b: ops.select(MASK, a, b), [X, Y[:1]]),
    "clamp": (lambda a: ops.clamp(a, -0.5, 0.6), [X]),
    "powf": (ops.powf, [POSITIVE, Y]),
    "powf_scalar": (lambda a: ops.powf_scalar(a, -1.7), [POSITIVE]),
    "reduce_sum": (lambda a: ops.reduce_sum(a, 0), [X]),
    "reduce_max": (lambda a: ops.reduce_max(a, (1,)), [X]),
    "reduce_sum_squares": (ops.reduce_sum_squares, [X]),
    "reduce_mean": (lambda a: ops.reduce_mean(a, -1), [X]),
    "softmax": (ops.softmax, [X]),
    "softmax axis 0": (lambda a: ops.softmax(a, 0), [X]),
    "log_softmax": (ops.log_softmax, [X]),
    "log_softmax axis 0": (lambda a: ops.log_softmax(a, 0), [X]),
    "masked_softmax": (lambda a: ops.masked_softmax(a, MASK), [X]),
    "masked_softmax row mask": (lambda a: ops.masked_softmax(a, MASK[0], 0), [X]),
    "masked_log_softmax": (lambda a: ops.select(VISIBLE, ops.masked_log_softmax(a, VISIBLE), 0.0), [X]),
    "masked_log_softmax row mask": (lambda a: ops.select(MASK[0], ops.masked_log_softmax(a, MASK[0]), 0.0), [X]),
    "reduce_mean all": (ops.reduce_mean, [X]),
    "reduce_max tied with nothing": (ops.reduce_max, [X]),
    "layer_norm": (lambda a, w, b: ops.layer_norm(a, -1, w, b), [X, Y[0], Y[1]]),
    "layer_norm axis 0": (lambda a, w: ops.layer_norm(a, 0, w), [X, Y[:, 0]]),
    "rms_norm": (lambda a, w: ops.rms_norm(a, -1, w), [X, Y[0]]),
    "rms_norm axis 0": (lambda a: ops.rms_norm(a, 0), [X]),
    "sigmoid": (ops.sigmoid, [X]),
    "silu": (ops.silu, [X]),
    "softplus": (ops.softplus, [X]),
    "gelu": (ops.gelu, [X]),
    "gelu_tanh": (ops.gelu_tanh, [X]),
    "gated_silu": (ops.gated_silu, [X, Y]),
    "swiglu": (ops.swiglu, [X]),
    "relu": (ops.relu, [X]),
    "relu2": (ops.relu2, [X]),
    "relu6": (ops.relu6, [X]),
    "hardsigmoid": (ops.hardsigmoid, [X]),
    "hardswish": (ops.hardswish, [X]),
    "mish": (ops.mish, [X]),
    "elu": (lambda a: ops.elu(a, 0.7), [X]),
    "leaky_relu": (ops.leaky_relu, [X]),
    "reshape": (lambda a: ops.reshape(a, (2, -1)), [X]),
    "transpose": (lambda a: ops.transpose(a, (1, 2, 0)), [X.reshape(3, 2, 2)]),
    "slice": (lambda a: ops.slice(a, 1, 0, 4, 3), [X]),
    "narrow": (lambda a: ops.narrow(a, 1, 1, 2), [X]),
    "pad": (lambda a: ops.pad(a, (1, 0), (0, 2)), [X]),
    "concatenate": (lambda a, b: ops.concatenate([a, b, a], 1), [X, Y]),
    "broadcast_in_dim": (lambda a: ops.broadcast_in_dim(a, (4, 2, 3), (2, 0)), [X]),
    "broadcast_in_dim expanding": (lambda a: ops.broadcast_in_dim(a, (4, 2, 3), (2, 1)), [X[:, :1]]),
    "broadcast_to": (lambda a: ops.broadcast_to(a, (2, 3, 4)), [X[:, :1]]),
    "cast": (lambda a: ops.cast(ops.cast(a, "f64"), "f64"), [X]),
    "gather": (lambda a: ops.gather(a, np.array([[2], [0], [2]]), CLASS_CONFIG), [X]),
    "take_along_axis": (lambda a: ops.take_along_axis(a, np.array([[1, 0, 1, 2], [0, 0, 2, 2]]), 0), [X]),
    "take_along_axis last": (lambda a: ops.take_along_axis(a, np.array([[1, 3]]), -1), [X]),
    "swiglu cube": (ops.swiglu, [X.reshape(3, 1, 4)]),
    "matmul of nothing": (ops.matmul, [np.zeros((0, 2, 3)), Y[:, :2]]),
    "embedding": (lambda w: ops.embedding(np.array([[2, 0], [2, 2]]), w), [X]),
    "matmul": (ops.matmul, [X, Y.T]),
    "matmul batched": (ops.matmul, [X.reshape(3, 1, 2, 2), RNG.normal(size=(5, 2, 3))]),
    "dense_linear": (ops.linear, [RNG.normal(size=(2, 3, 4)), Y, RNG.normal(size=3)]),
    "rope": (lambda a: ops.rope(a, np.cos(ANGLES), np.sin(ANGLES)), [HEADS]),
    "rope_i": (ops.rope_i, [HEADS, np.cos(ANGLES), np.sin(ANGLES)]),
    "rope_thd": (lambda a: ops.rope_thd(a, np.cos(ANGLES), np.sin(ANGLES)), [HEADS.transpose(0, 2, 1, 3)]),
    "sdpa": (ops.sdpa, [HEADS, HEADS[:, :1] + 1, HEADS[:, 1:]]),
    "sdpa causal softcap": (lambda q, k, v: ops.sdpa(q, k, v, causal=True, softcap=2.0), [HEADS, HEADS[:, :1], HEADS[:, 1:] * 2]),
    "sdpa mask": (lambda q, k, m: ops.sdpa(q, k, k, m), [HEADS, HEADS[:, :1], RNG.normal(size=(3, 3))]),
}
# These give bools or integers, or take nothing but them and quantised tensors (tested apart).
NOT_DIFFERENTIABLE = {"compare", "argmax", "powi", "qmatmul"}


def test_the_table_covers_every_op():
    assert {name.split()[0] for name in CASES} | NOT_DIFFERENTIABLE == set(OPS)


@pytest.mark.parametrize("name", CASES)
def test_finite_differences(name):
    fn, arrays = CASES[name]
    step = 1e-7 if name in ("floor", "round", "sign") else 1e-6
    gradcheck(fn, arrays, step=step)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "silu", "softmax", "gelu", "gelu_tanh", "layer_norm", "sdpa", "powf", "rope_i"])
def test_second_derivatives(name):
    fn, arrays = CASES[name]
    assert [e.order for e in gradcheck(fn, arrays, order=2)] == [1, 2]


@pytest.mark.parametrize("name", CASES)
def test_eager_traced_and_balanced_gradients_are_bitwise_equal(name):
    fn, arrays = CASES[name]

    def eager():
        leaves = [tracked(a) for a in arrays]
        y = fn(*leaves)
        assert y.requires_grad, "lost gradient"
        return y, grad(y, leaves, np.cos(np.arange(y.value.size)).reshape(y.shape))

    y, plain = eager()
    with checkpointing("balanced"):
        _, balanced = eager()
    program = trace(fn, *arrays)
    traced = vjp(program, with_values=True).run(*arrays, np.cos(np.arange(y.value.size)).reshape(y.shape))
    np.testing.assert_array_equal(traced[0], y.numpy())
    with ops.composites_only():
        np.testing.assert_array_equal(y.numpy(), fn(*arrays))
    np.testing.assert_allclose(fn(*arrays), y.numpy(), rtol=1e-14, atol=1e-15)
    for a, b, c in zip(plain, balanced, traced[1:], strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_array_equal(a.numpy(), c)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("which", ["first", "each"])
def test_no_operand_is_forgotten(name, which):
    fn, arrays = CASES[name]
    for i in range(len(arrays) if which == "each" else 1):
        leaves = [tracked(a) if j == i else a for j, a in enumerate(arrays)]
        y = fn(*leaves)
        assert y.requires_grad
        everything = [tracked(a) for a in arrays]
        z = fn(*everything)
        (g,) = grad(y, [leaves[i]], np.ones(y.shape))
        np.testing.assert_array_equal(g.numpy(), grad(z, everything, np.ones(z.shape))[i].numpy())


# In the others an operand is captured as float64.
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("remainder", "rope", "rope_thd", "cast")])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_gradients_keep_the_dtype_on_both_faces(name, dtype):
    fn, arrays = CASES[name]
    arrays = [ops.cast(a, dtype) for a in arrays]
    leaves = [tracked(a) for a in arrays]
    y = fn(*leaves)
    ones = ops.cast(np.ones(y.shape), dtype)
    traced = vjp(trace(fn, *arrays)).run(*arrays, ones)
    for g, other in zip(grad(y, leaves, ones), traced if isinstance(traced, tuple) else (traced,), strict=True):
        assert g.dtype == arrays[0].dtype
        np.testing.assert_array_equal(ops.cast(g.numpy(), "f32"), ops.cast(other, "f32"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_t02_gradients_of_half_types_are_summed_in_float32(dtype):
    n = 4096
    x = tracked(ops.cast(np.ones(1), dtype))
    (g,) = grad(ops.broadcast_to(x, (n,)), [x], ops.cast(np.ones(n), dtype))
    assert ops.cast(g.numpy(), "f32")[0] == n
    table = tracked(ops.cast(np.ones((2, 1)), dtype))
    (g,) = grad(ops.embedding(np.zeros(n, np.int64), table), [table], ops.cast(np.ones((n, 1)), dtype))
    np.testing.assert_array_equal(ops.cast(g.numpy(), "f32"), [[n], [0]])
    (g,) = grad(ops.concatenate([x] * 300, 0), [x], ops.cast(np.ones(300), dtype))
    assert ops.cast(g.numpy(), "f32")[0] == 300


def test_fan_out_adds_up():
    x = tracked(np.array([2.0]))
    y = x * x + x
    (g,) = grad(y * y, [x])
    assert g.numpy() == 2 * 6 * 5


def test_ties_share():
    (g,) = grad(ops.reduce_sum(ops.reduce_max(x := tracked(np.array([[1.0, 3, 3], [2, 2, 2]])), 1)), [x])
    np.testing.assert_allclose(g.numpy(), [[0, 0.5, 0.5], [1 / 3] * 3])
    a, b = tracked(np.array([1.0, 2])), tracked(np.array([1.0, 1]))
    ga, gb = grad(ops.maximum(a, b), [a, b], np.ones(2))
    np.testing.assert_array_equal([ga.numpy(), gb.numpy()], [[0.5, 1], [0.5, 0]])


def test_gradcheck_finds_a_wrong_gradient():
    def wrong(x):
        return ops.select(np.array(True), ops.mul(x, x), x) if isinstance(x, np.ndarray) else ops.mul(x, 3.0)

    with pytest.raises(InvalidArgument, match=r"gradcheck: gradient of order 1: expected .* got"):
        gradcheck(wrong, [np.array([1.0, 2.0])])
    with pytest.raises(MissingGradient, match="untracked"):
        gradcheck(lambda x: ops.exp(np.ones(2)), [np.ones(2)])
    with pytest.raises(InvalidArgument, match="at least one float"):
        gradcheck(ops.argmax, [np.arange(3)])
