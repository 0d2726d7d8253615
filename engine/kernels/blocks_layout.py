"""The argument words of the `blocks` kernel, which its callers fill. Knows no numba.

    0..7   the header, named below; STEPS is where the step records begin, in bytes
    8...   one record a place: base address, bytes from element to element (0: one number for all), kind, offset
           kind 0: base moves on with the blocks, by the stride; SCRATCH: base is an offset into the thread's frame;
           else: bytes from the argument block to a view (axes, then extent and stride of each axis, innermost first)
           whose elements are spread into the frame at `offset`
    then   one record a step: function, data (COMPILED: an `elementwise` kernel), number of places, places
A loop's places are its inputs and its output; a compiled kernel's, its outputs and then its inputs.
A frame, one a thread: an address a place, then room for the arguments of a step, then blocks of scratch memory.
"""

from __future__ import annotations

ELEMENTS, ITEM, BLOCK, FRAMES, FRAME_BYTES, N_PLACES, N_STEPS, STEPS = range(8)
PLACES, PLACE_WORDS = 8, 4
LOOP_OPERANDS = 3
SCRATCH = COMPILED = -1
BLOCK_BYTES = 8192  # of a value; a few of them fit a first-level cache of 32 KiB
UNIT_BYTES = 64


def frame_bytes(n_places: int, most_operands: int, n_blocks: int) -> tuple[int, int]:
    """(bytes of a frame, where its scratch blocks begin)."""
    words = n_places + 1 + max(most_operands, 2 * LOOP_OPERANDS)
    start = -(-8 * words // UNIT_BYTES) * UNIT_BYTES
    return start + n_blocks * BLOCK_BYTES, start
