"""The vector type, and what code generators share."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from ..targets import current_target

# numba's typed pointers exist only for its own types; addresses are plain 64-bit integers here.
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
ELEM = {"i1": ir.IntType(1), "i8": I8, "i16": I16, "i32": I32, "i64": I64}
ELEM |= {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}


class Vec(types.Type):
    """A grid of `rows` by `count` vectors of `lanes` elements `elem`, a key of ELEM ("i1" is what comparisons give)."""

    def __init__(self, elem: str, lanes: int, count: int = 1, rows: int = 1):
        self.elem, self.lanes, self.count, self.rows = elem, lanes, count, rows
        super().__init__(name=f"Vec({elem}x{lanes}x{count}x{rows})")

    @property
    def llvm(self):
        """The LLVM type of one of the vectors."""
        return ir.VectorType(ELEM[self.elem], self.lanes)

    @property
    def is_float(self):
        """Whether the elements are floats."""
        return self.elem[0] == "f"

    @property
    def size(self):
        """Number of vectors."""
        return self.rows * self.count

    def of(self, elem, lanes=None):
        """The same grid with other elements."""
        return Vec(elem, lanes or self.lanes, self.count, self.rows)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        be = fe_type.llvm if fe_type.size == 1 else ir.ArrayType(fe_type.llvm, fe_type.size)
        super().__init__(dmm, fe_type, be)


def parts_of(builder, ty, value):
    """The vectors of a grid, row by row."""
    return [value] if ty.size == 1 else [builder.extract_value(value, i) for i in range(ty.size)]


def join(builder, ty, parts):
    """A grid of vectors."""
    if ty.size == 1:
        return parts[0]
    out = ir.Constant(ir.ArrayType(ty.llvm, ty.size), ir.Undefined)
    for i, part in enumerate(parts):
        out = builder.insert_value(out, part, i)
    return out


def map_vectors(builder, ret, tys, vals, fn):
    """Apply `fn` to corresponding vectors of the operands; a side of a grid that is 1 is repeated."""
    grids = [(ty, parts_of(builder, ty, val)) for ty, val in zip(tys, vals, strict=True)]
    out = []
    for r in range(ret.rows):
        for t in range(ret.count):
            out.append(fn(*(parts[(r if ty.rows > 1 else 0) * ty.count + (t if ty.count > 1 else 0)] for ty, parts in grids)))
    return join(builder, ret, out)


def splat(builder, llvm_vec, scalar):
    """A vector of copies of a number."""
    zero = ir.Constant(I32, 0)
    undef = ir.Constant(llvm_vec, ir.Undefined)
    mask = ir.Constant(ir.VectorType(I32, llvm_vec.count), [0] * llvm_vec.count)
    return builder.shuffle_vector(builder.insert_element(undef, scalar, zero), undef, mask)


def pointer(builder, addr, llvm_type):
    """An address as a pointer."""
    return builder.inttoptr(addr, llvm_type.as_pointer())


def call_intrinsic(builder, name, ret, args):
    """Call an LLVM intrinsic by its full name."""
    fnty = ir.FunctionType(ret, [a.type for a in args])
    return builder.call(builder.module.declare_intrinsic(name, (), fnty), args)


def suffix(vec):
    """How LLVM's overloaded names spell a vector type."""
    return f"v{vec.count}{ {'half': 'f16', 'float': 'f32', 'double': 'f64'}.get(str(vec.element), str(vec.element)) }"


def widest(a, b):
    """The grid that two operands meet on, with b's elements."""
    return Vec(b.elem, b.lanes, max(a.count, b.count), max(a.rows, b.rows))


# Half floats and fused multiply-add need F16C and FMA on x86; without them LLVM would call a library for each element.
PLAIN = current_target().plain


def _like(ty, elem):
    return ir.VectorType(elem, ty.count) if isinstance(ty, ir.VectorType) else elem


def _constant(ty, value):
    return ir.Constant(ty, [value] * ty.count if isinstance(ty, ir.VectorType) else value)


def half_to_float(builder, half):
    """Halves to float32, numbers or vectors: in hardware, or exactly by shifting bits and scaling by 2^112."""
    floats = _like(half.type, ir.FloatType())
    if not PLAIN:
        return builder.fpext(half, floats)
    words = _like(half.type, I32)
    bits = builder.zext(builder.bitcast(half, _like(half.type, I16)), words)
    sign = builder.shl(builder.and_(bits, _constant(words, 0x8000)), _constant(words, 16))
    rest = builder.shl(builder.and_(bits, _constant(words, 0x7FFF)), _constant(words, 13))
    scaled = builder.bitcast(builder.fmul(builder.bitcast(rest, floats), _constant(floats, 2.0**112)), words)
    special = builder.icmp_unsigned(">=", rest, _constant(words, 0x7C00 << 13))
    value = builder.select(special, builder.or_(rest, _constant(words, 0x7F800000)), scaled)
    return builder.bitcast(builder.or_(value, sign), floats)


def float_to_half(builder, value):
    """float32 to halves, nearest even, numbers or vectors."""
    halves = _like(value.type, ir.HalfType())
    if not PLAIN:
        return builder.fptrunc(value, halves)
    words = _like(value.type, I32)
    bits = builder.bitcast(value, words)
    sign = builder.lshr(builder.and_(bits, _constant(words, 0x80000000)), _constant(words, 16))
    size = builder.and_(bits, _constant(words, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _constant(words, 13)), _constant(words, 1))
    rounded = builder.add(builder.add(size, _constant(words, (((15 - 127) << 23) + 0xFFF) & 0xFFFFFFFF)), odd)
    normal = builder.lshr(rounded, _constant(words, 13))
    half = _constant(value.type, 0.5)  # adding it leaves the subnormal's rounded bits at the bottom
    small = builder.sub(builder.bitcast(builder.fadd(builder.bitcast(size, value.type), half), words), _constant(words, 126 << 23))
    out = builder.select(builder.icmp_unsigned("<", size, _constant(words, 0x38800000)), small, normal)
    out = builder.select(builder.icmp_unsigned(">=", size, _constant(words, 0x477FF000)), _constant(words, 0x7C00), out)
    out = builder.select(builder.icmp_unsigned(">", size, _constant(words, 0x7F800000)), _constant(words, 0x7E00), out)
    return builder.bitcast(builder.trunc(builder.or_(out, sign), _like(value.type, I16)), halves)


def nearest(builder, value):
    """Float vectors to the nearest integer, ties to even; without SSE4.1 by adding 1.5 * 2^23 (float64: 2^52), for smaller |x|."""
    if not PLAIN:
        return call_intrinsic(builder, f"llvm.rint.{suffix(value.type)}", value.type, [value])
    magic = _constant(value.type, 1.5 * 2.0 ** (52 if value.type.element == ir.DoubleType() else 23))
    return builder.fsub(builder.fadd(value, magic), magic)
