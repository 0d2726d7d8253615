"""From a region's ufunc calls to the steps that the `blocks` kernel carries out: which are compiled, where values live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .store import KernelSpec

# Rounded the same by every machine, so a compiled step gives NumPy's bits and can keep its values in registers.
EXACT = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.negative: "neg",
    np.absolute: "abs",
    np.sqrt: "sqrt",
}
_CHEAP = frozenset((*EXACT, np.maximum, np.minimum, np.conjugate, np.sign, np.floor, np.rint))
SourceKind = Literal["array", "view", "number"]


def cost_class(ufunc: np.ufunc) -> str:
    """The class of a ufunc in the cost model."""
    return "map" if ufunc in _CHEAP else "transcendental"


@dataclass(frozen=True)
class FusionCode:
    """A region without its program. Values are numbered: sources, then one a call.

    Attributes:
        dtype: float32 or float64.
        sources: how each input is read: ``array`` (row-major), ``number`` (one element) or ``view`` (broadcast).
        calls: (ufunc, numbers of its operands), in order.
        outputs: numbers of the values wanted.
    """

    dtype: np.dtype[Any]
    sources: tuple[SourceKind, ...]
    calls: tuple[tuple[np.ufunc, tuple[int, ...]], ...]
    outputs: tuple[int, ...]

    @property
    def cost(self) -> tuple[str, int]:
        """(class in the cost model, how many calls of it an element costs): arithmetic is hidden behind memory."""
        costly = sum(cost_class(ufunc) == "transcendental" for ufunc, _ in self.calls)
        return ("transcendental", costly) if costly else ("map", 1)


@dataclass(frozen=True)
class Step:
    """What runs on a block at once: NumPy's loop of one ufunc, or a compiled kernel of several.

    reads, writes: value numbers; a loop writes one.
    """

    ufunc: np.ufunc | None
    spec: KernelSpec | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def make_steps(code: FusionCode) -> tuple[Step, ...]:
    """Two or more consecutive exact calls become one compiled step; everything else is NumPy's loop."""
    first = len(code.sources)
    steps: list[Step] = []
    start = 0
    while start < len(code.calls):
        stop = start
        while stop < len(code.calls) and code.calls[stop][0] in EXACT:
            stop += 1
        if stop - start > 1:
            steps.append(_compiled(code, start, stop))
            start = stop
        else:
            ufunc, operands = code.calls[start]
            steps.append(Step(ufunc, None, operands, (first + start,)))
            start += 1
    return tuple(steps)


def _compiled(code: FusionCode, start: int, stop: int) -> Step:
    """The calls [start, stop) as one kernel, its values numbered anew so that equal stretches share it."""
    first = len(code.sources)
    inside = range(first + start, first + stop)
    reads = tuple(dict.fromkeys(i for _, operands in code.calls[start:stop] for i in operands if i not in inside))
    later = {i for _, operands in code.calls[stop:] for i in operands} | set(code.outputs)
    writes = tuple(i for i in inside if i in later)
    number = {value: i for i, value in enumerate((*reads, *inside))}
    spec = KernelSpec.of(
        "elementwise",
        elem="f64" if code.dtype.itemsize == 8 else "f32",
        inputs="".join("s" if i < first and code.sources[i] == "number" else "v" for i in reads),
        steps=tuple((EXACT[ufunc], *(number[i] for i in operands)) for ufunc, operands in code.calls[start:stop]),
        outputs=tuple(number[i] for i in writes),
    )
    return Step(None, spec, reads, writes)


def place_values(code: FusionCode, steps: Sequence[Step]) -> tuple[dict[int, int], int]:
    """(value -> scratch block, number of blocks) for the values that are neither sources nor outputs.

    A block is used again from the last step that reads it: loops and compiled steps may write where they read.
    """
    last = {value: at for at, step in enumerate(steps) for value in step.reads}
    blocks: dict[int, int] = {}
    free: list[int] = []
    count = 0
    for at, step in enumerate(steps):
        free += [blocks[value] for value in dict.fromkeys(step.reads) if value in blocks and last[value] == at]
        for value in step.writes:
            if value not in code.outputs:
                if not free:
                    free.append(count)
                    count += 1
                blocks[value] = free.pop()
    return blocks, count
