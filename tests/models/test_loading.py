"""load: which parts it puts together, and what it does about those that are missing. The decoder is a mock."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from gguf import GGUFWriter
from gguf_fixtures import Tiny, _add, tiny_metadata, write_tiny_llama, write_tiny_safetensors
from mock_model import MockModel

import llamita

TURN = [{"role": "user", "content": "hello <|im_end|>"}]


class Decoders(list):
    """What load built, with the arguments."""

    fails: Exception | None = None

    def build(self, checkpoint: object, **options: object) -> MockModel:
        self.append(SimpleNamespace(checkpoint=checkpoint, options=options))
        if self.fails is not None:
            raise self.fails
        self[-1].decoder = MockModel(n_ctx=64, n_vocab=320)
        return self[-1].decoder


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> Decoders:
    built = Decoders()
    stand_in = ModuleType("llamita.models.session")
    stand_in.build_decoder = built.build
    monkeypatch.setitem(sys.modules, "llamita.models.session", stand_in)
    return built


def test_a_file(tmp_path: Path, decoders: Decoders) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    seen = []
    with llamita.load(path, n_ctx=64, n_threads=2, activations=16, on_progress=lambda *a: seen.append(a)) as llm:
        options = dict(decoders[0].options)
        assert options.pop("on_progress") is not None
        assert options == {"n_ctx": 64, "n_threads": 2, "activations": 16}
        assert llm.metadata["general.name"] == "Tiny" and llm.config == {"n_ctx": 64}
        assert llm.detokenize(llm.tokenize("hello world")) == "hello world"
        assert len(llm.complete("hello", max_tokens=4, ignore_eos=True).tokens) == 4
        assert len(list(llm.chat(TURN, max_tokens=4, ignore_eos=True))) == 4
        ids = llm.apply_chat_template(TURN)
        assert ids.count(2) == 1  # the one that the template wrote, not the user's
        assert llm.apply_chat_template(TURN, parse_content=True).count(2) == 2
    assert decoders[0].decoder.closed == 1
    with pytest.raises(llamita.ClosedError):
        decoders[0].checkpoint.tensor("token_embd.weight")


def test_a_folder(tmp_path: Path, decoders: Decoders) -> None:
    folder = write_tiny_safetensors(tmp_path / "tiny")
    with llamita.load(str(folder)) as llm, llamita.load(write_tiny_llama(tmp_path / "tiny.gguf")) as other:
        assert llm.tokenize("hello world") == other.tokenize("hello world")
        assert llm.tokenizer.eog_ids == other.tokenizer.eog_ids


def test_a_vocabulary_without_tensors(tmp_path: Path, decoders: Decoders) -> None:
    writer = GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    for key, value in tiny_metadata(Tiny()).items():
        _add(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with llamita.load(tmp_path / "vocabulary.gguf") as llm:
        assert llm.detokenize(llm.tokenize("hello")) == "hello"
        assert llm.config is None and decoders == []
        with pytest.raises(llamita.UnsupportedModelError, match="only a vocabulary"):
            llm.generate("hello")


@pytest.mark.parametrize("metadata", [{"tokenizer.ggml.model": "bert"}, {"tokenizer.ggml.model": None}])
def test_a_file_without_a_usable_tokenizer(tmp_path: Path, decoders: Decoders, metadata: dict[str, object]) -> None:
    with llamita.load(write_tiny_llama(tmp_path / "tiny.gguf", metadata)) as llm:
        assert len(llm.complete([1, 2], max_tokens=3).tokens) == 3
        with pytest.raises(llamita.TokenizerError, match=r"tokenizer\.ggml\.model"):
            llm.generate("hello")
        with pytest.raises(llamita.TokenizerError):
            llm.chat(TURN)


def test_a_file_without_a_chat_template(tmp_path: Path, decoders: Decoders) -> None:
    with llamita.load(write_tiny_llama(tmp_path / "tiny.gguf", chat_template=None)) as llm:
        assert llm.chat_template is None
        with pytest.raises(llamita.TemplateError):
            llm.chat(TURN)


def test_a_faulty_chat_template_is_no_obstacle_to_text(tmp_path: Path, decoders: Decoders) -> None:
    with llamita.load(write_tiny_llama(tmp_path / "tiny.gguf", chat_template="{% for %}")) as llm:
        assert len(llm.complete("hello", max_tokens=3).tokens) == 3
        with pytest.raises(llamita.TemplateError):
            llm.chat(TURN)


def test_what_fails_half_way_leaves_nothing_open(tmp_path: Path, decoders: Decoders) -> None:
    decoders.fails = llamita.UnsupportedModelError("no")
    with pytest.raises(llamita.UnsupportedModelError):
        llamita.load(write_tiny_llama(tmp_path / "tiny.gguf"))
    with pytest.raises(llamita.ClosedError):
        decoders[0].checkpoint.tensor("token_embd.weight")


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(llamita.ModelNotFoundError, match=r"nothing\.gguf"):
        llamita.load(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_ctx": 0}, "n_ctx: .*got 0"),
        ({"n_ctx": 1.5}, "n_ctx: .*got 1.5"),
        ({"n_threads": -1}, "n_threads: .*got -1"),
        ({"n_threads": True}, "n_threads: .*got True"),
        ({"activations": 4}, "activations: expected 8, 16 or 32, got 4"),
        ({"model": 5}, "model: .*got 5"),
        ({"on_progress": True}, "on_progress: expected something callable, got True"),
    ],
)
def test_bad_arguments(options: dict[str, object], text: str) -> None:
    with pytest.raises(llamita.InvalidArgument, match=text):
        llamita.load(**{"model": "nowhere", **options})
