"""Parsing: what is refused as wrong usage, and what help costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine, Stand, llamita
from gguf_fixtures import write_tiny_llama

COMMANDS = ("run", "chat", "bench", "info", "tokenize", "perplexity", "pull", "models", "warmup")
SAMPLING = "-m -n -c -t -s --temp --top-k --top-p --min-p --repeat-penalty --repeat-last-n --stop --system --raw".split()
LONG = "--ignore-eos --activations -q --model --max-tokens --ctx-size --threads --seed --quiet".split()
OPTIONS = {
    "run": [*SAMPLING, *LONG, "-f", "--verbose-prompt"],
    "chat": [*SAMPLING, *LONG],
    "bench": ["-m", "-p", "-n", "-d", "-t", "-r", "-o", "-pg", "--n-prompt", "--n-gen", "--n-depth", "--repetitions", "--output"],
    "info": ["-m", "--json"],
    "tokenize": ["-m", "--ids", "--no-special", "--parse-special", "-f"],
    "perplexity": ["-m", "-f", "-c"],
    "warmup": ["-m"],
}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "--top-p", "7", "hi"], ["--top-p", "7", "from 0 to 1"]),
        (["run", "-n", "-5", "hi"], ["-n", "-5", ">= -2"]),
        (["run", "-n", "x", "hi"], ["-n", "x", "integer"]),
        (["run", "-n", "1.5", "hi"], ["-n", "1.5", "integer"]),
        (["run", "--max-tokens=-7", "hi"], ["--max-tokens", "-7"]),
        (["run", "-t", "0", "hi"], ["-t", "0", ">= 1"]),
        (["run", "-t", "two", "hi"], ["-t", "two"]),
        (["run", "-c", "-1", "hi"], ["-c", "-1"]),
        (["run", "-c", "99999999999", "hi"], ["-c", "99999999999"]),
        (["run", "-s", "-2", "hi"], ["-s", "-2"]),
        (["run", "-s", str(2**64), "hi"], ["-s", str(2**64)]),
        (["run", "--temp", "-1", "hi"], ["--temp", "-1", ">= 0"]),
        (["run", "--temp", "nan", "hi"], ["--temp", "nan"]),
        (["run", "--temp", "inf", "hi"], ["--temp", "inf"]),
        (["run", "--min-p", "1.01", "hi"], ["--min-p", "1.01"]),
        (["run", "--top-k", "-2", "hi"], ["--top-k", "-2"]),
        (["run", "--repeat-penalty", "0", "hi"], ["--repeat-penalty", "0"]),
        (["run", "--repeat-last-n", "-2", "hi"], ["--repeat-last-n", "-2"]),
        (["run", "--activations", "9", "hi"], ["--activations", "9", "8, 16, 32"]),
        (["run", "--top-q", "1", "hi"], ["--top-q"]),
        (["run", "-m"], ["-m", "requires an argument"]),
        (["run", "one", "two"], ["two"]),
        (["run", "--raw", "--system", "be kind", "hi"], ["--system", "--raw"]),
        (["run", "hi", "-f", "prompt.txt"], ["PROMPT", "prompt.txt"]),
        (["run"], ["PROMPT", "standard input is empty"]),
        (["tokenize"], ["TEXT", "standard input is empty"]),
        (["rum"], ["rum"]),
        (["pull"], ["name"]),
        (["bench", "-p", "1,x"], ["-p", "x"]),
        (["bench", "-p", "8-1"], ["-p", "8-1"]),
        (["bench", "-t", "0"], ["-t", "0"]),
        (["bench", "-p", "0", "-n", "0"], ["-p 0", "-n 0"]),
        (["bench", "-pg", "1"], ["-pg", "two numbers"]),
        (["bench", "-r", "0"], ["-r", "0"]),
        (["bench", "-o", "xml"], ["-o", "xml"]),
        (["perplexity", "-c", "3", "-f", "text"], ["-c", "3"]),
    ],
)
def test_wrong_usage_is_one_line_that_names_option_and_value(cli: CommandLine, stand: Stand, args: list[str], words: list[str]) -> None:
    line = cli(*args).one_line_error(2)
    assert [word for word in words if word not in line] == [], line
    assert stand.loads == []


def test_run_on_a_terminal_without_a_prompt_is_told_how_to_give_one(cli: CommandLine, stand: Stand) -> None:
    line = cli("run", terminal=True).one_line_error(2)
    assert "-f" in line and "pipe" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(cli: CommandLine, command: str) -> None:
    result = cli(command, "--help")
    assert result.status == 0 and result.err == "" and result.out.startswith(f"Usage: llamita {command}")
    assert [option for option in OPTIONS.get(command, ()) if option not in result.out] == []


def test_help_lists_the_commands(cli: CommandLine) -> None:
    for args in ([], ["--help"], ["-h"]):
        result = cli(*args)
        assert result.status == 0 and result.err == ""
        assert [command for command in COMMANDS if f"  {command} " not in result.out] == []


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom llamita.cli import main\nassert main(['run', '--help']) == 0\n"
        "heavy = {'numpy', 'numba', 'llvmlite', 'gguf', 'tokenizers', 'jinja2', 'huggingface_hub', 'safetensors'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version_says_what_a_bug_report_needs(cli: CommandLine) -> None:
    result = cli("--version")
    assert result.status == 0 and result.out.startswith("llamita ")
    assert [word for word in ("Python", "numba", "numpy", "kernel target", "CPU features") if word not in result.out] == []


def test_installed_as_a_command() -> None:
    from importlib.metadata import entry_points

    (command,) = entry_points(group="console_scripts", name="llamita")
    assert command.value == "llamita.cli:main"


def test_debug_shows_the_traceback_wherever_it_stands(cli: CommandLine) -> None:
    for args in (["--debug", "info", "-m", "/nowhere.gguf"], ["info", "-m", "/nowhere.gguf", "--debug"]):
        result = cli(*args)
        assert result.status == 1 and "Traceback" in result.err and result.err.splitlines()[-1].startswith("llamita: ")
    assert "Traceback" not in cli("info", "-m", "/nowhere.gguf").err


def test_debug_after_two_dashes_is_text(cli: CommandLine, stand: Stand) -> None:
    assert cli("run", "--raw", "--", "--debug").status == 0
    assert bytes(stand.prompts[0][1:]) == b"--debug"


def test_hub_names_the_way_llama_cpp_spells_them(cli: CommandLine, stand: Stand) -> None:
    cli("run", "-hf", "owner/repo:Q8_0", "hi")
    assert stand.loads[0]["model"] == "hf:owner/repo:Q8_0"


def test_an_error_that_nobody_expected_is_one_line_too(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("llamita.models.loading.load", fail)
    result = cli("run", "hi")
    assert result.status == 1 and result.err == "llamita: internal error: ZeroDivisionError: a b (--debug shows where; please report it)\n"


def test_out_of_memory_is_one_line(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("llamita.models.loading.load", fail)
    assert "not enough memory" in cli("run", "hi").one_line_error(1)


def test_exit_status_of_the_process() -> None:
    assert llamita("run", "--top-p", "7", "hi").one_line_error(2)
    assert llamita("info", "-m", "/nowhere.gguf").one_line_error(1)
    assert llamita("--help").status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a Unix shell does")
@pytest.mark.parametrize(
    ("closed", "command", "status"),
    [("<&-", "run", 2), ("<&-", "chat -q", 0), (">&-", "run -n 2 hi", 0), ("2>&-", "run -n 2 hi", 0), ("<&- >&- 2>&-", "info", 0)],
)
def test_closed_streams(tmp_path: Path, closed: str, command: str, status: int) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    line = f"exec {sys.executable} -c 'import sys; from llamita.cli import main; sys.exit(main())' {command} -m {model} {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr
