"""What an op is: a name, one formula over primitives, validation, and the fused kernel to ask for first.

The face of the operands decides what a call does: plain arrays run at once (direct), tracked values record
(eager), symbols grow a program (traced). The formula is the same for all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec

import numpy as np

from ..errors import InvalidArgument
from ..faces import direct
from ..faces.dtypes import HALF, DType, boolean, f32
from ..faces.namespace import Namespace, Value, constant_array
from ..faces.spec import spec_of
from ..runtime.engine import Engine
from .mixed import call_with_quantized, is_quantized

P = ParamSpec("P")

Check = Callable[..., Sequence[Any]]
_ndarray = np.ndarray
_NUMBERS = (bool, int, float, complex)

OPS: dict[str, Op[Any]] = {}


class Op(Generic[P]):
    """One op of the set; calling it dispatches on the face of its operands.

    Attributes:
        name: what programs, plans and messages call it.
        formula: the composite, ``formula(namespace, *operands, **attrs)``.
        composite: made of several primitives, so it needs concrete shapes when traced.
        has_hook: an engine may have a fused kernel for it.
        moves_data: computes nothing, so a quantised operand gives a quantised result.
        parameters: names of operands and attributes, in order.
    """

    def __init__(
        self,
        formula: Callable[Concatenate[Namespace, P], Value],
        check: Check | None = None,
        hook: tuple[str, ...] = (),
        composite: bool = True,
        moves_data: bool = False,
        takes_quantized: bool = False,
    ) -> None:
        self.name = formula.__name__.rstrip("_")
        self.formula = formula
        self.composite = composite
        self.__doc__ = formula.__doc__
        self.moves_data = moves_data
        self._check, self._takes_quantized = check, takes_quantized
        self.has_hook, self._hook, self._hook_first = bool(hook), "".join(hook[:1]), hook[1:]
        parameters = list(inspect.signature(formula).parameters.values())[1:]
        self.parameters = tuple(p.name for p in parameters)
        self._defaults = tuple(p.default for p in parameters)
        self._operands = tuple(i for i, p in enumerate(parameters) if "Value" in str(p.annotation))
        self._sequences = frozenset(i for i in self._operands if "Sequence" in str(parameters[i].annotation))
        self._operand_defaults = tuple((i, self._defaults[i]) for i in self._operands)
        self._n = len(parameters)
        self._rest = tuple(self._defaults[given:] for given in range(self._n + 1))
        self._positions = {name: position for position, name in enumerate(self.parameters)}
        self._required = max((i + 1 for i, p in enumerate(parameters) if p.default is inspect.Parameter.empty), default=0)

    def __repr__(self) -> str:
        return f"<op {self.name}({', '.join(self.parameters)})>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        bound: Sequence[Any] = args if len(args) == self._n and not kwargs else self._bind(args, kwargs)
        for position, default in self._operand_defaults:
            value = bound[position]
            if type(value) is not _ndarray and not (value is None is default):
                return self._call_any(list(bound))
        return direct.call(self, bound)

    def _call_any(self, bound: list[Any]) -> Any:
        """A call with operands of any kind: numbers, quantised, tracked or traced ones."""
        values = self._present(bound)
        if any(isinstance(value, _NUMBERS) for value in values):
            dtype = next((s.dtype for s in map(spec_of, (v for v in values if hasattr(v, "shape"))) if s.dtype != boolean), None)
            for position in self._operands:
                if isinstance(bound[position], _NUMBERS):
                    bound[position] = _as_array(bound[position], dtype)
        if not self._takes_quantized and any(map(is_quantized, values)):
            return call_with_quantized(self, bound)
        for value in values:
            if hasattr(value, "__face__"):
                return value.__face__.call(self, bound)
        return direct.call(self, bound)

    def call_bound(self, bound: Sequence[Any]) -> Any:
        """Dispatch resolved operands on their face."""
        for _, value in self.operands_of(bound):
            face = getattr(value, "__face__", None)
            if face is not None:
                return face.call(self, bound)
        return direct.call(self, bound)

    # ----- binding -----
    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        given = len(args)
        if self._required <= given <= self._n and not kwargs:
            return args + self._rest[given]
        if given > self._n:
            raise InvalidArgument(f"{self.name}: arguments: expected at most {self._n} ({', '.join(self.parameters)}), got {given}")
        bound = [*args, *self._rest[given]]
        for name, value in kwargs.items():
            position = self._positions.get(name, -1)
            if position < given:
                if position < 0:
                    raise InvalidArgument(f"{self.name}: arguments: expected {', '.join(self.parameters)}, got {name!r}")
                raise InvalidArgument(f"{self.name}: arguments: expected {name!r} once, got it by position and by name")
            bound[position] = value
        if given < self._required and any(value is inspect.Parameter.empty for value in bound):
            missing = next(name for name, value in zip(self.parameters, bound, strict=True) if value is inspect.Parameter.empty)
            raise InvalidArgument(f"{self.name}: arguments: expected {', '.join(self.parameters)}, {missing!r} is missing")
        return bound

    def _present(self, bound: Sequence[Any]) -> list[Any]:
        """The operands that were given, each an array, a number or something else with a shape."""
        values: list[Any] = []
        for position, default in self._operand_defaults:
            value = bound[position]
            if hasattr(value, "shape") or isinstance(value, _NUMBERS):
                values.append(value)
            elif position in self._sequences and isinstance(value, (tuple, list)):
                values.extend(value)
            elif not (value is None is default):
                name = self.parameters[position]
                raise InvalidArgument(f"{self.name}: {name}: expected an array or a number, got {type(value).__name__}")
        return values

    # ----- what faces ask -----
    def operands_of(self, bound: Sequence[Any]) -> list[tuple[str, Any]]:
        """(parameter, value) of every operand present; an operand that is a sequence gives one pair an item."""
        found: list[tuple[str, Any]] = []
        for position in self._operands:
            value = bound[position]
            if isinstance(value, (tuple, list)):
                found.extend((self.parameters[position], item) for item in value)
            elif value is not None:
                found.append((self.parameters[position], value))
        return found

    def with_operands(self, bound: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """``bound`` with every present operand changed."""
        out = list(bound)
        for position in self._operands:
            value = out[position]
            if isinstance(value, (tuple, list)):
                out[position] = tuple(change(item) for item in value)
            elif value is not None:
                out[position] = change(value)
        return out

    def attrs_of(self, bound: Sequence[Any]) -> dict[str, Any]:
        """Attributes (all that is no operand) by name."""
        return {name: bound[i] for i, name in enumerate(self.parameters) if i not in self._operands}

    def ask_hook(self, engine: Engine, bound: Sequence[Any]) -> Any:
        """The engine's fused result, or None."""
        if not self.has_hook:
            return None
        hook = getattr(engine, self._hook)
        return hook(*self._hook_first, *bound) if self._hook_first else hook(*bound)

    def check(self, bound: Sequence[Any]) -> list[Any]:
        """Validate operands and attributes; returns them normalised."""
        return list(bound) if self._check is None else list(self._check(self.name, *bound))

    def expand(self, space: Namespace, bound: Sequence[Any]) -> Value:
        """Validate, then run the formula over ``space``; half types compute in float32 and round once at the end."""
        checked = bound if self._check is None else self._check(self.name, *bound)
        formula: Callable[..., Value] = self.formula
        if not self.moves_data:
            for position in self._operands:
                if getattr(checked[position], "dtype", None) in HALF:
                    return self._expand_wide(space, checked, checked[position].dtype)
        return formula(space, *checked)

    def _expand_wide(self, space: Namespace, bound: Sequence[Any], half: DType) -> Value:
        wide = self.with_operands(bound, lambda v: space.cast(v, f32) if getattr(v, "dtype", None) in HALF else v)
        formula: Callable[..., Value] = self.formula
        result = formula(space, *wide)
        return space.cast(result, half) if space.dtype(result) == f32 else result


def _as_array(number: Any, dtype: DType | None) -> Any:
    if dtype is None:
        return np.asarray(number)
    if isinstance(number, complex) and dtype.kind != "c":
        raise InvalidArgument(f"operand: expected a real number for {dtype}, got {number!r}")
    return constant_array(number, dtype)


def define(
    *,
    check: Check | None = None,
    hook: tuple[str, ...] = (),
    composite: bool = True,
    moves_data: bool = False,
    takes_quantized: bool = False,
) -> Callable[[Callable[Concatenate[Namespace, P], Value]], Op[P]]:
    """Decorator that makes a formula an op and registers it in `OPS`.

    Parameters annotated ``Value`` (also ``Value | None``, ``Sequence[Value]``) are operands, the others attributes.

    Args:
        check: ``check(op_name, *bound)`` returns the bound values normalised, or raises the named error.
        hook: the method of the engine that may have a fused kernel, then what it takes before the operands.
        composite: False for an op that is a single primitive.
        moves_data: no arithmetic: half operands stay as they are (others are computed in float32).
        takes_quantized: the formula deals with quantised operands itself.
    """

    def wrap(formula: Callable[Concatenate[Namespace, P], Value]) -> Op[P]:
        op = Op(formula, check, hook, composite, moves_data, takes_quantized)
        OPS[op.name] = op
        return op

    return wrap
