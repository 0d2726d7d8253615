"""Where a plan's values live: buffers of rows, one row a token, and strided views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..errors import ShapeMismatch
from ..runtime.arrays import aligned_zeros

UNIT = 32  # columns that kernels take at a time: rows are padded to whole units


class Buffer:
    """`rows` rows of `row_bytes` bytes, `columns` of them in use; memory is found for it when the plan is complete.

    Memory is shared by buffers that live at different times and have the same rows and columns, so that kernels always
    write the same columns and the padding behind them stays zero.
    """

    def __init__(self, rows: int, row_bytes: int, columns: int = 0):
        self.rows, self.row_bytes, self.columns = rows, row_bytes, columns
        self.data: NDArray[np.uint8] | None = None

    @property
    def address(self) -> int:
        """Address of the first byte."""
        if self.data is None:
            self.data = aligned_zeros(self.rows * self.row_bytes)
        return int(self.data.ctypes.data)

    def floats(self, rows: int, columns: int) -> NDArray[np.float32]:
        """The first rows and columns as float32, not copied."""
        data = aligned_zeros(0) if self.data is None else self.data
        return data.view(np.float32).reshape(self.rows, -1)[:rows, :columns]


def place(touched: Sequence[Sequence[Buffer]], keep: Buffer) -> None:
    """Give memory to the buffers that each instruction touches; one is free again after its last instruction.

    keep: a buffer that is read after the plan has run.
    """
    last = {id(buffer): i for i, buffers in enumerate(touched) for buffer in buffers}
    last[id(keep)] = len(touched)
    free: dict[tuple[int, int, int], list[NDArray[np.uint8]]] = {}
    for i, buffers in enumerate(touched):
        for buffer in buffers:
            if buffer.data is None:
                same = free.get((buffer.rows, buffer.row_bytes, buffer.columns))
                buffer.data = same.pop() if same else aligned_zeros(buffer.rows * buffer.row_bytes)
        for buffer in {id(b): b for b in buffers}.values():
            if last[id(buffer)] == i and buffer.data is not None:
                free.setdefault((buffer.rows, buffer.row_bytes, buffer.columns), []).append(buffer.data)


def float_row_bytes(columns: int) -> int:
    """Bytes of a row of float32, padded to whole units."""
    return -(-columns // UNIT) * UNIT * 4


def quantised_row_bytes(columns: int) -> int:
    """Bytes of a quantised row (see kernels/matmul.py), padded to a cache line."""
    padded = -(-columns // UNIT) * UNIT
    return -(-(2 * padded + 7 * (padded // 8)) // 64) * 64


@dataclass(frozen=True)
class View:
    """A value of shape `shape` in a buffer; strides in bytes. Axis 0 is the batch (always 1)."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of_rows(cls, buffer: Buffer, tokens: int, columns: int) -> View:
        """[1, tokens, columns] over a buffer."""
        return cls(buffer, (1, tokens, columns), (buffer.rows * buffer.row_bytes, buffer.row_bytes, 4))

    def transpose(self, axes: tuple[int, ...]) -> View:
        """The same memory with its axes in another order."""
        return View(self.buffer, tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes))

    def reshape(self, shape: tuple[int, ...]) -> View:
        """The same memory cut differently. Raises ShapeMismatch where that would need a copy."""
        groups = _matching_groups(self.shape, shape)
        strides: list[int] = []
        for old, new in groups:
            for outer, inner in pairwise(old):
                if self.shape[outer] > 1 and self.strides[outer] != self.strides[inner] * self.shape[inner]:
                    raise ShapeMismatch(f"plan: reshape: expected a view, got {self.shape} -> {shape}, which needs a copy")
            step = self.strides[old[-1]] if old else 4
            for axis in reversed(new):
                strides.insert(len(strides) - (new[-1] - axis), step)
                step *= shape[axis]
        return View(self.buffer, shape, tuple(strides))

    def is_rows(self) -> bool:
        """Whether this is [1, T, C] with rows as the buffer has them."""
        return len(self.shape) == 3 and self.strides[2] == 4 and self.strides[1] == self.buffer.row_bytes

    def is_heads(self) -> bool:
        """Whether this is [1, H, T, D] over rows of H*D floats."""
        return len(self.shape) == 4 and self.strides[1:] == (4 * self.shape[3], self.buffer.row_bytes, 4)


def _matching_groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of old and new axes that hold the same elements."""
    if prod(old) != prod(new):
        raise ShapeMismatch(f"plan: reshape: expected {prod(old)} elements, got {new}")
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        a, b = (old[i] if left else 1), (new[j] if right else 1)
        i, j = i + len(left), j + len(right)
        while a != b:
            if a < b:
                left.append(i)
                a, i = a * old[i], i + 1
            else:
                right.append(j)
                b, j = b * new[j], j + 1
        groups.append((left, right))
    return groups
