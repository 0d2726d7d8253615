"""What an activation does around NumPy's loops, with the steps of its composite (ops/activations.py) in the same order.

A formula is (befores, after): a step before each loop, `before(x, value, number)`, where value is what the loop before it gave,
or None where the loop takes that as it is; and `after(x, value, up, number)`, the result. number: the op's parameter, up: what a
gate lets through.
"""

import math

import numpy as np
from numba import njit

from . import mathematics
from .simd import lanes
from .simd.arithmetic import absolute, maximum, minimum


def constants(elem, *values):
    """Constants as the composite rounds them."""
    return [lanes.constant(elem, float(np.float32(value)) if elem == "f32" else value) for value in values]


def _minus_abs(elem):
    """-|x|, whose exp cannot overflow."""
    (zero,) = constants(elem, 0.0)

    @njit(forceinline=True)
    def before(x, value, number):
        return zero() - absolute(x)

    return before


def _logistic(elem, weighted, gated):
    (zero, one), less = constants(elem, 0.0, 1.0), lanes.comparison("lt")

    @njit(forceinline=True)
    def after(x, e, up, number):
        y = lanes.select(less(zero(), x), one(), e) / (one() + e)
        if weighted:
            y = x * y
        if gated:
            y = y * up
        return y

    return [_minus_abs(elem)], after


def _log_of_sum(elem):
    """From log(1 + exp(-|x|)) to log(1 + exp(x))."""
    (zero,), less = constants(elem, 0.0), lanes.comparison("lt")

    @njit(forceinline=True)
    def value(x, t):
        return lanes.select(less(zero(), x), x + t, t)

    return value


def _softplus(elem):
    total = _log_of_sum(elem)

    @njit(forceinline=True)
    def after(x, t, up, number):
        return total(x, t)

    return [_minus_abs(elem), None], after


def _mish(elem):
    total = _log_of_sum(elem)

    @njit(forceinline=True)
    def before(x, t, number):
        return total(x, t)

    @njit(forceinline=True)
    def after(x, t, up, number):
        return x * t

    return [_minus_abs(elem), None, before], after


def _gelu_tanh(elem):
    # As ops/activations.py spells it: the product of the two rounded factors.
    cubic, scale, one, half = constants(elem, 0.044715, (2.0 / math.sqrt(math.pi)) * math.sqrt(0.5), 1.0, 0.5)

    @njit(forceinline=True)
    def before(x, value, number):
        return (x + x * x * x * cubic()) * scale()

    @njit(forceinline=True)
    def after(x, t, up, number):
        return x * (one() + t) * half()

    return [before], after


def _gelu(elem):
    scale, one, half = constants(elem, math.sqrt(0.5), 1.0, 0.5)
    erf = mathematics.erf_double() if elem == "f64" else mathematics.erf_single()

    @njit(forceinline=True)
    def after(x, value, up, number):
        return x * (one() + erf(x * scale())) * half()

    return [], after


def _elu(elem):
    (zero,), less = constants(elem, 0.0), lanes.comparison("lt")

    @njit(forceinline=True)
    def before(x, value, number):
        return lanes.select(less(zero(), x), zero(), x)

    @njit(forceinline=True)
    def after(x, e, up, number):
        return lanes.select(less(zero(), x), x, e * number)

    return [before], after


def _leaky_relu(elem):
    (zero,) = constants(elem, 0.0)

    @njit(forceinline=True)
    def after(x, value, up, number):
        return maximum(x, zero()) + minimum(x, zero()) * number

    return [], after


def _hard(elem, weighted):
    zero, one, three, six = constants(elem, 0.0, 1.0, 3.0, 6.0)

    @njit(forceinline=True)
    def after(x, value, up, number):
        y = minimum(maximum((x + three()) / six(), zero()), one())
        return x * y if weighted else y

    return [], after


FORMULAS = {
    "sigmoid": lambda elem: _logistic(elem, weighted=False, gated=False),
    "silu": lambda elem: _logistic(elem, weighted=True, gated=False),
    "gated_silu": lambda elem: _logistic(elem, weighted=True, gated=True),
    "softplus": _softplus,
    "mish": _mish,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "elu": _elu,
    "leaky_relu": _leaky_relu,
    "hardsigmoid": lambda elem: _hard(elem, weighted=False),
    "hardswish": lambda elem: _hard(elem, weighted=True),
}
