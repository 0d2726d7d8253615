"""The traced face: run a function once on symbols and keep the program that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .graph import Graph, Lowering, Node, Symbol
from .program import Program
from .spec import Spec, spec, spec_of


def trace(fn: Callable[..., Any], *specs: Any, lowering: Lowering = "core") -> Program:
    """Trace ``fn`` into a program.

    Args:
        fn: called once with one `Symbol` a spec; returns a symbol or a tuple or list of symbols.
        specs: `Spec` objects (see `spec`), or arrays that stand for their shape and dtype.
        lowering: ``"core"``: every op expanded into primitives, equal nodes merged, dead ones dropped.
            ``"plan"``: one node an op call, for a plan builder.

    Raises:
        InvalidArgument: ``fn`` returned something else, or a composite met a symbolic shape.
        ContextMismatch: symbols of two traces, or of another face, were mixed.
    """
    if lowering not in ("core", "plan"):
        raise InvalidArgument(f"trace: lowering: expected 'core' or 'plan', got {lowering!r}")
    graph = Graph(lowering)
    inputs = [graph.input(s if isinstance(s, Spec) else spec_of(np.asarray(s))) for s in specs]
    result = fn(*inputs)
    single = not isinstance(result, (tuple, list))
    outputs = [graph.symbol(value).node for value in ((result,) if single else result)]
    return Program(graph, [symbol.node for symbol in inputs], outputs, single)


__all__ = ["Graph", "Node", "Program", "Spec", "Symbol", "spec", "trace"]
