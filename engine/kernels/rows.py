"""Softmax and norms over rows that lie in memory one after another, and softmax across columns. float32 or float64.

One visit a row, nothing stored but the result. The order of every sum depends on the row's length alone, never on threads.
Argument words of rows: 0 rows, 1 length, 2 result, 3 x, then
    softmax, masked: 4 mask (bytes), 5 rows of the mask, which repeats
    norms: 4 weight, 5 bias, 6 address of (1/length, eps) as elements
Argument words of columns: 0 outer, 1 length, 2 inner, 3 result, 4 x.
"""

from numba import njit

from . import mathematics
from .simd import lanes
from .simd.arithmetic import all_add, all_max, fma, maximum, sqrt
from .simd.memory import get_i64, store

_LOWEST = {"f32": -3.4028234663852886e38, "f64": -1.7976931348623157e308}


def _softmax_row(elem, masked):
    exp, load, size = mathematics.exp(elem), lanes.loader(elem), lanes.size_of(elem)
    load_part, store_part = lanes.part_access(elem)
    lowest, hidden, zero, half = (lanes.constant(elem, c) for c in (_LOWEST[elem], -float("inf"), 0.0, 0.5))

    @njit(forceinline=True)
    def read(x, mask, i):
        value = load(x + size * i)
        return lanes.select(lanes.nonzero_bytes(mask + i), value, hidden()) if masked else value

    @njit(forceinline=True)
    def read_part(x, mask, i, n):
        value = load_part(x + size * i, n, hidden())
        return lanes.select(lanes.nonzero_bytes_part(mask + i, n), value, hidden()) if masked else value

    @njit(forceinline=True)
    def row(out, x, mask, n):
        whole = n & -16
        top = lowest()
        for i in range(0, whole, 16):
            top = maximum(top, read(x, mask, i))
        if whole < n:
            top = maximum(top, read_part(x, mask, whole, n - whole))
        top = all_max(top)
        total = zero()
        for i in range(0, whole, 16):
            e = exp(read(x, mask, i) - top)
            store(out + size * i, e)
            total = total + e
        if whole < n:
            last = exp(read_part(x, mask, whole, n - whole) - top)
            total = total + last
            total = maximum(all_add(total), half())
            store_part(out + size * whole, n - whole, last / total)
        else:
            total = maximum(all_add(total), half())
        for i in range(0, whole, 16):
            store(out + size * i, load(out + size * i) / total)

    return row


def _softmax(elem, masked):
    row, size = _softmax_row(elem, masked), lanes.size_of(elem)

    def kernel(args, thread, n_threads):
        rows, n = get_i64(args), get_i64(args + 8)
        out, x = get_i64(args + 16), get_i64(args + 24)
        mask = get_i64(args + 32) if masked else 0
        period = get_i64(args + 40) if masked else 1
        for r in range(rows * thread // n_threads, rows * (thread + 1) // n_threads):
            row(out + r * n * size, x + r * n * size, mask + r % period * n, n)

    return kernel


def _norm(elem, centred, weighted, biased):
    load, size, get = lanes.loader(elem), lanes.size_of(elem), lanes.scalar_access(elem)[0]
    load_part, store_part = lanes.part_access(elem)
    zero, one, repeat = lanes.constant(elem, 0.0), lanes.constant(elem, 1.0), lanes.splatter(elem)

    @njit(forceinline=True)
    def mean(x, n, scale):
        whole = n & -16
        a, b = zero(), zero()
        for i in range(0, whole & -32, 32):
            a = a + load(x + size * i)
            b = b + load(x + size * (i + 16))
        if whole & 16:
            a = a + load(x + size * (whole - 16))
        if whole < n:
            b = b + load_part(x + size * whole, n - whole, zero())
        return all_add(a + b) * scale

    @njit(forceinline=True)
    def mean_square(x, n, centre, scale):
        whole = n & -16
        a, b = zero(), zero()
        for i in range(0, whole & -32, 32):
            c = load(x + size * i) - centre
            a = fma(c, c, a)
            c = load(x + size * (i + 16)) - centre
            b = fma(c, c, b)
        if whole & 16:
            c = load(x + size * (whole - 16)) - centre
            a = fma(c, c, a)
        if whole < n:
            c = load_part(x + size * whole, n - whole, centre) - centre
            # Padding is the centre itself: zero, unless it is infinite or NaN, and then the row is NaN anyway.
            b = fma(c, c, b)
        return all_add(a + b) * scale

    @njit(forceinline=True)
    def finish(value, r, weight, bias):
        value = value * r
        if weighted:
            value = value * weight
        if biased:
            value = value + bias
        return value

    def kernel(args, thread, n_threads):
        rows, n = get_i64(args), get_i64(args + 8)
        weight = get_i64(args + 32) if weighted else 0
        bias = get_i64(args + 40) if biased else 0
        numbers = get_i64(args + 48)
        scale, eps = repeat(get(numbers)), repeat(get(numbers + size))
        whole = n & -16
        for row in range(rows * thread // n_threads, rows * (thread + 1) // n_threads):
            out, x = get_i64(args + 16) + row * n * size, get_i64(args + 24) + row * n * size
            centre = mean(x, n, scale) if centred else zero()
            r = one() / sqrt(mean_square(x, n, centre, scale) + eps)
            for i in range(0, whole, 16):
                w = load(weight + size * i) if weighted else one()
                b = load(bias + size * i) if biased else zero()
                store(out + size * i, finish(load(x + size * i) - centre if centred else load(x + size * i), r, w, b))
            if whole < n:
                w = load_part(weight + size * whole, n - whole, one()) if weighted else one()
                b = load_part(bias + size * whole, n - whole, zero()) if biased else zero()
                value = load_part(x + size * whole, n - whole, zero())
                store_part(out + size * whole, n - whole, finish(value - centre if centred else value, r, w, b))

    return kernel


def _softmax_columns(elem):
    """Sixteen columns at a time; the partial last one goes through padded vectors."""
    exp, load, size = mathematics.exp(elem), lanes.loader(elem), lanes.size_of(elem)
    load_part, store_part = lanes.part_access(elem)
    lowest, zero, half = (lanes.constant(elem, c) for c in (_LOWEST[elem], 0.0, 0.5))

    @njit(forceinline=True)
    def whole_block(out, x, n, pitch):
        top = lowest()
        for i in range(n):
            top = maximum(top, load(x + i * pitch))
        total = zero()
        for i in range(n):
            e = exp(load(x + i * pitch) - top)
            store(out + i * pitch, e)
            total = total + e
        total = maximum(total, half())
        for i in range(n):
            store(out + i * pitch, load(out + i * pitch) / total)

    @njit(forceinline=True)
    def part_block(out, x, n, pitch, count):
        top = lowest()
        for i in range(n):
            top = maximum(top, load_part(x + i * pitch, count, zero()))
        total = zero()
        for i in range(n):
            e = exp(load_part(x + i * pitch, count, zero()) - top)
            store_part(out + i * pitch, count, e)
            total = total + e
        total = maximum(total, half())
        for i in range(n):
            store_part(out + i * pitch, count, load_part(out + i * pitch, count, zero()) / total)

    def kernel(args, thread, n_threads):
        outer, n, inner = get_i64(args), get_i64(args + 8), get_i64(args + 16)
        blocks = (inner + 15) // 16
        items = outer * blocks
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            plane = item // blocks
            column = (item - plane * blocks) * 16
            at = size * (plane * n * inner + column)
            out, x = get_i64(args + 24) + at, get_i64(args + 32) + at
            if column + 16 <= inner:
                whole_block(out, x, n, size * inner)
            else:
                part_block(out, x, n, size * inner, inner - column)

    return kernel


def build(part, elem, masked=False, weighted=False, biased=False):
    """part: "softmax", "softmax_columns", "rms_norm" or "layer_norm"."""
    if part == "softmax":
        return _softmax(elem, masked)
    if part == "softmax_columns":
        return _softmax_columns(elem)
    return _norm(elem, part == "layer_norm", weighted, biased)
