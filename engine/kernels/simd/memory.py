"""Loads and stores: vectors, tiles and numbers at raw addresses."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .values import ELEM, I8, I16, I32, I64, Vec, float_to_half, half_to_float, join, parts_of, pointer, splat


def _loader(elem, lanes):
    vec = Vec(elem, lanes)

    @intrinsic
    def load(typingctx, addr):
        def codegen(context, builder, sig, args):
            return builder.load(pointer(builder, args[0], vec.llvm), align=1)

        return vec(types.int64), codegen

    return load


load_i8x64 = _loader("i8", 64)
load_i8x16 = _loader("i8", 16)
load_i16x16 = _loader("i16", 16)
load_i32x16 = _loader("i32", 16)
load_f16x16 = _loader("f16", 16)
load_f32x16 = _loader("f32", 16)


@intrinsic
def store(typingctx, addr, value):
    """Write a plain vector at an address, unaligned."""

    def codegen(context, builder, sig, args):
        builder.store(args[1], pointer(builder, args[0], sig.args[1].llvm), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, value), codegen


def _scalar_access(number, llvm_type):
    @intrinsic
    def get(typingctx, addr):
        def codegen(context, builder, sig, args):
            return builder.load(pointer(builder, args[0], llvm_type), align=1)

        return number(types.int64), codegen

    @intrinsic
    def put(typingctx, addr, value):
        def codegen(context, builder, sig, args):
            value = context.cast(builder, args[1], sig.args[1], number)
            builder.store(value, pointer(builder, args[0], llvm_type), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), codegen

    return get, put


get_i64, put_i64 = _scalar_access(types.int64, I64)
get_i32, put_i32 = _scalar_access(types.int32, I32)
get_i8, put_i8 = _scalar_access(types.int8, I8)
get_u8, put_u8 = _scalar_access(types.uint8, I8)
get_u16, put_u16 = _scalar_access(types.uint16, I16)
get_i16, put_i16 = _scalar_access(types.int16, I16)
get_f32, put_f32 = _scalar_access(types.float32, ir.FloatType())


@intrinsic
def get_f16(typingctx, addr):
    """The half at an address, as float32."""

    def codegen(context, builder, sig, args):
        return half_to_float(builder, builder.load(pointer(builder, args[0], ir.HalfType()), align=1))

    return types.float32(types.int64), codegen


@intrinsic
def put_f16(typingctx, addr, value):
    """Round a float32 to half (nearest even) and write it."""

    def codegen(context, builder, sig, args):
        builder.store(float_to_half(builder, args[1]), pointer(builder, args[0], ir.HalfType()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


def broadcast_loader(elem, count):
    """A function `(addr, stride) -> Vec(elem, 16, count)`: vector t repeats the element at addr + t*stride (bytes)."""
    vec = Vec(elem, 16, count)
    scalar = ELEM[elem]

    @intrinsic
    def load(typingctx, addr, stride):
        def codegen(context, builder, sig, args):
            parts, at = [], args[0]
            for i in range(count):
                value = builder.load(pointer(builder, at, scalar), align=1)
                parts.append(splat(builder, vec.llvm, value))
                if i + 1 < count:
                    at = builder.add(at, args[1])
            return join(builder, vec, parts)

        return vec(types.int64, types.int64), codegen

    return load


def row_loader(elem, lanes, rows):
    """A function `(addr, stride) -> Vec(elem, lanes, 1, rows)`: row r is read at addr + r*stride (bytes)."""
    vec = Vec(elem, lanes, 1, rows)

    @intrinsic
    def load(typingctx, addr, stride):
        def codegen(context, builder, sig, args):
            at, parts = args[0], []
            for _ in range(rows):
                parts.append(builder.load(pointer(builder, at, vec.llvm), align=1))
                at = builder.add(at, args[1])
            return join(builder, vec, parts)

        return vec(types.int64, types.int64), codegen

    return load


def _places(builder, count, rows, addr, stride):
    """Addresses of a grid's vectors: vector (r, t) at addr + 64*r + t*stride."""
    columns = [addr]
    for _ in range(count - 1):
        columns.append(builder.add(columns[-1], stride))
    return [builder.add(at, ir.Constant(I64, 64 * r)) for r in range(rows) for at in columns]


def tile_store(count, rows=1):
    """A function `(addr, stride, tile)`: vector (r, t) of a grid is written at addr + 64*r + t*stride (bytes)."""

    @intrinsic
    def put(typingctx, addr, stride, value):
        def codegen(context, builder, sig, args):
            parts = parts_of(builder, sig.args[2], args[2])
            for part, at in zip(parts, _places(builder, count, rows, args[0], args[1]), strict=True):
                builder.store(part, pointer(builder, at, sig.args[2].llvm), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value), codegen

    return put


def tile_load(count, rows=1):
    """A function `(addr, stride) -> Vec("f32", 16, count, rows)`: vector (r, t) is read at addr + 64*r + t*stride (bytes)."""
    vec = Vec("f32", 16, count, rows)

    @intrinsic
    def load(typingctx, addr, stride):
        def codegen(context, builder, sig, args):
            places = _places(builder, count, rows, args[0], args[1])
            return join(builder, vec, [builder.load(pointer(builder, at, vec.llvm), align=1) for at in places])

        return vec(types.int64, types.int64), codegen

    return load


@intrinsic
def prefetch(typingctx, addr):
    """Ask for the cache line at an address, which need not be mapped, to be read soon: into the second level, whose queue is longer."""

    def codegen(context, builder, sig, args):
        at = pointer(builder, args[0], I8)
        name = f"llvm.prefetch.{'p0' if str(at.type) == 'ptr' else 'p0i8'}"
        fnty = ir.FunctionType(ir.VoidType(), [at.type, I32, I32, I32])
        fn = builder.module.declare_intrinsic(name, (), fnty)
        builder.call(fn, [at, *(ir.Constant(I32, v) for v in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def local_vector(typingctx):
    """The address of 64 bytes on this call's stack."""

    def codegen(context, builder, sig, args):
        return builder.ptrtoint(cgutils.alloca_once(builder, ir.VectorType(ir.FloatType(), 16)), I64)

    return types.int64(), codegen
