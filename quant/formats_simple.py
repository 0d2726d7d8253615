"""Plain floats (F32, F16, BF16) and GGML's formats with 32 weights a block (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0).

n = number of blocks. A block's scale is d, its minimum m, both float16; its weights are d * (q - offset) or d * q + m.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .formats_base import Fields, Float32, Format, UInt8, as_half, bit_fields, reciprocal, round_half_away


class F32(Format):
    """Single precision; a block is one weight."""

    type_id = 0
    block_size = 1
    layout = np.dtype("<f4")

    def _decode(self, fields: Fields) -> Float32:
        return fields.astype(np.float32)

    def _encode(self, values: Float32) -> Fields:
        return values.astype(self.layout)


class F16(Format):
    """Half precision."""

    type_id = 1
    block_size = 1
    layout = np.dtype("<f2")

    def _decode(self, fields: Fields) -> Float32:
        return fields.astype(np.float32)

    def _encode(self, values: Float32) -> Fields:
        return values.astype(self.layout)


class BF16(Format):
    """The upper half of a float32, rounded to nearest, ties to even."""

    type_id = 30
    block_size = 1
    layout = np.dtype("<u2")

    def _decode(self, fields: Fields) -> Float32:
        return (fields.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def _encode(self, values: Float32) -> Fields:
        bits = values.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        # Rounding could carry a NaN into infinity: cut it off instead, with the quiet bit set so that it stays a NaN.
        quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
        return np.where(np.isnan(values), quiet, rounded).astype(self.layout)


def _signed_scale(values: Float32, levels: int) -> Float32:
    """float32 [n, 32] -> [n, 1]: the scale that puts each block's value of largest magnitude on code 0, i.e. on -levels."""
    at = np.abs(values).argmax(axis=1, keepdims=True)
    return np.take_along_axis(values, at, axis=1) / np.float32(-levels)


def _codes(scaled: Float32, offset: float, last: int) -> UInt8:
    """Codes 0..last: scaled + offset, cut towards zero."""
    codes: UInt8 = np.trunc(scaled + np.float32(offset)).astype(np.uint8)
    return np.minimum(codes, np.uint8(last))


def _pack_nibbles(codes: UInt8) -> UInt8:
    """uint8 [n, 32] -> [n, 16]: the first half in the low nibbles, the second half in the high ones."""
    return (codes[:, :16] & np.uint8(15)) | (codes[:, 16:] << np.uint8(4))


def _nibbles(fields: Fields) -> UInt8:
    """Low 4 bits of the codes: uint8 [n, 32]."""
    return bit_fields(fields["qs"], 4).reshape(len(fields), 32)


def _pack_fifth_bits(codes: UInt8) -> UInt8:
    """uint8 [n, 32] -> [n, 4]: bit 4 of code j as bit j of a little-endian 32-bit word."""
    return np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")


def _five_bits(fields: Fields) -> UInt8:
    """5-bit codes: uint8 [n, 32]."""
    high = np.unpackbits(fields["qh"], axis=1, bitorder="little")
    return _nibbles(fields) | (high << np.uint8(4))


def _records(layout: np.dtype[np.void], n: int, **fields: npt.NDArray[np.generic]) -> Fields:
    """Records [n] filled field by field."""
    out = np.empty(n, layout)
    for name, value in fields.items():
        out[name] = value
    return out


class Q4_0(Format):
    """d * (q - 8), 4 bits."""

    type_id = 2
    block_size = 32
    layout = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

    def _decode(self, fields: Fields) -> Float32:
        d = fields["d"].astype(np.float32)[:, None]
        return d * (_nibbles(fields).astype(np.float32) - np.float32(8))

    def _encode(self, values: Float32) -> Fields:
        d = _signed_scale(values, 8)
        half = as_half(d[:, 0], self.name)
        codes = _codes(values * reciprocal(d), 8.5, 15)
        return _records(self.layout, len(values), d=half, qs=_pack_nibbles(codes))


class Q4_1(Format):
    """d * q + m, 4 bits."""

    type_id = 3
    block_size = 32
    layout = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])

    def _decode(self, fields: Fields) -> Float32:
        d = fields["d"].astype(np.float32)[:, None]
        m = fields["m"].astype(np.float32)[:, None]
        return d * _nibbles(fields).astype(np.float32) + m

    def _encode(self, values: Float32) -> Fields:
        m = values.min(axis=1, keepdims=True)
        d = (values.max(axis=1, keepdims=True) - m) / np.float32(15)
        half, half_m = as_half(d[:, 0], self.name), as_half(m[:, 0], self.name)
        codes = _codes((values - m) * reciprocal(d), 0.5, 15)
        return _records(self.layout, len(values), d=half, m=half_m, qs=_pack_nibbles(codes))


class Q5_0(Format):
    """d * (q - 16), 5 bits."""

    type_id = 6
    block_size = 32
    layout = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

    def _decode(self, fields: Fields) -> Float32:
        d = fields["d"].astype(np.float32)[:, None]
        return d * (_five_bits(fields).astype(np.float32) - np.float32(16))

    def _encode(self, values: Float32) -> Fields:
        d = _signed_scale(values, 16)
        half = as_half(d[:, 0], self.name)
        codes = _codes(values * reciprocal(d), 16.5, 31)
        return _records(self.layout, len(values), d=half, qh=_pack_fifth_bits(codes), qs=_pack_nibbles(codes))


class Q5_1(Format):
    """d * q + m, 5 bits."""

    type_id = 7
    block_size = 32
    layout = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

    def _decode(self, fields: Fields) -> Float32:
        d = fields["d"].astype(np.float32)[:, None]
        m = fields["m"].astype(np.float32)[:, None]
        return d * _five_bits(fields).astype(np.float32) + m

    def _encode(self, values: Float32) -> Fields:
        m = values.min(axis=1, keepdims=True)
        d = (values.max(axis=1, keepdims=True) - m) / np.float32(31)
        half, half_m = as_half(d[:, 0], self.name), as_half(m[:, 0], self.name)
        codes = _codes((values - m) * reciprocal(d), 0.5, 31)
        return _records(self.layout, len(values), d=half, m=half_m, qh=_pack_fifth_bits(codes), qs=_pack_nibbles(codes))


class Q8_0(Format):
    """d * q, 8 bits, signed."""

    type_id = 8
    block_size = 32
    layout = np.dtype([("d", "<f2"), ("qs", "i1", 32)])

    def _decode(self, fields: Fields) -> Float32:
        return fields["d"].astype(np.float32)[:, None] * fields["qs"].astype(np.float32)

    def _encode(self, values: Float32) -> Fields:
        d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        half = as_half(d[:, 0], self.name)
        codes = round_half_away(values * reciprocal(d))
        return _records(self.layout, len(values), d=half, qs=codes.astype(np.int8))
