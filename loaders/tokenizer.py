"""Text to token ids and back, for the tokenizer of one model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import index
from typing import Any

from ..engine.errors import TokenizerError
from .pretokenizers import pre_tokenizer
from .streaming import TextStream
from .subwords import ByteLevelBPE, ScoreMerges, Subwords
from .tokenizer_json import read_tokenizer_json
from .vocabulary import Vocabulary, merges_from_metadata, scores_from_metadata, vocabulary_from_metadata

_UNSUPPORTED = {"bert": "WordPiece", "t5": "Unigram", "rwkv": "RWKV", "plamo2": "PLaMo-2", "gemma4": "Gemma 4"}


class Tokenizer:
    """The tokenizer of one model.

    `decode(encode(text, add_special=False)) == text` for every text whose characters the vocabulary can spell; a
    SentencePiece vocabulary takes U+2581 for a space.

    vocab_size: number of ids.  bos_id, eos_id: begin and end of a text, or None.
    eog_ids: the ids after which a generation ends (end of turn, of text, of message ...).
    add_bos, add_eos: whether `encode` adds them by default.
    """

    def __init__(self, vocabulary: Vocabulary, subwords: Subwords) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eog_ids = vocabulary.eog_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self._subwords = subwords
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False, *, guard: str = "") -> list[int]:
        """The ids of `text`.

        add_special: put BOS before and EOS behind where the model wants them; never a second BOS.
        parse_special: take the spelling of a special token in the text for that token. Leave it off for text that
            somebody else wrote. Tokens that the model's makers defined as words (type 4) are matched always.
        guard: a string taken out of the text once special tokens have been found; one put inside the spelling of a
            special token keeps it plain text.
        """
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise TokenizerError(f"encode: expected valid Unicode, got a lone surrogate at character {error.start}") from None
        ids: list[int] = []
        fragments = self._special.split(text) if parse_special else iter((text,))
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
                continue
            if guard:
                fragment = fragment.replace(guard, "")
            for word in self._words.split(fragment):
                if isinstance(word, int):
                    ids.append(word)
                elif word:
                    ids += self._subwords.encode(word, not ids)
        if add_special:
            if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
            if self.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
                ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; U+FFFD for bytes that are no UTF-8. Raises TokenizerError for ids that do not exist."""
        stream = self.stream(skip_special)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, skip_special: bool = True, after: Sequence[int] = ()) -> TextStream:
        """A decoder that takes ids one at a time; its pieces add up to `decode` of all of them.

        after: ids whose text has been printed already, such as the prompt that a model continues. They decide
            whether a space that begins the first token belongs to the text.
        """
        prefix_ends: frozenset[int] | None = None
        if self._subwords.space_prefix == "always":
            prefix_ends = self.vocabulary.control | self.vocabulary.user_defined
        elif self._subwords.space_prefix == "first":
            prefix_ends = frozenset()
        return TextStream(self.token_bytes, self.vocabulary.control, skip_special, prefix_ends, after)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for, of a special token those of its spelling; possibly a part of a character."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._subwords.token_bytes(self._checked(token_id))
        return data

    def piece(self, token_id: int) -> str:
        """One id as readable text; bytes that are no whole character as \\xNN."""
        return self.token_bytes(token_id).decode("utf-8", "backslashreplace")

    def is_special(self, token_id: int) -> bool:
        """Whether the id is markup (BOS, a role's header ...) and not text."""
        return self._checked(token_id) in self.vocabulary.control

    @cached_property
    def special_texts(self) -> dict[str, int]:
        """spelling -> id of the special tokens, without those of a single character: no guard can keep them plain text."""
        tokens = self.vocabulary.tokens
        return {tokens[i]: i for i in sorted(self.vocabulary.control, reverse=True) if len(tokens[i]) > 1}

    def special_ids(self, text: str) -> list[int]:
        """The special tokens that are spelled in `text`, in order."""
        return [found for found in self._special.split(text) if isinstance(found, int)]

    @cached_property
    def _special(self) -> _Matcher:
        return _Matcher(self.special_texts, self.vocabulary)

    @cached_property
    def _words(self) -> _Matcher:
        tokens = self.vocabulary.tokens
        return _Matcher({tokens[i]: i for i in sorted(self.vocabulary.user_defined, reverse=True) if tokens[i]}, self.vocabulary)

    def _checked(self, token_id: int) -> int:
        if not hasattr(token_id, "__index__") or not 0 <= token_id < self.vocab_size:
            raise TokenizerError(f"token id {token_id!r}: expected one in 0..{self.vocab_size - 1}; do the ids belong to another model?")
        return index(token_id)


class _Matcher:
    """Finds given texts in a text, leftmost first and the longest where several begin at one place."""

    def __init__(self, ids: Mapping[str, int], vocabulary: Vocabulary) -> None:
        self._ids = ids
        self._lstrip, self._rstrip = vocabulary.lstrip, vocabulary.rstrip
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._starts = re.compile("[" + re.escape("".join(self._lengths)) + "]") if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """The text cut at the matches: plain text between, the id for each match."""
        begin = 0  # of the plain text not given out yet
        at = 0
        while self._starts is not None and (start := self._starts.search(text, at)) is not None:
            at = start.start()
            found = next((n for n in self._lengths[text[at]] if text[at : at + n] in self._ids), 0)
            if not found:
                at += 1
                continue
            token_id = self._ids[text[at : at + found]]
            plain = text[begin:at]
            if token_id in self._lstrip:
                plain = plain.rstrip()
            if plain:
                yield plain
            yield token_id
            at += found
            if token_id in self._rstrip:
                while text[at : at + 1].isspace():
                    at += 1
            begin = at
        if begin < len(text):
            yield text[begin:]


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes in its `tokenizer.ggml.*` keys.

    Raises TokenizerError when there is none, when it is of a kind that is not served, or when its tables contradict
    each other. A byte-level vocabulary whose pre-tokenizer is unknown is served with a warning.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        raise TokenizerError("tokenizer.ggml.model: the file holds no tokenizer; give token ids instead of text")
    if kind not in ("gpt2", "llama"):
        name = f"{kind!r}" + (f" ({_UNSUPPORTED[kind]})" if kind in _UNSUPPORTED else "")
        raise TokenizerError(f"tokenizer.ggml.model: expected 'gpt2' (byte-level BPE) or 'llama' (SentencePiece), got {name}")
    vocabulary = vocabulary_from_metadata(metadata)
    if kind == "gpt2":
        rule = pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
        return Tokenizer(vocabulary, ByteLevelBPE(vocabulary, merges_from_metadata(metadata), rule))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    scores = scores_from_metadata(metadata, len(vocabulary.tokens))
    return Tokenizer(vocabulary, ScoreMerges(vocabulary, scores, "always" if prefix else "never"))


def tokenizer_from_json(path: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face `tokenizer.json`.

    config: what `tokenizer_config.json`, `config.json` and `generation_config.json` say, in one mapping: bos_token,
        eos_token, eos_token_id (one or several), add_bos_token, add_eos_token.
    Raises TokenizerError when the file is missing, is no tokenizer, or names tokens that it does not hold.
    """
    return Tokenizer(*read_tokenizer_json(path, config or {}))
