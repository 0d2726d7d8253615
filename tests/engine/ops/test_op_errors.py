"""Wrong operands and attributes: the named error, with the op and the value, on every face."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import (
    AxisOutOfBounds,
    DTypeMismatch,
    DuplicateAxis,
    IndexOutOfRange,
    InvalidArgument,
    RankMismatch,
    ShapeMismatch,
    UnsupportedDType,
)
from llamita.engine.faces.dtypes import as_dtype
from llamita.engine.faces.eager import Tracked
from llamita.engine.faces.traced import spec, trace

X = np.ones((2, 3))
IDS = np.array([0, 1])
KEYS = np.ones((1, 3, 4, 2))
ROWS = ops.GatherConfig(slice_sizes=(1, 3), collapsed=(0,), index_axes=(0,), offset_dims=(1,))


def heads(x):
    """[2, 3] -> [1, 3, 1, 2]"""
    return ops.reshape(ops.transpose(x), (1, 3, 1, 2))


CASES = [
    (lambda x: ops.softmax(x, 2), AxisOutOfBounds, r"softmax: .*\[-2, 2\), got 2"),
    (lambda x: ops.softmax(x, -3), AxisOutOfBounds, r"softmax.*got -3"),
    (lambda x: ops.softmax(x, 1.5), InvalidArgument, r"softmax: axis.*1\.5"),
    (lambda x: ops.layer_norm(x, 5), AxisOutOfBounds, r"layer_norm.*got 5"),
    (lambda x: ops.reduce_sum(x, (0, 0)), DuplicateAxis, r"reduce_sum.*\(0, 0\)"),
    (lambda x: ops.reduce_sum(x, ()), InvalidArgument, r"reduce_sum: axes.*at least one"),
    (lambda x: ops.reduce_max(ops.reshape(ops.narrow(x, 0, 0, 0), (0, 3)), 0), InvalidArgument, r"reduce_max: axes.*zero-length axis 0"),
    (lambda x: ops.add(x, np.ones((3, 2))), ShapeMismatch, r"add: .*\(2, 3\) and \(3, 2\)"),
    (lambda x: ops.mul(x, np.ones((2, 3), np.float32)), DTypeMismatch, r"mul: .*F64, got F32"),
    (lambda x: ops.div(ops.cast(x, "i32"), ops.cast(x, "i32")), UnsupportedDType, r"div: unsupported dtype I32"),
    (lambda x: ops.exp(ops.cast(x, "i64")), UnsupportedDType, r"exp: unsupported dtype I64"),
    (lambda x: ops.erf(ops.cast(x, "i32")), UnsupportedDType, r"erf: unsupported dtype I32"),
    (lambda x: ops.compare(x, x, "almost"), InvalidArgument, r"compare: direction: .*'almost'"),
    (lambda x: ops.select(x, x, x), DTypeMismatch, r"select: condition: expected BOOL, got F64"),
    (lambda x: ops.clamp(x, 2.0, 1.0), InvalidArgument, r"clamp: bounds: .*2\.0 and 1\.0"),
    (lambda x: ops.reshape(x, (4, 2)), ShapeMismatch, r"reshape: .*6 elements .*\(4, 2\)"),
    (lambda x: ops.reshape(x, (-1, 4)), ShapeMismatch, r"reshape: .*\(-1, 4\)"),
    (lambda x: ops.reshape(x, (-2, -3)), InvalidArgument, r"reshape: shape: .*\(-2, -3\)"),
    (lambda x: ops.transpose(x, (0, 0)), DuplicateAxis, r"transpose: .*\(0, 0\)"),
    (lambda x: ops.transpose(x, (0,)), RankMismatch, r"transpose: permutation"),
    (lambda x: ops.slice(x, 1, 2, 5), InvalidArgument, r"slice: bounds: .*2:5:1"),
    (lambda x: ops.narrow(x, 0, 1, 2), InvalidArgument, r"narrow: bounds: .*1 \+ 2"),
    (lambda x: ops.pad(x, (0,), (1, 1)), RankMismatch, r"pad: low, high"),
    (lambda x: ops.pad(x, (0, -1), (1, 1)), InvalidArgument, r"pad: low, high: .*-1"),
    (lambda x: ops.concatenate([x, np.ones((2, 2))], 0), ShapeMismatch, r"concatenate: .*\(2, 2\)"),
    (lambda x: ops.concatenate([x, np.ones(3)], 0), RankMismatch, r"concatenate: .*\(3,\)"),
    (lambda x: ops.concatenate([], 0), InvalidArgument, r"concatenate: operands"),
    (lambda x: ops.broadcast_to(x, (3, 3)), ShapeMismatch, r"broadcast_in_dim: .*\(2, 3\)"),
    (lambda x: ops.broadcast_to(x, (3,)), ShapeMismatch, r"broadcast_to: .*\(3,\)"),
    (lambda x: ops.broadcast_in_dim(x, (2, 3), (1, 1)), DuplicateAxis, r"broadcast_in_dim"),
    (lambda x: ops.cast(x, "q4"), UnsupportedDType, r"cast: unsupported dtype"),
    (lambda x: ops.matmul(x, x), ShapeMismatch, r"matmul: .*\(2, 3\) and \(2, 3\)"),
    (lambda x: ops.matmul(x, np.ones(3)), RankMismatch, r"matmul: rank"),
    (lambda x: ops.swiglu(x), ShapeMismatch, r"swiglu: .*even last axis"),
    (lambda x: ops.gated_silu(x, np.ones((2, 2))), ShapeMismatch, r"gated_silu: up"),
    (lambda x: ops.powf_scalar(x, "two"), InvalidArgument, r"powf_scalar: exponent: .*'two'"),
    (lambda x: ops.embedding(IDS, ops.reshape(x, (2, 3, 1))), RankMismatch, r"embedding: weight"),
    (lambda x: ops.add(x, 1 + 2j), InvalidArgument, r"real number"),
    (lambda x: ops.add(ops.cast(x, "i32"), 0.5), InvalidArgument, r"exact integer .*0\.5"),
    (lambda x: ops.add(x, "one"), InvalidArgument, r"add: b: .*str"),
    (lambda x: ops.softmax(x, 0, 1), InvalidArgument, r"softmax: arguments: .*at most 2"),
    (lambda x: ops.softmax(x, axes=0), InvalidArgument, r"softmax: arguments: .*'axes'"),
    (lambda x: ops.softmax(x, x=x), InvalidArgument, r"softmax: arguments: .*'x' once"),
    (lambda x: ops.powf(x), InvalidArgument, r"powf: arguments: .*'b' is missing"),
    # softmax family
    (lambda x: ops.masked_softmax(x, x), DTypeMismatch, r"masked_softmax: mask: expected BOOL, got F64"),
    (lambda x: ops.masked_log_softmax(x, np.ones((3, 3), bool)), ShapeMismatch, r"masked_log_softmax: mask: .*\(3, 3\)"),
    (lambda x: ops.masked_softmax(x, np.ones((1, 2, 3), bool)), ShapeMismatch, r"masked_softmax: mask: .*\(1, 2, 3\)"),
    (lambda x: ops.log_softmax(ops.cast(x, "i32")), UnsupportedDType, r"log_softmax: unsupported dtype I32"),
    (lambda x: ops.log_softmax(x, 2), AxisOutOfBounds, r"log_softmax.*got 2"),
    # means and norms
    (lambda x: ops.reduce_mean(ops.cast(x, "i64")), UnsupportedDType, r"reduce_mean: unsupported dtype I64"),
    (lambda x: ops.reduce_mean(x, (1, -1)), DuplicateAxis, r"reduce_mean: .*\(1, -1\)"),
    (lambda x: ops.reduce_mean(x, 0.5), InvalidArgument, r"reduce_mean: axes: .*0\.5"),
    (lambda x: ops.layer_norm(x, -1, eps=-1.0), InvalidArgument, r"layer_norm: invalid argument eps: .*got -1"),
    (lambda x: ops.rms_norm(x, -1, eps=float("nan")), InvalidArgument, r"rms_norm: invalid argument eps: .*got nan"),
    (lambda x: ops.rms_norm(x, -1, eps=float("inf")), InvalidArgument, r"rms_norm: invalid argument eps: .*got inf"),
    (lambda x: ops.rms_norm(x, -1, np.ones(2)), ShapeMismatch, r"rms_norm: weight: .*\(3,\).*got \(2,\)"),
    (lambda x: ops.layer_norm(x, -1, None, np.ones((1, 3))), ShapeMismatch, r"layer_norm: bias: .*got \(1, 3\)"),
    (lambda x: ops.layer_norm(x, -1, np.ones(3, np.float32)), DTypeMismatch, r"layer_norm: weight: expected F64.*got F32"),
    # indices
    (lambda x: ops.take_along_axis(x, x, 0), UnsupportedDType, r"take_along_axis: .*indices must be I32 or I64"),
    (lambda x: ops.take_along_axis(x, IDS, 0), RankMismatch, r"take_along_axis: indices: expected rank 2"),
    (lambda x: ops.take_along_axis(x, np.zeros((1, 2), np.int64), 0), ShapeMismatch, r"take_along_axis: indices: .*axis 1, got 2"),
    (lambda x: ops.take_along_axis(x, np.zeros((1, 3), np.int64), 2), AxisOutOfBounds, r"take_along_axis: .*got 2"),
    (
        lambda x: ops.take_along_axis(ops.narrow(x, 1, 0, 0), np.zeros((2, 1), np.int64), 1),
        InvalidArgument,
        r"take_along.*zero-length axis 1",
    ),
    (lambda x: ops.embedding(x, x), UnsupportedDType, r"embedding: ids: unsupported dtype F64"),
    (lambda x: ops.embedding(IDS, ops.narrow(x, 0, 0, 0)), IndexOutOfRange, r"embedding: weight: expected a table with rows"),
    (lambda x: ops.gather(x, IDS[:, None], None), InvalidArgument, r"gather: config: .*None"),
    (lambda x: ops.gather(x, x[:, :1] if isinstance(x, np.ndarray) else ops.narrow(x, 1, 0, 1), ROWS), UnsupportedDType, r"gather: .*F64"),
    (lambda x: ops.gather(x, IDS, ROWS), ShapeMismatch, r"gather: indices: .*\(2,\)"),
    # matrices, rope, attention
    (lambda x: ops.linear(x, np.ones((4, 2))), ShapeMismatch, r"linear: x: .*\(2, 3\) incompatible with weight \(4, 2\)"),
    (lambda x: ops.linear(x, np.ones(3)), RankMismatch, r"linear: weight: expected rank 2"),
    (lambda x: ops.linear(x, np.ones((4, 3), np.float32)), DTypeMismatch, r"linear: weight: .*F32"),
    (lambda x: ops.linear(x, np.ones((4, 3)), np.ones(3)), ShapeMismatch, r"linear: bias: .*\(4,\)"),
    (lambda x: ops.rope(x, x, x), RankMismatch, r"rope: x: expected rank 4, got shape \(2, 3\)"),
    (lambda x: ops.rope_i(heads(x), np.ones((3, 2)), np.ones((3, 2))), ShapeMismatch, r"rope_i: cos: inconsistent last dim size"),
    (lambda x: ops.rope_thd(heads(x), np.ones((0, 1)), np.ones((0, 1))), ShapeMismatch, r"rope_thd: cos: .*3 positions, got 0"),
    (lambda x: ops.rope(heads(x), np.ones((3, 3, 1)), np.ones((3, 3, 1))), ShapeMismatch, r"rope: cos: expected batch 1, got 3"),
    (lambda x: ops.rope(heads(x), np.ones((3, 1)), np.ones((4, 1))), ShapeMismatch, r"rope: sin: .*\(3, 1\), got \(4, 1\)"),
    (lambda x: ops.rope(heads(x), np.ones((3, 1), np.float32), np.ones((3, 1))), DTypeMismatch, r"rope: cos: .*F32"),
    (lambda x: ops.sdpa(x, x, x), RankMismatch, r"sdpa: q: expected rank 4"),
    (lambda x: ops.sdpa(heads(x), KEYS[..., :1], KEYS), ShapeMismatch, r"sdpa: k: expected head dim 2 like q, got 1"),
    (lambda x: ops.sdpa(heads(x), KEYS[:, :2], KEYS[:, :2]), ShapeMismatch, r"sdpa: heads: .*got 3 and 2"),
    (lambda x: ops.sdpa(heads(x), KEYS, KEYS, np.ones((2, 5), bool)), ShapeMismatch, r"sdpa: mask: .*\(2, 5\)"),
    (lambda x: ops.sdpa(heads(x), KEYS, KEYS, np.ones((1, 4), np.float32)), DTypeMismatch, r"sdpa: mask: .*F32"),
    (lambda x: ops.sdpa(heads(x), KEYS, KEYS, None, False, "x"), InvalidArgument, r"sdpa: invalid argument scale: .*'x'"),
    (lambda x: ops.sdpa(heads(x), KEYS, KEYS, None, False, None, 0.0), InvalidArgument, r"sdpa: invalid argument softcap: .*0\.0"),
    (lambda x: ops.sdpa(ops.narrow(heads(x), 3, 0, 0), KEYS[..., :0], KEYS), InvalidArgument, r"sdpa: invalid argument scale: .*dim 0"),
    # activations and numbers
    (lambda x: ops.sigmoid(ops.cast(x, "c64")), UnsupportedDType, r"sigmoid: unsupported dtype C64: sigmoid is defined for real F32/F64"),
    (lambda x: ops.relu(ops.cast(x, "i32")), UnsupportedDType, r"relu: unsupported dtype I32"),
    (lambda x: ops.elu(x, "one"), InvalidArgument, r"elu: invalid argument parameter: .*'one'"),
    (lambda x: ops.clamp(x, None, 1.0), InvalidArgument, r"clamp: invalid argument lower: .*None"),
    (lambda x: ops.powi(x, x), UnsupportedDType, r"powi: .*F64"),
    (lambda x: ops.cast(ops.cast(x, "c128"), "f64"), UnsupportedDType, r"cast: .*C128.*imaginary"),
    (lambda x: ops.lt(ops.cast(x, "c64"), ops.cast(x, "c64")), UnsupportedDType, r"compare: .*no order"),
    # extents that are no integers, operands that are no arrays
    (lambda x: ops.reshape(x, (2.5, 2)), InvalidArgument, r"reshape: shape: .*2\.5"),
    (lambda x: ops.reshape(x, None), InvalidArgument, r"reshape: shape: .*None"),
    (lambda x: ops.slice(x, 0, 0.5, 2), InvalidArgument, r"slice: bounds: .*0\.5"),
    (lambda x: ops.narrow(x, 0, 0, 1.0), InvalidArgument, r"narrow: bounds: .*1\.0"),
    (lambda x: ops.pad(x, (0.5, 0), (0, 0)), InvalidArgument, r"pad: low: .*0\.5"),
    (lambda x: ops.broadcast_to(x, (-2, 2, 3)), InvalidArgument, r"broadcast_in_dim: shape: .*-2"),
    (lambda x: ops.reduce_sum(x, "rows"), InvalidArgument, r"reduce_sum: axes: .*'rows'"),
    (lambda x: ops.concatenate([x, 1.0], 0), InvalidArgument, r"concatenate: operands: .*float"),
    (lambda x: ops.powf(x, [1.0, 2.0, 3.0]), InvalidArgument, r"powf: b: expected an array or a number, got list"),
    (lambda x: ops.mul(x, None), InvalidArgument, r"mul: b: expected an array or a number, got NoneType"),
]


@pytest.mark.parametrize("face", ["direct", "eager", "core", "plan"])
@pytest.mark.parametrize(("fn", "error", "pattern"), CASES, ids=range(len(CASES)))
def test_named_errors_on_every_face(face, fn, error, pattern):
    with pytest.raises(error, match=pattern):
        if face == "direct":
            fn(X)
        elif face == "eager":
            fn(Tracked(X))
        else:
            trace(fn, X, lowering=face)


def test_dtype_and_spec_names():
    assert as_dtype("f16") == np.float16 and as_dtype(np.int32) == np.int32
    for wrong in ("q4", np.int8, object()):
        with pytest.raises(UnsupportedDType):
            as_dtype(wrong)
    with pytest.raises(InvalidArgument, match="spec: shape"):
        spec((2, -1))
    with pytest.raises(InvalidArgument, match="lowering"):
        trace(ops.exp, X, lowering="fast")


def test_numbers_take_the_type_of_the_array_beside_them():
    for dtype in (np.float32, np.float16, np.int64):
        assert ops.add(np.ones(2, dtype), 1).dtype == dtype
    assert ops.add(2, ops.cast(np.ones(2), "bf16")).dtype == ops.cast(np.ones(2), "bf16").dtype
    assert ops.sigmoid(0.0) == 0.5
    np.testing.assert_array_equal(ops.select(np.array([True, False]), np.array([1.0, 2.0]), 0), [1, 0])


def test_complex_arithmetic():
    z = np.array([1 + 2j, 3 - 1j])
    np.testing.assert_array_equal(ops.mul(ops.conj(z), z), [5, 10])
    np.testing.assert_allclose(ops.div(ops.sub(ops.add(z, z), ops.neg(z)), z), 3)
    with pytest.raises(UnsupportedDType, match="no order"):
        ops.lt(z, z)
    with pytest.raises(UnsupportedDType, match="imaginary"):
        ops.cast(z, "f32")


def test_what_is_no_array_on_the_direct_face():
    for wrong, name in (([1.0], "list"), (None, "NoneType"), ("one", "str")):
        with pytest.raises(InvalidArgument, match=rf"exp: .*{name}"):
            ops.exp(wrong)


def test_casts_beyond_the_type_are_silent():
    np.testing.assert_array_equal(ops.cast(np.array([1e300, -1e300]), "f32"), [np.inf, -np.inf])
    np.testing.assert_array_equal(ops.cast(ops.cast(np.array([1e10]), "f16"), "f32"), [np.inf])
    assert ops.cast(np.array([np.nan, 2.0]), "i32")[1] == 2
