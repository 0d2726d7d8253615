"""What it takes to have a model: time from process start to the first token, memory, and Python's part of a step.

    python benchmarks/footprint.py -m model.gguf --llamacpp-python ../lcpp/bin/python

start     a new process imports the library, loads the model with a context of 2048 tokens and makes one token from a short
          text; llamita as a library and as a command, llama.cpp through llama-cpp-python's `Llama`, taking turns; kernels and
          the file are in the machine's caches
kernels   `llamita warmup` with an empty kernel store
memory    the most that a process ever held (resident) which evaluated 300 tokens and made 8; Linux only
python    the part of a decode step that is not spent in the plan's kernels: around the plan alone, and with sampling and
          text (greedy generation)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from wire import WorkerError

import llamita
from llamita.engine.errors import LlamitaError
from llamita.engine.runtime.cpus import usable_cpus
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.config import read_config

N_CTX = 2048
ALLOWED = 250 << 20  # bytes beyond file and cache
TEXT = "The quick brown fox jumps over"
STATUS = "print(next(int(l.split()[1]) * 1024 for l in open('/proc/self/status') if l.startswith('VmHWM')))"
OURS = """
import sys, llamita
with llamita.load(sys.argv[1], n_ctx=int(sys.argv[2]), n_threads=int(sys.argv[3])) as llm:
"""
THEIRS = """
import sys, llama_cpp
llm = llama_cpp.Llama(sys.argv[1], n_ctx=int(sys.argv[2]), n_threads=int(sys.argv[3]), n_threads_batch=int(sys.argv[3]), verbose=False)
"""
FIRST_TOKEN = {
    "llamita": f"{OURS}  llm.complete({TEXT!r}, max_tokens=1, temperature=0)",
    "llama.cpp": f"{THEIRS}llm({TEXT!r}, max_tokens=1, temperature=0)",
}
PEAK = {
    "llamita": f"{OURS}  llm.complete(list(range(100, 400)), max_tokens=8, temperature=0)\n{STATUS}",
    "llama.cpp": f"{THEIRS}llm.reset(); llm.eval(list(range(100, 400)))\nfor i in range(8): llm.eval([100 + i])\n{STATUS}",
}


class Footprint:
    """The measurements on one file."""

    def __init__(self, options: argparse.Namespace, path: Path):
        self.path, self.threads, self.repetitions = path, options.threads, options.repetitions
        self.pythons = {"llamita": sys.executable, "llama.cpp": options.llamacpp_python}

    def _run(self, command: list[str], **environment: str) -> tuple[float, str]:
        """Seconds, and what was printed."""
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        seconds = time.perf_counter() - started
        if done.returncode:
            raise WorkerError(f"{command[0]}: ended with status {done.returncode}: {done.stderr.strip()[-400:]}")
        return seconds, done.stdout

    def _script(self, side: str, code: str) -> list[str]:
        return [self.pythons[side], "-c", code, str(self.path), str(N_CTX), str(self.threads)]

    def start(self) -> dict[str, float]:
        """Median seconds from process start to the first token."""
        options = ["-m", str(self.path), "-c", str(N_CTX), "-t", str(self.threads), "-n", "1", "--temp", "0", "--raw", "-q"]
        commands = {side: self._script(side, code) for side, code in FIRST_TOKEN.items()}
        commands["command line"] = [sys.executable, "-c", "from llamita.cli import main; main()", "run", *options, TEXT]
        for command in commands.values():
            self._run(command)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(self.repetitions):
            for name, command in commands.items():
                times[name].append(self._run(command)[0])
        return {name: statistics.median(seconds) for name, seconds in times.items()}

    def kernels(self) -> float:
        """Seconds to compile every kernel of the model."""
        with tempfile.TemporaryDirectory(prefix="llamita-kernels-") as home:
            command = [sys.executable, "-c", "from llamita.cli import main; main()", "warmup", "-m", str(self.path), "-q"]
            return self._run(command, LLAMITA_HOME=home)[0]

    def memory(self) -> dict[str, int]:
        """Peak bytes of both, and the bytes of file and cache."""
        with open_checkpoint(self.path) as checkpoint:
            cache = read_config(checkpoint).kv_bytes_per_token() * N_CTX
            peaks: dict[str, int] = {"file": checkpoint.file_bytes, "cache": cache}
        for side, code in PEAK.items():
            peaks[side] = int(self._run(self._script(side, code))[1])
        return peaks

    def python(self) -> dict[str, float]:
        """Seconds of a decode step in the plan, around it, and with everything that generation adds."""
        steps = 48
        with llamita.load(self.path, n_ctx=256, n_threads=self.threads) as llm:
            decoder: Any = llm.decoder
            decoder.forward(list(range(100, 132)))
            forward, plan, whole = [], [], []
            for _ in range(5):
                for _ in range(steps):
                    started = time.perf_counter()
                    decoder.forward([100])
                    forward.append(time.perf_counter() - started)
                    plan.append(sum(seconds for _, seconds, _ in decoder.timed_steps(1)))
                decoder.rewind(32)
                before = time.perf_counter()
                for n, _ in enumerate(llm.generate(list(range(100, 132)), max_tokens=steps, temperature=0, ignore_eos=True)):
                    now = time.perf_counter()
                    if n:
                        whole.append(now - before)
                    before = now
                decoder.rewind(32)
        return {"plan": statistics.median(plan), "forward": statistics.median(forward), "generation": statistics.median(whole)}

    def report(self) -> dict[str, Any]:
        """Everything, printed as it comes."""
        found: dict[str, Any] = {"model": self.path.stem, "n_threads": self.threads}
        for name in ("start", "kernels", "memory", "python"):
            found[name] = getattr(self, name)()
            print(f"{name}: {json.dumps(found[name])}", flush=True)
        return found


def main() -> None:
    """Measure, print, write."""
    from llamita.loaders.library import DEFAULT_MODEL, resolve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", default=DEFAULT_MODEL, help="a .gguf file or a library name [default: the library's default model]")
    add("-t", "--threads", type=int, default=usable_cpus(), help="[default: %(default)s]")
    add("-r", "--repetitions", type=int, default=7, help="of the start [default: %(default)s]")
    add("--llamacpp-python", default=sys.executable, metavar="PATH", help="interpreter that has llama_cpp [default: this one]")
    add("-o", "--output", type=Path, help="write everything to this file as JSON")
    options = parser.parse_args()
    try:
        report = Footprint(options, resolve(options.model)).report()
    except (WorkerError, LlamitaError, OSError) as error:
        sys.exit(f"error: {error}")
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
