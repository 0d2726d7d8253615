"""The direct face: arrays in, arrays out, at once. A fused kernel when the engine has one, else the composite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..runtime.engine import Engine, current_engine
from .dtypes import HALF, Array, DType, boolean, cast, f32
from .modes import composites_forced
from .namespace import Namespace, Value, constant_array
from .primitives import COMPARISONS, PRIMITIVES
from .spec import Shape
from .warnings_off import warnings_back, warnings_off


class OpLike(Protocol):
    """What faces know of an op: its name, its hook and how to expand its formula."""

    name: str
    composite: bool
    has_hook: bool
    moves_data: bool

    def with_operands(self, bound: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]: ...
    def ask_hook(self, engine: Engine, bound: Sequence[Any]) -> Any: ...
    def expand(self, space: Namespace, bound: Sequence[Any]) -> Value: ...
    def operands_of(self, bound: Sequence[Any]) -> list[tuple[str, Any]]: ...
    def attrs_of(self, bound: Sequence[Any]) -> dict[str, Any]: ...
    def check(self, bound: Sequence[Any]) -> list[Any]: ...


class DirectNamespace(Namespace):
    """NumPy at once. Broadcasting is left to NumPy, so a splat stays a scalar."""

    def apply(self, name: str, operands: tuple[Value, ...], **attrs: Any) -> Array:
        return PRIMITIVES[name].evaluate(*operands, **attrs)

    def constant(self, value: Any, dtype: DType) -> Array:
        return constant_array(value, dtype)

    def splat(self, value: Any, shape: Shape, dtype: DType) -> Array:
        return constant_array(value, dtype)

    def full(self, value: Any, shape: Shape, dtype: DType) -> Array:
        return np.full(shape, value, dtype)

    def _binary(self, name: str, a: Value, b: Value, **attrs: Any) -> Array:
        if attrs:
            return np.asarray(COMPARISONS[attrs["direction"]](a, b, order="C"))
        return PRIMITIVES[name].evaluate(a, b)

    # The two that a product on a few numbers would notice: without a call by name.
    def transpose(self, x: Value, permutation: Sequence[int]) -> Array:
        turned: Array = x.transpose(permutation)
        return turned

    def matmul(self, a: Value, b: Value) -> Array:
        return PRIMITIVES["matmul"].evaluate(a, b)

    def _align(self, name: str, *operands: Value) -> tuple[Value, ...]:
        return operands


DIRECT = DirectNamespace()


def call(op: OpLike, bound: Sequence[Any]) -> Any:
    """Run an op on concrete operands: the engine's fused kernel if it offers one, else the composite."""
    if op.has_hook and not composites_forced.get():
        engine = current_engine()
        fused = op.ask_hook(engine, bound)
        if fused is None and not op.moves_data:
            fused = _fused_through_f32(op, engine, bound)
        if fused is not None:
            return fused
    if op.moves_data:
        return np.asarray(op.expand(DIRECT, bound))
    token = warnings_off()
    try:
        return np.asarray(op.expand(DIRECT, bound))
    finally:
        warnings_back(token)


def _fused_through_f32(op: OpLike, engine: Engine, bound: Sequence[Any]) -> Any:
    """Half operands widened for a kernel and its result rounded once; None unless all (bools aside) are of one half type."""
    operands = [value for _, value in op.operands_of(bound)]
    half = getattr(operands[0], "dtype", None) if operands else None
    if half not in HALF or any(type(x) is not np.ndarray or x.dtype not in (half, boolean) for x in operands):
        return None
    y = op.ask_hook(engine, op.with_operands(bound, lambda x: cast(x, f32) if x.dtype == half else x))
    return None if y is None else cast(y, half)
