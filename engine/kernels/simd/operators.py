"""Operators between vectors, and shifts by a number."""

from __future__ import annotations

import operator

from numba import types
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global

from .values import ELEM, Vec, map_vectors, splat, widest

_BINARY = {
    operator.add: ("add", "fadd"),
    operator.sub: ("sub", "fsub"),
    operator.mul: ("mul", "fmul"),
    operator.truediv: (None, "fdiv"),
    operator.and_: ("and_", None),
    operator.or_: ("or_", None),
    operator.xor: ("xor", None),
}


def _register_binary(op, int_name, float_name):
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and all(isinstance(a, Vec) for a in args):
                a, b = args
                if (a.elem, a.lanes) == (b.elem, b.lanes) and (float_name if a.is_float else int_name):
                    return signature(widest(a, b), a, b)
            return None

    @lower_builtin(op, Vec, Vec)
    def _lower(context, builder, sig, args):
        name = float_name if sig.return_type.is_float else int_name
        return map_vectors(builder, sig.return_type, sig.args, args, getattr(builder, name))


for _op, (_int, _float) in _BINARY.items():
    _register_binary(_op, _int, _float)


def _register_shift(op, name):
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], Vec) and isinstance(args[1], types.Integer) and not args[0].is_float:
                return signature(args[0], args[0], types.int64)
            return None

    @lower_builtin(op, Vec, types.int64)
    def _lower(context, builder, sig, args):
        vec = sig.args[0]
        amount = args[1] if vec.elem == "i64" else builder.trunc(args[1], ELEM[vec.elem])
        amounts = splat(builder, vec.llvm, amount)
        return map_vectors(builder, vec, [vec], args[:1], lambda v: getattr(builder, name)(v, amounts))


_register_shift(operator.lshift, "shl")
_register_shift(operator.rshift, "lshr")
