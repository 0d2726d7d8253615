"""The error function, vectorised: NumPy has none and SciPy is no dependency."""

from __future__ import annotations

import math

import numpy as np

from .dtypes import Array

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """erf of a float32 or float64 array."""
    return np.asarray(_erf(x), dtype=x.dtype)
