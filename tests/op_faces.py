"""Run one function on every face; what op tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from llamita.engine import ops
from llamita.engine.faces import fusion_run
from llamita.engine.faces.checkpoint import checkpointing
from llamita.engine.faces.eager import Tracked, grad, tracked
from llamita.engine.faces.gradient import vjp
from llamita.engine.faces.traced import Program, trace

# direct: kernel if any. eager: every float tracked. fused: traced and prepared, its regions on compiled kernels at any size.
FACES = ("direct", "composite", "eager", "traced", "fused")
NAN, INF = float("nan"), float("inf")


def run(face: str, fn: Callable[..., Any], *arrays: Any) -> np.ndarray:
    """``fn`` on arrays, on a face of `FACES`."""
    values = [np.asarray(a) for a in arrays]
    if face == "direct":
        return fn(*values)
    if face == "composite":
        with ops.composites_only():
            return fn(*values)
    if face == "eager":
        return fn(*(tracked(v) if v.dtype.kind in "fV" else Tracked(v) for v in values)).numpy()
    if face == "fused":
        return run_fused(trace(fn, *values), *values)
    return trace(fn, *values).run(*values)


def run_fused(program: Program, *arrays: Any) -> Any:
    """A program with its regions fused however small they are."""
    with patch.object(fusion_run, "MIN_ELEMENTS", 1):
        result = program.prepare().run(*arrays)
    planned = [region for region in program.fusion_plan if not region.refusal and region.shape.count(0) == 0]
    assert program.fused_fallback[0] == len(planned)
    return result


def gradient(fn: Callable[..., Any], arrays: list[Any], cotangent: Any = None, wrt: list[int] | None = None) -> list[np.ndarray]:
    """Gradients of ``fn``, which are the same bits eager, recomputed, traced and fused; cotangent None: ones."""
    values = [np.asarray(a) for a in arrays]
    positions = [i for i, v in enumerate(values) if v.dtype.kind in "fV"] if wrt is None else wrt
    results = []
    for strategy in ("none", "balanced"):
        with checkpointing(strategy):
            leaves: list[Any] = [tracked(v) if i in positions else v for i, v in enumerate(values)]
            y = fn(*leaves)
            assert isinstance(y, Tracked) and y.requires_grad
            seed = np.ones(y.shape, y.dtype) if cotangent is None else np.asarray(cotangent, y.dtype)
            results.append([g.numpy() for g in grad(y, [leaves[i] for i in positions], seed)])
    program = vjp(trace(fn, *values), positions)
    for found in (program.run(*values, seed), run_fused(program, *values, seed)):
        results.append(list(found) if isinstance(found, tuple) else [found])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    return results[0]


def ulps(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance in units in the last place; NaN and infinities have to match exactly."""
    got, expected = np.asarray(got), np.asarray(expected)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    distance = np.abs(got[finite] - expected[finite]) / np.spacing(np.abs(expected[finite]))
    return float(distance.max(initial=0.0))
