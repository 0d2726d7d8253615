"""The examples run, and what they print means what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import tiny_decoder as tiny

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "saliency.py"))


def test_scores_predict_what_fading_a_token_does():
    decoder = tiny.decoder(tiny.parameters())
    ids = [3, 16, 0, 9]
    target, scores = EXAMPLE["saliency"](decoder, ids)
    x = decoder.embedding.forward(np.array([ids]))
    assert target == int(np.argmax(decoder.from_embeddings(x)[0, -1]))
    for token in range(len(ids)):
        less, more = x.copy(), x.copy()
        less[0, token] *= 1 - 1e-5
        more[0, token] *= 1 + 1e-5
        slope = (decoder.from_embeddings(more) - decoder.from_embeddings(less))[0, -1, target] / 2e-5
        np.testing.assert_allclose(scores[token], slope, rtol=1e-5, atol=1e-6)


def test_bars():
    text = EXAMPLE["show"](["a", " b"], np.array([2.0, -1.0]), width=4)
    assert text.splitlines() == ["             'a'   +2.000 ####", "            ' b'   -1.000 --"]


def test_saliency_of_the_real_model(real_model_path, capsys):
    EXAMPLE["main"](["The capital of France is", "--model", str(real_model_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("next token: ")
    assert [line.split("'")[1].strip() for line in lines[1:]][-3:] == ["of", "France", "is"]
    EXAMPLE["main"](["The capital of France is", "--word", " Paris", "--model", str(real_model_path)])
    assert capsys.readouterr().out.startswith("next token: ' Paris'")
