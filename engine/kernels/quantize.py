"""Activations to integers: the row layout that matmul.py describes."""

from numba import float32, njit

from . import simd

X, X_STRIDE, OUT, OUT_STRIDE, UNITS, REGISTERS = range(6)


def row_writer(width):
    """`(x, out, units)`: write one row of 32*units floats as a quantised row; see matmul.py for its parts."""
    top = 127.0 if width == 8 else 32512.0  # 256*127: the high part stays within a signed byte

    @njit(forceinline=True)
    def write(x, out, units):
        padded = 32 * units
        low_part, scales = out + padded, out + 2 * padded
        eighth = padded >> 3
        sums, products = scales + eighth, scales + 2 * eighth
        half_sums, half_products = scales + 3 * eighth, scales + 5 * eighth
        for unit in range(units):
            v0, v1 = simd.load_f32x16(x + 128 * unit), simd.load_f32x16(x + 128 * unit + 64)
            peak = simd.reduce_max(simd.maximum(simd.absolute(v0), simd.absolute(v1)))
            inverse = simd.get_f32(x) * 0
            if peak > 0:
                inverse = float32(top) / peak
            q0 = simd.round_i32(v0 * simd.splat_f32(inverse))
            q1 = simd.round_i32(v1 * simd.splat_f32(inverse))
            if width == 8:
                high0, high1 = q0, q1
            else:
                high0, high1 = (q0 + simd.splat_i32(128)) >> 8, (q1 + simd.splat_i32(128)) >> 8
                simd.store(low_part + 32 * unit, simd.narrow_i8(q0))
                simd.store(low_part + 32 * unit + 16, simd.narrow_i8(q1))
            simd.store(out + 32 * unit, simd.narrow_i8(high0))
            simd.store(out + 32 * unit + 16, simd.narrow_i8(high1))
            s0, s1 = simd.reduce_add(q0), simd.reduce_add(q1)
            scale = peak / float32(top)
            simd.put_f32(scales + 4 * unit, scale)
            simd.put_i32(sums + 4 * unit, s0 + s1)
            simd.put_f32(products + 4 * unit, scale * float32(s0 + s1))
            simd.put_i32(half_sums + 8 * unit, s0)
            simd.put_i32(half_sums + 8 * unit + 4, s1)
            simd.put_f32(half_products + 8 * unit, scale * float32(s0))
            simd.put_f32(half_products + 8 * unit + 4, scale * float32(s1))

    return write


def build(width=8):
    """The kernel that quantises rows of activations to `width` bits; rows are shared among threads."""
    write = row_writer(width)

    def kernel(args, thread, n_threads):
        x, out = simd.get_i64(args + 8 * X), simd.get_i64(args + 8 * OUT)
        x_stride, out_stride = simd.get_i64(args + 8 * X_STRIDE), simd.get_i64(args + 8 * OUT_STRIDE)
        units, n = simd.get_i64(args + 8 * UNITS), simd.get_i64(simd.get_i64(args + 8 * REGISTERS))
        for t in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            write(x + t * x_stride, out + t * out_stride, units)

    return kernel
