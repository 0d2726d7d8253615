"""A decoder so small that its gradients can be checked number by number; weights follow from formulas, so goldens hold none."""

from __future__ import annotations

from typing import Any

import numpy as np

LAYERS, HIDDEN, FFN, VOCAB, HEADS, KV_HEADS, DIM = 2, 12, 20, 17, 4, 2, 4
IDS = np.array([[3, 16, 0, 3, 9], [1, 1, 7, 12, 5]])
TARGETS = np.array([[16, 0, 3, 9, 2], [1, 7, 12, 5, 16]])
EPS = 1e-5


def shapes() -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter."""
    found: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        found |= {
            f"blk.{i}.attn_norm": (HIDDEN,),
            f"blk.{i}.attn_q": (HEADS * DIM, HIDDEN),
            f"blk.{i}.attn_k": (KV_HEADS * DIM, HIDDEN),
            f"blk.{i}.attn_v": (KV_HEADS * DIM, HIDDEN),
            f"blk.{i}.attn_output": (HIDDEN, HEADS * DIM),
            f"blk.{i}.ffn_norm": (HIDDEN,),
            f"blk.{i}.ffn_gate": (FFN, HIDDEN),
            f"blk.{i}.ffn_up": (FFN, HIDDEN),
            f"blk.{i}.ffn_down": (HIDDEN, FFN),
        }
    return found | {"output_norm": (HIDDEN,), "output": (VOCAB, HIDDEN)}


def parameters() -> dict[str, np.ndarray]:
    """float64 weights, the same everywhere."""
    out = {}
    for k, (name, shape) in enumerate(shapes().items()):
        wave = np.sin(0.7 * np.arange(np.prod(shape)) * (k + 1) + k).reshape(shape)
        out[name] = 1 + 0.2 * wave if name.endswith("norm") else 0.4 * wave
    return out


def decoder(weights: dict[str, Any]) -> Any:
    """The real decoder, assembled from arrays, tracked values or quantised tensors."""
    from llamita.layers import Attention, Embedding, GatedMlp, Linear, RmsNorm, Rotary
    from llamita.models.llama import Block, Decoder

    rotary = Rotary(DIM, 16)

    def block(i: int) -> Any:
        names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        linear = {name: Linear(weights[f"blk.{i}.{name}"]) for name in names}
        attention = Attention(linear["attn_q"], linear["attn_k"], linear["attn_v"], linear["attn_output"], rotary, HEADS, KV_HEADS)
        mlp = GatedMlp(linear["ffn_gate"], linear["ffn_up"], linear["ffn_down"])
        return Block(RmsNorm(weights[f"blk.{i}.attn_norm"], EPS), attention, RmsNorm(weights[f"blk.{i}.ffn_norm"], EPS), mlp)

    blocks = [block(i) for i in range(LAYERS)]
    return Decoder(Embedding(weights["token_embd"]), blocks, RmsNorm(weights["output_norm"], EPS), Linear(weights["output"]))


def cross_entropy(logits: Any) -> Any:
    """Mean of -log softmax at the targets."""
    from llamita import ops

    chosen = ops.take_along_axis(ops.log_softmax(logits, -1), TARGETS[..., None], -1)
    return ops.neg(ops.reduce_mean(chosen))


def direction(shape: tuple[int, ...]) -> np.ndarray:
    """What a gradient is projected on to be stored."""
    return np.cos(np.arange(np.prod(shape))).reshape(shape)
