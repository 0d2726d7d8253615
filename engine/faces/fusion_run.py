"""Carry out a core program: its regions as one where their kernels are ready and the operands fit, else step by step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import KernelError
from ..runtime.engine import current_engine
from ..runtime.fusion_kernel import FusionKernel, View, fusion_specs
from ..runtime.fusion_steps import FusionCode, SourceKind
from ..runtime.store import Progress, default_store
from .dtypes import Array
from .fusion import MIN_ELEMENTS, FusionRegion, RegionInput, plan_regions
from .graph import Node
from .primitives import PRIMITIVES

Values = dict[Node, Any]


class RegionRunner:
    """A region with its kernel and its counters.

    Attributes:
        fused, fallback: how often it ran as one, and step by step.
        path: how it ran last: ``compiled``, ``chunk``, or ``one by one:`` and the reason; empty before the first run.
    """

    def __init__(self, region: FusionRegion) -> None:
        self.region = region
        self.fused = self.fallback = 0
        self.path = ""
        self._refusal = region.refusal or _symbolic_view(region)
        self._lowered = None if self._refusal else _lower(region)
        self._kernel: FusionKernel | None = None
        arrays = [i for i, source in enumerate(region.inputs) if source.kind == "array"]
        self._arrays, self._nodes, self._outputs = arrays, [source.node for source in region.inputs], region.output_nodes

    def specs(self) -> list[Any]:
        """The kernels that it needs; none once it is ready or refused."""
        return [] if self._lowered is None or self._kernel is not None else fusion_specs(self._lowered[0])

    def load(self, addresses: Mapping[Any, int]) -> None:
        """Make it ready."""
        if self._lowered is not None and self._kernel is None:
            try:
                self._kernel = FusionKernel(*self._lowered, addresses)
            except KernelError as error:
                self._refusal = str(error)

    def run(self, values: Values) -> None:
        """Add the values that are needed outside."""
        sources = [values[node] for node in self._nodes]
        shape = sources[self._arrays[0]].shape if self._arrays else self.region.shape
        reason = self._reason(sources, shape)
        if reason or self._kernel is None:
            self.fallback += 1
            self.path = f"one by one: {reason}"
            self._run_steps(values)
            return
        results = self._kernel.run(sources, shape, current_engine())
        self.fused += 1
        self.path = self._kernel.path
        for node, result in zip(self._outputs, results, strict=True):
            values[node] = result

    def _reason(self, sources: Sequence[Array], shape: tuple[int, ...]) -> str:
        """Why it cannot run as one; empty: it can."""
        if self._refusal:
            return self._refusal
        for i in self._arrays:
            if sources[i].shape != shape:
                return "the shapes of its inputs differ"
        if prod(shape) < MIN_ELEMENTS:
            return f"fewer than {MIN_ELEMENTS} elements"
        return "" if self._kernel is not None else "not prepared"

    def _run_steps(self, values: Values) -> None:
        inside: Values = {node: _evaluate(node, values) for node in self.region.broadcasts}
        for node, dying in zip(self.region.nodes, self.region.last_uses, strict=True):
            operands = (inside[i] if i in inside else values[i] for i in node.inputs)
            inside[node] = PRIMITIVES[node.name].evaluate(*operands, **node.attrs)
            for at in dying:
                if at not in self.region.outputs:
                    del inside[self.region.nodes[at]]
        values.update((node, inside[node]) for node in self._outputs)


class Schedule:
    """A program's steps and regions in the order in which they run, and what each is the last to read."""

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> None:
        self.constants: Values = {node: node.value for node in nodes if node.name == "constant"}
        order, regions = plan_regions(nodes, outputs)
        self.runners = [RegionRunner(region) for region in regions]
        first = {runner.region.nodes[0]: runner for runner in self.runners}
        inside = {node for runner in self.runners for node in (*runner.region.nodes, *runner.region.absorbed)}
        self.prepare_seconds = 0.0
        units: list[Node | RegionRunner] = [
            first.get(node, node) for node in order if node in first or (node not in inside and node not in self.constants)
        ]
        self._units = list(zip(units, _frees(units, outputs), strict=True))

    def prepare(self, on_progress: Progress | None) -> None:
        """Compile, or load from the store, what the regions need."""
        started = time.perf_counter()
        specs = [spec for runner in self.runners for spec in runner.specs()]
        if specs:
            addresses = default_store().load(specs, on_progress)
            for runner in self.runners:
                runner.load(addresses)
        self.prepare_seconds = time.perf_counter() - started

    def run(self, values: Values) -> None:
        """Add the outputs to ``values``, which holds the inputs and captures; what nothing reads any more is dropped."""
        values.update(self.constants)
        for unit, freed in self._units:
            if isinstance(unit, Node):
                values[unit] = _evaluate(unit, values)
            else:
                unit.run(values)
            for node in freed:
                del values[node]


def _evaluate(node: Node, values: Mapping[Node, Any]) -> Array:
    return PRIMITIVES[node.name].evaluate(*(values[i] for i in node.inputs), **node.attrs)


def _frees(units: Sequence[Node | RegionRunner], outputs: Iterable[Node]) -> Iterator[list[Node]]:
    """For each unit the values that nothing reads after it."""
    last: dict[Node, int] = {}
    for at, unit in enumerate(units):
        if isinstance(unit, Node):
            last.update(dict.fromkeys((unit, *unit.inputs), at))
        else:
            last.update(dict.fromkeys((*unit.region.output_nodes, *(source.node for source in unit.region.inputs)), at))
    kept = set(outputs)
    freed: list[list[Node]] = [[] for _ in units]
    for node, at in last.items():
        if node not in kept and node.name not in ("input", "constant"):
            freed[at].append(node)
    return iter(freed)


def _symbolic_view(region: FusionRegion) -> str:
    views = [source.node for source in region.inputs if source.kind == "view"]
    known = all(n is not None for node in (region.nodes[0], *views) for n in node.shape)
    return "" if known or not views else "the shape of a broadcast is symbolic"


def _lower(region: FusionRegion) -> tuple[FusionCode, dict[int, View], dict[int, Array]]:
    """(code, views by source number, constants by source number): clamp and rsqrt become the ufuncs that they are."""
    dtype = region.nodes[0].dtype
    bounds = [node.attrs[side] for node in region.nodes if node.name == "clamp" for side in ("lower", "upper")]
    ones = [1.0] if any(node.name == "rsqrt" for node in region.nodes) else []
    constants = [*(node.value for node in region.constants), *bounds, *ones]
    n_inputs, n_constants = len(region.inputs), len(region.constants)
    kinds: list[SourceKind] = [source.kind for source in region.inputs]
    kinds += ["number" for _ in constants]
    numbers = {n_inputs + i: np.array([value], dtype) for i, value in enumerate(constants)}
    views = {i: View(source.node.shape, region.shape, source.dims) for i, source in enumerate(region.inputs) if source.kind == "view"}
    number_of: dict[RegionInput | Node, int] = {source: i for i, source in enumerate(region.inputs)}
    number_of.update((node, n_inputs + i) for i, node in enumerate(region.constants))
    next_bound, one = n_inputs + n_constants, len(kinds) - 1
    calls: list[tuple[np.ufunc, tuple[int, ...]]] = []
    value_of: list[int] = []  # step -> value number

    def call(ufunc: np.ufunc, *operands: int) -> int:
        calls.append((ufunc, operands))
        return len(kinds) + len(calls) - 1

    for node, row in zip(region.nodes, region.operands, strict=True):
        operands = [value_of[o] if isinstance(o, int) else number_of[o] for o in row]
        if node.name == "clamp":
            value = call(np.minimum, call(np.maximum, operands[0], next_bound), next_bound + 1)
            next_bound += 2
        elif node.name == "rsqrt":
            value = call(np.divide, one, call(np.sqrt, operands[0]))
        else:
            ufunc = PRIMITIVES[node.name].ufunc
            if ufunc is None:
                raise KernelError(f"region: expected a ufunc behind {node.name}, found none")
            value = call(ufunc, *operands)
        value_of.append(value)
    code = FusionCode(dtype, tuple(kinds), tuple(calls), tuple(value_of[i] for i in region.outputs))
    return code, views, numbers
