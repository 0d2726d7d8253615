"""Linear: y = x W^T + b, whatever the weight is made of."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from ..engine.errors import RankMismatch, ShapeMismatch
from ..quant import qmatmul as qmatmul  # products with quantised weights use the packed kernels from here on
from .base import Layer


class Linear(Layer):
    """x [..., in] -> [..., out].

    Args:
        weight: [out, in], a float array or a quantised tensor (then the op is QMatMul).
        bias: [out] or None.

    Raises RankMismatch, ShapeMismatch: weight is no matrix, or bias is of another length.
    """

    def __init__(self, weight: Any, bias: Any = None):
        if len(weight.shape) != 2:
            raise RankMismatch(f"linear: weight: expected [out, in], got shape {tuple(weight.shape)}")
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            raise ShapeMismatch(f"linear: bias: expected shape ({weight.shape[0]},), got {tuple(bias.shape)}")
        self.weight, self.bias = weight, bias

    def forward(self, x: Any) -> Any:
        """x [..., in] -> [..., out]."""
        return ops.linear(x, self.weight, self.bias)


class Embedding(Layer):
    """ids int [B, T] -> [B, T, C]: rows of a table [V, C], which may be quantised (then only those rows are decoded)."""

    def __init__(self, weight: Any):
        if len(weight.shape) != 2:
            raise RankMismatch(f"embedding: weight: expected [V, C], got shape {tuple(weight.shape)}")
        self.weight = weight

    def forward(self, ids: Any) -> Any:
        """ids -> rows. Raises IndexOutOfRange for an id outside [0, V)."""
        return ops.embedding(ids, self.weight)
