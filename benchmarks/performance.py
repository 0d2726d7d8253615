"""All comparisons that README.md and docs/performance.md show, and their tables: the numbers there come from here alone.

    python benchmarks/requantize.py --folder ../models --pure no --llamacpp-python ../lcpp/bin/python
    python benchmarks/shaped_model.py ../models/1b.Q4_0.gguf --shape llama-3.2-1b --type Q4_0      # and Q4_K
    python benchmarks/performance.py --models ../models --llamacpp-python ../lcpp/bin/python
    python benchmarks/performance.py --models ../models --llamacpp-python ../lcpp/bin/python --only types,kl --again

Each measurement is a run of another script of this folder; what it found is kept in --results, and is not measured again
unless --again says so: an interrupted run goes on where it was. At the end the tables that have results are written
between their markers, <!-- begin NAME --> and <!-- end NAME -->, and the targets are printed with what fell short of them.
--only writes none of the other sections anew. Sections:
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from performance_results import TYPES
from performance_tables import write_tables
from wire import HERE

SECTIONS = {
    "default": "the library's default model: prefill and decode, on all threads and on one (README's table)",
    "types": "one model in every type: prefill, decode, roofline",
    "thread": "one thread, in some types",
    "depth": "decode at depth 2048 and 7000",
    "prompt": "a prompt of 4096 tokens",
    "larger": "shapes of a billion weights",
    "kl": "accuracy in every type",
    "footprint": "start, kernels from nothing, peak memory, Python's share of a step",
    "avx2": "both sides held to AVX2 (needs --llamacpp-avx2-python)",
}
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Unit:
    """One run of a script, whose result is a file."""

    section: str
    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def model_files(folder: Path, kinds: tuple[str, ...], prefix: str = "") -> Iterator[tuple[str, Path]]:
    """(type, file) of the requantised models in a folder, in the order of `kinds`; the variants of one type throughout are left out."""
    for kind in kinds:
        for path in sorted(folder.glob(f"{prefix}*.{kind}.gguf")):
            if prefix or not path.name.startswith("1b."):
                yield kind, path


def plan(options: argparse.Namespace) -> list[Unit]:
    """Every run, in order."""
    threads, units = str(options.threads), list[Unit]()
    files = list(model_files(options.models, TYPES))
    some = [(kind, path) for kind, path in files if kind in options.some]

    def compare(
        section: str, name: str, model: str, *arguments: str, t: str = threads, r: int = 3, python: str = "", **environment: str
    ) -> None:
        python = python or options.llamacpp_python
        common = ["-t", t, "-r", str(options.repetitions or r), "--wait", str(options.wait), "--llamacpp-python", python]
        units.append(Unit(section, name, ["compare_llamacpp.py", "-m", model, *arguments, *common], environment))

    widths = {kind: "16" if kind in FLOATS else "8,16" for kind in TYPES}
    for t in dict.fromkeys((threads, "1")):
        compare("default", f"{t}-threads", options.default, "-p", "512", "-n", "128", "--roofline", t=t, r=5)
    for kind, path in files:
        compare("types", kind, str(path), "-p", "512", "-n", "128", "--roofline", "--activations", widths[kind])
    for kind, path in some:
        compare("thread", kind, str(path), "-p", "512", "-n", "128", "--activations", widths[kind], t="1")
    for kind, path in some[:2]:
        compare("depth", kind, str(path), "-p", "0", "-n", "64", "-d", "2048,7000", "--activations", "16")
    for kind, path in some[:1]:
        compare("prompt", kind, str(path), "-p", "4096", "-n", "0", r=2)
    for kind, path in model_files(options.models, ("Q4_0", "Q4_K"), "1b"):
        compare("larger", kind, str(path), "-p", "512", "-n", "64", "--roofline", r=2)
    for kind, path in files:
        command = ["kl.py", "-m", str(path), "-n", str(options.positions), "--activations", widths[kind]]
        units.append(Unit("kl", kind, [*command, "--llamacpp-python", options.llamacpp_python]))
    for kind, path in some[:1]:
        units.append(Unit("footprint", kind, ["footprint.py", "-m", str(path), "--llamacpp-python", options.llamacpp_python]))
    if options.llamacpp_avx2_python:
        for kind, path in some:
            avx2 = {"python": options.llamacpp_avx2_python, "LLAMITA_TARGET": "avx2"}
            compare("avx2", kind, str(path), "-p", "512", "-n", "128", "--activations", widths[kind], **avx2)
    return [unit for unit in units if unit.section in options.only]


def carry_out(unit: Unit, results: Path) -> bool:
    """Run a unit unless its result is there; whether it succeeded."""
    target = results / unit.section / f"{unit.name}.json"
    if target.exists():
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    started = time.monotonic()
    command = [sys.executable, str(HERE / unit.command[0]), *unit.command[1:], "-o", str(part)]
    # Its table goes where progress goes: the tables that count are made from the file.
    done = subprocess.run(command, env={**os.environ, **unit.environment}, stdout=sys.stderr.fileno())
    if done.returncode == 0:
        os.replace(part, target)
    part.unlink(missing_ok=True)
    print(f"{unit.section} {unit.name}: {'failed' if done.returncode else 'done'} in {time.monotonic() - started:.0f} s", flush=True)
    return done.returncode == 0


def parse() -> argparse.Namespace:
    """The command line."""
    from llamita.engine.runtime.cpus import usable_cpus
    from llamita.loaders.library import DEFAULT_MODEL

    listed = "\n".join(f"  {name:<10} {text}" for name, text in SECTIONS.items())
    parser = argparse.ArgumentParser(description=f"{__doc__}{listed}", formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=Path, required=True, help="folder of the files that requantize.py and shaped_model.py made")
    add("--default", default=DEFAULT_MODEL, help="the default model's file or name [default: %(default)s]")
    add("--only", default=",".join(SECTIONS), help="comma list of sections [default: all]")
    add("--again", action="store_true", help="measure these sections again")
    add("--tables", action="store_true", help="measure nothing, only write the tables")
    add("-t", "--threads", type=int, default=usable_cpus(), help="[default: %(default)s]")
    add("-r", "--repetitions", type=int, default=0, help="of each test [default: 2 to 5, as the section needs]")
    add("--some", default="Q4_0,Q4_K_M,Q8_0,Q6_K", help="types where not all are measured; the first ones of longer tests")
    add("--positions", type=int, default=512, help="tokens of the accuracy's text [default: %(default)s]")
    add("--wait", type=float, default=0.0, help="seconds for which a test's disturbed rounds are measured again [default: %(default)s]")
    add("--llamacpp-python", default=sys.executable, metavar="PATH", help="interpreter that has llama_cpp [default: this one]")
    add("--llamacpp-avx2-python", metavar="PATH", help="interpreter that has a llama_cpp built for AVX2 and nothing newer")
    add("--results", type=Path, default=HERE / "results", help="folder of the raw results [default: benchmarks/results]")
    options = parser.parse_args()
    options.only, options.some = options.only.split(","), options.some.split(",")
    if unknown := set(options.only) - SECTIONS.keys():
        parser.error(f"--only: expected some of {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    return options


def main() -> None:
    """Measure what is missing, write what is there."""
    options, failed = parse(), list[str]()
    for unit in [] if options.tables else plan(options):
        if options.again:
            (options.results / unit.section / f"{unit.name}.json").unlink(missing_ok=True)
        if not carry_out(unit, options.results):
            failed.append(f"{unit.section} {unit.name}")
    for line in write_tables(options.results, options.only, (HERE.parent / "README.md", HERE.parent / "docs" / "performance.md")):
        print(line)
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}; the reasons are above")


if __name__ == "__main__":
    main()
