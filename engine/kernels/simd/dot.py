"""The four-byte dot product: the one operation with a spelling a target."""

from __future__ import annotations

from llvmlite import ir
from numba.extending import intrinsic

from ..targets import current_target
from .values import I8, I16, I32, call_intrinsic, map_vectors

_SPELLING = current_target().dot4


def _dot4_vpdpbusd(builder, acc, unsigned, signed, bits):
    """VNNI: 4 unsigned by 4 signed bytes a lane; LLVM 20 and later take byte vectors, earlier ones words."""
    lanes, halves = bits // 32, 512 // bits
    name = f"llvm.x86.avx512.vpdpbusd.{bits}"
    out = []
    for h in range(halves):
        pick = [ir.Constant(ir.VectorType(I32, n), list(range(h * n, h * n + n))) for n in (lanes, lanes * 4)]
        a, u, s = (
            (v if halves == 1 else builder.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), p))
            for v, p in ((acc, pick[0]), (unsigned, pick[1]), (signed, pick[1]))
        )
        if not _VNNI_TAKES_BYTES:
            u, s = (builder.bitcast(v, ir.VectorType(I32, lanes)) for v in (u, s))
        out.append(call_intrinsic(builder, name, a.type, [a, u, s]))
    if halves == 1:
        return out[0]
    return builder.shuffle_vector(out[0], out[1], ir.Constant(ir.VectorType(I32, 16), list(range(16))))


def _vnni_takes_bytes():
    import llvmlite.binding as llvm

    return llvm.llvm_version_info[0] >= 21


_VNNI_TAKES_BYTES = _vnni_takes_bytes()


def _even_odd(builder, vec, start):
    undef = ir.Constant(vec.type, ir.Undefined)
    half = vec.type.count // 2
    return builder.shuffle_vector(vec, undef, ir.Constant(ir.VectorType(I32, half), list(range(start, vec.type.count, 2))))


def _pair_sums(builder, products):
    """Sums of neighbours, halving the lanes; LLVM knows the pattern (pmaddwd, saddlp)."""
    return builder.add(_even_odd(builder, products, 0), _even_odd(builder, products, 1))


def _dot4_generic(builder, acc, unsigned, signed):
    wide = ir.VectorType(I32, 64)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    return builder.add(acc, _pair_sums(builder, _pair_sums(builder, products)))


def _dot4_words(builder, acc, unsigned, signed):
    """AVX2: bytes widened to words, so that pmaddwd never saturates whatever the codes are."""
    words, wide = ir.VectorType(I16, 64), ir.VectorType(I32, 64)
    u, s = builder.zext(unsigned, words), builder.sext(signed, words)
    products = builder.mul(builder.sext(u, wide), builder.sext(s, wide))
    return builder.add(acc, _pair_sums(builder, _pair_sums(builder, products)))


def _dot4_maddubs(builder, acc, unsigned, signed):
    """AVX2, codes below 128: pairs of products fit 16 bits, so pmaddubsw cannot saturate."""
    bytes_, words, sums = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    ones = ir.Constant(words, [1] * 16)
    halves = []
    for h in range(2):
        pick = ir.Constant(ir.VectorType(I32, 32), list(range(32 * h, 32 * h + 32)))
        u, s = (builder.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), pick) for v in (unsigned, signed))
        pairs = call_intrinsic(builder, "llvm.x86.avx2.pmadd.ub.sw", words, [builder.bitcast(v, bytes_) for v in (u, s)])
        halves.append(call_intrinsic(builder, "llvm.x86.avx2.pmadd.wd", sums, [pairs, ones]))
    joined = builder.shuffle_vector(halves[0], halves[1], ir.Constant(ir.VectorType(I32, 16), list(range(16))))
    return builder.add(acc, joined)


def _spelled(small):
    """How this target spells the product; `small`: whether all unsigned bytes are below 128."""
    if _SPELLING == "vpdpbusd512":
        return lambda *v: _dot4_vpdpbusd(*v, 512)
    if _SPELLING == "vpdpbusd256":
        return lambda *v: _dot4_vpdpbusd(*v, 256)
    if _SPELLING == "maddubs":
        return _dot4_maddubs if small else _dot4_words
    return _dot4_generic


def _dot4(small, doc):
    spelled = _spelled(small)

    @intrinsic
    def dot4(typingctx, acc, unsigned, signed):
        def codegen(context, builder, sig, args):
            def one(acc, unsigned, signed):
                return spelled(builder, acc, unsigned, builder.bitcast(signed, ir.VectorType(I8, 64)))

            return map_vectors(builder, acc, sig.args, args, one)

        return acc(acc, unsigned, signed), codegen

    dot4.__doc__ = doc
    return dot4


# acc and signed are Vec("i32", 16, count), unsigned is Vec("i8", 64); exact in 32 bits.
dot4 = _dot4(False, "acc + the dot products of each lane's four bytes: unsigned 0..255 by signed -128..127.")
dot4_small = _dot4(True, "The same for unsigned bytes below 128, which some targets do faster.")
