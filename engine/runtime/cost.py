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
from ..kernels.targets import current_target
from .store import cache_root

CLASSES = ("copy", "map", "transcendental", "reduce")
TYPES = ("f32", "f64")
MULTIPLE = 3  # at the threshold, work that scales threefold over six threads is 1.5x faster, twofold is no slower
ENV_COST = "LLAMITA_COST"
_SAMPLE = 1 << 15
_BURST_GAP_NS = 1_000_000  # about as long as a team stays awake
_NAMES = (*(f"{kind}.{dtype}" for kind in CLASSES for dtype in TYPES), "dispatch", "awake")


@dataclass(frozen=True)
class CostModel:
    """Measured or given costs.

    Attributes:
        ns_per_element: "class.type" -> serial nanoseconds an element.
        dispatch_ns: nanoseconds that starting a team costs when its threads may have gone to sleep.
        awake_ns: the same while they still wait for work.
    """

    ns_per_element: Mapping[str, float] = field(default_factory=dict)
    dispatch_ns: float = 5000.0
    awake_ns: float = 5000.0

    def serial_ns(self, kind: str, dtype: np.dtype[Any], elements: int) -> float:
        """Expected time on one thread."""
        return elements * self.ns_per_element[f"{kind}.{'f64' if dtype.itemsize == 8 else 'f32'}"]

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int, n_threads: int, sections: int = 1, awake: bool = False) -> bool:
        """Whether threads pay.

        Args:
            kind: one of `CLASSES`; anything with a transcendental inside is ``transcendental``.
            sections: how often the team is dispatched for the whole.
            awake: the team's threads wait for work, so that dispatch is cheap.
        """
        dispatch = self.awake_ns if awake else self.dispatch_ns
        return n_threads > 1 and self.serial_ns(kind, dtype, elements) >= MULTIPLE * dispatch * sections


class ThreadPolicy:
    """When an engine's kernels are shared: by the cost model, and by whether the team is awake.

    Waking a team costs many times what an awake one costs. Work that would pay only with an awake team runs serially at
    first; once a burst of it has lost as much time as waking takes, the team is woken and stays awake while the burst lasts.

    Args:
        is_awake: whether the team has been started and its threads wait for work.
        clock: nanoseconds.
    """

    def __init__(
        self, costs: CostModel, n_threads: int, is_awake: Callable[[], bool], clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._costs, self._n_threads, self._is_awake, self._clock = costs, n_threads, is_awake, clock
        # The sizes from which an awake team pays, so that what is smaller is decided at once.
        self._least = {
            (kind, size): MULTIPLE * costs.awake_ns / max(costs.ns_per_element[f"{kind}.{name}"], 1e-9)
            for kind in CLASSES
            for name, size in (("f32", 4), ("f64", 8))
        }
        self._lost = 0.0  # nanoseconds that threads would have saved in this burst
        self._last = clock()

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int) -> bool:
        """Whether to share work of a class and size now."""
        if elements < self._least[kind, dtype.itemsize]:
            return False
        costs, n = self._costs, self._n_threads
        if costs.is_parallel(kind, dtype, elements, n, awake=self._is_awake()):
            return True
        now = self._clock()
        serial = costs.serial_ns(kind, dtype, elements)
        if now - self._last > _BURST_GAP_NS + serial:
            self._lost = 0.0
        self._last = now
        self._lost += serial * (1 - 1 / n)
        if self._lost < costs.dispatch_ns:
            return False
        self._lost = 0.0
        return True


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
        # The cheaper of two common ones: a dear one that runs serially near the threshold loses little, a cheap one shared too
        # early loses more than it took.
        rates[f"transcendental.{name}"] = min(
            _best(lambda f=f, x=x, out=out: f(x, out=out)) / _SAMPLE  # type: ignore[misc]
            for f in (np.exp, np.tanh)
        )
        rates[f"reduce.{name}"] = _best(lambda x=x: np.add.reduce(x)) / _SAMPLE  # type: ignore[misc]
    return rates


def measure_dispatch(run_nothing: Callable[[], None]) -> dict[str, float]:
    """Nanoseconds of an empty parallel section: ``awake``, right after another; ``dispatch``, also after a pause of 10 ms."""
    run_nothing()
    awake = _best(run_nothing, 20)
    paused = []
    for _ in range(3):
        time.sleep(0.01)
        paused.append(_best(run_nothing, 1))
    return {"dispatch": max(awake, min(paused)), "awake": awake}


def cost_model(n_threads: int, run_nothing: Callable[[], None]) -> CostModel:
    """The costs for a number of threads: from the cache, else measured and kept; the environment wins."""
    key = f"{current_target().cpu}-{n_threads}-numpy{np.__version__}"
    path = cache_root() / "costs.json"
    kept = _read(path)
    if key not in kept:
        kept[key] = {**measure_rates(), **measure_dispatch(run_nothing)}
        _write(path, kept)
    return with_overrides(kept[key], os.environ.get(ENV_COST, ""))


def with_overrides(costs: Mapping[str, float], text: str) -> CostModel:
    """A model from costs and a ``name=nanoseconds,...`` text.

    Raises:
        InvalidArgument: an unknown name, or no number.
    """
    merged = {**costs, **parsed_overrides(text)}
    return CostModel({name: merged[name] for name in _NAMES if "." in name}, merged["dispatch"], min(merged["awake"], merged["dispatch"]))


def parsed_overrides(text: str) -> dict[str, float]:
    """What an override text says. Raises as `with_overrides`."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in _NAMES or not 0 <= number < float("inf"):
            raise InvalidArgument(f"{ENV_COST}: expected {', '.join(_NAMES)} = nanoseconds, got {item!r}")
        found[name] = number
    return found


def _read(path: Path) -> dict[str, dict[str, float]]:
    """What is kept; a damaged or foreign file counts as empty."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {k: v for k, v in kept.items() if set(v) == set(_NAMES) and all(isinstance(x, (int, float)) and x >= 0 for x in v.values())}
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
