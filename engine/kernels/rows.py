"""Softmax and norms over rows, the last axis of an array; float32 or float64. See columns.py for the other axes.

Rows are visited in groups that stay in the first-level cache, and nothing is stored but the result. exp and log are NumPy's
loops, so only the order of sums tells a result from its composite; that order depends on the row's length alone.
Argument words: 0 rows, 1 length n, 2 result, 3 x, 4 bytes between rows of x, then
    softmax: 5 mask (bytes) or 0, 6 rows of the mask, which repeats, 7 loop of exp, 9 loop of log (each: function, data)
    norms: 5 weight, 6 bias, 7 1/n, 8 eps (both float64)
"""

import numpy as np
from numba import njit

from .loops import BLOCK_BYTES, stack_bytes, unary_loop
from .simd import lanes
from .simd.arithmetic import all_add, all_max, fma, maximum, sqrt
from .simd.memory import get_i64, store

LOWEST = {"f32": float(np.finfo(np.float32).min), "f64": float(np.finfo(np.float64).min)}


def _total(elem):
    """`total(x, n)`: the sum of n elements in every lane."""
    load, size, load_part = lanes.loader(elem), lanes.size_of(elem), lanes.part_access(elem)[0]
    zero = lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def total(x, n):
        a, b, c, d = zero(), zero(), zero(), zero()
        for i in range(0, size * (n & -64), size * 64):
            a = a + load(x + i)
            b = b + load(x + i + 16 * size)
            c = c + load(x + i + 32 * size)
            d = d + load(x + i + 48 * size)
        for i in range(size * (n & -64), size * (n & -16), size * 16):
            a = a + load(x + i)
        if n & 15:
            b = b + load_part(x + size * (n & -16), n & 15, zero())
        return all_add((a + b) + (c + d))

    return total


def _shift(elem, masked):
    """`shift(out, x, mask, n)`: out = x - the largest x that the mask shows, -inf where it hides.

    The largest ignores NaN and is never below the lowest finite number: a row of -inf stays that, and what is NaN stays
    so in the difference and spoils the sum.
    """
    load, size, less = lanes.loader(elem), lanes.size_of(elem), lanes.comparison("lt")
    load_part, store_part = lanes.part_access(elem)
    lowest, hidden = lanes.constant(elem, LOWEST[elem]), lanes.constant(elem, -float("inf"))

    @njit(forceinline=True)
    def read(x, mask, i):
        value = load(x + size * i)
        return lanes.select(lanes.nonzero_bytes(mask + i), value, hidden()) if masked else value

    @njit(forceinline=True)
    def read_part(x, mask, i, n):
        value = load_part(x + size * i, n, hidden())
        return lanes.select(lanes.nonzero_bytes_part(mask + i, n), value, hidden()) if masked else value

    @njit(forceinline=True)
    def larger(a, b):
        return lanes.select(less(a, b), b, a)

    @njit(forceinline=True)
    def shift(out, x, mask, n):
        a, b, whole = lowest(), lowest(), n & -16
        for i in range(0, n & -32, 32):
            a = larger(a, read(x, mask, i))
            b = larger(b, read(x, mask, i + 16))
        if n & 16:
            a = larger(a, read(x, mask, whole - 16))
        if whole < n:
            b = larger(b, read_part(x, mask, whole, n - whole))
        top = all_max(larger(a, b))
        for i in range(0, whole, 16):
            store(out + size * i, read(x, mask, i) - top)
        if whole < n:
            store_part(out + size * whole, n - whole, read_part(x, mask, whole, n - whole) - top)

    return shift


def _combine(elem, subtract):
    """`combine(out, n, value)`: each of n elements times (or minus) sixteen equal lanes."""
    load, size = lanes.loader(elem), lanes.size_of(elem)
    load_part, store_part = lanes.part_access(elem)
    zero = lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def combine(out, n, value):
        for i in range(0, size * (n & -16), size * 16):
            store(out + i, load(out + i) - value if subtract else load(out + i) * value)
        if n & 15:
            i, rest = size * (n & -16), n & 15
            last = load_part(out + i, rest, zero())
            store_part(out + i, rest, last - value if subtract else last * value)

    return combine


def _softmax(elem, masked):
    size, shift, total = lanes.size_of(elem), _shift(elem, masked), _total(elem)
    scale, run = _combine(elem, subtract=False), unary_loop(elem)
    one, half = lanes.constant(elem, 1.0), lanes.constant(elem, 0.5)
    group = BLOCK_BYTES // size

    def kernel(args, thread, n_threads):
        rows, n, pitch, mask = get_i64(args), get_i64(args + 8), get_i64(args + 32), get_i64(args + 40)
        period = get_i64(args + 48) if masked else 1
        row, stop = rows * thread // n_threads, rows * (thread + 1) // n_threads
        while row < stop:
            count = min(max(1, group // n), stop - row)
            out = get_i64(args + 16) + row * n * size
            for i in range(count):
                shift(out + i * n * size, get_i64(args + 24) + (row + i) * pitch, mask + (row + i) % period * n, n)
            run(args + 56, out, out, count * n)
            for i in range(count):
                # A row without a participant sums to 0, any other to at least exp(0) = 1.
                scale(out + i * n * size, n, one() / maximum(total(out + i * n * size, n), half()))
            row += count

    return kernel


def _log_softmax(elem, masked):
    """The exponentials live in a block of scratch memory: the result is what went into them."""
    size, shift, total = lanes.size_of(elem), _shift(elem, masked), _total(elem)
    less_log, run, block = _combine(elem, subtract=True), unary_loop(elem), stack_bytes(BLOCK_BYTES)
    zero, half, load = lanes.constant(elem, 0.0), lanes.constant(elem, 0.5), lanes.loader(elem)
    piece = BLOCK_BYTES // size

    def kernel(args, thread, n_threads):
        rows, n, pitch, mask = get_i64(args), get_i64(args + 8), get_i64(args + 32), get_i64(args + 40)
        period, scratch = get_i64(args + 48) if masked else 1, block()
        for row in range(rows * thread // n_threads, rows * (thread + 1) // n_threads):
            out = get_i64(args + 16) + row * n * size
            shift(out, get_i64(args + 24) + row * pitch, mask + row % period * n, n)
            sums, at = zero(), 0
            while at < n:
                count = min(piece, n - at)
                run(args + 56, scratch, out + size * at, count)
                sums = sums + total(scratch, count)
                at += count
            store(scratch, maximum(sums, half()))
            run(args + 72, scratch, scratch, 16)
            less_log(out, n, load(scratch))

    return kernel


def _norm(elem, centred, weighted, biased):
    load, size, number = lanes.loader(elem), lanes.size_of(elem), lanes.number(elem)
    load_part, store_part = lanes.part_access(elem)
    zero, one, repeat, total = lanes.constant(elem, 0.0), lanes.constant(elem, 1.0), lanes.splatter(elem), _total(elem)

    @njit(forceinline=True)
    def squares(x, n, centre):
        """The sum of (x - centre)^2."""
        a, b, c, d = zero(), zero(), zero(), zero()
        for i in range(0, size * (n & -64), size * 64):
            p, q = load(x + i) - centre, load(x + i + 16 * size) - centre
            r, s = load(x + i + 32 * size) - centre, load(x + i + 48 * size) - centre
            a, b, c, d = fma(p, p, a), fma(q, q, b), fma(r, r, c), fma(s, s, d)
        for i in range(size * (n & -64), size * (n & -16), size * 16):
            p = load(x + i) - centre
            a = fma(p, p, a)
        if n & 15:
            # Padding is the centre itself: zero, unless it is infinite or NaN, and then the row is NaN anyway.
            q = load_part(x + size * (n & -16), n & 15, centre) - centre
            b = fma(q, q, b)
        return all_add((a + b) + (c + d))

    @njit(forceinline=True)
    def finish(value, r, weight, bias):
        value = value * r
        if weighted:
            value = value * weight
        if biased:
            value = value + bias
        return value

    def kernel(args, thread, n_threads):
        rows, n, pitch = get_i64(args), get_i64(args + 8), get_i64(args + 32)
        weight, bias = get_i64(args + 40), get_i64(args + 48)
        share, eps = repeat(number(lanes.get_f64(args + 56))), repeat(number(lanes.get_f64(args + 64)))
        whole = n & -16
        for row in range(rows * thread // n_threads, rows * (thread + 1) // n_threads):
            out, x = get_i64(args + 16) + row * n * size, get_i64(args + 24) + row * pitch
            centre = total(x, n) * share if centred else zero()
            r = one() / sqrt(squares(x, n, centre) * share + eps)
            for i in range(0, size * whole, size * 16):
                w = load(weight + i) if weighted else one()
                b = load(bias + i) if biased else zero()
                store(out + i, finish(load(x + i) - centre if centred else load(x + i), r, w, b))
            if whole < n:
                i, rest = size * whole, n - whole
                w = load_part(weight + i, rest, one()) if weighted else one()
                b = load_part(bias + i, rest, zero()) if biased else zero()
                value = load_part(x + i, rest, zero())
                store_part(out + i, rest, finish(value - centre if centred else value, r, w, b))

    return kernel


def build(part, elem, masked=False, weighted=False, biased=False):
    """part: "softmax", "log_softmax", "rms_norm" or "layer_norm"; elem: "f32" or "f64"."""
    if part == "softmax":
        return _softmax(elem, masked)
    return _log_softmax(elem, masked) if part == "log_softmax" else _norm(elem, part == "layer_norm", weighted, biased)
