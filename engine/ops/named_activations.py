"""Activations by the names that Hugging Face configs use, and the simple ones that need no policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument
from ..faces.namespace import Namespace, Value
from . import checks
from .activations import gelu, gelu_tanh, sigmoid, silu, softplus, swiglu
from .dispatch import Op, define


@define(check=checks.unary_float)
def relu(p: Namespace, x: Value) -> Value:
    """max(x, 0); NaN stays."""
    return p.maximum(x, p.like(x, 0))


@define(check=checks.unary_float)
def relu2(p: Namespace, x: Value) -> Value:
    """max(x, 0) squared."""
    y = relu.formula(p, x)
    return p.mul(y, y)


@define(check=checks.unary_float)
def relu6(p: Namespace, x: Value) -> Value:
    """x limited to [0, 6]."""
    return p.clamp(x, 0.0, 6.0)


@define(check=checks.unary_float, hook=("fused_activation", "hardsigmoid"))
def hardsigmoid(p: Namespace, x: Value) -> Value:
    """(x + 3) / 6 limited to [0, 1]."""
    return p.clamp(p.div(p.add(x, p.like(x, 3)), p.like(x, 6)), 0.0, 1.0)


@define(check=checks.unary_float, hook=("fused_activation", "hardswish"))
def hardswish(p: Namespace, x: Value) -> Value:
    """x * hardsigmoid(x)."""
    return p.mul(x, hardsigmoid.formula(p, x))


@define(check=checks.unary_float, hook=("fused_activation", "mish"))
def mish(p: Namespace, x: Value) -> Value:
    """x * tanh(softplus(x))."""
    return p.mul(x, p.tanh(softplus.formula(p, x)))


def _with_number(op: str, x: Any, number: float) -> tuple[Any, float]:
    checks.real_float(op, x)
    return x, checks.number(op, "parameter", number)


@define(check=_with_number, hook=("fused_activation", "elu"))
def elu(p: Namespace, x: Value, alpha: float = 1.0) -> Value:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    positive = p.compare(x, p.like(x, 0), "gt")
    # exp sees no positive x: its overflow would be inf, and 0 * inf a NaN in the gradient of the branch not taken.
    below = p.select(positive, p.like(x, 0), x)
    return p.select(positive, x, p.scale(p.expm1(below), alpha))


@define(check=_with_number, hook=("fused_activation", "leaky_relu"))
def leaky_relu(p: Namespace, x: Value, slope: float = 0.01) -> Value:
    """max(x, 0) + slope * min(x, 0)."""
    zero = p.like(x, 0)
    return p.add(p.maximum(x, zero), p.scale(p.minimum(x, zero), slope))


# The one place where names meet functions: PyTorch and Hugging Face call the exact form gelu.
NAMES: dict[str, Op[Any]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": silu,
    "swish": silu,
    "relu": relu,
    "relu2": relu2,
    "relu6": relu6,
    "sigmoid": sigmoid,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "mish": mish,
    "elu": elu,
    "leakyrelu": leaky_relu,
    "swiglu": swiglu,
}
_PARAMETER = {"elu": 1.0, "leakyrelu": 0.01}


@dataclass(frozen=True)
class Activation:
    """An activation by name, callable on any face.

    Args:
        name: a Hugging Face name (see `NAMES`).
        parameter: the one number of ``elu`` (alpha) and ``leakyrelu`` (slope); None: its default.

    Raises:
        InvalidArgument: unknown name, or a parameter where none is taken.
    """

    name: str = "gelu"
    parameter: float | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidArgument(f"activation: name: expected one of {', '.join(sorted(NAMES))}, got {self.name!r}")
        if self.parameter is not None and self.name not in _PARAMETER:
            raise InvalidArgument(f"activation: parameter: expected none for {self.name!r}, got {self.parameter}")

    def __call__(self, x: Any) -> Any:
        op = NAMES[self.name]
        if self.name not in _PARAMETER:
            return op(x)
        return op(x, _PARAMETER[self.name] if self.parameter is None else self.parameter)

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Activation:
        """The activation that a model config names (``hidden_act`` or ``hidden_activation``); without one, the default."""
        name = config.get("hidden_act") or config.get("hidden_activation") or "gelu"
        return Activation(str(name))
