"""Activations in one pass over memory, block by block, with the steps of their composites in the same order.

exp, expm1, log1p and tanh are NumPy's inner loops, called on a block that stays in the first-level cache, so the results are the
composite's bit for bit. The result's own memory holds what goes into a loop and comes out of it. Only gelu in float32
differs: its erf is a polynomial in float32, not a rounded float64 (within 4.8e-7 on [-8, 8]).
Operands are rows of dense elements. Argument words: 0 elements, 1 elements of a row, 2 result, 3 x, 4 bytes between its rows,
5 the other operand of a gate, 6 bytes between its rows, 7 the op's parameter (float64), then (function, data) of each loop.
"""

from numba import njit

from .activation_formulas import FORMULAS, constants
from .loops import BLOCK_BYTES, unary_loop
from .simd import lanes
from .simd.memory import get_i64, store

UNIT = 64  # elements that are not shared between threads: whole cache lines
_LOOPS = 64  # bytes before the first loop


def _map(elem, before, is_first):
    """`apply(out, x, n, number)`: the step before a loop, from x and (unless it is the first) what out holds, into out."""
    load, size, (load_part, store_part) = lanes.loader(elem), lanes.size_of(elem), lanes.part_access(elem)
    (zero,) = constants(elem, 0.0)

    @njit(forceinline=True)
    def apply(out, x, n, number):
        whole = n & -16
        for i in range(0, size * whole, size * 16):
            store(out + i, before(load(x + i), zero() if is_first else load(out + i), number))
        if whole < n:
            i, rest = size * whole, n - whole
            value = zero() if is_first else load_part(out + i, rest, zero())
            store_part(out + i, rest, before(load_part(x + i, rest, zero()), value, number))

    return apply


def _stages(elem, befores):
    """`run(args, out, x, n, number)`: each loop over a block, after its step; out holds what the last one gave."""

    @njit(forceinline=True)
    def nothing(args, out, x, n, number):
        pass

    def then(earlier, position, before):
        loop, word = unary_loop(elem), _LOOPS + 16 * position
        apply = None if before is None else _map(elem, before, position == 0)

        @njit(forceinline=True)
        def run(args, out, x, n, number):
            earlier(args, out, x, n, number)
            if apply is not None:
                apply(out, x, n, number)
            loop(args + word, out, out, n)

        return run

    run = nothing
    for position, before in enumerate(befores):
        run = then(run, position, before)
    return run


def build(op, elem):
    """op: a key of ACTIVATION_LOOPS; elem: "f32" or "f64"."""
    befores, after = FORMULAS[op](elem)
    stages, looped, gated = _stages(elem, befores), bool(befores), op == "gated_silu"
    load, size, (load_part, store_part) = lanes.loader(elem), lanes.size_of(elem), lanes.part_access(elem)
    (zero,), block, repeat, cast = constants(elem, 0.0), BLOCK_BYTES // size, lanes.splatter(elem), lanes.number(elem)

    @njit(forceinline=True)
    def end(out, x, up, n, number):
        whole = n & -16
        for i in range(0, size * whole, size * 16):
            store(out + i, after(load(x + i), load(out + i) if looped else zero(), load(up + i) if gated else zero(), number))
        if whole < n:
            i, rest = size * whole, n - whole
            value = load_part(out + i, rest, zero()) if looped else zero()
            other = load_part(up + i, rest, zero()) if gated else zero()
            store_part(out + i, rest, after(load_part(x + i, rest, zero()), value, other, number))

    def kernel(args, thread, n_threads):
        n, pitch, up_pitch = get_i64(args + 8), get_i64(args + 32), get_i64(args + 48)
        number = repeat(cast(lanes.get_f64(args + 56)))
        at, stop = lanes.share(get_i64(args), UNIT, thread, n_threads)
        while at < stop:
            row = at // n
            column = at - row * n
            count = min(block, stop - at, n - column)
            out, x = get_i64(args + 16) + size * at, get_i64(args + 24) + row * pitch + size * column
            stages(args, out, x, count, number)
            end(out, x, get_i64(args + 40) + row * up_pitch + size * column, count, number)
            at += count

    return kernel
