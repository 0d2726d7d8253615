"""Run one function on every face; what op tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.faces.eager import Tracked, grad, tracked
from llamita.engine.faces.traced import trace

FACES = ("direct", "composite", "eager", "traced")
NAN, INF = float("nan"), float("inf")


def run(face: str, fn: Callable[..., Any], *arrays: Any) -> np.ndarray:
    """``fn`` on arrays: direct (kernel if any), composite, eager with every float tracked, traced and run."""
    values = [np.asarray(a) for a in arrays]
    if face == "direct":
        return fn(*values)
    if face == "composite":
        with ops.composites_only():
            return fn(*values)
    if face == "eager":
        return fn(*(tracked(v) if v.dtype.kind in "fV" else v for v in values)).numpy()
    return trace(fn, *values).run(*values)


def gradient(fn: Callable[..., Any], arrays: list[Any], cotangent: Any = None, wrt: list[int] | None = None) -> list[np.ndarray]:
    """Gradients of ``fn`` on the eager face; cotangent None: ones."""
    values = [np.asarray(a) for a in arrays]
    positions = [i for i, v in enumerate(values) if v.dtype.kind in "fV"] if wrt is None else wrt
    leaves: list[Any] = [tracked(v) if i in positions else v for i, v in enumerate(values)]
    y = fn(*leaves)
    assert isinstance(y, Tracked) and y.requires_grad
    seed = np.ones(y.shape, y.dtype) if cotangent is None else np.asarray(cotangent, y.dtype)
    return [g.numpy() for g in grad(y, [leaves[i] for i in positions], seed)]


def ulps(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance in units in the last place; NaN and infinities have to match exactly."""
    got, expected = np.asarray(got), np.asarray(expected)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    distance = np.abs(got[finite] - expected[finite]) / np.spacing(np.abs(expected[finite]))
    return float(distance.max(initial=0.0))
