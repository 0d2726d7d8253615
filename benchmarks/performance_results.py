"""What performance.py measured, read back: a folder a section, a file a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "F16", "BF16", "F32")
DEFAULT_WIDTH = 16  # bits of activations
Result = dict[str, Any]


def _order(path: Path) -> tuple[int, str]:
    return (TYPES.index(path.stem) if path.stem in TYPES else len(TYPES), path.stem)


class Results:
    """Everything in a folder."""

    def __init__(self, folder: Path):
        self._folder = folder

    def reports(self, section: str) -> dict[str, Any]:
        """Name of the run -> what the script wrote; types in the order of TYPES."""
        files = sorted((self._folder / section).glob("*.json"), key=_order)
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}

    def tests(self, section: str) -> list[Result]:
        """Results of compare_llamacpp.py, each with the "name" of its run."""
        return [{**result, "name": name} for name, report in self.reports(section).items() for result in report["results"]]


def python_share(found: Result, whole: str) -> float:
    """The part of a decode step outside the plan's kernels; whole: "forward" or "generation" (see footprint.py)."""
    times = found["python"]
    return float(max(0.0, 1 - times["plan"] / times[whole]))
