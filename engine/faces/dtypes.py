"""Element types: the vocabulary of the op set, their short names, and bfloat16.

NumPy has no bfloat16. Here it is a structured dtype with one 16-bit field: layout operations (reshape,
transpose, indexing) work on it as on any array, and arithmetic on the payload is impossible by construction.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedDType
from .warnings_off import warnings_back, warnings_off

Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = "np.dtype[Any]"

f16: DType = np.dtype(np.float16)
f32: DType = np.dtype(np.float32)
f64: DType = np.dtype(np.float64)
i32: DType = np.dtype(np.int32)
i64: DType = np.dtype(np.int64)
u32: DType = np.dtype(np.uint32)
c64: DType = np.dtype(np.complex64)
c128: DType = np.dtype(np.complex128)
boolean: DType = np.dtype(np.bool_)
bf16: DType = np.dtype([("bf16", np.uint16)])

NAMES: dict[DType, str] = {
    f16: "F16",
    bf16: "BF16",
    f32: "F32",
    f64: "F64",
    i32: "I32",
    i64: "I64",
    u32: "U32",
    boolean: "BOOL",
    c64: "C64",
    c128: "C128",
}
_BY_NAME = {name: dtype for dtype, name in NAMES.items()}

FLOAT = frozenset({f32, f64})
HALF = frozenset({f16, bf16})
COMPLEX = frozenset({c64, c128})
INTEGER = frozenset({i32, i64, u32})
REAL = FLOAT | INTEGER
NUMERIC = REAL | COMPLEX
ANY = NUMERIC | HALF | {boolean}


def dtype_name(dtype: DType) -> str:
    """Short name of an element type, as error messages print it (``F32``, ``BF16``, ...)."""
    return NAMES.get(dtype, str(dtype))


def as_dtype(dtype: Any, op: str = "dtype") -> DType:
    """An element type from a NumPy dtype, a NumPy type or a short name such as ``"f32"`` or ``"bf16"``.

    Raises:
        UnsupportedDType: the type is outside the vocabulary.
    """
    if isinstance(dtype, str) and dtype.upper() in _BY_NAME:
        return _BY_NAME[dtype.upper()]
    try:
        found: DType = np.dtype(dtype)
    except TypeError as error:
        raise UnsupportedDType(f"{op}: unsupported dtype {dtype!r}: expected one of {', '.join(sorted(_BY_NAME))}") from error
    if found not in NAMES:
        raise UnsupportedDType(f"{op}: unsupported dtype {found}: expected one of {', '.join(sorted(_BY_NAME))}")
    return found


def to_bfloat16(x: Array) -> Array:
    """Round float32 values to bfloat16, nearest even; NaN stays NaN (quiet). Same shape, dtype ``bf16``."""
    bits = np.asarray(x, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could carry a NaN payload into infinity, so NaNs are truncated and made quiet instead.
    payload = np.where((bits & np.uint32(0x7FFFFFFF)) > 0x7F800000, (bits >> np.uint32(16)) | np.uint32(0x40), rounded)
    return np.asarray(payload, dtype=np.uint16).view(bf16).reshape(x.shape)


def from_bfloat16(x: Array) -> Array:
    """The float32 values of a bfloat16 array; exact."""
    widened = np.asarray(x, order="C")["bf16"].astype(np.uint32) << np.uint32(16)
    return np.asarray(widened).view(np.float32)


def cast(x: Array, dtype: DType) -> Array:
    """Convert element types by value: half types through float32, float to integer truncates. Always a new array."""
    if x.dtype == bf16:
        wide = from_bfloat16(x)
        return wide if dtype == f32 else cast(wide, dtype)
    if dtype == bf16:
        return to_bfloat16(x.astype(np.float32))
    token = warnings_off()  # too large for the type is inf, as everywhere
    try:
        return x.astype(dtype, order="C")
    finally:
        warnings_back(token)
