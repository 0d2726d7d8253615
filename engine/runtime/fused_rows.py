"""Softmax and norms along any axis: checks and argument words. See kernels/rows.py and kernels/columns.py."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .launch import ELEMS, Array, Launcher
from .operands import change_to, dense, pitch_of
from .prepared import RESULT, Change, Place, PreparedCall, Word
from .ufuncs import inner_loop

_BOOL = np.dtype(np.bool_)
_X = Place(1)


class FusedRows:
    """The kernels that reduce along one axis. What they do not serve gives None."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    # ----- softmax -----
    def softmax(self, op: str, x: Any, axis: Any) -> PreparedCall | None:
        """op: softmax or log_softmax."""
        return self._softmax(op, x, axis)

    def masked_softmax(self, op: str, x: Any, mask: Any, axis: Any) -> PreparedCall | None:
        """op: masked_softmax or masked_log_softmax; mask: bool, True takes part, broadcasting to x."""
        return self._softmax(op.removeprefix("masked_"), x, axis, mask)

    def _softmax(self, part: str, x: Any, axis: Any, *masks: Any) -> PreparedCall | None:
        elem = _served(x, axis)
        if elem is None or not all(_fits(mask, x.shape) for mask in masks):
            return None
        exp, log = inner_loop(np.exp, x.dtype), inner_loop(np.log, x.dtype)
        outer, n, inner = _split(x.shape, axis)
        module, masked = "rows" if inner == 1 else "columns", bool(masks)
        kernel = self._launcher.named(module, part, elem, "masked" if masked else "", part=part, elem=elem, masked=masked)
        if kernel is None or exp is None or log is None:
            return None
        shown: tuple[Word, ...] = (0, 1)
        if inner == 1:
            change, pitch = self._rows_of(x, n)
            changes = [change]
            for mask in masks:
                change, rows = change_to(lambda mask: self._mask_rows(mask, x.shape, n), mask)
                changes, shown = [*changes, change], (Place(2), rows.size // n)
            words: tuple[Word, ...] = (outer, n, RESULT, _X, pitch, *shown, *exp, *log)
        else:
            changes = [dense(self._launcher, x)]
            for mask in masks:
                change, _ = change_to(lambda mask: self._launcher.dense(np.broadcast_to(mask, x.shape)), mask)
                changes, shown = [*changes, change], (Place(2),)
            words = (outer, n, inner, RESULT, _X, shown[0], *exp, *log)
        return PreparedCall(self._launcher, kernel, words, x.shape, x.dtype, "transcendental", x.size, changes)

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
    def norm(self, part: str, x: Any, axis: Any, weight: Any, bias: Any, eps: Any) -> PreparedCall | None:
        """part: rms_norm or layer_norm; weight, bias: [n] or None."""
        elem = _served(x, axis)
        if elem is None or type(eps) not in (float, int) or not 0 <= eps < float("inf"):
            return None
        outer, n, inner = _split(x.shape, axis)
        affine: list[Word] = []
        changes: list[Change | None] = []
        for extra in (weight, bias):
            if extra is not None:
                if type(extra) is not np.ndarray or extra.dtype != x.dtype or extra.shape != (n,):
                    return None
                changes.append(dense(self._launcher, extra))
            affine.append(0 if extra is None else Place(1 + len(changes)))
        module = "rows" if inner == 1 else "columns"
        weighted, biased = weight is not None, bias is not None
        names = ("weighted" if weighted else "", "biased" if biased else "")
        kernel = self._launcher.named(module, part, elem, *names, part=part, elem=elem, weighted=weighted, biased=biased)
        if kernel is None:
            return None
        if inner == 1:
            change, pitch = self._rows_of(x, n)
            words: tuple[Word, ...] = (outer, n, RESULT, _X, pitch, *affine, 1.0 / n, float(eps))
        else:
            change = dense(self._launcher, x)
            words = (outer, n, inner, RESULT, _X, *affine, 1.0 / n, float(eps))
        return PreparedCall(self._launcher, kernel, words, x.shape, x.dtype, "map", x.size, [change, *changes])

    def _rows_of(self, x: Array, n: int) -> tuple[Change | None, int]:
        """(what to do to x, bytes between its rows then); a copy only where rows are not dense or not evenly spaced."""
        pitch = None if x.flags.c_contiguous or x.shape[-1] != n else pitch_of(x)
        return (dense(self._launcher, x), n * x.itemsize) if pitch is None else (None, pitch)


def _served(x: Any, axis: Any) -> str | None:
    """The element type, if x is an array that a kernel takes and axis one of its axes."""
    if type(x) is not np.ndarray or type(axis) is not int:
        return None
    if not -x.ndim <= axis < x.ndim or not x.size:
        return None
    return ELEMS.get(x.dtype)


def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Extents before, of and after the axis."""
    axis %= len(shape)
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _fits(mask: Any, shape: tuple[int, ...]) -> bool:
    if type(mask) is not np.ndarray or mask.dtype != _BOOL or mask.ndim > len(shape):
        return False
    return all(n in (1, want) for n, want in zip(mask.shape[::-1], shape[::-1], strict=False))
