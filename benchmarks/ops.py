"""The op set against its reference: one Markdown table of every workload, remade by

    python benchmarks/ops.py -o ops.json

Best and median of a few hundred calls, after warm-up; compiling is not counted. ``fused`` runs on one thread, ``team`` on
all; ``composite`` is the same op without its kernel, ``tracked`` the eager face while it records, ``traced`` a prepared
program. The contenders of a workload take turns. Reference numbers are those of the original system on its own machine
(12 cores): ratios are to be compared, not microseconds. A row whose op has no kernel says "composite only".
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interference import TOLERATED, Others
from op_cases import activations, backward, elementwise, fusion, rows
from op_cases.timing import Engines, Row, table

from llamita.engine.kernels.targets import current_target
from llamita.engine.runtime.cpus import usable_cpus
from llamita.models.bench import cpu_name

CASES: dict[str, Callable[[Engines], list[Row]]] = {
    **activations.CASES,
    **rows.CASES,
    **elementwise.CASES,
    **fusion.CASES,
    **backward.CASES,
}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="groups of workloads to run, such as B1,B12 (default: all): " + ", ".join(CASES))
    parser.add_argument("-t", "--threads", type=int, default=usable_cpus(), help="threads of the team")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each contender of a workload")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON, too")
    args = parser.parse_args()
    chosen = [name.strip() for name in args.only.split(",") if name.strip()] or list(CASES)
    unknown = set(chosen) - set(CASES)
    if unknown:
        parser.error(f"--only: expected some of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    engines, others, found = Engines(args.threads, args.seconds), Others(()), []
    for name in sorted(chosen, key=lambda case: int(case[1:])):
        print(f"{name} ...", file=sys.stderr, flush=True)
        found += CASES[name](engines)
    share = others.share()
    print(f"{cpu_name()}, {args.threads} threads, {current_target().name}, NumPy {np.__version__}, Python {platform.python_version()}\n")
    print(table(found))
    if share is not None and share > TOLERATED:
        print(f"\nOther programs took {100 * share:.0f} % of the processors: these numbers prove nothing.")
    if args.output:
        args.output.write_text(json.dumps([dataclasses.asdict(row) for row in found], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
