"""Checkpointing: what forward keeps and backward recomputes.

Strategies: ``none`` (default) keeps every result. ``balanced`` drops the results of memory-bound primitives
(elementwise, layout) and recomputes each at most once in backward, when a rule first asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import InvalidArgument
from .dtypes import Array
from .primitives import PRIMITIVES
from .tape import TapeNode

_strategy: ContextVar[str] = ContextVar("checkpointing", default="none")
STRATEGIES = ("none", "balanced")


@contextmanager
def checkpointing(strategy: str) -> Iterator[None]:
    """Inside, the eager face records under a strategy: ``none`` or ``balanced``.

    Raises:
        InvalidArgument: another name.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgument(f"checkpointing: strategy: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")
    token = _strategy.set(strategy)
    try:
        yield
    finally:
        _strategy.reset(token)


def is_balanced() -> bool:
    """Whether results of memory-bound primitives may be dropped and recomputed."""
    return _strategy.get() == "balanced"


class Checkpoints:
    """Recomputed results during one backward pass: made when asked for, dropped after their last user."""

    def __init__(self) -> None:
        self._values: dict[TapeNode, Array] = {}
        self._users: dict[TapeNode, int] = {}
        self.recomputed = 0

    def __len__(self) -> int:
        return len(self._values)

    def expect(self, order: Sequence[TapeNode]) -> None:
        """The nodes that backward will visit: each is a user of its operands and of itself."""
        for node in order:
            for used in self._used_by(node):
                self._users[used] = self._users.get(used, 0) + 1

    @staticmethod
    def _used_by(node: TapeNode) -> set[TapeNode]:
        return {node, *(parent.node for parent in node.parents if parent.node is not None)}

    def value(self, node: TapeNode) -> Array:
        """The result of a node: kept, recomputed before, or recomputed now in topological order."""
        if node.value is not None:
            return node.value
        if node not in self._values:
            for missing in self._missing(node):
                operands = [p.make() if p.node is None else self._ready(p.node) for p in missing.parents]
                self._values[missing] = PRIMITIVES[missing.name].evaluate(*operands, **missing.attrs)
                self.recomputed += 1
        return self._values[node]

    def _ready(self, node: TapeNode) -> Array:
        return node.value if node.value is not None else self._values[node]

    def _missing(self, node: TapeNode) -> list[TapeNode]:
        """Dropped results behind a node that have to exist first, oldest first, the node last."""
        found: dict[TapeNode, None] = {}
        stack = [node]
        while stack:
            current = stack.pop()
            if current in found or current.value is not None or current in self._values:
                continue
            found[current] = None
            stack.extend(parent.node for parent in current.parents if parent.node is not None)
        return sorted(found, key=lambda n: n.id)

    def done(self, node: TapeNode) -> None:
        """Backward finished with a node: results that nobody will ask for again go."""
        for used in self._used_by(node):
            left = self._users.get(used, 0) - 1
            self._users[used] = left
            if left <= 0:
                self._values.pop(used, None)

    def close(self) -> None:
        self._values.clear()
