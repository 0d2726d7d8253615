"""Arithmetic, selection and reductions."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .values import I32, PLAIN, call_intrinsic, map_vectors, nearest, suffix, widest


def _float_intrinsic(name, n_args, doc):
    def codegen(context, builder, sig, args):
        ret = sig.return_type
        full = f"llvm.{name}.{suffix(ret.llvm)}"
        return map_vectors(builder, ret, sig.args, args, lambda *v: call_intrinsic(builder, full, ret.llvm, v))

    if n_args == 1:

        @intrinsic
        def fn(typingctx, a):
            return a(a), codegen
    elif n_args == 2:

        @intrinsic
        def fn(typingctx, a, b):
            return widest(a, b)(a, b), codegen
    else:

        @intrinsic
        def fn(typingctx, a, b, c):
            return widest(widest(a, b), c)(a, b, c), codegen

    fn.__doc__ = doc
    return fn


FMA = "fmuladd" if PLAIN else "fma"
fma = _float_intrinsic(FMA, 3, "a*b + c, rounded once where the target can.")
sqrt = _float_intrinsic("sqrt", 1, "Square root.")
absolute = _float_intrinsic("fabs", 1, "Absolute value.")
maximum = _float_intrinsic("maximum", 2, "The larger one; NaN if either is NaN.")
minimum = _float_intrinsic("minimum", 2, "The smaller one; NaN if either is NaN.")
max_number = _float_intrinsic("maxnum", 2, "The larger one; a NaN gives way.")


@intrinsic
def rint(typingctx, value):
    """Nearest integer, ties to even, as a float."""

    def codegen(context, builder, sig, args):
        return map_vectors(builder, value, [value], args, lambda v: nearest(builder, v))

    return value(value), codegen


@intrinsic
def round_i32(typingctx, value):
    """Nearest 32-bit integer, ties to even; the value must be in range."""
    ret = value.of("i32")

    def codegen(context, builder, sig, args):
        return map_vectors(builder, ret, [value], args, lambda v: builder.fptosi(nearest(builder, v), ret.llvm))

    return ret(value), codegen


@intrinsic
def select_less(typingctx, a, b, yes, no):
    """Lane by lane: yes where the integer a < b, else no."""

    def codegen(context, builder, sig, args):
        def one(a, b, yes, no):
            return builder.select(builder.icmp_signed("<", a, b), yes, no)

        return map_vectors(builder, sig.return_type, sig.args, args, one)

    return widest(yes, no)(a, b, yes, no), codegen


@intrinsic
def select_below(typingctx, a, b, yes, no):
    """Lane by lane: yes where the float a < b, else no (NaN: no)."""

    def codegen(context, builder, sig, args):
        def one(a, b, yes, no):
            return builder.select(builder.fcmp_ordered("<", a, b), yes, no)

        return map_vectors(builder, sig.return_type, sig.args, args, one)

    return widest(widest(a, b), widest(yes, no))(a, b, yes, no), codegen


def _reducer(combine, doc):
    """Fold halves onto each other: one fixed order on every machine."""

    @intrinsic
    def reduce(typingctx, value):
        def codegen(context, builder, sig, args):
            vec, lanes = args[0], 16
            while lanes > 1:
                lanes //= 2
                undef = ir.Constant(vec.type, ir.Undefined)
                low, high = (
                    builder.shuffle_vector(vec, undef, ir.Constant(ir.VectorType(I32, lanes), list(range(at, at + lanes))))
                    for at in (0, lanes)
                )
                vec = combine(builder, low, high)
            return builder.extract_element(vec, ir.Constant(I32, 0))

        number = {"f64": types.float64, "f32": types.float32}.get(value.elem, types.int32)
        return number(value), codegen

    reduce.__doc__ = doc
    return reduce


def _spreader(combine, doc):
    """Butterfly: every lane ends with the fold of all sixteen, in the order of `_reducer`."""

    @intrinsic
    def spread(typingctx, value):
        def one(builder, vec):
            undef, distance = ir.Constant(vec.type, ir.Undefined), 8
            while distance:
                swap = ir.Constant(ir.VectorType(I32, 16), [lane ^ distance for lane in range(16)])
                vec = combine(builder, vec, builder.shuffle_vector(vec, undef, swap))
                distance //= 2
            return vec

        def codegen(context, builder, sig, args):
            return map_vectors(builder, value, [value], args, lambda v: one(builder, v))

        return value(value), codegen

    spread.__doc__ = doc
    return spread


def _add(builder, a, b):
    return builder.add(a, b) if isinstance(a.type.element, ir.IntType) else builder.fadd(a, b)


def _max(builder, a, b):
    return call_intrinsic(builder, f"llvm.maximum.{suffix(a.type)}", a.type, [a, b])


reduce_add = _reducer(_add, "Sum of the sixteen lanes.")
reduce_max = _reducer(_max, "Largest of the sixteen lanes; NaN if any is.")
all_add = _spreader(_add, "The sum of a vector's sixteen lanes, in every lane.")
all_max = _spreader(_max, "The largest of a vector's sixteen lanes, in every lane; NaN if any is.")
