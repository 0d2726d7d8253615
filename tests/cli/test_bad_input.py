"""What a user may hand over by mistake: one line on standard error that names it and says what to do, and status 1."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf_fixtures
import numpy as np
import pytest
from command_line import CommandLine
from gguf import GGMLQuantizationType, GGUFWriter
from gguf_fixtures import write_tiny_llama

COMMANDS = (("run", "-q", "hi", "-m"), ("info", "-m"), ("tokenize", "hi", "-m"), ("bench", "-q", "-m"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.gguf", None, ["no such file"]),
        ("folder", {}, ["folder"]),
        ("folder", {"notes.txt": b"x"}, ["folder"]),
        ("empty.gguf", b"", ["empty.gguf"]),
        ("text.gguf", b"Dear reader,\nthis is no model.\n" * 20, ["text.gguf", "GGUF"]),
        ("page.gguf", b"<!DOCTYPE html><html><body>404</body></html>", ["page.gguf", "GGUF"]),
    ],
    ids=["missing", "empty folder", "folder without a model", "empty", "text", "web page"],
)
def test_no_model(
    cli: CommandLine, tmp_path: Path, command: tuple[str, ...], name: str, content: bytes | dict[str, bytes] | None, words: list[str]
) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        path.mkdir()
        for file, data in content.items():
            (path / file).write_bytes(data)
    elif content is not None:
        path.write_bytes(content)
    line = cli(*command, str(path)).one_line_error(1)
    assert str(path) in line and [word for word in words if word not in line] == [], line


def test_gguf_cut_at_100_offsets(cli: CommandLine, tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    offsets = random.Random(0).sample(range(len(whole) - 1), 100)
    for offset in offsets:
        cut.write_bytes(whole[:offset])
        line = cli("run", "-q", "hi", "-m", str(cut)).one_line_error(1)
        assert str(cut) in line, line


def test_unknown_architecture_is_named(cli: CommandLine, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "odd.gguf", architecture="mamba9")
    line = cli("run", "-q", "hi", "-m", str(path)).one_line_error(1)
    assert "'mamba9'" in line and "llama" in line
    described = cli("info", "-m", str(path))
    assert described.status == 0 and "mamba9" in described.out and "cannot run" in described.out


def test_unknown_tensor_type_is_named(cli: CommandLine, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "odd.gguf")
    data = bytearray(path.read_bytes())
    name = b"blk.0.attn_q.weight"
    at = data.index(name) + len(name)
    (n_dims,) = struct.unpack_from("<I", data, at)
    at += 4 + 8 * n_dims
    assert struct.unpack_from("<I", data, at) == (0,)  # F32
    struct.pack_into("<I", data, at, 177)
    path.write_bytes(data)
    line = cli("run", "-q", "hi", "-m", str(path)).one_line_error(1)
    assert "177" in line and "blk.0.attn_q.weight" in line


def test_known_tensor_type_that_is_not_supported_is_named(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((1, 64), np.int64), raw_dtype=GGMLQuantizationType.I64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    line = cli("run", "-q", "hi", "-m", str(path)).one_line_error(1)
    assert "I64" in line and "token_embd.weight" in line


def test_prompt_longer_than_the_context_names_both_numbers(cli: CommandLine, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    prompt = "z" * 200
    result = cli("run", "--raw", "-q", "-c", "16", prompt, "-m", str(path))
    n_tokens = len(cli("tokenize", prompt, "-m", str(path)).out.splitlines())
    line = result.one_line_error(1)
    assert str(n_tokens) in line and "16" in line


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ 1 / 0 }}", "{% if %}", "{{ messages[99].content.upper() }}", "{# #}"]
)
def test_template_that_fails(cli: CommandLine, tmp_path: Path, template: str) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", chat_template=template)
    line = cli("run", "-q", "hi", "-m", str(path)).one_line_error(1)
    assert "template" in line
    assert "template" in cli("chat", "-q", "-m", str(path), stdin=b"hi\n").one_line_error(1)
    assert cli("run", "-q", "--raw", "-n", "2", "hi", "-m", str(path)).status == 0


@pytest.mark.parametrize("without", [{"tokenizer": False}, {"chat_template": None}], ids=str)
def test_a_model_that_cannot_chat_says_so_before_the_first_question(cli: CommandLine, tmp_path: Path, without: dict[str, None]) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", **without)
    line = cli("chat", "-q", "-m", str(path), stdin=b"hi\n").one_line_error(1)
    assert next(iter(without)).removeprefix("chat_") in line


def test_weights_that_are_not_numbers(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = {**gguf_fixtures.tiny_weights(gguf_fixtures.Tiny()), "output_norm.weight": np.full(64, np.nan, np.float32)}
    monkeypatch.setattr(gguf_fixtures, "tiny_weights", lambda _: damaged)
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    assert "weights are damaged" in cli("run", "-q", "--raw", "hi", "-m", str(path)).one_line_error(1)


def test_missing_tensor_is_named(cli: CommandLine, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    data = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_upp.weigh")
    path.write_bytes(data)
    assert "blk.1.ffn_up.weight" in cli("run", "-q", "hi", "-m", str(path)).one_line_error(1)


def test_unknown_names(cli: CommandLine) -> None:
    assert "did you mean smollm2-135m" in cli("run", "-q", "hi", "-m", "smolm2-135m").one_line_error(1)
    assert "smollm2-135m" in cli("pull", "gpt-9").one_line_error(1)
    assert "hf:owner/repo" in cli("run", "-q", "hi", "-m", "hf:only").one_line_error(1)


def test_vocabulary_without_weights(cli: CommandLine, tmp_path: Path) -> None:
    from gguf_fixtures import Tiny, _add, tiny_metadata

    path = tmp_path / "vocabulary.gguf"
    writer = GGUFWriter(path, "llama")
    for key, value in tiny_metadata(Tiny().sized()).items():
        if key != "general.architecture":
            _add(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert cli("tokenize", "hello", "-m", str(path)).status == 0
    assert "vocabulary" in cli("info", "-m", str(path)).out
    assert "vocabulary" in cli("run", "-q", "hi", "-m", str(path)).one_line_error(1)
