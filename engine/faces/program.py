"""A traced program: nodes in order, made smaller by merging equal nodes and dropping dead ones; run many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ContextMismatch, RankMismatch, ShapeMismatch
from .dtypes import Array
from .graph import Graph, Lowering, Node
from .infer import require_same_dtype
from .primitives import PRIMITIVES
from .spec import Spec, spec_of


class Program:
    """What `trace` leaves.

    Attributes:
        inputs: input nodes, one a spec.
        nodes: steps in an order that respects reads; inputs and captured arrays are not among them.
        captures: captured arrays and quantised tensors (``node.value``).
        outputs: result nodes.
        lowering: ``core`` (primitives) or ``plan`` (op calls).
    """

    def __init__(self, graph: Graph, inputs: Sequence[Node], outputs: Sequence[Node], single: bool) -> None:
        self.lowering: Lowering = graph.lowering
        # Gradients are taken of the nodes as recorded: merging first would change the order of their sums.
        self.graph, self.recorded_inputs, self.recorded_outputs = graph, tuple(inputs), tuple(outputs)
        self.single = single
        kept = _merge_equal(graph.nodes) if graph.lowering == "core" else {node.id: node for node in graph.nodes}
        self.inputs = tuple(kept[node.id] for node in inputs)
        self.outputs = tuple(kept[node.id] for node in outputs)
        live = _live(list(dict.fromkeys(kept.values())), self.outputs)
        self.captures = tuple(node for node in live if node.is_capture)
        self.nodes = tuple(node for node in live if node.name != "input" and not node.is_capture)

    # ----- diagnostics -----
    @property
    def op_count(self) -> int:
        """Steps of the program; constants count, inputs and captured arrays do not."""
        return len(self.nodes)

    @property
    def op_list(self) -> list[str]:
        """Names of the steps, in order."""
        return [node.name for node in self.nodes]

    def __repr__(self) -> str:
        lines = [repr(node) for node in (*self.inputs, *self.captures, *self.nodes)]
        return "\n".join([*lines, f"return {', '.join(f'%{node.id}' for node in self.outputs)}"])

    # ----- running -----
    def run(self, *arrays: Any) -> Any:
        """Run on arrays that match the specs. Returns one array, or a tuple where the traced function did.

        Raises:
            ShapeMismatch, RankMismatch, DTypeMismatch: an array does not match its spec.
            ContextMismatch: the program is a plan, which a plan builder runs.
        """
        if self.lowering != "core":
            raise ContextMismatch("Program.run: lowering: expected 'core', got 'plan'; lower it with a plan builder")
        values = dict(zip(self.inputs, self._checked(arrays), strict=True))
        values.update((node, node.value) for node in self.captures)
        last = _last_uses(self.nodes, self.outputs)
        with np.errstate(all="ignore"):
            for node in self.nodes:
                if node.name == "constant":
                    values[node] = node.value
                else:
                    values[node] = PRIMITIVES[node.name].evaluate(*(values[i] for i in node.inputs), **node.attrs)
                for dead in last.get(node, ()):
                    del values[dead]
            results = tuple(np.asarray(values[node]) for node in self.outputs)
        return results[0] if self.single else results

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        if len(arrays) != len(self.inputs):
            raise RankMismatch(f"Program.run: inputs: expected {len(self.inputs)} arrays, got {len(arrays)}")
        out = []
        for position, (node, value) in enumerate(zip(self.inputs, arrays, strict=True)):
            array = np.asarray(value)
            require_same_dtype(f"Program.run: input {position}", Spec(node.shape, node.dtype), spec_of(array))
            if array.ndim != node.ndim or any(want not in (None, got) for want, got in zip(node.shape, array.shape, strict=True)):
                raise ShapeMismatch(f"Program.run: input {position}: expected shape {node.shape}, got {array.shape}")
            out.append(array)
        return out


def op_counts(program: Program) -> Counter[str]:
    """How often each step name occurs."""
    return Counter(program.op_list)


def _attr_key(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return (str(value.dtype), value.shape, value.tobytes())
    return value.hex() if isinstance(value, float) else value


def _merge_equal(nodes: Sequence[Node]) -> dict[int, Node]:
    """Node id -> the first node that computes the same thing (same name, attributes and merged inputs)."""
    seen: dict[Any, Node] = {}
    kept: dict[int, Node] = {}
    for node in nodes:
        if node.name == "input" or node.is_capture:
            kept[node.id] = node
            continue
        inputs = tuple(kept[i.id] for i in node.inputs)
        value = _attr_key(node.value) if node.name == "constant" else None
        key = (node.name, tuple(i.id for i in inputs), tuple(sorted((k, _attr_key(v)) for k, v in node.attrs.items())), value)
        if key not in seen:
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            seen[key] = node if same else Node(node.id, node.name, inputs, node.attrs, node.shape, node.dtype, value=node.value)
        kept[node.id] = seen[key]
    return kept


def _live(nodes: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """Nodes that an output or an effect needs, in order."""
    needed = set(outputs) | {node for node in nodes if node.effect}
    for node in sorted(nodes, key=lambda n: n.id, reverse=True):
        if node in needed:
            needed.update(node.inputs)
    return [node for node in sorted(nodes, key=lambda n: n.id) if node in needed]


def _last_uses(nodes: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, list[Node]]:
    """Step -> values that nothing reads after it."""
    last: dict[Node, Node] = {}
    for node in nodes:
        for read in (*node.inputs, node):
            last[read] = node
    freed: dict[Node, list[Node]] = {}
    for value, step in last.items():
        if value not in outputs and value.name != "input" and not value.is_capture:
            freed.setdefault(step, []).append(value)
    return freed
