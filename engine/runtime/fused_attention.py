"""Rotary embedding and attention: checks and argument words. See kernels/rotary.py and kernels/sdpa.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..kernels.fused_layout import SDPA_ROWS, SDPA_STACK, sdpa_scratch_bytes
from .launch import ELEMS, Array, Launcher
from .operands import change_to, dense, dense_strides, with_dense_rows
from .prepared import RESULT, SCRATCH, Place, PreparedCall, Word

_BOOL = np.dtype(np.bool_)


class FusedAttention:
    """The kernels of attention. What they do not serve gives None."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def rope(self, op: str, x: Any, cos: Any, sin: Any) -> PreparedCall | None:
        """op: rope, rope_i or rope_thd; operands as the op's."""
        if any(type(array) is not np.ndarray for array in (x, cos, sin)):
            return None
        dtype, shape = x.dtype, x.shape
        elem = ELEMS.get(dtype)
        if elem is None or cos.dtype != dtype or sin.dtype != dtype or len(shape) != 4 or not x.size or shape[3] % 2:
            return None
        table, token_axis = cos.shape, 1 if op == "rope_thd" else 2
        if table != sin.shape or len(table) not in (2, 3) or table[-1] != shape[3] // 2 or table[-2] < shape[token_axis]:
            return None
        if len(table) == 3 and table[0] != shape[0]:
            return None
        kernel = self._launcher.named("rotary", elem, "pairs" if op == "rope_i" else "", elem=elem, interleaved=op == "rope_i")
        if kernel is None:
            return None
        change, strides = with_dense_rows(self._launcher, x)
        steps = dense_strides(table, dtype.itemsize)
        words = (
            *(*shape[:3], shape[3] // 2, *strides[:3]),
            *(RESULT, Place(1), Place(2), Place(3)),
            *(steps[-2], steps[0] if len(table) == 3 else 0, token_axis),
        )
        changes = change, dense(self._launcher, cos), dense(self._launcher, sin)
        return PreparedCall(self._launcher, kernel, words, shape, dtype, "map", x.size, changes)

    def sdpa(self, op: str, q: Any, k: Any, v: Any, mask: Any, causal: Any, scale: Any, softcap: Any) -> PreparedCall | None:
        """Operands as the op's; scale None: D**-0.5."""
        if any(type(x) is not np.ndarray or x.dtype != q.dtype or x.ndim != 4 or not x.size for x in (q, k, v)):
            return None
        elem, (batch, heads, tokens, dim), (_, groups, keys, _), columns = ELEMS.get(q.dtype), q.shape, k.shape, v.shape[3]
        if elem is None or k.shape[0] != batch or k.shape[3] != dim or heads % groups or v.shape[:3] != k.shape[:3]:
            return None
        if (causal and tokens > keys) or not _finite(softcap) or softcap <= 0 or not (scale is None or _finite(scale)):
            return None
        full = batch, heads, tokens, keys
        if mask is not None and not _fits(mask, full, q.dtype):
            return None
        kind = "none" if mask is None else "bool" if mask.dtype == _BOOL else "add"
        capped = softcap != 1
        kernel = self._launcher.named("sdpa", elem, kind, "capped" if capped else "", elem=elem, mask=kind, capped=capped)
        if kernel is None:
            return None
        changes, strides = zip(*(with_dense_rows(self._launcher, x) for x in (q, k, v)), strict=True)
        seen: tuple[Word, ...] = (0, 0, 0, 0)
        if mask is not None:
            change, view = change_to(lambda mask: self._mask_view(mask, full), mask)
            changes, seen = (*changes, change), (Place(4), *view.strides[:3])
        part = sdpa_scratch_bytes(dim, q.itemsize)
        words = (
            *(batch, heads, groups, tokens, keys, dim, columns, RESULT, Place(1), Place(2), Place(3)),
            *(step for each in strides for step in each[:3]),
            *(*seen, bool(causal), 0 if part <= SDPA_STACK else SCRATCH, part),
            *(float(dim**-0.5 if scale is None else scale), 1.0 / softcap, float(softcap)),
        )
        units = batch * groups * -(-heads // groups * tokens // SDPA_ROWS)
        shape, own = (batch, heads, tokens, columns), part if part > SDPA_STACK else 0
        return PreparedCall(self._launcher, kernel, words, shape, q.dtype, "transcendental", math.prod(full), changes, own, units > 1)

    def _mask_view(self, mask: Array, full: tuple[int, ...]) -> Array:
        """The mask as a view [B, H, T, S] whose rows are whole; its other axes may stay broadcast."""
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        if mask.shape[3] != full[3]:
            mask = np.broadcast_to(mask, (*mask.shape[:3], full[3]))
        if with_dense_rows(self._launcher, mask)[0] is not None:
            mask = self._launcher.dense(mask)
        return np.broadcast_to(mask, full)


def _fits(mask: Any, full: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    if type(mask) is not np.ndarray or mask.dtype not in (_BOOL, dtype) or mask.ndim > 4:
        return False
    return all(n in (1, want) for n, want in zip(mask.shape[::-1], full[::-1], strict=False))


def _finite(number: Any) -> bool:
    return type(number) in (float, int) and math.isfinite(number)
