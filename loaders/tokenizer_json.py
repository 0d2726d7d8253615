"""Reading a Hugging Face `tokenizer.json` into the same parts that a GGUF tokenizer is made of."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..engine.errors import TokenizerError
from .subwords import SPACE, SpacePrefix, Subwords, byte_level_bytes
from .vocabulary import Vocabulary, byte_tokens, end_ids

_BYTE_SPELLINGS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


class JsonSubwords:
    """A `tokenizer.json` run by the `tokenizers` library, without its special tokens (they are cut out before)."""

    def __init__(self, spec: Mapping[str, Any], vocabulary: Vocabulary, byte_level: bool) -> None:
        from tokenizers import Tokenizer

        self._vocabulary = vocabulary
        self._byte_level = byte_level
        self.space_prefix: SpacePrefix = _space_prefix(spec)
        spec = _without_prefix({**spec, "added_tokens": [], "post_processor": None, "padding": None, "truncation": None})
        self._backend = Tokenizer.from_str(json.dumps(spec))

    def encode(self, text: str, at_start: bool) -> list[int]:
        # The library leaves the space out before a text that begins with one, which then could not be told from its own.
        if self.space_prefix == "always" or (self.space_prefix == "first" and at_start):
            text = " " + text
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        vocabulary = self._vocabulary
        token = vocabulary.tokens[token_id]
        if token_id in vocabulary.control or token_id in vocabulary.user_defined:
            return token.encode("utf-8", "replace")
        if self._byte_level:
            return byte_level_bytes(token)
        if vocabulary.bytes is not None and token_id in vocabulary.bytes:
            return bytes((vocabulary.bytes[token_id],))
        return token.replace(SPACE, " ").encode("utf-8", "replace")


def read_tokenizer_json(path: str | os.PathLike[str], config: Mapping[str, Any]) -> tuple[Vocabulary, Subwords]:
    """The vocabulary and the algorithm of the file; see `tokenizer_from_json`."""
    name = os.path.basename(os.fspath(path))
    spec = _read(path, name)
    table = spec["model"].get("vocab")
    if isinstance(table, list):  # Unigram: [text, score] pairs
        table = {entry[0]: i for i, entry in enumerate(table) if isinstance(entry, list) and entry}
    if not isinstance(table, dict) or not all(type(i) is int and i >= 0 for i in table.values()):
        raise TokenizerError(f"{name}: model.vocab: expected texts with their ids, got {type(spec['model'].get('vocab')).__name__}")
    added = _added_tokens(spec, name)
    tokens = _token_list(table, added, name)

    control = {token["id"] for token in added if token.get("special")}
    user_defined = {token["id"] for token in added} - control
    by_text = {**table, **{token["content"]: token["id"] for token in added}}
    bos, eos = (_named_id(config, by_text, kind, len(tokens), name) for kind in ("bos", "eos"))
    unk = by_text.get(str(spec["model"].get("unk_token")))
    declared = config.get("eos_token_id")
    eog = end_ids(tokens, control | user_defined, [eos, *_ids(declared, "eos_token_id", len(tokens), name)])
    control |= eog
    before, after = _post_processed(spec, by_text)
    vocabulary = Vocabulary(
        tokens=tokens,
        control=frozenset(control),
        user_defined=frozenset(user_defined - eog),
        bytes=byte_tokens(tokens, (i for text, i in table.items() if text in _BYTE_SPELLINGS)),
        lstrip=frozenset(token["id"] for token in added if token.get("lstrip")),
        rstrip=frozenset(token["id"] for token in added if token.get("rstrip")),
        bos_id=bos,
        eos_id=eos,
        unk_id=unk,
        eog_ids=eog,
        add_bos=bos is not None and bool(_given(config, "add_bos_token", bos in before)),
        add_eos=eos is not None and bool(_given(config, "add_eos_token", eos in after)),
    )
    byte_level = any(part.get("type") == "ByteLevel" for kind in ("decoder", "pre_tokenizer") for part in _parts(spec.get(kind)))
    try:
        return vocabulary, JsonSubwords(spec, vocabulary, byte_level)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{name}: not a tokenizer that can be built: {error}") from None


def _read(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
    except OSError as error:
        raise TokenizerError(f"{name}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{name}: expected JSON, got something else: {error}") from None
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise TokenizerError(f"{name}: expected a tokenizer.json with a 'model', got {type(spec).__name__} without one")
    return spec


def _added_tokens(spec: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    added = spec.get("added_tokens") or []
    for token in added if isinstance(added, list) else [added]:
        if not (isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int and token["id"] >= 0):
            raise TokenizerError(f"{name}: added_tokens: expected entries with 'id' and 'content', got {str(token)[:60]}")
    return list(added)


def _token_list(table: Mapping[str, int], added: list[dict[str, Any]], name: str) -> list[str]:
    highest = max([*table.values(), *(token["id"] for token in added)], default=-1)
    if highest < 0 or highest >= 2 * (len(table) + len(added)):
        raise TokenizerError(f"{name}: model.vocab: expected ids without large gaps, got {len(table)} tokens and a highest id of {highest}")
    tokens = [""] * (highest + 1)
    for text, token_id in table.items():
        tokens[token_id] = text
    for token in added:
        tokens[token["id"]] = token["content"]
    return tokens


def _given(config: Mapping[str, Any], key: str, default: bool) -> Any:
    value = config.get(key)
    return default if value is None else value


def _named_id(config: Mapping[str, Any], by_text: Mapping[str, int], kind: str, n_tokens: int, name: str) -> int | None:
    """The id of bos/eos: by the token's text where the config gives it, else by its (first) id."""
    token = config.get(f"{kind}_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    if token is not None:
        if token not in by_text:
            raise TokenizerError(f"{name}: {kind}_token: expected a token of the vocabulary, got {str(token)[:40]!r}")
        return by_text[token]
    return next(_ids(config.get(f"{kind}_token_id"), f"{kind}_token_id", n_tokens, name), None)


def _ids(value: Any, key: str, n_tokens: int, name: str) -> Iterator[int]:
    for token_id in value if isinstance(value, (list, tuple)) else [value]:
        if token_id is None:
            continue
        if type(token_id) is not int or not 0 <= token_id < n_tokens:
            raise TokenizerError(f"{name}: {key}: expected an id in 0..{n_tokens - 1}, got {str(token_id)[:40]}")
        yield token_id


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """A normalizer, pre-tokenizer, decoder or post-processor and all that it is made of."""
    if isinstance(component, dict):
        yield component
        for key in ("normalizers", "pretokenizers", "decoders", "processors"):
            for part in component.get(key) or ():
                yield from _parts(part)


def _space_prefix(spec: Mapping[str, Any]) -> SpacePrefix:
    if any(part.get("type") == "Prepend" and part.get("prepend") == SPACE for part in _parts(spec.get("normalizer"))):
        return "always"
    for part in _parts(spec.get("pre_tokenizer")):
        if part.get("type") == "Metaspace":
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
            return scheme if scheme in ("first", "never") else "always"
        if part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
            return "always"
    return "never"


def _without_prefix(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer, but putting no space before the text."""
    changed: dict[str, Any] = copy.deepcopy(dict(spec))
    for part in _parts(changed.get("normalizer")):
        if part.get("type") == "Prepend" and part.get("prepend") == SPACE:
            part["prepend"] = ""
    for part in _parts(changed.get("pre_tokenizer")):
        if part.get("type") == "Metaspace":
            part.update(prepend_scheme="never", add_prefix_space=False)
        elif part.get("type") == "ByteLevel":
            part["add_prefix_space"] = False
    return changed


def _post_processed(spec: Mapping[str, Any], by_text: Mapping[str, int]) -> tuple[set[int], set[int]]:
    """The ids that the file's post-processor puts before and behind a text."""
    before: set[int] = set()
    after: set[int] = set()
    for part in _parts(spec.get("post_processor")):
        found = before
        for piece in (part.get("single") or ()) if part.get("type") == "TemplateProcessing" else ():
            if "Sequence" in piece:
                found = after
            elif "SpecialToken" in piece:
                found.add(by_text.get(piece["SpecialToken"].get("id"), -1))
    return before, after
