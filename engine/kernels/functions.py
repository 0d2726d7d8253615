"""Transcendental functions on SIMD values, for use inside kernels."""

from numba import float32, njit

from . import simd

_LOG2E, _LN2_HIGH, _LN2_LOW = float32(1.4426950408889634), float32(0.693359375), float32(-2.12194440e-4)
# Minimax polynomial of (exp(r) - 1 - r) / r^2 on |r| <= ln2/2 (the coefficients of Cephes' expf).
_P = tuple(float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))
_P0, _P1, _P2, _P3, _P4, _P5 = _P


# Added to a float, 1.5 * 2^23 rounds it to the nearest integer, which then stands in the lowest bits.
_ROUND = float32(12582912.0)


@njit(forceinline=True)
def exp_below(x):
    """e**x of float32 vectors for x <= 88.3, within 2 ulp; 0 below -87.3, NaN stays NaN."""
    shifted = simd.fma(x, simd.splat_f32(_LOG2E), simd.splat_f32(_ROUND))
    n = shifted - simd.splat_f32(_ROUND)
    r = simd.fma(n, simd.splat_f32(-_LN2_HIGH), x)
    r = simd.fma(n, simd.splat_f32(-_LN2_LOW), r)
    p = simd.fma(simd.splat_f32(_P0), r, simd.splat_f32(_P1))
    p = simd.fma(p, r, simd.splat_f32(_P2))
    p = simd.fma(p, r, simd.splat_f32(_P3))
    p = simd.fma(p, r, simd.splat_f32(_P4))
    p = simd.fma(p, r, simd.splat_f32(_P5))
    p = simd.fma(p, r * r, r) + simd.splat_f32(float32(1.0))
    power = simd.bits_f32((simd.bits_i32(shifted) << 23) + simd.splat_i32(127 << 23))
    return simd.select_below(x, simd.splat_f32(float32(-87.3)), simd.splat_f32(float32(0.0)), p * power)


@njit(forceinline=True)
def exp(x):
    """e**x of float32 vectors, within 2 ulp; 0 below -87.3, inf above 88.3, NaN stays NaN."""
    return exp_below(simd.minimum(x, simd.splat_f32(float32(89.0))))  # 2**128 overflows as it should


@njit(forceinline=True)
def silu(x):
    """x * sigmoid(x) of float32 vectors; -inf gives NaN as the composite does."""
    one = simd.splat_f32(float32(1.0))
    return x / (one + exp(simd.splat_f32(float32(0.0)) - x))
