"""Heads whose size is no multiple of a vector: the plan equals the layers run one by one, and steps equal a whole prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf_fixtures import write_tiny_llama

from llamita.engine import ops
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.session import build_decoder


@pytest.mark.parametrize(("head_dim", "n_heads", "n_kv_heads"), [(8, 4, 2), (24, 2, 1), (100, 2, 2), (64, 6, 2)])
def test_any_even_head_size(tmp_path: Path, head_dim: int, n_heads: int, n_kv_heads: int) -> None:
    heads = {"head_dim": head_dim, "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    write_tiny_llama(tmp_path / "tiny.gguf", weight_type="F32", hidden=64, ffn=96, n_layers=2, n_ctx=512, **heads)
    with open_checkpoint(tmp_path / "tiny.gguf") as checkpoint, build_decoder(checkpoint, n_ctx=300, activations=32) as decoder:
        ids = np.random.default_rng(0).integers(0, decoder.n_vocab, 200).tolist()
        at_once = decoder.forward_all(ids)
        with ops.composites_only():
            expected = decoder.decoder.forward(np.array([ids]))[0]
        np.testing.assert_allclose(at_once, expected, atol=2e-5)
        decoder.rewind(0)
        steps = np.stack([decoder.forward([token]).copy() for token in ids])
        np.testing.assert_array_equal(steps, at_once)
