"""What happens when an op that knows nothing of quantised tensors is given one: decode, compute in floats, and encode
the result again only where that is the policy.

    (float, float)            the float op
    (quantised, quantised)    decoded to float32, the float op; the result stays float (inhibit) or is encoded (propagate)
    (quantised, float)        decoded to the float side's dtype, the float op, float result
    anything else             UnsupportedDType

Ops that only move data give a quantised result under either policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ..errors import InvalidArgument, UnsupportedDType
from ..faces.dtypes import FLOAT, HALF, DType, boolean, dtype_name, f32
from ..faces.primitives import PRIMITIVES

_policy: ContextVar[str] = ContextVar("quantized_propagation", default="inhibit")
POLICIES = ("inhibit", "propagate")


class MixedOp(Protocol):
    """What this module needs of an op."""

    name: str
    moves_data: bool

    def operands_of(self, bound: Sequence[Any]) -> list[tuple[str, Any]]: ...
    def with_operands(self, bound: Sequence[Any], change: Any) -> list[Any]: ...
    def call_bound(self, bound: Sequence[Any]) -> Any: ...


@contextmanager
def quantized_propagation(policy: str) -> Iterator[None]:
    """Inside, results of ops on quantised operands stay float (``inhibit``, the default) or are encoded in the format
    of the left operand (``propagate``).

    Raises:
        InvalidArgument: another name.
    """
    if policy not in POLICIES:
        raise InvalidArgument(f"quantized_propagation: policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def is_quantized(value: Any) -> bool:
    """Whether a value is a quantised tensor of any format."""
    return bool(getattr(value, "is_quantized", False))


def call_with_quantized(op: MixedOp, bound: Sequence[Any]) -> Any:
    """Run an op of which at least one operand is quantised."""
    operands = [value for _, value in op.operands_of(bound)]
    left = next(value for value in operands if is_quantized(value))
    partner = _float_partner(op, operands)
    face = next((value.__face__ for value in operands if getattr(value, "__face__", None) is not None), None)

    def decode(value: Any) -> Any:
        if not is_quantized(value):
            return value
        dtype = partner or f32
        return face.dequantize(value, dtype) if face is not None else PRIMITIVES["dequantize"].evaluate(value, dtype)

    result = op.call_bound(op.with_operands(bound, decode))
    encodes = op.moves_data or _policy.get() == "propagate"
    if partner is not None or not encodes or getattr(result, "dtype", None) not in FLOAT:
        return result
    if face is not None:
        raise UnsupportedDType(f"{op.name}: quantised result: expected plain operands, got tracked or traced ones, which stay float")
    return type(left).quantize(result, left.format)


def _float_partner(op: MixedOp, operands: Sequence[Any]) -> DType | None:
    """Dtype of the float operands; None when all are quantised (conditions and indices aside)."""
    partner: DType | None = None
    for value in operands:
        if is_quantized(value) or value.dtype == boolean:
            continue
        if value.dtype not in FLOAT and value.dtype not in HALF and not op.moves_data:
            raise UnsupportedDType(f"{op.name}: unsupported dtype {dtype_name(value.dtype)}: expected a float beside a quantised tensor")
        if value.dtype in FLOAT or value.dtype in HALF:
            partner = value.dtype
    return partner
