"""Symbols, nodes and the graph they grow: what model code touches while it is traced.

A graph has one of two lowerings. `core`: every op is expanded into primitives. `plan`: one node an op call, never
the formula, for a builder that turns op calls into kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..errors import ContextMismatch, InvalidArgument
from .direct import OpLike
from .dtypes import Array, DType, dtype_name
from .namespace import SHAPES, Namespace, Value, constant_array
from .primitives import PRIMITIVES
from .spec import Spec, concrete, spec_of

Lowering = Literal["core", "plan"]


@dataclass(frozen=True, eq=False)
class Node:
    """One step of a program; compared by identity.

    Attributes:
        id: position in its graph.
        name: primitive (core), op or emitted name (plan), or ``input`` / ``constant``.
        inputs: nodes that it reads.
        operands: the op's name for each input (plan); absent optional operands have no entry.
        attrs: everything else, normalised (axes >= 0).
        value: the number or array of a constant, or the quantised tensor, by identity.
        op: the op that was called (plan).
        effect: never dropped, even when nothing reads it.
    """

    id: int
    name: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    shape: tuple[Any, ...]
    dtype: DType
    operands: tuple[str, ...] = ()
    value: Any = None
    op: OpLike | None = None
    effect: bool = False

    def operand(self, name: str) -> Node | None:
        """The input that the op calls ``name``; None for an absent optional one."""
        return next((node for node, operand in zip(self.inputs, self.operands, strict=True) if operand == name), None)

    @property
    def is_capture(self) -> bool:
        """A whole host array or quantised tensor used as an operand: it is bound, not computed."""
        return self.name == "constant" and tuple(self.shape) != ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        inputs = ", ".join(f"%{node.id}" for node in self.inputs)
        attrs = "".join(f", {key}={value!r}" for key, value in self.attrs.items())
        return f"%{self.id} = {self.name}({inputs}{attrs}): {Spec(self.shape, self.dtype)!r}"


class Symbol:
    """A value of a traced program: shape and dtype, no numbers. Any op takes it in place of an array."""

    __slots__ = ("graph", "node")
    __array_ufunc__ = None  # so that ndarray + Symbol reaches Symbol.__radd__
    __array_priority__ = 1000

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node

    @property
    def __face__(self) -> Graph:
        return self.graph

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    def __repr__(self) -> str:
        return f"Symbol({self.node!r})"

    def __add__(self, other: Any) -> Any:
        return self.graph.binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.graph.binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.graph.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.graph.binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.graph.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.graph.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.graph.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.graph.binary("div", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self.graph.binary("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self.graph.binary("matmul", other, self)

    def __neg__(self) -> Symbol:
        return self.graph.record_primitive("neg", (self,))

    def __bool__(self) -> bool:
        raise InvalidArgument("Symbol: a traced value has no truth value: decide from shapes and config, or use select()")

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise ContextMismatch("Symbol: a traced value has no numbers: expected an op of llamita.ops, got a NumPy call")


@dataclass(eq=False)
class Graph(Namespace):
    """A growing program. In the core lowering it is itself the primitive namespace that formulas run over."""

    lowering: Lowering = "core"
    nodes: list[Node] = field(default_factory=list)
    _captured: dict[int, Symbol] = field(default_factory=dict)
    _shapes: dict[Any, Spec] = field(default_factory=dict)

    def copy(self) -> Graph:
        """A graph that starts with the same nodes and grows on its own."""
        out = Graph(self.lowering, list(self.nodes))
        out._captured = {key: Symbol(out, symbol.node) for key, symbol in self._captured.items()}
        return out

    # ----- growing -----
    def add_node(self, name: str, inputs: Sequence[Symbol], attrs: Mapping[str, Any], spec: Spec, **extra: Any) -> Symbol:
        nodes = tuple(symbol.node for symbol in inputs)
        node = Node(len(self.nodes), name, nodes, dict(attrs), spec.shape, spec.dtype, **extra)
        self.nodes.append(node)
        return Symbol(self, node)

    def input(self, spec: Spec) -> Symbol:
        return self.add_node("input", (), {}, spec)

    def symbol(self, value: Any, op: str = "trace") -> Symbol:
        """A value as a symbol of this graph: arrays and quantised tensors become constants, by identity."""
        if isinstance(value, Symbol):
            if value.graph is not self:
                raise ContextMismatch(f"{op}: context mismatch: expected symbols of one trace, got one of another")
            return value
        if getattr(value, "__face__", None) is not None:
            raise ContextMismatch(f"{op}: context mismatch: expected traced values or arrays, got an eager value")
        if not hasattr(value, "shape"):
            raise InvalidArgument(f"{op}: operand: expected a traced value or an array, got {type(value).__name__}")
        if isinstance(value, (np.generic, np.ndarray)) and value.shape == ():
            return self.constant(np.asarray(value)[()], value.dtype)
        if id(value) not in self._captured:
            self._captured[id(value)] = self.add_node("constant", (), {}, spec_of(value), value=value)
        return self._captured[id(value)]

    def emit(
        self, name: str, inputs: Sequence[Any], attrs: Mapping[str, Any], shape: Sequence[int], dtype: Any, effect: bool = True
    ) -> Symbol:
        """Record a special step that is no op (a cache append, a read at a register's position).

        Args:
            effect: keep the step even when nothing reads its result, and never reorder it.
        """
        if self.lowering != "plan":
            raise ContextMismatch(f"{name}: emit: expected the plan lowering, got {self.lowering!r}")
        symbols = [self.symbol(value, name) for value in inputs]
        return self.add_node(name, symbols, attrs, Spec(tuple(shape), np.dtype(dtype)), effect=effect)

    # ----- ops -----
    def call(self, op: OpLike, bound: Sequence[Any]) -> Symbol:
        """An op was called on symbols of this graph."""
        if self.lowering == "core":
            if op.composite:
                for name, value in op.operands_of(bound):
                    concrete(value.shape, op.name, name if not isinstance(value, Symbol) else f"%{value.node.id}")
            return self.symbol(op.expand(self, bound), op.name)
        checked = op.check(bound)
        operands = [(name, self.symbol(value, op.name)) for name, value in op.operands_of(checked)]
        attrs = op.attrs_of(checked)
        spec = self._result_spec(op, checked, operands, attrs)
        names = tuple(name for name, _ in operands)
        return self.add_node(op.name, [symbol for _, symbol in operands], attrs, spec, operands=names, op=op)

    def _result_spec(self, op: OpLike, bound: Sequence[Any], operands: list[tuple[str, Symbol]], attrs: Mapping[str, Any]) -> Spec:
        # The formula over shapes is the shape rule; layers repeat, so each distinct call is inferred once.
        key = (op.name, tuple((name, s.shape, s.dtype, s.node.value is None) for name, s in operands), repr(attrs))
        if key not in self._shapes:
            self._shapes[key] = spec_of(op.expand(SHAPES, bound))
        return self._shapes[key]

    def record_primitive(self, name: str, values: Sequence[Any]) -> Symbol:
        """A primitive by name, in either lowering."""
        if self.lowering == "core":
            return self.symbol(self.arithmetic(name, *values), name)
        symbols = [self.symbol(value, name) for value in values]
        spec: Spec = SHAPES.arithmetic(name, *(Spec(s.shape, s.dtype) for s in symbols))
        return self.add_node(name, symbols, {}, spec, operands=("a", "b")[: len(symbols)] if len(symbols) == 2 else ("x",))

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """An operator between a symbol and a symbol, array or number."""
        dtype = a.dtype if isinstance(a, Symbol) else b.dtype
        a, b = (constant_array(v, dtype) if isinstance(v, (int, float)) else v for v in (a, b))
        if not (hasattr(a, "dtype") and hasattr(b, "dtype")):
            return NotImplemented
        return self.record_primitive(name, (a, b))

    # ----- the primitive namespace (core) -----
    def apply(self, name: str, operands: tuple[Value, ...], **attrs: Any) -> Symbol:
        symbols = [self.symbol(value, name) for value in operands]
        spec = PRIMITIVES[name].infer(*(Spec(s.shape, s.dtype) for s in symbols), **attrs)
        return self.add_node(name, symbols, attrs, spec)

    def constant(self, value: Any, dtype: DType) -> Symbol:
        array = constant_array(value, dtype) if dtype.kind in "fciu" else np.asarray(value, dtype)
        return self.add_node("constant", (), {}, Spec((), dtype), value=array)

    def array(self, value: Array) -> Symbol:
        return self.symbol(value)

    def __repr__(self) -> str:
        return f"Graph({self.lowering}, {len(self.nodes)} nodes)"


def describe(node: Node) -> str:
    """One line for a person: name, shape and dtype."""
    return f"{node.name} {dtype_name(node.dtype)}{list(node.shape)}"
