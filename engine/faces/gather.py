"""Gather and its adjoint: windows of an array picked by start-index tuples, in StableHLO's manner.

The index tuple is the last axis of the index array. Start indices are clamped into [0, extent - window] (no
wraparound, no error) unless the config says that an index outside raises, which is what embedding asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..errors import IndexOutOfRange, InvalidArgument, RankMismatch, ShapeMismatch
from .dtypes import Array
from .spec import Shape


@dataclass(frozen=True)
class GatherConfig:
    """How index tuples select windows.

    Attributes:
        slice_sizes: extent of the window on every operand axis.
        collapsed: operand axes of window extent 1 that are dropped from the result.
        index_axes: operand axis that each entry of an index tuple addresses.
        offset_dims: result axes that hold the window; the others hold the batch of tuples.
        raises: an index outside raises instead of being clamped; `op` names who asked.
    """

    slice_sizes: tuple[int, ...]
    collapsed: tuple[int, ...]
    index_axes: tuple[int, ...]
    offset_dims: tuple[int, ...]
    raises: bool = False
    op: str = "gather"

    def result_shape(self, operand: Shape, indices: Shape) -> Shape:
        """Shape of the result, after checking that the operand and index shapes suit this config."""
        if len(self.slice_sizes) != len(operand):
            raise RankMismatch(f"{self.op}: slice_sizes: expected {len(operand)} entries, got {self.slice_sizes}")
        if not indices or indices[-1] != len(self.index_axes):
            raise ShapeMismatch(f"{self.op}: indices: expected a last axis of {len(self.index_axes)}, got shape {indices}")
        for axis, (size, extent) in enumerate(zip(self.slice_sizes, operand, strict=True)):
            if not 0 <= size <= extent or (axis in self.collapsed and size != 1):
                empty = " (cannot take indices from a zero-length axis)" if extent == 0 else ""
                raise InvalidArgument(f"{self.op}: slice_sizes: expected at most {extent} on axis {axis}, got {size}{empty}")
        window = [n for axis, n in enumerate(self.slice_sizes) if axis not in self.collapsed]
        if len(window) != len(self.offset_dims):
            raise RankMismatch(f"{self.op}: offset_dims: expected {len(window)} entries, got {self.offset_dims}")
        batch = list(indices[:-1])
        where = dict(zip(self.offset_dims, window, strict=True))
        return tuple(where[axis] if axis in where else batch.pop(0) for axis in range(len(window) + len(batch)))


def _starts(operand: Shape, indices: Array, config: GatherConfig) -> list[Array]:
    """Start index on every indexed axis, clamped or checked; each has the batch's shape."""
    found = []
    for entry, axis in enumerate(config.index_axes):
        raw = indices[..., entry]
        last = operand[axis] - config.slice_sizes[axis]
        if config.raises and raw.size and (int(raw.min()) < 0 or int(raw.max()) > last):
            wrong = int(raw.min()) if int(raw.min()) < 0 else int(raw.max())
            raise IndexOutOfRange(f"{config.op}: index out of range: expected an id in [0, {last}], got {wrong}")
        found.append(np.clip(raw, 0, last))
    return found


def _picks(operand: Shape, indices: Array, config: GatherConfig) -> list[tuple[Any, tuple[int, ...]]]:
    """(operand index, window position) pairs: one when every indexed axis has window extent 1, else one a position."""
    starts = dict(zip(config.index_axes, _starts(operand, indices, config), strict=True))
    windows = [range(config.slice_sizes[axis]) for axis in config.index_axes]
    return [
        (tuple(starts[axis] + offset for axis, offset in zip(config.index_axes, offsets, strict=True)), offsets)
        for offsets in product(*windows)
    ]


def _layout(rank: int, batch_rank: int, config: GatherConfig) -> tuple[list[int], list[int]]:
    """Axes not indexed (sliced from 0), and the permutation (batch, window in axis order) -> result."""
    rest = [axis for axis in range(rank) if axis not in config.index_axes]
    window = [axis for axis in range(rank) if axis not in config.collapsed]
    n_out = batch_rank + len(window)
    batch_dims = [axis for axis in range(n_out) if axis not in config.offset_dims]
    order = [0] * n_out
    for position, axis in enumerate(batch_dims):
        order[axis] = position
    for position, axis in enumerate(config.offset_dims):
        order[axis] = batch_rank + position
    return rest, order


def gather(operand: Array, indices: Array, config: GatherConfig) -> Array:
    """Windows of ``operand`` at the index tuples of ``indices[..., k]``; shape by `GatherConfig.result_shape`."""
    shape = config.result_shape(operand.shape, indices.shape)
    batch = indices.shape[:-1]
    rest, order = _layout(operand.ndim, len(batch), config)
    moved = operand.transpose(*config.index_axes, *rest)
    moved = moved[(slice(None),) * len(config.index_axes) + tuple(slice(0, config.slice_sizes[axis]) for axis in rest)]
    sizes = tuple(config.slice_sizes[axis] for axis in (*config.index_axes, *rest))
    out = np.empty(batch + sizes, operand.dtype)
    lead = (slice(None),) * len(batch)
    for index, offsets in _picks(operand.shape, indices, config):
        out[lead + offsets] = moved[index] if index else moved
    axes = [len(batch) + (*config.index_axes, *rest).index(axis) for axis in range(operand.ndim)]
    out = out.transpose(*range(len(batch)), *axes)
    kept = batch + tuple(n for axis, n in enumerate(config.slice_sizes) if axis not in config.collapsed)
    return np.ascontiguousarray(out.reshape(kept).transpose(order)).reshape(shape)


def scatter_add(indices: Array, updates: Array, shape: Shape, config: GatherConfig) -> Array:
    """Zeros of ``shape`` with every window of ``updates`` added where `gather` would have read it."""
    batch = indices.shape[:-1]
    rest, order = _layout(len(shape), len(batch), config)
    inverse = np.argsort(order)
    sizes = tuple(config.slice_sizes)
    windows = updates.transpose(*inverse).reshape(batch + sizes)
    ordered = (*config.index_axes, *rest)
    windows = windows.transpose(*range(len(batch)), *(len(batch) + axis for axis in ordered))
    out = np.zeros(shape, updates.dtype)
    moved = out.transpose(*ordered)
    moved = moved[(slice(None),) * len(config.index_axes) + tuple(slice(0, config.slice_sizes[axis]) for axis in rest)]
    lead = (slice(None),) * len(batch)
    for index, offsets in _picks(shape, indices, config):
        if index:
            np.add.at(moved, index, windows[lead + offsets])
        else:
            moved += windows.sum(axis=tuple(range(len(batch))))
    return out
