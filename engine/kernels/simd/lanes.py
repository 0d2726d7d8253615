"""Sixteen lanes of float32 or float64: what kernels that serve both are written in.

Functions that take `elem` ("f32" or "f64") are factories: they return the operation for that type.
"""

from __future__ import annotations

from llvmlite import ir
from numba import float32, float64, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .arithmetic import FMA
from .memory import get_f32, get_u8, put_f32, put_u8, store
from .values import ELEM, I64, Vec, call_intrinsic, map_vectors, pointer, splat, suffix

LANES = 16
_ORDERED = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def size_of(elem):
    """Bytes of one element."""
    return 8 if elem == "f64" else 4


def number(elem):
    """The numba type of one element."""
    return float64 if elem == "f64" else float32


@intrinsic
def get_f64(typingctx, addr):
    """The double at an address."""

    def codegen(context, builder, sig, args):
        return builder.load(pointer(builder, args[0], ir.DoubleType()), align=1)

    return types.float64(types.int64), codegen


@intrinsic
def put_f64(typingctx, addr, value):
    """Write a double at an address."""

    def codegen(context, builder, sig, args):
        builder.store(args[1], pointer(builder, args[0], ir.DoubleType()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), codegen


def scalar_access(elem):
    """(get, put) of one element at an address."""
    return (get_f64, put_f64) if elem == "f64" else (get_f32, put_f32)


def loader(elem, lanes=LANES):
    """`load(addr) -> Vec(elem, 16)`."""
    vec = Vec(elem, lanes)

    @intrinsic
    def load(typingctx, addr):
        def codegen(context, builder, sig, args):
            return builder.load(pointer(builder, args[0], vec.llvm), align=1)

        return vec(types.int64), codegen

    return load


def splatter(elem):
    """`repeat(x) -> Vec(elem, 16)`: sixteen copies of a number."""
    vec = Vec(elem, LANES)
    kind = {"f32": types.float32, "f64": types.float64, "i32": types.int32, "i64": types.int64}[elem]

    @intrinsic
    def repeat(typingctx, value):
        def codegen(context, builder, sig, args):
            return splat(builder, vec.llvm, args[0])

        return vec(kind), codegen

    return repeat


def constant(elem, value):
    """`make() -> Vec(elem, 16)`: sixteen copies of a number known when the kernel is compiled."""
    vec = Vec(elem, LANES)

    @intrinsic
    def make(typingctx):
        def codegen(context, builder, sig, args):
            lane = ir.Constant(ELEM[elem], value if elem[0] == "i" else float(value))
            return ir.Constant(vec.llvm, [lane] * LANES)

        return vec(), codegen

    return make


def polynomial(elem, coefficients, fused=True):
    """`value(z)`: Horner's rule, highest power first; fused: each step rounds once, else as separate mul and add."""

    @intrinsic
    def value(typingctx, z):
        def codegen(context, builder, sig, args):
            kind = sig.return_type.llvm
            terms = [ir.Constant(kind, [ir.Constant(ELEM[elem], float(c))] * LANES) for c in coefficients]
            out = terms[0]
            for term in terms[1:]:
                if fused:
                    out = call_intrinsic(builder, f"llvm.{FMA}.{suffix(kind)}", kind, [out, args[0], term])
                else:
                    out = builder.fadd(builder.fmul(out, args[0]), term)
            return out

        return z(z), codegen

    return value


def comparison(direction):
    """`compare(a, b) -> Vec("i1", 16)`: NaN compares false, and true for "ne"."""

    @intrinsic
    def compare(typingctx, a, b):
        def one(builder, x, y):
            return builder.fcmp_unordered("!=", x, y) if direction == "ne" else builder.fcmp_ordered(_ORDERED[direction], x, y)

        def codegen(context, builder, sig, args):
            return map_vectors(builder, sig.return_type, sig.args, args, lambda x, y: one(builder, x, y))

        return Vec("i1", a.lanes, a.count)(a, b), codegen

    return compare


@intrinsic
def select(typingctx, condition, yes, no):
    """Lane by lane: yes where the condition (i1) holds, else no."""

    def codegen(context, builder, sig, args):
        return map_vectors(builder, sig.return_type, sig.args, args, builder.select)

    return yes(condition, yes, no), codegen


@intrinsic
def any_lane(typingctx, condition):
    """Whether any of sixteen conditions (i1) holds."""

    def codegen(context, builder, sig, args):
        bits = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(condition), codegen


@intrinsic
def nonzero_bytes(typingctx, addr):
    """Sixteen bools at an address as conditions (i1)."""
    vec = Vec("i1", LANES)

    def codegen(context, builder, sig, args):
        bytes_ = ir.VectorType(ir.IntType(8), LANES)
        value = builder.load(pointer(builder, args[0], bytes_), align=1)
        return builder.icmp_unsigned("!=", value, ir.Constant(bytes_, None))

    return vec(types.int64), codegen


def _shuffle(order, doc):
    @intrinsic
    def shuffle(typingctx, a, b):
        def codegen(context, builder, sig, args):
            return builder.shuffle_vector(args[0], args[1], ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))

        return a(a, b), codegen

    shuffle.__doc__ = doc
    return shuffle


evens = _shuffle(list(range(0, 32, 2)), "Lanes 0, 2, 4, ... of two vectors on end.")
odds = _shuffle(list(range(1, 32, 2)), "Lanes 1, 3, 5, ... of two vectors on end.")
zip_low = _shuffle([i // 2 + 16 * (i % 2) for i in range(16)], "a0, b0, a1, b1, ... a7, b7.")
zip_high = _shuffle([8 + i // 2 + 16 * (i % 2) for i in range(16)], "a8, b8, ... a15, b15.")


@intrinsic
def first_lane(typingctx, value):
    """Lane 0 as a number."""

    def codegen(context, builder, sig, args):
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))

    return number(value.elem)(value), codegen


@intrinsic
def lanes_below(typingctx, n):
    """Conditions (i1) that hold in the first n lanes."""
    vec = Vec("i1", LANES)

    def codegen(context, builder, sig, args):
        order = ir.Constant(ir.VectorType(I64, LANES), list(range(LANES)))
        return builder.icmp_signed("<", order, splat(builder, order.type, args[0]))

    return vec(types.int64), codegen


def _conversion(instruction, to_elem):
    @intrinsic
    def convert(typingctx, value):
        ret = Vec(to_elem, value.lanes, value.count)

        def codegen(context, builder, sig, args):
            return map_vectors(builder, ret, [value], args, lambda v: getattr(builder, instruction)(v, ret.llvm))

        return ret(value), codegen

    return convert


def integer_lanes(elem):
    """(to integers, floats of bits) for integers as wide as the element."""
    return _conversion("fptosi", "i64" if elem == "f64" else "i32"), _conversion("bitcast", elem)


@intrinsic
def _block(typingctx):
    """The address of 128 bytes on this call's stack."""

    def codegen(context, builder, sig, args):
        return builder.ptrtoint(cgutils.alloca_once(builder, ir.VectorType(ir.DoubleType(), LANES)), I64)

    return types.int64(), codegen


def part_access(elem):
    """(load(addr, n, fill), store(addr, n, vec)) for the n < 16 elements at the end of a row; fill pads the vector."""
    get, put = scalar_access(elem)
    load, size = loader(elem), size_of(elem)

    @njit(forceinline=True)
    def load_part(addr, n, fill):
        block = _block()
        store(block, fill)
        for i in range(n):
            put(block + size * i, get(addr + size * i))
        return load(block)

    @njit(forceinline=True)
    def store_part(addr, n, value):
        block = _block()
        store(block, value)
        for i in range(n):
            put(addr + size * i, get(block + size * i))

    return load_part, store_part


@njit(forceinline=True)
def nonzero_bytes_part(addr, n):
    """The n < 16 bools at an address as conditions; the others do not hold."""
    block = _block()
    for i in range(LANES):
        put_u8(block + i, get_u8(addr + i) if i < n else 0)
    return nonzero_bytes(block)


@njit(forceinline=True)
def share(n, unit, thread, n_threads):
    """[start, stop) of a thread's part of n items, dealt out in whole units."""
    units = (n + unit - 1) // unit
    return min(n, units * thread // n_threads * unit), min(n, units * (thread + 1) // n_threads * unit)
