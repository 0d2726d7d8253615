"""Gradients of traced programs, by transforming the program: the same rules and order of sums as the eager face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ContextMismatch, InvalidArgument, MissingGradient
from .backward import Walk
from .dtypes import DType
from .graph import Graph, Node, Symbol
from .namespace import Value
from .program import Program
from .spec import Shape, Spec, concrete


class _View:
    """A graph node for the rules."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node

    @property
    def attrs(self) -> Any:
        return self._node.attrs

    @property
    def y(self) -> Value:
        return Symbol(self._graph, self._node)

    def x(self, position: int) -> Value:
        return Symbol(self._graph, self._node.inputs[position])

    def shape(self, position: int) -> Shape:
        return self._node.inputs[position].shape

    def dtype(self, position: int) -> DType:
        return self._node.inputs[position].dtype


def vjp(program: Program, wrt: Sequence[int] | None = None, with_values: bool = False) -> Program:
    """The program of gradients: takes the inputs and then one cotangent an output; gives one gradient an entry of ``wrt``.

    Args:
        wrt: positions of the inputs to differentiate; None: all.
        with_values: give the original outputs first. What forward computed is shared, not computed again.

    Raises:
        MissingGradient: a primitive without a rule, or an output that does not depend on an input.
        InvalidArgument: an extent is symbolic, or a position in ``wrt`` is not that of an input.
        ContextMismatch: the program is a plan.
    """
    return _transform(program, wrt, with_values, [None] * len(program.outputs))


def gradient(program: Program, wrt: Sequence[int] | None = None, with_values: bool = False) -> Program:
    """`vjp` of a program with one single-element output, with cotangent 1.

    Raises:
        InvalidArgument: the output has more elements.
    """
    if len(program.outputs) != 1 or any(n != 1 for n in program.outputs[0].shape):
        raise InvalidArgument("gradient: output: expected one single-element output; use vjp() and give a cotangent")
    return _transform(program, wrt, with_values, [1.0])


def _positions(wrt: Sequence[int] | None, n: int) -> Sequence[int]:
    if wrt is None:
        return range(n)
    for position in wrt:
        if not 0 <= position < n:
            raise InvalidArgument(f"vjp: wrt: expected positions of inputs in [0, {n}), got {position}")
    return wrt


def _transform(program: Program, wrt: Sequence[int] | None, with_values: bool, seeds: Sequence[float | None]) -> Program:
    if program.lowering != "core":
        raise ContextMismatch(f"vjp: lowering: expected 'core', got {program.lowering!r}; only primitives have rules")
    graph = program.graph.copy()
    inputs = list(program.recorded_inputs)
    outputs = program.recorded_outputs
    positions = _positions(wrt, len(inputs))
    for node in inputs:
        concrete(node.shape, "vjp", f"%{node.id}")  # broadcasting that shows only when it runs could not be undone
    pairs = []
    for node, seed in zip(outputs, seeds, strict=True):
        if seed is None:
            cotangent = graph.input(Spec(node.shape, node.dtype))
            inputs.append(cotangent.node)
        else:
            cotangent = graph.splat(seed, node.shape, node.dtype)
        pairs.append((node, cotangent))
    walk: Walk[Node] = Walk(graph, lambda n: n.inputs, lambda n: _View(graph, n))
    found = walk.run(pairs, [program.recorded_inputs[i] for i in positions])
    results = list(outputs) if with_values else []
    for i, g in zip(positions, found, strict=True):
        if g is None:
            raise MissingGradient(f"vjp: input {i}: no output depends on it")
        results.append(g.node)
    return Program(graph, inputs, results, single=len(results) == 1)
