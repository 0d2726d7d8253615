"""The error function, vectorised: NumPy has none and SciPy is no dependency.

Up to 0.9375: x + x P(x^2). Above: 1 - exp(-x^2) Q(s) with s = (x - 3) / (x + 3), which needs Q only to the accuracy
that survives the subtraction from 1. The polynomials (kernels/coefficients.py) err by 2e-18 and 3e-18 at most; the whole
stays within 1 ulp of libm.
"""

from __future__ import annotations

import numpy as np

from ..kernels.coefficients import ERF, ERF_ONE, ERF_SPLIT, ERF_TAIL, EXP, LN2, LOG2_E
from .dtypes import Array, f64

_BLOCK = 8192  # elements a pass, so that the passes over temporaries stay in cache


def _horner(coefficients: tuple[float, ...], t: Array) -> Array:
    out = np.full_like(t, coefficients[0])
    for c in coefficients[1:]:
        out *= t
        out += c
    return out


def _exp(y: Array) -> Array:
    """e**y for y in [-40, 0], spelled as the kernel spells it: erf is the same number wherever it is computed."""
    n = np.rint(y * LOG2_E)
    r = (y - n * LN2["f64"][0]) - n * LN2["f64"][1]
    return np.ldexp(1.0 + (r + (r * r) * _horner(EXP["f64"], r)), n.astype(np.int32))


def _erf_block(x: Array, out: Array) -> None:
    size = np.abs(x)
    inner = size <= ERF_SPLIT
    if inner.all():
        np.add(x, x * _horner(ERF, x * x), out=out)
        return
    near = x[inner]
    out[inner] = near + near * _horner(ERF, near * near)
    # NaN compares false above and passes through here; minimum keeps it.
    far = np.minimum(size[~inner], ERF_ONE)
    tail = _exp(-(far * far)) * _horner(ERF_TAIL, (far - 3.0) / (far + 3.0))
    out[~inner] = np.copysign(1.0 - tail, x[~inner])


def erf(x: Array) -> Array:
    """erf of a float32 or float64 array, row-major, within 1 ulp: erf(+-0) = +-0, erf(+-inf) = +-1, NaN stays."""
    flat = np.asarray(x, dtype=f64, order="C").reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(invalid="ignore"):  # the exponent of a NaN
        for start in range(0, flat.size, _BLOCK):
            _erf_block(flat[start : start + _BLOCK], out[start : start + _BLOCK])
    return out.astype(x.dtype, copy=False).reshape(x.shape)
