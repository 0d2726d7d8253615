"""What a tokenizer promises of every text: round trips, streaming, special tokens, spaces."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import PUBLISHED, bpe_metadata, published, spm_metadata

from llamita.loaders.pretokenizers import PRE_TOKENIZERS
from llamita.loaders.tokenizer import Tokenizer, tokenizer_from_metadata

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40)
SPACED = st.lists(st.sampled_from([" ", "  ", "\n", "a", "the", "é", "🦙", "1", "!"]), max_size=12).map("".join)
MARKUP = ["<|im_start|>", "<|im_end|>"]
TINY = tokenizer_from_metadata(bpe_metadata(["ab", "abc"], MARKUP, ["<think>"], ["a b", "ab c"], bos_token_id=258, eos_token_id=259))
SPM_WORDS = {
    "\u2581": -1.0,
    "a": -2.0,
    "b": -3.0,
    "\u2581a": -0.5,
    "ab": -0.4,
    "\u2581ab": -0.3,
    "\u2581\u2581": -0.2,
    "<": -9.0,
    "s": -9.0,
    ">": -9.0,
}
TINY_SPM = tokenizer_from_metadata(spm_metadata(SPM_WORDS, ["[INST]"], ["<tool>"]))


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special)
    return [*map(stream.push, ids), stream.flush()]


# ---- round trips


@pytest.mark.parametrize("name", PUBLISHED)
@given(text=st.one_of(TEXTS, SPACED))
@settings(deadline=None)
def test_decoding_gives_the_text_back(name: str, text: str) -> None:
    tokenizer = published(name)
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(rule=st.sampled_from(sorted(PRE_TOKENIZERS)), text=TEXTS)
@settings(deadline=None)
def test_no_pre_tokenizer_loses_text(rule: str, text: str) -> None:
    tokenizer = tokenizer_from_metadata(bpe_metadata(pre=rule))
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize("tokenizer", [TINY, TINY_SPM], ids=["bpe", "spm"])
@given(parts=st.lists(st.sampled_from([*MARKUP, "[INST]", "</s>", "<tool>", "<think>", "a", " ab", " ", "\n", "é"]), max_size=10))
def test_parsed_special_tokens_give_the_text_back(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    for parse_special in (False, True):
        ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
        assert tokenizer.decode(ids, skip_special=False) == text


# ---- streaming


@pytest.mark.parametrize("name", PUBLISHED)
@given(data=st.data(), skip_special=st.booleans())
@settings(deadline=None)
def test_stream_adds_up_to_decode(name: str, data: st.DataObject, skip_special: bool) -> None:
    tokenizer = published(name)
    special = sorted(tokenizer.special_texts.values())
    ids = data.draw(st.lists(st.one_of(st.integers(0, tokenizer.vocab_size - 1), st.integers(0, 300), st.sampled_from(special))))
    assert "".join(streamed(tokenizer, ids, skip_special)) == tokenizer.decode(ids, skip_special)


@given(data=st.binary(max_size=24))
def test_any_bytes_decode_as_utf8(data: bytes) -> None:
    table = {TINY.token_bytes(i)[0]: i for i in range(256)}
    ids = [table[byte] for byte in data]
    assert TINY.decode(ids) == "".join(streamed(TINY, ids)) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("tokenizer", [TINY, TINY_SPM], ids=["bpe", "spm"])
def test_a_character_comes_out_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🦙", add_special=False)
    ids = ids[-4:]  # without the space that SentencePiece puts before
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == ["", "", "", "🦙"]
    assert [stream.push(i) for i in ids[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(ids[0]) + stream.push(ids[1]) == ""  # and it can go on
    assert tokenizer.decode(ids[:3]) == "\ufffd"


def test_stream_continues_a_prompt() -> None:
    prompt, answer = TINY_SPM.encode("a"), TINY_SPM.encode(" ab b", add_special=False)[1:]
    whole = TINY_SPM.decode([*prompt, *answer])
    stream = TINY_SPM.stream(after=prompt)
    assert TINY_SPM.decode(prompt) + "".join(map(stream.push, answer)) + stream.flush() == whole
    after_markup = TINY_SPM.stream(after=[TINY_SPM.special_texts["[INST]"]])
    assert after_markup.push(TINY_SPM.encode("ab", add_special=False)[0]) == "ab"


# ---- special tokens


def test_special_tokens_are_parsed_only_when_asked() -> None:
    text = "a<|im_start|>b<|im_end|>"
    assert TINY.encode(text, parse_special=True)[1::2] == [258, 259]
    plain = TINY.encode(text)
    assert not {258, 259} & set(plain)
    assert TINY.decode(plain) == text
    assert not {1, 2} & set(TINY_SPM.encode("<s>a</s>", add_special=False))


def test_user_defined_tokens_are_always_found() -> None:
    assert TINY.encode("a<think>b").count(260) == 1
    assert TINY.decode([260]) == "<think>"
    assert not TINY.is_special(260)


def test_longest_special_token_wins_and_guards_protect() -> None:
    tokenizer = tokenizer_from_metadata(bpe_metadata(control=["<e>", "<e><e>"]))
    assert tokenizer.encode("<e><e><e>", parse_special=True) == [257, 256]
    assert tokenizer.encode("<#e><e>", parse_special=True, guard="#") == [*tokenizer.encode("<e>"), 256]
    assert tokenizer.encode("a#b", guard="#") == tokenizer.encode("ab")


def test_decoding_skips_special_tokens_unless_asked() -> None:
    ids = TINY.encode("<|im_start|>hi<|im_end|>", parse_special=True)
    assert TINY.decode(ids) == "hi"
    assert TINY.decode(ids, skip_special=False) == "<|im_start|>hi<|im_end|>"
    assert [TINY.is_special(i) for i in ids] == [True, False, False, True]
    assert TINY.decode(np.array(ids)) == "hi"


def test_merging_never_makes_a_special_token() -> None:
    words = {"</": -1.0, "s>": -1.0, "<": -2.0, "/": -2.0, "s": -2.0, ">": -2.0, "<0": -1.0, "x0A>": -1.0}
    tokenizer = tokenizer_from_metadata(spm_metadata(words))
    assert 2 not in tokenizer.encode("</s>", add_special=False)
    ignoring = tokenizer_from_metadata(bpe_metadata(control=["end"], pre="llama-bpe", bos_token_id=256))
    assert 256 not in ignoring.encode("end", add_special=False)


# ---- begin, end, end of generation


def test_bos_and_eos_follow_the_file_and_the_family() -> None:
    def first_last(**keys: object) -> tuple[bool, bool]:
        metadata = bpe_metadata(control=MARKUP, bos_token_id=256, eos_token_id=257, **keys)
        ids = tokenizer_from_metadata(metadata).encode("x")
        return ids[0] == 256, ids[-1] == 257

    assert first_last() == (False, False)
    assert first_last(pre="llama-bpe") == first_last(pre="tekken") == (True, False)
    assert first_last(pre="llama-bpe", add_bos_token=False) == (False, False)
    assert first_last(add_bos_token=True, add_eos_token=True) == (True, True)
    assert TINY_SPM.encode("a")[0] == 1
    assert TINY_SPM.encode("a", add_special=False)[0] != 1
    assert tokenizer_from_metadata(spm_metadata(SPM_WORDS, add_bos_token=False)).encode("") == []


def test_bos_is_never_doubled() -> None:
    assert TINY_SPM.encode("<s>a", parse_special=True) == TINY_SPM.encode("a")
    assert TINY_SPM.encode("") == [1]


@pytest.mark.parametrize(
    ("control", "keys", "ends"),
    [
        (["<|eot_id|>", "<|end_of_text|>", "<|header|>"], {"eos_token_id": 257}, {256, 257}),
        (["<|im_end|>", "</s>"], {}, {256, 257}),
        (["A", "B", "C", "D"], {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258}, {256, 257, 258}),
        (["<|end|>", "<|return|>", "<|call|>"], {}, {257, 258}),
        (["<|end|>", "<|user|>"], {}, {256}),
        ([], {}, set()),
    ],
)
def test_every_token_that_ends_a_generation_counts(control: list[str], keys: dict[str, int], ends: set[int]) -> None:
    assert tokenizer_from_metadata(bpe_metadata(control=control, **keys)).eog_ids == ends


def test_an_end_token_marked_as_a_word_is_markup_all_the_same() -> None:
    tokenizer = tokenizer_from_metadata(bpe_metadata(user_defined=["<|im_end|>"]))
    assert tokenizer.eog_ids == {256}
    assert tokenizer.is_special(256)
    assert 256 not in tokenizer.encode("<|im_end|>")


# ---- spaces


@pytest.mark.parametrize("text", ["a", " a", "  a", "", " ", "a ", "ab a", "<tool> a", "<tool>a"])
@pytest.mark.parametrize("prefix", [True, False])
def test_spaces_survive(text: str, prefix: bool) -> None:
    tokenizer = tokenizer_from_metadata(spm_metadata(SPM_WORDS, user_defined=["<tool>"], add_space_prefix=prefix))
    for ids in (tokenizer.encode(text), tokenizer.encode(text, add_special=False)):
        assert tokenizer.decode(ids) == "".join(streamed(tokenizer, ids)) == text


def test_space_prefix_follows_the_file() -> None:
    def pieces(prefix: bool) -> list[str]:
        tokenizer = tokenizer_from_metadata(spm_metadata(SPM_WORDS, add_space_prefix=prefix))
        return [tokenizer.piece(i) for i in tokenizer.encode("a</s>b", add_special=False, parse_special=True)]

    assert pieces(True) == [" a", "</s>", " ", "b"]
    assert pieces(False) == ["a", "</s>", "b"]


def test_phi3_markup_swallows_white_space() -> None:
    metadata = spm_metadata(SPM_WORDS, ["<|user|>", "<|endoftext|>"])
    swallowing = tokenizer_from_metadata({**metadata, "general.name": "Phi 3 mini / Phi3"})
    user, end = (swallowing.special_texts[text] for text in ("<|user|>", "<|endoftext|>"))
    assert swallowing.encode("<|user|>\n \na", False, True) == [user, *swallowing.encode("a", False)]
    assert swallowing.encode("<|endoftext|>\na", False, True) == [end, *swallowing.encode("\na", False)]


# ---- single tokens, scores


def test_pieces_and_bytes() -> None:
    assert TINY_SPM.piece(TINY_SPM.encode(" a", add_special=False)[0]) in (" ", "  ")
    assert TINY_SPM.token_bytes(3 + 0xF0) == b"\xf0"
    assert TINY_SPM.piece(3 + 0xF0) == "\\xf0"
    assert TINY.piece(258) == "<|im_start|>"
    assert TINY.vocab_size == 261


def test_highest_score_merges_first_then_the_leftmost() -> None:
    words = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "aa": -3.0}
    tokenizer = tokenizer_from_metadata(spm_metadata(words, add_space_prefix=False))

    def pieces(text: str) -> list[str]:
        return [tokenizer.piece(i) for i in tokenizer.encode(text, add_special=False)]

    assert pieces("abc") == ["a", "bc"]
    assert pieces("aaa") == ["aa", "a"]
    assert pieces("ab" * 50) == ["ab"] * 50  # longer than words that are cached


def test_tokens_with_a_space_inside_merge_across_words() -> None:
    words = {"a": -9.0, "\u2581": -9.0, "a\u2581": -2.0, "a\u2581a": -1.0}
    tokenizer = tokenizer_from_metadata(spm_metadata(words, add_space_prefix=False))
    assert [tokenizer.piece(i) for i in tokenizer.encode("a a", add_special=False)] == ["a a"]


def test_unknown_characters_without_byte_tokens() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1],
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert tokenizer_from_metadata(metadata).encode("aé") == [1, 3, 0]


def test_an_unknown_pre_tokenizer_is_a_loud_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="llamita"):
        tokenizer = tokenizer_from_metadata(bpe_metadata(pre="brand-new"))
        assert "brand-new" in caplog.text
        caplog.clear()
        missing = bpe_metadata()
        del missing["tokenizer.ggml.pre"]
        tokenizer_from_metadata(missing)
        assert "does not name its pre-tokenizer" in caplog.text
        caplog.clear()
        tokenizer_from_metadata(bpe_metadata())
        assert not caplog.text
    assert tokenizer.decode(tokenizer.encode("it's 1234!")) == "it's 1234!"
