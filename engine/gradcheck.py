"""A gradient checker for anybody who adds an op: analytic gradients against central differences, in float64.

One random direction suffices: a wrong gradient agrees with the right one along it with probability zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InvalidArgument, MissingGradient
from .faces.dtypes import Array
from .faces.eager import Tracked, grad, tracked


@dataclass(frozen=True)
class GradientError:
    """Outcome of one check: the derivative along a random direction, by gradient and by difference.

    Attributes:
        order: 1, or 2 for the gradient's own gradient.
        analytic, numeric: the two derivatives.
    """

    order: int
    analytic: float
    numeric: float

    @property
    def relative(self) -> float:
        """|analytic - numeric| over the larger of the two, or over 1 when both are small."""
        return abs(self.analytic - self.numeric) / max(abs(self.analytic), abs(self.numeric), 1.0)


def gradcheck(
    fn: Callable[..., Any],
    arrays: Sequence[Any],
    wrt: Sequence[int] | None = None,
    order: int = 1,
    step: float = 1e-6,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    seed: int = 0,
) -> list[GradientError]:
    """Check the gradient of ``fn`` at a point; raises when it is wrong.

    Args:
        fn: takes the arrays (tracked or plain) and returns one float value of any shape.
        arrays: the point; those in ``wrt`` are converted to float64.
        wrt: positions to differentiate; None: every float array.
        order: 2 also checks the gradient of the gradient.
        step: half the width of the central difference, relative to values of size 1. Stay away from kinks.
        rtol, atol: admissible difference: atol + rtol * larger of the two derivatives. Order 2 is checked 10 times looser.

    Returns:
        one `GradientError` an order.

    Raises:
        MissingGradient: a primitive without a rule, or a lost gradient.
        InvalidArgument: the gradient is wrong; the message holds both derivatives.
    """
    point = [np.asarray(a) for a in arrays]
    positions = [i for i, a in enumerate(point) if a.dtype.kind == "f"] if wrt is None else list(wrt)
    if not positions:
        raise InvalidArgument("gradcheck: wrt: expected at least one float array to differentiate")
    point = [a.astype(np.float64) if i in positions else a for i, a in enumerate(point)]
    rng = np.random.default_rng(seed)
    results = []
    for current in range(1, order + 1):
        result = _along_a_direction(_gradient_of(fn, positions, rng) if current == 2 else fn, point, positions, step, rng, current)
        loose = 1.0 if current == 1 else 10.0
        if not abs(result.analytic - result.numeric) <= loose * (atol + rtol * max(abs(result.analytic), abs(result.numeric))):
            raise InvalidArgument(
                f"gradcheck: gradient of order {current}: expected {result.numeric!r} by central differences, got {result.analytic!r}"
            )
        results.append(result)
        if current == 1 and order == 2:
            rng = np.random.default_rng(seed + 1)
    return results


def _gradient_of(fn: Callable[..., Any], positions: Sequence[int], rng: np.random.Generator) -> Callable[..., Any]:
    """x -> sum over a fixed random weighting of the first gradient, itself differentiable."""
    weights: dict[Any, Array] = {}

    def first(*values: Any) -> Tracked:
        leaves = [v if isinstance(v, Tracked) else tracked(v) if i in positions else v for i, v in enumerate(values)]
        y = fn(*leaves)
        cotangent = weights.setdefault("y", rng.standard_normal(y.shape))
        total: Tracked | None = None
        for i, g in zip(positions, grad(y, [leaves[i] for i in positions], cotangent, create_graph=True), strict=True):
            term = g * weights.setdefault(i, rng.standard_normal(g.shape))
            total = _total(term) if total is None else total + _total(term)
        if total is None:
            raise MissingGradient("gradcheck: no gradient to differentiate again")
        return total

    return first


def _total(x: Tracked) -> Tracked:
    face = x.__face__
    total: Tracked = face.reduce_sum(x, range(x.ndim)) if x.ndim else x
    return total


def _plain(value: Any) -> Array:
    return value.numpy() if isinstance(value, Tracked) else np.asarray(value)


def _along_a_direction(
    fn: Callable[..., Any], point: list[Array], positions: Sequence[int], step: float, rng: np.random.Generator, order: int
) -> GradientError:
    directions = {i: rng.standard_normal(point[i].shape) for i in positions}
    leaves: list[Any] = [tracked(a) if i in positions else a for i, a in enumerate(point)]
    y = fn(*leaves)
    if not isinstance(y, Tracked) or not y.requires_grad:
        raise MissingGradient("gradcheck: the result is untracked: the function lost the gradient of its tracked operands")
    weight = rng.standard_normal(y.shape)
    gradients = grad(y, [leaves[i] for i in positions], weight, allow_unused=True)
    analytic = sum(float(np.sum(g.numpy() * directions[i])) for i, g in zip(positions, gradients, strict=True))

    def moved(sign: float) -> Array:
        return _plain(fn(*(a + sign * step * directions[i] if i in positions else a for i, a in enumerate(point))))

    numeric = float(np.sum((moved(1.0) - moved(-1.0)) * weight)) / (2 * step)
    return GradientError(order, analytic, numeric)
