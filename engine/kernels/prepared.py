"""A call whose argument words are kept from one time to the next: only where its arrays lie is filled in.

Argument words: 0 address of the record, then one word an array: the address of its object, or of its data (see 2).
Record: 0 kernel, 1 number of argument words, 2 bytes from an array object to its data pointer, negative if words 1.. are
addresses of data, 3 number of places; two words a place (position of an argument word, number of the array); then the
argument words. A word that is a place holds bytes to add to the address.
"""

from numba import njit

from .fused_layout import MOST_WORDS
from .loops import stack_bytes
from .simd.memory import get_i64, put_i64
from .simd.threads import call_kernel


@njit(forceinline=True)
def _data(word, field):
    return word if field < 0 else get_i64(word + field)


def build():
    """The kernel that runs any prepared call."""
    stack = stack_bytes(8 * MOST_WORDS)

    def kernel(args, thread, n_threads):
        record, block = get_i64(args), stack()
        field, places = get_i64(record + 16), record + 32
        words = places + 16 * get_i64(record + 24)
        for i in range(0, 8 * get_i64(record + 8), 8):
            put_i64(block + i, get_i64(words + i))
        for place in range(places, words, 16):
            at = block + 8 * get_i64(place)
            put_i64(at, get_i64(at) + _data(get_i64(args + 8 + 8 * get_i64(place + 8)), field))
        call_kernel(get_i64(record), block, thread, n_threads)

    return kernel
