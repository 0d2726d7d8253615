"""Sums of products of codes and activations: the one operation with a spelling a target.

Four neighbouring columns lie in a lane of 32 bits: codes as unsigned bytes, activations as signed ones, alone or as the
high and low byte of 16 bits. All spellings are exact, so all targets give the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from ..targets import current_target
from .values import I8, I16, I32, Vec, call_intrinsic, join, parts_of

LANES = ir.VectorType(I32, 16)
BYTES = ir.VectorType(I8, 64)
WORDS = ir.VectorType(I16, 32)


@dataclass(frozen=True)
class _Spelling:
    """How a target adds products up, for codes and activations of a given width.

    elem, lanes, count: the vectors that hold sums. run: products a lane that they can take in. zero: code that counts as 0.
    start(builder, acc) -> sums; add(builder, sums, codes, parts) -> sums, parts being the activations' high bytes, then the
    low ones; total(builder, sums, acc) -> the sixteen results, acc included.
    """

    count: int
    start: Callable[..., list[Any]]
    add: Callable[..., list[Any]]
    total: Callable[..., Any]
    elem: str = "i32"
    lanes: int = 16
    run: int = 8
    zero: int = 0


def _constant(vector, value):
    return ir.Constant(vector, [value] * vector.count)


def _pieces(builder, vec, n):
    """A vector cut into n."""
    size = vec.type.count // n
    orders = [ir.Constant(ir.VectorType(I32, size), list(range(i * size, (i + 1) * size))) for i in range(n)]
    return [builder.shuffle_vector(vec, ir.Constant(vec.type, ir.Undefined), order) for order in orders]


def _joined(builder, vecs):
    """Vectors on end; their number is a power of two."""
    while len(vecs) > 1:
        order = ir.Constant(ir.VectorType(I32, 2 * vecs[0].type.count), list(range(2 * vecs[0].type.count)))
        vecs = [builder.shuffle_vector(a, b, order) for a, b in zip(vecs[::2], vecs[1::2], strict=True)]
    return vecs[0]


def _instruction(name, n, ret, args):
    """`(builder, *vectors)`: an instruction on n pieces of the vectors; ret and args are the types it has for each."""

    def emit(builder, *vectors):
        pieces = zip(*(_pieces(builder, vec, n) for vec in vectors), strict=True)
        typed = ([builder.bitcast(v, ty) for v, ty in zip(piece, args, strict=True)] for piece in pieces)
        return _joined(builder, [call_intrinsic(builder, name, ret, piece) for piece in typed])

    return emit


def _vpdpbusd(bits):
    """VNNI: four unsigned by four signed bytes a lane; LLVM 21 and later take byte vectors, earlier ones words."""
    import llvmlite.binding as llvm

    sums = ir.VectorType(I32, bits // 32)
    operand = ir.VectorType(I8, bits // 8) if llvm.llvm_version_info[0] >= 21 else sums
    return _instruction(f"llvm.x86.avx512.vpdpbusd.{bits}", 512 // bits, sums, (sums, operand, operand))


def _neon(name):
    sums, operand = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
    return _instruction(f"llvm.aarch64.neon.{name}.v4i32.v16i8", 4, sums, (sums, operand, operand))


def _pair_products(builder, a, b):
    """Products of words, summed by neighbours; LLVM knows the pattern (pmaddwd)."""
    wide, undef = ir.VectorType(I32, 32), ir.Constant(ir.VectorType(I32, 32), ir.Undefined)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    even, odd = (ir.Constant(LANES, list(range(first, 32, 2))) for first in (0, 1))
    return builder.add(builder.shuffle_vector(products, undef, even), builder.shuffle_vector(products, undef, odd))


def _by_bytes(dot4, width, zero=0):
    """An instruction (or a pattern) that adds four products of bytes to a lane; high and low bytes are summed apart."""

    def start(builder, acc):
        return [acc] if width == 8 else [_constant(LANES, 0), acc]

    def add(builder, sums, codes, parts):
        return [dot4(builder, total, codes, part) for total, part in zip(sums, parts, strict=True)]

    def total(builder, sums, acc):
        return sums[0] if width == 8 else builder.add(sums[1], builder.shl(sums[0], _constant(LANES, 8)))

    return _Spelling(width // 8, start, add, total, zero=zero)


_maddubs = _instruction("llvm.x86.avx2.pmadd.ub.sw", 2, ir.VectorType(I16, 16), (ir.VectorType(I8, 32),) * 2)
_maddwd = _instruction("llvm.x86.avx2.pmadd.wd", 2, ir.VectorType(I32, 8), (ir.VectorType(I16, 16),) * 2)


def _by_pairs(bits, width):
    """AVX2, codes below 128: two products fit 16 bits, and so do the sums of a few such pairs."""

    def start(builder, acc):
        return [_constant(WORDS, 0)] * (width // 8)

    def add(builder, sums, codes, parts):
        return [builder.add(total, _maddubs(builder, codes, part)) for total, part in zip(sums, parts, strict=True)]

    def total(builder, sums, acc):
        for pairs, factor in zip(sums, (1,) if width == 8 else (256, 1), strict=True):
            acc = builder.add(acc, _maddwd(builder, pairs, _constant(WORDS, factor)))
        return acc

    largest = 2 * (2**bits - 1) * 128
    return _Spelling(width // 8, start, add, total, elem="i16", lanes=32, run=32767 // largest)


def _by_words(width, maddwd):
    """Even and odd columns as words, which hold 16 bits of activation as well as 8; maddwd adds products of two words."""
    eight, top = _constant(WORDS, 8), _constant(WORDS, -256)

    def add(builder, sums, codes, parts):
        codes, *parts = (builder.bitcast(v, WORDS) for v in (codes, *parts))
        low = parts[-1]
        even, odd = builder.ashr(builder.shl(low, eight), eight), builder.ashr(low, eight)
        if width == 16:
            even, odd = builder.add(even, builder.shl(parts[0], eight)), builder.add(odd, builder.and_(parts[0], top))
        evens, odds = builder.and_(codes, _constant(WORDS, 255)), builder.lshr(codes, eight)
        return [builder.add(builder.add(sums[0], maddwd(builder, evens, even)), maddwd(builder, odds, odd))]

    return _Spelling(1, lambda builder, acc: [acc], add, lambda builder, sums, acc: sums[0])


def _signed(builder, acc, codes, signed):
    """Arm without mixed signs: codes less 128."""
    return _neon("sdot")(builder, acc, builder.xor(codes, _constant(BYTES, -128)), signed)


_SPELLINGS: dict[str, Callable[[int, int], _Spelling]] = {
    "vpdpbusd512": lambda bits, width: _by_bytes(_vpdpbusd(512), width),
    "vpdpbusd256": lambda bits, width: _by_bytes(_vpdpbusd(256), width),
    "maddubs": lambda bits, width: _by_words(width, _maddwd) if bits == 8 else _by_pairs(bits, width),
    "usdot": lambda bits, width: _by_bytes(_neon("usdot"), width),
    "sdot": lambda bits, width: _by_bytes(_signed, width, zero=128) if bits == 8 else _by_bytes(_neon("sdot"), width),
    "generic": lambda bits, width: _by_words(width, _pair_products),
}


def dot(bits, width):
    """Sums of products of codes of `bits` bits and activations of `width` (8 or 16): `(start, add, total, run, zero)`.

    start(acc) -> sums; add(sums, codes, high, low) -> sums, of which at most `run` in a row; total(sums, acc) -> acc plus
    the products of activations with codes less `zero`. acc: Vec("i32", 16, count, rows); codes: Vec("i8", 64, 1, rows);
    high and low bytes of the activations: Vec("i32", 16, count); with width 8 `low` is not looked at.
    """
    spelling = _SPELLINGS[current_target().dot4](bits, width)
    n = spelling.count

    def states(builder, ty, value):
        """The sums of each product, row by row."""
        vectors = parts_of(builder, ty, value)
        return [vectors[i : i + n] for i in range(0, len(vectors), n)]

    @intrinsic
    def start(typingctx, acc):
        ret = Vec(spelling.elem, spelling.lanes, acc.count * n, acc.rows)

        def codegen(context, builder, sig, args):
            return join(builder, ret, [s for one in parts_of(builder, acc, args[0]) for s in spelling.start(builder, one)])

        return ret(acc), codegen

    @intrinsic
    def add(typingctx, sums, codes, high, low):
        def codegen(context, builder, sig, args):
            groups = parts_of(builder, codes, args[1])
            tokens = list(zip(*(parts_of(builder, high, part) for part in args[2 : 2 + width // 8]), strict=True))
            tokens = [[builder.bitcast(part, BYTES) for part in token] for token in tokens]
            pairs = [(group, token) for group in groups for token in tokens]
            out = [spelling.add(builder, s, *pair) for s, pair in zip(states(builder, sums, args[0]), pairs, strict=True)]
            return join(builder, sums, [s for one in out for s in one])

        return sums(sums, codes, high, low), codegen

    @intrinsic
    def total(typingctx, sums, acc):
        def codegen(context, builder, sig, args):
            pairs = zip(states(builder, sums, args[0]), parts_of(builder, acc, args[1]), strict=True)
            return join(builder, acc, [spelling.total(builder, *pair) for pair in pairs])

        return acc(sums, acc), codegen

    return start, add, total, spelling.run, spelling.zero
