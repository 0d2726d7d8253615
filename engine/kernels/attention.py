"""Rotary positions, the key/value cache and attention over it.

The cache goes by parts of PART positions, so that memory is touched as a sequence grows: [S / PART][layer][kv head], each a
block of keys [PART / 16][D][16] and one of values [PART][D], in f16 or f32, D padded to whole vectors. Only the scores of
one part exist at a time; parts are merged by their maxima and sums, from the first on (Milakov and Gimelshein 2018; Dao et
al. 2022), so that a query's result depends neither on the chunk that it came in nor on who computed which part. Queries
stand side by side in a tile: tokens of one head in prefill, in decode the heads that share a kv head.
Register words: 0 number of tokens, 1 position of the first.
"""

from numba import float32, njit

from . import functions, simd
from .layout import PART, QUERIES
from .simd.lanes import evens, odds, zip_high, zip_low

# Argument words of `append`; CACHE is the layer's first part
Q, K, V, Q_STRIDE, K_STRIDE, V_STRIDE, CACHE, PART_STRIDE, HEADS, KV_HEADS, DIM, ROTARY, COS, SIN, REGISTERS = range(15)
# Further words of `attend` and `merge`; OUT rows are [H * D] floats, PARTS is where decode leaves its parts
OUT, OUT_STRIDE, SCALE, SCRATCH, SCRATCH_BYTES, PARTS = range(15, 21)
LOWEST = float32(-3.0e38)
AHEAD = 8192  # bytes that decode asks for in advance


@njit(forceinline=True)
def _pitch(dim):
    """Numbers that a head's row takes in the cache: whole vectors."""
    return (dim + 15) & -16


@njit(forceinline=True)
def _write_rest(vector, out, dim):
    """The last dim % 16 numbers of a head, which fill no vector: what lies behind them is another head's."""
    for i in range(dim & 15):
        simd.put_f32(out + 64 * (dim >> 4) + 4 * i, simd.get_f32(vector + 4 * i))


def _rotation(interleaved):
    """`(x, cos, sin, dim)`: rotate pairs of x[dim] in place: neighbours when interleaved, else i and i + dim/2."""

    @njit(forceinline=True)
    def rotate(x, cos, sin, dim):
        half = dim // 2
        whole = half & -16
        for i in range(0, whole, 16):
            a, b = (x + 8 * i, x + 8 * i + 64) if interleaved else (x + 4 * i, x + 4 * (i + half))
            x1, x2 = simd.load_f32x16(a), simd.load_f32x16(b)
            if interleaved:
                x1, x2 = evens(x1, x2), odds(x1, x2)
            c, s = simd.load_f32x16(cos + 4 * i), simd.load_f32x16(sin + 4 * i)
            x1, x2 = x1 * c - x2 * s, x1 * s + x2 * c
            if interleaved:
                x1, x2 = zip_low(x1, x2), zip_high(x1, x2)
            simd.store(a, x1)
            simd.store(b, x2)
        for i in range(whole, half):
            a, b = (x + 8 * i, x + 8 * i + 4) if interleaved else (x + 4 * i, x + 4 * (i + half))
            y1, y2 = simd.get_f32(a), simd.get_f32(b)
            c1, s1 = simd.get_f32(cos + 4 * i), simd.get_f32(sin + 4 * i)
            simd.put_f32(a, y1 * c1 - y2 * s1)
            simd.put_f32(b, y1 * s1 + y2 * c1)

    return rotate


def _append(interleaved, kv):
    size, put, rotate = (2, simd.put_f16, _rotation(interleaved)) if kv == "f16" else (4, simd.put_f32, _rotation(interleaved))

    def kernel(args, thread, n_threads):
        heads, kv_heads = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * KV_HEADS)
        dim, rotary, part_stride = simd.get_i64(args + 8 * DIM), simd.get_i64(args + 8 * ROTARY), simd.get_i64(args + 8 * PART_STRIDE)
        registers = simd.get_i64(args + 8 * REGISTERS)
        n, first = simd.get_i64(registers), simd.get_i64(registers + 8)
        items, block = n * (heads + kv_heads), size * PART * _pitch(dim)
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            t = item // (heads + kv_heads)
            head = item - t * (heads + kv_heads)
            position = first + t
            cos = simd.get_i64(args + 8 * COS) + position * 2 * rotary
            sin = simd.get_i64(args + 8 * SIN) + position * 2 * rotary
            if head < heads:
                rotate(simd.get_i64(args) + t * simd.get_i64(args + 8 * Q_STRIDE) + 4 * dim * head, cos, sin, rotary)
                continue
            head -= heads
            k = simd.get_i64(args + 8 * K) + t * simd.get_i64(args + 8 * K_STRIDE) + 4 * dim * head
            v = simd.get_i64(args + 8 * V) + t * simd.get_i64(args + 8 * V_STRIDE) + 4 * dim * head
            rotate(k, cos, sin, rotary)
            place = position % PART
            keys = simd.get_i64(args + 8 * CACHE) + position // PART * part_stride + 2 * block * head
            row = keys + block + size * _pitch(dim) * place
            column = keys + size * (_pitch(dim) * (place & -16) + (place & 15))
            for i in range(dim):
                put(column + 16 * size * i, simd.get_f32(k + 4 * i))
                put(row + size * i, simd.get_f32(v + 4 * i))

    return kernel


@njit(forceinline=True)
def _shares(top, new_top):
    """Two parts of a softmax as one: the larger maximum, and the factors of what was relative to each."""
    both = simd.select_below(top, new_top, new_top, top)
    return both, functions.exp_below(top - both), functions.exp_below(new_top - both)


def _rows_together(count):
    """Vectors of keys, or of a value's columns, that meet `count` queries at a time: sums enough to hide an addition's delay."""
    return 2 if count > 4 else 4


def _loader(kv, rows):
    """`(addr, stride)`: `rows` vectors of the cache, `stride` bytes apart, as float32."""
    load = simd.row_loader(kv, 16, rows)

    @njit(forceinline=True)
    def widened(addr, stride):
        return simd.widen_f32(load(addr, stride))

    return load if kv == "f32" else widened


def _asker(kv, rows):
    """`(addr)`: ask for the lines that `rows` vectors of the cache take."""
    wide = 32 if kv == "f16" else 64

    @njit(forceinline=True)
    def ask(addr):
        for line in range(0, wide * rows, 64):
            simd.prefetch(addr + line)

    return ask


def _scorer(kv, count, rows, ahead):
    """Scaled scores of n keys, minus infinity for those that a query does not see; ahead: whether to ask for what follows."""
    number = 2 if kv == "f16" else 4
    wide, apart, load, ask = 16 * number, 4 * PART, _loader(kv, rows), _asker(kv, rows)
    floats, none = simd.broadcast_loader("f32", count), simd.zeros("f32", count, rows)
    put, numbers = simd.tile_store(count, rows), simd.lane_numbers(rows)

    @njit(forceinline=True)
    def score(q, q_stride, keys, dim, n, seen, scale, limit, scores):
        pitch, minus = _pitch(dim), simd.splat_f32(float32(-float("inf")))
        for key in range(0, n, 16 * rows):
            k = keys + number * pitch * key
            s = none()
            for d in range(dim):
                if ahead:  # values lie behind the keys
                    ask(k + rows * wide * d + AHEAD)
                s = simd.fma(load(k + wide * d, wide * pitch), floats(q + 4 * d, q_stride), s)
            s = s * simd.splat_f32(scale)
            if key + 16 * rows > seen:
                s = simd.select_less(numbers() + simd.splat_i32(key), limit, s, minus)
            put(scores + 4 * key, apart, s)

    return score


def _weigher(count):
    """Scores to weights relative to their maximum, in place; returns the maximum and the lane sums."""
    put, get, none, apart = simd.tile_store(count), simd.tile_load(count), simd.zeros("f32", count), 4 * PART

    @njit(forceinline=True)
    def weigh(scores, n):
        # A query whose limit lies before this part has seen nothing yet: its maximum must not be -inf.
        top, total = none() + simd.splat_f32(LOWEST), none()
        for i in range((n + 15) >> 4):
            s = get(scores + 64 * i, apart)
            top = simd.select_below(top, s, s, top)  # a NaN gives way: it comes back with the sum
        top = simd.all_max(top)
        for i in range((n + 15) >> 4):
            p = functions.exp_below(get(scores + 64 * i, apart) - top)
            total = total + p
            put(scores + 64 * i, apart, p)
        return top, total

    return weigh


def _mixer(kv, count, rows, ahead):
    """Weighted sums of `rows` vectors of columns over n values, `row` bytes apart; a query counts those below its limit."""
    wide, apart, load, ask = 32 if kv == "f16" else 64, 4 * PART, _loader(kv, rows), _asker(kv, rows)
    floats, none, put = simd.broadcast_loader("f32", count), simd.zeros("f32", count, rows), simd.tile_store(count, rows)

    @njit(forceinline=True)
    def mix(values, row, jump, weights, n, seen, limit, out, stride):
        y, end = none(), values + row * PART - AHEAD
        for j in range(seen):
            if ahead:
                at = values + row * j
                ask(at + AHEAD if at < end else at + AHEAD + jump)
            y = simd.fma(load(values + row * j, wide), floats(weights + 4 * j, apart), y)
        for j in range(seen, n):  # a weight of zero would not keep a later token's NaN out
            more = simd.fma(load(values + row * j, wide), floats(weights + 4 * j, apart), y)
            y = simd.select_less(simd.splat_i32(j), limit, more, y)
        put(out, stride, y)

    return mix


def _tile(kv, count, step):
    """`count` queries against a part of the keys; query t sees `step` * t keys more than the first.

    Scratch of a tile: PART scores a query, then limits. Decode (step 0) waits for memory, and asks for what it reads next.
    """
    number, apart, rows = 2 if kv == "f16" else 4, 4 * PART, _rows_together(count)
    put, words, wide = simd.tile_store(count), simd.broadcast_loader("i32", count), 16 * number
    score, weigh = _scorer(kv, count, rows, step == 0), _weigher(count)
    mix_rows, mix_one = _mixer(kv, count, rows, step == 0), _mixer(kv, count, 1, step == 0)

    @njit(forceinline=True)
    def part(q, q_stride, keys, jump, dim, first, visible, scale, scratch, result):
        """One part, `keys` with its values behind, from key `first` on, for queries of which the first sees `visible` keys.

        jump: bytes from this part's end to what is read next, to be asked for. result: where each query's maximum, lane sums
        and weighted values go.
        """
        limits, vectors = scratch + apart * count, _pitch(dim) >> 4
        stride = 64 * (2 + vectors)
        for t in range(count):
            simd.put_i32(limits + 4 * t, visible + step * t - first)
        limit = words(limits, 4)
        n = min(PART, visible + step * (count - 1) - first)
        seen = max(min(n, visible - first), 0)  # keys that every query of the tile sees
        row = number * _pitch(dim)
        values = keys + row * PART
        score(q, q_stride, keys, dim, n, seen, scale, limit, scratch)
        top, total = weigh(scratch, n)
        put(result, stride, top)
        put(result + 64, stride, total)
        c = 0
        while c + rows <= vectors:
            mix_rows(values + wide * c, row, jump, scratch, n, seen, limit, result + 128 + 64 * c, stride)
            c += rows
        while c < vectors:
            mix_one(values + wide * c, row, jump, scratch, n, seen, limit, result + 128 + 64 * c, stride)
            c += 1

    return part


def _all_parts(kv, count):
    """Tiles of `count` tokens against all keys. Each part meets all of them while it is in the processor's cache."""
    part, fresh_at = _tile(kv, count, 1), (4 * PART + 64) * count
    put, get = simd.tile_store(count), simd.tile_load(count)

    @njit(forceinline=True)
    def add(running, fresh, stride):
        """Merge a part's result into what is there."""
        both, left, right = _shares(get(running, stride), get(fresh, stride))
        put(running, stride, both)
        for c in range(64, stride, 64):
            put(running + c, stride, get(running + c, stride) * left + get(fresh + c, stride) * right)

    @njit(forceinline=True)
    def finish(running, stride, out, out_stride, dim, scratch):
        """Divide by the sums and write a tile's rows."""
        sums = simd.all_add(get(running + 64, stride))
        for c in range(dim >> 4):
            put(out + 64 * c, out_stride, get(running + 128 + 64 * c, stride) / sums)
        if dim & 15:
            put(scratch, 64, get(running + 128 + 64 * (dim >> 4), stride) / sums)
            for t in range(count):
                _write_rest(scratch + 64 * t, out + t * out_stride, dim)

    @njit(forceinline=True)
    def whole(q, q_tile, q_stride, keys, part_stride, out, out_tile, out_stride, dim, tiles, visible, scale, scratch):
        """`tiles` tiles, q_tile bytes apart, of `count` keys more each; the first query of all sees `visible` keys."""
        stride = 64 * (2 + (_pitch(dim) >> 4))
        fresh = scratch + fresh_at
        running = fresh + count * stride
        for first in range(0, visible + tiles * count - 1, PART):
            here = keys + first // PART * part_stride
            for i in range(tiles):
                sees, state = visible + i * count, running + i * count * stride
                if first < sees + count - 1:
                    part(q + i * q_tile, q_stride, here, 0, dim, first, sees, scale, scratch, fresh if first else state)
                    if first:
                        add(state, fresh, stride)
        for i in range(tiles):
            finish(running + i * count * stride, stride, out + i * out_tile, out_stride, dim, scratch)

    return whole


def _attend(kv, group):
    number = 2 if kv == "f16" else 4
    tokens, part = _all_parts(kv, QUERIES), _tile(kv, group, 0)

    def kernel(args, thread, n_threads):
        heads, kv_heads = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * KV_HEADS)
        dim, part_stride = simd.get_i64(args + 8 * DIM), simd.get_i64(args + 8 * PART_STRIDE)
        q_stride, out_stride = simd.get_i64(args + 8 * Q_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        scale, q_base, out_base = simd.get_f32(args + 8 * SCALE), simd.get_i64(args), simd.get_i64(args + 8 * OUT)
        registers = simd.get_i64(args + 8 * REGISTERS)
        n, position = simd.get_i64(registers), simd.get_i64(registers + 8)
        scratch = simd.get_i64(args + 8 * SCRATCH) + thread * simd.get_i64(args + 8 * SCRATCH_BYTES)
        cache, head_bytes = simd.get_i64(args + 8 * CACHE), 2 * number * PART * _pitch(dim)
        shared, groups = heads // kv_heads, heads // group
        tiles = n // QUERIES
        item, end = tiles * heads * thread // n_threads, tiles * heads * (thread + 1) // n_threads
        while item < end:  # a head's tiles together: they meet the same keys
            head, t = item // tiles, item % tiles
            some = min(tiles - t, end - item)
            q, out = q_base + t * QUERIES * q_stride + 4 * dim * head, out_base + t * QUERIES * out_stride + 4 * dim * head
            keys, visible = cache + head // shared * head_bytes, position + t * QUERIES + 1
            q_tile, out_tile = QUERIES * q_stride, QUERIES * out_stride
            tokens(q, q_tile, q_stride, keys, part_stride, out, out_tile, out_stride, dim, some, visible, scale, scratch)
            item += some
        # The tokens that fill no tile, in decode the only one: their parts are shared out, and merged by the next kernel.
        parts, result_bytes = (position + n - 1 + PART) // PART, 64 * group * (2 + (_pitch(dim) >> 4))
        items = (n - tiles * QUERIES) * groups * parts
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            i, head, t = item % parts, item // parts % groups * group, tiles * QUERIES + item // (parts * groups)
            visible = position + t + 1
            if i * PART < visible:
                q, keys = q_base + t * q_stride + 4 * dim * head, cache + i * part_stride + head // shared * head_bytes
                result = simd.get_i64(args + 8 * PARTS) + result_bytes * item
                part(q, 4 * dim, keys, part_stride - head_bytes, dim, i * PART, visible, scale, scratch, result)

    return kernel


def _merge_parts(group):
    """The parts of the tokens that fill no tile, merged in order."""

    def kernel(args, thread, n_threads):
        heads, dim = simd.get_i64(args + 8 * HEADS), simd.get_i64(args + 8 * DIM)
        registers = simd.get_i64(args + 8 * REGISTERS)
        n, position = simd.get_i64(registers), simd.get_i64(registers + 8)
        rest, stored, vectors = n % QUERIES, (position + n - 1 + PART) // PART, 2 + (_pitch(dim) >> 4)
        scratch = simd.local_vector()
        for item in range(rest * heads * thread // n_threads, rest * heads * (thread + 1) // n_threads):
            head, t = item % heads, n - rest + item // heads
            parts, apart = (position + t + PART) // PART, 64 * vectors * group
            at = simd.get_i64(args + 8 * PARTS) + apart * (item // group * stored) + 64 * vectors * (head % group)
            out = simd.get_i64(args + 8 * OUT) + t * simd.get_i64(args + 8 * OUT_STRIDE) + 4 * dim * head
            for c in range(2, vectors):
                top, total, y = simd.load_f32x16(at), simd.load_f32x16(at + 64), simd.load_f32x16(at + 64 * c)
                for i in range(1, parts):
                    other = at + apart * i
                    top, left, right = _shares(top, simd.load_f32x16(other))
                    total = total * left + simd.load_f32x16(other + 64) * right
                    y = y * left + simd.load_f32x16(other + 64 * c) * right
                if 16 * (c - 1) <= dim:
                    simd.store(out + 64 * (c - 2), y / simd.all_add(total))
                else:
                    simd.store(scratch, y / simd.all_add(total))
                    _write_rest(scratch, out, dim)

    return kernel


def build(part, kv="f16", interleaved=False, group=1):
    """The kernel of one part of attention.

    part: "append" rotates q and k in place and writes k and v into the cache; "attend" is softmax(scale q k^T) v, causal,
    and leaves parts of tokens that fill no tile of QUERIES; "merge" makes them one. group: query heads taken together there;
    a divisor of those that share a kv head.
    """
    if part == "append":
        return _append(interleaved, kv)
    return _merge_parts(group) if part == "merge" else _attend(kv, group)
