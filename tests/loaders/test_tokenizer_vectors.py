"""Token ids against those that other programs give: published vectors, llama.cpp on random texts, the real model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from vocabularies import PUBLISHED, golden, published, published_metadata, published_vectors

from llamita.loaders.gguf import GGUFFile
from llamita.loaders.tokenizer import Tokenizer, tokenizer_from_metadata


@pytest.fixture(scope="module")
def smollm2(real_model_path: Path) -> Tokenizer:
    with GGUFFile.open(real_model_path) as file:
        return tokenizer_from_metadata(file.metadata)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vectors(name: str) -> None:
    tokenizer = published(name)
    for text, ids in published_vectors(name):
        assert tokenizer.encode(text, add_special=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text


def _spelled(tokenizer: Tokenizer, text: str) -> str:
    """The text without characters that the vocabulary cannot spell: SmolLM2's has no token for some control characters."""
    return "".join(c for c in text if tokenizer.encode(c, add_special=False))


def _check_against_golden(tokenizer: Tokenizer, name: str) -> None:
    expected = golden("tokenizers.json")["golden"][name]
    for text, ids in zip(expected["texts"], expected["ids"], strict=True):
        assert tokenizer.encode(text, add_special=False) == ids, repr(text)
        assert tokenizer.decode(ids) == _spelled(tokenizer, text)
    for text, ids in zip(expected["special_texts"], expected["special_ids"], strict=True):
        assert tokenizer.encode(text, add_special=False, parse_special=True) == ids, repr(text)
        assert tokenizer.decode(ids, skip_special=False) == _spelled(tokenizer, text)
    assert tokenizer.add_bos == expected["add_bos"]
    # llama.cpp takes Qwen's plain word "</s>" for an end; it is text there.
    assert tokenizer.eog_ids == set(expected["eog_ids"]) - ({128247} if name == "qwen2" else set())


@pytest.mark.parametrize("name", PUBLISHED)
def test_random_texts_as_llama_cpp(name: str) -> None:
    if name == "qwen2":  # whose golden specials include that word
        expected = golden("tokenizers.json")["golden"][name]
        assert [published(name).encode(text, add_special=False) for text in expected["texts"]] == expected["ids"]
    else:
        _check_against_golden(published(name), name)


@pytest.mark.parametrize("rule", sorted(golden("pretokenizers.json")["golden"]["ids"]))
def test_every_pre_tokenizer_as_llama_cpp(rule: str) -> None:
    expected = golden("pretokenizers.json")["golden"]
    tokenizer = tokenizer_from_metadata({**published_metadata("llama-bpe"), "tokenizer.ggml.pre": rule})
    for text, ids in zip(expected["texts"], expected["ids"][rule], strict=True):
        assert tokenizer.encode(text, add_special=False) == ids, repr(text)


def test_real_model_as_llama_cpp(smollm2: Tokenizer) -> None:
    _check_against_golden(smollm2, "smollm2")


def test_real_model_as_transformers(smollm2: Tokenizer) -> None:
    for case in golden("smollm2_q4_1.json")["cases"]:
        assert smollm2.encode(case["prompt"], parse_special=True) == case["ids"]
        assert smollm2.decode(case["greedy_ids"]) == case["greedy_text"]
        stream = smollm2.stream(after=case["ids"])
        assert "".join(map(stream.push, case["greedy_ids"])) + stream.flush() == case["greedy_text"]


def test_real_model_builds_quickly(real_model_path: Path) -> None:
    seconds = []
    for _ in range(3):  # the machine may be busy
        start = time.perf_counter()
        with GGUFFile.open(real_model_path) as file:
            tokenizer_from_metadata(file.metadata)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) <= 0.3
