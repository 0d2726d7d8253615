"""Vocabularies for tests: the published ones, and tiny ones made here."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llamita.loaders.gguf import GGUFFile
from llamita.loaders.tokenizer import Tokenizer, tokenizer_from_metadata

DATA = Path(__file__).parent / "data"
PUBLISHED = ("llama-bpe", "llama-spm", "qwen2")
BYTE_ALPHABET = [
    *map(chr, [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]),
    *(chr(0x100 + n) for n in range(256 - (0x7F - 0x21) - (0xAD - 0xA1) - (0x100 - 0xAE))),
]


@cache
def published_metadata(name: str) -> Mapping[str, Any]:
    """The metadata of a published vocabulary file."""
    data = lzma.decompress((DATA / "vectors" / f"ggml-vocab-{name}.gguf.xz").read_bytes())
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        path.write_bytes(data)
        with GGUFFile.open(path) as file:
            return file.metadata


@cache
def published(name: str) -> Tokenizer:
    return tokenizer_from_metadata(published_metadata(name))


def published_vectors(name: str) -> list[tuple[str, list[int]]]:
    """(text, ids) pairs; ids without special tokens added or parsed."""
    base = DATA / "vectors" / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{base}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{base}.out").read_text().split("\n")
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=True)]


def golden(name: str) -> Any:
    return json.loads((DATA / "golden" / name).read_text(encoding="utf-8"))


def bpe_metadata(
    words: Sequence[str] = (), control: Sequence[str] = (), user_defined: Sequence[str] = (), merges: Sequence[str] = (), **keys: Any
) -> dict[str, Any]:
    """A byte-level vocabulary: ids 0..255 are the byte alphabet, then words, control and user-defined tokens."""
    tokens = [*BYTE_ALPHABET, *words, *control, *user_defined]
    types = [1] * (256 + len(words)) + [3] * len(control) + [4] * len(user_defined)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def spm_metadata(words: Mapping[str, float], control: Sequence[str] = (), user_defined: Sequence[str] = (), **keys: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: <unk> <s> </s>, then 256 byte tokens, words with scores, control and user-defined."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *control, *user_defined]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words), *[3] * len(control), *[4] * len(user_defined)]
    scores = [0.0] * 259 + list(words.values()) + [0.0] * (len(control) + len(user_defined))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
