"""Normalisation over the last axis."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from .base import Layer


class RmsNorm(Layer):
    """x * rsqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019); x [..., C], weight [C]."""

    def __init__(self, weight: Any, eps: float = 1e-5):
        self.weight, self.eps = weight, eps

    def forward(self, x: Any) -> Any:
        """x [..., C] -> the same shape."""
        return ops.rms_norm(x, -1, self.weight, None, self.eps)


class LayerNorm(Layer):
    """(x - mean) * rsqrt(variance + eps) * weight + bias (Ba et al. 2016); x [..., C]; weight, bias [C] or None."""

    def __init__(self, weight: Any = None, bias: Any = None, eps: float = 1e-5):
        self.weight, self.bias, self.eps = weight, bias, eps

    def forward(self, x: Any) -> Any:
        """x [..., C] -> the same shape."""
        return ops.layer_norm(x, -1, self.weight, self.bias, self.eps)
