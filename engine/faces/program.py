"""A traced program: nodes in order, made smaller by merging equal nodes and dropping dead ones; run many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ContextMismatch, RankMismatch, ShapeMismatch
from ..runtime.store import Progress
from .dtypes import Array
from .fusion import FusionRegion
from .fusion_run import Schedule
from .graph import Graph, Lowering, Node
from .infer import require_same_dtype
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
        self._schedule = Schedule(self.nodes if self.lowering == "core" else (), self.outputs)

    # ----- diagnostics -----
    @property
    def op_count(self) -> int:
        """Steps of the program; constants count, inputs and captured arrays do not."""
        return len(self.nodes)

    @property
    def op_list(self) -> list[str]:
        """Names of the steps, in order."""
        return [node.name for node in self.nodes]

    @property
    def fusion_plan(self) -> tuple[FusionRegion, ...]:
        """The elementwise regions of a core program, in order; see fusion.py."""
        return tuple(runner.region for runner in self._schedule.runners)

    @property
    def regions(self) -> tuple[int, int]:
        """(number of regions, steps that they cover)."""
        return len(self.fusion_plan), sum(len(region.nodes) for region in self.fusion_plan)

    @property
    def fused_fallback(self) -> tuple[int, int]:
        """(times that a region ran as one, times that it was refused and ran step by step), over all runs."""
        runners = self._schedule.runners
        return sum(runner.fused for runner in runners), sum(runner.fallback for runner in runners)

    @property
    def fusion_paths(self) -> list[str]:
        """How each region ran last: ``compiled``, ``chunk``, or ``one by one:`` and why; empty before the first run."""
        return [runner.path for runner in self._schedule.runners]

    @property
    def prepare_seconds(self) -> float:
        """What the last `prepare` took, most of it compiling."""
        return self._schedule.prepare_seconds

    def __repr__(self) -> str:
        lines = [repr(node) for node in (*self.inputs, *self.captures, *self.nodes)]
        return "\n".join([*lines, f"return {', '.join(f'%{node.id}' for node in self.outputs)}"])

    # ----- running -----
    def prepare(self, on_progress: Progress | None = None) -> Program:
        """Make the fused regions ready: compiled once on a machine, then loaded. `run` never compiles.

        A program that is not prepared gives the same numbers, step by step. Returns the program.

        Raises:
            KernelError: a kernel does not compile.
        """
        self._schedule.prepare(on_progress)
        return self

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
        with np.errstate(all="ignore"):
            self._schedule.run(values)
            results = tuple(np.asarray(values[node]) for node in self.outputs)
        return results[0] if self.single else results

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        if len(arrays) != len(self.inputs):
            raise RankMismatch(f"Program.run: inputs: expected {len(self.inputs)} arrays, got {len(arrays)}")
        out = []
        for position, (node, value) in enumerate(zip(self.inputs, arrays, strict=True)):
            array = np.asarray(value)
            if array.dtype == node.dtype and array.shape == node.shape:
                out.append(array)
                continue
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
