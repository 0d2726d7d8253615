"""The primitive namespace that formulas are written over.

A formula receives a `Namespace` as its first argument and calls nothing else. Each face supplies one: NumPy at
once (direct), recorded (eager), graph nodes (traced), or shapes alone (`ShapeNamespace`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import InvalidArgument, UnsupportedDType
from . import infer
from .dtypes import COMPLEX, FLOAT, HALF, INTEGER, Array, DType, cast, dtype_name, f32
from .gather import GatherConfig
from .primitives import PRIMITIVES
from .spec import Shape, Spec, concrete, spec_of

Value: TypeAlias = Any
_NUMERIC = FLOAT | HALF | COMPLEX | INTEGER


def constant_array(value: Any, dtype: DType) -> Array:
    """A rank-0 array of one number.

    Raises:
        UnsupportedDType: the dtype is not numeric.
        InvalidArgument: an integer constant that is not an exact integer in range.
    """
    if dtype not in _NUMERIC:
        raise UnsupportedDType(f"constant: unsupported dtype {dtype_name(dtype)}: expected a numeric type")
    if dtype in INTEGER:
        bounds = np.iinfo(dtype)
        exact = math.isfinite(value) and int(value) == value
        if not exact or not bounds.min <= int(value) <= bounds.max:
            raise InvalidArgument(f"constant: value: expected an exact integer in [{bounds.min}, {bounds.max}], got {value!r}")
        value = int(value)
    return cast(np.asarray(value, np.float32), dtype) if dtype in HALF else np.asarray(value, dtype=dtype)


class Namespace(ABC):
    """Every primitive as a method; subclasses say what applying one means."""

    @abstractmethod
    def apply(self, name: str, operands: tuple[Value, ...], **attrs: Any) -> Value:
        """Apply the primitive ``name``."""

    def shape(self, x: Value) -> Shape:
        shape: Shape = x.shape
        return shape

    def dtype(self, x: Value) -> DType:
        dtype: DType = x.dtype
        return dtype

    # ----- constants -----
    def constant(self, value: Any, dtype: DType) -> Value:
        return self.apply("constant", (), value=constant_array(value, dtype)[()], dtype=dtype)

    def array(self, value: Array) -> Value:
        """A whole host array (index tables, masks) as an operand."""
        return value

    def splat(self, value: Any, shape: Shape, dtype: DType) -> Value:
        scalar = self.constant(value, dtype)
        return self.broadcast_in_dim(scalar, shape, ()) if shape else scalar

    def full(self, value: Any, shape: Shape, dtype: DType) -> Value:
        """``splat`` where the result itself must have the shape."""
        return self.splat(value, shape, dtype)

    def like(self, x: Value, value: Any) -> Value:
        """``splat`` with the shape and dtype of ``x``."""
        return self.splat(value, self.shape(x), self.dtype(x))

    def scale(self, x: Value, factor: float) -> Value:
        return self.mul(x, self.like(x, factor))

    # ----- unary -----
    def neg(self, x: Value) -> Value:
        return self.apply("neg", (x,))

    def exp(self, x: Value) -> Value:
        return self.apply("exp", (x,))

    def log(self, x: Value) -> Value:
        return self.apply("log", (x,))

    def log1p(self, x: Value) -> Value:
        return self.apply("log1p", (x,))

    def expm1(self, x: Value) -> Value:
        return self.apply("expm1", (x,))

    def tanh(self, x: Value) -> Value:
        return self.apply("tanh", (x,))

    def erf(self, x: Value) -> Value:
        return self.apply("erf", (x,))

    def sqrt(self, x: Value) -> Value:
        return self.apply("sqrt", (x,))

    def rsqrt(self, x: Value) -> Value:
        return self.apply("rsqrt", (x,))

    def sin(self, x: Value) -> Value:
        return self.apply("sin", (x,))

    def cos(self, x: Value) -> Value:
        return self.apply("cos", (x,))

    def abs(self, x: Value) -> Value:
        return self.apply("abs", (x,))

    def sign(self, x: Value) -> Value:
        return self.apply("sign", (x,))

    def conj(self, x: Value) -> Value:
        return self.apply("conj", (x,))

    def floor(self, x: Value) -> Value:
        return self.apply("floor", (x,))

    def round(self, x: Value) -> Value:
        return self.apply("round", (x,))

    def clamp(self, x: Value, lower: float, upper: float) -> Value:
        return self.apply("clamp", (x,), lower=float(lower), upper=float(upper))

    # ----- binary, compare, select -----
    def add(self, a: Value, b: Value) -> Value:
        return self._binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self._binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self._binary("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self._binary("div", a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        return self._binary("maximum", a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        return self._binary("minimum", a, b)

    def pow(self, a: Value, b: Value) -> Value:
        return self._binary("pow", a, b)

    def remainder(self, a: Value, b: Value) -> Value:
        return self._binary("remainder", a, b)

    def compare(self, a: Value, b: Value, direction: str) -> Value:
        return self._binary("compare", a, b, direction=direction)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.apply("select", self._align("select", condition, a, b))

    def arithmetic(self, name: str, *operands: Value) -> Value:
        """A primitive by name, as its op applies it: half types compute in float32 and round once."""
        primitive, half = getattr(self, name), self.dtype(operands[0])
        if half not in HALF and all(self.dtype(x) not in HALF for x in operands):
            return primitive(*operands)
        infer.require_same_dtype(name, *map(spec_of, operands))
        return self.cast(primitive(*(self.cast(x, f32) for x in operands)), half)

    def _binary(self, name: str, a: Value, b: Value, **attrs: Any) -> Value:
        return self.apply(name, self._align(name, a, b), **attrs)

    def _align(self, name: str, *operands: Value) -> tuple[Value, ...]:
        """Operands at one common shape; broadcasting becomes explicit nodes, so that gradients undo it."""
        shapes = [self.shape(x) for x in operands]
        if all(shape == shapes[0] for shape in shapes):
            return operands
        target = infer.broadcast(name, *(concrete(shape, name) for shape in shapes))
        return tuple(self._broadcast_to(x, shape, target) for x, shape in zip(operands, shapes, strict=True))

    def _broadcast_to(self, x: Value, shape: Shape, target: Shape) -> Value:
        if shape == target:
            return x
        offset = len(target) - len(shape)
        kept = [axis for axis, n in enumerate(shape) if n == target[axis + offset]]
        if len(kept) != len(shape):
            x = self.reshape(x, tuple(shape[axis] for axis in kept))
        return self.broadcast_in_dim(x, target, tuple(axis + offset for axis in kept))

    # ----- reductions -----
    def reduce_sum(self, x: Value, axes: Sequence[int]) -> Value:
        return self.apply("reduce_sum", (x,), axes=tuple(axes))

    def reduce_max(self, x: Value, axes: Sequence[int]) -> Value:
        return self.apply("reduce_max", (x,), axes=tuple(axes))

    def reduce_sum_squares(self, x: Value, axes: Sequence[int]) -> Value:
        return self.apply("reduce_sum_squares", (x,), axes=tuple(axes))

    def argmax(self, x: Value, axis: int) -> Value:
        return self.apply("argmax", (x,), axis=axis)

    # ----- layout -----
    def broadcast_in_dim(self, x: Value, shape: Shape, dims: tuple[int, ...]) -> Value:
        return self.apply("broadcast_in_dim", (x,), shape=tuple(shape), dims=tuple(dims))

    def reshape(self, x: Value, shape: Shape) -> Value:
        shape = tuple(shape)
        return x if self.shape(x) == shape else self.apply("reshape", (x,), shape=shape)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int]) -> Value:
        return self.apply("pad", (x,), low=tuple(low), high=tuple(high))

    def concatenate(self, operands: Sequence[Value], axis: int) -> Value:
        return self.apply("concatenate", tuple(operands), axis=axis)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        return self.apply("transpose", (x,), permutation=tuple(permutation))

    def slice(self, x: Value, starts: Sequence[int], stops: Sequence[int]) -> Value:
        return self.apply("slice", (x,), starts=tuple(starts), stops=tuple(stops))

    def narrow(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """``x`` with [start, stop) of one axis."""
        shape = self.shape(x)
        starts, stops = [0] * len(shape), list(shape)
        starts[axis], stops[axis] = start, stop
        return self.slice(x, starts, stops)

    def gather(self, operand: Value, indices: Value, config: GatherConfig) -> Value:
        return self.apply("gather", (operand, indices), config=config)

    def scatter_add(self, indices: Value, updates: Value, shape: Shape, config: GatherConfig) -> Value:
        return self.apply("scatter_add", (indices, updates), shape=tuple(shape), config=config)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if self.dtype(x) == dtype else self.apply("cast", (x,), dtype=dtype)

    # ----- matrices -----
    def matmul(self, a: Value, b: Value) -> Value:
        return self.apply("matmul", (a, b))

    def dequantize(self, weight: Value, dtype: DType) -> Value:
        return self.apply("dequantize", (weight,), dtype=dtype)

    def dequantize_rows(self, weight: Value, ids: Value, dtype: DType) -> Value:
        return self.apply("dequantize_rows", (weight, ids), dtype=dtype)


class ShapeNamespace(Namespace):
    """Values are specs: running a formula here gives the shape and dtype of its result, and its errors."""

    def apply(self, name: str, operands: tuple[Value, ...], **attrs: Any) -> Spec:
        return PRIMITIVES[name].infer(*map(spec_of, operands), **attrs)

    def array(self, value: Array) -> Spec:
        return spec_of(value)


SHAPES = ShapeNamespace()
