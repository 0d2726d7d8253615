"""Measuring functions against each other, and what a row of the table is."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from llamita.engine.runtime.engine import Engine

# Calls in a row of one contender: its threads and caches are then as warm as in a loop of its own.
BATCH, BATCH_US = 40, 5000
WARM_UPS = 5
LEAST, MOST = 16, 240  # calls of each contender


@dataclass(frozen=True)
class Timing:
    """Microseconds."""

    best: float
    median: float

    def __str__(self) -> str:
        return f"{_short(self.best)}/{_short(self.median)}"


@dataclass(frozen=True)
class Contender:
    """What is timed: a function, and the engine that runs it."""

    run: Callable[[], Any]
    engine: Engine | None = None


@dataclass(frozen=True)
class Check:
    """A measured value against its target; without one it is only reported."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool | None:
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (self.at_most is None or self.value <= self.at_most)

    @property
    def target(self) -> str:
        parts = [f">= {self.at_least:g}"] if self.at_least is not None else []
        return " ".join([*parts, f"<= {self.at_most:g}"] if self.at_most is not None else parts)


@dataclass
class Row:
    """One workload.

    Attributes:
        reference: what the original system took or reached, as a person reads it.
        times: contender -> timing.
        notes: what else is to be known (``composite only``).
    """

    id: str
    workload: str
    reference: str
    times: dict[str, Timing] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, ``reported`` and the notes."""
        judged = [check.holds for check in self.checks if check.holds is not None]
        word = "reported" if not judged else "met" if all(judged) else "missed"
        return ", ".join([word, *self.notes])

    def ratio(self, above: str, below: str) -> float:
        """Of the best times."""
        return self.times[above].best / self.times[below].best


class Engines:
    """The two engines that every case is measured on.

    Args:
        n_threads: of the second one.
        seconds: how long the contenders of a case are measured, each.
    """

    def __init__(self, n_threads: int, seconds: float) -> None:
        self.serial, self.team = Engine(n_threads=1), Engine(n_threads=n_threads)
        self.seconds = seconds
        self.n_threads = n_threads

    @property
    def n_cpus(self) -> int:
        return os.cpu_count() or 1

    def race(self, row: Row, **contenders: Contender | Callable[[], Any]) -> None:
        """Time contenders by turns, so that what drifts on the machine hits all alike; a plain function runs serially."""
        named = {name.replace("_", " "): c if isinstance(c, Contender) else Contender(c, self.serial) for name, c in contenders.items()}
        samples: dict[str, list[float]] = {name: [] for name in named}
        for contender in named.values():
            _batch(contender, WARM_UPS)
        waiting = dict.fromkeys(named, self.seconds)
        while waiting:
            for name in list(waiting):
                taken = _batch(named[name], BATCH)
                samples[name] += taken
                waiting[name] -= sum(taken) / 1e6
                count = len(samples[name])
                if count >= MOST or (waiting[name] <= 0 and count >= LEAST):
                    del waiting[name]
        row.times.update((name, Timing(min(s), statistics.median(s))) for name, s in samples.items())


def _batch(contender: Contender, calls: int) -> list[float]:
    taken = []
    spent = 0.0
    with contender.engine or nullcontext():
        while len(taken) < 2 or (len(taken) < calls and spent < BATCH_US):
            started = time.perf_counter_ns()
            contender.run()
            taken.append((time.perf_counter_ns() - started) / 1000)
            spent += taken[-1]
    return taken


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line a row; times are microseconds, best/median."""
    lines = ["| id | workload | reference | ours, µs (best/median) | got | target | verdict |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        times = "; ".join(f"{name} {timing}" for name, timing in row.times.items())
        got = "; ".join(f"{check.name} {check.value:.3g}" for check in row.checks)
        target = "; ".join(check.target or "-" for check in row.checks)
        lines.append(f"| {row.id} | {row.workload} | {row.reference} | {times} | {got} | {target} | {row.verdict} |")
    return "\n".join(lines)
