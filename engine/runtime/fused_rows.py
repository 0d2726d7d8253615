"""Softmax and norms along any axis: checks, argument words, kernels. See kernels/rows.py and kernels/columns.py."""

from __future__ import annotations

from math import prod
from struct import Struct
from typing import Any

import numpy as np

from ..kernels.fused_layout import COLUMNS
from .launch import ELEMS, Array, Launcher, address
from .ufuncs import inner_loop

_SOFTMAX = Struct("=11q").pack
_NORM_ROWS, _NORM_COLUMNS = Struct("=7q2d").pack, Struct("=8q2d").pack
_BOOL = np.dtype(np.bool_)


class FusedRows:
    """The kernels that reduce along one axis. What they do not serve gives None."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._loops: dict[Any, tuple[int, ...] | None] = {}

    # ----- softmax -----
    def softmax(self, part: str, x: Any, axis: Any, mask: Any = None) -> Array | None:
        """part: softmax or log_softmax; mask: bool, True takes part, broadcasting to x."""
        elem = _served(x, axis)
        if elem is None or (mask is not None and not _fits(mask, x.shape)):
            return None
        loops = self._exp_and_log(x.dtype)
        if loops is None:
            return None
        outer, n, inner = _split(x.shape, axis)
        if inner > 1:
            return self._softmax_columns(part, elem, x, (outer, n, inner), mask, loops)
        kernel = self._launcher.named(
            "rows", part, elem, "masked" if mask is not None else "", part=part, elem=elem, masked=mask is not None
        )
        if kernel is None:
            return None
        x, pitch = self._rows_of(x, n)
        hidden = None if mask is None else self._mask_rows(mask, x.shape, n)
        output = self._launcher.pool.output(x.shape, x.dtype)
        where = (0, 1) if hidden is None else (address(hidden), hidden.size // n)
        words = _SOFTMAX(outer, n, output.address, address(x), pitch, *where, *loops)
        self._launcher.run(kernel, words, self._launcher.is_parallel("transcendental", x.dtype, x.size))
        return output.finish()

    def _softmax_columns(
        self, part: str, elem: str, x: Array, extents: tuple[int, int, int], mask: Any, loops: tuple[int, ...]
    ) -> Array | None:
        kernel = self._launcher.named(
            "columns", part, elem, "masked" if mask is not None else "", part=part, elem=elem, masked=mask is not None
        )
        if kernel is None:
            return None
        x = self._launcher.dense(x)
        hidden = None if mask is None else self._launcher.dense(np.broadcast_to(mask, x.shape))
        output = self._launcher.pool.output(x.shape, x.dtype)
        parallel = self._launcher.is_parallel("transcendental", x.dtype, x.size)
        tile = self._tile(extents, parallel)
        words = _SOFTMAX(*extents, output.address, address(x), tile, 0 if hidden is None else address(hidden), *loops)
        self._launcher.run(kernel, words, parallel)
        return output.finish()

    def _exp_and_log(self, dtype: np.dtype[Any]) -> tuple[int, ...] | None:
        """NumPy's loops, as argument words; None where their addresses cannot be told."""
        try:
            return self._loops[dtype]
        except KeyError:
            exp, log = inner_loop(np.exp, dtype), inner_loop(np.log, dtype)
            found = self._loops[dtype] = None if exp is None or log is None else (*exp, *log)
            return found

    def _mask_rows(self, mask: Array, shape: tuple[int, ...], n: int) -> Array:
        """The mask as whole rows of n that repeat over the leading axes of x."""
        if shape[-1] != n:  # unit axes follow the rows
            return self._launcher.dense(np.broadcast_to(mask, shape))
        lead = 0
        while lead < mask.ndim and mask.shape[lead] == 1:
            lead += 1
        kept = mask.reshape(mask.shape[lead:])
        wanted = shape[len(shape) - max(kept.ndim, 1) :]
        return self._launcher.dense(kept if kept.shape == wanted else np.broadcast_to(kept, wanted))

    # ----- norms -----
    def norm(self, part: str, x: Any, axis: Any, weight: Any, bias: Any, eps: Any) -> Array | None:
        """part: rms_norm or layer_norm; weight, bias: [n] or None."""
        elem = _served(x, axis)
        if elem is None or type(eps) not in (float, int) or not 0 <= eps < float("inf"):
            return None
        outer, n, inner = _split(x.shape, axis)
        for extra in (weight, bias):
            if extra is not None and (type(extra) is not np.ndarray or extra.dtype != x.dtype or extra.shape != (n,)):
                return None
        module = "rows" if inner == 1 else "columns"
        weighted, biased = weight is not None, bias is not None
        names = ("weighted" if weighted else "", "biased" if biased else "")
        kernel = self._launcher.named(module, part, elem, *names, part=part, elem=elem, weighted=weighted, biased=biased)
        if kernel is None:
            return None
        weight, bias = (None if extra is None else self._launcher.dense(extra) for extra in (weight, bias))
        affine = 0 if weight is None else address(weight), 0 if bias is None else address(bias)
        parallel = self._launcher.is_parallel("map", x.dtype, x.size)
        if inner == 1:
            x, pitch = self._rows_of(x, n)
            output = self._launcher.pool.output(x.shape, x.dtype)
            words = _NORM_ROWS(outer, n, output.address, address(x), pitch, *affine, 1.0 / n, eps)
        else:
            x, tile = self._launcher.dense(x), self._tile((outer, n, inner), parallel)
            output = self._launcher.pool.output(x.shape, x.dtype)
            words = _NORM_COLUMNS(outer, n, inner, output.address, address(x), tile, *affine, 1.0 / n, eps)
        self._launcher.run(kernel, words, parallel)
        return output.finish()

    # ----- layout -----
    def _rows_of(self, x: Array, n: int) -> tuple[Array, int]:
        """x and the bytes between its rows; a copy only where rows are not dense or not evenly spaced."""
        if x.flags.c_contiguous:
            return x, n * x.itemsize
        pitch = _pitch(x) if x.shape[-1] == n else None
        return (self._launcher.dense(x), n * x.itemsize) if pitch is None else (x, pitch)

    def _tile(self, extents: tuple[int, int, int], parallel: bool) -> int:
        """Columns that a thread takes at a time: many, but few enough for every thread to get some."""
        outer, _, inner = extents
        wanted = inner * outer // self._launcher.n_threads if parallel else inner
        return max(16, min(COLUMNS, wanted + 15 & -16))


def _served(x: Any, axis: Any) -> str | None:
    """The element type, if x is an array that a kernel takes and axis one of its axes."""
    if type(x) is not np.ndarray or type(axis) is not int:
        return None
    ndim = x.ndim
    if not -ndim <= axis < ndim or not x.size:
        return None
    return ELEMS.get(x.dtype)


def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Extents before, of and after the axis."""
    if axis == -1 or axis == len(shape) - 1:
        return prod(shape[:-1]), shape[-1], 1
    axis %= len(shape)
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _pitch(x: Array) -> int | None:
    """Bytes between rows of dense elements; None where one number does not tell."""
    if x.strides[-1] != x.itemsize and x.shape[-1] != 1:
        return None
    pitch, step = 0, None
    for extent, stride in zip(x.shape[-2::-1], x.strides[-2::-1], strict=True):
        if extent == 1:
            continue
        if step is None:
            pitch = stride
        elif stride != step:
            return None
        step = extent * stride
    return pitch


def _fits(mask: Any, shape: tuple[int, ...]) -> bool:
    if type(mask) is not np.ndarray or mask.dtype != _BOOL or mask.ndim > len(shape):
        return False
    return all(n in (1, want) for n, want in zip(mask.shape[::-1], shape[::-1], strict=False))
