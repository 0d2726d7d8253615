"""NumPy's inner loops inside kernels: the bits of a transcendental are then NumPy's own, on any thread."""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .simd import lanes
from .simd.memory import get_i64, put_i64
from .simd.values import I8, I64

BLOCK_BYTES = 8192  # of one value; two of them stay in a first-level cache


@intrinsic
def call_loop(typingctx, function, args, dimensions, strides, data):
    """Call an inner loop: `(char **args, intp *dimensions, intp *strides, void *data)`."""

    def codegen(context, builder, sig, vals):
        fnty = ir.FunctionType(ir.VoidType(), [I64] * 4)
        builder.call(builder.inttoptr(vals[0], fnty.as_pointer()), vals[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def stack_bytes(n):
    """A function `() -> address` of n bytes on this call's stack, on a cache line; always the same ones."""

    @intrinsic
    def address(typingctx):
        def codegen(context, builder, sig, args):
            with builder.goto_entry_block():  # cgutils.alloca_once would clear it at every call
                memory = builder.alloca(ir.ArrayType(I8, n + 64))
            raw = builder.add(builder.ptrtoint(memory, I64), ir.Constant(I64, 63))
            return builder.and_(raw, ir.Constant(I64, -64))

        return types.int64(), codegen

    return address


def unary_loop(elem):
    """`run(loop, out, x, n)`: apply the loop whose (function, data) stand at the address `loop` to n elements; x may be out."""
    words, size = stack_bytes(64), lanes.size_of(elem)

    @njit(forceinline=True)
    def run(loop, out, x, n):
        block = words()
        put_i64(block, x)
        put_i64(block + 8, out)
        put_i64(block + 16, n)
        put_i64(block + 24, size)
        put_i64(block + 32, size)
        call_loop(get_i64(loop), block, block + 16, block + 24, get_i64(loop + 8))

    return run
