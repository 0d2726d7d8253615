"""Validation shared by ops: each check names the op, what is wrong, what was expected and what came."""

from __future__ import annotations

import math
from typing import Any

from ..errors import DTypeMismatch, InvalidArgument, RankMismatch, ShapeMismatch, UnsupportedDType
from ..faces.dtypes import FLOAT, HALF, INTEGER, boolean, dtype_name
from ..faces.infer import broadcast, normalize_axes, normalize_axis

_REAL = FLOAT | HALF


def real_float(op: str, x: Any) -> None:
    """``x`` is F32, F64 or a half type."""
    if x.dtype not in _REAL:
        raise UnsupportedDType(
            f"{op}: unsupported dtype {dtype_name(x.dtype)}: {op} is defined for real F32/F64 tensors (and F16/BF16 through F32)"
        )


def same_dtype(op: str, x: Any, other: Any, name: str) -> None:
    """An operand, if present, has the dtype of x."""
    if other is not None and other.dtype != x.dtype:
        raise DTypeMismatch(f"{op}: {name}: expected {dtype_name(x.dtype)} like the input, got {dtype_name(other.dtype)}")


def unary_float(op: str, x: Any) -> tuple[Any]:
    """One operand, a real float."""
    real_float(op, x)
    return (x,)


def along_axis(op: str, x: Any, axis: int) -> tuple[Any, int]:
    """A real float and an axis, which is made non-negative."""
    real_float(op, x)
    return x, normalize_axis(op, axis, len(x.shape))


def masked(op: str, x: Any, mask: Any, axis: int) -> tuple[Any, Any, int]:
    """A real float, a BOOL mask that broadcasts to it, and an axis."""
    real_float(op, x)
    if mask.dtype != boolean:
        raise DTypeMismatch(f"{op}: mask: expected BOOL, got {dtype_name(mask.dtype)}")
    fits_into(op, "mask", mask.shape, x.shape)
    return x, mask, normalize_axis(op, axis, len(x.shape))


def fits_into(op: str, name: str, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """``shape`` broadcasts to ``target`` without enlarging it."""
    ok = len(shape) <= len(target) and all(n in (1, t) for n, t in zip(shape[::-1], target[::-1], strict=False))
    if not ok:
        raise ShapeMismatch(f"{op}: {name}: expected a shape that broadcasts to {target}, got {shape}")


def norm(op: str, x: Any, axis: int, weight: Any, bias: Any, eps: float) -> tuple[Any, int, Any, Any, float]:
    """A real float, an axis, weight and bias [extent of the axis] of its dtype or None, and eps finite and >= 0."""
    real_float(op, x)
    axis = normalize_axis(op, axis, len(x.shape))
    eps = finite_non_negative(op, "eps", eps)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            same_dtype(op, x, value, name)
            if tuple(value.shape) != (x.shape[axis],):
                raise ShapeMismatch(f"{op}: {name}: expected shape ({x.shape[axis]},) for axis {axis} of {x.shape}, got {value.shape}")
    return x, axis, weight, bias, eps


def finite_non_negative(op: str, name: str, value: Any) -> float:
    """A number in [0, inf), as a float."""
    found = number(op, name, value)
    if not (math.isfinite(found) and found >= 0):
        raise InvalidArgument(f"{op}: invalid argument {name}: {name} must be finite and non-negative, got {value}")
    return found


def number(op: str, name: str, value: Any) -> float:
    """A number, as a float."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{op}: invalid argument {name}: expected a number, got {value!r}") from error


def rope_operands(op: str, x: Any, cos: Any, sin: Any) -> tuple[Any, Any, Any]:
    """x[B,H,T,D] (rope_thd: x[B,T,H,D]); cos, sin [T',D/2] or [B,T',D/2] with T' >= T."""
    real_float(op, x)
    if len(x.shape) != 4:
        raise RankMismatch(f"{op}: x: expected rank 4, got shape {x.shape}")
    steps = x.shape[1] if op == "rope_thd" else x.shape[2]
    for name, table in (("cos", cos), ("sin", sin)):
        same_dtype(op, x, table, name)
        if len(table.shape) not in (2, 3):
            raise RankMismatch(f"{op}: {name}: expected rank 2 or 3, got shape {table.shape}")
        if 2 * table.shape[-1] != x.shape[-1]:
            raise ShapeMismatch(f"{op}: {name}: inconsistent last dim size: expected {x.shape[-1]} / 2, got {table.shape[-1]}")
        if table.shape[-2] < steps:
            raise ShapeMismatch(f"{op}: {name}: expected at least {steps} positions, got {table.shape[-2]}")
        if len(table.shape) == 3 and table.shape[0] != x.shape[0]:
            raise ShapeMismatch(f"{op}: {name}: expected batch {x.shape[0]}, got {table.shape[0]}")
    if tuple(cos.shape) != tuple(sin.shape):
        raise ShapeMismatch(f"{op}: sin: expected the shape of cos {cos.shape}, got {sin.shape}")
    return x, cos, sin


def sdpa_operands(
    op: str, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, softcap: float
) -> tuple[Any, Any, Any, Any, bool, float, float]:
    """q [B,H,T,D], k [B,K,S,D], v [B,K,S,Dv] of one dtype, H a multiple of K; a mask that broadcasts to [B,H,T,S]."""
    real_float(op, q)
    for name, x in (("q", q), ("k", k), ("v", v)):
        same_dtype(op, q, x, name)
        if len(x.shape) != 4:
            raise RankMismatch(f"{op}: {name}: expected rank 4 [batch, heads, tokens, dim], got shape {x.shape}")
    batch, heads, tokens, dim = q.shape
    if k.shape[0] != batch or v.shape[0] != batch or k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        raise ShapeMismatch(f"{op}: k, v: expected equal batch, heads and length, got q {q.shape}, k {k.shape}, v {v.shape}")
    if k.shape[3] != dim:
        raise ShapeMismatch(f"{op}: k: expected head dim {dim} like q, got {k.shape[3]}")
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise ShapeMismatch(f"{op}: heads: expected query heads a multiple of kv heads, got {heads} and {k.shape[1]}")
    if causal and tokens > k.shape[2]:
        raise ShapeMismatch(f"{op}: causal: expected at least {tokens} keys for {tokens} queries, got {k.shape[2]}")
    if mask is not None:
        if mask.dtype != boolean:
            same_dtype(op, q, mask, "mask")
        fits_into(op, "mask", mask.shape, (batch, heads, tokens, k.shape[2]))
    if scale is None and dim == 0:
        raise InvalidArgument(f"{op}: invalid argument scale: expected a number for heads of dim 0, got None")
    factor = dim**-0.5 if scale is None else number(op, "scale", scale)
    cap = number(op, "softcap", softcap)
    if not math.isfinite(factor):
        raise InvalidArgument(f"{op}: invalid argument scale: expected a finite number, got {factor}")
    if not (math.isfinite(cap) and cap > 0):
        raise InvalidArgument(f"{op}: invalid argument softcap: expected a finite number > 0, got {cap}")
    return q, k, v, mask, bool(causal), factor, cap


def linear_operands(op: str, x: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    """x [..., in], weight [out, in] (dense of x's dtype, or quantised), bias [out] or None."""
    real_float(op, x)
    shape, wanted = x.shape, weight.shape
    if len(wanted) != 2:
        raise RankMismatch(f"{op}: weight: expected rank 2 [out, in], got shape {tuple(wanted)}")
    if len(shape) == 0:
        raise RankMismatch(f"{op}: x: expected rank >= 1, got a scalar")
    if shape[-1] != wanted[1]:
        raise ShapeMismatch(f"{op}: x: input tensor {tuple(shape)} incompatible with weight {tuple(wanted)}: expected last dim {wanted[1]}")
    if not getattr(weight, "is_quantized", False):
        same_dtype(op, x, weight, "weight")
    if bias is not None:
        same_dtype(op, x, bias, "bias")
        if tuple(bias.shape) != (wanted[0],):
            raise ShapeMismatch(f"{op}: bias: expected shape ({wanted[0]},), got {bias.shape}")
    return x, weight, bias


def integer_ids(op: str, ids: Any) -> None:
    """I32, I64 or U32."""
    if ids.dtype not in INTEGER:
        raise UnsupportedDType(f"{op}: ids: unsupported dtype {dtype_name(ids.dtype)}: expected I32, I64 or U32")


__all__ = ["broadcast", "normalize_axes", "normalize_axis"]
