"""Rotary embedding of any strided view, out of place. float32 or float64, bit for bit the composite: nothing is fused.

Argument words: 0-2 extents of the three leading axes, 3 D/2, 4-6 strides of x in bytes, 7 result (compact), 8 x, 9 cos, 10 sin,
11 bytes between table rows, 12 bytes between a table's batches, 13 which leading axis (1 or 2) counts tokens.
"""

from numba import njit

from .simd import lanes
from .simd.memory import get_i64, store


def _rotate_halves(elem):
    load, size = lanes.loader(elem), lanes.size_of(elem)
    load_part, store_part = lanes.part_access(elem)
    zero = lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def row(out, x, cos, sin, half):
        whole, shift = half & -16, size * half
        for i in range(0, size * whole, size * 16):
            a, b, c, s = load(x + i), load(x + i + shift), load(cos + i), load(sin + i)
            store(out + i, a * c - b * s)
            store(out + i + shift, a * s + b * c)
        if whole < half:
            i, n = size * whole, half - whole
            a, b = load_part(x + i, n, zero()), load_part(x + i + shift, n, zero())
            c, s = load_part(cos + i, n, zero()), load_part(sin + i, n, zero())
            store_part(out + i, n, a * c - b * s)
            store_part(out + i + shift, n, a * s + b * c)

    return row


def _rotate_pairs(elem):
    load, size = lanes.loader(elem), lanes.size_of(elem)
    get, put = lanes.scalar_access(elem)

    @njit(forceinline=True)
    def row(out, x, cos, sin, half):
        whole = half & -16
        for i in range(0, size * whole, size * 16):
            low, high = load(x + 2 * i), load(x + 2 * i + size * 16)
            a, b, c, s = lanes.evens(low, high), lanes.odds(low, high), load(cos + i), load(sin + i)
            first, second = a * c - b * s, a * s + b * c
            store(out + 2 * i, lanes.zip_low(first, second))
            store(out + 2 * i + size * 16, lanes.zip_high(first, second))
        for j in range(whole, half):
            a, b, c, s = get(x + 2 * size * j), get(x + 2 * size * j + size), get(cos + size * j), get(sin + size * j)
            put(out + 2 * size * j, a * c - b * s)
            put(out + 2 * size * j + size, a * s + b * c)

    return row


def build(elem, interleaved):
    """interleaved: pairs (2i, 2i+1) instead of (i, i + D/2)."""
    row = _rotate_pairs(elem) if interleaved else _rotate_halves(elem)
    size = lanes.size_of(elem)

    def kernel(args, thread, n_threads):
        n0, n1, n2, half = get_i64(args), get_i64(args + 8), get_i64(args + 16), get_i64(args + 24)
        s0, s1, s2 = get_i64(args + 32), get_i64(args + 40), get_i64(args + 48)
        out, x = get_i64(args + 56), get_i64(args + 64)
        pitch, batch, token_axis = get_i64(args + 88), get_i64(args + 96), get_i64(args + 104)
        rows = n0 * n1 * n2
        for r in range(rows * thread // n_threads, rows * (thread + 1) // n_threads):
            k = r % n2
            j = r // n2 % n1
            i = r // (n1 * n2)
            table = i * batch + (k if token_axis == 2 else j) * pitch
            row(out + r * 2 * half * size, x + i * s0 + j * s1 + k * s2, get_i64(args + 72) + table, get_i64(args + 80) + table, half)

    return kernel
