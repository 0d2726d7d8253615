"""Softmax and norms along an axis that is not the last: down the columns of [outer, n, inner]; float32 or float64.

Sixteen columns make a vector, so no sum crosses lanes and each runs from the first element to the last, as NumPy's does.
Argument words: 0 outer, 1 n, 2 inner, 3 result, 4 x, then
    softmax: 5 mask (bytes, one an element) or 0, 6 loop of exp, 8 loop of log (each: function, data)
    norms: 5 weight, 6 bias, 7 1/n, 8 eps (both float64)
"""

from numba import njit

from .fused_layout import COLUMNS
from .loops import BLOCK_BYTES, stack_bytes, unary_loop
from .rows import LOWEST
from .simd import lanes
from .simd.arithmetic import fma, maximum, sqrt
from .simd.memory import get_i64, store


def _access(elem):
    """(read(addr, count, fill), write(addr, count, value)) of up to sixteen elements."""
    load, (load_part, store_part) = lanes.loader(elem), lanes.part_access(elem)

    @njit(forceinline=True)
    def read(addr, count, fill):
        return load(addr) if count >= 16 else load_part(addr, count, fill)

    @njit(forceinline=True)
    def write(addr, count, value):
        if count >= 16:
            store(addr, value)
        else:
            store_part(addr, count, value)

    return read, write


@njit(forceinline=True)
def _tile(outer, inner, n_threads):
    """Columns that a thread takes at a time: many, but few enough for every thread to get some."""
    wanted = inner * outer // n_threads if n_threads > 1 else inner
    return max(16, min(COLUMNS, (wanted + 15) & -16))


def _exponentials(elem, masked, keep):
    """`run(args, out, x, mask, tops, sums, n, width, pitch)`: x - the largest of its column, its exp, and the sums of that.

    out holds the exponentials; with `keep`, the differences, and the exponentials pass through `tops`. tops and sums have
    room for the columns and for nothing else. The largest ignores NaN, as in rows.py.
    """
    size, (read, write), less = lanes.size_of(elem), _access(elem), lanes.comparison("lt")
    loop, load = unary_loop(elem), lanes.loader(elem)
    lowest, hidden, zero = (lanes.constant(elem, c) for c in (LOWEST[elem], -float("inf"), 0.0))
    block = BLOCK_BYTES // size

    @njit(forceinline=True)
    def shown(x, mask, c, count):
        value = read(x + size * c, count, hidden())
        if masked:
            seen = lanes.nonzero_bytes(mask + c) if count >= 16 else lanes.nonzero_bytes_part(mask + c, count)
            value = lanes.select(seen, value, hidden())
        return value

    @njit(forceinline=True)
    def run(args, out, x, mask, tops, sums, n, width, pitch):
        for c in range(0, width, 16):
            top = lowest()
            for i in range(n):
                value = shown(x + i * pitch, mask + i * pitch // size, c, width - c)
                top = lanes.select(less(top, value), value, top)
            for i in range(n):
                value = shown(x + i * pitch, mask + i * pitch // size, c, width - c)
                write(out + i * pitch + size * c, width - c, value - top)
            store(sums + size * c, zero())
        # Whole rows lie in memory without gaps, so one call serves several.
        together = max(1, block // width) if pitch == size * width and not keep else 1
        i = 0
        while i < n:
            rows = min(together, n - i)
            at = out + i * pitch
            to = tops if keep else at
            loop(args + 48, to, at, rows * width)
            for j in range(rows):
                for c in range(0, width, 16):
                    e = read(to + j * pitch + size * c, width - c, zero())
                    store(sums + size * c, load(sums + size * c) + e)
            i += rows

    return run


def _softmax(elem, masked, log):
    size, (read, write), load = lanes.size_of(elem), _access(elem), lanes.loader(elem)
    exponentials, loop = _exponentials(elem, masked, keep=log), unary_loop(elem)
    one, half, zero = (lanes.constant(elem, c) for c in (1.0, 0.5, 0.0))
    scratch, totals = stack_bytes(COLUMNS * size), stack_bytes(COLUMNS * size)

    def kernel(args, thread, n_threads):
        n, inner = get_i64(args + 8), get_i64(args + 16)
        tile = _tile(get_i64(args), inner, n_threads)
        tiles, pitch, sums = (inner + tile - 1) // tile, size * inner, totals()
        items = get_i64(args) * tiles
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            first = item % tiles * tile
            at, width = item // tiles * n * inner + first, min(tile, inner - first)
            out, x, mask = get_i64(args + 24) + size * at, get_i64(args + 32) + size * at, get_i64(args + 40) + at
            exponentials(args, out, x, mask, scratch(), sums, n, width, pitch)
            for c in range(0, width, 16):
                total = maximum(load(sums + size * c), half())
                store(sums + size * c, total if log else one() / total)
            if log:
                loop(args + 64, sums, sums, (width + 15) & -16)
            for i in range(n):
                for c in range(0, width, 16):
                    addr, count = out + i * pitch + size * c, width - c
                    value = read(addr, count, zero())
                    write(addr, count, value - load(sums + size * c) if log else value * load(sums + size * c))

    return kernel


def _norm(elem, centred, weighted, biased):
    size, (read, write), number = lanes.size_of(elem), _access(elem), lanes.number(elem)
    get, repeat = lanes.scalar_access(elem)[0], lanes.splatter(elem)
    zero, one = lanes.constant(elem, 0.0), lanes.constant(elem, 1.0)

    @njit(forceinline=True)
    def column(out, x, weight, bias, n, count, pitch, share, eps):
        centre, squares = zero(), zero()
        if centred:
            for i in range(n):
                centre = centre + read(x + i * pitch, count, zero())
            centre = centre * share
        for i in range(n):
            d = read(x + i * pitch, count, zero()) - centre
            squares = fma(d, d, squares)
        r = one() / sqrt(squares * share + eps)
        for i in range(n):
            value = read(x + i * pitch, count, zero())
            value = (value - centre if centred else value) * r
            if weighted:
                value = value * repeat(get(weight + size * i))
            if biased:
                value = value + repeat(get(bias + size * i))
            write(out + i * pitch, count, value)

    def kernel(args, thread, n_threads):
        n, inner = get_i64(args + 8), get_i64(args + 16)
        tile = _tile(get_i64(args), inner, n_threads)
        weight, bias, tiles = get_i64(args + 40), get_i64(args + 48), (inner + tile - 1) // tile
        share, eps = repeat(number(lanes.get_f64(args + 56))), repeat(number(lanes.get_f64(args + 64)))
        items = get_i64(args) * tiles
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            first = item % tiles * tile
            for c in range(first, min(first + tile, inner), 16):
                at = size * (item // tiles * n * inner + c)
                out, x = get_i64(args + 24) + at, get_i64(args + 32) + at
                column(out, x, weight, bias, n, inner - c, size * inner, share, eps)

    return kernel


def build(part, elem, masked=False, weighted=False, biased=False):
    """part: "softmax", "log_softmax", "rms_norm" or "layer_norm"; elem: "f32" or "f64"."""
    if part in ("softmax", "log_softmax"):
        return _softmax(elem, masked, part == "log_softmax")
    return _norm(elem, part == "layer_norm", weighted, biased)
