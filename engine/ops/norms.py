"""layer_norm and rms_norm: biased, two-pass variance; scaled by one reciprocal root a slice."""

from __future__ import annotations

from ..faces.namespace import Namespace, Value
from . import checks
from .dispatch import define
from .reductions import _spread


def _scale_and_shift(p: Namespace, y: Value, axis: int, weight: Value | None, bias: Value | None) -> Value:
    shape = p.shape(y)
    if weight is not None:
        y = p.mul(y, p.broadcast_in_dim(weight, shape, (axis,)))
    if bias is not None:
        y = p.add(y, p.broadcast_in_dim(bias, shape, (axis,)))
    return y


def _normalized(p: Namespace, x: Value, axis: int, eps: float) -> Value:
    """x / sqrt(mean(x^2) + eps) along ``axis``."""
    mean_square = p.scale(p.reduce_sum_squares(x, (axis,)), 1.0 / p.shape(x)[axis])
    r = p.rsqrt(p.add(mean_square, p.like(mean_square, eps)))
    return p.mul(x, _spread(p, r, x, axis))


@define(check=checks.norm, hook=("fused_layer_norm",))
def layer_norm(p: Namespace, x: Value, axis: int = -1, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias along ``axis``.

    weight, bias: [n] with n the extent of the axis, or None. With eps = 0 a constant slice is NaN.

    Raises:
        InvalidArgument: eps negative, NaN or infinite.
        ShapeMismatch, DTypeMismatch: weight or bias does not fit.
    """
    if 0 in p.shape(x):
        return p.neg(x)
    mean = p.scale(p.reduce_sum(x, (axis,)), 1.0 / p.shape(x)[axis])
    centred = p.sub(x, _spread(p, mean, x, axis))
    return _scale_and_shift(p, _normalized(p, centred, axis, eps), axis, weight, bias)


@define(check=checks.norm, hook=("fused_rms_norm",))
def rms_norm(p: Namespace, x: Value, axis: int = -1, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5) -> Value:
    """x / sqrt(mean(x^2) + eps) * weight + bias along ``axis``; operands and errors as `layer_norm`.

    With eps = 0 an all-zero slice is NaN.
    """
    if 0 in p.shape(x):
        return p.neg(x)
    return _scale_and_shift(p, _normalized(p, x, axis, eps), axis, weight, bias)
