"""How far each side's arithmetic is from exact arithmetic on the same weights: mean Kullback-Leibler divergence over a text.

    python benchmarks/kl.py -m model.gguf --activations 8,16,32 --llamacpp-python ../lcpp/bin/python

The reference is the file's model computed in float64 by exact_model.py, which shares no arithmetic with either side. Compared
with it are llamita with the given activation widths and llama.cpp as it comes. All of them read the same tokens as one
sequence; at each position the divergence of the next token's distribution is taken,

    KL(reference || other) = sum over tokens of p * (log p - log q), in nats, summed in float64.

The last columns say how many times smaller llamita's mean is than llama.cpp's. The text is the beginning of Alice's
Adventures in Wonderland (Lewis Carroll, 1865; in the public domain), or any file with -f.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from exact_model import ExactModel
from numpy.typing import NDArray
from wire import HERE, Worker, WorkerError

from llamita.engine.errors import LlamitaError
from llamita.engine.runtime.team import usable_cpus
from llamita.models.bench import parse_counts

PIECE = 64  # positions whose logits are held at once
THEIRS = "llama.cpp"


def log_softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Log-probabilities [T, V] of logits [T, V]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


class Divergence:
    """What is gathered about one side, position by position."""

    def __init__(self) -> None:
        self._values: list[NDArray[np.float64]] = []
        self._same: list[NDArray[np.bool_]] = []

    def add(self, reference: NDArray[np.float64], other: NDArray[np.float64]) -> None:
        """Take in log-probabilities [T, V] of both."""
        self._values.append((np.exp(reference) * (reference - other)).sum(axis=1))
        self._same.append(reference.argmax(axis=1) == other.argmax(axis=1))

    def summary(self) -> dict[str, float]:
        """Means and extremes over all positions; standard error of the mean."""
        values, same = np.concatenate(self._values), np.concatenate(self._same)
        return {
            "mean": float(values.mean()),
            "error": float(values.std(ddof=1) / values.size**0.5) if values.size > 1 else 0.0,
            "median": float(np.median(values)),
            "p99": float(np.quantile(values, 0.99)),
            "max": float(values.max()),
            "same_top": float(same.mean()),
        }


def divergences(options: argparse.Namespace, path: Path) -> tuple[int, dict[str, dict[str, float]]]:
    """The number of positions, and each side's summary by its name."""
    text = options.file.read_text(encoding="utf-8")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="llamita-kl-") as scratch:

        def ours(activations: int) -> Worker:
            worker = stack.enter_context(Worker(f"llamita {activations}", "llamita_worker.py"))
            worker.ask("load", path=str(path), n_ctx=options.positions, n_threads=options.threads, activations=activations)
            return worker

        sides = {str(width): ours(width) for width in options.activations}
        ids = next(iter(sides.values())).ask("tokenize", text=text)[: options.positions]
        theirs = sides[THEIRS] = stack.enter_context(Worker(THEIRS, "llamacpp_worker.py", options.llamacpp_python))
        theirs.ask("load", path=str(path), n_ctx=options.positions, n_threads=options.threads)
        exact = stack.enter_context(ExactModel(path))
        file = str(Path(scratch) / "logits.npy")

        def piece_of(worker: Worker, piece: list[int]) -> NDArray[np.float64]:
            worker.ask("logits", ids=piece, file=file)
            return log_softmax(np.load(file))

        gathered = {name: Divergence() for name in sides}
        for i, logits in enumerate(exact.logits(ids, PIECE)):
            expected, piece = log_softmax(logits), ids[i * PIECE : (i + 1) * PIECE]
            for name, worker in sides.items():
                gathered[name].add(expected, piece_of(worker, piece))
        return len(ids), {name: divergence.summary() for name, divergence in gathered.items()}


def row(path: Path, n: int, summaries: dict[str, dict[str, float]]) -> str:
    """One line of the table."""
    cells = [path.stem, str(n)]
    cells += [f"{summary['mean']:.2e} ({summary['same_top']:.1%})" for summary in summaries.values()]
    cells += [f"**{summaries[THEIRS]['mean'] / summary['mean']:.1f}**" for name, summary in summaries.items() if name != THEIRS]
    return "| " + " | ".join(cells) + " |"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", nargs="+", action="extend", help=".gguf files or library names [default: the library's default model]")
    add("-f", "--file", type=Path, default=HERE / "data" / "alice.txt", help="the text [default: data/alice.txt]")
    add("-n", "--positions", type=int, default=1024, help="tokens of the text that are used, at most [default: %(default)s]")
    add("-t", "--threads", type=int, default=usable_cpus(), help="[default: %(default)s]")
    add("--activations", default="8,16", help="llamita's activation widths, comma list [default: %(default)s]")
    add("--llamacpp-python", default=sys.executable, metavar="PATH", help="interpreter that has llama_cpp [default: this one]")
    add("-o", "--output", type=Path, help="write everything to this file as JSON")
    options = parser.parse_args()
    options.activations = parse_counts("--activations", options.activations, 8)
    if options.positions < 1:
        parser.error("-n: expected at least 1")
    return options


def main() -> None:
    """Measure, print, write."""
    from llamita.loaders.library import DEFAULT_MODEL, resolve

    options = parse()
    names = [f"llamita {width}" for width in options.activations]
    head = ["model", "positions", *(f"{name}: mean KL (same top token)" for name in (*names, THEIRS)), *(f"{THEIRS} / {n}" for n in names)]
    print("| " + " | ".join(head) + " |")
    print("| --- |" + " ---: |" * (len(head) - 1), flush=True)
    report: list[dict[str, Any]] = []
    try:
        for name in options.model or [DEFAULT_MODEL]:
            path = resolve(name)
            n, summaries = divergences(options, path)
            print(row(path, n, summaries), flush=True)
            report.append({"model": path.stem, "positions": n, "kl": summaries})
    except (WorkerError, LlamitaError, OSError) as error:
        sys.exit(f"error: {error}")
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
