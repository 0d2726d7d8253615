"""Writes data/golden/tokenizers.json and pretokenizers.json: the ids that llama.cpp gives for random texts.

    pip install llama-cpp-python
    python tests/golden/tokenizer_goldens.py [smollm2.gguf]

Not a part of the suite; run it again when a family is added.
"""

from __future__ import annotations

import json
import lzma
import random
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp

DATA = Path(__file__).resolve().parents[1] / "data"
RULES = ("default", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "minicpm5", "falcon", "deepseek-v3", "deepseek-coder")
WORDS = [
    *("'s 'S 'LL I'm don't a Z ab HELLO Hello world 1 12 1234 ! ?! $ + <=> ^ ~ | ` _ - // \\ ( } == # the ing".split(" ")),
    *(" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\u200b"),
    *("é", "É", "ß", "中文", "ひら", "カ", "한국", "न", "ा", "i\u0301", "٣", "½", "€", "…", "“", "—", "🦙", "👨‍👩‍👧", "ǅ"),
]


def texts(seed: int, n: int) -> list[str]:
    choose = random.Random(seed)
    found = ["".join(choose.choices(WORDS, k=choose.randint(1, 16))) for _ in range(n * 3 // 4)]
    # Only characters of old Unicode versions: newer ones have different categories in different regex libraries.
    ranges = (
        (1, 0x7F),
        (0xA1, 0x17F),
        (0x391, 0x3C9),
        (0x410, 0x44F),
        (0x5D0, 0x5EA),
        (0x3041, 0x30FF),
        (0x4E00, 0x9FA5),
        (0x1F300, 0x1F5FF),
    )
    while len(found) < n:
        found.append("".join(chr(choose.randint(*choose.choice(ranges))) for _ in range(choose.randint(1, 12))))
    return found


def open_vocabulary(data: bytes) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        return llama_cpp.Llama(file.name, vocab_only=True, verbose=False)


def with_rule(data: bytes, rule: str) -> bytes:
    """The same GGUF file with another tokenizer.ggml.pre; a file without tensors has no offsets to mind."""
    at = data.index(key := b"tokenizer.ggml.pre") + len(key) + 4
    (length,) = struct.unpack_from("<Q", data, at)
    return data[:at] + struct.pack("<Q", len(rule)) + rule.encode() + data[at + 8 + length :]


def main() -> None:
    llama_bpe = lzma.decompress((DATA / "vectors" / "ggml-vocab-llama-bpe.gguf.xz").read_bytes())
    sample = texts(1, 60)
    rules = {}
    for rule in RULES:
        model = open_vocabulary(with_rule(llama_bpe, rule))
        rules[rule] = [model.tokenize(text.encode(), add_bos=False, special=False) for text in sample]
    write("pretokenizers.json", {"texts": sample, "ids": rules})

    vocabularies = {
        name: lzma.decompress((DATA / "vectors" / f"ggml-vocab-{name}.gguf.xz").read_bytes()) for name in ("llama-spm", "qwen2")
    }
    vocabularies["llama-bpe"] = llama_bpe
    for path in sys.argv[1:]:
        vocabularies["smollm2"] = Path(path).read_bytes()
    golden = {}
    for name, data in vocabularies.items():
        model = open_vocabulary(data)
        vocab = llama_cpp.llama_model_get_vocab(model._model.model)
        ends = [i for i in range(model.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, i)]
        special = [llama_cpp.llama_vocab_get_text(vocab, i).decode() for i in ends]
        mixed = [text.replace("ab", special[0]).replace("Z", special[-1] + " ") for text in texts(3, 60)]
        golden[name] = {
            "texts": (plain := texts(2, 80)),
            "ids": [model.tokenize(text.encode(), add_bos=False, special=False) for text in plain],
            "special_texts": mixed,
            "special_ids": [model.tokenize(text.encode(), add_bos=False, special=True) for text in mixed],
            "eog_ids": ends,
            "add_bos": bool(llama_cpp.llama_vocab_get_add_bos(vocab)),
        }
    write("tokenizers.json", golden)


def write(name: str, value: object) -> None:
    source = f"llama.cpp through llama-cpp-python {llama_cpp.__version__}"
    (DATA / "golden" / name).write_text(json.dumps({"source": source, "golden": value}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
