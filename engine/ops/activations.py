"""Activations with an edge policy of their own: sigmoid, silu, softplus, gelu and the gated product.

Names follow PyTorch and Hugging Face: `gelu` is the exact one (erf), `gelu_tanh` the approximation. That
silu(-inf) and gelu(-inf) are NaN (-inf * 0) is intended.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import ShapeMismatch
from ..faces.namespace import Namespace, Value
from . import checks
from .dispatch import define

FRAC_1_SQRT_2 = math.sqrt(0.5)
# The product of the two rounded factors, as the reference systems compute it.
SQRT_2_OVER_PI = (2.0 / math.sqrt(math.pi)) * FRAC_1_SQRT_2


def _positive_and_minus_abs(p: Namespace, x: Value) -> tuple[Value, Value]:
    """(x > 0, -|x|); exp of the second never overflows, and its derivative at 0 is +1, which sigmoid'(0) = 1/4 needs."""
    negated = p.neg(x)
    positive = p.compare(x, negated, "gt")
    return positive, p.select(positive, negated, x)


@define(check=checks.unary_float, hook=("fused_activation", "sigmoid"))
def sigmoid(p: Namespace, x: Value) -> Value:
    """1 / (1 + exp(-x)), without overflow on either side. F32, F64, half types; NaN stays."""
    positive, minus_abs = _positive_and_minus_abs(p, x)
    e = p.exp(minus_abs)
    one = p.like(x, 1)
    return p.div(p.select(positive, one, e), p.add(one, e))


@define(check=checks.unary_float, hook=("fused_activation", "silu"))
def silu(p: Namespace, x: Value) -> Value:
    """x * sigmoid(x); silu(-inf) is NaN."""
    return p.mul(x, sigmoid.formula(p, x))


@define(check=checks.unary_float, hook=("fused_activation", "softplus"))
def softplus(p: Namespace, x: Value) -> Value:
    """log(1 + exp(x)), without overflow."""
    positive, minus_abs = _positive_and_minus_abs(p, x)
    t = p.log1p(p.exp(minus_abs))
    return p.select(positive, p.add(x, t), t)


@define(check=checks.unary_float, hook=("fused_activation", "gelu"))
def gelu(p: Namespace, x: Value) -> Value:
    """x/2 * (1 + erf(x / sqrt 2)): the exact form. gelu(-inf) is NaN; large negative x cancels in 1 + erf."""
    phi = p.erf(p.scale(x, FRAC_1_SQRT_2))
    return p.scale(p.mul(x, p.add(p.like(x, 1), phi)), 0.5)


@define(check=checks.unary_float, hook=("fused_activation", "gelu_tanh"))
def gelu_tanh(p: Namespace, x: Value) -> Value:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))): the approximation. gelu_tanh(-inf) is NaN."""
    cube = p.mul(p.mul(x, x), x)
    inner = p.add(x, p.scale(cube, 0.044715))
    t = p.tanh(p.scale(inner, SQRT_2_OVER_PI))
    return p.scale(p.mul(x, p.add(p.like(x, 1), t)), 0.5)


def _gated(op: str, gate: Any, up: Any) -> tuple[Any, Any]:
    checks.real_float(op, gate)
    checks.same_dtype(op, gate, up, "up")
    if tuple(gate.shape) != tuple(up.shape):
        raise ShapeMismatch(f"{op}: up: expected shape {gate.shape} like gate, got {up.shape}")
    return gate, up


@define(check=_gated, hook=("fused_gated_silu",))
def gated_silu(p: Namespace, gate: Value, up: Value) -> Value:
    """silu(gate) * up: the middle of a LLaMA MLP. Equal shapes."""
    return p.mul(silu.formula(p, gate), up)


def _halves(op: str, x: Any) -> tuple[Any]:
    checks.real_float(op, x)
    if len(x.shape) == 0 or x.shape[-1] % 2:
        raise ShapeMismatch(f"{op}: x: expected an even last axis, got shape {x.shape}")
    return (x,)


@define(check=_halves, hook=("fused_swiglu",))
def swiglu(p: Namespace, x: Value) -> Value:
    """silu(first half of the last axis) * second half; x[..., 2F] -> [..., F]."""
    n = p.shape(x)[-1]
    return gated_silu.formula(p, p.narrow(x, len(p.shape(x)) - 1, 0, n // 2), p.narrow(x, len(p.shape(x)) - 1, n // 2, n))
