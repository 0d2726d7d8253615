"""GGML blocks to the layouts of matmul.py, sixteen rows at a time; bits are moved, nothing is rounded.

Block layouts: ggml-common.h of llama.cpp. A column of codes is read as words of four codes, a byte each.
"""

from numba import int64, njit, uint32

from . import simd
from .matmul import _Shape

BLOCKS, ROW_BYTES, N_ROWS, UNITS, OUT, GROUP_BYTES, COLUMNS = range(7)
_NIBBLES, _PAIRS, _BITS = uint32(0x0F0F0F0F), uint32(0x03030303), uint32(0x01010101)


@njit(forceinline=True)
def _word(addr):
    return uint32(simd.get_i32(addr))


@njit(forceinline=True)
def _nibbles(qs, c):
    return (_word(qs + 4 * (c & 3)) >> uint32(4 * (c >> 2))) & _NIBBLES


@njit(forceinline=True)
def _fifth(qh, c):
    """Four neighbouring bits of a 32-bit mask, moved to bit 4 of four bytes."""
    return (((_word(qh) >> uint32(4 * c)) & uint32(15)) * uint32(0x00204081) & _BITS) << uint32(4)


@njit(forceinline=True)
def _k_nibbles(qs, u, c):
    return (_word(qs + 32 * (u >> 1) + 4 * c) >> uint32(4 * (u & 1))) & _NIBBLES


@njit(forceinline=True)
def _k_pairs(qs, u, c):
    return (_word(qs + 32 * (u >> 2) + 4 * c) >> uint32(2 * (u & 3))) & _PAIRS


@njit(forceinline=True)
def _q4_0(block, u, c):
    return _nibbles(block + 2, c)


@njit(forceinline=True)
def _q4_1(block, u, c):
    return _nibbles(block + 4, c)


@njit(forceinline=True)
def _q5_0(block, u, c):
    return _nibbles(block + 6, c) | _fifth(block + 2, c)


@njit(forceinline=True)
def _q5_1(block, u, c):
    return _nibbles(block + 8, c) | _fifth(block + 4, c)


@njit(forceinline=True)
def _q8_0(block, u, c):
    return _word(block + 2 + 4 * c) ^ uint32(0x80808080)


@njit(forceinline=True)
def _q2_k(block, u, c):
    return _k_pairs(block + 16, u, c)


@njit(forceinline=True)
def _q3_k(block, u, c):
    return _k_pairs(block + 32, u, c) | (((_word(block + 4 * c) >> uint32(u)) & _BITS) << uint32(2))


@njit(forceinline=True)
def _q4_k(block, u, c):
    return _k_nibbles(block + 16, u, c)


@njit(forceinline=True)
def _q5_k(block, u, c):
    return _k_nibbles(block + 48, u, c) | (((_word(block + 16 + 4 * c) >> uint32(u)) & _BITS) << uint32(4))


@njit(forceinline=True)
def _q6_k(block, u, c):
    low = _word(block + 64 * (u >> 2) + 32 * (u & 1) + 4 * c) >> uint32(2 * (u & 2))
    high = _word(block + 128 + 32 * (u >> 2) + 4 * c) >> uint32(2 * (u & 3))
    return (low & _NIBBLES) | ((high & _PAIRS) << uint32(4))


@njit(forceinline=True)
def _six_bits(packed, j):
    """Scale and minimum j of Q4_K and Q5_K, from twelve bytes of 6-bit values."""
    if j < 4:
        return simd.get_u8(packed + j) & 63, simd.get_u8(packed + j + 4) & 63
    high = simd.get_u8(packed + j + 4)
    return (high & 15) | ((simd.get_u8(packed + j - 4) >> 6) << 4), (high >> 4) | ((simd.get_u8(packed + j) >> 6) << 4)


@njit(forceinline=True)
def _scales_16(block, unit, lane, u, at, bias):
    """Two bytes a unit, as they are."""
    for s in range(2):
        simd.put_u8(unit + 16 * s + lane, simd.get_u8(block + at + 2 * u + s))


@njit(forceinline=True)
def _scales_q3_k(block, unit, lane, u):
    for s in range(2):
        j = 2 * u + s
        low = simd.get_u8(block + 96 + (j & 7)) >> (4 * (j >> 3))
        high = simd.get_u8(block + 104 + (j & 3)) >> (2 * (j >> 2))
        simd.put_i8(unit + 16 * s + lane, ((low & 15) | ((high & 3) << 4)) - 32)


@njit(forceinline=True)
def _scales_six(block, unit, lane, u):
    scale, low = _six_bits(block + 4, u)
    simd.put_u8(unit + lane, scale)
    simd.put_u8(unit + 16 + lane, low)


@njit(forceinline=True)
def _scales_q2_k(block, unit, lane, u):
    _scales_16(block, unit, lane, u, 0, 0)


@njit(forceinline=True)
def _scales_q6_k(block, unit, lane, u):
    _scales_16(block, unit, lane, u, 192, 0)


@njit(forceinline=True)
def _scales_none(block, unit, lane, u):
    return


# format: block bytes, offset of d, offset of dmin or m (-1: none), codes, scale bytes
_FORMATS = {
    "Q4_0": (18, 0, -1, _q4_0, _scales_none),
    "Q4_1": (20, 0, 2, _q4_1, _scales_none),
    "Q5_0": (22, 0, -1, _q5_0, _scales_none),
    "Q5_1": (24, 0, 2, _q5_1, _scales_none),
    "Q8_0": (34, 0, -1, _q8_0, _scales_none),
    "Q2_K": (84, 80, 82, _q2_k, _scales_q2_k),
    "Q3_K": (110, 108, -1, _q3_k, _scales_q3_k),
    "Q4_K": (144, 0, 2, _q4_k, _scales_six),
    "Q5_K": (176, 0, 2, _q5_k, _scales_six),
    "Q6_K": (210, 208, -1, _q6_k, _scales_q6_k),
}


def _pack_blocks(format, planes, sub, minimum, scales):
    block_bytes, d_at, m_at, word_of, put_scales = _FORMATS[format]
    shape = _Shape(planes, sub, minimum, scales)
    grouped, scale_bytes, unit_bytes, head_bytes = shape.super, shape.scale_bytes, shape.unit, shape.head
    main, second = planes[0], (planes[1] if len(planes) > 1 else 0)
    per_vector = {8: 1, 4: 2, 2: 4}[main]  # chunks that share a vector of the main plane
    main_mask = uint32({8: 0xFFFFFFFF, 4: 0x0F0F0F0F, 2: 0x03030303}[main])
    second_at = main * 64

    @njit(forceinline=True)
    def codes(block, u, out):
        word = uint32(0)
        for c in range(8):
            value = word_of(block, u, c)
            word |= (value & main_mask) << uint32((c % per_vector) * main)
            if c % per_vector == per_vector - 1:
                simd.put_i32(out + 64 * (c // per_vector), word)
                word = uint32(0)
        if second == 1:
            for c in range(8):
                word |= ((word_of(block, u, c) >> uint32(main)) & _BITS) << uint32(c)
            simd.put_i32(out + second_at, word)
        if second == 2:
            for c in range(8):
                word |= ((word_of(block, u, c) >> uint32(main)) & _PAIRS) << uint32(2 * (c & 3))
                if c & 3 == 3:
                    simd.put_i32(out + second_at + 64 * (c >> 2), word)
                    word = uint32(0)

    @njit(forceinline=True)
    def row(blocks, units, lane, out):
        at, block = out, blocks
        for unit in range(units):
            u = unit & 7 if grouped else 0
            if u == 0:
                simd.put_i16(at + 2 * lane, simd.get_u16(block + d_at))
                if m_at >= 0:
                    simd.put_i16(at + 32 + 2 * lane, simd.get_u16(block + m_at))
                at += head_bytes
            if grouped:
                put_scales(block, at, lane, u)
            codes(block, u, at + scale_bytes + 4 * lane)
            at += unit_bytes
            if u == 7 or not grouped:
                block += block_bytes

    return row


def _pack_dense(format):
    size = 4 if format == "F32" else 2

    @njit(forceinline=True)
    def row(values, units, lane, out):
        for column in range(units):  # here: columns
            if size == 4:
                simd.put_i32(out + 64 * column + 4 * lane, simd.get_i32(values + 4 * column))
            else:
                simd.put_i16(out + 32 * column + 2 * lane, simd.get_u16(values + 2 * column))

    return row


def build(format, planes=(), sub=32, minimum=False, scales="f16"):
    """The kernel that packs rows of a format; groups of sixteen rows are shared among threads. OUT must be zeroed."""
    dense = format in ("F32", "F16", "BF16")
    row = _pack_dense(format) if dense else _pack_blocks(format, tuple(planes), sub, minimum, scales)

    def kernel(args, thread, n_threads):
        n_rows, row_bytes = simd.get_i64(args + 8 * N_ROWS), simd.get_i64(args + 8 * ROW_BYTES)
        extent = simd.get_i64(args + 8 * COLUMNS) if dense else simd.get_i64(args + 8 * UNITS)
        groups = (n_rows + 15) // 16
        for group in range(groups * thread // n_threads, groups * (thread + 1) // n_threads):
            out = simd.get_i64(args + 8 * OUT) + group * simd.get_i64(args + 8 * GROUP_BYTES)
            for lane in range(min(int64(16), n_rows - 16 * group)):
                row(simd.get_i64(args) + (16 * group + lane) * row_bytes, extent, lane, out)

    return kernel
