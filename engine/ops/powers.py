"""Powers, by IEEE pow: 0**0 = NaN**0 = 1**NaN = 1, a negative base needs an integer exponent, 0**negative = inf."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument
from ..faces import infer
from ..faces.dtypes import FLOAT, HALF, f32
from ..faces.namespace import Namespace, Value
from ..faces.spec import spec_of
from . import checks
from .dispatch import define


def _powf(op: str, a: Any, b: Any) -> tuple[Any, Any]:
    infer.require_dtype(op, a.dtype, FLOAT | HALF)
    infer.require_same_dtype(op, spec_of(a), spec_of(b))
    infer.broadcast(op, tuple(a.shape), tuple(b.shape))
    return a, b


@define(check=_powf, composite=False)
def powf(p: Namespace, a: Value, b: Value) -> Value:
    """a ** b elementwise, NumPy broadcasting, equal float dtypes.

    Gradients: b * a**(b-1), and 0 where b = 0; a**b * ln a, and 0 where a = 0 and b >= 0 (NaN for a < 0).
    """
    return p.pow(a, b)


def _powf_scalar(op: str, a: Any, exponent: float) -> tuple[Any, float]:
    checks.real_float(op, a)
    try:
        return a, float(exponent)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{op}: exponent: expected a number, got {exponent!r}") from error


@define(check=_powf_scalar)
def powf_scalar(p: Namespace, a: Value, exponent: float) -> Value:
    """a ** exponent for one number, converted to the dtype of a."""
    return p.pow(a, p.like(a, exponent))


def _powi(op: str, a: Any, b: Any) -> tuple[Any, Any]:
    checks.integer_ids(op, a)
    infer.require_same_dtype(op, spec_of(a), spec_of(b))
    infer.broadcast(op, tuple(a.shape), tuple(b.shape))
    return a, b


@define(check=_powi)
def powi(p: Namespace, a: Value, b: Value) -> Value:
    """a ** b for integers, through float32: exact below 2**24."""
    return p.cast(p.pow(p.cast(a, f32), p.cast(b, f32)), p.dtype(a))
