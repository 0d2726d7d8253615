"""perplexity: llama-perplexity's rule, against a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mock_model import BOS, MockModel

from llamita.engine.errors import InvalidArgument
from llamita.models.perplexity import perplexity

N_CTX = 20


def naive(ids: list[int], n_ctx: int, bos: int | None) -> tuple[float, float]:
    losses = []
    for start in range(0, len(ids) // n_ctx * n_ctx, n_ctx):
        chunk = ids[start : start + n_ctx]
        if bos is not None:
            chunk[0] = bos
        for position in range(n_ctx // 2, n_ctx - 1):
            logits = MockModel().logits_after(chunk[: position + 1]).astype(np.float64)
            losses.append(math.log(np.exp(logits).sum()) - logits[chunk[position + 1]])
    mean, n = sum(losses) / len(losses), len(losses)
    variance = sum(loss * loss for loss in losses) / n - mean * mean
    return math.exp(mean), math.exp(mean) * math.sqrt(variance / (n - 1))


@pytest.mark.parametrize("bos", [None, BOS])
def test_equals_a_plain_loop(bos: int | None) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 256, 3 * N_CTX + 7)]
    scores = list(perplexity(MockModel(), ids, N_CTX, bos))
    assert [(score.chunks, score.n_chunks) for score in scores] == [(1, 3), (2, 3), (3, 3)]
    value, error = naive(ids, N_CTX, bos)
    assert scores[-1].value == pytest.approx(value, rel=1e-9) and scores[-1].error == pytest.approx(error, rel=1e-6)


def test_long_chunks_are_scored_in_pieces() -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 256, 400)]
    (score, _) = perplexity(MockModel(n_ctx=200), ids, 200)
    assert score.value == pytest.approx(naive(ids[:200], 200, None)[0], rel=1e-9)


def test_text_is_llama_perplexitys() -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 256, 2 * N_CTX)]
    first, last = perplexity(MockModel(), ids, N_CTX)
    assert first.text == f"[1]{first.value:.4f},"
    assert last.text == f"[2]{last.value:.4f},\nFinal estimate: PPL = {last.value:.4f} +/- {last.error:.5f}\n"


def test_fewer_chunks_on_demand() -> None:
    assert len(list(perplexity(MockModel(), [1] * 5 * N_CTX, N_CTX, max_chunks=2))) == 2


@pytest.mark.parametrize(
    ("n_ids", "n_ctx", "words"), [(2 * N_CTX - 1, N_CTX, "at least 40 tokens.*got 39"), (100, 3, "at least 4"), (500, 65, "at most 64")]
)
def test_refusals(n_ids: int, n_ctx: int, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        perplexity(MockModel(n_ctx=64), [1] * n_ids, n_ctx)
