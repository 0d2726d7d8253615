"""Ops on quantised tensors by name (``q_add``, ``q_powf``, ...), and the simplest scheme: int8, one scale a tensor.

Every ``q_<op>`` decodes, computes in floats and, by policy, encodes (see `mixed`). An op that has something better
for a format, as matrix products have, overrides this by a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidArgument
from ..faces.dtypes import Array
from . import activations, elementwise, indexing, layout, matrices, powers, reductions
from .dispatch import Op
from .mixed import quantized_propagation


@dataclass(frozen=True)
class Int8:
    """Per-tensor symmetric int8: scale = amax / 127, codes clamped to +-127, halves rounded away from zero."""

    name: str = "INT8"


@dataclass(frozen=True, eq=False)
class Int8Tensor:
    """A tensor of int8 codes with one float32 scale: value = code * scale."""

    codes: Array
    scale: np.float32
    format: Int8 = Int8()
    is_quantized: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def ndim(self) -> int:
        return self.codes.ndim

    def dequantize(self) -> Array:
        """The values, float32 [*shape]."""
        return np.asarray(self.codes.astype(np.float32) * self.scale)

    def rows(self, ids: Array) -> Array:
        """Chosen rows, float32 [len(ids), shape[-1]]."""
        return np.asarray(self.codes[ids].astype(np.float32) * self.scale)

    @classmethod
    def quantize(cls, values: Any, format: Int8 | None = None, name: str = "") -> Int8Tensor:
        """Encode float values of any shape.

        Raises:
            InvalidArgument: a value is not finite.
        """
        x = np.asarray(values, dtype=np.float32)
        peak = float(np.max(np.abs(x))) if x.size else 0.0
        if not np.isfinite(peak):
            raise InvalidArgument(f"Int8Tensor.quantize: values {name}: expected finite numbers, got {peak}")
        scale = np.float32(peak / 127.0)
        scaled = x / scale if scale > 0 else np.zeros_like(x)
        codes = np.clip(np.trunc(scaled + np.copysign(np.float32(0.5), scaled)), -127, 127)
        return cls(codes.astype(np.int8), scale, format or Int8())


def _quantised(op: Callable[..., Any], name: str) -> Callable[..., Any]:
    def run(*args: Any, propagation: str = "inhibit", **attrs: Any) -> Any:
        with quantized_propagation(propagation):
            return op(*args, **attrs)

    run.__name__ = run.__qualname__ = f"q_{name}"
    run.__doc__ = f"`{name}` on quantised operands; propagation ``inhibit``: float result, ``propagate``: encoded like the left operand."
    return run


def q(op: Op[Any]) -> Callable[..., Any]:
    """The quantised form of any op."""
    return _quantised(op, op.name)


q_add, q_sub, q_mul, q_div = q(elementwise.add), q(elementwise.sub), q(elementwise.mul), q(elementwise.div)
q_neg, q_exp, q_log = q(elementwise.neg), q(elementwise.exp), q(elementwise.log)
q_tanh, q_sqrt, q_select = q(elementwise.tanh), q(elementwise.sqrt), q(elementwise.select)
q_powf, q_powf_scalar = q(powers.powf), q(powers.powf_scalar)
q_sigmoid, q_silu, q_gelu = q(activations.sigmoid), q(activations.silu), q(activations.gelu)
q_softmax, q_argmax = q(reductions.softmax), q(reductions.argmax)
q_reduce_sum, q_reduce_mean = q(reductions.reduce_sum), q(reductions.reduce_mean)
q_matmul, q_linear = q(matrices.matmul), _quantised(matrices.linear, "linear")
q_reshape, q_transpose, q_slice, q_gather = q(layout.reshape), q(layout.transpose), q(layout.slice_), q(indexing.gather)
