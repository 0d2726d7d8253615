"""B3-B8: softmax, norms, rope, linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.faces.eager import tracked
from op_cases.activations import contenders, note_hook
from op_cases.timing import Check, Contender, Engines, Row


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _composed(fn: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with ops.composites_only():
            fn()

    return run


def softmax(engines: Engines) -> list[Row]:
    x = _random(1024, 64)
    value = tracked(x).detach()
    row = Row("B3", "softmax f32[1024, 64] axis -1", "fused 56.1 (8 threads 31.3), untracked 60.2, tracked 170.8, traced 103.5")
    engines.race(row, **contenders(lambda v: ops.softmax(v, -1), x, engines), untracked=lambda: ops.softmax(value, -1))
    row.checks = [
        Check("traced/fused", row.ratio("traced", "fused"), at_least=1.85),
        Check("tracked/fused", row.ratio("tracked", "fused"), at_least=3.05),
        Check("untracked/fused", row.ratio("untracked", "fused"), at_most=1.07),
    ]
    note_hook(row, ops.softmax, engines, x, -1)
    return [row]


def softmax_axes(engines: Engines) -> list[Row]:
    x, turned, cube = _random(1024, 64), _random(64, 1024), _random(8, 64, 64)
    strided = Row("B4", "softmax f32[64, 1024] axis 0", "composite 72.8 (8 threads 83.3), tracked 426, traced 78.8; 1.30x contiguous")
    engines.race(strided, **contenders(lambda v: ops.softmax(v, 0), turned, engines), contiguous=lambda: ops.softmax(x, -1))
    strided.checks = [
        Check("strided/contiguous", strided.ratio("fused", "contiguous"), at_most=1.30),
        Check("team/serial", strided.ratio("team", "fused"), at_most=1.05),
    ]
    note_hook(strided, ops.softmax, engines, turned, 0)
    half = Row("B5", "softmax f32[8, 64, 64] axis -1", "28.4: half of B3")
    engines.race(half, fused=lambda: ops.softmax(cube, -1), b3=lambda: ops.softmax(x, -1))
    half.checks = [Check("fused/B3", half.ratio("fused", "b3"), at_least=0.425, at_most=0.575)]
    note_hook(half, ops.softmax, engines, cube, -1)
    return [strided, half]


def layers(engines: Engines) -> list[Row]:
    scores, hidden, heads = _random(1, 9, 512, 512), _random(1, 512, 576), _random(1, 9, 512, 64)
    weight, table = _random(576), _random(512, 32)
    cases: tuple[tuple[str, Any, tuple[Any, ...], str, float], ...] = (
        ("softmax f32[1, 9, 512, 512]", ops.softmax, (scores, -1), "5.5x", 5.5),
        ("layer_norm f32[1, 512, 576]", ops.layer_norm, (hidden, -1, weight, weight, 1e-5), "1.5x", 1.5),
        ("rms_norm f32[1, 512, 576]", ops.rms_norm, (hidden, -1, weight, None, 1e-5), "< 1", 1.0),
        ("rope f32[1, 9, 512, 64]", ops.rope, (heads, table, table), "1.0x", 1.0),
    )
    rows = []
    for workload, op, bound, reference, ratio in cases:

        def run(op: Any = op, bound: tuple[Any, ...] = bound) -> Any:
            return op(*bound)

        row = Row("B6", workload, f"composed/fused {reference}")
        engines.race(row, fused=run, team=Contender(run, engines.team), composite=_composed(run))
        row.checks = [Check("composite/fused", row.ratio("composite", "fused"), at_least=ratio)]
        note_hook(row, op, engines, *bound)
        rows.append(row)
    return rows


def rms_norm_rows(engines: Engines) -> list[Row]:
    weight = _random(576)
    rows = []
    fused = {}
    for n, reference in ((1, 1.78), (32, 0.38), (33, 0.16), (512, 0.66), (4096, 1.66)):
        x = _random(n, 576)

        def run(x: np.ndarray = x) -> None:
            ops.rms_norm(x, -1, weight)

        row = Row("B7", f"rms_norm f32[{n}, 576]", f"composed/fused {reference}")
        engines.race(row, fused=run, team=Contender(run, engines.team), composite=_composed(run))
        row.checks = [
            Check("composite/fused", row.ratio("composite", "fused"), at_least=1.78 if n == 1 else 1.0),
            Check("composite/team", row.ratio("composite", "team"), at_least=1.0),
        ]
        fused[n] = row.times["team"].best
        if n == 33:
            row.checks.append(Check("33 rows/32 rows", fused[33] / fused[32], at_most=1.15))
        note_hook(row, ops.rms_norm, engines, x, -1, weight, None, 1e-5)
        rows.append(row)
    return rows


def linear(engines: Engines) -> list[Row]:
    x, weight = _random(4, 128, 576), _random(1536, 576)
    turned = np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    row = Row("B8", "linear f32[4, 128, 576] -> 1536", "contiguous 430, strided 501 (1.16x), copied 1072")
    engines.race(
        row,
        contiguous=lambda: ops.linear(x, weight, None),
        strided=lambda: ops.linear(turned, weight, None),
        numpy=lambda: (x.reshape(512, 576) @ weight.T).reshape(4, 128, 1536),
    )
    row.checks = [
        Check("strided/contiguous", row.ratio("strided", "contiguous"), at_most=1.16),
        Check("contiguous/numpy", row.ratio("contiguous", "numpy"), at_most=1.05),
    ]
    return [row]


CASES = {"B3": softmax, "B4": softmax_axes, "B6": layers, "B7": rms_norm_rows, "B8": linear}
