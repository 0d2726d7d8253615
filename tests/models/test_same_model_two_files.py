"""One model as a Hugging Face folder and as GGUF: the pairing of rope's rows differs, the logits do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_fixtures import write_tiny_llama, write_tiny_safetensors

from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.session import build_decoder

SHAPE = {"head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "hidden": 64, "ffn": 96, "n_layers": 2}


def logits(path: Path, interleaved: bool | None = None) -> Any:
    with open_checkpoint(path) as checkpoint:
        if interleaved is not None:
            checkpoint.rope_interleaved = interleaved
        with build_decoder(checkpoint, n_ctx=64, activations=32) as decoder:
            return decoder.forward_all([i * 7 % decoder.n_vocab for i in range(40)])


@pytest.mark.parametrize("tied", [False, True])
def test_t31_safetensors_and_gguf_agree(tmp_path: Path, tied: bool) -> None:
    folder = write_tiny_safetensors(tmp_path / "folder", tied=tied, **SHAPE)
    file = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="F32", tied=tied, **SHAPE)
    from_folder, from_file = logits(folder), logits(file)
    np.testing.assert_allclose(from_file, from_folder, atol=1e-4)
    # Trap T21: the wrong pairing gives other logits, so the agreement above is not for want of positions.
    assert np.abs(logits(file, interleaved=False) - from_file).max() > 0.01
