"""Scaled dot-product attention over grouped heads, any mask, no score ever stored. float32 or float64.

A unit of work is one kv head and up to ROWS of the queries that read it; keys come sixteen at a time, turned so that a lane
is a key, with a running maximum and sum (Milakov and Gimelshein 2018). The result's rows serve as accumulators.
Argument words: 0 batch, 1 query heads, 2 kv heads, 3 queries T, 4 keys S, 5 D, 6 Dv, 7 result, 8 q, 9 k, 10 v,
11-19 strides in bytes of q, k, v over (batch, head, token), 20 mask, 21-23 its strides over (batch, head, query),
24 causal, 25 scratch (0: the stack), 26 bytes of it a thread, 27 scale, 28 1/softcap, 29 softcap (float64).
"""

from numba import njit

from . import mathematics
from .fused_layout import SDPA_ROWS, SDPA_STACK
from .loops import stack_bytes
from .simd import lanes
from .simd.arithmetic import all_add, all_max, fma, maximum
from .simd.memory import get_i64, store

_LOWEST = {"f32": -3.4028234663852886e38, "f64": -1.7976931348623157e308}


def _turn(elem):
    """Up to sixteen keys [count, D] become [D, 16], padded with zeros."""
    get, put = lanes.scalar_access(elem)
    size, zero = lanes.size_of(elem), lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def turn(scratch, k, k_stride, count, dim):
        for d in range(dim):
            if count < 16:
                store(scratch + 16 * size * d, zero())
            for j in range(count):
                put(scratch + size * (16 * d + j), get(k + j * k_stride + size * d))

    return turn


def _scores(elem):
    load, repeat, size = lanes.loader(elem), lanes.splatter(elem), lanes.size_of(elem)
    get, zero = lanes.scalar_access(elem)[0], lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def scores(turned, q, dim):
        a, b = zero(), zero()
        for d in range(0, dim & -2, 2):
            a = fma(load(turned + 16 * size * d), repeat(get(q + size * d)), a)
            b = fma(load(turned + 16 * size * (d + 1)), repeat(get(q + size * (d + 1))), b)
        if dim & 1:
            a = fma(load(turned + 16 * size * (dim - 1)), repeat(get(q + size * (dim - 1))), a)
        return a + b

    return scores


def _accumulators(elem):
    """(clear, add, divide) of a result row [columns]; what does not fill a vector is done one by one."""
    size, load, (get, put) = lanes.size_of(elem), lanes.loader(elem), lanes.scalar_access(elem)
    repeat, number, zero = lanes.splatter(elem), lanes.number(elem), lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def clear(out, columns):
        for c in range(0, size * (columns & -16), size * 16):
            store(out + c, zero())
        for c in range(size * (columns & -16), size * columns, size):
            put(out + c, number(0.0))

    @njit(forceinline=True)
    def add(out, columns, shrink, p, v, v_stride, count):
        """out = out * shrink + the sum of p[j] * v[j] over count rows of values."""
        for c in range(0, size * (columns & -16), size * 16):
            y = load(out + c) * shrink
            for j in range(count):
                y = fma(load(v + j * v_stride + c), repeat(get(p + size * j)), y)
            store(out + c, y)
        for c in range(size * (columns & -16), size * columns, size):
            last = get(out + c) * lanes.first_lane(shrink)
            for j in range(count):
                last += get(v + j * v_stride + c) * get(p + size * j)
            put(out + c, last)

    @njit(forceinline=True)
    def divide(out, columns, total):
        for c in range(0, size * (columns & -16), size * 16):
            store(out + c, load(out + c) / total)
        for c in range(size * (columns & -16), size * columns, size):
            put(out + c, get(out + c) / lanes.first_lane(total))

    return clear, add, divide


def _shown(elem, mask):
    """`shown(s, addr, first, count)`: the scores of count keys from the first on, after the mask row at addr."""
    size, load_part = lanes.size_of(elem), lanes.part_access(elem)[0]
    hidden, zero = lanes.constant(elem, -float("inf")), lanes.constant(elem, 0.0)

    @njit(forceinline=True)
    def shown(s, addr, first, count):
        if mask == "bool":
            at = addr + first
            return lanes.select(lanes.nonzero_bytes(at) if count == 16 else lanes.nonzero_bytes_part(at, count), s, hidden())
        if mask == "add":
            return s + load_part(addr + size * first, count, zero())
        return s

    return shown


def _unit(elem, mask, capped):
    """`unit(args, scratch, batch, kv, chunk)`: the queries of a chunk of a kv head against all its keys."""
    exp, tanh = mathematics.exp(elem), mathematics.tanh(elem)
    size, repeat, (get, put) = lanes.size_of(elem), lanes.splatter(elem), lanes.scalar_access(elem)
    hidden, half = lanes.constant(elem, -float("inf")), lanes.constant(elem, 0.5)
    turn, dot, shown, number = _turn(elem), _scores(elem), _shown(elem, mask), lanes.number(elem)
    (clear, add, divide), least = _accumulators(elem), number(_LOWEST[elem])

    @njit(forceinline=True)
    def unit(args, scratch, batch, kv, chunk):
        t_count, s_count, dim, columns = get_i64(args + 24), get_i64(args + 32), get_i64(args + 40), get_i64(args + 48)
        group = get_i64(args + 8) // get_i64(args + 16)
        rows, causal = group * t_count, get_i64(args + 192)
        scale, uncap = repeat(number(lanes.get_f64(args + 216))), repeat(number(lanes.get_f64(args + 224)))
        cap, p = repeat(number(lanes.get_f64(args + 232))), scratch + 16 * size * dim
        state = p + 16 * size
        first_row, last_row = chunk * SDPA_ROWS, min(rows, (chunk + 1) * SDPA_ROWS)
        k = get_i64(args + 72) + batch * get_i64(args + 112) + kv * get_i64(args + 120)
        v = get_i64(args + 80) + batch * get_i64(args + 136) + kv * get_i64(args + 144)
        k_stride, v_stride = get_i64(args + 128), get_i64(args + 152)
        base = get_i64(args + 56) + size * columns * (batch * get_i64(args + 8) * t_count + kv * rows)
        for row in range(first_row, last_row):
            put(state + 2 * size * (row - first_row), least)
            put(state + 2 * size * (row - first_row) + size, number(0.0))
            clear(base + size * columns * row, columns)
        for first in range(0, s_count, 16):
            count = min(16, s_count - first)
            turn(scratch, k + first * k_stride, k_stride, count, dim)
            for row in range(first_row, last_row):
                head, t = kv * group + row // t_count, row % t_count
                limit = s_count - t_count + t if causal else s_count - 1
                if first > limit:
                    continue
                q = get_i64(args + 64) + batch * get_i64(args + 88) + head * get_i64(args + 96) + t * get_i64(args + 104)
                s = dot(scratch, q, dim) * scale
                if capped:
                    s = tanh(s * uncap) * cap
                at = get_i64(args + 160) + batch * get_i64(args + 168) + head * get_i64(args + 176) + t * get_i64(args + 184)
                s = lanes.select(lanes.lanes_below(limit + 1 - first), shown(s, at, first, count), hidden())
                mine = state + 2 * size * (row - first_row)
                top = repeat(get(mine))
                new_top = maximum(top, all_max(s))
                e = exp(s - new_top)
                shrink = exp(top - new_top)
                store(p, e)
                put(mine, lanes.first_lane(new_top))
                put(mine + size, lanes.first_lane(repeat(get(mine + size)) * shrink + all_add(e)))
                add(base + size * columns * row, columns, shrink, p, v + first * v_stride, v_stride, count)
        for row in range(first_row, last_row):
            total = maximum(repeat(get(state + 2 * size * (row - first_row) + size)), half())
            divide(base + size * columns * row, columns, total)

    return unit


def build(elem, mask, capped):
    """mask: "none", "bool" or "add"; capped: whether scores go through softcap * tanh(scores / softcap)."""
    unit, stack = _unit(elem, mask, capped), stack_bytes(SDPA_STACK)

    def kernel(args, thread, n_threads):
        kv_heads = get_i64(args + 16)
        rows = get_i64(args + 8) // kv_heads * get_i64(args + 24)
        chunks = (rows + SDPA_ROWS - 1) // SDPA_ROWS
        given = get_i64(args + 200)
        scratch = given + thread * get_i64(args + 208) if given else stack()
        for item in range(thread, get_i64(args) * kv_heads * chunks, n_threads):
            unit(args, scratch, item // (chunks * kv_heads), item // chunks % kv_heads, item % chunks)

    return kernel
