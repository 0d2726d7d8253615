"""Constants, and conversions between element types."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .values import I32, Vec, float_to_half, half_to_float, join, map_vectors, splat


def zeros(elem, count=1, rows=1):
    """A function `() -> Vec(elem, 16, count, rows)` of zeros."""
    vec = Vec(elem, 16, count, rows)

    @intrinsic
    def make(typingctx):
        def codegen(context, builder, sig, args):
            return join(builder, vec, [ir.Constant(vec.llvm, [0] * 16)] * vec.size)

        return vec(), codegen

    return make


@intrinsic
def splat_i32(typingctx, value):
    """Sixteen copies of an integer, truncated to 32 bits."""
    vec = Vec("i32", 16)

    def codegen(context, builder, sig, args):
        return splat(builder, vec.llvm, builder.trunc(args[0], I32))

    return vec(types.int64), codegen


@intrinsic
def splat_f32(typingctx, value):
    """Sixteen copies of a float."""
    vec = Vec("f32", 16)

    def codegen(context, builder, sig, args):
        return splat(builder, vec.llvm, args[0])

    return vec(types.float32), codegen


def lane_numbers(rows=1):
    """A function `() -> Vec("i32", 16, 1, rows)`: the numbers 0, 1, 2, ... in order, row by row."""
    vec = Vec("i32", 16, 1, rows)

    @intrinsic
    def make(typingctx):
        def codegen(context, builder, sig, args):
            return join(builder, vec, [ir.Constant(vec.llvm, list(range(16 * r, 16 * r + 16))) for r in range(rows)])

        return vec(), codegen

    return make


def _converter(to_elem, instruction, doc):
    @intrinsic
    def convert(typingctx, value):
        if not isinstance(value, Vec):
            return None
        ret = value.of(to_elem)

        def codegen(context, builder, sig, args):
            if callable(instruction):
                return map_vectors(builder, ret, [value], args, lambda v: instruction(builder, v))
            return map_vectors(builder, ret, [value], args, lambda v: getattr(builder, instruction)(v, ret.llvm))

        return ret(value), codegen

    convert.__doc__ = doc
    return convert


to_f32 = _converter("f32", "sitofp", "Signed integers to float32.")
widen_f32 = _converter("f32", half_to_float, "Halves to float32.")
narrow_f16 = _converter("f16", float_to_half, "float32 to halves, nearest even.")
widen_u8 = _converter("i32", "zext", "Unsigned bytes or words to 32-bit integers.")
widen_i8 = _converter("i32", "sext", "Signed bytes or words to 32-bit integers.")
narrow_i8 = _converter("i8", "trunc", "The low bytes of integers.")
bits_f32 = _converter("f32", "bitcast", "Reinterpret 32-bit integers as floats.")
bits_i32 = _converter("i32", "bitcast", "Reinterpret floats as 32-bit integers.")


@intrinsic
def as_bytes(typingctx, value):
    """Reinterpret sixteen 32-bit integers as 64 bytes."""
    ret = value.of("i8", 64)

    def codegen(context, builder, sig, args):
        return map_vectors(builder, ret, [value], args, lambda v: builder.bitcast(v, ret.llvm))

    return ret(value), codegen


@intrinsic
def as_words(typingctx, value):
    """Reinterpret 64 bytes as sixteen 32-bit integers."""
    ret = value.of("i32", 16)

    def codegen(context, builder, sig, args):
        return map_vectors(builder, ret, [value], args, lambda v: builder.bitcast(v, ret.llvm))

    return ret(value), codegen
