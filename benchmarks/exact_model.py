"""The model as its file says it, in float64: what rounding of any side is measured against.

Written down with NumPy, apart from the package's own layers; only files are read through llamita. One layer's weights are
held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llamita.loaders.checkpoint import Checkpoint, open_checkpoint
from llamita.models.config import ModelConfig, read_config

Float64 = NDArray[np.float64]
QUERIES = 128  # whose scores are held at once


class ExactModel:
    """A LLaMA-like decoder over a checkpoint; close it by leaving its `with` block."""

    def __init__(self, path: Path):
        self._checkpoint: Checkpoint = open_checkpoint(path)
        self.config: ModelConfig = read_config(self._checkpoint)

    def __enter__(self) -> ExactModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self._checkpoint.close()

    def _weight(self, name: str) -> Float64:
        tensor = self._checkpoint.tensor(name)
        return np.asarray(tensor.dequantize() if hasattr(tensor, "dequantize") else tensor, np.float64)

    def _linear(self, x: Float64, name: str) -> Float64:
        y = x @ self._weight(f"{name}.weight").T
        return y + self._weight(f"{name}.bias") if f"{name}.bias" in self._checkpoint.tensors else y

    def _norm(self, x: Float64, name: str) -> Float64:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config.norm_eps) * self._weight(f"{name}.weight")

    def _rotate(self, x: Float64) -> Float64:
        """x [H, T, D] turned by the angles of positions 0 to T - 1."""
        c = self.config
        theta = c.rope_base ** (-np.arange(0, c.head_dim, 2) / c.head_dim)
        if "rope_freqs.weight" in self._checkpoint.tensors:
            theta /= self._weight("rope_freqs.weight")
        angles = np.arange(x.shape[1])[:, None] / c.rope_scale * theta
        cos, sin = np.cos(angles), np.sin(angles)
        half = c.head_dim // 2
        first, second = (slice(0, None, 2), slice(1, None, 2)) if c.rope_interleaved else (slice(0, half), slice(half, None))
        y = np.empty_like(x)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def _attend(self, x: Float64, at: str) -> Float64:
        c, n = self.config, len(x)

        def heads(name: str, count: int) -> Float64:
            return self._linear(x, at + name).reshape(n, count, c.head_dim).transpose(1, 0, 2)

        q, k, v = self._rotate(heads("attn_q", c.n_heads)), self._rotate(heads("attn_k", c.n_kv_heads)), heads("attn_v", c.n_kv_heads)
        group, y = c.n_heads // c.n_kv_heads, np.empty((n, c.n_heads, c.head_dim))
        for head in range(c.n_heads):
            for start in range(0, n, QUERIES):
                end = min(start + QUERIES, n)
                scores = q[head, start:end] @ k[head // group, :end].T / c.head_dim**0.5
                scores[np.arange(end) > np.arange(start, end)[:, None]] = -np.inf
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                y[start:end, head] = weights @ v[head // group, :end] / weights.sum(axis=1, keepdims=True)
        return self._linear(y.reshape(n, -1), at + "attn_output")

    def _mlp(self, x: Float64, at: str) -> Float64:
        gate = self._linear(x, at + "ffn_gate")
        return self._linear(gate / (1 + np.exp(-gate)) * self._linear(x, at + "ffn_up"), at + "ffn_down")

    def logits(self, ids: Sequence[int], piece: int) -> Iterator[Float64]:
        """Logits [<= piece, V] of all ids, read as one sequence, a piece after the other."""
        embedding = self._weight("token_embd.weight")
        x = embedding[list(ids)]
        tied = "output.weight" not in self._checkpoint.tensors
        for layer in range(self.config.n_layers):
            at = f"blk.{layer}."
            x = x + self._attend(self._norm(x, at + "attn_norm"), at)
            x = x + self._mlp(self._norm(x, at + "ffn_norm"), at)
        x, output = self._norm(x, "output_norm"), embedding if tied else self._weight("output.weight")
        for start in range(0, len(x), piece):
            yield x[start : start + piece] @ output.T
