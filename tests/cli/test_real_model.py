"""The command line on the default model, in processes of their own, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import llamita

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "golden" / "smollm2_q4_1.json").read_text(encoding="utf-8"))
CASES = {case["prompt"]: case for case in GOLDEN["cases"]}
COMMAND = [sys.executable, "-c", "import sys; from llamita.cli import main; sys.exit(main())"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")


@pytest.fixture(autouse=True)
def fetched(real_model_path: Path) -> Path:
    """Every test here needs the model, and none should pay for fetching it."""
    return real_model_path


@contextmanager
def running(*args: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*COMMAND, *args], **(pipes | more))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("prompt", CASES)
def test_greedy_text_is_the_references(prompt: str) -> None:
    from llamita.models.info import load_tokenizer

    expected = load_tokenizer(None).decode(CASES[prompt]["greedy_ids"])
    result = llamita("run", "--raw", "--temp", "0", "-n", "24", "--activations", "32", "-q", prompt)
    assert result.status == 0 and result.out.lstrip() == expected.lstrip(), result
    assert result.err.strip() == "stopped at the limit of 24 tokens (-n)"


def test_ids_are_the_references() -> None:
    for prompt, case in CASES.items():
        assert json.loads(llamita("tokenize", "--ids", "--parse-special", prompt).out) == case["ids"]


def test_seeds() -> None:
    def run(*args: str) -> tuple[str, str]:
        result = llamita("run", "Tell me a story.", "-n", "24", *args)
        assert result.status == 0
        return result.out, result.err.rsplit("seed: ")[1].strip()

    assert run("-s", "11") == run("-s", "11") == (run("-s", "11")[0], "11")
    first, second = run(), run()
    assert first[1] != second[1] and first[0] != second[0]
    assert run("-s", first[1]) == first


def test_answers_from_a_pipe_with_the_template() -> None:
    result = llamita("run", "--temp", "0", "-n", "40", "--verbose-prompt", stdin="What is the capital of France?\n")
    assert result.status == 0 and "Paris" in result.out
    assert "'<|im_start|>'" in result.err and "<|im_" not in result.out


def test_first_run_shows_that_kernels_are_compiled(tmp_path: Path, fetched: Path) -> None:
    alone = {"LLAMITA_HOME": str(tmp_path), "PATH": str(tmp_path), "CC": "no compiler"}
    first = llamita("warmup", "-m", str(fetched), **alone)
    assert first.status == 0 and first.out == ""
    assert "compiling kernels for this CPU (once): 0/" in first.err and "(100%)" in first.err
    second = llamita("run", "-n", "1", "hi", "-m", str(fetched), **alone)
    assert second.status == 0 and "compiling" not in second.err


def test_a_simpler_cpu_says_the_same() -> None:
    command = ("run", "--raw", "--temp", "0", "-n", "12", "-q", "The largest planet in the solar system is")
    mine, generic = llamita(*command), llamita(*command, LLAMITA_TARGET="generic")
    assert mine.status == generic.status == 0 and mine.out == generic.out
    assert "generic" in llamita("info", LLAMITA_TARGET="generic").out
    assert "expected one of" in llamita(*command, LLAMITA_TARGET="z80").one_line_error(1)


def test_peak_memory(fetched: Path) -> None:
    pytest.importorskip("resource")
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom llamita.cli import main\n"
        "status = main(['run', '-q', '-n', '32', 'Why is the sky blue?'])\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        # On Linux that includes what this process was before it became Python: a copy of the tests'.
        "table = Path('/proc/self/status')\n"
        "if table.exists(): peak = int(table.read_text().split('VmHWM:')[1].split()[0])\n"
        "print(peak, file=sys.stderr)\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak = int(done.stderr.split()[-1]) * (1 if sys.platform == "darwin" else 1024)
    assert peak <= 700 << 20


def test_bench_json() -> None:
    result = llamita("bench", "-p", "16", "-n", "4", "-r", "2", "-t", "1", "-o", "json")
    assert result.status == 0
    prompt, text = json.loads(result.out)
    assert (prompt["n_prompt"], prompt["n_gen"], text["n_prompt"], text["n_gen"]) == (16, 0, 0, 4)
    assert prompt["model_n_params"] == 134_515_008 and prompt["model_type"] == "llama 135M Q4_1" and prompt["n_threads"] == 1
    assert len(prompt["samples_ts"]) == 2 and prompt["avg_ts"] > 0


def test_info() -> None:
    facts = json.loads(llamita("info", "--json").out)
    assert facts["architecture"] == "llama" and facts["config"]["n_layers"] == 30 and facts["context"]["trained"] == 8192
    assert facts["memory"]["total"] > facts["size_bytes"] and facts["tokenizer"]["vocab_size"] == 49152
    assert facts["machine"]["kernel_target"] in facts["machine"]["kernel_targets"]
    text = llamita("info").out
    assert [word for word in ("llama 135M Q4_1", "8192", "memory", "kernel target", "Q8_0") if word not in text] == []


def test_perplexity_of_plain_text_is_low(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times. " * 6
    (tmp_path / "text").write_text(text, encoding="utf-8")
    result = llamita("perplexity", "-f", str(tmp_path / "text"), "-c", "32", "--chunks", "3")
    assert result.status == 0 and result.out.startswith("[1]")
    last = result.out.splitlines()[-1]
    assert last.startswith("Final estimate: PPL = ") and " +/- " in last
    assert 1 < float(last.split()[4]) < 60
    short = llamita("perplexity", "-q", "-f", str(tmp_path / "text"), "-c", "512")
    assert "at least 1024 tokens" in short.one_line_error(2)


def test_pull_and_models(fetched: Path) -> None:
    assert llamita("pull", "smollm2-135m").out == f"{fetched}\n"
    assert str(fetched) in llamita("models").out
    not_yet = llamita("models", LLAMITA_HOME=str(fetched.parent / "nothing here"))
    assert "llamita pull smollm2-135m" in not_yet.out


@posix
def test_ctrl_c_during_run() -> None:
    with running("run", "-q", "Write a very long story.", "--ignore-eos") as process:
        assert process.stdout is not None and process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130 and err.decode().splitlines()[-1] == "llamita: interrupted"
        assert time.monotonic() - started < 5


@posix
def test_an_impatient_ctrl_c() -> None:
    with running("run", "-q", "Write a very long story.", "--ignore-eos") as process:
        assert process.stdout is not None and process.stdout.read(1)
        for _ in range(8):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130 and err.decode().splitlines()[-1] == "llamita: interrupted"
        assert b"Traceback" not in err


@posix
def test_ctrl_c_during_a_long_prompt() -> None:
    with running("run", "--raw", "-n", "1", "-", stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(b"word " * 8000)
        process.stdin.close()
        process.stdin = None
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.communicate(timeout=60)
        assert process.returncode == 130 and time.monotonic() - started < 5


@posix
def test_ctrl_c_in_chat_stops_the_answer_only() -> None:
    with running("chat", "-q", "--temp", "0", "--ignore-eos", stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"Write a very long story.\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        out, _ = process.communicate(b"/exit\n", timeout=30)
        assert process.returncode == 0 and out.endswith(b"\n")


@posix
def test_reader_that_goes_away() -> None:
    with running("run", "-q", "--ignore-eos", "-n", "400", "Write a very long story.") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
        assert process.returncode == 141 and err == b""
