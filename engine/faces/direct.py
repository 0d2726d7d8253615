"""The direct face: arrays in, arrays out, at once. A fused kernel when the engine has one, else the composite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..runtime.engine import Engine, current_engine
from .dtypes import Array, DType
from .modes import composites_forced
from .namespace import Namespace, Value, constant_array
from .primitives import COMPARISONS, PRIMITIVES
from .spec import Shape


class OpLike(Protocol):
    """What faces know of an op: its name, its hook and how to expand its formula."""

    name: str
    composite: bool

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

    def _align(self, name: str, *operands: Value) -> tuple[Value, ...]:
        return operands


DIRECT = DirectNamespace()


def call(op: OpLike, bound: Sequence[Any]) -> Any:
    """Run an op on concrete operands: the engine's fused kernel if it offers one, else the composite."""
    if not composites_forced.get():
        fused = op.ask_hook(current_engine(), bound)
        if fused is not None:
            return fused
    with np.errstate(all="ignore"):
        return np.asarray(op.expand(DIRECT, bound))
