"""From programs to regions: the elementwise steps of a formula or of a stretch of a program, as kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..runtime.regions import Region, Step
from .dtypes import as_dtype
from .graph import Graph, Node
from .program import Program
from .spec import Spec

# Primitives that a region's kernel has; those that the traced runtime fuses are fewer (see fusion.py).
ELEMENTWISE = frozenset(
    """neg exp log log1p expm1 tanh erf sqrt rsqrt sin cos abs conj add sub mul div maximum minimum pow clamp compare select""".split()
)


def step_of(node: Node, number: Callable[[Node], int]) -> Step:
    """The kernel's spelling of one node; ``number`` gives the value number of each of its inputs."""
    if node.name == "constant":
        return ("constant", float(node.value))
    operands = tuple(number(read) for read in node.inputs)
    if node.name == "compare":
        return ("compare", node.attrs["direction"], *operands)
    if node.name == "clamp":
        return ("clamp", *operands, node.attrs["lower"], node.attrs["upper"])
    return (node.name, *operands)


def region_of(inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Node]) -> Region:
    """A region from nodes in order; conj of a real number disappears."""
    numbers: dict[Node, int] = {node: i for i, node in enumerate(inputs)}
    steps: list[Step] = []
    for node in nodes:
        if node.name == "conj":
            numbers[node] = numbers[node.inputs[0]]
            continue
        steps.append(step_of(node, numbers.__getitem__))
        numbers[node] = len(inputs) + len(steps) - 1
    return Region(len(inputs), tuple(steps), tuple(numbers[node] for node in outputs))


def region_of_formula(formula: Callable[..., Any], n_operands: int) -> Callable[[str], Region]:
    """Element type -> the region that an elementwise formula is."""

    def make(elem: str) -> Region:
        graph = Graph("core")
        operands = [graph.input(Spec((), as_dtype(elem))) for _ in range(n_operands)]
        result = formula(graph, *operands)
        program = Program(graph, [s.node for s in operands], [result.node], single=True)
        return region_of(program.inputs, program.nodes, program.outputs)

    return make
