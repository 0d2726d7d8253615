"""Gradient rules, one table, for primitives alone: everything else is composed of them.

A rule maps the gradient of a result to that of one operand: ``rule(p, g, n)`` with the namespace `p` to compute in,
the incoming gradient `g` and the node `n` (``n.x(i)``, ``n.shape(i)``, ``n.dtype(i)`` of its operands, ``n.y`` its
result, ``n.attrs``; asking for a shape never costs a recomputation). Rules use
nothing but primitives that have rules, so that gradients can be differentiated again. Where a branch was not
taken, rules **select** zero and never multiply by it: 0 * NaN would poison the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..errors import MissingGradient
from .dtypes import FLOAT, HALF, DType
from .namespace import Namespace, Value
from .spec import Shape


class RuleView(Protocol):
    """A recorded node as rules see it; values are fetched only when a rule asks."""

    @property
    def y(self) -> Value: ...
    @property
    def attrs(self) -> Any: ...
    def x(self, position: int) -> Value: ...
    def shape(self, position: int) -> Shape: ...
    def dtype(self, position: int) -> DType: ...


Rule = Callable[[Namespace, Value, RuleView], Value]

# None: this operand has no gradient by nature (a condition, an index); it is not the same as a missing rule.
RULES: dict[str, Sequence[Rule | None] | Callable[[int], Rule]] = {}


def rule_for(name: str, position: int) -> Rule | None:
    """The rule for one operand; None when that operand is not differentiable. A missing rule raises when it is used."""
    found = RULES.get(name, ())
    if callable(found):
        return found(position)
    return found[position] if position < len(found) else _missing(name, position)


def _missing(name: str, position: int) -> Rule:
    def rule(p: Namespace, g: Value, n: RuleView) -> Value:
        raise MissingGradient(f"{name}: operand {position}: no gradient rule is defined; add one to the table of rules")

    return rule


def is_differentiable(dtype: Any) -> bool:
    """Whether gradients exist for a dtype: real floats, half types included."""
    return dtype in FLOAT or dtype in HALF


def _zeros(p: Namespace, x: Value) -> Value:
    return p.full(0, p.shape(x), p.dtype(x))


def _where(p: Namespace, condition: Value, g: Value) -> Value:
    """g where the condition holds, else 0."""
    return p.select(condition, g, p.like(g, 0))


# ----- unary -----
RULES["neg"] = [lambda p, g, n: p.neg(g)]
RULES["exp"] = [lambda p, g, n: p.mul(g, n.y)]
RULES["expm1"] = [lambda p, g, n: p.mul(g, p.exp(n.x(0)))]
RULES["log"] = [lambda p, g, n: p.div(g, n.x(0))]
RULES["log1p"] = [lambda p, g, n: p.div(g, p.add(p.like(n.x(0), 1), n.x(0)))]
RULES["tanh"] = [lambda p, g, n: p.mul(g, p.sub(p.like(n.y, 1), p.mul(n.y, n.y)))]
RULES["erf"] = [lambda p, g, n: p.mul(g, p.scale(p.exp(p.neg(p.mul(n.x(0), n.x(0)))), 2.0 / math.sqrt(math.pi)))]
RULES["sqrt"] = [lambda p, g, n: p.div(p.scale(g, 0.5), n.y)]
RULES["rsqrt"] = [lambda p, g, n: p.mul(p.mul(p.mul(p.scale(g, -0.5), n.y), n.y), n.y)]
RULES["sin"] = [lambda p, g, n: p.mul(g, p.cos(n.x(0)))]
RULES["cos"] = [lambda p, g, n: p.neg(p.mul(g, p.sin(n.x(0))))]
RULES["abs"] = [lambda p, g, n: p.mul(g, p.sign(n.x(0)))]
RULES["sign"] = [lambda p, g, n: _zeros(p, g)]
RULES["floor"] = [lambda p, g, n: _zeros(p, g)]
RULES["round"] = [lambda p, g, n: _zeros(p, g)]
RULES["conj"] = [lambda p, g, n: p.conj(g)]


def _clamp(p: Namespace, g: Value, n: RuleView) -> Value:
    x = n.x(0)
    above = p.compare(x, p.like(x, n.attrs["lower"]), "gt")
    below = p.compare(x, p.like(x, n.attrs["upper"]), "lt")
    return _where(p, above, _where(p, below, g))


RULES["clamp"] = [_clamp]

# ----- binary: operands already have one shape, broadcasting being a node of its own -----
RULES["add"] = [lambda p, g, n: g, lambda p, g, n: g]
RULES["sub"] = [lambda p, g, n: g, lambda p, g, n: p.neg(g)]
RULES["mul"] = [lambda p, g, n: p.mul(g, n.x(1)), lambda p, g, n: p.mul(g, n.x(0))]
RULES["div"] = [lambda p, g, n: p.div(g, n.x(1)), lambda p, g, n: p.div(p.neg(p.mul(g, n.y)), n.x(1))]
RULES["remainder"] = [lambda p, g, n: g, lambda p, g, n: p.neg(p.mul(g, p.floor(p.div(n.x(0), n.x(1)))))]


def _winner(direction: str, own: int) -> Rule:
    def rule(p: Namespace, g: Value, n: RuleView) -> Value:
        mine, other = n.x(own), n.x(1 - own)
        shared = _where(p, p.compare(mine, other, "eq"), p.scale(g, 0.5))
        return p.select(p.compare(mine, other, direction), g, shared)

    return rule


RULES["maximum"] = [_winner("gt", 0), _winner("gt", 1)]
RULES["minimum"] = [_winner("lt", 0), _winner("lt", 1)]


def _pow_base(p: Namespace, g: Value, n: RuleView) -> Value:
    a, b = n.x(0), n.x(1)
    slope = p.mul(b, p.pow(a, p.sub(b, p.like(b, 1))))
    return _where(p, p.compare(b, p.like(b, 0), "ne"), p.mul(g, slope))


def _pow_exponent(p: Namespace, g: Value, n: RuleView) -> Value:
    a, b = n.x(0), n.x(1)
    zero = p.like(a, 0)
    # 0**b is constant for b >= 0, where the literal a**b * ln a would be 0 * -inf.
    flat = p.select(p.compare(a, zero, "eq"), p.compare(b, zero, "ge"), p.compare(a, a, "lt"))
    return p.select(flat, p.like(g, 0), p.mul(p.mul(g, n.y), p.log(a)))


RULES["pow"] = [_pow_base, _pow_exponent]

# ----- compare, select -----
RULES["compare"] = [None, None]
RULES["argmax"] = [None]
RULES["select"] = [None, lambda p, g, n: _where(p, n.x(0), g), lambda p, g, n: p.select(n.x(0), p.like(g, 0), g)]


# ----- reductions -----
def _spread(p: Namespace, reduced: Value, shape: Shape, axes: Sequence[int]) -> Value:
    return p.broadcast_in_dim(reduced, shape, tuple(i for i in range(len(shape)) if i not in axes))


def _axes(n: RuleView, rank: int) -> tuple[int, ...]:
    return tuple(axis % rank for axis in n.attrs["axes"])


def _sum(p: Namespace, g: Value, n: RuleView) -> Value:
    shape = n.shape(0)
    return _spread(p, g, shape, _axes(n, len(shape)))


def _sum_squares(p: Namespace, g: Value, n: RuleView) -> Value:
    x = n.x(0)
    shape = p.shape(x)
    return p.mul(p.scale(x, 2), _spread(p, g, shape, _axes(n, len(shape))))


def _max(p: Namespace, g: Value, n: RuleView) -> Value:
    x = n.x(0)
    shape = p.shape(x)
    axes = _axes(n, len(shape))
    winners = p.compare(x, _spread(p, n.y, shape, axes), "eq")
    count = p.reduce_sum(p.select(winners, p.full(1, shape, p.dtype(x)), p.full(0, shape, p.dtype(x))), axes)
    return _where(p, winners, _spread(p, p.div(g, count), shape, axes))


RULES["reduce_sum"] = [_sum]
RULES["reduce_sum_squares"] = [_sum_squares]
RULES["reduce_max"] = [_max]


# ----- layout -----
def _broadcast_in_dim(p: Namespace, g: Value, n: RuleView) -> Value:
    shape, out, dims = n.shape(0), n.attrs["shape"], n.attrs["dims"]
    if 0 in out:
        return p.full(0, shape, p.dtype(g))
    extent = {dim: shape[axis] for axis, dim in enumerate(dims)}
    summed = [axis for axis, size in enumerate(out) if size != 1 and extent.get(axis, 1) == 1]
    if summed:
        g = p.reduce_sum(g, summed)
    kept = [dim for dim in range(len(out)) if dim not in summed]
    order = [kept.index(dim) for dim in dims if dim in kept]
    # Axes of extent 1 may be gone or extra here; only the order of the others matters before the reshape.
    extra = [i for i in range(len(kept)) if i not in order]
    if order != sorted(order):
        g = p.transpose(g, [*order, *extra])
    return p.reshape(g, shape)


def _concatenate(position: int) -> Rule:
    def rule(p: Namespace, g: Value, n: RuleView) -> Value:
        axis = n.attrs["axis"] % len(p.shape(g))
        start = sum(n.shape(i)[axis] for i in range(position))
        return p.narrow(g, axis, start, start + n.shape(position)[axis])

    return rule


def _slice(p: Namespace, g: Value, n: RuleView) -> Value:
    shape, starts, stops = n.shape(0), n.attrs["starts"], n.attrs["stops"]
    return p.pad(g, starts, [extent - stop for extent, stop in zip(shape, stops, strict=True)])


def _pad(p: Namespace, g: Value, n: RuleView) -> Value:
    low = n.attrs["low"]
    return p.slice(g, low, [lo + extent for lo, extent in zip(low, n.shape(0), strict=True)])


def _transpose(p: Namespace, g: Value, n: RuleView) -> Value:
    permutation = [axis % len(p.shape(g)) for axis in n.attrs["permutation"]]
    return p.transpose(g, [permutation.index(axis) for axis in range(len(permutation))])


RULES["broadcast_in_dim"] = [_broadcast_in_dim]
RULES["reshape"] = [lambda p, g, n: p.reshape(g, n.shape(0))]
RULES["pad"] = [_pad]
RULES["concatenate"] = _concatenate
RULES["slice"] = [_slice]
RULES["transpose"] = [_transpose]
RULES["cast"] = [lambda p, g, n: p.cast(g, n.dtype(0))]
RULES["gather"] = [lambda p, g, n: p.scatter_add(n.x(1), g, n.shape(0), n.attrs["config"]), None]
RULES["scatter_add"] = [None, lambda p, g, n: p.gather(g, n.x(0), n.attrs["config"])]


# ----- matrices -----
def _swap_last(p: Namespace, x: Value) -> Value:
    rank = len(p.shape(x))
    return p.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _unbroadcast(p: Namespace, g: Value, shape: Shape) -> Value:
    """Sum the batch axes along which an operand of ``shape`` was repeated."""
    out = p.shape(g)
    if 0 in out[:-2]:
        return p.full(0, shape, p.dtype(g))
    offset = len(out) - len(shape)
    repeated = [axis for axis, size in enumerate(out) if size != 1 and (axis < offset or shape[axis - offset] == 1)]
    repeated = [axis for axis in repeated if axis < len(out) - 2]
    return p.reshape(p.reduce_sum(g, repeated) if repeated else g, shape)


RULES["matmul"] = [
    lambda p, g, n: _unbroadcast(p, p.matmul(g, _swap_last(p, n.x(1))), n.shape(0)),
    lambda p, g, n: _unbroadcast(p, p.matmul(_swap_last(p, n.x(0)), g), n.shape(1)),
]
