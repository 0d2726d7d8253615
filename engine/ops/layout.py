"""Ops that move data: reshape, transpose, slice, pad, concatenate, broadcast, cast. Every dtype; no rounding but cast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument, ShapeMismatch
from ..faces import infer
from ..faces.dtypes import as_dtype
from ..faces.namespace import Namespace, Value
from ..faces.spec import concrete, spec_of
from .dispatch import define


def _reshape(op: str, x: Any, shape: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    old = concrete(tuple(x.shape), op)
    new = infer.integers(op, "shape", shape)
    if new.count(-1) == 1:
        known = -math.prod(new)
        if known == 0 or math.prod(old) % known:
            raise ShapeMismatch(f"{op}: shape mismatch: expected {math.prod(old)} elements of {old}, got {new}")
        new = tuple(math.prod(old) // known if n == -1 else n for n in new)
    if new and min(new) < 0:
        raise InvalidArgument(f"{op}: shape: expected extents >= 0 and at most one -1, got {new}")
    if math.prod(new) != math.prod(old):
        infer.reshape(spec_of(x), new)  # names the error
    return x, new


@define(check=_reshape, composite=False, moves_data=True)
def reshape(p: Namespace, x: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order under another shape; one extent may be -1."""
    return p.reshape(x, tuple(shape))


def _transpose(op: str, x: Any, permutation: Sequence[int] | None) -> tuple[Any, tuple[int, ...]]:
    ndim = len(x.shape)
    axes = tuple(range(ndim))[::-1] if permutation is None else infer.normalize_axes(op, permutation, ndim)
    infer.transpose(spec_of(x), axes)
    return x, axes


@define(check=_transpose, composite=False, moves_data=True)
def transpose(p: Namespace, x: Value, permutation: Sequence[int] | None = None) -> Value:
    """Axes permuted (None: reversed); a view on the direct face."""
    return p.transpose(x, permutation or ())


def _slice(op: str, x: Any, axis: int, start: int, stop: int, step: int) -> tuple[Any, int, int, int, int]:
    axis = infer.normalize_axis(op, axis, len(x.shape))
    start, stop, step = infer.integers(op, "bounds", (start, stop, step))
    if not 0 <= start <= stop <= x.shape[axis] or step < 1:
        raise InvalidArgument(f"{op}: bounds: expected 0 <= start <= stop <= {x.shape[axis]} and step >= 1, got {start}:{stop}:{step}")
    return x, axis, start, stop, step


@define(check=_slice, composite=False, moves_data=True)
def slice_(p: Namespace, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    """x[..., start:stop:step, ...] on one axis; a view on the direct face when step is 1."""
    if step == 1:
        return p.narrow(x, axis, start, stop)
    # Every step-th element is column 0 of rows of `step`, the last row padded: no strided primitive is needed.
    count = -(-(stop - start) // step)
    kept = p.narrow(x, axis, start, stop)
    shape = p.shape(kept)
    high = [0] * len(shape)
    high[axis] = count * step - shape[axis]
    rows = p.reshape(p.pad(kept, [0] * len(shape), high), (*shape[:axis], count, step, *shape[axis + 1 :]))
    return p.reshape(p.narrow(rows, axis + 1, 0, 1), (*shape[:axis], count, *shape[axis + 1 :]))


def _narrow(op: str, x: Any, axis: int, start: int, length: int) -> tuple[Any, int, int, int]:
    axis = infer.normalize_axis(op, axis, len(x.shape))
    start, length = infer.integers(op, "bounds", (start, length))
    if start < 0 or length < 0 or start + length > x.shape[axis]:
        raise InvalidArgument(f"{op}: bounds: expected start + length <= {x.shape[axis]} on axis {axis}, got {start} + {length}")
    return x, axis, start, length


@define(check=_narrow, composite=False, moves_data=True)
def narrow(p: Namespace, x: Value, axis: int, start: int, length: int) -> Value:
    """``length`` entries of one axis from ``start``; a view on the direct face."""
    return p.narrow(x, axis, start, start + length)


def _pad(op: str, x: Any, low: Sequence[int], high: Sequence[int]) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    before, after = infer.integers(op, "low", low), infer.integers(op, "high", high)
    infer.pad(spec_of(x), before, after)
    return x, before, after


@define(check=_pad, composite=False, moves_data=True)
def pad(p: Namespace, x: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    """Zeros around x: ``low[i]`` before and ``high[i]`` after on axis i."""
    return p.pad(x, low, high)


def _concatenate(op: str, operands: Sequence[Any], axis: int) -> tuple[tuple[Any, ...], int]:
    if not isinstance(operands, (tuple, list)) or not operands:
        raise InvalidArgument(f"{op}: operands: expected a non-empty list of arrays, got {type(operands).__name__}")
    for x in operands:
        if not hasattr(x, "shape"):
            raise InvalidArgument(f"{op}: operands: expected arrays, got {type(x).__name__}")
    axis = infer.normalize_axis(op, axis, len(operands[0].shape))
    infer.concatenate(*map(spec_of, operands), axis=axis)
    return tuple(operands), axis


@define(check=_concatenate, composite=False, moves_data=True)
def concatenate(p: Namespace, operands: Sequence[Value], axis: int = 0) -> Value:
    """Arrays joined along one axis; other extents and dtypes equal."""
    return p.concatenate(operands, axis)


def _broadcast_in_dim(op: str, x: Any, shape: Sequence[int], dims: Sequence[int]) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    out, onto = infer.integers(op, "shape", shape), infer.integers(op, "dims", dims)
    infer.broadcast_in_dim(spec_of(x), out, onto)
    return x, out, onto


@define(check=_broadcast_in_dim, composite=False, moves_data=True)
def broadcast_in_dim(p: Namespace, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Repeat x to ``shape``: its axis j lands on output axis ``dims[j]``, with extent equal or 1."""
    return p.broadcast_in_dim(x, tuple(shape), tuple(dims))


def _broadcast_to(op: str, x: Any, shape: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    out = infer.integers(op, "shape", shape)
    offset = len(out) - len(x.shape)
    if offset < 0:
        raise ShapeMismatch(f"{op}: shape mismatch: expected {x.shape} to fit {out}")
    infer.broadcast_in_dim(spec_of(x), out, tuple(range(offset, len(out))))
    return x, out


@define(check=_broadcast_to, composite=False, moves_data=True)
def broadcast_to(p: Namespace, x: Value, shape: Sequence[int]) -> Value:
    """Repeat x to ``shape`` by NumPy's broadcasting rule."""
    return p.broadcast_in_dim(x, tuple(shape), tuple(range(len(shape) - len(p.shape(x)), len(shape))))


def _cast(op: str, x: Any, dtype: Any) -> tuple[Any, Any]:
    found = as_dtype(dtype, op)
    infer.cast(spec_of(x), found)
    return x, found


@define(check=_cast, composite=False, moves_data=True, takes_quantized=True)
def cast(p: Namespace, x: Value, dtype: Any) -> Value:
    """x by value in another dtype (NumPy's, or a short name such as "bf16"); half types round to nearest even.

    A quantised tensor is decoded.
    """
    return p.dequantize(x, dtype) if getattr(x, "is_quantized", False) else p.cast(x, dtype)
