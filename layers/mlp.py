"""The gated feed-forward part of a block (Shazeer 2020)."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from .base import Layer
from .linear import Linear


class GatedMlp(Layer):
    """down(silu(gate(x)) * up(x)); x [B, T, C], inside F wide."""

    def __init__(self, gate: Linear, up: Linear, down: Linear):
        self.gate, self.up, self.down = gate, up, down

    def forward(self, x: Any) -> Any:
        """x [B, T, C] -> [B, T, C]."""
        return self.down.forward(ops.gated_silu(self.gate.forward(x), self.up.forward(x)))
