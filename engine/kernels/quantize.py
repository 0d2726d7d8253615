"""Activations to integers, alone or at the end of a norm or a gate: the row layout that matmul.py describes."""

from numba import float32, njit

from . import functions, simd

X, X_STRIDE, OUT, OUT_STRIDE, UNITS, REGISTERS, SECOND, SECOND_STRIDE, QUANTISED, QUANTISED_STRIDE, EPS, WIDTH = range(12)


def unit_writer(width):
    """`(v0, v1, out, unit, units)`: quantise 32 floats as unit `unit` of a row of `units`; see matmul.py for its parts."""
    top = float32(127.0 if width == 8 else 32512.0)  # 256*127: the high part stays within a signed byte

    @njit(forceinline=True)
    def write(v0, v1, out, unit, units):
        padded, eighth = 32 * units, 4 * units
        scales = out + 2 * padded
        peak = simd.reduce_max(simd.maximum(simd.absolute(v0), simd.absolute(v1)))
        inverse = float32(0.0)
        if peak > 0:
            inverse = top / peak
        q0 = simd.round_i32(v0 * simd.splat_f32(inverse))
        q1 = simd.round_i32(v1 * simd.splat_f32(inverse))
        high0, high1 = q0, q1
        if width == 16:
            high0, high1 = (q0 + simd.splat_i32(128)) >> 8, (q1 + simd.splat_i32(128)) >> 8
            simd.store(out + padded + 32 * unit, simd.narrow_i8(q0))
            simd.store(out + padded + 32 * unit + 16, simd.narrow_i8(q1))
        simd.store(out + 32 * unit, simd.narrow_i8(high0))
        simd.store(out + 32 * unit + 16, simd.narrow_i8(high1))
        s0, s1 = simd.reduce_add(q0), simd.reduce_add(q1)
        scale = peak / top
        simd.put_f32(scales + 4 * unit, scale)
        simd.put_i32(scales + eighth + 4 * unit, s0 + s1)
        simd.put_f32(scales + 2 * eighth + 4 * unit, scale * float32(s0 + s1))
        simd.put_i32(scales + 3 * eighth + 8 * unit, s0)
        simd.put_i32(scales + 3 * eighth + 8 * unit + 4, s1)
        simd.put_f32(scales + 5 * eighth + 8 * unit, scale * float32(s0))
        simd.put_f32(scales + 5 * eighth + 8 * unit + 4, scale * float32(s1))

    return write


def _gate(kind):
    """`(gate, up) -> activation(gate) * up`, or the plain value when there is nothing to gate."""

    @njit(forceinline=True)
    def silu(gate, up):
        return functions.silu(gate) * up

    @njit(forceinline=True)
    def plain(gate, up):
        return gate

    return {"silu": silu, "": plain}[kind]


def _elementwise(width, gate):
    """out = gate(x, second), row by row in units of 32, as floats and quantised when `width` asks for it."""
    write, apply, gated = unit_writer(width), _gate(gate), gate != ""

    def kernel(args, thread, n_threads):
        x, out, second = simd.get_i64(args), simd.get_i64(args + 8 * OUT), simd.get_i64(args + 8 * SECOND)
        x_stride, out_stride = simd.get_i64(args + 8 * X_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        second_stride, quantised = simd.get_i64(args + 8 * SECOND_STRIDE), simd.get_i64(args + 8 * QUANTISED)
        quantised_stride = simd.get_i64(args + 8 * QUANTISED_STRIDE)
        units, n = simd.get_i64(args + 8 * UNITS), simd.get_i64(simd.get_i64(args + 8 * REGISTERS))
        items = n * units
        for item in range(items * thread // n_threads, items * (thread + 1) // n_threads):
            t = item // units
            unit = item - t * units
            at = x + t * x_stride + 128 * unit
            v0, v1 = simd.load_f32x16(at), simd.load_f32x16(at + 64)
            if gated:
                other = second + t * second_stride + 128 * unit
                v0, v1 = apply(v0, simd.load_f32x16(other)), apply(v1, simd.load_f32x16(other + 64))
                simd.store(out + t * out_stride + 128 * unit, v0)
                simd.store(out + t * out_stride + 128 * unit + 64, v1)
            if width < 32:
                write(v0, v1, quantised + t * quantised_stride, unit, units)

    return kernel


def _rms_norm(width):
    """out = x * rsqrt(mean(x*x) + eps) * second (the weight), as floats and quantised when `width` asks for it.

    EPS holds the bits of a float32, WIDTH the number of columns; columns up to 32*UNITS are zero.
    """
    write = unit_writer(width)

    def kernel(args, thread, n_threads):
        x, out, weight = simd.get_i64(args), simd.get_i64(args + 8 * OUT), simd.get_i64(args + 8 * SECOND)
        x_stride, out_stride = simd.get_i64(args + 8 * X_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        quantised, quantised_stride = simd.get_i64(args + 8 * QUANTISED), simd.get_i64(args + 8 * QUANTISED_STRIDE)
        units, n = simd.get_i64(args + 8 * UNITS), simd.get_i64(simd.get_i64(args + 8 * REGISTERS))
        eps, columns = simd.get_f32(args + 8 * EPS), simd.get_i64(args + 8 * WIDTH)
        for t in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            row, to = x + t * x_stride, out + t * out_stride
            total = simd.splat_f32(float32(0.0))
            for i in range(2 * units):
                v = simd.load_f32x16(row + 64 * i)
                total = simd.fma(v, v, total)
            mean = simd.all_add(total) / simd.splat_f32(float32(columns))
            factor = simd.splat_f32(float32(1.0)) / simd.sqrt(mean + simd.splat_f32(eps))
            for unit in range(units):
                at = 128 * unit
                v0 = simd.load_f32x16(row + at) * factor * simd.load_f32x16(weight + at)
                v1 = simd.load_f32x16(row + at + 64) * factor * simd.load_f32x16(weight + at + 64)
                simd.store(to + at, v0)
                simd.store(to + at + 64, v1)
                if width < 32:
                    write(v0, v1, quantised + t * quantised_stride, unit, units)

    return kernel


def build(width=8, norm=False, gate=""):
    """A kernel that writes rows of activations: plain, gated (`gate`) or normalised (`norm`), quantised to `width` bits."""
    return _rms_norm(width) if norm else _elementwise(width, gate)
