"""Rotary embedding and attention: checks, argument words, kernels. See kernels/rotary.py and kernels/sdpa.py."""

from __future__ import annotations

import math
from struct import Struct
from typing import Any

import numpy as np

from ..kernels.fused_layout import SDPA_ROWS, VALUE_COLUMNS, sdpa_scratch_bytes
from .launch import ELEMS, Array, Launcher, address

_ROPE, _SDPA = Struct("=14q").pack, Struct("=27q3d").pack
_BOOL, _BYTES = np.dtype(np.bool_), np.dtype(np.uint8)
_NO_MASK = np.ones((1, 1, 1, 1), np.bool_)


class FusedAttention:
    """The kernels of attention. What they do not serve gives None."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def rope(self, op: str, x: Any, cos: Any, sin: Any) -> Array | None:
        """op: rope, rope_i or rope_thd; operands as the op's."""
        if type(x) is not np.ndarray or type(cos) is not np.ndarray or type(sin) is not np.ndarray:
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
        x, cos, sin = self._with_dense_rows(x), self._launcher.dense(cos), self._launcher.dense(sin)
        output = self._launcher.pool.output(shape, dtype)
        batch = cos.strides[0] if len(table) == 3 else 0
        words = _ROPE(
            *shape[:3],
            shape[3] // 2,
            *x.strides[:3],
            output.address,
            address(x),
            address(cos),
            address(sin),
            cos.strides[-2],
            batch,
            token_axis,
        )
        self._launcher.run(kernel, words, self._launcher.is_parallel("map", dtype, x.size))
        return output.finish()

    def sdpa(self, q: Any, k: Any, v: Any, mask: Any, causal: Any, scale: Any, softcap: Any) -> Array | None:
        """Operands as the op's; scale None: D**-0.5."""
        if any(type(x) is not np.ndarray or x.dtype != q.dtype or x.ndim != 4 or not x.size for x in (q, k, v)):
            return None
        elem, (batch, heads, tokens, dim), (_, groups, keys, _), columns = ELEMS.get(q.dtype), q.shape, k.shape, v.shape[3]
        if (
            elem is None
            or k.shape[0] != batch
            or k.shape[3] != dim
            or heads % groups
            or v.shape[:3] != k.shape[:3]
            or columns % VALUE_COLUMNS
        ):
            return None
        if (causal and tokens > keys) or not _finite(softcap) or softcap <= 0 or not (scale is None or _finite(scale)):
            return None
        seen = self._mask_view(mask, (batch, heads, tokens, keys), q.dtype)
        if seen is None:
            return None
        kind, hidden = seen
        kernel = self._launcher.named("sdpa", elem, kind, "capped" if softcap != 1 else "", elem=elem, mask=kind, capped=softcap != 1)
        if kernel is None:
            return None
        q, k, v = self._with_dense_rows(q), self._with_dense_rows(k), self._with_dense_rows(v)
        output = self._launcher.pool.output((batch, heads, tokens, columns), q.dtype)
        units = batch * groups * -(-heads // groups * tokens // SDPA_ROWS)
        parallel = units > 1 and self._launcher.is_parallel("transcendental", q.dtype, batch * heads * tokens * keys)
        part = sdpa_scratch_bytes(dim, q.itemsize)
        scratch = self._launcher.pool.output((part * (self._launcher.n_threads if parallel else 1),), _BYTES)
        factor = dim**-0.5 if scale is None else scale
        words = _SDPA(
            *(batch, heads, groups, tokens, keys, dim, columns),
            *(output.address, address(q), address(k), address(v)),
            *(*q.strides[:3], *k.strides[:3], *v.strides[:3]),
            *(address(hidden), *hidden.strides[:3]),
            *(bool(causal), scratch.address, part),
            *(factor, 1.0 / softcap, softcap),
        )
        self._launcher.run(kernel, words, parallel)
        return output.finish()

    def _with_dense_rows(self, x: Array) -> Array:
        """x, copied only if the elements of its last axis do not lie side by side."""
        return x if x.strides[-1] == x.itemsize or x.shape[-1] == 1 else self._launcher.dense(x)

    def _mask_view(self, mask: Any, full: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[str, Array] | None:
        """(kind, mask as a view [B, H, T, S] with dense rows); None if it does not fit."""
        if mask is None:
            return "none", _NO_MASK
        if type(mask) is not np.ndarray or mask.dtype not in (_BOOL, dtype) or mask.ndim > 4:
            return None
        if any(n not in (1, want) for n, want in zip(mask.shape[::-1], full[::-1], strict=False)):
            return None
        # Rows have to be whole; the other axes may stay broadcast.
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        if mask.shape[3] != full[3]:
            mask = np.broadcast_to(mask, (*mask.shape[:3], full[3]))
        return "bool" if mask.dtype == _BOOL else "add", np.broadcast_to(self._with_dense_rows(mask), full)


def _finite(number: Any) -> bool:
    return type(number) in (float, int) and math.isfinite(number)
