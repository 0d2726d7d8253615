"""Rotary position embedding (Su et al. 2021): tables of angles, and the rotation in either pairing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine import ops
from ..engine.errors import InvalidArgument
from ..engine.kv_cache import Past
from .base import Layer


class Rotary(Layer):
    """Rotates q or k [B, H, T, D] by the angles of their positions.

    angle(p, i) = p / scale * base^(-2i/D) / factors[i], computed in float64 and rounded once.

    Args:
        dim: D, even. positions: rows of the tables. base: theta. interleaved: pairs (2i, 2i+1) rather than (i, i + D/2).
        scale: linear position scaling. factors: [D/2] or None (the `rope_freqs` of Llama 3.1 and later).
    """

    def __init__(
        self,
        dim: int,
        positions: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale: float = 1.0,
        factors: NDArray[Any] | None = None,
    ):
        if dim < 2 or dim % 2:
            raise InvalidArgument(f"rotary: dim: expected an even number, got {dim}")
        theta = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        if factors is not None:
            theta = theta / factors.astype(np.float64)
        angles = np.arange(positions, dtype=np.float64)[:, None] / scale * theta
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self._op = ops.rope_i if interleaved else ops.rope

    def forward(self, x: Any, past: Past) -> Any:
        """x [B, H, T, D] at the positions that follow `past` -> the same shape."""
        tokens = x.shape[2]
        cos, sin = past.rows(self.cos, tokens), past.rows(self.sin, tokens)
        dtype = getattr(x, "dtype", np.float32)
        if dtype == np.float64:  # float64 models are for tests of gradients
            cos, sin = cos.astype(np.float64), sin.astype(np.float64)
        if dtype in (np.float32, np.float64):
            return self._op(x, cos, sin)
        return ops.cast(self._op(ops.cast(x, np.float32), cos, sin), dtype)  # half types: the tables are not rounded
