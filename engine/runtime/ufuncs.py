"""NumPy's inner loops by address, so that native code can run a ufunc's own arithmetic on a block, on any thread.

A ufunc holds one compiled loop for each type signature, `(char **args, intp *dimensions, intp *strides, void *data)`.
The struct is part of NumPy's stable C interface (PyUFuncObject). What is read from it is compared with what the ufunc
says of itself in Python; where they disagree there is no address, and callers go on without.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np


class _Fields(ctypes.Structure):
    """PyUFuncObject after the object header."""

    _fields_ = (
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved1", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_ubyte)),
    )


@lru_cache(maxsize=256)
def inner_loop(ufunc: np.ufunc, dtype: np.dtype[np.generic]) -> tuple[int, int] | None:
    """(address of the loop, its data argument) with every operand of one dtype; None where it cannot be told.

    The loops of float32 and float64 need neither the GIL nor a Python thread.
    """
    signature = dtype.char * ufunc.nin + "->" + dtype.char * ufunc.nout
    if signature not in ufunc.types:
        return None
    fields = _Fields.from_address(id(ufunc) + object.__basicsize__)
    said = (fields.nin, fields.nout, fields.nargs, fields.ntypes)
    if said != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes) or fields.name != ufunc.__name__.encode():
        return None
    position = ufunc.types.index(signature)
    codes = fields.types[position * ufunc.nargs : (position + 1) * ufunc.nargs]
    function = fields.functions[position]
    if codes != [dtype.num] * ufunc.nargs or not function:
        return None
    return int(function), int(fields.data[position] or 0)
