"""A ufunc or a matrix product on large arrays: storage from the pool, threads where they pay, and NumPy's bits always."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import KernelError
from .engine import current_engine
from .fusion_kernel import BLOCKS, POOLED, FusionKernel
from .fusion_steps import FusionCode, SourceKind, cost_class
from .launch import Launcher

Array = np.ndarray[Any, np.dtype[Any]]
LARGE = 1 << 17  # bytes of an operand; below, threads never pay for one ufunc
_ELEMS = (np.dtype(np.float32), np.dtype(np.float64))


def run_large(ufunc: np.ufunc, operands: tuple[Array, ...]) -> Array | None:
    """The result, row-major; None for what NumPy serves as well by itself.

    Args:
        operands: one or two, of which one has `LARGE` bytes. Served are float32 and float64 arrays of one shape and single
            numbers; the result is of their type.
    """
    engine = current_engine()
    first = operands[0]
    size, dtype = max(first.size, operands[-1].size), first.dtype
    pooled = size * dtype.itemsize >= POOLED
    parallel = engine.n_threads > 1 and dtype in _ELEMS and engine.fused.is_parallel(cost_class(ufunc), dtype, size)
    if not parallel and not pooled:
        return None
    shape, kinds = _common_shape(operands)
    if shape is None:
        return None
    if parallel:
        kernel = _kernel(ufunc, dtype, kinds, engine.fused.launcher)
        if kernel is not None:
            return kernel.run(operands, shape, engine, parallel=True)[0]
    out = engine.pool.empty(shape, dtype)
    ufunc(*operands, out=out)
    return out


def matmul(a: Array, b: Array) -> Array:
    """np.matmul, a large result of two matrices in storage of the pool."""
    if a.ndim == 2 and b.ndim == 2 and a.dtype in _ELEMS and a.shape[0] * b.shape[1] * a.itemsize >= POOLED:
        return np.matmul(a, b, out=current_engine().pool.empty((a.shape[0], b.shape[1]), a.dtype))
    return np.asarray(np.matmul(a, b))


def _common_shape(operands: tuple[Array, ...]) -> tuple[tuple[int, ...] | None, tuple[SourceKind, ...]]:
    """(shape, kind of each operand), or (None, ()) for operands that are not served."""
    shape: tuple[int, ...] | None = None
    kinds: list[SourceKind] = []
    dtype = operands[0].dtype
    for x in operands:
        if type(x) is not np.ndarray or x.dtype != dtype or dtype not in _ELEMS:
            return None, ()
        if x.shape == ():
            kinds.append("number")
        elif shape is None or x.shape == shape:
            shape = x.shape
            kinds.append("array")
        else:
            return None, ()
    return shape, tuple(kinds)


_kernels: dict[Any, FusionKernel | None] = {}


def _kernel(ufunc: np.ufunc, dtype: np.dtype[Any], kinds: tuple[SourceKind, ...], launcher: Launcher) -> FusionKernel | None:
    """The kernel that runs NumPy's loop on blocks; None where there is none."""
    key = ufunc, dtype, kinds
    if key not in _kernels:
        code = FusionCode(dtype, kinds, ((ufunc, tuple(range(len(kinds)))),), (len(kinds),))
        blocks = launcher.kernel(BLOCKS)
        try:
            _kernels[key] = None if blocks is None else FusionKernel(code, {}, {}, {BLOCKS: blocks.address})
        except KernelError:
            _kernels[key] = None
    return _kernels[key]
