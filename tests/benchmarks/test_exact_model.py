"""The float64 model of the benchmarks, and the package's float path: written apart, they must agree."""

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_fixtures import write_tiny_llama

import llamita

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from exact_model import ExactModel

IDS = [1, 17, 300, 5, 5, 42, 99, 0, 256, 31]
SHAPE = {"hidden": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn": 96}


@pytest.mark.parametrize(
    "options", [{"weight_type": "F32"}, {"weight_type": "Q8_0", "tied": True}, {"weight_type": "F16", "qkv_bias": True}], ids=str
)
def test_exact_and_float32_logits_agree(tmp_path, options):
    path = write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE, **options)
    with ExactModel(path) as exact, llamita.load(path, n_ctx=32, n_threads=1, activations=32) as llm:
        pieces = list(exact.logits(IDS, 4))
        assert [len(piece) for piece in pieces] == [4, 4, 2]
        expected = np.concatenate(pieces)
        np.testing.assert_allclose(llm.logits(IDS), expected, rtol=0, atol=2e-5 * np.abs(expected).max())
