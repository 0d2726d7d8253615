"""The two ways of cutting a text into tokens: byte-level BPE, and SentencePiece's merging by score.

Both take plain text (special tokens were cut out before) and know how the vocabulary spells bytes and spaces.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, Protocol

from ..engine.errors import TokenizerError
from .pretokenizers import PreTokenizer
from .vocabulary import Vocabulary

# Where a space is put before the text that the text does not have: nowhere, at its start, or after special tokens too.
SpacePrefix = Literal["never", "first", "always"]

SPACE = "\u2581"  # how SentencePiece spells a space
_LONGEST_CACHED_WORD = 64


class Subwords(Protocol):
    """One algorithm with one vocabulary."""

    space_prefix: SpacePrefix

    def encode(self, text: str, at_start: bool) -> list[int]:
        """The ids of plain text; `at_start` tells whether it begins the whole input."""

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for, possibly only a part of a character."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's one printable character a byte: itself where it is printable, else the next of U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
_TO_LATIN1 = {ord(character): byte for character, byte in _BYTE_OF_CHARACTER.items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token spelled in the byte alphabet; characters outside it stand for themselves."""
    if all(character in _BYTE_OF_CHARACTER for character in token):
        return token.translate(_TO_LATIN1).encode("latin-1")
    return b"".join(bytes((_BYTE_OF_CHARACTER[c],)) if c in _BYTE_OF_CHARACTER else c.encode("utf-8", "replace") for c in token)


class ByteLevelBPE:
    """BPE over the bytes of a text, by the `tokenizers` library.

    Characters whose bytes the vocabulary lacks leave no token (SmolLM2's, for one, has none for a few control
    characters), as in the libraries that trained it.
    """

    space_prefix: SpacePrefix = "never"

    def __init__(self, vocabulary: Vocabulary, merges: list[tuple[str, str]], rule: PreTokenizer) -> None:
        """Raises TokenizerError when a merge names a text that is not in the vocabulary."""
        from tokenizers import Tokenizer, models

        def model(table: dict[str, int]) -> Any:
            return models.BPE(table, merges, ignore_merges=rule.ignore_merges)

        try:
            bpe = model(vocabulary.ids_by_text(without=vocabulary.control))
        except Exception:  # a merge may build a token that is marked as control
            try:
                bpe = model(vocabulary.ids_by_text())
            except Exception as error:
                raise TokenizerError(f"tokenizer.ggml.merges: the merges do not fit the tokens: {error}") from None
        self._vocabulary = vocabulary
        self._backend = Tokenizer(bpe)
        self._backend.pre_tokenizer = rule.build()

    def encode(self, text: str, at_start: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        token = self._vocabulary.tokens[token_id]
        if token_id in self._vocabulary.control or token_id in self._vocabulary.user_defined:
            return token.encode("utf-8", "replace")
        return byte_level_bytes(token)


class ScoreMerges:
    """SentencePiece BPE: of all neighbours that join to a token, those with the highest score (then the leftmost) join first.

    Written out here because `tokenizers` merges by the rank of a pair, which has to be worked out of the scores
    first (0.3 s for 32k tokens, seconds for 256k) and still decides ties otherwise.
    """

    def __init__(self, vocabulary: Vocabulary, scores: list[float], space_prefix: SpacePrefix) -> None:
        byte_ids: Mapping[int, int] = vocabulary.bytes or {}
        self.space_prefix = space_prefix
        self._vocabulary = vocabulary
        self._scores = scores
        self._table = vocabulary.ids_by_text(without=[*vocabulary.control, *byte_ids])
        self._id_of_byte = {byte: token_id for token_id, byte in byte_ids.items()}
        # Where no token has a space inside, no merge crosses from one word into the next: words can be cached.
        inner_space = re.search(f"[^{SPACE}\0]{SPACE}", "\0".join(self._table))
        self._words = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+" if inner_space is None else r"(?s).+")
        self._cached_word = lru_cache(maxsize=1 << 15)(self._encode_word)

    def encode(self, text: str, at_start: bool) -> list[int]:
        if self.space_prefix == "always" or (self.space_prefix == "first" and at_start):
            text = " " + text
        ids: list[int] = []
        for word in self._words.findall(text.replace(" ", SPACE)):
            ids += self._cached_word(word) if len(word) <= _LONGEST_CACHED_WORD else self._encode_word(word)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        byte_ids = self._vocabulary.bytes
        if byte_ids is not None and token_id in byte_ids:
            return bytes((byte_ids[token_id],))
        token = self._vocabulary.tokens[token_id]
        if token_id not in self._vocabulary.control:
            token = token.replace(SPACE, " ")
        return token.encode("utf-8", "replace")

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in self._merge(word):
            token_id = self._table.get(piece)
            if token_id is not None:
                ids.append(token_id)
            else:
                ids += self._unknown(piece)
        return tuple(ids)

    def _unknown(self, piece: str) -> list[int]:
        data = piece.encode("utf-8")
        if all(byte in self._id_of_byte for byte in data):
            return [self._id_of_byte[byte] for byte in data]
        return [] if self._vocabulary.unk_id is None else [self._vocabulary.unk_id]

    def _merge(self, word: str) -> list[str]:
        """The pieces of `word` when no two neighbours join any more."""
        pieces = list(word)
        following = [*range(1, len(pieces)), -1]
        preceding = list(range(-1, len(pieces) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            right = following[left]
            if right >= 0:
                joined = pieces[left] + pieces[right]
                token_id = self._table.get(joined)
                if token_id is not None:
                    heapq.heappush(queue, (-self._scores[token_id], left, right, joined))

        for left in range(len(pieces) - 1):
            offer(left)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            # Entries grow stale when one of their sides has joined something else since.
            if following[left] != right or not pieces[left] or pieces[left] + pieces[right] != joined:
                continue
            pieces[left], pieces[right] = joined, ""
            following[left] = following[right]
            if following[right] >= 0:
                preceding[following[right]] = left
            offer(left)
            if preceding[left] >= 0:
                offer(preceding[left])
        return [piece for piece in pieces if piece]
