"""exp, expm1, tanh and erf on sixteen lanes of float32 or float64, within 2 ulp: what kernels need in the middle of their work.

Where a whole block is to be mapped, kernels call NumPy's loops instead (see loops.py), whose bits the composites have. Every
function is a factory by element type, made once. NaN stays NaN, infinities and signed zeros follow libm.
"""

from functools import lru_cache

import numpy as np
from numba import njit

from . import coefficients as table
from .simd import lanes
from .simd.arithmetic import absolute, fma, rint

_EXPONENT = {"f64": (52, 1023), "f32": (23, 127)}  # bits of the mantissa, bias


def _single(elem, value):
    """A constant as the element type rounds it (llvmlite wants a double that is exact in float)."""
    return float(np.float32(value)) if elem == "f32" else value


def _constant(elem, value):
    return lanes.constant(elem, _single(elem, value))


def _polynomial(elem, coefs, fused=True):
    return lanes.polynomial(elem, tuple(_single(elem, c) for c in coefs), fused)


@lru_cache
def _power_of_two(elem):
    """2**n for an integer-valued n of normal range."""
    (to_int, floats), (shift, bias) = lanes.integer_lanes(elem), _EXPONENT[elem]
    offset = lanes.constant("i64" if elem == "f64" else "i32", bias)

    @njit(forceinline=True)
    def power(n):
        return floats((to_int(n) + offset()) << shift)

    return power


@lru_cache
def _reduced_exp(elem):
    """x -> (n, e**r - 1) with x = n ln 2 + r, |r| <= ln(2)/2."""
    log2e, high, low = (_constant(elem, c) for c in (table.LOG2_E, -table.LN2[elem][0], -table.LN2[elem][1]))
    q = _polynomial(elem, table.EXP[elem])

    @njit(forceinline=True)
    def reduced(x):
        n = rint(x * log2e())
        r = fma(n, low(), fma(n, high(), x))
        return n, fma(r * r, q(r), r)

    return reduced


@lru_cache
def exp(elem):
    """e**x; results below the smallest normal number are exact subnormals or 0."""
    reduced, power, less = _reduced_exp(elem), _power_of_two(elem), lanes.comparison("lt")
    bounds = (-746.0, 710.0) if elem == "f64" else (-104.0, 89.0)
    lowest, highest, half, one = (_constant(elem, c) for c in (*bounds, 0.5, 1.0))

    @njit(forceinline=True)
    def function(x):
        x = lanes.select(less(x, lowest()), lowest(), x)
        x = lanes.select(less(highest(), x), highest(), x)
        n, t = reduced(x)
        # In two steps: 2**n itself may not be a normal number.
        first = rint(n * half())
        return (one() + t) * power(first) * power(n - first)

    return function


@lru_cache
def expm1(elem):
    """e**x - 1, accurate near 0."""
    reduced, power, less = _reduced_exp(elem), _power_of_two(elem), lanes.comparison("lt")
    bounds = (-60.0, 710.0) if elem == "f64" else (-30.0, 89.0)
    lowest, highest, half, one, tiny = (_constant(elem, c) for c in (*bounds, 0.5, 1.0, 1e-20))

    @njit(forceinline=True)
    def function(value):
        x = lanes.select(less(value, lowest()), lowest(), value)
        x = lanes.select(less(highest(), x), highest(), x)
        n, t = reduced(x)
        scale = power(n - one())
        result = fma(scale, t, scale - half())
        # x + x doubles exactly; below `tiny` the value itself, which keeps the sign of zero.
        return lanes.select(less(absolute(value), tiny()), value, result + result)

    return function


@lru_cache
def tanh(elem):
    """Hyperbolic tangent."""
    grow, less = expm1(elem), lanes.comparison("lt")
    two, zero, limit = (_constant(elem, c) for c in (2.0, 0.0, 40.0))

    @njit(forceinline=True)
    def function(x):
        a = absolute(x)
        t = grow(lanes.select(less(limit(), a + a), limit(), a + a))
        y = t / (t + two())
        return lanes.select(less(x, zero()), zero() - y, lanes.select(less(zero(), x), y, x + x * zero()))

    return function


@lru_cache
def erf_double():
    """erf in float64 without fused steps: the same operations, in the same order, as faces/special.py."""
    near = lanes.polynomial("f64", table.ERF, fused=False)
    far, q = lanes.polynomial("f64", table.ERF_TAIL, fused=False), lanes.polynomial("f64", table.EXP["f64"], fused=False)
    power, less = _power_of_two("f64"), lanes.comparison("lt")
    split, limit, three, one, zero = (_constant("f64", c) for c in (table.ERF_SPLIT, table.ERF_ONE, 3.0, 1.0, 0.0))
    log2e, high, low = (_constant("f64", c) for c in (table.LOG2_E, *table.LN2["f64"]))

    @njit(forceinline=True)
    def function(x):
        size = absolute(x)
        inner = x + x * near(x * x)
        if not lanes.any_lane(less(split(), size)):
            return inner
        a = lanes.select(less(limit(), size), limit(), size)
        y = zero() - a * a
        n = rint(y * log2e())
        r = (y - n * high()) - n * low()
        e = (one() + (r + (r * r) * q(r))) * power(n)
        tail = one() - e * far((a - three()) / (a + three()))
        outer = lanes.select(less(x, zero()), zero() - tail, tail)
        return lanes.select(less(split(), size), outer, inner)

    return function


@lru_cache
def erf_single():
    """Error function of float32 in float32: within 1.5 ulp, where NumPy's, through float64, is exact and five times slower."""
    near, far = _polynomial("f32", table.ERF_SINGLE), _polynomial("f32", table.ERFC_SINGLE)
    reduced, power, less = _reduced_exp("f32"), _power_of_two("f32"), lanes.comparison("lt")
    split, limit, one, zero = (_constant("f32", c) for c in (table.ERF_SPLIT, table.ERF_SINGLE_ONE, 1.0, 0.0))

    @njit(forceinline=True)
    def function(x):
        size = absolute(x)
        n, t = reduced(far(lanes.select(less(limit(), size), limit(), size)))
        tail = one() - (one() + t) * power(n)
        outer = lanes.select(less(x, zero()), zero() - tail, tail)
        return lanes.select(less(split(), size), outer, fma(x, near(x * x), x))

    return function
