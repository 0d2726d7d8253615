"""The decoder: one definition for direct, eager and traced runs, assembled once from a checkpoint.

Architectures differ by which parts the blocks are made of; nothing in `forward` asks which one it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.errors import CorruptFileError, UnsupportedModelError
from ..engine.kv_cache import NoPast, Past
from ..layers import Attention, Embedding, GatedMlp, Layer, Linear, RmsNorm, Rotary
from ..loaders.checkpoint import Checkpoint
from ..quant.formats import format_by_name
from ..quant.qtensor import QTensor
from .config import ModelConfig


class Block(Layer):
    """x + attention(norm(x)), then x + mlp(norm(x)); x [B, T, C]."""

    def __init__(self, attention_norm: RmsNorm, attention: Attention, mlp_norm: RmsNorm, mlp: GatedMlp):
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(self, x: Any, past: Past, layer: int) -> Any:
        """One block, the `layer`-th of `past`."""
        x = x + self.attention.forward(self.attention_norm.forward(x), past, layer)
        return x + self.mlp.forward(self.mlp_norm.forward(x))


class Decoder(Layer):
    """ids int [B, T] -> logits [B, T', V]; T' is 1 or T, as `past` says."""

    def __init__(self, embedding: Embedding, blocks: list[Block], norm: RmsNorm, output: Linear):
        self.embedding, self.blocks, self.norm, self.output = embedding, blocks, norm, output

    def forward(self, ids: Any, past: Past | None = None) -> Any:
        """Logits of the tokens that follow `past`; without it the ids are a whole sequence."""
        return self.from_embeddings(self.embedding.forward(ids), past)

    def from_embeddings(self, x: Any, past: Past | None = None) -> Any:
        """The same from embedded tokens [B, T, C] on: what gradients are taken with respect to."""
        past = NoPast() if past is None else past
        for layer, block in enumerate(self.blocks):
            x = block.forward(x, past, layer)
        return self.output.forward(self.norm.forward(past.last(x)))


def assemble(checkpoint: Checkpoint, config: ModelConfig, positions: int) -> Decoder:
    """Build the decoder of a checkpoint, for sequences of up to `positions` tokens.

    Raises CorruptFileError when a tensor is missing or has another shape than the metadata says, UnsupportedModelError when
    there is one that this decoder has no use for: without it the model would be another one.
    """
    used = set[str]()

    def use(name: str) -> str:
        used.add(name)
        return name

    c, kv = config, config.n_kv_heads * config.head_dim
    q_rows = c.n_heads * c.head_dim
    has_factors = "rope_freqs.weight" in checkpoint.tensors
    factors = vector(checkpoint, use("rope_freqs.weight"), c.head_dim // 2) if has_factors else None
    rotary = Rotary(c.head_dim, positions, c.rope_base, c.rope_interleaved, c.rope_scale, factors)

    def linear(name: str, rows: int, columns: int) -> Linear:
        bias = f"{name}.bias"
        return Linear(
            matrix(checkpoint, use(f"{name}.weight"), rows, columns),
            vector(checkpoint, use(bias), rows) if bias in checkpoint.tensors else None,
        )

    def norm(name: str) -> RmsNorm:
        return RmsNorm(vector(checkpoint, use(f"{name}.weight"), c.hidden), c.norm_eps)

    def block(i: int) -> Block:
        at = f"blk.{i}."
        attention = Attention(
            linear(at + "attn_q", q_rows, c.hidden),
            linear(at + "attn_k", kv, c.hidden),
            linear(at + "attn_v", kv, c.hidden),
            linear(at + "attn_output", c.hidden, q_rows),
            rotary,
            c.n_heads,
            c.n_kv_heads,
        )
        mlp = GatedMlp(
            linear(at + "ffn_gate", c.ffn, c.hidden), linear(at + "ffn_up", c.ffn, c.hidden), linear(at + "ffn_down", c.hidden, c.ffn)
        )
        return Block(norm(at + "attn_norm"), attention, norm(at + "ffn_norm"), mlp)

    embedding = Embedding(matrix(checkpoint, use("token_embd.weight"), c.vocab, c.hidden))
    tied = "output.weight" not in checkpoint.tensors
    output = Linear(embedding.weight) if tied else linear("output", c.vocab, c.hidden)
    decoder = Decoder(embedding, [block(i) for i in range(c.n_layers)], norm("output_norm"), output)
    _expect_no_more(checkpoint, used)
    return decoder


def matrix(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> QTensor:
    """A weight matrix [rows, columns]; float32 ones are wrapped, so that all of them pack alike."""
    tensor = checkpoint.tensor(name)
    _expect_shape(checkpoint, name, tuple(tensor.shape), (rows, columns))
    if isinstance(tensor, QTensor):
        return tensor
    dense = np.ascontiguousarray(tensor, np.float32)
    return QTensor(format_by_name("F32"), (rows, columns), dense.view(np.uint8).reshape(rows, 4 * columns), name)


def vector(checkpoint: Checkpoint, name: str, length: int) -> Any:
    """A norm weight or bias [length] as float32."""
    tensor = checkpoint.tensor(name)
    _expect_shape(checkpoint, name, tuple(tensor.shape), (length,))
    return tensor.dequantize() if isinstance(tensor, QTensor) else np.ascontiguousarray(tensor, np.float32)


def _expect_no_more(checkpoint: Checkpoint, used: set[str]) -> None:
    """Refuse tensors that nothing uses. Old conversions kept the rotation's frequencies as one; they follow from the metadata."""
    more = [name for name in checkpoint.tensors if name not in used and not name.endswith("attn_rot_embd.weight")]
    if more:
        shown = ", ".join(more[:4]) + (f" and {len(more) - 4} more" if len(more) > 4 else "")
        what = f"expected those of a plain {checkpoint.architecture} decoder, got {shown} too"
        raise UnsupportedModelError(f"{checkpoint.path}: tensors: {what}; such a model is not supported")


def _expect_shape(checkpoint: Checkpoint, name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        problem = f"expected shape {list(expected)}, got {list(got)}"
        raise CorruptFileError(f"{checkpoint.path}: {name}: {problem}; metadata and tensors disagree")
