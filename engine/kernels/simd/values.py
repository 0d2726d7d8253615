"""The vector type, and what code generators share."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

# numba's typed pointers exist only for its own types; addresses are plain 64-bit integers here.
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
ELEM = {"i8": I8, "i16": I16, "i32": I32, "f16": ir.HalfType(), "f32": ir.FloatType()}


class Vec(types.Type):
    """`count` vectors of `lanes` elements `elem` ("i8", "i16", "i32", "f16", "f32")."""

    def __init__(self, elem: str, lanes: int, count: int = 1):
        self.elem, self.lanes, self.count = elem, lanes, count
        super().__init__(name=f"Vec({elem}x{lanes}x{count})")

    @property
    def llvm(self):
        """The LLVM type of one of the vectors."""
        return ir.VectorType(ELEM[self.elem], self.lanes)

    @property
    def is_float(self):
        """Whether the elements are floats."""
        return self.elem[0] == "f"


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        be = fe_type.llvm if fe_type.count == 1 else ir.ArrayType(fe_type.llvm, fe_type.count)
        super().__init__(dmm, fe_type, be)


def parts_of(builder, ty, value):
    return [value] if ty.count == 1 else [builder.extract_value(value, i) for i in range(ty.count)]


def join(builder, ty, parts):
    if ty.count == 1:
        return parts[0]
    out = ir.Constant(ir.ArrayType(ty.llvm, ty.count), ir.Undefined)
    for i, part in enumerate(parts):
        out = builder.insert_value(out, part, i)
    return out


def map_vectors(builder, ret, tys, vals, fn):
    """Apply `fn` to corresponding vectors of the operands; plain vectors are repeated."""
    columns = [parts_of(builder, ty, val) for ty, val in zip(tys, vals, strict=True)]
    columns = [col * ret.count if len(col) == 1 else col for col in columns]
    return join(builder, ret, [fn(*row) for row in zip(*columns, strict=True)])


def splat(builder, llvm_vec, scalar):
    zero = ir.Constant(I32, 0)
    undef = ir.Constant(llvm_vec, ir.Undefined)
    mask = ir.Constant(ir.VectorType(I32, llvm_vec.count), [0] * llvm_vec.count)
    return builder.shuffle_vector(builder.insert_element(undef, scalar, zero), undef, mask)


def pointer(builder, addr, llvm_type):
    return builder.inttoptr(addr, llvm_type.as_pointer())


def call_intrinsic(builder, name, ret, args):
    fnty = ir.FunctionType(ret, [a.type for a in args])
    return builder.call(builder.module.declare_intrinsic(name, (), fnty), args)


def suffix(vec):
    return f"v{vec.count}{ {'half': 'f16', 'float': 'f32'}.get(str(vec.element), str(vec.element)) }"


def widest(a, b):
    return a if a.count >= b.count else b
