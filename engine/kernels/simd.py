"""SIMD values for numba: vectors, tiles of vectors, and the operations that kernels are written in.

A `Vec(elem, lanes, count)` is `count` LLVM vectors held in registers: count 1 is a plain vector, a larger count is a tile,
one vector a token. Element-wise operations accept any mix of the two (a plain vector meets every vector of a tile).
LLVM splits vectors that are wider than the machine's, so kernels are written once, for 512 bits; only `dot4` has a
lowering a target. Knows nothing of models, formats or plans.
"""

from __future__ import annotations

import operator
import os

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, models, register_model

from .targets import current_target

# numba's typed pointers exist only for its own types; addresses are plain 64-bit integers here.
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_ELEM = {"i8": _I8, "i16": _I16, "i32": _I32, "f16": ir.HalfType(), "f32": ir.FloatType()}
_DOT4 = os.environ.get("LLAMITA_DOT4") or current_target().dot4


class Vec(types.Type):
    """`count` vectors of `lanes` elements `elem` ("i8", "i16", "i32", "f16", "f32")."""

    def __init__(self, elem: str, lanes: int, count: int = 1):
        self.elem, self.lanes, self.count = elem, lanes, count
        super().__init__(name=f"Vec({elem}x{lanes}x{count})")

    @property
    def llvm(self):
        """The LLVM type of one of the vectors."""
        return ir.VectorType(_ELEM[self.elem], self.lanes)

    @property
    def is_float(self):
        """Whether the elements are floats."""
        return self.elem[0] == "f"


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        be = fe_type.llvm if fe_type.count == 1 else ir.ArrayType(fe_type.llvm, fe_type.count)
        super().__init__(dmm, fe_type, be)


def _parts(builder, ty, value):
    return [value] if ty.count == 1 else [builder.extract_value(value, i) for i in range(ty.count)]


def _join(builder, ty, parts):
    if ty.count == 1:
        return parts[0]
    out = ir.Constant(ir.ArrayType(ty.llvm, ty.count), ir.Undefined)
    for i, part in enumerate(parts):
        out = builder.insert_value(out, part, i)
    return out


def _map(builder, ret, tys, vals, fn):
    """Apply `fn` to corresponding vectors of the operands; plain vectors are repeated."""
    columns = [_parts(builder, ty, val) for ty, val in zip(tys, vals, strict=True)]
    columns = [col * ret.count if len(col) == 1 else col for col in columns]
    return _join(builder, ret, [fn(*row) for row in zip(*columns, strict=True)])


def _splat(builder, llvm_vec, scalar):
    zero = ir.Constant(_I32, 0)
    undef = ir.Constant(llvm_vec, ir.Undefined)
    mask = ir.Constant(ir.VectorType(_I32, llvm_vec.count), [0] * llvm_vec.count)
    return builder.shuffle_vector(builder.insert_element(undef, scalar, zero), undef, mask)


def _address(builder, addr, llvm_type):
    return builder.inttoptr(addr, llvm_type.as_pointer())


def _call(builder, name, ret, args):
    fnty = ir.FunctionType(ret, [a.type for a in args])
    return builder.call(builder.module.declare_intrinsic(name, (), fnty), args)


def _suffix(vec):
    return f"v{vec.count}{ {'half': 'f16', 'float': 'f32'}.get(str(vec.element), str(vec.element)) }"


# ---- operators ------------------------------------------------------------------------------------------------------

_BINARY = {
    operator.add: ("add", "fadd"),
    operator.sub: ("sub", "fsub"),
    operator.mul: ("mul", "fmul"),
    operator.truediv: (None, "fdiv"),
    operator.and_: ("and_", None),
    operator.or_: ("or_", None),
    operator.xor: ("xor", None),
}


def _widest(a, b):
    return a if a.count >= b.count else b


def _register_binary(op, int_name, float_name):
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and all(isinstance(a, Vec) for a in args):
                a, b = args
                if (a.elem, a.lanes) == (b.elem, b.lanes) and (float_name if a.is_float else int_name):
                    return signature(_widest(a, b), a, b)
            return None

    @lower_builtin(op, Vec, Vec)
    def _lower(context, builder, sig, args):
        name = float_name if sig.return_type.is_float else int_name
        return _map(builder, sig.return_type, sig.args, args, getattr(builder, name))


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
        amount = builder.trunc(args[1], _ELEM[vec.elem]) if vec.elem != "i64" else args[1]
        splat = _splat(builder, vec.llvm, amount)
        return _map(builder, vec, [vec], args[:1], lambda v: getattr(builder, name)(v, splat))


_register_shift(operator.lshift, "shl")
_register_shift(operator.rshift, "lshr")


# ---- memory ---------------------------------------------------------------------------------------------------------


def _loader(elem, lanes):
    vec = Vec(elem, lanes)

    @intrinsic
    def load(typingctx, addr):
        def codegen(context, builder, sig, args):
            return builder.load(_address(builder, args[0], vec.llvm), align=1)

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
        builder.store(args[1], _address(builder, args[0], sig.args[1].llvm), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, value), codegen


def _scalar_access(number, llvm_type):
    @intrinsic
    def get(typingctx, addr):
        def codegen(context, builder, sig, args):
            return builder.load(_address(builder, args[0], llvm_type), align=1)

        return number(types.int64), codegen

    @intrinsic
    def put(typingctx, addr, value):
        def codegen(context, builder, sig, args):
            value = context.cast(builder, args[1], sig.args[1], number)
            builder.store(value, _address(builder, args[0], llvm_type), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), codegen

    return get, put


get_i64, put_i64 = _scalar_access(types.int64, _I64)
get_i32, put_i32 = _scalar_access(types.int32, _I32)
get_i8, put_i8 = _scalar_access(types.int8, _I8)
get_u8, put_u8 = _scalar_access(types.uint8, _I8)
get_u16, put_u16 = _scalar_access(types.uint16, _I16)
get_i16, put_i16 = _scalar_access(types.int16, _I16)
get_f32, put_f32 = _scalar_access(types.float32, ir.FloatType())


@intrinsic
def get_f16(typingctx, addr):
    """The half at an address, as float32."""

    def codegen(context, builder, sig, args):
        half = builder.load(_address(builder, args[0], ir.HalfType()), align=1)
        return builder.fpext(half, ir.FloatType())

    return types.float32(types.int64), codegen


@intrinsic
def put_f16(typingctx, addr, value):
    """Round a float32 to half (nearest even) and write it."""

    def codegen(context, builder, sig, args):
        half = builder.fptrunc(args[1], ir.HalfType())
        builder.store(half, _address(builder, args[0], ir.HalfType()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


def broadcast_loader(elem, count):
    """A function `(addr, stride) -> Vec(elem, 16, count)`: vector t repeats the element at addr + t*stride (bytes)."""
    vec = Vec(elem, 16, count)
    scalar = _ELEM[elem]

    @intrinsic
    def load(typingctx, addr, stride):
        def codegen(context, builder, sig, args):
            parts, at = [], args[0]
            for i in range(count):
                value = builder.load(_address(builder, at, scalar), align=1)
                parts.append(_splat(builder, vec.llvm, value))
                if i + 1 < count:
                    at = builder.add(at, args[1])
            return _join(builder, vec, parts)

        return vec(types.int64, types.int64), codegen

    return load


def tile_store(count):
    """A function `(addr, stride, tile)`: vector t of a tile is written at addr + t*stride (bytes)."""

    @intrinsic
    def put(typingctx, addr, stride, value):
        def codegen(context, builder, sig, args):
            at = args[0]
            for part in _parts(builder, sig.args[2], args[2]):
                builder.store(part, _address(builder, at, sig.args[2].llvm), align=1)
                at = builder.add(at, args[1])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value), codegen

    return put


def tile_load(count):
    """A function `(addr, stride) -> Vec("f32", 16, count)`: vector t is read at addr + t*stride (bytes)."""
    vec = Vec("f32", 16, count)

    @intrinsic
    def load(typingctx, addr, stride):
        def codegen(context, builder, sig, args):
            parts, at = [], args[0]
            for _ in range(count):
                parts.append(builder.load(_address(builder, at, vec.llvm), align=1))
                at = builder.add(at, args[1])
            return _join(builder, vec, parts)

        return vec(types.int64, types.int64), codegen

    return load


@intrinsic
def prefetch(typingctx, addr):
    """Ask for the cache line at an address, which need not be mapped, to be read soon."""

    def codegen(context, builder, sig, args):
        pointer = _address(builder, args[0], _I8)
        name = f"llvm.prefetch.{'p0' if str(pointer.type) == 'ptr' else 'p0i8'}"
        fnty = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        fn = builder.module.declare_intrinsic(name, (), fnty)
        builder.call(fn, [pointer, *(ir.Constant(_I32, v) for v in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def local_vector(typingctx):
    """The address of 64 bytes on this call's stack."""

    def codegen(context, builder, sig, args):
        from numba.core import cgutils

        return builder.ptrtoint(cgutils.alloca_once(builder, ir.VectorType(ir.FloatType(), 16)), _I64)

    return types.int64(), codegen


# ---- constants ------------------------------------------------------------------------------------------------------


def zeros(elem, count=1):
    """A function `() -> Vec(elem, 16, count)` of zeros."""
    vec = Vec(elem, 16, count)

    @intrinsic
    def make(typingctx):
        def codegen(context, builder, sig, args):
            return _join(builder, vec, [ir.Constant(vec.llvm, [0] * 16)] * count)

        return vec(), codegen

    return make


@intrinsic
def splat_i32(typingctx, value):
    """Sixteen copies of an integer, truncated to 32 bits."""
    vec = Vec("i32", 16)

    def codegen(context, builder, sig, args):
        return _splat(builder, vec.llvm, builder.trunc(args[0], _I32))

    return vec(types.int64), codegen


@intrinsic
def splat_f32(typingctx, value):
    """Sixteen copies of a float."""
    vec = Vec("f32", 16)

    def codegen(context, builder, sig, args):
        return _splat(builder, vec.llvm, args[0])

    return vec(types.float32), codegen


@intrinsic
def lane_numbers(typingctx):
    """The vector 0, 1, ... 15."""
    vec = Vec("i32", 16)

    def codegen(context, builder, sig, args):
        return ir.Constant(vec.llvm, list(range(16)))

    return vec(), codegen


# ---- conversions ----------------------------------------------------------------------------------------------------


def _converter(to_elem, instruction, doc):
    @intrinsic
    def convert(typingctx, value):
        if not isinstance(value, Vec):
            return None
        ret = Vec(to_elem, value.lanes, value.count)

        def codegen(context, builder, sig, args):
            return _map(builder, ret, [value], args, lambda v: getattr(builder, instruction)(v, ret.llvm))

        return ret(value), codegen

    convert.__doc__ = doc
    return convert


to_f32 = _converter("f32", "sitofp", "Signed integers to float32.")
widen_f32 = _converter("f32", "fpext", "Halves to float32.")
narrow_f16 = _converter("f16", "fptrunc", "float32 to halves, nearest even.")
widen_u8 = _converter("i32", "zext", "Unsigned bytes or words to 32-bit integers.")
widen_i8 = _converter("i32", "sext", "Signed bytes or words to 32-bit integers.")
narrow_i8 = _converter("i8", "trunc", "The low bytes of integers.")
_truncate_i32 = _converter("i32", "fptosi", "float32 to integers, towards zero.")
bits_f32 = _converter("f32", "bitcast", "Reinterpret 32-bit integers as floats.")
bits_i32 = _converter("i32", "bitcast", "Reinterpret floats as 32-bit integers.")


@intrinsic
def as_bytes(typingctx, value):
    """Reinterpret sixteen 32-bit integers as 64 bytes."""
    ret = Vec("i8", 64)

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ret.llvm)

    return ret(value), codegen


@intrinsic
def as_words(typingctx, value):
    """Reinterpret 64 bytes as sixteen 32-bit integers."""
    ret = Vec("i32", 16)

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ret.llvm)

    return ret(value), codegen


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def _float_intrinsic(name, n_args, doc):
    def codegen(context, builder, sig, args):
        ret = sig.return_type
        full = f"llvm.{name}.{_suffix(ret.llvm)}"
        return _map(builder, ret, sig.args, args, lambda *v: _call(builder, full, ret.llvm, v))

    if n_args == 1:

        @intrinsic
        def fn(typingctx, a):
            return a(a), codegen
    elif n_args == 2:

        @intrinsic
        def fn(typingctx, a, b):
            return _widest(a, b)(a, b), codegen
    else:

        @intrinsic
        def fn(typingctx, a, b, c):
            return _widest(_widest(a, b), c)(a, b, c), codegen

    fn.__doc__ = doc
    return fn


fma = _float_intrinsic("fma", 3, "a*b + c, rounded once.")
sqrt = _float_intrinsic("sqrt", 1, "Square root.")
absolute = _float_intrinsic("fabs", 1, "Absolute value.")
rint = _float_intrinsic("rint", 1, "Nearest integer, ties to even, as a float.")
maximum = _float_intrinsic("maximum", 2, "The larger one; NaN if either is NaN.")
minimum = _float_intrinsic("minimum", 2, "The smaller one; NaN if either is NaN.")
max_number = _float_intrinsic("maxnum", 2, "The larger one; a NaN gives way.")


@intrinsic
def round_i32(typingctx, value):
    """Nearest 32-bit integer, ties to even; the value must be in range."""
    ret = Vec("i32", value.lanes, value.count)

    def codegen(context, builder, sig, args):
        name = f"llvm.rint.{_suffix(value.llvm)}"
        return _map(builder, ret, [value], args, lambda v: builder.fptosi(_call(builder, name, value.llvm, [v]), ret.llvm))

    return ret(value), codegen


@intrinsic
def select_less(typingctx, a, b, yes, no):
    """Lane by lane: yes where the integer a < b, else no."""

    def codegen(context, builder, sig, args):
        def one(a, b, yes, no):
            return builder.select(builder.icmp_signed("<", a, b), yes, no)

        return _map(builder, sig.return_type, sig.args, args, one)

    return _widest(yes, no)(a, b, yes, no), codegen


@intrinsic
def select_below(typingctx, a, b, yes, no):
    """Lane by lane: yes where the float a < b, else no (NaN: no)."""

    def codegen(context, builder, sig, args):
        def one(a, b, yes, no):
            return builder.select(builder.fcmp_ordered("<", a, b), yes, no)

        return _map(builder, sig.return_type, sig.args, args, one)

    return _widest(_widest(a, b), _widest(yes, no))(a, b, yes, no), codegen


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
                    builder.shuffle_vector(vec, undef, ir.Constant(ir.VectorType(_I32, lanes), list(range(at, at + lanes))))
                    for at in (0, lanes)
                )
                vec = combine(builder, low, high)
            return builder.extract_element(vec, ir.Constant(_I32, 0))

        number = types.float32 if value.is_float else types.int32
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
                swap = ir.Constant(ir.VectorType(_I32, 16), [lane ^ distance for lane in range(16)])
                vec = combine(builder, vec, builder.shuffle_vector(vec, undef, swap))
                distance //= 2
            return vec

        def codegen(context, builder, sig, args):
            return _map(builder, value, [value], args, lambda v: one(builder, v))

        return value(value), codegen

    spread.__doc__ = doc
    return spread


def _add(builder, a, b):
    return builder.fadd(a, b) if a.type.element == ir.FloatType() else builder.add(a, b)


def _max(builder, a, b):
    return _call(builder, f"llvm.maximum.{_suffix(a.type)}", a.type, [a, b])


reduce_add = _reducer(_add, "Sum of the sixteen lanes.")
reduce_max = _reducer(_max, "Largest of the sixteen lanes; NaN if any is.")
all_add = _spreader(_add, "The sum of a vector's sixteen lanes, in every lane.")
all_max = _spreader(_max, "The largest of a vector's sixteen lanes, in every lane; NaN if any is.")


# ---- dot4 -----------------------------------------------------------------------------------------------------------


def _dot4_vpdpbusd(builder, acc, unsigned, signed, bits):
    """VNNI: 4 unsigned by 4 signed bytes a lane; LLVM 20 and later take byte vectors, earlier ones words."""
    lanes, halves = bits // 32, 512 // bits
    name = f"llvm.x86.avx512.vpdpbusd.{bits}"
    out = []
    for h in range(halves):
        pick = [ir.Constant(ir.VectorType(_I32, n), list(range(h * n, h * n + n))) for n in (lanes, lanes * 4)]
        a, u, s = (
            (v if halves == 1 else builder.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), p))
            for v, p in ((acc, pick[0]), (unsigned, pick[1]), (signed, pick[1]))
        )
        if not _VNNI_TAKES_BYTES:
            u, s = (builder.bitcast(v, ir.VectorType(_I32, lanes)) for v in (u, s))
        out.append(_call(builder, name, a.type, [a, u, s]))
    if halves == 1:
        return out[0]
    return builder.shuffle_vector(out[0], out[1], ir.Constant(ir.VectorType(_I32, 16), list(range(16))))


def _vnni_takes_bytes():
    import llvmlite.binding as llvm

    return llvm.llvm_version_info[0] >= 21


_VNNI_TAKES_BYTES = _vnni_takes_bytes()


def _even_odd(builder, vec, start):
    undef = ir.Constant(vec.type, ir.Undefined)
    half = vec.type.count // 2
    return builder.shuffle_vector(vec, undef, ir.Constant(ir.VectorType(_I32, half), list(range(start, vec.type.count, 2))))


def _pair_sums(builder, products):
    """Sums of neighbours, halving the lanes; LLVM knows the pattern (pmaddwd, saddlp)."""
    return builder.add(_even_odd(builder, products, 0), _even_odd(builder, products, 1))


def _dot4_generic(builder, acc, unsigned, signed):
    wide = ir.VectorType(_I32, 64)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    return builder.add(acc, _pair_sums(builder, _pair_sums(builder, products)))


def _dot4_words(builder, acc, unsigned, signed):
    """AVX2: bytes widened to words, so that pmaddwd never saturates whatever the codes are."""
    words, wide = ir.VectorType(_I16, 64), ir.VectorType(_I32, 64)
    u, s = builder.zext(unsigned, words), builder.sext(signed, words)
    products = builder.mul(builder.sext(u, wide), builder.sext(s, wide))
    return builder.add(acc, _pair_sums(builder, _pair_sums(builder, products)))


@intrinsic
def dot4(typingctx, acc, unsigned, signed):
    """acc + the dot products of each lane's four bytes: `unsigned` 64 bytes 0..255, `signed` words of bytes -128..127.

    acc and signed are Vec("i32", 16, count), unsigned is Vec("i8", 64). Exact in 32 bits.
    """
    ret = acc

    def codegen(context, builder, sig, args):
        bytes_ = ir.VectorType(_I8, 64)

        def one(acc, unsigned, signed):
            signed = builder.bitcast(signed, bytes_)
            if _DOT4 == "vpdpbusd512":
                return _dot4_vpdpbusd(builder, acc, unsigned, signed, 512)
            if _DOT4 == "vpdpbusd256":
                return _dot4_vpdpbusd(builder, acc, unsigned, signed, 256)
            if _DOT4 == "maddubs":
                return _dot4_words(builder, acc, unsigned, signed)
            return _dot4_generic(builder, acc, unsigned, signed)

        return _map(builder, ret, sig.args, args, one)

    return ret(acc, unsigned, signed), codegen


# ---- threads --------------------------------------------------------------------------------------------------------


@intrinsic
def atomic_add(typingctx, addr, value):
    """Add to the 64-bit word at an address; returns what was there before. Sequentially consistent."""

    def codegen(context, builder, sig, args):
        return builder.atomic_rmw("add", _address(builder, args[0], _I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_get(typingctx, addr):
    """The 64-bit word at an address, acquired."""

    def codegen(context, builder, sig, args):
        return builder.load_atomic(_address(builder, args[0], _I64), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_put(typingctx, addr, value):
    """Write the 64-bit word at an address, released."""

    def codegen(context, builder, sig, args):
        builder.store_atomic(args[1], _address(builder, args[0], _I64), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def call_kernel(typingctx, function, args, thread, n_threads):
    """Call the kernel at an address."""

    def codegen(context, builder, sig, vals):
        fnty = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I64])
        builder.call(builder.inttoptr(vals[0], fnty.as_pointer()), vals[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def call_nothing(typingctx, function):
    """Call the function without arguments at an address (sched_yield and its like)."""

    def codegen(context, builder, sig, vals):
        fnty = ir.FunctionType(_I32, [])
        builder.call(builder.inttoptr(vals[0], fnty.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def cycles(typingctx):
    """The processor's cycle counter (0 where there is none)."""

    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.readcyclecounter", _I64, [])

    return types.int64(), codegen


@intrinsic
def pause(typingctx):
    """A hint that this is a spinning loop."""

    def codegen(context, builder, sig, args):
        if current_target().name in ("avx512vnni", "avxvnni", "avx2"):
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), codegen
