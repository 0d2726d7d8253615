"""exp, log, tanh, sin, erf and their kin on sixteen lanes of float32 or float64, within 2 ulp.

Every function is a factory by element type, made once. The same function serves an op called alone and one fused into
a region, so fusing changes no bit. NaN stays NaN, infinities and signed zeros follow libm.
"""

from functools import lru_cache

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

from . import coefficients as table
from .simd import lanes
from .simd.arithmetic import absolute, fma, rint, sqrt
from .simd.values import Vec

_EXPONENT = {"f64": (52, 1023), "f32": (23, 127)}  # bits of the mantissa, bias


def _single(elem, value):
    """A constant as the element type rounds it (llvmlite wants a double that is exact in float)."""
    return float(np.float32(value)) if elem == "f32" else value


def _constant(elem, value):
    return lanes.constant(elem, _single(elem, value))


def _polynomial(elem, coefs, fused=True):
    return lanes.polynomial(elem, tuple(_single(elem, c) for c in coefs), fused)


@lru_cache
def _parts(elem):
    to_int, to_float, bits, floats = lanes.integer_lanes(elem)
    return to_int, to_float, bits, floats, *_EXPONENT[elem]


@lru_cache
def _power_of_two(elem):
    """2**n for an integer-valued n of normal range."""
    to_int, _, _, floats, shift, bias = _parts(elem)
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
def log(elem):
    """Natural logarithm: -inf at 0, NaN below, inf at inf."""
    _, to_float, bits, floats, shift, bias = _parts(elem)
    less, equal = lanes.comparison("lt"), lanes.comparison("eq")
    word = "i64" if elem == "f64" else "i32"
    smallest, up, down = (2.0**-1022, 2.0**54, 54.0) if elem == "f64" else (2.0**-126, 2.0**25, 25.0)
    one, two, half, zero, tiny, scale, shrink = (_constant(elem, c) for c in (1.0, 2.0, 0.5, 0.0, smallest, up, down))
    high, low, infinity, nan = (_constant(elem, c) for c in (*table.LN2[elem], float("inf"), float("nan")))
    # Counting bits from sqrt(1/2) on splits there instead of at a power of two.
    root = int(np.float64(np.sqrt(0.5)).view(np.int64)) if elem == "f64" else int(np.float32(np.sqrt(0.5)).view(np.int32))
    offset, start = lanes.constant(word, root), lanes.constant(word, root - (bias << shift))
    exponent_bias, mask = lanes.constant(word, bias), lanes.constant(word, (1 << shift) - 1)
    series = _polynomial(elem, table.LOG[elem])

    @njit(forceinline=True)
    def function(value):
        subnormal = less(value, tiny())
        x = lanes.select(subnormal, value * scale(), value)
        raw = bits(x) - start()
        k = to_float((raw >> shift) - exponent_bias()) - lanes.select(subnormal, shrink(), zero())
        m = floats((raw & mask()) + offset())
        f = m - one()
        s = f / (two() + f)
        z = s * s
        square = half() * f * f
        r = z * series(z)
        tail = fma(k, low(), s * (square + r))
        result = fma(k, high(), f - (square - tail))
        result = lanes.select(equal(value, infinity()), infinity(), result)
        result = lanes.select(less(value, zero()), nan(), result)
        result = lanes.select(equal(value, zero()), zero() - infinity(), result)
        return lanes.select(equal(value, value), result, value)

    return function


@lru_cache
def log1p(elem):
    """log(1 + x), accurate near 0."""
    plain, less, equal = log(elem), lanes.comparison("lt"), lanes.comparison("eq")
    one, infinity, tiny, zero = (_constant(elem, c) for c in (1.0, float("inf"), 1e-20, 0.0))

    @njit(forceinline=True)
    def function(x):
        u = one() + x
        # What the addition rounded away, to first order.
        lost = (x - (u - one())) / u
        result = plain(u) + lost
        result = lanes.select(equal(u, infinity()), u, result)
        result = lanes.select(equal(u, zero()), zero() - infinity(), result)
        return lanes.select(less(absolute(x), tiny()), x, result)

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
def _sine_and_cosine(elem):
    """x -> (quadrant, sin r, cos r) with x = quadrant pi/2 + r, |r| <= pi/4."""
    to_int = _parts(elem)[0]
    invert, one, half = (_constant(elem, c) for c in (table.TWO_OVER_PI, 1.0, 0.5))
    p0, p1, p2, p3 = (_constant(elem, -c) for c in table.HALF_PI[elem])
    sine, cosine = _polynomial(elem, table.SIN[elem]), _polynomial(elem, table.COS[elem])

    @njit(forceinline=True)
    def both(x):
        n = rint(x * invert())
        r = fma(n, p3(), fma(n, p2(), fma(n, p1(), fma(n, p0(), x))))
        z = r * r
        return to_int(n), fma(r * z, sine(z), r), fma(z * z, cosine(z), one() - half() * z)

    return both


def _circular(elem, name, turn):
    both, slow = _sine_and_cosine(elem), lanes.libm(name)
    less, equal = lanes.comparison("lt"), lanes.comparison("eq")
    limit, zero = _constant(elem, table.SIN_COS_LIMIT[elem]), _constant(elem, 0.0)
    word = "i64" if elem == "f64" else "i32"
    quarter, one, two = (lanes.constant(word, c) for c in (turn, 1, 2))
    is_odd = _integer_test()

    @njit(forceinline=True)
    def function(x):
        if lanes.any_lane(less(limit(), absolute(x))):  # rare; infinities come here too
            return slow(x)
        quadrant, s, c = both(x)
        quadrant = quadrant + quarter()
        y = lanes.select(is_odd(quadrant & one()), c, s)
        y = lanes.select(is_odd((quadrant & two()) >> 1), zero() - y, y)
        if turn == 0:
            y = lanes.select(equal(x, zero()), x, y)
        return y

    return function


def _integer_test():
    """Whether lanes hold 1 rather than 0."""

    @intrinsic
    def test(typingctx, value):
        def codegen(context, builder, sig, args):
            return builder.icmp_unsigned("!=", args[0], ir.Constant(args[0].type, None))

        return Vec("i1", value.lanes)(value), codegen

    return test


@lru_cache
def sin(elem):
    """Sine; libm's beyond the reach of the reduction."""
    return _circular(elem, "sin", 0)


@lru_cache
def cos(elem):
    """Cosine; libm's beyond the reach of the reduction."""
    return _circular(elem, "cos", 1)


@lru_cache
def _erf_double():
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
def erf(elem):
    """Error function; float32 through float64, so it is the rounded true value."""
    double = _erf_double()
    if elem == "f64":
        return double

    @njit(forceinline=True)
    def function(x):
        return lanes.narrow_f32(double(lanes.widen_f64(x)))

    return function


@lru_cache
def erf_single():
    """Error function of float32 in float32: within 1.5 ulp, where `erf` is exact and five times slower."""
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


@lru_cache
def rsqrt(elem):
    """1 / sqrt(x), two roundings as the primitive has."""
    one = _constant(elem, 1.0)

    @njit(forceinline=True)
    def function(x):
        return one() / sqrt(x)

    return function
