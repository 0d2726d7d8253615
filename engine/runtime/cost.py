"""When threads pay: a kernel states its serial time, and it is shared only when that clearly exceeds the dispatch.

Rates and dispatch costs are measured on this machine once, kept in the user's cache folder, and overridable by
``LLAMITA_COST``, e.g. ``map.f64=0.1,transcendental.f32=1.5,dispatch=2000`` (nanoseconds).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .store import cache_root

CLASSES = ("copy", "map", "transcendental", "reduce")
TYPES = ("f32", "f64")
MULTIPLE = 3  # at the threshold, work that scales threefold over six threads is 1.5x faster, twofold is no slower
ENV_COST = "LLAMITA_COST"
_SAMPLE = 1 << 15


@dataclass(frozen=True)
class CostModel:
    """Measured or given costs.

    Attributes:
        ns_per_element: "class.type" -> serial nanoseconds an element.
        dispatch_ns: nanoseconds that starting a team of threads costs.
    """

    ns_per_element: Mapping[str, float] = field(default_factory=dict)
    dispatch_ns: float = 5000.0

    def serial_ns(self, kind: str, dtype: np.dtype[Any], elements: int) -> float:
        """Expected time on one thread."""
        return elements * self.ns_per_element[f"{kind}.{'f64' if dtype.itemsize == 8 else 'f32'}"]

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int, n_threads: int, sections: int = 1) -> bool:
        """Whether threads pay.

        Args:
            kind: one of `CLASSES`; anything with a transcendental inside is ``transcendental``.
            sections: how often the team is dispatched for the whole.
        """
        return n_threads > 1 and self.serial_ns(kind, dtype, elements) >= MULTIPLE * self.dispatch_ns * sections


def _best(run: Callable[[], Any], repeats: int = 7) -> float:
    """Nanoseconds of the fastest of several runs."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - started)
    return best


def measure_rates() -> dict[str, float]:
    """Serial nanoseconds an element of every class and type; takes a few milliseconds."""
    rates = {}
    for name in TYPES:
        dtype = np.dtype(name.replace("f", "float"))
        x, y = np.linspace(-1, 1, _SAMPLE).astype(dtype), np.ones(_SAMPLE, dtype)
        out = np.empty_like(x)
        rates[f"copy.{name}"] = _best(lambda x=x, out=out: np.copyto(out, x)) / _SAMPLE  # type: ignore[misc]
        rates[f"map.{name}"] = _best(lambda x=x, y=y, out=out: np.add(x, y, out=out)) / _SAMPLE  # type: ignore[misc]
        rates[f"transcendental.{name}"] = _best(lambda x=x, out=out: np.tanh(x, out=out)) / _SAMPLE  # type: ignore[misc]
        rates[f"reduce.{name}"] = _best(lambda x=x: np.add.reduce(x)) / _SAMPLE  # type: ignore[misc]
    return rates


def measure_dispatch(run_nothing: Callable[[], None]) -> float:
    """Nanoseconds of an empty parallel section: the larger of hot and after a pause of 10 ms."""
    run_nothing()
    hot = _best(run_nothing, 20)
    paused = []
    for _ in range(3):
        time.sleep(0.01)
        paused.append(_best(run_nothing, 1))
    return max(hot, min(paused))


def cost_model(n_threads: int, run_nothing: Callable[[], None]) -> CostModel:
    """The costs for a number of threads: from the cache, else measured and kept; the environment wins."""
    key = f"{n_threads}-numpy{np.__version__}"
    path = cache_root() / "costs.json"
    kept = _read(path)
    if key not in kept:
        kept[key] = {**measure_rates(), "dispatch": measure_dispatch(run_nothing)}
        _write(path, kept)
    return with_overrides(kept[key], os.environ.get(ENV_COST, ""))


def with_overrides(costs: Mapping[str, float], text: str) -> CostModel:
    """A model from costs and a ``name=nanoseconds,...`` text.

    Raises:
        InvalidArgument: an unknown name, or no number.
    """
    names = [f"{kind}.{dtype}" for kind in CLASSES for dtype in TYPES]
    merged = dict(costs)
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in (*names, "dispatch") or number < 0:
            raise InvalidArgument(f"{ENV_COST}: expected {', '.join([*names, 'dispatch'])} = nanoseconds, got {item!r}")
        merged[name] = number
    return CostModel({name: merged[name] for name in names}, merged["dispatch"])


def _read(path: Path) -> dict[str, dict[str, float]]:
    """What is kept; a damaged or foreign file counts as empty."""
    names = {f"{kind}.{dtype}" for kind in CLASSES for dtype in TYPES} | {"dispatch"}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {k: v for k, v in kept.items() if set(v) == names and all(isinstance(x, (int, float)) and x >= 0 for x in v.values())}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(path: Path, costs: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(costs, indent=1), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:  # a read-only cache costs a measurement a process, nothing else
        return
