"""Raw memory for kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray


def aligned_zeros(nbytes: int, alignment: int = 64) -> NDArray[np.uint8]:
    """`nbytes` zero bytes that start on a cache line; pages are taken from the system when they are first touched."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


class Arena:
    """Memory handed out in pieces of large blocks, which the system backs with large pages.

    Weights of a small model are smaller than a large page: each on its own, reading them all misses the address cache.
    Pieces lie in the order in which they are taken. A block lives as long as any piece of it.
    """

    def __init__(self, block_bytes: int = 64 << 20):
        self.block_bytes = block_bytes
        self._free = aligned_zeros(0)

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` zero bytes that start on a cache line."""
        if nbytes > self._free.size:
            block = aligned_zeros(max(nbytes, self.block_bytes))
            if nbytes >= self.block_bytes:
                return block
            self._free = block
        piece = self._free[:nbytes]
        self._free = self._free[-(-nbytes // 64) * 64 :]
        return piece


def _plain_address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


_word_at = ctypes.c_size_t.from_address
# The data pointer is the first field of NumPy's array struct (PyArrayObject_fields, part of its stable C interface).
_HEADER = object.__basicsize__


def _field_address(array: NDArray[Any]) -> int:
    return _word_at(id(array) + _HEADER).value


def _is_first_field() -> bool:
    probe = np.zeros(64, np.uint8)
    return all(_field_address(view) == _plain_address(view) for view in (probe, probe[7:], probe[32:].reshape(4, 8).T))


# `array.ctypes.data` takes longer than the kernel of a small op.
address_of = _field_address if _is_first_field() else _plain_address
