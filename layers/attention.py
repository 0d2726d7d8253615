"""Multi-head attention with grouped kv heads, rotary positions and a cache (Ainslie et al. 2023 for the grouping)."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from ..engine.errors import InvalidArgument
from ..engine.kv_cache import Past
from .base import Layer
from .linear import Linear
from .rotary import Rotary


class Attention(Layer):
    """x [B, T, C] -> [B, T, C], causal.

    Args:
        q, k, v, output: projections to H*D, K*D, K*D and back to C. rotary: positions, or None.
        n_heads, n_kv_heads: H and K; H a multiple of K. scale: factor of the scores; None: D**-0.5.
    """

    def __init__(
        self,
        q: Linear,
        k: Linear,
        v: Linear,
        output: Linear,
        rotary: Rotary | None,
        n_heads: int,
        n_kv_heads: int,
        scale: float | None = None,
    ):
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise InvalidArgument(f"attention: heads: expected a multiple of {n_kv_heads} kv heads, got {n_heads}")
        self.q, self.k, self.v, self.output = q, k, v, output
        self.rotary, self.n_heads, self.n_kv_heads, self.scale = rotary, n_heads, n_kv_heads, scale

    def forward(self, x: Any, past: Past, layer: int) -> Any:
        """Attend from the new tokens to themselves and to what layer `layer` of `past` holds, and append them to it."""
        q = _heads(self.q.forward(x), self.n_heads)
        k = _heads(self.k.forward(x), self.n_kv_heads)
        v = _heads(self.v.forward(x), self.n_kv_heads)
        if self.rotary is not None:
            q, k = self.rotary.forward(q, past), self.rotary.forward(k, past)
        keys, values = past.append(layer, k, v)
        y = ops.sdpa(q, keys, values, None, True, self.scale)
        batch, _, tokens, dim = y.shape
        return self.output.forward(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (batch, tokens, self.n_heads * dim)))


def _heads(x: Any, heads: int) -> Any:
    """[B, T, H*D] -> [B, H, T, D]."""
    batch, tokens, width = x.shape
    return ops.transpose(ops.reshape(x, (batch, tokens, heads, width // heads)), (0, 2, 1, 3))
