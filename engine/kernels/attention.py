"""Rotary positions, the key/value cache and attention over it.

Cache of one layer, per kv head: keys in blocks of sixteen positions, [S / 16][D][16]; values [S][D]; f16 or f32. Scores are
never stored: thirty-two keys at a time, with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022). Each
PART keys start afresh and parts are merged from the first on, so that a query's result depends neither on the chunk that
it came in nor on who computed which part. Queries stand side by side in a tile: tokens of one head in prefill, in decode
the heads that share a kv head.
Register words: 0 number of tokens, 1 position of the first.
"""

from numba import float32, njit

from . import functions, simd
from .layout import PART, QUERIES

# Argument words of `append`
Q, K, V, Q_STRIDE, K_STRIDE, V_STRIDE, KEYS, VALUES, HEADS, KV_HEADS, DIM, ROTARY, COS, SIN, CAPACITY, REGISTERS = range(16)
# Further words of `attend` and `merge`; OUT rows are [H * D] floats, PARTS is where decode leaves its parts
OUT, OUT_STRIDE, SCALE, SCRATCH, SCRATCH_BYTES, PARTS = range(16, 22)
LOWEST = float32(-3.0e38)


@njit(forceinline=True)
def _pitch(dim):
    """Numbers that a head's row takes in the cache: whole vectors."""
    return (dim + 15) & -16


@njit(forceinline=True)
def _write_rest(vector, out, dim):
    """The last dim % 16 numbers of a head, which fill no vector: what lies behind them is another head's."""
    for i in range(dim & 15):
        simd.put_f32(out + 64 * (dim >> 4) + 4 * i, simd.get_f32(vector + 4 * i))


@njit(forceinline=True)
def _rotate(x, cos, sin, dim, interleaved):
    half = dim // 2
    for i in range(half):
        a, b = (x + 8 * i, x + 8 * i + 4) if interleaved else (x + 4 * i, x + 4 * (i + half))
        x1, x2 = simd.get_f32(a), simd.get_f32(b)
        c, s = simd.get_f32(cos + 4 * i), simd.get_f32(sin + 4 * i)
        simd.put_f32(a, x1 * c - x2 * s)
        simd.put_f32(b, x1 * s + x2 * c)


def _append(interleaved, kv):
    size = 2 if kv == "f16" else 4

    @njit(forceinline=True)
    def put(addr, value):
        if size == 2:
            simd.put_f16(addr, value)
        else:
            simd.put_f32(addr, value)

    def kernel(args, thread, n_threads):
        heads, kv_heads = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * KV_HEADS)
        dim, rotary, capacity = simd.get_i64(args + 8 * DIM), simd.get_i64(args + 8 * ROTARY), simd.get_i64(args + 8 * CAPACITY)
        registers = simd.get_i64(args + 8 * REGISTERS)
        n, first = simd.get_i64(registers), simd.get_i64(registers + 8)
        items, pitch = n * (heads + kv_heads), _pitch(dim)
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            t = item // (heads + kv_heads)
            head = item - t * (heads + kv_heads)
            position = first + t
            cos = simd.get_i64(args + 8 * COS) + position * 2 * rotary
            sin = simd.get_i64(args + 8 * SIN) + position * 2 * rotary
            if head < heads:
                q = simd.get_i64(args) + t * simd.get_i64(args + 8 * Q_STRIDE) + 4 * dim * head
                _rotate(q, cos, sin, rotary, interleaved)
                continue
            head -= heads
            k = simd.get_i64(args + 8 * K) + t * simd.get_i64(args + 8 * K_STRIDE) + 4 * dim * head
            v = simd.get_i64(args + 8 * V) + t * simd.get_i64(args + 8 * V_STRIDE) + 4 * dim * head
            _rotate(k, cos, sin, rotary, interleaved)
            block = simd.get_i64(args + 8 * KEYS) + size * pitch * (head * capacity + (position & -16)) + size * (position & 15)
            row = simd.get_i64(args + 8 * VALUES) + size * pitch * (head * capacity + position)
            for i in range(dim):
                put(block + 16 * size * i, simd.get_f32(k + 4 * i))
                put(row + size * i, simd.get_f32(v + 4 * i))

    return kernel


@njit(forceinline=True)
def _merge(top, total, y, new_top, new_total, new_y):
    """Two parts of a softmax as one: (maximum, lane sums, weighted values)."""
    both = simd.maximum(top, new_top)
    left, right = functions.exp(top - both), functions.exp(new_top - both)
    return both, total * left + new_total * right, y * left + new_y * right


def _tile(kv, count, step):
    """`count` queries against a run of keys; query t sees `step` * t keys more than the first.

    Scratch of a tile, each a tile of vectors: probabilities of 32 keys (2), limits, then maximum, lane sums and D/16 weighted
    values of a part.
    """
    wide = 64 if kv == "f32" else 32
    row = wide // 16
    floats, zero = simd.broadcast_loader("f32", count), simd.zeros("f32", count)
    put, get, words = simd.tile_store(count), simd.tile_load(count), simd.broadcast_loader("i32", count)
    size = 64 * count

    @njit(forceinline=True)
    def load(addr):
        if wide == 64:
            return simd.load_f32x16(addr)
        return simd.widen_f32(simd.load_f16x16(addr))

    @njit(forceinline=True)
    def scores_of(q, q_stride, keys, dim, block):
        k = keys + wide * _pitch(dim) * block
        s0, s1 = zero(), zero()
        for d in range(0, dim, 2):
            s0 = simd.fma(load(k + wide * d), floats(q + 4 * d, q_stride), s0)
            s1 = simd.fma(load(k + wide * d + wide), floats(q + 4 * d + 4, q_stride), s1)
        return s0 + s1

    @njit(forceinline=True)
    def part(q, q_stride, keys, values, dim, first, visible, scale, scratch):
        """One part, from key `first` on, for queries of which the first sees `visible` keys. Result in scratch."""
        limits, result = scratch + 2 * size, scratch + 3 * size
        for t in range(count):
            simd.put_i32(limits + 4 * t, visible + step * t)
        limit = words(limits, 4)
        end = min(first + PART, visible + step * (count - 1))
        for c in range(_pitch(dim) >> 4):
            put(result + size * (2 + c), 64, zero())
        minus = simd.splat_f32(float32(-float("inf")))
        top, total = zero() + minus, zero()
        for key in range(first, end, 32):
            a = scores_of(q, q_stride, keys, dim, key >> 4) * simd.splat_f32(scale)
            b = scores_of(q, q_stride, keys, dim, (key >> 4) + 1) * simd.splat_f32(scale)
            at = simd.lane_numbers() + simd.splat_i32(key)
            a = simd.select_less(at, limit, a, minus)
            b = simd.select_less(at + simd.splat_i32(16), limit, b, minus)
            # A query whose limit lies before this part has seen nothing yet: its maximum must not be -inf.
            new_top = simd.maximum(top, simd.maximum(simd.all_max(simd.maximum(a, b)), simd.splat_f32(LOWEST)))
            shrink = functions.exp(top - new_top)
            a, b = functions.exp(a - new_top), functions.exp(b - new_top)
            total = total * shrink + (a + b)
            top = new_top
            put(scratch, 128, a)
            put(scratch + 64, 128, b)
            v = values + row * _pitch(dim) * key
            n = min(32, end - key)
            seen = min(n, max(visible - key, 0))  # keys that every query of the tile sees
            for c in range(_pitch(dim) >> 4):
                y = get(result + size * (2 + c), 64) * shrink
                for j in range(seen):
                    y = simd.fma(load(v + row * (_pitch(dim) * j + 16 * c)), floats(scratch + 4 * j, 128), y)
                for j in range(seen, n):  # a weight of zero would not keep a later token's NaN out
                    more = simd.fma(load(v + row * (_pitch(dim) * j + 16 * c)), floats(scratch + 4 * j, 128), y)
                    y = simd.select_less(simd.splat_i32(key + j), limit, more, y)
                put(result + size * (2 + c), 64, y)
        put(result, 64, top)
        put(result + size, 64, total)

    return part


def _all_parts(kv, count, step):
    """The same against all keys: the parts, merged in order; scratch holds the running result behind a tile's own."""
    part, size = _tile(kv, count, step), 64 * count
    put, get = simd.tile_store(count), simd.tile_load(count)

    @njit(forceinline=True)
    def whole(q, q_stride, keys, values, out, out_stride, dim, visible, scale, scratch):
        vectors = 2 + (_pitch(dim) >> 4)
        fresh = scratch + 3 * size
        running = fresh + size * vectors
        for first in range(0, visible + step * (count - 1), PART):
            part(q, q_stride, keys, values, dim, first, visible, scale, scratch)
            top, total = get(fresh, 64), get(fresh + size, 64)
            if first == 0:
                for c in range(vectors):
                    put(running + size * c, 64, get(fresh + size * c, 64))
                continue
            old_top, old_total = get(running, 64), get(running + size, 64)
            for c in range(2, vectors):
                both, merged, y = _merge(old_top, old_total, get(running + size * c, 64), top, total, get(fresh + size * c, 64))
                put(running, 64, both)
                put(running + size, 64, merged)
                put(running + size * c, 64, y)
        sums = simd.all_add(get(running + size, 64))
        for c in range(dim >> 4):
            put(out + 64 * c, out_stride, get(running + size * (2 + c), 64) / sums)
        if dim & 15:
            put(scratch, 64, get(running + size * (2 + (dim >> 4)), 64) / sums)
            for t in range(count):
                _write_rest(scratch + 64 * t, out + t * out_stride, dim)

    return whole


def _attend(kv, group):
    number = 2 if kv == "f16" else 4
    tokens = _all_parts(kv, QUERIES, 1)
    part, heads_together = _tile(kv, group, 0), _all_parts(kv, group, 0)
    put, get = simd.tile_store(group), simd.tile_load(group)

    def kernel(args, thread, n_threads):
        heads, kv_heads = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * KV_HEADS)
        dim, capacity = simd.get_i64(args + 8 * DIM), simd.get_i64(args + 8 * CAPACITY)
        q_stride, out_stride = simd.get_i64(args + 8 * Q_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        scale = simd.get_f32(args + 8 * SCALE)
        registers = simd.get_i64(args + 8 * REGISTERS)
        n, position = simd.get_i64(registers), simd.get_i64(registers + 8)
        scratch = simd.get_i64(args + 8 * SCRATCH) + thread * simd.get_i64(args + 8 * SCRATCH_BYTES)
        shared, head_bytes = heads // kv_heads, number * _pitch(dim) * capacity
        q_base, out_base = simd.get_i64(args), simd.get_i64(args + 8 * OUT)
        keys_base, values_base = simd.get_i64(args + 8 * KEYS), simd.get_i64(args + 8 * VALUES)
        groups, vectors = heads // group, 2 + (_pitch(dim) >> 4)
        if n == 1:
            parts = (position + PART) // PART
            for item in range(parts * groups * thread // n_threads, parts * groups * (thread + 1) // n_threads):
                head = item // parts * group
                first = item % parts * PART
                memory = head // shared * head_bytes
                q = q_base + 4 * dim * head
                part(q, 4 * dim, keys_base + memory, values_base + memory, dim, first, position + 1, scale, scratch)
                to = simd.get_i64(args + 8 * PARTS) + 64 * vectors * group * item
                for c in range(vectors):
                    put(to + 64 * group * c, 64, get(scratch + 64 * group * (3 + c), 64))
            return
        tiles = n // QUERIES
        # Later tiles see more keys: dealing them out in turn keeps the shares even.
        for item in range(thread, tiles * heads, n_threads):
            head = item % heads
            t = (item // heads) * QUERIES
            memory = head // shared * head_bytes
            q, out = q_base + t * q_stride + 4 * dim * head, out_base + t * out_stride + 4 * dim * head
            tokens(q, q_stride, keys_base + memory, values_base + memory, out, out_stride, dim, position + t + 1, scale, scratch)
        for item in range(thread, (n - tiles * QUERIES) * groups, n_threads):
            head = item % groups * group
            t = tiles * QUERIES + item // groups
            memory = head // shared * head_bytes
            q, out = q_base + t * q_stride + 4 * dim * head, out_base + t * out_stride + 4 * dim * head
            heads_together(q, 4 * dim, keys_base + memory, values_base + memory, out, 4 * dim, dim, position + t + 1, scale, scratch)

    return kernel


def _merge_parts(group):
    """Decode's second half: the parts of each head, merged in order."""

    def kernel(args, thread, n_threads):
        heads, dim = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * DIM)
        registers = simd.get_i64(args + 8 * REGISTERS)
        if simd.get_i64(registers) != 1:
            return
        parts, vectors = (simd.get_i64(registers + 8) + PART) // PART, 2 + (_pitch(dim) >> 4)
        scratch = simd.local_vector()
        for head in range(heads * thread // n_threads, heads * (thread + 1) // n_threads):
            at = simd.get_i64(args + 8 * PARTS) + 64 * vectors * group * (head // group * parts) + 64 * (head % group)
            out = simd.get_i64(args + 8 * OUT) + 4 * dim * head
            for c in range(2, vectors):
                top, total = simd.load_f32x16(at), simd.load_f32x16(at + 64 * group)
                y = simd.load_f32x16(at + 64 * group * c)
                for i in range(1, parts):
                    other = at + 64 * vectors * group * i
                    new_top, new_total = simd.load_f32x16(other), simd.load_f32x16(other + 64 * group)
                    top, total, y = _merge(top, total, y, new_top, new_total, simd.load_f32x16(other + 64 * group * c))
                if 16 * (c - 1) <= dim:
                    simd.store(out + 64 * (c - 2), y / simd.all_add(total))
                else:
                    simd.store(scratch, y / simd.all_add(total))
                    _write_rest(scratch, out, dim)

    return kernel


def build(part, kv="f16", interleaved=False, group=1):
    """The kernel of one part of attention.

    part: "append" rotates q and k in place and writes k and v into the cache; "attend" is softmax(scale q k^T) v, causal,
    and leaves parts when there is one token; "merge" makes them one. group: query heads taken together in decode; a
    divisor of those that share a kv head.
    """
    if part == "append":
        return _append(interleaved, kv)
    return _merge_parts(group) if part == "merge" else _attend(kv, group)
