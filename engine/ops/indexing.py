"""Ops that pick by index: gather, take_along_axis (clamp) and embedding (raises)."""

from __future__ import annotations

from typing import Any

from ..errors import IndexOutOfRange, InvalidArgument, RankMismatch, ShapeMismatch, UnsupportedDType
from ..faces import infer
from ..faces.dtypes import FLOAT, HALF, dtype_name, f32, i32, i64
from ..faces.gather import GatherConfig
from ..faces.namespace import Namespace, Value
from ..faces.spec import spec_of
from . import checks
from .dispatch import define


def _gather(op: str, operand: Any, indices: Any, config: GatherConfig) -> tuple[Any, Any, GatherConfig]:
    infer.gather(spec_of(operand), spec_of(indices), config)
    return operand, indices, config


@define(check=_gather, composite=False, moves_data=True)
def gather(p: Namespace, operand: Value, indices: Value, config: GatherConfig) -> Value:
    """Windows of ``operand`` at index tuples ``indices[..., k]`` (see `GatherConfig`); start indices are clamped."""
    return p.gather(operand, indices, config)


def _take(op: str, x: Any, indices: Any, axis: int) -> tuple[Any, Any, int]:
    if indices.dtype not in (i32, i64):
        raise UnsupportedDType(f"{op}: unsupported dtype {dtype_name(indices.dtype)}: indices must be I32 or I64")
    if len(indices.shape) != len(x.shape):
        raise RankMismatch(f"{op}: indices: expected rank {len(x.shape)} like x, got shape {indices.shape}")
    axis = infer.normalize_axis(op, axis, len(x.shape))
    for other, (n, extent) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if other != axis and n not in (1, extent):
            raise ShapeMismatch(f"{op}: indices: expected extent {extent} or 1 on axis {other}, got {n}")
    if x.shape[axis] == 0 and indices.shape[axis] > 0:
        raise InvalidArgument(f"{op}: indices: cannot take indices from zero-length axis {axis}, got shape {indices.shape}")
    return x, indices, axis


@define(check=_take, moves_data=True)
def take_along_axis(p: Namespace, x: Value, indices: Value, axis: int) -> Value:
    """Entries of x along ``axis``: out[..., i, ...] = x[..., indices[..., i, ...], ...]; the shape of x with the
    extent of ``indices`` on the axis.

    On the other axes ``indices`` has x's extent, or 1 for the whole extent. An index outside is **clamped** to
    [0, n-1] (-1 becomes 0). The gradient goes to x alone.
    """
    shape, wanted = p.shape(x), p.shape(indices)
    whole = [i for i in range(len(shape)) if i != axis and wanted[i] == 1]
    batch = [i for i in range(len(shape)) if i not in whole]
    if wanted[axis] == 0 or 0 in shape:
        out = tuple(wanted[axis] if i == axis else n for i, n in enumerate(shape))
        return p.reshape(p.slice(x, (0,) * len(shape), tuple(0 if i == axis else n for i, n in enumerate(shape))), out)
    picks = tuple(wanted[i] for i in batch)
    index_axes: tuple[int, ...] = (axis,)
    if batch == [axis]:
        tuples = p.apply("reshape", (indices,), shape=(*picks, 1))
    else:
        index_axes = tuple(batch)
        tuples = _index_tuples(p, p.reshape(indices, (*picks, 1)), picks, batch.index(axis))
    config = GatherConfig(
        slice_sizes=tuple(n if i in whole else 1 for i, n in enumerate(shape)),
        collapsed=tuple(batch),
        index_axes=index_axes,
        offset_dims=tuple(whole),
        op="take_along_axis",
    )
    return p.gather(x, tuples, config)


def _index_tuples(p: Namespace, indices: Value, picks: tuple[int, ...], position: int) -> Value:
    """Index tuples picks + [k]: the given index at ``position``, the entry's own coordinate elsewhere.

    Built from primitives alone, one-hot rows times coordinates, so that no host table is needed.
    """
    dtype, k = p.dtype(indices), len(picks)
    one = p.reshape(p.constant(1, dtype), (1,))
    total = None
    for entry in [position, *(i for i in range(k) if i != position)]:
        unit = p.pad(one, (entry,), (k - 1 - entry,))
        if entry == position:
            coordinate = indices
        else:
            coordinate = p.broadcast_in_dim(_iota(p, picks[entry], dtype), (*picks, 1), (entry,))
        term = p.mul(coordinate, unit)
        total = term if total is None else p.add(total, term)
    return total


def _iota(p: Namespace, n: int, dtype: Any) -> Value:
    """0, 1, ..., n-1 by doubling."""
    if n == 1:
        return p.reshape(p.constant(0, dtype), (1,))
    half = n // 2
    first = _iota(p, half, dtype)
    out = p.concatenate([first, p.add(first, p.splat(half, (half,), dtype))], 0)
    return out if n % 2 == 0 else p.concatenate([out, p.reshape(p.constant(n - 1, dtype), (1,))], 0)


def _embedding(op: str, ids: Any, weight: Any) -> tuple[Any, Any]:
    checks.integer_ids(op, ids)
    if len(weight.shape) != 2:
        raise RankMismatch(f"{op}: weight: expected rank 2 [vocabulary, channels], got shape {tuple(weight.shape)}")
    if not getattr(weight, "is_quantized", False):
        infer.require_dtype(op, weight.dtype, FLOAT | HALF)
    if weight.shape[0] == 0:
        raise IndexOutOfRange(f"{op}: weight: expected a table with rows, got shape {tuple(weight.shape)}")
    return ids, weight


@define(
    check=_embedding,
    hook=("fused_embedding",),
    moves_data=True,
    takes_quantized=True,
)
def embedding(p: Namespace, ids: Value, weight: Value) -> Value:
    """Rows of a table: ids int[...], weight [V, C] -> [..., C]. A quantised table gives float32 rows, decoded alone.

    Raises:
        UnsupportedDType: ids are no integers.
        IndexOutOfRange: an id is negative or >= V.
    """
    if getattr(weight, "is_quantized", False):
        return p.dequantize_rows(weight, ids, f32)
    config = GatherConfig(
        slice_sizes=(1, p.shape(weight)[1]),
        collapsed=(0,),
        index_axes=(0,),
        offset_dims=(len(p.shape(ids)),),
        raises=True,
        op="embedding",
    )
    return p.gather(weight, p.reshape(ids, (*p.shape(ids), 1)), config)
