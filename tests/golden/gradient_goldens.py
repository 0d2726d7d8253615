"""Writes data/golden/decoder_gradients.json: loss and gradients of the tiny decoder, by PyTorch.

    pip install torch
    python tests/golden/gradient_goldens.py

Not a part of the suite; the model is spelled here anew, from the formulas, and shares nothing but the weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tiny_decoder as tiny


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + tiny.EPS) * weight


def rotate(x: torch.Tensor) -> torch.Tensor:
    half = tiny.DIM // 2
    theta = 10000.0 ** (-torch.arange(0, tiny.DIM, 2, dtype=torch.float64) / tiny.DIM)
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * theta
    # The tables are stored in float32.
    cos, sin = angles.cos().float().double(), angles.sin().float().double()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def logits(w: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    x = w["token_embd"][ids]
    batch, tokens = ids.shape
    hidden = torch.full((tokens, tokens), float("-inf"), dtype=torch.float64).triu(1)
    for i in range(tiny.LAYERS):
        at = f"blk.{i}."
        h = norm(x, w[at + "attn_norm"])
        q = rotate((h @ w[at + "attn_q"].T).view(batch, tokens, tiny.HEADS, tiny.DIM).transpose(1, 2))
        k = rotate((h @ w[at + "attn_k"].T).view(batch, tokens, tiny.KV_HEADS, tiny.DIM).transpose(1, 2))
        v = (h @ w[at + "attn_v"].T).view(batch, tokens, tiny.KV_HEADS, tiny.DIM).transpose(1, 2)
        k, v = (t.repeat_interleave(tiny.HEADS // tiny.KV_HEADS, 1) for t in (k, v))
        p = torch.softmax(q @ k.transpose(2, 3) / tiny.DIM**0.5 + hidden, -1)
        x = x + (p @ v).transpose(1, 2).reshape(batch, tokens, -1) @ w[at + "attn_output"].T
        h = norm(x, w[at + "ffn_norm"])
        gated = torch.nn.functional.silu(h @ w[at + "ffn_gate"].T) * (h @ w[at + "ffn_up"].T)
        x = x + gated @ w[at + "ffn_down"].T
    return norm(x, w["output_norm"]) @ w["output"].T


def main() -> None:
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in tiny.parameters().items()}
    out = logits(weights, torch.tensor(tiny.IDS))
    loss = torch.nn.functional.cross_entropy(out.reshape(-1, tiny.VOCAB), torch.tensor(tiny.TARGETS).reshape(-1))
    loss.backward()
    gradients = {}
    for name, value in weights.items():
        g = value.grad.numpy()
        gradients[name] = [float(np.sum(g * tiny.direction(g.shape))), float(np.sqrt(np.sum(g * g)))]
    found = {"torch": torch.__version__, "loss": float(loss.detach()), "gradients": gradients}
    path = Path(__file__).resolve().parents[1] / "data" / "golden" / "decoder_gradients.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
