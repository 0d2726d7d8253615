"""Where a token's time goes: every instruction is in it, and the bytes are those of the packed weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_fixtures import write_tiny_llama

from llamita.engine.errors import ClosedError
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.profile import profile, profile_table
from llamita.models.session import build_decoder


def test_a_profile_names_every_kind_and_counts_the_weights(tmp_path: Path) -> None:
    shape = {"head_dim": 16, "n_heads": 2, "n_kv_heads": 1, "hidden": 32, "ffn": 64, "n_layers": 2}
    write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q8_0", tied=True, **shape)
    with open_checkpoint(tmp_path / "tiny.gguf") as checkpoint, build_decoder(checkpoint, n_ctx=32, n_threads=2) as decoder:
        shares = profile(decoder, depth=8)
        counts = {share.label: share.count for share in shares}
        assert counts["ffn_down"] == counts["sdpa"] == counts["gated_silu"] == 2
        assert counts["rms_norm"] == 5
        assert all(share.seconds > 0 for share in shares)
        assert sum(share.n_bytes for share in shares) == decoder.packed_bytes
        assert decoder.cached_ids == []
        lines = list(profile_table(shares))
        assert len(lines) == len(shares) + 3 and lines[-1].startswith("| one token |")
    with pytest.raises(ClosedError):
        decoder.timed_steps(1)
