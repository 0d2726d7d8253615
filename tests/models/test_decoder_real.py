"""The default model against float32 references, and against itself: chunks, threads, steps, rewinds.

Oracle of the goldens: transformers' LlamaForCausalLM in float32 on the same weights, dequantised (tests/data/golden).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamita.engine.errors import ContextOverflowError, IndexOutOfRange, InvalidArgument
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.session import DecoderSession, build_decoder

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden/smollm2_q4_1.json").read_text(encoding="utf-8"))["cases"]
TEXT_IDS = [token for case in GOLDEN for token in case["ids"] + case["greedy_ids"]] * 2  # 200 and more tokens


@pytest.fixture(scope="module")
def decoders(real_model_path: Path) -> Iterator[Any]:
    """`decoders(activations, n_threads)`: one session of each kind, made when first asked for."""
    made: dict[tuple[int, int], DecoderSession] = {}
    with open_checkpoint(real_model_path) as checkpoint:

        def get(activations: int = 16, n_threads: int = 2) -> DecoderSession:
            key = (activations, n_threads)
            if key not in made:
                made[key] = build_decoder(checkpoint, n_ctx=512, n_threads=n_threads, activations=activations)
            made[key].rewind(0)
            return made[key]

        yield get
        for decoder in made.values():
            decoder.close()


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:12])
def test_float_path_gives_the_golden_logits_and_tokens(decoders: Any, case: dict[str, Any]) -> None:
    decoder = decoders(32)
    logits = decoder.forward(case["ids"]).copy()
    for token, expected in case["top_logits"]:
        assert abs(float(logits[token]) - expected) <= 0.002, token
    assert abs(float(np.logaddexp.reduce(logits.astype(np.float64))) - case["logsumexp"]) <= 0.002
    greedy = []
    for _ in case["greedy_ids"]:
        greedy.append(int(logits.argmax()))
        logits = decoder.forward(greedy[-1:])
    assert greedy == case["greedy_ids"]


@pytest.mark.parametrize(("activations", "bound"), [(8, 5e-3), (16, 5e-6)])
def test_divergence_of_integer_activations(decoders: Any, activations: int, bound: float, capsys: pytest.CaptureFixture[str]) -> None:
    ids = TEXT_IDS[:200]
    exact = decoders(32).forward_all(ids).astype(np.float64)
    rounded = decoders(activations).forward_all(ids).astype(np.float64)
    p, q = (x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in (exact, rounded))
    mean = float((np.exp(p) * (p - q)).sum(1).mean())
    with capsys.disabled():
        print(f"\nmean KL of {activations}-bit activations to float32 over {len(ids)} positions: {mean:.2e}")
    assert 0 < mean <= bound


@pytest.mark.parametrize("activations", [8, 16, 32])
def test_logits_do_not_depend_on_chunks_steps_or_threads(decoders: Any, activations: int) -> None:
    ids = TEXT_IDS[:180]  # more than one chunk of prefill and one part of attention
    decoder = decoders(activations)
    whole = decoder.forward_all(ids)
    for chunk in (1, 7, 64, 180):
        decoder.rewind(0)
        rows = {}
        for start in range(0, len(ids), chunk):
            rows[min(start + chunk, len(ids)) - 1] = decoder.forward(ids[start : start + chunk]).copy()
        for position, row in rows.items():
            np.testing.assert_array_equal(row, whole[position], err_msg=f"chunks of {chunk}, position {position}")
    for n_threads in (1, 3):
        np.testing.assert_array_equal(decoders(activations, n_threads).forward_all(ids), whole, err_msg=f"{n_threads} threads")


def test_later_tokens_do_not_matter_and_a_rewind_forgets(decoders: Any) -> None:
    decoder = decoders()
    first = decoder.forward_all(TEXT_IDS[:40])
    np.testing.assert_array_equal(decoder_rows(decoder, TEXT_IDS[:20] + TEXT_IDS[60:80])[:20], first[:20])
    decoder.rewind(20)
    assert decoder.cached_ids == TEXT_IDS[:20]
    np.testing.assert_array_equal(decoder.forward_all(TEXT_IDS[20:40]), first[20:])
    np.testing.assert_array_equal(decoder_rows(decoder, TEXT_IDS[:40]), first)


def decoder_rows(decoder: DecoderSession, ids: list[int]) -> np.ndarray:
    """All logits from an empty cache."""
    decoder.rewind(0)
    return decoder.forward_all(ids)


def test_refusals_append_nothing(decoders: Any) -> None:
    decoder = decoders()
    decoder.forward(TEXT_IDS[:5])
    with pytest.raises(InvalidArgument, match=r"position: expected 5.*got 4"):
        decoder.forward([1], position=4)
    with pytest.raises(IndexOutOfRange, match="49152"):
        decoder.forward([1, 49152])
    with pytest.raises(ContextOverflowError, match=r"513.*512"):
        decoder.forward([1] * 508)
    with pytest.raises(InvalidArgument):
        decoder.rewind(6)
    with pytest.raises(InvalidArgument):
        decoder.forward([])
    assert decoder.cached_ids == TEXT_IDS[:5]
    decoder.forward([1], position=5)
