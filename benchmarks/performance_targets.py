"""The targets that performance.py's results are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from footprint import ALLOWED
from performance_results import DEFAULT_WIDTH, Result, Results, python_share

FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K_M")
Found = list[tuple[str, float]]  # (type, value)


@dataclass(frozen=True)
class Target:
    """A bar, and everything that was measured against it."""

    name: str
    bar: float
    found: Found
    sense: str = "at least"

    def worst(self) -> tuple[str, float] | None:
        """The worst of them, if anything was measured."""
        return (min if self.sense == "at least" else max)(self.found, key=lambda one: one[1], default=None)

    def short(self) -> list[str]:
        """Types that miss the bar."""
        missed = [name for name, value in self.found if (value < self.bar if self.sense == "at least" else value > self.bar)]
        return list(dict.fromkeys(missed))


def _prefill(tests: list[Result], width: int) -> Found:
    return [(test["name"], test["ratio"]) for test in tests if test["n_prompt"] and test["activations"] == width]


def _decode(tests: list[Result], key: str = "ratio") -> Found:
    return [(test["name"], test[key]) for test in tests if test["n_gen"] and test["activations"] == DEFAULT_WIDTH and key in test]


def targets(results: Results) -> list[Target]:
    """All of them; those that nothing was measured for have nothing found."""
    default, types, thread, larger = (results.tests(section) for section in ("default", "types", "thread", "larger"))
    one = thread + [{**test, "name": "default model"} for test in default if test["n_threads"] == 1]
    kl = [(name, report[0]["kl"]["llama.cpp"]["mean"] / report[0]["kl"]["16"]["mean"]) for name, report in results.reports("kl").items()]

    def footprint(value: Callable[[Result], float]) -> Found:
        return [(name, value(found)) for name, found in results.reports("footprint").items()]

    def slower(found: Result) -> float:
        return float(found["start"]["llamita"] / found["start"]["llama.cpp"])

    def beyond(found: Result) -> float:
        memory = found["memory"]
        return float((memory["llamita"] - memory["file"] - memory["cache"]) / ALLOWED)

    return [
        Target("decode: part of the roofline", 0.8, _decode(types, "roofline_share")),
        Target("decode, 4-bit types", 1.7, [(name, ratio) for name, ratio in _decode(types) if name in FOUR_BITS]),
        Target("prefill, 16 bits", 1.2, _prefill(types, 16)),
        Target("prefill, 8 bits, quantised types", 1.8, _prefill(types, 8)),
        Target("decode at depth 2048 and 7000", 2.2, _decode(results.tests("depth"))),
        Target("pp4096, 16 bits", 2.0, _prefill(results.tests("prompt"), 16)),
        Target("one thread: decode", 1.4, _decode(one)),
        Target("one thread: prefill, 16 bits", 1.2, _prefill(one, 16)),
        Target("one thread: prefill, 8 bits", 1.8, _prefill(one, 8)),
        Target("1B shapes: decode, part of the roofline", 0.9, _decode(larger, "roofline_share")),
        Target("1B shapes: prefill, 16 bits", 1.2, _prefill(larger, 16)),
        Target("1B shapes: prefill, 8 bits", 1.8, _prefill(larger, 8)),
        Target("divergence: llama.cpp's over llamita's", 10.0, kl),
        Target("decode, both sides held to AVX2", 1.0, _decode(results.tests("avx2"))),
        Target("start to first token, over llama.cpp's", 2.0, footprint(slower), "at most"),
        Target("kernels from nothing, seconds", 30.0, footprint(lambda f: float(f["kernels"])), "at most"),
        Target("memory beyond file and cache, of 250 MiB", 1.0, footprint(beyond), "at most"),
        Target("Python's part of a decode step", 0.05, footprint(lambda f: python_share(f, "forward")), "at most"),
    ]
