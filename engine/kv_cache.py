"""Keys and values of the tokens seen so far, and what a decoder asks of them.

A decoder's forward gets one object that knows where the sequence stands: `KVCache` (arrays, at once), `NoPast` (a whole
sequence without a cache, differentiable), or plan/past.py's (traced).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ContextOverflowError, InvalidArgument


class Past(Protocol):
    """What a decoder needs to know of the tokens before the ones it is given."""

    def rows(self, table: NDArray[np.float32], n_tokens: int) -> Any:
        """Rows [p, p + n_tokens) of a table indexed by position, p being the position of the first new token."""

    def append(self, layer: int, k: Any, v: Any) -> tuple[Any, Any]:
        """Add k and v [B, K, T, D] of new tokens; returns all keys and values [B, K, S, D]."""

    def last(self, x: Any) -> Any:
        """The positions of x [B, T, C] that logits are wanted for."""


class NoPast:
    """A sequence from its first token on, nothing kept; gradients flow through keys and values."""

    def rows(self, table: NDArray[np.float32], n_tokens: int) -> Any:
        """The first rows of the table."""
        return _narrow(table, 0, n_tokens)

    def append(self, layer: int, k: Any, v: Any) -> tuple[Any, Any]:
        """The new keys and values are all there are."""
        return k, v

    def last(self, x: Any) -> Any:
        """Every position."""
        return x


class KVCache:
    """Preallocated keys and values of `n_layers` layers, for inference only: a tracked value is refused.

    Args:
        n_layers, batch, n_kv_heads, head_dim, capacity: extents; arrays are [L, B, K, capacity, D] of float32.
        last_only: whether logits are wanted for the last position alone.
    """

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, capacity: int, batch: int = 1, last_only: bool = False):
        shape = (n_layers, batch, n_kv_heads, capacity, head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.capacity, self.length, self.last_only = capacity, 0, last_only

    def __len__(self) -> int:
        return self.length

    def rows(self, table: NDArray[np.float32], n_tokens: int) -> Any:
        """Rows of the new tokens' positions."""
        return _narrow(table, self.length, n_tokens)

    def append(self, layer: int, k: Any, v: Any) -> tuple[Any, Any]:
        """Write behind what is there. The length itself moves on with `advance`, once all layers have written."""
        if getattr(k, "__face__", None) is not None or getattr(v, "__face__", None) is not None:
            raise InvalidArgument("kv_cache: append: expected plain arrays, got a tracked value; use NoPast to differentiate")
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise ContextOverflowError(f"kv_cache: {end} tokens: expected at most {self.capacity}; load the model with a larger n_ctx")
        self.keys[layer, :, :, self.length : end], self.values[layer, :, :, self.length : end] = k, v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def last(self, x: Any) -> Any:
        """The last position, or all."""
        return x[:, -1:] if self.last_only else x

    def advance(self, n_tokens: int) -> None:
        """Count the tokens that all layers have appended."""
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises InvalidArgument unless 0 <= length <= len."""
        if not 0 <= length <= self.length:
            raise InvalidArgument(f"kv_cache: truncate: expected 0 to {self.length} tokens, got {length}")
        self.length = length

    def reset(self) -> None:
        """Forget everything."""
        self.length = 0


def _narrow(table: NDArray[np.float32], start: int, count: int) -> NDArray[np.float32]:
    if start + count > len(table):
        raise ContextOverflowError(f"positions: expected at most {len(table)}, got {start + count}; load the model with a larger n_ctx")
    return table[start : start + count]
