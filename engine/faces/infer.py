"""Shape and dtype rules of the primitives: what comes out, and the named error when the operands do not fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from ..errors import AxisOutOfBounds, DTypeMismatch, DuplicateAxis, InvalidArgument, RankMismatch, ShapeMismatch, UnsupportedDType
from .dtypes import COMPLEX, FLOAT, HALF, INTEGER, NUMERIC, REAL, DType, boolean, dtype_name, i64
from .gather import GatherConfig
from .spec import Shape, Spec, concrete


def require_dtype(op: str, dtype: DType, allowed: Collection[DType]) -> None:
    """Raise UnsupportedDType unless the dtype is one of those allowed."""
    if dtype not in allowed:
        names = ", ".join(sorted(dtype_name(d) for d in allowed))
        raise UnsupportedDType(f"{op}: unsupported dtype {dtype_name(dtype)}: expected one of {names}")


def require_same_dtype(op: str, *operands: Spec) -> None:
    """Raise DTypeMismatch unless all operands share one dtype."""
    first = operands[0].dtype
    for other in operands[1:]:
        if other.dtype != first:
            raise DTypeMismatch(f"{op}: dtype mismatch: expected {dtype_name(first)}, got {dtype_name(other.dtype)}; cast one side first")


def normalize_axis(op: str, axis: int, ndim: int) -> int:
    """A Python axis in [-ndim, ndim) as a non-negative one."""
    try:
        index = axis.__index__()
    except AttributeError as error:
        raise InvalidArgument(f"{op}: axis: expected an integer, got {axis!r}") from error
    if not -ndim <= index < ndim:
        raise AxisOutOfBounds(f"{op}: axis out of bounds: expected an axis in [{-ndim}, {ndim}), got {index}")
    return index + ndim if index < 0 else index


def normalize_axes(op: str, axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Distinct Python axes as non-negative ones; raises DuplicateAxis, AxisOutOfBounds."""
    found = tuple(normalize_axis(op, axis, ndim) for axis in axes)
    if len(set(found)) != len(found):
        raise DuplicateAxis(f"{op}: duplicate axis: expected distinct axes, got {tuple(axes)}")
    return found


def broadcast(op: str, *shapes: Shape) -> Shape:
    """The common shape under NumPy's broadcasting rule."""
    ndim = max(len(shape) for shape in shapes)
    out: list[Any] = []
    for axis in range(-ndim, 0):
        extents = {shape[axis] for shape in shapes if -axis <= len(shape)} - {1}
        if len(extents) > 1:
            raise ShapeMismatch(f"{op}: shape mismatch: expected broadcastable shapes, got {' and '.join(map(str, shapes))}")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def unary(op: str, allowed: Collection[DType] = FLOAT) -> Any:
    """Rule of elementwise primitives of one operand: shape and dtype stay."""

    def rule(x: Spec) -> Spec:
        require_dtype(op, x.dtype, allowed)
        return x

    return rule


def binary(op: str, allowed: Collection[DType] = NUMERIC) -> Any:
    """Rule of elementwise primitives of two operands: equal dtypes, broadcast shape."""

    def rule(a: Spec, b: Spec) -> Spec:
        require_dtype(op, a.dtype, allowed)
        require_same_dtype(op, a, b)
        return Spec(broadcast(op, a.shape, b.shape), a.dtype)

    return rule


DIRECTIONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compare(a: Spec, b: Spec, direction: str) -> Spec:
    """Broadcast shape, BOOL; complex numbers have no order."""
    if direction not in DIRECTIONS:
        raise InvalidArgument(f"compare: direction: expected one of {', '.join(DIRECTIONS)}, got {direction!r}")
    require_same_dtype("compare", a, b)
    if direction not in ("eq", "ne") and a.dtype in COMPLEX:
        raise UnsupportedDType(f"compare: unsupported dtype {dtype_name(a.dtype)}: complex numbers have no order")
    require_dtype("compare", a.dtype, NUMERIC | {boolean})
    return Spec(broadcast("compare", a.shape, b.shape), boolean)


def select(condition: Spec, a: Spec, b: Spec) -> Spec:
    """Broadcast shape of condition (BOOL), a and b; the dtype of a and b."""
    if condition.dtype != boolean:
        raise DTypeMismatch(f"select: condition: expected BOOL, got {dtype_name(condition.dtype)}")
    require_same_dtype("select", a, b)
    return Spec(broadcast("select", condition.shape, a.shape, b.shape), a.dtype)


def clamp(x: Spec, lower: float, upper: float) -> Spec:
    """Shape and dtype stay; lower <= upper."""
    require_dtype("clamp", x.dtype, FLOAT)
    if not lower <= upper:
        raise InvalidArgument(f"clamp: bounds: expected lower <= upper, got {lower} and {upper}")
    return x


def reduction(op: str, allowed: Collection[DType] = NUMERIC) -> Any:
    """Rule of reductions: explicit, distinct, non-empty axes are dropped."""

    def rule(x: Spec, axes: tuple[int, ...]) -> Spec:
        require_dtype(op, x.dtype, allowed)
        if not axes:
            raise InvalidArgument(f"{op}: axes: expected at least one axis, got ()")
        axes = normalize_axes(op, axes, x.ndim)
        for axis in axes:
            if x.shape[axis] == 0:
                raise InvalidArgument(f"{op}: axes: cannot reduce the zero-length axis {axis} of shape {x.shape}")
        return Spec(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)

    return rule


def argmax(x: Spec, axis: int) -> Spec:
    """One axis is dropped; I64."""
    return Spec(reduction("argmax", REAL)(x, (axis,)).shape, i64)


def broadcast_in_dim(x: Spec, shape: Shape, dims: tuple[int, ...]) -> Spec:
    """Axis j of x lands on axis dims[j] of the result, with its extent or 1."""
    if len(dims) != x.ndim:
        raise RankMismatch(f"broadcast_in_dim: dims: expected {x.ndim} entries for shape {x.shape}, got {dims}")
    normalize_axes("broadcast_in_dim", dims, len(shape))
    for extent, dim in zip(x.shape, dims, strict=True):
        if extent not in (1, shape[dim]):
            raise ShapeMismatch(f"broadcast_in_dim: shape mismatch: expected {x.shape} to fit {shape} at axes {dims}")
    return Spec(shape, x.dtype)


def reshape(x: Spec, shape: Shape) -> Spec:
    """As many elements as before."""
    if math.prod(concrete(x.shape, "reshape")) != math.prod(shape):
        raise ShapeMismatch(f"reshape: shape mismatch: expected {math.prod(x.shape)} elements of {x.shape}, got {shape}")
    return Spec(shape, x.dtype)


def pad(x: Spec, low: tuple[int, ...], high: tuple[int, ...]) -> Spec:
    """Zeros before and after, on every axis."""
    if len(low) != x.ndim or len(high) != x.ndim:
        raise RankMismatch(f"pad: low, high: expected {x.ndim} entries for shape {x.shape}, got {low} and {high}")
    if any(n < 0 for n in (*low, *high)):
        raise InvalidArgument(f"pad: low, high: expected widths >= 0, got {low} and {high}")
    return Spec(tuple(lo + n + hi for lo, n, hi in zip(low, x.shape, high, strict=True)), x.dtype)


def concatenate(*operands: Spec, axis: int) -> Spec:
    """Extents add up on one axis and are equal on the others."""
    if not operands:
        raise InvalidArgument("concatenate: operands: expected at least one array, got none")
    require_same_dtype("concatenate", *operands)
    first = operands[0].shape
    axis = normalize_axis("concatenate", axis, len(first))
    for other in operands:
        if other.ndim != len(first):
            raise RankMismatch(f"concatenate: rank mismatch: expected rank {len(first)}, got shape {other.shape}")
        if other.shape[:axis] + other.shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            raise ShapeMismatch(f"concatenate: shape mismatch: expected {first} except at axis {axis}, got {other.shape}")
    total = sum(other.shape[axis] for other in operands)
    return Spec((*first[:axis], total, *first[axis + 1 :]), operands[0].dtype)


def gather(operand: Spec, indices: Spec, config: GatherConfig) -> Spec:
    """See `GatherConfig.result_shape`."""
    require_dtype("gather", indices.dtype, INTEGER)
    return Spec(config.result_shape(operand.shape, indices.shape), operand.dtype)


def scatter_add(indices: Spec, updates: Spec, shape: Shape, config: GatherConfig) -> Spec:
    """The given shape; updates have the shape that `gather` would give."""
    require_dtype("scatter_add", indices.dtype, INTEGER)
    expected = config.result_shape(shape, indices.shape)
    if updates.shape != expected:
        raise ShapeMismatch(f"scatter_add: updates: expected shape {expected}, got {updates.shape}")
    return Spec(shape, updates.dtype)


def transpose(x: Spec, permutation: tuple[int, ...]) -> Spec:
    """Axes permuted."""
    axes = normalize_axes("transpose", permutation, x.ndim)
    if len(axes) != x.ndim:
        raise RankMismatch(f"transpose: permutation: expected {x.ndim} axes for shape {x.shape}, got {permutation}")
    return Spec(tuple(x.shape[axis] for axis in axes), x.dtype)


def slice_(x: Spec, starts: tuple[int, ...], stops: tuple[int, ...]) -> Spec:
    """[start, stop) on every axis."""
    if len(starts) != x.ndim or len(stops) != x.ndim:
        raise RankMismatch(f"slice: starts, stops: expected {x.ndim} entries for shape {x.shape}, got {starts} and {stops}")
    for start, stop, extent in zip(starts, stops, x.shape, strict=True):
        if not 0 <= start <= stop <= extent:
            raise InvalidArgument(f"slice: bounds: expected 0 <= start <= stop <= {extent}, got {start}:{stop} on shape {x.shape}")
    return Spec(tuple(stop - start for start, stop in zip(starts, stops, strict=True)), x.dtype)


def cast(x: Spec, dtype: DType) -> Spec:
    """Another dtype; complex numbers stay complex."""
    if x.dtype in COMPLEX and dtype not in COMPLEX:
        raise UnsupportedDType(f"cast: unsupported dtype {dtype_name(x.dtype)}: to {dtype_name(dtype)} would drop the imaginary part")
    return Spec(x.shape, dtype)


def matmul(a: Spec, b: Spec) -> Spec:
    """[..., m, k] @ [..., k, n], leading axes broadcast; float or complex."""
    require_dtype("matmul", a.dtype, FLOAT | COMPLEX)
    require_same_dtype("matmul", a, b)
    if a.ndim < 2 or b.ndim < 2:
        raise RankMismatch(f"matmul: rank mismatch: expected rank >= 2 on both sides, got {a.shape} and {b.shape}")
    if a.shape[-1] != b.shape[-2]:
        raise ShapeMismatch(f"matmul: shape mismatch: expected equal inner extents, got {a.shape} and {b.shape}")
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    return Spec((*batch, a.shape[-2], b.shape[-1]), a.dtype)


def dequantize(weight: Spec, dtype: DType) -> Spec:
    """The shape of the quantised tensor, a float dtype."""
    require_dtype("dequantize", dtype, FLOAT | HALF)
    return Spec(weight.shape, dtype)


def dequantize_rows(weight: Spec, ids: Spec, dtype: DType) -> Spec:
    """Rows of a quantised table: the shape of the ids, then the table's columns."""
    if weight.ndim != 2:
        raise RankMismatch(f"dequantize_rows: table: expected rank 2, got shape {weight.shape}")
    require_dtype("dequantize_rows", ids.dtype, INTEGER)
    return Spec((*ids.shape, weight.shape[-1]), dtype)
