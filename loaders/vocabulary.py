"""What the ids of a model mean: the token table, which tokens are special, and which end a generation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.errors import TokenizerError
from .pretokenizers import PRE_TOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Tokens that end a turn or a text, known by name because files often declare only one of them.
_END_NAMES = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<|endoftext|>",
        "<|end_of_text|>", "<|eom_id|>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<turn|>", "[e~[",
    }
)  # fmt: skip
# The same, but words that a vocabulary may hold as plain text: these count only when the file marks them special.
_END_NAMES_IF_SPECIAL = frozenset(
    {
        "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
        "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
    }
)  # fmt: skip
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NO_ID = 0xFFFFFFFF  # how converters write "there is none"
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """The token table of a model.

    tokens: the text of each id, as the file spells it.
    control: ids that are markup; matched in a text only when asked, and not part of the decoded text unless asked.
    user_defined: ids matched in every text before anything else, and printed as they stand.
    bytes: ids that stand for one byte each.
    lstrip, rstrip: ids that swallow the white space before or after them when matched.
    eog_ids: ids after which a generation ends.
    """

    tokens: Sequence[str]
    control: frozenset[int] = frozenset()
    user_defined: frozenset[int] = frozenset()
    bytes: Mapping[int, int] | None = None
    lstrip: frozenset[int] = frozenset()
    rstrip: frozenset[int] = frozenset()
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    eog_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False

    def ids_by_text(self, without: Iterable[int] = ()) -> dict[str, int]:
        """text -> id; where a text occurs twice the first id counts."""
        table = dict(zip(reversed(self.tokens), range(len(self.tokens) - 1, -1, -1), strict=True))
        for token_id in without:
            table.pop(self.tokens[token_id], None)
        return table


def vocabulary_from_metadata(metadata: Mapping[str, Any]) -> Vocabulary:
    """Reads and checks the `tokenizer.ggml.*` keys of a GGUF file.

    Raises TokenizerError for arrays whose lengths differ, ids that are not in the table and values of a wrong type.
    """
    tokens = _token_list(metadata)
    types = _per_token(metadata, "token_type", len(tokens))
    if types is None:
        types = np.full(len(tokens), NORMAL)
    ids = {name: _token_id(metadata, name, len(tokens)) for name in ("bos", "unknown", "unk", *_END_KEYS)}
    sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    if sentencepiece:
        for name, default in (("bos", 1), ("eos", 2), ("unknown", 0)):  # sentencepiece's own numbering
            if f"tokenizer.ggml.{name}_token_id" not in metadata and default < len(tokens) and types[default] in (UNKNOWN, CONTROL):
                ids[name] = default

    control = {int(i) for i in np.flatnonzero((types == CONTROL) | (types == UNKNOWN))}
    user_defined = {int(i) for i in np.flatnonzero(types == USER_DEFINED)}
    eog = end_ids(tokens, control | user_defined, [ids[name] for name in _END_KEYS])
    control |= eog  # files that forget to mark an end token are common
    user_defined -= eog
    phi3 = sentencepiece and any(name in str(metadata.get("general.name", "")).lower() for name in ("phi-3", "phi3"))
    add_bos = sentencepiece or _family_adds_bos(metadata)
    return Vocabulary(
        tokens=tokens,
        control=frozenset(control),
        user_defined=frozenset(user_defined),
        bytes=byte_tokens(tokens, np.flatnonzero(types == BYTE).tolist()) if sentencepiece else None,
        # GGUF cannot say it, but Phi-3's markup swallows the line break that its template writes after it.
        rstrip=frozenset(i for i in control | user_defined if tokens[i] not in ("<unk>", "<s>", "<|endoftext|>")) if phi3 else frozenset(),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        unk_id=ids["unknown"] if ids["unknown"] is not None else ids["unk"],
        eog_ids=eog,
        add_bos=_flag(metadata, "add_bos_token", add_bos) and ids["bos"] is not None,
        add_eos=_flag(metadata, "add_eos_token", False) and ids["eos"] is not None,
    )


def end_ids(tokens: Sequence[str], special: set[int], declared: Iterable[int | None]) -> frozenset[int]:
    """The ids that end a generation: those the file declares and those known by name."""
    ends = {i for i in declared if i is not None}
    ends |= {i for i in special if tokens[i] in _END_NAMES_IF_SPECIAL}
    ends |= {i for i, text in enumerate(tokens) if text in _END_NAMES}
    by_text = {tokens[i]: i for i in ends}
    # In the harmony format <|end|> closes a message, not the turn.
    if "<|end|>" in by_text and (by_text.keys() >= {"<|return|>", "<|call|>"} or by_text.keys() >= {"<|flush|>", "<|calls|>"}):
        ends.discard(by_text["<|end|>"])
    return frozenset(ends)


def byte_tokens(tokens: Sequence[str], ids: Iterable[int]) -> dict[int, int]:
    """id -> byte of the tokens spelled `<0xNN>` among `ids`."""
    found = {}
    for i in ids:
        match = _BYTE_NAME.fullmatch(tokens[i])
        if match is None:
            raise TokenizerError(f"tokenizer.ggml.tokens: byte token {i}: expected a name like '<0x0A>', got {tokens[i]!r}")
        found[i] = int(match[1], 16)
    return found


def scores_from_metadata(metadata: Mapping[str, Any], n_tokens: int) -> list[float]:
    """The score of each token (higher merges first); zeros where the file has none."""
    scores = _per_token(metadata, "scores", n_tokens)
    if scores is None:
        return [0.0] * n_tokens
    if np.isnan(scores).any():
        raise TokenizerError(f"tokenizer.ggml.scores: expected numbers, got NaN at token {int(np.flatnonzero(np.isnan(scores))[0])}")
    result: list[float] = scores.tolist()
    return result


def merges_from_metadata(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merge rules in order, each as the pair of texts that it joins."""
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise TokenizerError("tokenizer.ggml.merges: a byte-level BPE tokenizer needs it, but the file does not have it")
    pairs: list[tuple[str, str]] = []
    try:
        for merge in merges:
            left, right = merge.split(" ")
            pairs.append((left, right))
    except (AttributeError, TypeError, ValueError):
        bad = repr(merges[len(pairs)])[:60] if isinstance(merges, Sequence) else repr(merges)[:60]
        raise TokenizerError(f"tokenizer.ggml.merges: entry {len(pairs)}: expected two texts with one space between, got {bad}") from None
    return pairs


def _token_list(metadata: Mapping[str, Any]) -> Sequence[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or isinstance(tokens, str) or not isinstance(tokens, Sequence) or not len(tokens):
        got = "nothing" if tokens is None else f"{type(tokens).__name__} {str(tokens)[:40]!r}"
        raise TokenizerError(f"tokenizer.ggml.tokens: expected a list of texts, got {got}")
    if set(map(type, tokens)) != {str}:
        wrong = next(i for i, token in enumerate(tokens) if type(token) is not str)
        raise TokenizerError(f"tokenizer.ggml.tokens: token {wrong}: expected a text, got {type(tokens[wrong]).__name__}")
    return tokens


def _per_token(metadata: Mapping[str, Any], name: str, n_tokens: int) -> np.ndarray[Any, Any] | None:
    key = f"tokenizer.ggml.{name}"
    values = metadata.get(key)
    if values is None:
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise TokenizerError(f"{key}: expected one number a token, got {type(values).__name__} {str(values)[:40]!r}")
    if len(array) != n_tokens:
        raise TokenizerError(f"{key}: expected {n_tokens} entries as in tokenizer.ggml.tokens, got {len(array)}")
    return array


def _token_id(metadata: Mapping[str, Any], name: str, n_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if value is None or (is_number and value in (-1, _NO_ID)):
        return None
    if not is_number or not 0 <= value < n_tokens:
        raise TokenizerError(f"{key}: expected an id in 0..{n_tokens - 1}, got {str(value)[:40]}")
    return int(value)


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key, default)
    if not isinstance(value, (bool, np.bool_, int)):
        raise TokenizerError(f"{key}: expected true or false, got {str(value)[:40]!r}")
    return bool(value)


def _family_adds_bos(metadata: Mapping[str, Any]) -> bool:
    rule = PRE_TOKENIZERS.get(str(metadata.get("tokenizer.ggml.pre")))
    return rule is not None and rule.add_bos
