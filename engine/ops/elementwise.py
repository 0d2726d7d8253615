"""Elementwise ops that are one primitive: arithmetic, transcendentals, comparison, selection."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument
from ..faces import infer
from ..faces.dtypes import COMPLEX, FLOAT, HALF, NUMERIC, REAL, f32
from ..faces.namespace import Namespace, Value
from ..faces.spec import Spec, spec_of
from . import checks
from .dispatch import define


def _unary(allowed: frozenset[Any]) -> Any:
    def check(op: str, x: Any) -> tuple[Any]:
        infer.require_dtype(op, x.dtype, allowed)
        return (x,)

    return check


def _binary(allowed: frozenset[Any]) -> Any:
    def check(op: str, a: Any, b: Any) -> tuple[Any, Any]:
        infer.require_dtype(op, a.dtype, allowed)
        if a.dtype != b.dtype:
            infer.require_same_dtype(op, spec_of(a), spec_of(b))
        if a.shape != b.shape:
            infer.broadcast(op, a.shape, b.shape)
        return a, b

    return check


_float = _unary(FLOAT | HALF)
_numeric = _unary(NUMERIC | HALF)
_real = _unary(REAL | HALF)


@define(check=_numeric, composite=False)
def neg(p: Namespace, x: Value) -> Value:
    """-x. Numeric dtypes."""
    return p.neg(x)


@define(check=_float, composite=False)
def exp(p: Namespace, x: Value) -> Value:
    """e**x. Float dtypes."""
    return p.exp(x)


@define(check=_float, composite=False)
def log(p: Namespace, x: Value) -> Value:
    """Natural logarithm; NaN below 0, -inf at 0. Float dtypes."""
    return p.log(x)


@define(check=_float, composite=False)
def log1p(p: Namespace, x: Value) -> Value:
    """log(1 + x), accurate near 0. Float dtypes."""
    return p.log1p(x)


@define(check=_float, composite=False)
def expm1(p: Namespace, x: Value) -> Value:
    """exp(x) - 1, accurate near 0. Float dtypes."""
    return p.expm1(x)


@define(check=_float, composite=False)
def tanh(p: Namespace, x: Value) -> Value:
    """Hyperbolic tangent. Float dtypes."""
    return p.tanh(x)


@define(check=_float, composite=False)
def erf(p: Namespace, x: Value) -> Value:
    """Error function: erf(+-0) = +-0, erf(+-inf) = +-1, NaN stays. Float dtypes."""
    return p.erf(x)


@define(check=_float, composite=False)
def sqrt(p: Namespace, x: Value) -> Value:
    """Square root; NaN below 0. Float dtypes."""
    return p.sqrt(x)


@define(check=_float, composite=False)
def rsqrt(p: Namespace, x: Value) -> Value:
    """1 / sqrt(x). Float dtypes."""
    return p.rsqrt(x)


@define(check=_float, composite=False)
def sin(p: Namespace, x: Value) -> Value:
    """Sine, x in radians. Float dtypes."""
    return p.sin(x)


@define(check=_float, composite=False)
def cos(p: Namespace, x: Value) -> Value:
    """Cosine, x in radians. Float dtypes."""
    return p.cos(x)


@define(check=_real, composite=False)
def abs_(p: Namespace, x: Value) -> Value:
    """|x|. Real dtypes; the gradient at 0 is 0."""
    return p.abs(x)


@define(check=_real, composite=False)
def sign(p: Namespace, x: Value) -> Value:
    """-1, 0 or 1. Real dtypes; the gradient is 0."""
    return p.sign(x)


@define(check=_numeric, composite=False)
def conj(p: Namespace, x: Value) -> Value:
    """Complex conjugate; the identity on real dtypes."""
    return p.conj(x)


@define(check=_float, composite=False)
def floor(p: Namespace, x: Value) -> Value:
    """Largest integer <= x, as a float. The gradient is 0."""
    return p.floor(x)


@define(check=_float, composite=False)
def round_(p: Namespace, x: Value) -> Value:
    """Nearest integer, halves to even, as a float. The gradient is 0."""
    return p.round(x)


@define(check=_binary(NUMERIC | HALF), composite=False)
def add(p: Namespace, a: Value, b: Value) -> Value:
    """a + b, NumPy broadcasting, equal dtypes."""
    return p.add(a, b)


@define(check=_binary(NUMERIC | HALF), composite=False)
def sub(p: Namespace, a: Value, b: Value) -> Value:
    """a - b, NumPy broadcasting, equal dtypes."""
    return p.sub(a, b)


@define(check=_binary(NUMERIC | HALF), composite=False)
def mul(p: Namespace, a: Value, b: Value) -> Value:
    """a * b, NumPy broadcasting, equal dtypes."""
    return p.mul(a, b)


@define(check=_binary(FLOAT | HALF | COMPLEX), composite=False)
def div(p: Namespace, a: Value, b: Value) -> Value:
    """a / b, NumPy broadcasting, equal float or complex dtypes."""
    return p.div(a, b)


@define(check=_binary(REAL | HALF), composite=False)
def maximum(p: Namespace, a: Value, b: Value) -> Value:
    """The larger of a and b; NaN on either side gives NaN. A tie shares the gradient."""
    return p.maximum(a, b)


@define(check=_binary(REAL | HALF), composite=False)
def minimum(p: Namespace, a: Value, b: Value) -> Value:
    """The smaller of a and b; NaN on either side gives NaN. A tie shares the gradient."""
    return p.minimum(a, b)


@define(check=_binary(REAL | HALF), composite=False)
def remainder(p: Namespace, a: Value, b: Value) -> Value:
    """a - b * floor(a / b): the sign of b, as Python's ``%``."""
    return p.remainder(a, b)


def _compare(op: str, a: Any, b: Any, direction: str) -> tuple[Any, Any, str]:
    infer.require_same_dtype(op, spec_of(a), spec_of(b))
    dtype = f32 if a.dtype in HALF else a.dtype
    infer.compare(Spec(tuple(a.shape), dtype), Spec(tuple(b.shape), dtype), direction)
    return a, b, direction


@define(check=_compare, composite=False)
def compare(p: Namespace, a: Value, b: Value, direction: str) -> Value:
    """Compare elementwise; direction one of eq ne lt le gt ge. Bool result; NaN compares false (``ne`` true)."""
    return p.compare(a, b, direction)


def _select(op: str, condition: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
    infer.select(spec_of(condition), spec_of(a), spec_of(b))
    return condition, a, b


@define(check=_select, composite=False, moves_data=True)
def select(p: Namespace, condition: Value, a: Value, b: Value) -> Value:
    """a where condition holds, else b, with broadcasting. Picks, never multiplies: NaN on the other side is harmless."""
    return p.select(condition, a, b)


def _clamp(op: str, x: Any, lower: float, upper: float) -> tuple[Any, float, float]:
    infer.require_dtype(op, x.dtype, FLOAT | HALF)
    low, high = checks.number(op, "lower", lower), checks.number(op, "upper", upper)
    if not low <= high:
        raise InvalidArgument(f"{op}: bounds: expected lower <= upper, got {lower} and {upper}")
    return x, low, high


@define(check=_clamp, composite=False)
def clamp(p: Namespace, x: Value, lower: float, upper: float) -> Value:
    """x limited to [lower, upper]; NaN stays. The gradient passes strictly inside."""
    return p.clamp(x, lower, upper)


def eq(a: Any, b: Any) -> Any:
    """a == b elementwise."""
    return compare(a, b, "eq")


def ne(a: Any, b: Any) -> Any:
    """a != b elementwise."""
    return compare(a, b, "ne")


def lt(a: Any, b: Any) -> Any:
    """a < b elementwise."""
    return compare(a, b, "lt")


def le(a: Any, b: Any) -> Any:
    """a <= b elementwise."""
    return compare(a, b, "le")


def gt(a: Any, b: Any) -> Any:
    """a > b elementwise."""
    return compare(a, b, "gt")


def ge(a: Any, b: Any) -> Any:
    """a >= b elementwise."""
    return compare(a, b, "ge")
