"""B18: forward and backward on the eager face, with and without checkpointing."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.faces.checkpoint import checkpointing
from llamita.engine.faces.eager import grad, tracked
from llamita.engine.faces.tape import stored_bytes
from op_cases.timing import Check, Engines, Row


def gradients(engines: Engines) -> list[Row]:
    x = np.random.default_rng(0).standard_normal((512, 576)).astype(np.float32)
    seed = np.ones_like(x)
    rows = []
    for name, op in (
        ("softmax", lambda v: ops.softmax(v, -1)),
        ("gelu", ops.gelu),
        ("rms_norm", lambda v: ops.rms_norm(v, -1)),
        ("ten steps", _ten_steps),
    ):
        row = Row("B18", f"{name} f32[512, 576]", "forward only")
        kept = {}

        def forward(op: Any = op) -> Any:
            return op(tracked(x))

        def step(strategy: str, op: Any = op) -> None:
            with checkpointing(strategy):
                leaf = tracked(x)
                y = op(leaf)
            grad(y, [leaf], seed)

        for strategy in ("none", "balanced"):
            with engines.serial, checkpointing(strategy):
                kept[strategy] = stored_bytes(forward().node) / 2**20
        engines.race(row, forward=forward, none=lambda step=step: step("none"), balanced=lambda step=step: step("balanced"))
        row.checks = [
            Check("none/forward", row.ratio("none", "forward")),
            Check("balanced/none", row.ratio("balanced", "none")),
            Check("MiB kept, none", kept["none"]),
            Check("MiB kept, balanced", kept["balanced"]),
        ]
        rows.append(row)
    return rows


def _ten_steps(x: Any) -> Any:
    for _ in range(5):
        x = ops.tanh(ops.mul(x, x))
    return x


CASES = {"B18": gradients}
