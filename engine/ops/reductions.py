"""Sums, maxima, means and the softmax family, with their policy for -inf, NaN, masks and empty axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..faces import infer
from ..faces.dtypes import COMPLEX, FLOAT, HALF, NUMERIC, REAL
from ..faces.namespace import Namespace, Value
from ..faces.spec import Spec
from . import checks
from .dispatch import define

Axes = int | Sequence[int] | None


def _axes(op: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(ndim))
    return infer.normalize_axes(op, infer.integers(op, "axes", axes), ndim)


def _reduction(allowed: frozenset[Any], primitive: bool) -> Any:
    def check(op: str, x: Any, axes: Axes) -> tuple[Any, tuple[int, ...]]:
        infer.require_dtype(op, x.dtype, allowed)
        found = _axes(op, axes, len(x.shape))
        if primitive and (found or axes is not None):
            infer.reduction(op, allowed)(Spec(tuple(x.shape), x.dtype), found)
        return x, found

    return check


@define(check=_reduction(NUMERIC | HALF, True), composite=False)
def reduce_sum(p: Namespace, x: Value, axes: Axes = None) -> Value:
    """Sum over distinct axes (None: all); the axes are dropped.

    Raises:
        InvalidArgument: no axis, or a zero-length one.
    """
    return p.reduce_sum(x, axes) if axes else x  # type: ignore[arg-type]


@define(check=_reduction(REAL | HALF, True), composite=False)
def reduce_max(p: Namespace, x: Value, axes: Axes = None) -> Value:
    """Maximum over distinct axes (None: all); NaN wins. Ties share the gradient."""
    return p.reduce_max(x, axes) if axes else x  # type: ignore[arg-type]


@define(check=_reduction(REAL | HALF, True), composite=False)
def reduce_sum_squares(p: Namespace, x: Value, axes: Axes = None) -> Value:
    """Sum of squares over distinct axes (None: all)."""
    return p.reduce_sum_squares(x, axes) if axes else p.mul(x, x)  # type: ignore[arg-type]


def _argmax(op: str, x: Any, axis: int) -> tuple[Any, int]:
    infer.require_dtype(op, x.dtype, REAL | HALF)
    axis = infer.normalize_axis(op, axis, len(x.shape))
    infer.reduction(op, REAL | HALF)(Spec(tuple(x.shape), x.dtype), (axis,))
    return x, axis


@define(check=_argmax, composite=False)
def argmax(p: Namespace, x: Value, axis: int = -1) -> Value:
    """Position (I64) of the first maximum along ``axis``, which is dropped; the first NaN wins. No gradient."""
    return p.argmax(x, axis)


@define(check=_reduction(FLOAT | COMPLEX | HALF, False))
def reduce_mean(p: Namespace, x: Value, axes: Axes = None) -> Value:
    """Mean over distinct axes (None: all, [] : x itself). The mean of nothing is NaN. Float and complex dtypes."""
    found = _axes("reduce_mean", axes, len(p.shape(x)))
    shape = p.shape(x)
    count = math.prod(shape[axis] for axis in found)
    kept = tuple(n for axis, n in enumerate(shape) if axis not in found)
    if count == 0:
        return p.add(_one_a_slice(p, x, found, kept), p.full(math.nan, kept, p.dtype(x)))
    total = p.reduce_sum(x, found) if found else x
    return p.div(total, p.splat(count, kept, p.dtype(x)))


def _one_a_slice(p: Namespace, x: Value, axes: Sequence[int], kept: tuple[int, ...]) -> Value:
    """Zeros in the reduced shape that still depend on x, so that a tracked operand gives a tracked result."""
    shape = p.shape(x)
    short = p.slice(x, (0,) * len(shape), tuple(min(n, 1) if axis in axes else n for axis, n in enumerate(shape)))
    high = tuple(int(axis in axes and n == 0) for axis, n in enumerate(shape))
    return p.reshape(p.pad(short, (0,) * len(shape), high), kept)


def _spread(p: Namespace, reduced: Value, x: Value, axis: int) -> Value:
    """A value that lost ``axis``, repeated along it to the shape of x."""
    shape = p.shape(x)
    return p.broadcast_in_dim(reduced, shape, tuple(i for i in range(len(shape)) if i != axis))


def _shifted_exp_sum(p: Namespace, x: Value, axis: int) -> tuple[Value, Value, Value]:
    """(x - max, its exp, the sum of that), clamped so that a slice of -inf gives 0 and not NaN."""
    peak = p.reduce_max(x, (axis,))
    lowest = float(np.finfo(p.dtype(x)).min)
    peak = p.maximum(peak, p.like(peak, lowest))
    shifted = p.sub(x, _spread(p, peak, x, axis))
    e = p.exp(shifted)
    total = p.reduce_sum(e, (axis,))
    # A slice with a participant sums to at least exp(0) = 1, so 0.5 changes no value, never ties, and keeps the
    # gradient of an empty slice from overflowing, which the smallest normal number does.
    return shifted, e, p.maximum(total, p.like(total, 0.5))


@define(check=checks.along_axis, hook=("fused_softmax",))
def softmax(p: Namespace, x: Value, axis: int = -1) -> Value:
    """exp(x - max) / sum along ``axis``. A slice of -inf gives 0; a NaN or +inf makes its own slice NaN."""
    if 0 in p.shape(x):
        return p.neg(x)
    _, e, total = _shifted_exp_sum(p, x, axis)
    return p.div(e, _spread(p, total, x, axis))


@define(check=checks.along_axis, hook=("fused_log_softmax",))
def log_softmax(p: Namespace, x: Value, axis: int = -1) -> Value:
    """log(softmax(x)) without its overflow. A slice of -inf gives -inf."""
    if 0 in p.shape(x):
        return p.neg(x)
    shifted, _, total = _shifted_exp_sum(p, x, axis)
    return p.sub(shifted, _spread(p, p.log(total), x, axis))


def _masked_out(p: Namespace, x: Value, mask: Value) -> Value:
    """-inf where the mask is False, whatever stood there."""
    shape = p.shape(x)
    if p.shape(mask) != shape:
        offset = len(shape) - len(p.shape(mask))
        mask = p.broadcast_in_dim(mask, shape, tuple(range(offset, len(shape))))
    return p.select(mask, x, p.like(x, -math.inf))


@define(check=checks.masked, hook=("fused_masked_softmax",))
def masked_softmax(p: Namespace, x: Value, mask: Value, axis: int = -1) -> Value:
    """softmax over the entries where the bool ``mask`` is True; the others get 0 and a gradient of exactly 0.

    The mask broadcasts to x, aligned right. A slice without a participant gives 0.
    """
    return softmax.formula(p, _masked_out(p, x, mask), axis)


@define(check=checks.masked, hook=("fused_masked_log_softmax",))
def masked_log_softmax(p: Namespace, x: Value, mask: Value, axis: int = -1) -> Value:
    """log_softmax over the entries where the bool ``mask`` is True; the others get -inf."""
    return log_softmax.formula(p, _masked_out(p, x, mask), axis)
