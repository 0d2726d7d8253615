"""Rotary positions, the key/value cache and attention over it.

Cache of one layer, per kv head: keys in blocks of sixteen positions, [S / 16][D][16]; values [S][D]; f16 or f32. Scores are
never stored: sixteen keys at a time, with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022), always
from the first key on, so that a query's result depends neither on the chunk it came in nor on the threads.
Register words: 0 number of tokens, 1 position of the first.
"""

from numba import float32, njit

from . import functions, simd
from .layout import QUERIES

# Argument words of `append`
Q, K, V, Q_STRIDE, K_STRIDE, V_STRIDE, KEYS, VALUES, HEADS, KV_HEADS, DIM, ROTARY, COS, SIN, CAPACITY, REGISTERS = range(16)
# Further words of `attend`; OUT rows are [H * D] floats
OUT, OUT_STRIDE, SCALE, SCRATCH, SCRATCH_BYTES = range(16, 21)


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
        items = n * (heads + kv_heads)
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
            block = simd.get_i64(args + 8 * KEYS) + size * dim * (head * capacity + (position & -16)) + size * (position & 15)
            row = simd.get_i64(args + 8 * VALUES) + size * dim * (head * capacity + position)
            for i in range(dim):
                put(block + 16 * size * i, simd.get_f32(k + 4 * i))
                put(row + size * i, simd.get_f32(v + 4 * i))
            if t == n - 1:  # whatever an earlier, longer sequence left behind must not meet a weight of zero
                for i in range(dim * (15 - (position & 15))):
                    put(row + size * (dim + i), float32(0.0))

    return kernel


def _attend(kv):
    wide = 64 if kv == "f32" else 32

    @njit(forceinline=True)
    def load(addr):
        if wide == 64:
            return simd.load_f32x16(addr)
        return simd.widen_f32(simd.load_f16x16(addr))

    def tile(count):
        floats, zero = simd.broadcast_loader("f32", count), simd.zeros("f32", count)
        put, get, words = simd.tile_store(count), simd.tile_load(count), simd.broadcast_loader("i32", count)

        @njit(forceinline=True)
        def run(q, q_stride, keys, values, out, out_stride, dim, last, scale, scratch):
            """`count` queries; the first sees the keys 0 .. last, the next one more. scratch: p, limits, then [D/16] tiles."""
            limits, sums = scratch + 64 * count, scratch + 128 * count
            for t in range(count):
                simd.put_i32(limits + 4 * t, last + t + 1)
            limit = words(limits, 4)
            for c in range(dim >> 4):
                put(sums + 64 * count * c, 64, zero())
            minus = simd.splat_f32(float32(-float("inf")))
            top, total = zero() + minus, zero()
            for block in range((last + count - 1) // 16 + 1):
                k = keys + wide * dim * block
                s0, s1, s2, s3 = zero(), zero(), zero(), zero()
                for d in range(0, dim, 4):
                    s0 = simd.fma(load(k + wide * d), floats(q + 4 * d, q_stride), s0)
                    s1 = simd.fma(load(k + wide * (d + 1)), floats(q + 4 * d + 4, q_stride), s1)
                    s2 = simd.fma(load(k + wide * (d + 2)), floats(q + 4 * d + 8, q_stride), s2)
                    s3 = simd.fma(load(k + wide * (d + 3)), floats(q + 4 * d + 12, q_stride), s3)
                scores = ((s0 + s1) + (s2 + s3)) * simd.splat_f32(scale)
                position = simd.lane_numbers() + simd.splat_i32(16 * block)
                scores = simd.select_less(position, limit, scores, minus)
                new_top = simd.maximum(top, simd.all_max(scores))
                shrink = functions.exp(top - new_top)
                p = functions.exp(scores - new_top)
                total = simd.fma(total, shrink, p)
                top = new_top
                put(scratch, 64, p)
                v = values + wide // 16 * dim * 16 * block
                for c in range(dim >> 4):
                    y = get(sums + 64 * count * c, 64) * shrink
                    for j in range(16):
                        y = simd.fma(load(v + wide // 16 * (dim * j + 16 * c)), floats(scratch + 4 * j, 64), y)
                    put(sums + 64 * count * c, 64, y)
            whole = simd.all_add(total)
            for c in range(dim >> 4):
                put(out + 64 * c, out_stride, get(sums + 64 * count * c, 64) / whole)

        return run

    many, one = tile(QUERIES), tile(1)

    def kernel(args, thread, n_threads):
        heads, kv_heads = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * KV_HEADS)
        dim, capacity = simd.get_i64(args + 8 * DIM), simd.get_i64(args + 8 * CAPACITY)
        q_stride, out_stride = simd.get_i64(args + 8 * Q_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        scale = simd.get_f32(args + 8 * SCALE)
        registers = simd.get_i64(args + 8 * REGISTERS)
        n, first = simd.get_i64(registers), simd.get_i64(registers + 8)
        scratch = simd.get_i64(args + 8 * SCRATCH) + thread * simd.get_i64(args + 8 * SCRATCH_BYTES)
        group, head_bytes = heads // kv_heads, wide // 16 * dim * capacity
        tiles = (n + QUERIES - 1) // QUERIES
        # Later tiles see more keys: dealing them out in turn keeps the shares even.
        for item in range(thread, tiles * heads, n_threads):
            head = item % heads
            t = (item // heads) * QUERIES
            keys = simd.get_i64(args + 8 * KEYS) + head // group * head_bytes
            values = simd.get_i64(args + 8 * VALUES) + head // group * head_bytes
            q = simd.get_i64(args) + t * q_stride + 4 * dim * head
            out = simd.get_i64(args + 8 * OUT) + t * out_stride + 4 * dim * head
            if t + QUERIES <= n:
                many(q, q_stride, keys, values, out, out_stride, dim, first + t, scale, scratch)
                continue
            while t < n:
                one(q, q_stride, keys, values, out, out_stride, dim, first + t, scale, scratch)
                q += q_stride
                out += out_stride
                t += 1

    return kernel


def build(part, kv="f16", interleaved=False):
    """part "append": rotate q and k in place and write k and v into the cache; "attend": softmax(scale q k^T) v, causal."""
    return _append(interleaved, kv) if part == "append" else _attend(kv)
