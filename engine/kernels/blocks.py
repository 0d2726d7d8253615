"""A region of elementwise steps, block by block: temporaries stay in the first-level cache.

A step is NumPy's own inner loop, called by address, or a compiled `elementwise` kernel of several steps. Both see one
block at a time, so a region reads its inputs and writes its outputs once, and computes what NumPy computes, bit by bit.

Argument words: see `blocks_layout`. A place is where a value lives: an input, an output, or a block of scratch memory.
"""

from numba import njit

from . import blocks_layout as layout
from .loops import call_loop
from .simd.memory import get_i32, get_i64, put_i32, put_i64
from .simd.threads import call_kernel


@njit
def _copy_run(out, source, stride, count, item):
    """`count` elements, `stride` bytes apart, to consecutive ones."""
    for i in range(count):
        if item == 8:
            put_i64(out + 8 * i, get_i64(source + stride * i))
        else:
            put_i32(out + 4 * i, get_i32(source + stride * i))


@njit
def _spread(out, base, view, start, count, item):
    """Elements [start, start + count) of a broadcast view in row-major order.

    view: address of (axes, then extent and stride in bytes of each axis, the innermost first).
    """
    inner = get_i64(view + 8)
    stride = get_i64(view + 16)
    while count > 0:
        rest, source = start // inner, base + (start % inner) * stride
        for axis in range(1, get_i64(view)):
            extent = get_i64(view + 8 + 16 * axis)
            source += (rest % extent) * get_i64(view + 16 + 16 * axis)
            rest //= extent
        run = min(count, inner - start % inner)
        _copy_run(out, source, stride, run, item)
        out += run * item
        start += run
        count -= run


@njit
def _place_blocks(args, frame, start, count):
    """Write where each place's block begins into the frame; broadcast views are spread into their scratch block."""
    item, places = get_i64(args + 8 * layout.ITEM), get_i64(args + 8 * layout.N_PLACES)
    record = args + 8 * layout.PLACES
    for place in range(places):
        base, stride, view = get_i64(record), get_i64(record + 8), get_i64(record + 16)
        if view == layout.SCRATCH:
            base += frame
        elif view:
            spread = frame + get_i64(record + 24)
            _spread(spread, base, args + view, start, count, item)
            base = spread
        else:
            base += start * stride
        put_i64(frame + 8 * place, base)
        record += 8 * layout.PLACE_WORDS


@njit
def _run_steps(args, frame, count):
    call = frame + 8 * get_i64(args + 8 * layout.N_PLACES)
    records = args + 8 * layout.PLACES
    step = args + get_i64(args + 8 * layout.STEPS)
    for _ in range(get_i64(args + 8 * layout.N_STEPS)):
        function, data, operands = get_i64(step), get_i64(step + 8), get_i64(step + 16)
        put_i64(call, count)
        for i in range(operands):
            place = get_i64(step + 24 + 8 * i)
            put_i64(call + 8 + 8 * i, get_i64(frame + 8 * place))
            if data != layout.COMPILED:
                put_i64(call + 8 * (1 + layout.LOOP_OPERANDS + i), get_i64(records + 8 * (layout.PLACE_WORDS * place + 1)))
        if data == layout.COMPILED:
            call_kernel(function, call, 0, 1)
        else:
            call_loop(function, call + 8, call, call + 8 * (1 + layout.LOOP_OPERANDS), data)
        step += 24 + 8 * operands


def build():
    """The kernel that runs any region."""

    def kernel(args, thread, n_threads):
        n, block = get_i64(args + 8 * layout.ELEMENTS), get_i64(args + 8 * layout.BLOCK)
        frame = get_i64(args + 8 * layout.FRAMES) + thread * get_i64(args + 8 * layout.FRAME_BYTES)
        blocks = (n + block - 1) // block
        for at in range(blocks * thread // n_threads, blocks * (thread + 1) // n_threads):
            count = min(block, n - at * block)
            _place_blocks(args, frame, at * block, count)
            _run_steps(args, frame, count)

    return kernel
