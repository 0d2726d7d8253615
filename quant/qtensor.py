"""QTensor: a weight that stays in its file's format until somebody asks for numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..engine.errors import IndexOutOfRange, RankMismatch, ShapeMismatch, UnsupportedDType
from .formats_base import Float32, Format, UInt8

_CHUNK = 1 << 17  # weights decoded at a time: temporaries stay in cache and far below the size of the result

_Kernel = Callable[[npt.NDArray[Any], "QTensor"], "Float32 | None"]
_kernel: _Kernel | None = None


def multiply_with(kernel: _Kernel) -> None:
    """Name the function that serves `QTensor.fused_matmul`; quant/qmatmul.py does so when it is imported."""
    global _kernel
    _kernel = kernel


@dataclass(frozen=True, eq=False, repr=False)
class QTensor:
    """An immutable quantised tensor.

    Attributes:
        format: how a row's weights are stored.
        shape: logical extents, row-major; the last axis is the one that is cut into blocks.
        blocks: uint8 [rows, row_bytes], read only; rows = product of all extents but the last. Usually a view of a mapped file.
        name: the tensor's name, for messages.
    """

    format: Format
    shape: tuple[int, ...]
    blocks: UInt8
    name: str = ""
    is_quantized: ClassVar[bool] = True  # what ops ask, which know no formats

    def __post_init__(self) -> None:
        label = self.name or "QTensor"
        if not self.shape:
            raise RankMismatch(f"{label}: rank: expected at least 1, got 0")
        if self.blocks.dtype != np.uint8:
            raise UnsupportedDType(f"{label}: blocks: expected uint8, got {self.blocks.dtype}")
        expected = (prod(self.shape[:-1]), self.format.row_bytes(self.shape[-1]))
        if self.blocks.shape != expected:
            got = list(self.blocks.shape)
            raise ShapeMismatch(f"{label}: blocks: expected {list(expected)} for {self.format.name} {list(self.shape)}, got {got}")
        blocks = np.ascontiguousarray(self.blocks).view()
        blocks.flags.writeable = False
        object.__setattr__(self, "blocks", blocks)

    def __repr__(self) -> str:
        return f"QTensor({self.format.name} {list(self.shape)}{' ' + self.name if self.name else ''})"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.blocks.nbytes

    def dequantize(self) -> Float32:
        """All weights: float32 [*shape]."""
        rows, columns = len(self.blocks), self.shape[-1]
        out = np.empty((rows, columns), np.float32)
        step = max(1, _CHUNK // max(1, columns))
        for start in range(0, rows, step):
            out[start : start + step] = self._decode(self.blocks[start : start + step])
        return out.reshape(self.shape)

    def rows(self, ids: npt.ArrayLike) -> Float32:
        """Chosen rows: float32 [len(ids), shape[-1]]. Leading axes count as one. Raises IndexOutOfRange for an id outside [0, rows)."""
        index = np.asarray(ids)
        label = self.name or "QTensor"
        if index.ndim != 1:
            raise RankMismatch(f"{label}: rows: expected ids of rank 1, got rank {index.ndim}")
        if index.size == 0:
            return np.empty((0, self.shape[-1]), np.float32)
        if index.dtype.kind not in "iu":
            raise UnsupportedDType(f"{label}: rows: expected integer ids, got {index.dtype}")
        bad = (index < 0) | (index >= len(self.blocks))
        if bad.any():
            raise IndexOutOfRange(f"{label}: rows: expected ids in [0, {len(self.blocks)}), got {index[bad][0]}")
        return self._decode(self.blocks[index])

    def fused_matmul(self, x: npt.NDArray[Any]) -> Float32 | None:
        """x float32 [..., k] @ self[n, k]^T by the packed kernel, or None where it does not serve; see quant/qmatmul.py."""
        return None if _kernel is None else _kernel(x, self)

    def _decode(self, rows: UInt8) -> Float32:
        return self.format.dequantize(rows.reshape(-1, self.format.block_bytes)).reshape(len(rows), self.shape[-1])

    @classmethod
    def quantize(cls, values: npt.NDArray[Any], format: Format, name: str = "") -> QTensor:
        """float [..., k] -> QTensor of the same shape. Raises ShapeMismatch unless k is a whole number of blocks."""
        if values.ndim == 0:
            raise RankMismatch(f"{name or 'QTensor'}: quantize: expected rank of at least 1, got 0")
        row_bytes = format.row_bytes(values.shape[-1])
        blocks = format.quantize(values.reshape(-1, format.block_size))
        return cls(format, values.shape, blocks.reshape(prod(values.shape[:-1]), row_bytes), name)
