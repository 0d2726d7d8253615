"""The reference of fused regions: one element after the other, one step after the other, in Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from llamita.engine.faces.traced import Program


def _pick(better: Callable[[float, float], bool]) -> Callable[[float, float], float]:
    def pick(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):  # min() and max() would answer by the order of their arguments
            return math.nan
        return a if better(a, b) else b

    return pick


_larger, _smaller = _pick(lambda a, b: a > b), _pick(lambda a, b: a < b)
_STEPS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "conj": lambda a: a,
    "abs": abs,
    "maximum": _larger,
    "minimum": _smaller,
    "clamp": lambda x, lower, upper: _smaller(_larger(x, lower), upper),
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "pow": math.pow,
}


def interpret(program: Program, *arrays: np.ndarray) -> np.ndarray:
    """A program that is one region of float64 arrays and constants, all of one shape, for finite results."""
    (region,) = program.fusion_plan
    sources = {node: array.reshape(-1) for node, array in zip(program.inputs, arrays, strict=True)}
    out = np.empty(arrays[0].size)
    for at in range(out.size):
        values: list[float] = []
        for node, operands in zip(region.nodes, region.operands, strict=True):
            numbers = []
            for operand in operands:
                if isinstance(operand, int):
                    numbers.append(values[operand])
                elif hasattr(operand, "kind"):
                    numbers.append(float(sources[operand.node][at]))
                else:
                    numbers.append(float(operand.value))
            values.append(_STEPS[node.name](*numbers, **node.attrs))
        out[at] = values[-1]
    return out.reshape(arrays[0].shape)
