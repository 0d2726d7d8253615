"""Hugging Face's tokenizer.json: the same ids as the `tokenizers` library gives, with our rules for special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HfTokenizer
from vocabularies import DATA, published, published_metadata

from llamita.engine.errors import TokenizerError
from llamita.loaders.pretokenizers import PRE_TOKENIZERS
from llamita.loaders.tokenizer import Tokenizer, tokenizer_from_json

CORPUS = (DATA / "vectors" / "ggml-vocab-qwen2.gguf.inp").read_text(encoding="utf-8").split("\n")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> HfTokenizer:
    """GPT-4's kind: a regex, bytes, BOS from the post-processor."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZERS["llama-bpe"].patterns[0]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|eot_id|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return tokenizer


def sentencepiece(scheme: str) -> HfTokenizer:
    """Llama 2's kind: ▁ for spaces, byte tokens; a space before the text as `scheme` says."""
    tokenizer = HfTokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special + BYTES, max_token_length=8, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in special]
    tokenizer = HfTokenizer.from_str(json.dumps(spec))
    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*fallback, decoders.Strip(" ", 1, 0)] if scheme != "never" else fallback)
    return tokenizer


MAKERS = {
    "byte_level": byte_level,
    "legacy": lambda: sentencepiece("legacy"),
    "first": lambda: sentencepiece("first"),
    "never": lambda: sentencepiece("never"),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, HfTokenizer]]:
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {}
    for name, make in MAKERS.items():
        hf = make()
        hf.save(str(folder / f"{name}.json"))
        config: dict[str, Any] = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
        if name == "byte_level":
            config = {"bos_token": "<|begin|>", "eos_token_id": hf.token_to_id("<|eot_id|>")}
        found[name] = tokenizer_from_json(folder / f"{name}.json", config), hf
    return found


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=30),
    st.lists(st.sampled_from([" ", "  ", "\n", "the", "é", "🦙", "12", "!", "<think>"]), max_size=10).map("".join),
)


@pytest.mark.parametrize("name", MAKERS)
@given(text=TEXTS)
@settings(deadline=None)
def test_ids_and_text_as_the_library(pairs: dict[str, tuple[Tokenizer, HfTokenizer]], name: str, text: str) -> None:
    ours, hf = pairs[name]
    ids = ours.encode(text, add_special=False)
    if name != "first" or not text.startswith(" "):  # "a" and " a" are the same to the library there
        assert ids == hf.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == text
    assert ours.decode(ours.encode(text)) == text
    stream = ours.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == text


@pytest.mark.parametrize("name", MAKERS)
def test_special_tokens(pairs: dict[str, tuple[Tokenizer, HfTokenizer]], name: str) -> None:
    ours, hf = pairs[name]
    special = "<|eot_id|>" if name == "byte_level" else "</s>"
    text = f"Hello{special}world {special} x"
    ids = ours.encode(text, parse_special=True)
    assert ids[1:] == hf.encode(text, add_special_tokens=False).ids
    assert ids[0] == ours.bos_id
    assert ours.decode(ids[1:], skip_special=False) == text
    plain = ours.encode(text)
    assert hf.token_to_id(special) not in plain
    assert ours.decode(plain) == text
    assert ours.eog_ids == {hf.token_to_id(special)}
    assert ours.is_special(ids[0])


def test_a_tokenizer_json_gives_the_ids_of_the_gguf(tmp_path: Path) -> None:
    metadata = published_metadata("llama-bpe")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    hf = HfTokenizer(models.BPE({text: i for i, text in enumerate(tokens[:128000])}, merges, ignore_merges=True))
    hf.pre_tokenizer = PRE_TOKENIZERS["llama-bpe"].build()
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens([AddedToken(text, special=True) for text in tokens[128000:]])
    hf.save(str(tmp_path / "tokenizer.json"))
    ours, gguf = tokenizer_from_json(tmp_path / "tokenizer.json", {"eos_token_id": [128001, 128009]}), published("llama-bpe")
    text = "Hello <|eot_id|> wörld 12345\n\n  it's 🦙"
    for parse in (False, True):
        assert ours.encode(text, False, parse) == gguf.encode(text, False, parse)
    assert ours.eog_ids == gguf.eog_ids
    assert (ours.vocab_size, ours.bos_id, ours.add_bos) == (gguf.vocab_size, None, False)


def test_stripping_tokens(tmp_path: Path) -> None:
    hf = byte_level()
    hf.add_special_tokens([AddedToken("<|pad|>", special=True, lstrip=True, rstrip=True)])
    hf.save(str(tmp_path / "tokenizer.json"))
    text = "a  <|pad|> \n b"
    expected = hf.encode(text, add_special_tokens=False).ids
    assert tokenizer_from_json(tmp_path / "tokenizer.json").encode(text, False, parse_special=True) == expected


@pytest.mark.parametrize(
    ("content", "config", "says"),
    [
        (None, {}, "cannot be read"),
        ("not json", {}, "expected JSON"),
        ("[1]", {}, "with a 'model', got list"),
        ('{"model": {"type": "BPE", "vocab": 3}}', {}, "model.vocab: expected texts with their ids"),
        ('{"model": {"type": "BPE", "vocab": {"a": -1}}}', {}, "model.vocab"),
        ('{"model": {"type": "BPE", "vocab": {"a": 999999999}}}', {}, "without large gaps"),
        ('{"model": {"type": "BPE", "vocab": {}}}', {}, "without large gaps"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": [{"id": 1}]}', {}, "added_tokens"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', {"eos_token_id": [0, 5]}, "eos_token_id: expected an id in 0..0"),
        (
            '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
            {"bos_token": "<s>"},
            "bos_token: expected a token of the vocabulary",
        ),
        ('{"model": {"type": "Magic", "vocab": {"a": 0}}}', {}, "not a tokenizer that can be built"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]]}}', {}, "not a tokenizer that can be built"),
    ],
)
def test_unusable_files(tmp_path: Path, content: str | None, config: dict[str, Any], says: str) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_json(path, config)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
