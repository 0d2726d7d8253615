"""Matrix products with packed weights: y[T, N] = x[T, K] @ W[N, K].T (+ bias) (+ residual).

Sixteen rows of W stand side by side, one a lane, so that no horizontal sum is ever needed and each output is reduced in
one order, whatever the number of tokens or threads. A group of sixteen rows is a run of units of 32 columns:

    plain formats      unit = scales f16[16], (minima f16[16]), codes
    super-block ones   every 8 units: d f16[16], (dmin f16[16]); unit = scale bytes [32 / sub][16], (minimum bytes), codes

`codes` are bit planes (8, 4, 2 or 1 bits) in the order of `planes`. A byte of the 4-bit plane holds columns c and c + 4
of eight; a byte of the 2-bit plane columns c, c + 4, c + 8, c + 12 of sixteen; one of the 1-bit plane eight columns 4 apart.
A weight is scale * (code - zero) or scale * code - minimum (+ minimum where `negated`).

Activations are rows written by `quantize`: K int8 high parts, K int8 low parts, then per 32 columns scale f32, sum i32,
scale*sum f32, and per 16 columns sum i32 and scale*sum f32. With width 8 the value is scale * high, with width 16
scale * (256*high + low). Width 32 reads float32 rows and dequantises in registers.
"""

from numba import float32, njit

from . import simd

ROWS = 16
AHEAD = 8192  # bytes that decode asks for in advance: more than a hardware prefetcher does, and across page ends

# Argument words
WEIGHTS, GROUPS, UNITS, GROUP_BYTES, X, X_STRIDE, OUT, OUT_STRIDE, REGISTERS, LAST_ONLY, BIAS, RESIDUAL, RESIDUAL_STRIDE, NEXT = range(14)


def _code_reader(planes, rows=1):
    """`(codes, step, chunk) -> 64 unsigned bytes`: the codes of columns 4*chunk .. 4*chunk + 3 of a unit, for sixteen rows.

    With `rows` > 1 for as many groups of sixteen, `step` bytes apart.
    """
    low = 0x0F0F0F0F if planes[0] == 4 else 0x03030303
    first = {8: 512, 4: 256, 2: 128}[planes[0]]
    second = planes[1] if len(planes) > 1 else 0
    main, high_shift = planes[0], planes[0]
    load, load_bytes = simd.row_loader("i32", 16, rows), simd.row_loader("i8", 64, rows)

    @njit(forceinline=True)
    def read(codes, step, chunk):
        if main == 8:
            return load_bytes(codes + 64 * chunk, step)
        if main == 4:
            words = load(codes + 64 * (chunk >> 1), step) >> (4 * (chunk & 1))
        else:
            words = load(codes + 64 * (chunk >> 2), step) >> (2 * (chunk & 3))
        words = words & simd.splat_i32(low)
        if second == 1:
            bits = load(codes + first, step) >> chunk
            words = words | ((bits & simd.splat_i32(0x01010101)) << high_shift)
        if second == 2:
            pairs = load(codes + first + 64 * (chunk >> 2), step) >> (2 * (chunk & 3))
            words = words | ((pairs & simd.splat_i32(0x03030303)) << high_shift)
        return simd.as_bytes(words)

    return read


def _asker(rows, unit_bytes):
    """`(w, step, left, gap, gap_step)`: ask for what will be read AHEAD bytes after the unit at w, in `rows` groups side by side.

    left: units of the groups that are still to be read. gap: from their end to what is read next, whose groups are `gap_step` apart.
    """
    ahead, lines = AHEAD // rows, (unit_bytes + 63) // 64
    units = -(-ahead // unit_bytes)

    @njit(forceinline=True)
    def ask(w, step, left, gap, gap_step):
        at, apart = w + ahead, step
        if left <= units:
            at, apart = at + gap, gap_step
        for row in range(rows):
            for line in range(lines):
                simd.prefetch(at + row * apart + 64 * line)

    return ask


def code_bytes(planes):
    """Bytes that the codes of a unit take for sixteen rows."""
    return sum(planes) * 64


class _Shape:
    """Offsets that follow from a layout."""

    def __init__(self, planes, sub, minimum, scales):
        self.super = scales != "f16"
        self.subs = 32 // sub
        if not self.super:
            self.head, self.scale_bytes = 0, 32 + (32 if minimum else 0)
        else:
            self.head = 32 + (32 if minimum else 0)
            self.scale_bytes = 16 * self.subs * (2 if minimum and scales != "nibbles" else 1)
        self.unit = self.scale_bytes + code_bytes(planes)


def _scale_reader(shape, minimum, negated, scales, rows=1):
    """`(head, unit, step, sub) -> scale, minimum`: the float32 factors of sub-block `sub`, for sixteen rows (or groups)."""
    subs = shape.subs
    halves, load_bytes = simd.row_loader("f16", 16, rows), simd.row_loader("i8", 16, rows)

    @njit(forceinline=True)
    def plain(head, unit, step, sub):
        scale = simd.widen_f32(halves(unit, step))
        if minimum:
            low = simd.widen_f32(halves(unit + 32, step))
            return scale, (simd.splat_f32(float32(0.0)) - low if negated else low)
        return scale, scale

    @njit(forceinline=True)
    def grouped(head, unit, step, sub):
        d = simd.widen_f32(halves(head, step))
        raw = load_bytes(unit + 16 * sub, step)
        if scales == "signed":
            return d * simd.to_f32(simd.widen_i8(raw)), d
        dmin = simd.widen_f32(halves(head + 32, step))
        if scales == "nibbles":
            both = simd.widen_u8(raw)
            return d * simd.to_f32(both & simd.splat_i32(15)), dmin * simd.to_f32(both >> 4)
        scale = d * simd.to_f32(simd.widen_u8(raw))
        return scale, dmin * simd.to_f32(simd.widen_u8(load_bytes(unit + 16 * (subs + sub), step)))

    return grouped if shape.super else plain


def _integer_tile(count, rows, width, planes, sub, zero, minimum, negated, scales):
    """The product of `rows` groups of sixteen, `step` bytes apart, with `count` tokens, in integers within a sub-block."""
    shape, codes_of = _Shape(planes, sub, minimum, scales), _code_reader(planes, rows)
    factors = _scale_reader(shape, minimum, negated, scales, rows)
    words, floats = simd.broadcast_loader("i32", count), simd.broadcast_loader("f32", count)
    none, zero_i32 = simd.zeros("f32", count, rows), simd.zeros("i32", count, rows)
    subs, scale_bytes, unit_bytes, head_bytes = shape.subs, shape.scale_bytes, shape.unit, shape.head
    grouped, chunks = shape.super, 8 // shape.subs
    ask = _asker(rows, unit_bytes)
    start, add, finish, run, code_zero = simd.dot(sum(planes), width)
    run, zero = min(run, chunks), zero - code_zero
    runs = chunks // run

    @njit(forceinline=True)
    def tile(weights, step, units, x, stride, padded, gap, gap_step):
        total = none()
        low_part, scales_at = padded, 2 * padded
        sums_at = scales_at + (padded >> 3) if subs == 1 else scales_at + 3 * (padded >> 3)
        products_at = sums_at + ((padded >> 3) if subs == 1 else (padded >> 2))
        w, head = weights, weights
        for unit in range(units):
            if grouped and (unit & 7) == 0:
                head = w
                w += head_bytes
            a = x + 32 * unit
            codes = w + scale_bytes
            if count == 1:
                ask(w, step, units - unit, gap, gap_step)
            d = floats(x + scales_at + 4 * unit, stride)
            for s in range(subs):
                acc = zero_i32()
                if zero:
                    acc = acc - words(x + sums_at + 4 * (subs * unit + s), stride) * simd.splat_i32(zero)
                for r in range(runs):
                    sums = start(acc)
                    for c in range(run):
                        chunk = chunks * s + run * r + c
                        high = words(a + 4 * chunk, stride)
                        low = words(a + low_part + 4 * chunk, stride) if width == 16 else high
                        sums = add(sums, codes_of(codes, step, chunk), high, low)
                    acc = finish(sums, acc)
                scale, low = factors(head, w, step, s)
                total = simd.fma(simd.to_f32(acc) * scale, d, total)
                if minimum:
                    total = total - low * floats(x + products_at + 4 * (subs * unit + s), stride)
            w += unit_bytes
        return total

    return tile


def _column_reader(planes, sub, zero, minimum, negated, scales):
    """`(weights, unit, column) -> f32[16]`: one column of a unit, dequantised, for sixteen rows; for single rows."""
    shape, codes_of = _Shape(planes, sub, minimum, scales), _code_reader(planes)
    factors = _scale_reader(shape, minimum, negated, scales)
    unit_bytes, head_bytes, scale_bytes, grouped = shape.unit, shape.head, shape.scale_bytes, shape.super

    @njit(forceinline=True)
    def read(weights, unit, column):
        head = weights + (unit >> 3) * (8 * unit_bytes + head_bytes) if grouped else weights + unit * unit_bytes
        w = head + head_bytes + (unit & 7) * unit_bytes if grouped else head
        scale, low = factors(head, w, 0, column // sub)
        u = simd.as_words(codes_of(w + scale_bytes, 0, column >> 2))
        code = (u >> (8 * (column & 3))) & simd.splat_i32(255)
        value = simd.to_f32(code - simd.splat_i32(zero)) * scale
        if minimum:
            value = value - low
        return value

    return read


def _dense_reader(dense):
    """The same for float weights."""

    @njit(forceinline=True)
    def read(weights, unit, column):
        at = 32 * unit + column
        if dense == "f32":
            return simd.load_f32x16(weights + 64 * at)
        if dense == "f16":
            return simd.widen_f32(simd.load_f16x16(weights + 32 * at))
        return simd.bits_f32(simd.widen_u8(simd.load_i16x16(weights + 32 * at)) << 16)

    return read


def _build_rows(reader):
    """out[t] = row ids[t] of the matrix, dequantised (an embedding). X is the address of the ids (int64)."""

    def kernel(args, thread, n_threads):
        units, group_bytes = simd.get_i64(args + 8 * UNITS), simd.get_i64(args + 8 * GROUP_BYTES)
        n_tokens = simd.get_i64(simd.get_i64(args + 8 * REGISTERS))
        scratch = simd.local_vector()
        for t in range(n_tokens * thread // n_threads, n_tokens * (thread + 1) // n_threads):
            row = simd.get_i64(simd.get_i64(args + 8 * X) + 8 * t)
            weights = simd.get_i64(args + 8 * WEIGHTS) + (row >> 4) * group_bytes
            out = simd.get_i64(args + 8 * OUT) + t * simd.get_i64(args + 8 * OUT_STRIDE)
            for unit in range(units):
                for column in range(32):
                    simd.store(scratch, reader(weights, unit, column))
                    simd.put_f32(out + 128 * unit + 4 * column, simd.get_f32(scratch + 4 * (row & 15)))

    return kernel


def _float_tile(count, rows, planes, sub, zero, minimum, negated, scales):
    """The same on float32 activations: weights become floats in registers, four columns at a time."""
    shape, codes_of = _Shape(planes, sub, minimum, scales), _code_reader(planes, rows)
    factors = _scale_reader(shape, minimum, negated, scales, rows)
    floats, none = simd.broadcast_loader("f32", count), simd.zeros("f32", count, rows)
    subs, scale_bytes, unit_bytes, head_bytes = shape.subs, shape.scale_bytes, shape.unit, shape.head
    grouped, chunks = shape.super, 8 // shape.subs

    @njit(forceinline=True)
    def tile(weights, step, units, x, stride, padded, gap, gap_step):
        total = none()
        w, head = weights, weights
        for unit in range(units):
            if grouped and (unit & 7) == 0:
                head = w
                w += head_bytes
            a = x + 128 * unit
            for s in range(subs):
                scale, low = factors(head, w, step, s)
                for c in range(chunks):
                    chunk = chunks * s + c
                    u = simd.as_words(codes_of(w + scale_bytes, step, chunk))
                    for b in range(4):
                        code = (u >> (8 * b)) & simd.splat_i32(255)
                        value = simd.to_f32(code - simd.splat_i32(zero)) * scale
                        if minimum:
                            value = value - low
                        total = simd.fma(value, floats(a + 16 * chunk + 4 * b, stride), total)
            w += unit_bytes
        return total

    return tile


def _dense_tile(count, rows, dense):
    """Float weights: group of rows = K columns of sixteen f32, f16 or bf16; `units` counts columns by 32."""
    floats, none = simd.broadcast_loader("f32", count), simd.zeros("f32", count, rows)
    column = 64 if dense == "f32" else 32
    load, ask = simd.row_loader({"f32": "f32", "f16": "f16", "bf16": "i16"}[dense], 16, rows), _asker(rows, 4 * column)

    @njit(forceinline=True)
    def value(w, step):
        if dense == "f32":
            return load(w, step)
        if dense == "f16":
            return simd.widen_f32(load(w, step))
        return simd.bits_f32(simd.widen_u8(load(w, step)) << 16)

    @njit(forceinline=True)
    def tile(weights, step, units, x, stride, padded, gap, gap_step):
        total = none()
        w, a = weights, x
        for i in range(32 * units):
            if count == 1 and i & 3 == 0:
                ask(w, step, 8 * units - (i >> 2), gap, gap_step)
            total = simd.fma(value(w, step), floats(a, stride), total)
            w += column
            a += 4
        return total

    return tile


def build(tile=(1, 4), width=8, planes=(), sub=32, zero=0, minimum=False, negated=False, scales="f16", dense="", rows=False):
    """The kernel for one layout.

    tile: (groups of rows, tokens) at a time in prefill. width: 8, 16 or 32. planes, sub, zero, minimum, negated, scales: the
    layout (see above; scales "f16", "bytes", "nibbles" or "signed"); dense: "f32", "f16" or "bf16" instead of all these.
    rows: the kernel that looks rows up instead of multiplying.
    """

    def of(together, count):
        if dense:
            return _dense_tile(count, together, dense)
        layout = (tuple(planes), sub, zero, minimum, negated, scales)
        return _float_tile(count, together, *layout) if width == 32 else _integer_tile(count, together, width, *layout)

    if rows:
        return _build_rows(_dense_reader(dense) if dense else _column_reader(tuple(planes), sub, zero, minimum, negated, scales))
    together, tokens = tile
    write_many, write_few, write_one = (_block_writer(of(g, t), g, t) for g, t in ((together, tokens), (together, 1), (1, 1)))

    @njit(forceinline=True)
    def share(args, thread, n_threads):
        """A thread's first group, and the one behind its last."""
        groups = simd.get_i64(args + 8 * GROUPS)
        blocks = (groups + together - 1) // together
        return blocks * thread // n_threads * together, min(groups, blocks * (thread + 1) // n_threads * together)

    def kernel(args, thread, n_threads):
        n_tokens = simd.get_i64(simd.get_i64(args + 8 * REGISTERS))
        first = 0
        if simd.get_i64(args + 8 * LAST_ONLY) and not simd.get_i64(simd.get_i64(args + 8 * REGISTERS) + 16):
            first = n_tokens - 1
        n = n_tokens - first
        group, end = share(args, thread, n_threads)
        following = simd.get_i64(args + 8 * NEXT)
        if following == 0:
            following = args
        next_step = simd.get_i64(following + 8 * GROUP_BYTES)
        next_weights = simd.get_i64(following + 8 * WEIGHTS) + share(following, thread, n_threads)[0] * next_step
        step = simd.get_i64(args + 8 * GROUP_BYTES)
        here = simd.get_i64(args + 8 * WEIGHTS) + step * group
        while group < end:
            t = 0
            gap, gap_step = (together - 1) * step, step
            if group + together >= end:
                gap, gap_step = next_weights - here - step, next_step
            if group + together <= end:
                while t + tokens <= n:
                    write_many(args, group, first + t, t, gap, gap_step)
                    t += tokens
                while t < n:
                    write_few(args, group, first + t, t, gap, gap_step)
                    t += 1
            for g in range(group, min(group + together, end)):
                for u in range(t, n):
                    write_one(args, g, first + u, u, 0, 0)
            group += together
            here += together * step

    return kernel


def _block_writer(product, together, tokens):
    """`(args, group, t, to, gap, gap_step)`: the outputs of `tokens` tokens from token t on, written as rows `to` and on."""
    store, load, bias_loader = simd.tile_store(tokens, together), simd.tile_load(tokens, together), simd.row_loader("f32", 16, together)

    @njit(forceinline=True)
    def write(args, group, t, to, gap, gap_step):
        stride, out_stride = simd.get_i64(args + 8 * X_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        units, step = simd.get_i64(args + 8 * UNITS), simd.get_i64(args + 8 * GROUP_BYTES)
        weights = simd.get_i64(args + 8 * WEIGHTS) + group * step
        y = product(weights, step, units, simd.get_i64(args + 8 * X) + t * stride, stride, 32 * units, gap, gap_step)
        bias, residual = simd.get_i64(args + 8 * BIAS), simd.get_i64(args + 8 * RESIDUAL)
        if bias:
            y = y + bias_loader(bias + 64 * group, 64)
        if residual:
            residual_stride = simd.get_i64(args + 8 * RESIDUAL_STRIDE)
            y = y + load(residual + t * residual_stride + 64 * group, residual_stride)
        store(simd.get_i64(args + 8 * OUT) + to * out_stride + 64 * group, out_stride, y)

    return write
