"""Wrong operands and attributes: the named error, with the op and the value, on every face."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import (
    AxisOutOfBounds,
    DTypeMismatch,
    DuplicateAxis,
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
    (lambda x: ops.add(x, "one"), InvalidArgument, r"add: operand: .*str"),
    (lambda x: ops.softmax(x, 0, 1), InvalidArgument, r"softmax: arguments: .*at most 2"),
    (lambda x: ops.softmax(x, axes=0), InvalidArgument, r"softmax: arguments: .*'axes'"),
    (lambda x: ops.softmax(x, x=x), InvalidArgument, r"softmax: arguments: .*'x' once"),
    (lambda x: ops.powf(x), InvalidArgument, r"powf: arguments: .*'b' is missing"),
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
