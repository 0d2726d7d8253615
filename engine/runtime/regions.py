"""Elementwise regions as values: steps that one kernel carries out in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .store import KernelSpec

Array = np.ndarray[Any, np.dtype[Any]]
Step = tuple[Any, ...]
ELEMS: dict[Any, str] = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
TRANSCENDENTAL = frozenset(("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "erf", "pow"))


@dataclass(frozen=True)
class Region:
    """Elementwise steps; values are numbered, inputs first, then one a step.

    Attributes:
        n_inputs: arrays, or single numbers, that it reads.
        steps: (name, operands..., attributes...), as kernels/elementwise.py takes them.
        outputs: numbers of the values that it leaves.
    """

    n_inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Its class in the cost model."""
        return "transcendental" if any(step[0] in TRANSCENDENTAL for step in self.steps) else "map"

    def spec(self, elem: str, scalars: Sequence[bool]) -> KernelSpec:
        """The kernel for an element type and for which inputs are single numbers."""
        inputs = "".join("s" if scalar else "v" for scalar in scalars)
        return KernelSpec.of("elementwise", elem=elem, inputs=inputs, steps=self.steps, outputs=self.outputs)


# Name -> element type -> region; the op set registers its activations here.
ACTIVATIONS: dict[str, Callable[[str], Region]] = {}
