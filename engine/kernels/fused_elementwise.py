"""Activations in one pass over memory, block by block, with the steps of their composites in the same order.

exp, log1p and tanh are NumPy's inner loops, called on a block that stays in the first-level cache, so the results are the
composite's bit for bit. The result's own memory holds what goes into a loop and comes out of it. Only gelu in float32
differs: its erf is a polynomial in float32, not a rounded float64 (within 4.8e-7 on [-8, 8]).
Operands are rows of dense elements. Argument words: 0 elements, 1 elements of a row, 2 result, 3 x, 4 bytes between its rows,
5 the other operand of a gate, 6 bytes between its rows, then (function, data) of each loop.
"""

import math

import numpy as np
from numba import njit

from . import mathematics
from .fused_layout import ACTIVATION_LOOPS
from .loops import BLOCK_BYTES, unary_loop
from .simd import lanes
from .simd.arithmetic import absolute
from .simd.memory import get_i64, store

UNIT = 64  # elements that are not shared between threads: whole cache lines


def _constants(elem, *values):
    """Constants as the composite rounds them."""
    return [lanes.constant(elem, float(np.float32(value)) if elem == "f32" else value) for value in values]


def _logistic(elem, name):
    """`before` gives -|x|, whose exp cannot overflow; `after` gets that exp."""
    (zero, one), less = _constants(elem, 0.0, 1.0), lanes.comparison("lt")
    gated, weighted = name == "gated_silu", name in ("silu", "gated_silu")

    @njit(forceinline=True)
    def before(x):
        return zero() - absolute(x)

    @njit(forceinline=True)
    def after(x, e, up):
        y = lanes.select(less(zero(), x), one(), e) / (one() + e)
        if weighted:
            y = x * y
        if gated:
            y = y * up
        return y

    return before, after


def _softplus(elem):
    (zero,), less = _constants(elem, 0.0), lanes.comparison("lt")

    @njit(forceinline=True)
    def before(x):
        return zero() - absolute(x)

    @njit(forceinline=True)
    def after(x, t, up):
        return lanes.select(less(zero(), x), x + t, t)

    return before, after


def _gelu_tanh(elem):
    # As ops/activations.py spells it: the product of the two rounded factors.
    cubic, scale, one, half = _constants(elem, 0.044715, (2.0 / math.sqrt(math.pi)) * math.sqrt(0.5), 1.0, 0.5)

    @njit(forceinline=True)
    def before(x):
        return (x + x * x * x * cubic()) * scale()

    @njit(forceinline=True)
    def after(x, t, up):
        return x * (one() + t) * half()

    return before, after


def _gelu(elem):
    scale, one, half = _constants(elem, math.sqrt(0.5), 1.0, 0.5)
    erf = mathematics.erf_double() if elem == "f64" else mathematics.erf_single()

    @njit(forceinline=True)
    def before(x):
        return x

    @njit(forceinline=True)
    def after(x, unused, up):
        return x * (one() + erf(x * scale())) * half()

    return before, after


def _formula(op, elem):
    if op == "softplus":
        return _softplus(elem)
    if op == "gelu_tanh":
        return _gelu_tanh(elem)
    return _gelu(elem) if op == "gelu" else _logistic(elem, op)


def build(op, elem):
    """op: a key of ACTIVATION_LOOPS; elem: "f32" or "f64"."""
    before, after = _formula(op, elem)
    n_loops, gated = len(ACTIVATION_LOOPS[op]), op == "gated_silu"
    run, load, size = unary_loop(elem), lanes.loader(elem), lanes.size_of(elem)
    load_part, store_part = lanes.part_access(elem)
    (zero,), block = _constants(elem, 0.0), BLOCK_BYTES // size

    @njit(forceinline=True)
    def begin(out, x, n):
        whole = n & -16
        for i in range(0, size * whole, size * 16):
            store(out + i, before(load(x + i)))
        if whole < n:
            i = size * whole
            store_part(out + i, n - whole, before(load_part(x + i, n - whole, zero())))

    @njit(forceinline=True)
    def end(out, x, up, n):
        whole = n & -16
        for i in range(0, size * whole, size * 16):
            store(out + i, after(load(x + i), load(out + i) if n_loops else zero(), load(up + i) if gated else zero()))
        if whole < n:
            i, rest = size * whole, n - whole
            middle = load_part(out + i, rest, zero()) if n_loops else zero()
            other = load_part(up + i, rest, zero()) if gated else zero()
            store_part(out + i, rest, after(load_part(x + i, rest, zero()), middle, other))

    def kernel(args, thread, n_threads):
        n, pitch, up_pitch = get_i64(args + 8), get_i64(args + 32), get_i64(args + 48)
        at, stop = lanes.share(get_i64(args), UNIT, thread, n_threads)
        while at < stop:
            row = at // n
            column = at - row * n
            count = min(block, stop - at, n - column)
            out, x = get_i64(args + 16) + size * at, get_i64(args + 24) + row * pitch + size * column
            up = get_i64(args + 40) + row * up_pitch + size * column
            if n_loops:
                begin(out, x, count)
                for i in range(n_loops):
                    run(args + 56 + 16 * i, out, out, count)
            end(out, x, up, count)
            at += count

    return kernel
