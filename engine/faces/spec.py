"""What is known of a value before it has numbers: its shape and element type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .dtypes import DType, as_dtype, dtype_name

Shape = tuple[int, ...]


class Spec:
    """Shape and element type of a value. An extent of None is symbolic: known only when the program runs. Immutable."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[Any, ...], dtype: DType) -> None:
        self.shape, self.dtype = shape, dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.shape == other.shape and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{dtype_name(self.dtype)}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


def spec(shape: Sequence[int | None] | int, dtype: Any = "f32") -> Spec:
    """A `Spec` from a shape and a dtype (NumPy's, or a short name such as ``"f32"``)."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    for extent in extents:
        if extent is not None and (not isinstance(extent, (int, np.integer)) or extent < 0):
            raise InvalidArgument(f"spec: shape: expected extents >= 0 (or None for symbolic), got {extents}")
    return Spec(tuple(None if n is None else int(n) for n in extents), as_dtype(dtype, "spec"))


def spec_of(value: Any) -> Spec:
    """The spec of an array, a spec, or anything that has a shape; what has no dtype (a quantised tensor) counts as F32."""
    if isinstance(value, Spec):
        return value
    dtype = getattr(value, "dtype", None)
    return Spec(tuple(value.shape), dtype if isinstance(dtype, np.dtype) else np.dtype(np.float32))


def concrete(shape: tuple[Any, ...], op: str, name: object = "") -> Shape:
    """The shape, if no extent is symbolic.

    Raises:
        InvalidArgument: an extent is symbolic; composites need concrete shapes when the graph is built.
    """
    if any(extent is None for extent in shape):
        raise InvalidArgument(
            f"{op}: invalid argument shape: missing shape hint for traced tensor {name}: expected concrete extents, "
            f"got {Spec(shape, np.dtype(np.float32))!r}; give every extent in the spec passed to trace()"
        )
    return shape
