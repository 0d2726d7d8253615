"""What the eager face records: one node a primitive, with what backward needs of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from .dtypes import Array, DType
from .spec import Spec

_ids = count()


@dataclass(frozen=True)
class Parent:
    """An operand of a recorded primitive: the node that made it, or, untracked, its value or a way to make it again."""

    node: TapeNode | None
    value: Any
    recipe: Callable[[], Array] | None
    spec: Spec

    def make(self) -> Any:
        return self.recipe() if self.recipe is not None else self.value

    @property
    def is_free(self) -> bool:
        """Costs no memory to keep: tracked elsewhere, remade, or one number repeated."""
        if self.node is not None or self.recipe is not None:
            return True
        return isinstance(self.value, np.ndarray) and (self.value.size <= 1 or not any(self.value.strides))


class TapeNode:
    """One recorded primitive, or a leaf.

    Attributes:
        value: the result, None when backward is to recompute it.
    """

    __slots__ = ("attrs", "dtype", "id", "name", "parents", "shape", "value")

    def __init__(
        self, name: str, parents: tuple[Parent, ...], attrs: Mapping[str, Any], shape: tuple[int, ...], dtype: DType, value: Array | None
    ) -> None:
        self.id = next(_ids)
        self.name, self.parents, self.attrs = name, parents, attrs
        self.shape, self.dtype, self.value = shape, dtype, value

    @property
    def can_be_recomputed(self) -> bool:
        """An untracked operand would have to be kept for it, so then the result is kept instead."""
        return all(parent.is_free for parent in self.parents)

    def __repr__(self) -> str:
        return f"<tape {self.id}: {self.name}{list(self.shape)}>"


def ancestors(node: TapeNode) -> list[TapeNode]:
    """Every recorded node behind this one and itself, oldest first."""
    seen: dict[TapeNode, None] = {}
    stack = [node]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen[current] = None
            stack.extend(parent.node for parent in current.parents if parent.node is not None)
    return sorted(seen, key=lambda n: n.id)


def stored_bytes(node: TapeNode) -> int:
    """Bytes of distinct results that the tape behind a node keeps; leaves are the caller's and do not count."""
    buffers: dict[int, int] = {}
    for recorded in ancestors(node):
        value = recorded.value
        if value is not None and recorded.name != "leaf":
            owner = value
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            buffers[id(owner)] = owner.nbytes
    return sum(buffers.values())
