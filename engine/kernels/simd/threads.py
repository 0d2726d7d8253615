"""Atomics, calls by address, and the clock."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..targets import current_target
from .values import I32, I64, call_intrinsic, pointer


@intrinsic
def atomic_add(typingctx, addr, value):
    """Add to the 64-bit word at an address; returns what was there before. Sequentially consistent."""

    def codegen(context, builder, sig, args):
        return builder.atomic_rmw("add", pointer(builder, args[0], I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_get(typingctx, addr):
    """The 64-bit word at an address, acquired."""

    def codegen(context, builder, sig, args):
        return builder.load_atomic(pointer(builder, args[0], I64), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_put(typingctx, addr, value):
    """Write the 64-bit word at an address, released."""

    def codegen(context, builder, sig, args):
        builder.store_atomic(args[1], pointer(builder, args[0], I64), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def call_kernel(typingctx, function, args, thread, n_threads):
    """Call the kernel at an address."""

    def codegen(context, builder, sig, vals):
        fnty = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
        builder.call(builder.inttoptr(vals[0], fnty.as_pointer()), vals[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def call_nothing(typingctx, function):
    """Call the function without arguments at an address (sched_yield and its like)."""

    def codegen(context, builder, sig, vals):
        fnty = ir.FunctionType(I32, [])
        builder.call(builder.inttoptr(vals[0], fnty.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def cycles(typingctx):
    """A counter that the processor advances at a constant rate (0 where there is none)."""

    def codegen(context, builder, sig, args):
        if current_target().family != "arm":
            return call_intrinsic(builder, "llvm.readcyclecounter", I64, [])
        # Arm's cycle counter belongs to the kernel; programs may read its clock.
        register = builder.module.add_metadata([ir.MetaDataString(builder.module, "cntvct_el0")])
        fnty = ir.FunctionType(I64, [ir.MetaDataType()])
        return builder.call(builder.module.declare_intrinsic("llvm.read_volatile_register.i64", (), fnty), [register])

    return types.int64(), codegen


@intrinsic
def pause(typingctx):
    """A hint that this is a spinning loop."""

    def codegen(context, builder, sig, args):
        family = current_target().family
        if family == "x86":
            call_intrinsic(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        elif family == "arm":
            call_intrinsic(builder, "llvm.aarch64.hint", ir.VoidType(), [ir.Constant(I32, 1)])  # yield
        return context.get_dummy_value()

    return types.void(), codegen
