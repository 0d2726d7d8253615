"""Raw memory for kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def aligned_zeros(nbytes: int, alignment: int = 64) -> NDArray[np.uint8]:
    """`nbytes` zero bytes that start on a cache line; pages are taken from the system when they are first touched."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]
