"""Files whose tokenizer cannot be used, and ids that do not exist: one clear error each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vocabularies import bpe_metadata, spm_metadata

from llamita.engine.errors import TokenizerError
from llamita.loaders.tokenizer import tokenizer_from_metadata

BPE, SPM = bpe_metadata(["ab"], ["<s>"], merges=["a b"]), spm_metadata({"a": -1.0})


@pytest.mark.parametrize(
    ("base", "key", "value", "says"),
    [
        (BPE, "model", None, "holds no tokenizer"),
        (BPE, "model", "no_vocab", "holds no tokenizer"),
        (BPE, "model", "bert", "'bert' (WordPiece)"),
        (BPE, "model", "t5", "'t5' (Unigram)"),
        (BPE, "model", "rwkv", "'rwkv' (RWKV)"),
        (BPE, "model", "something", "'something'"),
        (BPE, "model", 7, "got 7"),
        (BPE, "tokens", None, "tokens: expected a list of texts, got nothing"),
        (BPE, "tokens", [], "expected a list of texts"),
        (BPE, "tokens", "abc", "expected a list of texts"),
        (BPE, "tokens", np.arange(4), "expected a list of texts"),
        (BPE, "tokens", ["a", 5], "token 1: expected a text, got int"),
        (BPE, "token_type", [1, 2], "token_type: expected 258 entries as in tokenizer.ggml.tokens, got 2"),
        (BPE, "token_type", "x", "token_type: expected one number a token"),
        (BPE, "token_type", [[1], [2, 3]], "token_type: expected one number a token"),
        (BPE, "merges", None, "merges: a byte-level BPE tokenizer needs it"),
        (BPE, "merges", ["a b", "ab"], "entry 1: expected two texts with one space between, got 'ab'"),
        (BPE, "merges", ["a b c"], "entry 0"),
        (BPE, "merges", [3], "entry 0"),
        (BPE, "merges", 3, "merges"),
        (BPE, "merges", ["a zz"], "the merges do not fit the tokens"),
        (BPE, "bos_token_id", 258, "bos_token_id: expected an id in 0..257, got 258"),
        (BPE, "eos_token_id", -2, "eos_token_id: expected an id in 0..257"),
        (BPE, "eot_token_id", "x", "eot_token_id"),
        (BPE, "eos_token_id", True, "eos_token_id"),
        (BPE, "eos_token_id", np.array([1, 2]), "eos_token_id: expected an id in 0..257, got [1 2]"),
        (BPE, "bos_token_id", np.array([], np.int32), "bos_token_id: expected an id"),
        (BPE, "add_bos_token", "yes", "add_bos_token: expected true or false"),
        (SPM, "scores", [1.0], "scores: expected 260 entries"),
        (SPM, "scores", [float("nan")] * 260, "got NaN at token 0"),
        (SPM, "tokens", ["x"] * 260, "byte token 3: expected a name like '<0x0A>', got 'x'"),
    ],
)
def test_unusable_metadata(base: dict[str, Any], key: str, value: Any, says: str) -> None:
    metadata = {**base, f"tokenizer.ggml.{key}": value}
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_metadata(metadata)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, -1, 0xFFFFFFFF])
def test_ids_that_say_there_is_none(value: Any) -> None:
    tokenizer = tokenizer_from_metadata({**BPE, "tokenizer.ggml.bos_token_id": value, "tokenizer.ggml.add_bos_token": True})
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.encode("a") == [BPE["tokenizer.ggml.tokens"].index("a")]


def test_a_merge_may_make_a_control_token() -> None:
    tokenizer = tokenizer_from_metadata(bpe_metadata(control=["ab"], merges=["a b"]))
    assert tokenizer.encode("ab") == [256]


def test_missing_token_types_mean_plain_tokens() -> None:
    metadata = {**BPE}
    del metadata["tokenizer.ggml.token_type"]
    assert tokenizer_from_metadata(metadata).encode("ab") == [256]
    without_scores = {**SPM}
    del without_scores["tokenizer.ggml.scores"]
    assert tokenizer_from_metadata(without_scores).decode([259]) == "a"


def test_doubled_and_empty_tokens_do_no_harm() -> None:
    tokenizer = tokenizer_from_metadata(bpe_metadata(["a", ""], ["", "<s>"]))
    assert tokenizer.decode(tokenizer.encode("a<s>", parse_special=True), skip_special=False) == "a<s>"
    assert tokenizer.decode([256, 257, 258]) == "a"


@pytest.mark.parametrize("metadata", [BPE, SPM], ids=["bpe", "spm"])
@pytest.mark.parametrize("token_id", [-1, 10**6, 1.5, "a", None])
def test_ids_that_do_not_exist(metadata: dict[str, Any], token_id: Any) -> None:
    tokenizer = tokenizer_from_metadata(metadata)
    for call in (lambda i: tokenizer.decode([i]), tokenizer.token_bytes, tokenizer.piece, tokenizer.is_special, tokenizer.stream().push):
        with pytest.raises(TokenizerError, match=r"token id .*expected one in 0\.\."):
            call(token_id)


@pytest.mark.parametrize("metadata", [BPE, SPM], ids=["bpe", "spm"])
def test_text_that_is_no_unicode(metadata: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate at character 1"):
        tokenizer_from_metadata(metadata).encode("a\ud800")
