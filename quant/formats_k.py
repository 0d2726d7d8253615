"""GGML's K formats: super-blocks of 256 weights whose sub-blocks have small integer scales of their own.

n = number of super-blocks. d (and dmin) scale the integer scales; sub-blocks hold 16 or 32 weights. Read only.
"""

from __future__ import annotations

import numpy as np

from .formats_base import Fields, Float32, Format, UInt8, bit_fields


def _half(fields: Fields, name: str) -> Float32:
    """A float16 field as float32 [n, 1]."""
    return fields[name].astype(np.float32)[:, None]


def _six_bit_pairs(packed: UInt8) -> tuple[Float32, Float32]:
    """uint8 [n, 12] -> scales and minimums of eight sub-blocks, float32 [n, 8] each.

    The first four of each have their six bits at the bottom of bytes 0-3 and 4-7. The last four have four bits in bytes 8-11
    (scale low, minimum high) and their two upper bits at the top of bytes 0-3 and 4-7.
    """
    first, low = packed[:, :8].reshape(-1, 2, 4), packed[:, 8:]
    upper = (first >> np.uint8(6)) << np.uint8(4)
    last = bit_fields(low, 4) | upper
    both = np.concatenate([first & np.uint8(63), last], axis=2).astype(np.float32)
    return both[:, 0], both[:, 1]


def _scale_and_minimum(fields: Fields, codes: UInt8) -> Float32:
    """d * sc * q - dmin * m over eight sub-blocks; codes [n, 8, 32]."""
    sc, m = _six_bit_pairs(fields["scales"])
    scale, minimum = _half(fields, "d") * sc, _half(fields, "dmin") * m
    return scale[:, :, None] * codes.astype(np.float32) - minimum[:, :, None]


class Q2_K(Format):
    """d * sc * q - dmin * m, 2 bits, sub-blocks of 16 with 4-bit scales and minimums."""

    type_id = 10
    block_size = 256
    layout = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])

    def _decode(self, fields: Fields) -> Float32:
        both = bit_fields(fields["scales"], 4).astype(np.float32)
        scale, minimum = _half(fields, "d") * both[:, 0], _half(fields, "dmin") * both[:, 1]
        codes = bit_fields(fields["qs"].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
        weights: Float32 = scale[:, :, None] * codes.astype(np.float32) - minimum[:, :, None]
        return weights


class Q3_K(Format):
    """d * (sc - 32) * (q - 4), 3 bits (the third in hmask), sub-blocks of 16 with 6-bit scales."""

    type_id = 11
    block_size = 256
    layout = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])

    def _decode(self, fields: Fields) -> Float32:
        packed = fields["scales"]
        low, high = bit_fields(packed[:, :8], 4).reshape(-1, 16), bit_fields(packed[:, 8:], 2).reshape(-1, 16)
        scale = _half(fields, "d") * ((low | (high << np.uint8(4))).astype(np.float32) - np.float32(32))
        codes = bit_fields(fields["qs"].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
        codes = codes | (bit_fields(fields["hmask"], 1) << np.uint8(2))
        signed = codes.astype(np.float32) - np.float32(4)
        weights: Float32 = scale[:, :, None] * signed.reshape(-1, 16, 16)
        return weights


class Q4_K(Format):
    """d * sc * q - dmin * m, 4 bits, sub-blocks of 32 with 6-bit scales and minimums."""

    type_id = 12
    block_size = 256
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])

    def _decode(self, fields: Fields) -> Float32:
        codes = bit_fields(fields["qs"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
        return _scale_and_minimum(fields, codes)


class Q5_K(Format):
    """As Q4_K with 5 bits; plane j of qh holds the fifth bits of sub-block j."""

    type_id = 13
    block_size = 256
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])

    def _decode(self, fields: Fields) -> Float32:
        codes = bit_fields(fields["qs"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
        return _scale_and_minimum(fields, codes | (bit_fields(fields["qh"], 1) << np.uint8(4)))


class Q6_K(Format):
    """d * sc * (q - 32), 6 bits (four in ql, two in qh), sub-blocks of 16 with signed 8-bit scales."""

    type_id = 14
    block_size = 256
    layout = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])

    def _decode(self, fields: Fields) -> Float32:
        low = bit_fields(fields["ql"].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
        high = bit_fields(fields["qh"].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
        scale = _half(fields, "d") * fields["scales"].astype(np.float32)
        codes = (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)
        return scale[:, :, None] * codes.reshape(-1, 16, 16)
