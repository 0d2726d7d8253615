"""matmul, linear and its quantised sibling."""

from __future__ import annotations

import math
from typing import Any

from ..faces import infer
from ..faces.dtypes import COMPLEX, FLOAT, HALF, f32
from ..faces.namespace import Namespace, Value
from ..faces.spec import Spec, spec_of
from . import checks
from .dispatch import define
from .elementwise import add

_SERVED = FLOAT | HALF | COMPLEX


def _matmul(op: str, a: Any, b: Any) -> tuple[Any, Any]:
    if not (len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype and a.dtype in _SERVED):
        infer.require_dtype(op, a.dtype, _SERVED)
        infer.require_same_dtype(op, spec_of(a), spec_of(b))
        infer.matmul(Spec(tuple(a.shape), f32), Spec(tuple(b.shape), f32))
    return a, b


@define(check=_matmul, composite=False)
def matmul(p: Namespace, a: Value, b: Value) -> Value:
    """a @ b over the last two axes, leading axes broadcast; [..., m, k] @ [..., k, n] -> [..., m, n]."""
    return p.matmul(a, b)


def _rows_times(p: Namespace, x: Value, weight: Value) -> Value:
    """x[..., in] @ weight[out, in].T as one 2-D product."""
    shape, turned = p.shape(x), p.transpose(weight, (1, 0))
    if len(shape) == 2:
        return p.matmul(x, turned)
    flat = p.reshape(x, (math.prod(shape[:-1]), shape[-1]))
    return p.reshape(p.matmul(flat, turned), (*shape[:-1], p.shape(weight)[0]))


@define(check=checks.linear_operands)
def dense_linear(p: Namespace, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x[..., in] @ weight[out, in].T + bias[out] -> [..., out]."""
    y = _rows_times(p, x, weight)
    return y if bias is None else p.add(y, bias)


def _qmatmul(op: str, x: Any, weight: Any) -> tuple[Any, Any]:
    return checks.linear_operands(op, x, weight)[:2]


@define(check=_qmatmul, hook=("fused_qmatmul",), takes_quantized=True)
def qmatmul(p: Namespace, x: Value, weight: Value) -> Value:
    """x[..., in] @ dequantise(weight)[out, in].T. The gradient reaches x; the weight is frozen."""
    return _rows_times(p, x, p.dequantize(weight, p.dtype(x)))


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x[..., in] @ weight[out, in].T + bias[out] -> [..., out], for a dense or a quantised weight.

    Raises:
        RankMismatch, ShapeMismatch, DTypeMismatch: operands do not fit.
    """
    if getattr(weight, "is_quantized", False):
        y = qmatmul(x, weight)
        return y if bias is None else add(y, bias)
    return dense_linear(x, weight, bias)
