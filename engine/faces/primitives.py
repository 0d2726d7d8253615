"""The primitive vocabulary: for every primitive its shape rule and its NumPy evaluation.

A composite may use nothing else, and gradient rules (`vjp`) exist for these alone. Evaluation never validates:
faces call the shape rule first, or after NumPy refused, so that every error names the primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runtime.fusion_steps import cost_class
from ..runtime.large_ufuncs import LARGE, matmul, run_large
from . import infer as rule
from .dtypes import ANY, FLOAT, INTEGER, NUMERIC, REAL, Array, DType, boolean, cast
from .gather import gather, scatter_add
from .spec import Shape, Spec
from .special import erf


@dataclass(frozen=True)
class Primitive:
    """One primitive.

    Attributes:
        name: what programs and messages call it.
        infer: specs and attributes in, spec out; raises the named error.
        evaluate: arrays and attributes in, row-major array (or a view) out.
        memory_bound: cheap next to the memory it fills, so `balanced` checkpointing may recompute it.
        ufunc: the NumPy ufunc behind it, when there is one (it can write into a given buffer).
    """

    name: str
    infer: Callable[..., Spec]
    evaluate: Callable[..., Array]
    memory_bound: bool = False
    ufunc: np.ufunc | None = None


PRIMITIVES: dict[str, Primitive] = {}


def _row_major(x: Any) -> Array:
    return np.asarray(x, order="C")


def _add(name: str, infer: Callable[..., Spec], evaluate: Callable[..., Any], memory_bound: bool = False) -> None:
    PRIMITIVES[name] = Primitive(name, infer, evaluate, memory_bound)


def _plain(x: Array) -> Array:
    """x row-major, unless it is one number repeated. NumPy's transcendentals round differently along strides."""
    return x if x.flags.c_contiguous or not any(x.strides) else np.array(x, order="C")


def _add_ufunc(name: str, infer: Callable[..., Spec], ufunc: np.ufunc) -> None:
    exact = cost_class(ufunc) == "map"

    def evaluate(*arrays: Array) -> Array:
        if not exact:
            arrays = tuple(map(_plain, arrays))
        if arrays[0].nbytes >= LARGE or arrays[-1].nbytes >= LARGE:
            out = run_large(ufunc, arrays)
            if out is not None:
                return out
        if arrays[0].flags.c_contiguous and arrays[-1].flags.c_contiguous:
            return np.asarray(ufunc(*arrays))  # row-major by itself; to ask for it takes longer than a small sum
        return np.asarray(ufunc(*arrays, order="C"))

    PRIMITIVES[name] = Primitive(name, infer, evaluate, True, ufunc)


# ----- unary -----
for _name, _ufunc in {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "expm1": np.expm1,
    "floor": np.floor,
    "round": np.rint,
}.items():
    _add_ufunc(_name, rule.unary(_name, FLOAT), _ufunc)
_add_ufunc("neg", rule.unary("neg", NUMERIC), np.negative)
_add_ufunc("abs", rule.unary("abs", REAL), np.absolute)
_add_ufunc("sign", rule.unary("sign", REAL), np.sign)
_add_ufunc("conj", rule.unary("conj", NUMERIC), np.conjugate)
_add("erf", rule.unary("erf", FLOAT), erf, True)
_add("rsqrt", rule.unary("rsqrt", FLOAT), lambda x: _row_major(x.dtype.type(1) / np.sqrt(x, order="C")), True)

# ----- binary -----
_add_ufunc("add", rule.binary("add"), np.add)
_add_ufunc("sub", rule.binary("sub"), np.subtract)
_add_ufunc("mul", rule.binary("mul"), np.multiply)
_add_ufunc("div", rule.binary("div", NUMERIC - INTEGER), np.divide)
_add_ufunc("maximum", rule.binary("maximum", REAL), np.maximum)
_add_ufunc("minimum", rule.binary("minimum", REAL), np.minimum)
_add_ufunc("pow", rule.binary("pow", FLOAT), np.power)
_add_ufunc("remainder", rule.binary("remainder", REAL), np.remainder)

# ----- compare, select, clamp -----
COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _clamp(x: Array, lower: float, upper: float) -> Array:
    return _row_major(np.minimum(np.maximum(x, x.dtype.type(lower)), x.dtype.type(upper)))


_add("compare", rule.compare, lambda a, b, direction: _row_major(COMPARISONS[direction](a, b, order="C")), True)
_add("select", rule.select, lambda c, a, b: _row_major(np.where(c, a, b)), True)
_add("clamp", rule.clamp, _clamp, True)

# ----- reductions: always over row-major data, so that the rounding does not depend on a view's layout -----


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.add.reduce(np.asarray(x, order="C"), axis=axes, dtype=x.dtype))


_add("reduce_sum", rule.reduction("reduce_sum"), _sum)
_add("reduce_max", rule.reduction("reduce_max", REAL), lambda x, axes: np.asarray(np.maximum.reduce(x, axis=axes)))
_add("reduce_sum_squares", rule.reduction("reduce_sum_squares", REAL), lambda x, axes: _sum(np.multiply(x, x, order="C"), axes))

_add("argmax", rule.argmax, lambda x, axis: np.asarray(np.argmax(x, axis=axis), dtype=np.int64))

# ----- layout -----


def _broadcast_in_dim(x: Array, shape: Shape, dims: tuple[int, ...]) -> Array:
    view = [1] * len(shape)
    # A permuting `dims` needs its axes in output order before unit axes can be inserted.
    order = sorted(range(len(dims)), key=dims.__getitem__)
    for axis, dim in enumerate(dims):
        view[dim] = x.shape[axis]
    return np.broadcast_to(x.transpose(order).reshape(view), shape)


def _pad(x: Array, low: tuple[int, ...], high: tuple[int, ...]) -> Array:
    out = np.zeros(tuple(lo + n + hi for lo, n, hi in zip(low, x.shape, high, strict=True)), x.dtype)
    out[tuple(slice(lo, lo + n) for lo, n in zip(low, x.shape, strict=True))] = x
    return out


def _slice(x: Array, starts: Shape, stops: Shape) -> Array:
    view: Array = x[tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))]
    return view


def _constant(value: Any, dtype: DType) -> Array:
    return np.asarray(value, dtype=dtype)


_add("broadcast_in_dim", rule.broadcast_in_dim, _broadcast_in_dim, True)
_add("reshape", rule.reshape, lambda x, shape: x.reshape(shape), True)
_add("pad", rule.pad, _pad, True)
_add("concatenate", rule.concatenate, lambda *xs, axis: np.concatenate(xs, axis=axis), True)
_add("transpose", rule.transpose, lambda x, permutation: x.transpose(permutation), True)
_add("slice", rule.slice_, _slice, True)
_add("gather", rule.gather, gather)
_add("scatter_add", rule.scatter_add, scatter_add)
_add("cast", rule.cast, cast)
_add("constant", lambda value, dtype: Spec(np.shape(value), dtype), _constant, True)

# ----- matrices and quantised tensors -----

_add("matmul", rule.matmul, matmul)
_add("dequantize", rule.dequantize, lambda weight, dtype: cast(weight.dequantize(), dtype), True)
_add(
    "dequantize_rows",
    rule.dequantize_rows,
    lambda weight, ids, dtype: cast(weight.rows(ids.reshape(-1)), dtype).reshape(*ids.shape, weight.shape[-1]),
)

__all__ = ["ANY", "COMPARISONS", "PRIMITIVES", "Primitive", "boolean"]
