"""What a tensor format is: how a fixed number of weights is stored in a fixed number of bytes.

A format is one subclass of `Format`. Its `layout` names the fields of one block in the order in which GGML writes them
(little-endian, no padding); block bytes follow from it. Subclassing registers the format under its name and its GGML type id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.errors import InvalidArgument, ShapeMismatch, UnsupportedDType

Float32: TypeAlias = npt.NDArray[np.float32]
UInt8: TypeAlias = npt.NDArray[np.uint8]
Fields: TypeAlias = npt.NDArray[Any]  # one record a block, with the fields of a layout

REGISTRY: dict[str, Format] = {}


class Format(ABC):
    """One way of storing weights. Formats have no state: there is one instance of each, compared by identity.

    Attributes:
        name: GGML's name, e.g. "Q4_0".
        type_id: GGML's number for it, as a GGUF file stores it.
        block_size: weights in a block. A row of a tensor is a whole number of blocks.
        layout: the fields of a block, a packed NumPy record type.
        block_bytes: bytes of a block.
    """

    name: ClassVar[str]
    type_id: ClassVar[int]
    block_size: ClassVar[int]
    layout: ClassVar[np.dtype[Any]]
    block_bytes: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__
        cls.block_bytes = cls.layout.itemsize
        REGISTRY[cls.name] = cls()

    def __repr__(self) -> str:
        return f"<format {self.name}: {self.block_size} weights in {self.block_bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.name,)  # a copy or an unpickled format is the same object

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight takes, scales included."""
        return 8 * self.block_bytes / self.block_size

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` weights. Raises ShapeMismatch unless it is a whole number of blocks."""
        if n % self.block_size:
            raise ShapeMismatch(f"{self.name}: row length: expected a multiple of {self.block_size}, got {n}")
        return n // self.block_size * self.block_bytes

    def dequantize(self, blocks: UInt8) -> Float32:
        """uint8 [n, block_bytes] -> float32 [n, block_size]. Any bytes are accepted; a scale that is not finite spreads as IEEE says."""
        if blocks.dtype != np.uint8:
            raise UnsupportedDType(f"{self.name}: dequantize: expected blocks of uint8, got {blocks.dtype}")
        if blocks.ndim != 2 or blocks.shape[1] != self.block_bytes:
            raise ShapeMismatch(f"{self.name}: dequantize: expected blocks of shape [n, {self.block_bytes}], got {list(blocks.shape)}")
        fields = np.ascontiguousarray(blocks).view(self.layout).reshape(len(blocks))
        with np.errstate(all="ignore"):
            return self._decode(fields).reshape(len(blocks), self.block_size)

    def quantize(self, values: npt.NDArray[Any]) -> UInt8:
        """float [n, block_size] -> uint8 [n, block_bytes].

        Raises UnsupportedDType where the format has no quantiser, InvalidArgument if a value or a scale is out of range.
        """
        if values.dtype.kind != "f":
            raise UnsupportedDType(f"{self.name}: quantize: expected floating-point values, got {values.dtype}")
        if values.ndim != 2 or values.shape[1] != self.block_size:
            raise ShapeMismatch(f"{self.name}: quantize: expected values of shape [n, {self.block_size}], got {list(values.shape)}")
        with np.errstate(all="ignore"):
            fields = self._encode(np.ascontiguousarray(values, dtype=np.float32))
        return fields.view(np.uint8).reshape(len(values), self.block_bytes)

    @abstractmethod
    def _decode(self, fields: Fields) -> Float32:
        """Records [n] of `layout` -> float32 of n * block_size elements, in any shape of that order."""

    def _encode(self, values: Float32) -> Fields:
        """float32 [n, block_size] -> records [n] of `layout`."""
        raise UnsupportedDType(f"{self.name}: quantize: this format can be read but not written")


def _registered(name: str) -> Format:
    return REGISTRY[name]


def as_half(values: Float32, format_name: str) -> npt.NDArray[np.float16]:
    """float32 scales [n] -> float16. Raises InvalidArgument where a finite float16 cannot hold them: the block would decode to NaN."""
    half = values.astype(np.float16)
    if not np.isfinite(half).all():
        at = int(np.argmax(~np.isfinite(half)))
        raise InvalidArgument(f"{format_name}: quantize: expected finite values with a scale below 65504, got {values[at]} [block {at}]")
    return half


def bit_fields(packed: UInt8, bits: int) -> UInt8:
    """uint8 [..., m] -> uint8 [..., 8 / bits, m]: the `bits`-wide fields of every byte, lowest bits first, one plane a position."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def reciprocal(scale: Float32) -> Float32:
    """1 / scale, and 0 where that is not finite: such a block holds nothing but (almost) zeros."""
    inverse: Float32 = np.float32(1) / scale
    inverse[~np.isfinite(inverse)] = 0
    return inverse


def round_half_away(x: Float32) -> Float32:
    """Nearest integer, halves away from zero as C's roundf does it. NumPy's rint takes halves to even; adding 0.5 rounds twice."""
    whole: Float32 = np.trunc(x)
    whole += np.trunc(np.float32(2) * (x - whole))
    return whole
