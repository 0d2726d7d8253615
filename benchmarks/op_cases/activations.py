"""B1, B2, B19: activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.faces.eager import tracked
from llamita.engine.faces.traced import trace
from op_cases.timing import Check, Contender, Engines, Row


def contenders(op: Any, x: np.ndarray, engines: Engines) -> dict[str, Any]:
    """One op on every face; ``fused`` and ``team`` are the direct face with its hook."""

    def composite() -> None:
        with ops.composites_only():
            op(x)

    program = trace(op, x).prepare()
    leaf = tracked(x)
    return {
        "fused": lambda: op(x),
        "team": Contender(lambda: op(x), engines.team),
        "composite": composite,
        "tracked": lambda: op(leaf),
        "traced": lambda: program.run(x),
    }


def note_hook(row: Row, op: Any, engines: Engines, *bound: Any) -> None:
    """Say so when there is no kernel."""
    if op.ask_hook(engines.serial, bound) is None:
        row.notes.append("composite only")


def _input() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1024, 64)).astype(np.float32)


def sigmoid(engines: Engines) -> list[Row]:
    x, out = _input(), _input()
    row = Row("B1", "sigmoid f32[1024, 64]", "fused 40.3 (8 threads 7.3), tracked 231: 5.7x")
    engines.race(row, **contenders(ops.sigmoid, x, engines), numpy_exp=lambda: np.exp(x, out=out))
    row.checks = [
        Check("tracked/fused", row.ratio("tracked", "fused"), at_least=5.7),
        Check("fused/np.exp", row.ratio("fused", "numpy exp"), at_most=1.2),
    ]
    note_hook(row, ops.sigmoid, engines, x)
    return [row]


def others(engines: Engines) -> list[Row]:
    x = _input()
    rows = []
    references = {
        "silu": "tracked/fused 2-7x, traced/fused 1.2-4x",
        "softplus": "the same",
        "gelu": "fused 65.9; the same",
        "gelu_tanh": "fused ~3x gelu (188.6 on x86); the same",
    }
    for name, reference in references.items():
        op = getattr(ops, name)
        row = Row("B2", f"{name} f32[1024, 64]", reference)
        extra = {"gelu": lambda: ops.gelu(x)} if name == "gelu_tanh" else {}
        engines.race(row, **contenders(op, x, engines), **extra)
        program = trace(op, x).prepare()
        program.run(x)
        whole = program.fused_fallback[0] > 0 and program.regions[1] >= 8  # the program's own fusion leaves little to gain
        row.checks = [
            Check("tracked/fused", row.ratio("tracked", "fused"), at_least=7),
            Check("traced/fused", row.ratio("traced", "fused"), at_least=None if whole else 4),
        ]
        if whole:
            row.notes.append("the traced program is one fused region")
        if name == "gelu_tanh":
            row.checks.append(Check("fused/gelu", row.ratio("fused", "gelu"), at_most=2))
        note_hook(row, op, engines, x)
        rows.append(row)
    return rows


def eager_before_and_after(engines: Engines) -> list[Row]:
    """An eager value that nothing tracks: through the hook, and through the composite as if there were none."""
    x = np.random.default_rng(0).standard_normal(65536).astype(np.float32)
    value = tracked(x).detach()
    rows = []
    for name, reference, ratio in (("sigmoid", "721 -> 171", 4.2), ("silu", "772 -> 181", 4.3), ("gelu_tanh", "1152 -> 793", 1.45)):
        op = getattr(ops, name)

        def before(op: Any = op) -> None:
            with ops.composites_only():
                op(value)

        row = Row("B19", f"{name}, eager, untracked, f32[65536]", f"{reference} (exp alone 151)")
        engines.race(row, before=before, after=lambda op=op: op(value), exp=lambda: ops.exp(value))
        row.checks = [Check("before/after", row.ratio("before", "after"), at_least=ratio)]
        note_hook(row, op, engines, x)
        rows.append(row)
    return rows


CASES = {"B1": sigmoid, "B2": others, "B19": eager_before_and_after}
