"""llamita and llama.cpp on the same files, threads and sizes, taking turns.

    pip install llama-cpp-python            # here or in an environment of its own
    python benchmarks/compare_llamacpp.py -m model.gguf -p 512 -n 128 -t 1,2 --activations 8,16
    python benchmarks/compare_llamacpp.py -m model.gguf -p 0 -n 128 -d 2048,7000 --llamacpp-python ../lcpp/bin/python

Each side is a process that loads the model once and then measures one repetition when it is asked to, so that loading
does not count and only one side computes at a time: llamita, llama.cpp, llamita, llama.cpp, ... What drifts on the machine
hits both alike. What competes for the processors does not (threads that wait for each other suffer most), so the time that
other programs took meanwhile is counted, and told when it matters; with --wait such rounds are measured again.

Tests are llama-bench's: ppN evaluates N random tokens at once, tgN evaluates N one by one, "@ dK" puts K tokens into the
cache first, which does not count; before the repetitions each side runs the test once to warm up; no tokenising, no
sampling. llama.cpp runs with n_batch = n_ubatch = 512, its logits wanted for the last token only.

Printed are the medians of tokens per second, their ratio (above 1: llamita is faster), and the smallest and largest ratio
of neighbouring repetitions. --roofline adds which part of the memory's read speed llamita's decode reaches: the bytes that
a token has to read (packed weights, cache) per second, over what bandwidth.py measures with the same threads in between.

If llama.cpp's process is killed by SIGILL or SIGSEGV in a virtual machine, its AMX code is a likely cause: build it without,
e.g. CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON"
pip install --no-binary llama-cpp-python llama-cpp-python, with the features that the processor has.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from interference import TOLERATED, Others
from wire import Worker, WorkerError

from llamita.engine.errors import LlamitaError
from llamita.engine.runtime.team import usable_cpus
from llamita.models.bench import BenchTest, cpu_name, parse_counts, plan_tests


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def random_ids(test: BenchTest, n_vocab: int, bos: int | None) -> dict[str, list[int]]:
    """The tokens of a test: random, the same for both sides and at every call; the first is `bos` where there is one."""
    random = np.random.default_rng(0)
    counts = {"depth": test.n_depth, "prompt": test.n_prompt, "generated": test.n_gen}
    ids = {name: [int(i) for i in random.integers(0, n_vocab, n)] for name, n in counts.items()}
    first = ids["depth"] or ids["prompt"] or ids["generated"]
    if bos is not None and first:
        first[0] = bos
    return ids


class Pair:
    """llama.cpp and, for each activation width, llamita, with one model loaded."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace, path: Path, n_ctx: int, n_threads: int):
        self._pause, self._wait, self._path, self.n_threads = options.pause, options.wait, path, n_threads
        self.ours: dict[int, Worker] = {}
        self.facts: dict[int, dict[str, Any]] = {}
        for width in options.activations:
            worker = stack.enter_context(Worker("llamita", "llamita_worker.py"))
            self.facts[width] = worker.ask("load", path=str(path), n_ctx=n_ctx, n_threads=n_threads, activations=width)
            self.ours[width] = worker
        self.theirs = stack.enter_context(Worker("llama.cpp", "llamacpp_worker.py", options.llamacpp_python))
        self.their_facts: dict[str, Any] = self.theirs.ask(
            "load", path=str(path), n_ctx=n_ctx, n_threads=n_threads, flash_attention=options.flash_attention
        )

    def run(self, test: BenchTest, repetitions: int, roofline: bool) -> Iterator[dict[str, Any]]:
        """Measure a test in turns; one result for each activation width."""
        n_vocab = min(self.their_facts["n_vocab"], *(facts["n_vocab"] for facts in self.facts.values()))
        ids = random_ids(test, n_vocab, self.their_facts["bos"])
        warm = {**ids, "generated": ids["generated"][:1]}
        for worker in (*self.ours.values(), self.theirs):
            self._ask(worker, "time", **warm)
        rounds: list[dict[str, float]] = []
        deadline = time.monotonic() + self._wait
        while len(rounds) < repetitions:
            measured = self._round(test, ids, roofline and bool(test.n_gen) and not test.n_prompt)
            if measured["others_cpu"] <= TOLERATED or time.monotonic() >= deadline:
                rounds.append(measured)
        for width in self.ours:
            yield self._result(test, width, rounds)

    def _round(self, test: BenchTest, ids: dict[str, list[int]], roofline: bool) -> dict[str, float]:
        """Each side once: tokens per second by name ("8", "roof 8", ..., "llama.cpp"), and what others took meanwhile."""
        n = test.n_prompt + test.n_gen
        others = Others(worker.pid for worker in (*self.ours.values(), self.theirs))
        rates = {}
        for width, worker in self.ours.items():
            if roofline:
                n_bytes = self._bytes_per_token(test, width)
                rates[f"roof {width}"] = self._ask(worker, "bandwidth", n_bytes=n_bytes, seconds=0.2) / n_bytes
            rates[str(width)] = n * 1e9 / self._ask(worker, "time", **ids)
        rates["llama.cpp"] = n * 1e9 / self._ask(self.theirs, "time", **ids)
        return rates | {"others_cpu": others.share() or 0.0}

    def _ask(self, worker: Worker, op: str, **args: Any) -> Any:
        time.sleep(self._pause)  # the other side's threads may still be spinning
        return worker.ask(op, **args)

    def _bytes_per_token(self, test: BenchTest, width: int) -> int:
        return int(self.ours[width].ask("bytes_read", n_cached=test.n_depth + test.n_gen // 2))

    def _result(self, test: BenchTest, width: int, rounds: list[dict[str, float]]) -> dict[str, Any]:
        mine, theirs = [r[str(width)] for r in rounds], [r["llama.cpp"] for r in rounds]
        roofs = [r[f"roof {width}"] for r in rounds if f"roof {width}" in r]
        pairs = [a / b for a, b in zip(mine, theirs, strict=True)]
        result = {
            "model": self._path.stem,
            "n_threads": self.n_threads,
            "test": test.label,
            "n_prompt": test.n_prompt,
            "n_gen": test.n_gen,
            "n_depth": test.n_depth,
            "activations": width,
            "llamita_ts": statistics.median(mine),
            "llamacpp_ts": statistics.median(theirs),
            "ratio": statistics.median(mine) / statistics.median(theirs),
            "ratio_min": min(pairs),
            "ratio_max": max(pairs),
            "samples_llamita_ts": mine,
            "samples_llamacpp_ts": theirs,
            "others_cpu": max(r["others_cpu"] for r in rounds),
        }
        if roofs:
            share = statistics.median(mine) / statistics.median(roofs)
            result |= {
                "roofline_ts": statistics.median(roofs),
                "bytes_per_token": self._bytes_per_token(test, width),
                "roofline_share": share,
            }
        return result


_HEAD = ("model", "threads", "test", "activations", "llamita t/s", "llama.cpp t/s", "ratio", "spread")


def markdown_row(result: dict[str, Any], roofline: bool) -> str:
    """One line of the table."""
    cells = [result["model"], str(result["n_threads"]), result["test"], str(result["activations"])]
    cells += [f"{result['llamita_ts']:.1f}", f"{result['llamacpp_ts']:.1f}", f"**{result['ratio']:.2f}**"]
    cells.append(f"{result['ratio_min']:.2f}..{result['ratio_max']:.2f}")
    if roofline:
        share = result.get("roofline_share")
        cells.append("" if share is None else f"{share:.0%} of {result['roofline_ts']:.0f} t/s")
    return "| " + " | ".join(cells) + " |"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", nargs="+", action="extend", help=".gguf files or library names [default: the library's default model]")
    add("-p", "--n-prompt", default="512", help="sizes of prompts, comma list; 0: none [default: %(default)s]")
    add("-n", "--n-gen", default="128", help="tokens generated, comma list; 0: none [default: %(default)s]")
    add("-d", "--n-depth", default="0", help="tokens in the cache before a test, comma list [default: %(default)s]")
    add("-t", "--threads", default=str(usable_cpus()), help="comma list [default: %(default)s]")
    add("-r", "--repetitions", type=int, default=5, help="of each test [default: %(default)s]")
    add("--activations", default="8,16", help="llamita's activation widths, comma list [default: %(default)s]")
    add("--llamacpp-python", default=sys.executable, metavar="PATH", help="interpreter that has llama_cpp [default: this one]")
    add("--flash-attention", choices=("auto", "on", "off"), default="auto", help="of llama.cpp [default: %(default)s, as llama.cpp]")
    add("--roofline", action="store_true", help="compare decode with the speed of memory")
    add("--pause", type=float, default=0.05, help="seconds of rest between two runs [default: %(default)s]")
    add("--wait", type=float, default=0.0, help="seconds for which a test's disturbed rounds are measured again [default: %(default)s]")
    add("-o", "--output", type=Path, help="write all samples to this file as JSON")
    options = parser.parse_args()
    options.activations = parse_counts("--activations", options.activations, 8)
    options.threads = parse_counts("--threads", options.threads, 1)
    if options.repetitions < 1:
        parser.error("-r: expected at least 1")
    return options


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything, printing a row as soon as it is there; what -o writes."""
    from llamita.loaders.library import DEFAULT_MODEL, resolve

    tests = plan_tests(options.n_prompt, options.n_gen, (), options.n_depth)
    n_ctx = max(test.n_tokens for test in tests)
    report: dict[str, Any] = {"cpu": cpu_name(), "system": platform.platform(), "results": []}
    head = (*_HEAD, "of the roofline") if options.roofline else _HEAD
    print("| " + " | ".join(head) + " |")
    print("| --- | ---: | --- |" + " ---: |" * (len(head) - 3), flush=True)
    for name in options.model or [DEFAULT_MODEL]:
        path = resolve(name)
        for n_threads in options.threads:
            with ExitStack() as stack:
                say(f"{path.name}: loading on both sides, {n_threads} thread{'s'[: n_threads > 1]}")
                pair = Pair(stack, options, path, n_ctx, n_threads)
                for key, facts in (("llamita", pair.facts[options.activations[0]]), ("llamacpp", pair.their_facts)):
                    report[key] = {"version": facts["version"], "features": facts["features"]}
                for test in tests:
                    say(f"{path.name}: {test.label}")
                    for result in pair.run(test, options.repetitions, options.roofline):
                        report["results"].append(result)
                        print(markdown_row(result, options.roofline), flush=True)
    ours, theirs = report["llamita"], report["llamacpp"]
    built = f"llamita {ours['version']} ({ours['features']}), llama-cpp-python {theirs['version']}"
    how = f"medians of {options.repetitions}; spread: smallest and largest ratio of neighbouring runs"
    print(f"\n{report['cpu']}; {built}; {how}")
    if (worst := max(result["others_cpu"] for result in report["results"])) > TOLERATED:
        print(f"Other programs took up to {worst:.0%} of the processors during a test: close them, or let --wait measure again.")
    return report


def main() -> None:
    """Run, print, write."""
    options = parse()
    try:
        report = compare(options)
    except (WorkerError, LlamitaError) as error:
        sys.exit(f"error: {error}")
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
