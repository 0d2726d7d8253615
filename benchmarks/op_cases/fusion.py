"""B12-B16: elementwise fusion of traced programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.faces.traced import trace
from op_cases.timing import Check, Contender, Engines, Row


def _case(engines: Engines, id: str, expression: tuple[str, Callable[..., Any], int], n: int, reference: str, **limits: float) -> Row:
    """limits: ``fused``, ``team``: largest ratio to the direct face on one thread."""
    text, fn, operands = expression
    arrays = [np.random.default_rng(i).standard_normal(n) for i in range(operands)]
    program = trace(fn, *arrays).prepare()
    row = Row(id, f"`{text}` f64[{n}]", reference)

    def direct() -> Any:
        return fn(*arrays)

    def fused() -> Any:
        return program.run(*arrays)

    engines.race(row, direct=direct, fused=fused, team=Contender(fused, engines.team), direct_team=Contender(direct, engines.team))
    row.checks = [
        Check("fused/direct", row.ratio("fused", "direct"), at_most=limits.get("fused")),
        Check("team/direct", row.ratio("team", "direct"), at_most=limits.get("team")),
        Check("maxdiff", float(np.max(np.abs(fused() - direct()))), at_most=0),
    ]
    if program.fusion_paths:
        row.notes.append(f"{program.fusion_paths[0]}, prepared in {program.prepare_seconds:.2f} s")
    else:
        row.notes.append("no region")
    return row


def expressions(engines: Engines) -> list[Row]:
    first = "(x+y)*x", lambda x, y: ops.mul(ops.add(x, y), x), 2
    second = "exp(x*y+z)", lambda x, y, z: ops.exp(ops.add(ops.mul(x, y), z)), 3
    third = "tanh(sin(x*x+x)*y+y)", lambda x, y: ops.tanh(ops.add(ops.mul(ops.sin(ops.add(ops.mul(x, x), x)), y), y)), 2
    five = "a1+a2+a3+a4+a5", lambda a, b, c, d, e: ops.add(ops.add(ops.add(ops.add(a, b), c), d), e), 5
    big = 1 << 20
    return [
        _case(engines, "B12", first, 8192, "1.51 (refused)", fused=1.5),
        _case(engines, "B12", first, 16384, ".75", fused=1.0),
        _case(engines, "B12", first, big, ".45, 8 threads .77", fused=0.45),
        _case(engines, "B13", second, big, "1.06, 8 threads .51; maxdiff 8.9e-16", fused=0.95),
        _case(engines, "B14", third, 16384, "1.01, 8 threads .30", fused=0.95, team=0.6),
        _case(engines, "B14", third, big, ".95, 8 threads .89", fused=0.95),
        _case(engines, "B15", five, big, "1.02, no region", fused=1.02),
    ]


def interpreter(engines: Engines) -> list[Row]:
    """A program of many regions, prepared, against the same one step by step: no region may take a slower way."""
    x = np.random.default_rng(0).standard_normal((256, 256))

    def fn(x: Any) -> Any:
        a = ops.softmax(ops.gelu_tanh(x), -1)
        return ops.layer_norm(ops.add(ops.silu(a), ops.clamp(ops.neg(x), -1.0, 1.0)), -1)

    plain, program = trace(fn, x), trace(fn, x).prepare()
    row = Row("B16", "program of several regions f64[256, 256]", "interpreter 12.5x and 4.7x slower than unfused")
    engines.race(row, unfused=lambda: plain.run(x), fused=lambda: program.run(x))
    row.checks = [Check("fused/unfused", row.ratio("fused", "unfused"), at_most=1.0)]
    row.notes.append(f"{len(program.fusion_paths)} regions: {', '.join(sorted(set(program.fusion_paths)))}")
    return [row]


CASES = {"B12": expressions, "B16": interpreter}
