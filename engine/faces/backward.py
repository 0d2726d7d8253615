"""The reverse walk that the eager and the traced face share, so that their gradients are the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Generic, Protocol, TypeVar

from ..errors import MissingGradient
from .dtypes import HALF, f32
from .namespace import Namespace, Value
from .vjp import RuleView, is_differentiable, rule_for


class Recorded(Protocol):
    """A node of a tape or of a graph."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> Any: ...


N = TypeVar("N", bound=Recorded)


class Walk(Generic[N]):
    """One reverse pass over recorded nodes.

    Args:
        space: where gradients are computed.
        parents: node -> the node of each operand, None for an untracked one.
        view: node -> what rules see of it.
        done: called after each node, when its values are no longer needed.
    """

    def __init__(
        self,
        space: Namespace,
        parents: Callable[[N], Sequence[N | None]],
        view: Callable[[N], RuleView],
        done: Callable[[N], None] = lambda node: None,
    ) -> None:
        self.space, self.parents, self.view, self.done = space, parents, view, done

    def edges(self, node: N) -> list[tuple[int, N]]:
        """(operand position, parent) of the operands that a gradient can flow to."""
        if not is_differentiable(node.dtype):
            return []
        found = []
        for position, parent in enumerate(self.parents(node)):
            if parent is not None and is_differentiable(parent.dtype) and rule_for(node.name, position) is not None:
                found.append((position, parent))
        return found

    def needed(self, outputs: Iterable[N], wrt: Iterable[N]) -> list[N]:
        """Nodes on a path from an output to a node of ``wrt``, latest first."""
        reached: dict[N, None] = {}
        stack = list(outputs)
        while stack:
            node = stack.pop()
            if node not in reached:
                reached[node] = None
                stack.extend(parent for _, parent in self.edges(node))
        targets = set(wrt)
        useful: set[N] = set()
        for node in sorted(reached, key=lambda n: n.id):
            if node in targets or any(parent in useful for _, parent in self.edges(node)):
                useful.add(node)
        return sorted(useful, key=lambda n: n.id, reverse=True)

    def run(self, seeds: Sequence[tuple[N, Value]], wrt: Sequence[N]) -> list[Value | None]:
        """Gradients of the seeded outputs to each node of ``wrt``; None where no path leads there.

        Raises:
            MissingGradient: a primitive on the way has no rule; names it and the operand.
        """
        order = self.needed([node for node, _ in seeds], wrt)
        useful, targets = set(order), set(wrt)
        arrived: dict[N, list[Value]] = {}
        for node, g in seeds:
            arrived.setdefault(node, []).append(g)
        kept: dict[N, Value] = {}
        for node in order:
            if node in arrived:
                g = self._sum(arrived.pop(node))
                if node in targets:
                    kept[node] = g
                for position, parent in self.edges(node):
                    if parent in useful:
                        arrived.setdefault(parent, []).append(self._apply(node, position, parent, g))
            self.done(node)
        return [kept.get(node) for node in wrt]

    def _apply(self, node: N, position: int, parent: N, g: Value) -> Value:
        rule = rule_for(node.name, position)
        if rule is None:
            raise MissingGradient(f"{node.name}: operand {position}: expected a differentiable operand")
        if node.dtype not in HALF or node.name == "cast":
            return rule(self.space, g, self.view(node))
        # Only layout happens in half types; what it sums, it sums in float32 and rounds once.
        return self.space.cast(rule(self.space, self.space.cast(g, f32), self.view(node)), parent.dtype)

    def _sum(self, contributions: list[Value]) -> Value:
        dtype = self.space.dtype(contributions[0])
        if len(contributions) > 1 and dtype in HALF:
            wide = [self.space.cast(g, f32) for g in contributions]
            return self.space.cast(reduce(self.space.add, wide), dtype)
        return reduce(self.space.add, contributions)
