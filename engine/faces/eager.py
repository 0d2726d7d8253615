"""The eager face: values that run at once and remember how they came about.

    x = tracked(np.ones((2, 3)))
    y = ops.reduce_sum(ops.softmax(x, -1))
    (dx,) = grad(y, [x])

A fused kernel is asked only when nothing would be lost: with any tracked operand the op's composite runs, and every
primitive of it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np

from ..errors import ContextMismatch, InvalidArgument, MissingGradient, ShapeMismatch
from . import direct
from .backward import Walk
from .checkpoint import Checkpoints, is_balanced
from .direct import DIRECT, OpLike
from .dtypes import Array, DType
from .infer import require_same_dtype
from .modes import grad_recording
from .namespace import Namespace, Value, constant_array
from .primitives import PRIMITIVES
from .spec import Shape, spec_of
from .tape import Parent, TapeNode
from .vjp import is_differentiable

_capture: ContextVar[list[str] | None] = ContextVar("capture", default=None)


class Tracked:
    """An array that ops record. Made by `tracked` (differentiable) or as the result of an op."""

    __slots__ = ("node", "recipe", "value")
    __face__: ClassVar[EagerFace]
    __array_ufunc__ = None  # so that ndarray + Tracked reaches Tracked.__radd__

    def __init__(self, value: Array, node: TapeNode | None = None, recipe: Callable[[], Array] | None = None) -> None:
        self.value = value
        self.node = node
        self.recipe = recipe

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient can reach this value."""
        return self.node is not None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = tuple(self.value.shape)
        return shape

    @property
    def dtype(self) -> DType:
        return spec_of(self.value).dtype

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    def numpy(self) -> Array:
        """The numbers."""
        return self.value

    def detach(self) -> Tracked:
        """The same numbers, untracked."""
        return Tracked(self.value)

    def __repr__(self) -> str:
        return f"Tracked({spec_of(self.value)!r}, requires_grad={self.requires_grad})"

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise ContextMismatch("Tracked: NumPy would lose the gradient: expected an op of llamita.ops; .numpy() gives the numbers")

    def __bool__(self) -> bool:
        return bool(self.value)

    def __add__(self, other: Any) -> Any:
        return EAGER.operator("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return EAGER.operator("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return EAGER.operator("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return EAGER.operator("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return EAGER.operator("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return EAGER.operator("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return EAGER.operator("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return EAGER.operator("div", other, self)

    def __matmul__(self, other: Any) -> Any:
        return EAGER.operator("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return EAGER.operator("matmul", other, self)

    def __neg__(self) -> Any:
        return EAGER.operator("neg", self)


def tracked(array: Any) -> Tracked:
    """A differentiable leaf from a float array.

    Raises:
        MissingGradient: a quantised tensor (frozen), or a dtype without gradients.
    """
    if getattr(array, "is_quantized", False):
        raise MissingGradient("tracked: quantised weights are frozen: expected a dense float array; dequantise it first")
    if isinstance(array, Tracked):
        array = array.value
    value = np.asarray(array)
    if not is_differentiable(value.dtype):
        raise MissingGradient(f"tracked: gradients are defined for real floats: expected F16, BF16, F32 or F64, got {value.dtype}")
    return Tracked(value, TapeNode("leaf", (), {}, value.shape, value.dtype, value))


class EagerFace(Namespace):
    """Runs primitives at once and records those that a gradient may need."""

    def call(self, op: OpLike, bound: Sequence[Any]) -> Tracked:
        """An op was called and at least one operand is a `Tracked`."""
        values = [value for _, value in op.operands_of(bound)]
        for x in values:
            if type(x) is not Tracked and hasattr(x, "__face__"):
                raise ContextMismatch(f"{op.name}: context mismatch: expected values of one face, got an eager and a traced one")
        if self.fast_path_allowed(values):
            return Tracked(direct.call(op, _unwrapped(bound)))
        with np.errstate(all="ignore"):
            result = op.expand(self, bound)
        return result if isinstance(result, Tracked) else Tracked(result)

    @staticmethod
    def fast_path_allowed(operands: Sequence[Any]) -> bool:
        """Whether a fused kernel would lose no record: nothing is recorded, or no operand is tracked."""
        if not grad_recording.get():
            return True
        if _capture.get() is not None:
            return False
        for x in operands:
            if type(x) is Tracked and x.node is not None:
                return False
        return True

    def operator(self, name: str, *operands: Any) -> Any:
        """Python's operators; numbers take the type of the tracked side."""
        dtype = next(x.dtype for x in operands if isinstance(x, Tracked))
        values = [constant_array(x, dtype) if isinstance(x, (int, float)) else x for x in operands]
        if not all(hasattr(x, "dtype") for x in values):
            return NotImplemented
        with np.errstate(all="ignore"):
            return self.arithmetic(name, *values)

    # ----- the primitive namespace -----
    def apply(self, name: str, operands: tuple[Value, ...], **attrs: Any) -> Tracked:
        primitive = PRIMITIVES[name]
        raw = tuple(x.value if isinstance(x, Tracked) else x for x in operands)
        if operands:
            primitive.infer(*map(spec_of, raw), **attrs)
        value = np.asarray(primitive.evaluate(*raw, **attrs))
        captured = _capture.get()
        if captured is not None:
            captured.append(name)
        parents = [x.node if isinstance(x, Tracked) else None for x in operands]
        if not grad_recording.get() or all(node is None for node in parents) or not is_differentiable(value.dtype):
            return Tracked(value, None, _recipe(name, operands, attrs))
        saved = tuple(_parent(x) for x in operands)
        node = TapeNode(name, saved, attrs, value.shape, value.dtype, value)
        if is_balanced() and primitive.memory_bound and node.can_be_recomputed:
            node.value = None
        return Tracked(value, node)

    def array(self, value: Array) -> Tracked:
        return Tracked(value)


EAGER = Tracked.__face__ = EagerFace()


def _unwrapped(bound: Sequence[Any]) -> list[Any]:
    return [x.value if type(x) is Tracked else tuple(_unwrapped(x)) if isinstance(x, (tuple, list)) else x for x in bound]


def _parent(x: Any) -> Parent:
    if not isinstance(x, Tracked):
        return Parent(None, x, None, spec_of(x))
    if x.node is not None:
        return Parent(x.node, None, None, spec_of(x.value))
    return Parent(None, None if x.recipe else x.value, x.recipe, spec_of(x.value))


def _recipe(name: str, operands: tuple[Value, ...], attrs: dict[str, Any]) -> Callable[[], Array] | None:
    """How to make an untracked value again: a dequantised weight is decoded anew in backward rather than kept."""
    if name != "dequantize" and not any(isinstance(x, Tracked) and x.recipe for x in operands):
        return None
    makers = [x.recipe or (lambda v=x.value: v) if isinstance(x, Tracked) else (lambda v=x: v) for x in operands]
    return lambda: PRIMITIVES[name].evaluate(*(make() for make in makers), **attrs)


@contextmanager
def capture_primitives() -> Iterator[list[str]]:
    """Names of the primitives that the eager face runs inside; turns the fused fast path off, also for untracked values."""
    names: list[str] = []
    token = _capture.set(names)
    try:
        yield names
    finally:
        _capture.reset(token)


class _View:
    """A tape node for the rules: arrays, or tracked values when the gradient itself is to be differentiated."""

    def __init__(self, node: TapeNode, checkpoints: Checkpoints, create_graph: bool) -> None:
        self._node, self._checkpoints, self._create_graph = node, checkpoints, create_graph

    @property
    def attrs(self) -> Any:
        return self._node.attrs

    @property
    def y(self) -> Value:
        value = self._checkpoints.value(self._node)
        return Tracked(value, self._node) if self._create_graph else value

    def shape(self, position: int) -> Shape:
        return self._node.parents[position].spec.shape

    def dtype(self, position: int) -> DType:
        return self._node.parents[position].spec.dtype

    def x(self, position: int) -> Value:
        parent = self._node.parents[position]
        if parent.node is None:
            value = parent.make()
            return Tracked(value) if self._create_graph else value
        value = self._checkpoints.value(parent.node)
        return Tracked(value, parent.node) if self._create_graph else value


def grad(
    output: Tracked | Sequence[Tracked],
    inputs: Sequence[Tracked],
    cotangent: Any = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tracked, ...]:
    """Gradients of ``output`` with respect to ``inputs`` (reverse mode).

    Args:
        output: one tracked value or several.
        inputs: tracked values that the output was computed from; the gradient has each one's shape and dtype.
        cotangent: gradient arriving at the output, of its shape (a sequence for several outputs); None: 1, for a
            single-element output.
        create_graph: record the gradient's own computation, so that it can be differentiated again.
        allow_unused: give zeros for an input that the output does not depend on, instead of raising.

    Raises:
        MissingGradient: a primitive has no rule, an input is untracked or quantised, or the output does not depend on it.
        ShapeMismatch, DTypeMismatch, InvalidArgument: the cotangent does not match the output.
    """
    if isinstance(inputs, Tracked):
        raise InvalidArgument("grad: inputs: expected a sequence of tracked values, got a single one; put it into a list")
    outputs = [output] if isinstance(output, Tracked) else list(output)
    cotangents = [cotangent] if isinstance(output, Tracked) else [None] * len(outputs) if cotangent is None else list(cotangent)
    if len(cotangents) != len(outputs):
        raise InvalidArgument(f"grad: cotangent: expected one for each of {len(outputs)} outputs, got {len(cotangents)}")
    space: Namespace = EAGER if create_graph else DIRECT
    wrt = [_require_node(x, f"input {i}") for i, x in enumerate(inputs)]
    seeds = []
    for i, (y, g) in enumerate(zip(outputs, cotangents, strict=True)):
        node = _require_node(y, f"output {i}")
        seed = _seed(y, g)
        seeds.append((node, seed if create_graph else seed.value))
    checkpoints = Checkpoints()
    walk: Walk[TapeNode] = Walk(
        space, lambda n: [p.node for p in n.parents], lambda n: _View(n, checkpoints, create_graph), checkpoints.done
    )
    with np.errstate(all="ignore"):
        checkpoints.expect(walk.needed([node for node, _ in seeds], wrt))
        found = walk.run(seeds, wrt)
    checkpoints.close()
    results = []
    for i, (x, g) in enumerate(zip(inputs, found, strict=True)):
        if g is None:
            if not allow_unused and x.value.size:
                raise MissingGradient(f"grad: input {i}: the output does not depend on it; allow_unused=True gives zeros")
            g = np.zeros(x.value.shape, x.value.dtype)
        results.append(g if isinstance(g, Tracked) else Tracked(np.asarray(g)))
    return tuple(results)


def _require_node(x: Any, what: str) -> TapeNode:
    if getattr(x, "is_quantized", False):
        raise MissingGradient(f"grad: {what}: quantised weights are frozen: a gradient reaches activations only")
    if not isinstance(x, Tracked) or x.node is None:
        got = "an untracked one" if isinstance(x, Tracked) else type(x).__name__
        raise MissingGradient(f"grad: {what}: expected a tracked value, got {got}")
    return x.node


def _seed(y: Tracked, cotangent: Any) -> Tracked:
    if cotangent is None:
        if y.value.size != 1:
            raise InvalidArgument(f"grad: cotangent: expected one for an output of shape {y.shape}; only a single element defaults to 1")
        one = Tracked(np.ones(y.shape, np.float32))
        return Tracked(PRIMITIVES["cast"].evaluate(one.value, y.dtype))
    seed = cotangent if isinstance(cotangent, Tracked) else Tracked(np.asarray(cotangent))
    require_same_dtype("grad: cotangent", spec_of(y), spec_of(seed))
    if seed.shape != y.shape:
        raise ShapeMismatch(f"grad: cotangent: expected shape {y.shape}, got {seed.shape}")
    return seed
