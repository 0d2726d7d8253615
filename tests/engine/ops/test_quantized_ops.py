"""Ops on quantised operands: policy, mixed dispatch, names; compared decoded, with the tolerance of the scheme."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import InvalidArgument, MissingGradient, UnsupportedDType
from llamita.engine.faces.eager import grad, tracked
from llamita.engine.faces.traced import trace
from llamita.engine.ops import Int8Tensor, quantized


def q(values):
    return Int8Tensor.quantize(values)


def close(got, expected, rel=4e-2, absolute=1e-2):
    got = got.dequantize() if isinstance(got, Int8Tensor) else np.asarray(got)
    expected = np.asarray(expected, float)
    limit = np.maximum(absolute, rel * np.maximum(np.abs(got), np.abs(expected)))
    assert (np.abs(got - expected) < limit).all(), (got, expected)


BASE = [[1.0, 1, 2], [3, 4, 5]]


def test_scheme():
    t = q([[-2.0, 0.0, 1.0, 127 / 64]])
    assert t.scale == np.float32(2 / 127) and t.codes.dtype == np.int8
    close(t, [[-2, 0, 1, 127 / 64]])
    assert q([0.0, 0.0]).dequantize().sum() == 0 and q(np.zeros((0, 2))).shape == (0, 2)
    np.testing.assert_array_equal(q([127.0, 0.5, -0.5, 1.5]).codes, [127, 1, -1, 2])
    with pytest.raises(InvalidArgument, match="finite"):
        q([1.0, np.nan])


def test_t29_g34_to_g37_on_quantised_operands():
    close(quantized.q_powf(q(BASE), q([[1.0, 1, 2], [3, 4, 2]])), [[1, 1, 4], [27, 256, 25]])
    close(
        quantized.q_powf(q(BASE), q([[-0.95, -0.67, -0.45], [-0.24, -0.5, -0.6]])),
        [[1, 1, 0.73204285], [0.76822936, 0.5, 0.38073079]],
    )
    negative = [[1.0, -1, -2], [-3, -4, -4]]
    # An exponent of 2 does not survive the encoding beside a 4, so here it stays a float.
    close(quantized.q_powf(q(negative), np.array([[2.0, 2, 4], [4, 4, 2]])), [[1, 1, 16], [81, 256, 16]])
    close(quantized.q_powf_scalar(q(negative), 3.0), [[1, -1, -8], [-27, -64, -64]])
    close(quantized.q_powf_scalar(q([[0.0, -1, -2], [-3, -4, -4]]), 4.0), [[0, 1, 16], [81, 256, 256]])
    close(quantized.q_powf_scalar(q([[0.0, 1, 2], [3, 4, 5]]), 0.71), [[0, 1, 1.6358], [2.1815, 2.67586, 3.13522]])
    close(quantized.q_powf_scalar(q(BASE), -0.33), [[1, 1, 0.79553646], [0.695905, 0.6328783, 0.58794934]])


def test_inhibit_is_the_default_and_propagate_encodes_like_the_left_operand():
    a, b = q(BASE), q(BASE)
    assert isinstance(ops.add(a, b), np.ndarray)
    encoded = quantized.q_add(a, b, propagation="propagate")
    assert isinstance(encoded, Int8Tensor)
    close(encoded, np.array(BASE) * 2)
    with ops.quantized_propagation("propagate"):
        assert isinstance(ops.exp(a), Int8Tensor)
        assert isinstance(ops.add(a, np.ones((2, 3))), np.ndarray)
    wide = q([1.0, 256.0])
    assert quantized.q_powf_scalar(wide, 1.0)[0] == pytest.approx(0, abs=1.1)
    with pytest.raises(InvalidArgument, match="inhibit, propagate"):
        quantized.q_add(a, b, propagation="always")


def test_mixed_dispatch():
    a, x = q(BASE), np.full((2, 3), 2.0)
    for left, right in ((a, x), (x, a)):
        assert ops.mul(left, right).dtype == np.float64
        close(ops.mul(left, right), np.array(BASE) * 2)
    for half in ("f16", "bf16", "f32"):  # decoded to the type of the float side
        other = ops.cast(x, half)
        assert ops.mul(a, other).dtype == ops.mul(other, a).dtype == other.dtype
    close(ops.matmul(x, ops.transpose(a)), x @ np.array(BASE).T)
    close(quantized.q_linear(x, a), x @ np.array(BASE).T)
    close(ops.mul(a, 2.0), np.array(BASE) * 2)
    with pytest.raises(UnsupportedDType, match=r"add.*I64"):
        ops.add(a, np.ones((2, 3), np.int64))


def test_layout_ops_stay_quantised_and_argmax_gives_integers():
    a = q(BASE)
    for y, expected in (
        (ops.reshape(a, (3, 2)), np.reshape(BASE, (3, 2))),
        (ops.transpose(a), np.transpose(BASE)),
        (ops.slice(a, 1, 0, 2), np.array(BASE)[:, :2]),
        (quantized.q_select(np.array([[True], [False]]), a, a), BASE),
    ):
        assert isinstance(y, Int8Tensor)
        close(y, expected)
    assert quantized.q_argmax(a, -1).dtype == np.int64
    assert isinstance(ops.cast(a, "f64"), np.ndarray)
    assert quantized.q_add.__name__ == "q_add" and "add" in quantized.q_add.__doc__


def test_gradient_passes_a_quantised_operand_and_the_weight_is_frozen():
    a = q(BASE)
    x = tracked(np.ones((4, 3), np.float32))
    y = ops.linear(x, a)
    (g,) = grad(y, [x], np.ones((4, 2), np.float32))
    np.testing.assert_allclose(g.numpy(), np.tile(a.dequantize().sum(0), (4, 1)), rtol=1e-6)
    with pytest.raises(MissingGradient, match="frozen"):
        grad(y, [a], np.ones((4, 2), np.float32))
    with pytest.raises(MissingGradient, match="frozen"):
        tracked(a)
    z = ops.mul(tracked(np.ones((2, 3))), a)
    assert z.requires_grad


def test_embedding_and_linear_on_every_face():
    a, ids = q(BASE), np.array([[1, 0]])
    np.testing.assert_array_equal(ops.embedding(ids, a), a.dequantize()[ids])
    np.testing.assert_array_equal(trace(lambda i: ops.embedding(i, a), ids).run(ids), a.dequantize()[ids])
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_array_equal(trace(lambda v: ops.linear(v, a), x).run(x), ops.linear(x, a))
    plan = trace(lambda i: ops.linear(ops.embedding(i, a), a, np.ones(2, np.float32)), ids, lowering="plan")
    assert [n.name for n in plan.nodes] == ["embedding", "qmatmul", "add"]
    assert plan.nodes[1].operand("weight").value is a
    half = ops.linear(x.astype(np.float16), a)
    assert half.dtype == np.float16
