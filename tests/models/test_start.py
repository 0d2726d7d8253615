"""What a process with warm kernels imports on its way to the first token: nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numba", "gguf", "huggingface_hub", "jinja2", "safetensors", "rich", "numpy.random", "email.message", "subprocess")
LIBRARY = """
import sys, llamita
with llamita.load(sys.argv[1], n_ctx=64) as llm:
    llm.complete("Once upon", max_tokens=1, temperature=0)
"""
COMMAND = """
import sys
from llamita.cli import main
assert main(["run", "Once upon", "--raw", "-m", sys.argv[1], "-c", "64", "-n", "1", "--temp", "0", "-q"]) == 0
"""


def imported(code: str, model: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint()\nprint(*sys.modules)", str(model)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture(scope="module")
def warm_model(real_model_path: Path) -> Path:
    imported(LIBRARY, real_model_path)  # whatever is missing is compiled here
    return real_model_path


def test_the_library(warm_model: Path) -> None:
    assert imported(LIBRARY, warm_model) & {*HEAVY, "typer"} == set()


def test_the_command_line(warm_model: Path) -> None:
    """typer itself may bring standard modules along, depending on its version."""
    assert imported(COMMAND, warm_model) & {"numba", "gguf", "huggingface_hub", "jinja2", "safetensors", "rich", "numpy.random"} == set()
