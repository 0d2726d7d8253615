"""run: what reaches the model, and what goes to which output. The model is a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import CommandLine, Stand
from mock_model import BOS, ByteTokenizer


def chat_ids(*turns: tuple[str, str]) -> list[int]:
    tokenizer = ByteTokenizer()
    ids = [BOS]
    for role, content in turns:
        ids += [*tokenizer.encode(f"{role}:{content}", add_special=False), BOS + 2]
    return ids + tokenizer.encode("assistant:", add_special=False)


def test_standard_output_is_the_text_alone(cli: CommandLine, stand: Stand) -> None:
    stand.replies = ["Grüße 🦙!\n".encode()]
    result = cli("run", "hi")
    assert result.status == 0 and result.out == "Grüße 🦙!\n"
    assert "tokens/s" in result.err and "seed: " in result.err
    assert stand.model is not None and stand.model.closed == 1


def test_the_template_is_applied_unless_raw(cli: CommandLine, stand: Stand) -> None:
    cli("run", "hi")
    cli("run", "hi", "--system", "be kind")
    cli("run", "hi", "--raw")
    cli("run", "hi", "-no-cnv")
    stand.template = False
    cli("run", "hi")
    raw = [BOS, *b"hi"]
    assert stand.prompts == [chat_ids(("user", "hi")), chat_ids(("system", "be kind"), ("user", "hi")), raw, raw, raw]


def test_system_without_a_template_is_an_error(cli: CommandLine, stand: Stand) -> None:
    stand.template = False
    assert "template" in cli("run", "-q", "--system", "be kind", "hi").one_line_error(1)


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        (["-"], b"from a pipe\n", b"from a pipe"),
        ([], b"two\nlines\r\n", b"two\nlines"),
        (["-p", "as llama.cpp"], b"unread", b"as llama.cpp"),
        (["-"], b"", b""),
        ([""], b"unread", b""),
        ([], "grün\n\n".encode(), "grün\n".encode()),
    ],
)
def test_where_the_prompt_comes_from(cli: CommandLine, stand: Stand, args: list[str], stdin: bytes, prompt: bytes) -> None:
    assert cli("run", "--raw", *args, stdin=stdin).status == 0
    assert stand.prompts == [[BOS, *prompt]]


def test_prompt_from_a_file(cli: CommandLine, stand: Stand, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"from a file\n")
    assert cli("run", "--raw", "-f", str(file)).status == 0
    assert stand.prompts == [[BOS, *b"from a file"]]


def test_file_that_cannot_be_read(cli: CommandLine, stand: Stand, tmp_path: Path) -> None:
    assert "No such file" in cli("run", "-f", str(tmp_path / "none")).one_line_error(1)
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    assert "0xff [offset 2]" in cli("run", "-f", str(tmp_path / "bytes")).one_line_error(1)
    assert "standard input" in cli("run", "-", stdin=b"\xff").one_line_error(1)


def test_options_reach_load_and_generation(cli: CommandLine, stand: Stand) -> None:
    args = "-m file.gguf -c 99 -t 3 --activations 8 -n 4 -s 7 --temp 0.5 --top-k 9 --top-p 0.9 --min-p 0.1 --repeat-penalty 1.1".split()
    cli("run", "hi", *args, "--repeat-last-n", "5", "--stop", "END", "--stop", "FIN", "--ignore-eos")
    (load,) = stand.loads
    generation = load.pop("generation")
    load.pop("on_progress")
    generation.pop("on_progress")
    assert load == {"model": "file.gguf", "n_ctx": 99, "n_threads": 3, "activations": 8}
    assert generation == {
        "max_tokens": 4,
        "seed": 7,
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "repeat_last_n": 5,
        "stop": ["END", "FIN"],
        "ignore_eos": True,
    }


def test_defaults(cli: CommandLine, stand: Stand) -> None:
    cli("run", "hi")
    (load,) = stand.loads
    generation = load.pop("generation")
    load.pop("on_progress")
    generation.pop("on_progress")
    assert load == {"model": None, "n_ctx": None, "n_threads": None, "activations": None}
    assert generation == {
        "max_tokens": None,
        "seed": None,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "stop": (),
        "ignore_eos": False,
    }


@pytest.mark.parametrize("flags", [["--predict", "3"], ["--n-predict", "3"], ["-n3"], ["--max-tokens=3"], ["-n", "3", "-st"]])
def test_spellings_of_max_tokens(cli: CommandLine, stand: Stand, flags: list[str]) -> None:
    assert cli("run", "hi", *flags).out == "Hel"


@pytest.mark.parametrize("n", ["-1", "-2"])
def test_no_limit(cli: CommandLine, stand: Stand, n: str) -> None:
    assert cli("run", "hi", "-n", n).out == "Hello!"


def test_temperature_and_stop_aliases(cli: CommandLine, stand: Stand) -> None:
    assert cli("run", "hi", "--temperature", "0", "-r", "lo").out == "Hel"
    assert stand.loads[0]["generation"]["temperature"] == 0.0


def test_a_limit_is_never_silent(cli: CommandLine, stand: Stand) -> None:
    for quiet in ([], ["-q"]):
        assert "stopped at the limit of 3 tokens (-n)" in cli("run", "hi", "-n", "3", *quiet).err
        full = cli("run", "--raw", "hi", "-c", "6", *quiet)
        assert full.out == "Hel" and "the context is full" in full.err and "-c" in full.err
    assert "stopped" not in cli("run", "hi").err


def test_quiet(cli: CommandLine, stand: Stand) -> None:
    result = cli("run", "-q", "hi")
    assert result.out == "Hello!" and result.err == ""


def test_the_seed_that_was_used_is_reported(cli: CommandLine, stand: Stand) -> None:
    assert "seed: 42" in cli("run", "-s", "42", "hi").err
    first, second = (cli("run", "hi").err.rsplit("seed: ")[1] for _ in range(2))
    assert first != second


def test_verbose_prompt(cli: CommandLine, stand: Stand) -> None:
    result = cli("run", "--verbose-prompt", "-q", "--raw", "hi")
    assert result.out == "Hello!"
    assert result.err.splitlines()[:2] == ["prompt: 3 tokens", "   256 -> '<bos>'"]
    assert "'assistant" not in result.err
    assert f"prompt: {len(chat_ids(('user', 'hi')))} tokens" in cli("run", "--verbose-prompt", "hi").err


def test_prompt_that_is_too_long_names_both_numbers(cli: CommandLine, stand: Stand) -> None:
    line = cli("run", "-q", "--raw", "-c", "10", "x" * 20).one_line_error(1)
    assert "21" in line and "10" in line
    assert stand.model is not None and stand.model.calls == []


def test_values_that_only_the_model_can_refuse_are_wrong_usage_too(cli: CommandLine, stand: Stand) -> None:
    assert "stop" in cli("run", "-q", "--stop", "", "hi").one_line_error(2)


def test_output_that_cannot_be_written(cli: CommandLine, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ids: list[int]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stand, "_next", full)
    assert cli("run", "-q", "hi").one_line_error(1) == "llamita: output: No space left on device"


def test_ctrl_c(cli: CommandLine, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = stand._next

    def interrupt(ids: list[int]) -> int:
        if len(ids) > len(stand.prompts[-1]) + 1:
            raise KeyboardInterrupt
        return answered(ids)

    monkeypatch.setattr(stand, "_next", interrupt)
    result = cli("run", "--raw", "hi")
    assert result.status == 130 and result.out == "He" and "Traceback" not in result.err
    assert result.err.splitlines()[-1] == "llamita: interrupted"
    assert stand.model is not None and stand.model.closed == 1


def test_characters_that_the_terminal_cannot_show(stand: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from llamita.cli import main

    stand.replies = ["naïve 🦙".encode()]
    with open(tmp_path / "out", "w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["run", "-q", "hi"]) == 0
    assert (tmp_path / "out").read_bytes() == b"na?ve ?"
