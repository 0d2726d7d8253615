"""Fused kernels for arrays: which operands they serve, their arguments, and whether threads pay.

Every method returns None for what it does not serve; it checks all that a kernel relies on, since kernels check nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..kernels.sdpa_layout import COLUMNS, SDPA_ROWS, sdpa_scratch_bytes
from .arrays import aligned_zeros
from .cost import CostModel, cost_model
from .launch import Kernel, Launcher, address
from .pool import BufferPool
from .regions import ACTIVATIONS, ELEMS, Array, Region
from .store import KernelSpec

_ALWAYS_SERIAL = 2048  # elements: no dispatch pays below, so the cost model is not even asked for


class FusedKernels:
    """The fused kernels of one engine."""

    def __init__(self, launcher: Launcher, pool: BufferPool, n_threads: int) -> None:
        self.launcher, self.pool, self.n_threads = launcher, pool, n_threads
        self._named: dict[tuple[str, Any], tuple[Region, Kernel] | None] = {}

    @cached_property
    def costs(self) -> CostModel:
        """When threads pay; measured or read at the first operands that are large enough."""
        return cost_model(self.n_threads, self.launcher.run_nothing)

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int) -> bool:
        if self.n_threads == 1 or elements < _ALWAYS_SERIAL:
            return False
        return self.costs.is_parallel(kind, dtype, elements, self.n_threads)

    # ----- elementwise -----
    def named(self, name: str, inputs: Sequence[Any]) -> Array | None:
        """A registered region (an activation) on arrays of one shape and type."""
        first = inputs[0]
        if type(first) is not np.ndarray:
            return None
        key = (name, first.dtype)
        try:
            entry = self._named[key]
        except KeyError:
            entry = self._named[key] = self._load(name, first.dtype)
        if entry is None or first.size == 0:
            return None
        for other in inputs[1:]:
            if type(other) is not np.ndarray or other.dtype != first.dtype or other.shape != first.shape:
                return None
        region, kernel = entry
        return self._run_region(region, kernel, inputs, first.shape, first.dtype)[0]

    def _load(self, name: str, dtype: np.dtype[Any]) -> tuple[Region, Kernel] | None:
        elem, source = ELEMS.get(dtype), ACTIVATIONS.get(name)
        if elem is None or source is None:
            return None
        region = source(elem)
        kernel = self.launcher.kernel(region.spec(elem, [False] * region.n_inputs))
        return None if kernel is None else (region, kernel)

    def region(self, region: Region, inputs: Sequence[Array], shape: tuple[int, ...]) -> list[Array] | None:
        """Run a region; inputs have ``shape`` or are single numbers of shape ()."""
        dtype = inputs[0].dtype
        kernel = self.prepare_region(region, dtype, [x.ndim == 0 and shape != () for x in inputs])
        return None if kernel is None else self._run_region(region, kernel, inputs, shape, dtype)

    def prepare_region(self, region: Region, dtype: np.dtype[Any], scalars: Sequence[bool]) -> Kernel | None:
        """Compile or load a region's kernel ahead of its runs."""
        elem = ELEMS.get(dtype)
        return None if elem is None else self.launcher.kernel(region.spec(elem, scalars))

    def _run_region(
        self, region: Region, kernel: Kernel, inputs: Sequence[Array], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> list[Array]:
        flat = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in inputs]
        size = prod(shape)
        outputs = [self.pool.empty(shape, dtype) for _ in region.outputs]
        words = [size, *map(address, outputs), *map(address, flat)]
        self.launcher.run(kernel, words, self.is_parallel(region.kind, dtype, size))
        return outputs

    # ----- rows -----
    def softmax(self, x: Any, axis: Any, mask: Any = None) -> Array | None:
        elem = ELEMS.get(getattr(x, "dtype", None))
        if elem is None or type(x) is not np.ndarray or x.ndim == 0 or x.size == 0 or type(axis) is not int or not -x.ndim <= axis < x.ndim:
            return None
        axis %= x.ndim
        if axis != x.ndim - 1:
            return None if mask is not None else self._softmax_columns(elem, x, axis)
        n = x.shape[-1]
        words: list[int] = []
        keep = None
        if mask is not None:
            keep = self._mask_rows(mask, x.shape)
            if keep is None:
                return None
            words = [address(keep), keep.size // n]
        kernel = self.launcher.kernel(KernelSpec.of("rows", part="softmax", elem=elem, masked=mask is not None))
        return None if kernel is None else self._run_rows(kernel, x, words, "transcendental")

    def _softmax_columns(self, elem: str, x: Array, axis: int) -> Array | None:
        inner = prod(x.shape[axis + 1 :])
        if inner < 16:  # hardly a vector: the composite is as good
            return None
        kernel = self.launcher.kernel(KernelSpec.of("rows", part="softmax_columns", elem=elem))
        if kernel is None:
            return None
        x = np.ascontiguousarray(x)
        out = self.pool.empty(x.shape, x.dtype)
        words = [prod(x.shape[:axis]), x.shape[axis], inner, address(out), address(x)]
        self.launcher.run(kernel, words, self.is_parallel("transcendental", x.dtype, x.size))
        return out

    @staticmethod
    def _mask_rows(mask: Any, shape: tuple[int, ...]) -> Array | None:
        """The mask as whole rows that repeat over the leading axes of x; None if it does not fit."""
        if type(mask) is not np.ndarray or mask.dtype != np.bool_ or mask.ndim > len(shape):
            return None
        if any(n not in (1, want) for n, want in zip(mask.shape[::-1], shape[::-1], strict=False)):
            return None
        lead = 0
        while lead < mask.ndim and mask.shape[lead] == 1:
            lead += 1
        kept = mask.reshape(mask.shape[lead:]) if lead else mask
        wanted = shape[len(shape) - max(kept.ndim, 1) :]
        return np.ascontiguousarray(kept if kept.shape == wanted else np.broadcast_to(kept, wanted))

    def norm(self, part: str, x: Any, axis: Any, weight: Any, bias: Any, eps: Any) -> Array | None:
        elem = ELEMS.get(getattr(x, "dtype", None))
        if elem is None or type(x) is not np.ndarray or x.ndim == 0 or x.size == 0:
            return None
        if type(axis) is not int or (axis != -1 and axis != x.ndim - 1) or type(eps) is not float or not 0 <= eps < float("inf"):
            return None
        n = x.shape[-1]
        keep, words = [], []
        for extra in (weight, bias):
            if extra is None:
                words.append(0)
                continue
            if type(extra) is not np.ndarray or extra.dtype != x.dtype or extra.shape != (n,):
                return None
            keep.append(np.ascontiguousarray(extra))
            words.append(address(keep[-1]))
        spec = KernelSpec.of("rows", part=part, elem=elem, weighted=weight is not None, biased=bias is not None)
        kernel = self.launcher.kernel(spec)
        if kernel is None:
            return None
        numbers = np.array([1.0 / n, eps], x.dtype)
        return self._run_rows(kernel, x, [*words, address(numbers)], "map")

    def _run_rows(self, kernel: Kernel, x: Array, words: Sequence[int], kind: str) -> Array:
        if not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        out = self.pool.empty(x.shape, x.dtype)
        n = x.shape[-1]
        self.launcher.run(kernel, [x.size // n, n, address(out), address(x), *words], self.is_parallel(kind, x.dtype, x.size))
        return out

    # ----- attention -----
    def rope(self, op: str, x: Any, cos: Any, sin: Any) -> Array | None:
        dtype = getattr(x, "dtype", None)
        elem = ELEMS.get(dtype)
        if elem is None or any(type(v) is not np.ndarray or v.dtype != dtype for v in (x, cos, sin)):
            return None
        token_axis = 1 if op == "rope_thd" else 2
        if x.ndim != 4 or x.size == 0 or x.shape[3] % 2 or cos.shape != sin.shape or cos.ndim not in (2, 3):
            return None
        tokens, half = x.shape[token_axis], x.shape[3] // 2
        if cos.shape[-1] != half or cos.shape[-2] < tokens or (cos.ndim == 3 and cos.shape[0] != x.shape[0]):
            return None
        kernel = self.launcher.kernel(KernelSpec.of("rotary", elem=elem, interleaved=op == "rope_i"))
        if kernel is None:
            return None
        x = _with_dense_rows(x)
        cos, sin = np.ascontiguousarray(cos), np.ascontiguousarray(sin)
        out = self.pool.empty(x.shape, x.dtype)
        batch = cos.strides[0] if cos.ndim == 3 else 0
        words = [*x.shape[:3], half, *x.strides[:3], address(out), address(x), address(cos), address(sin)]
        self.launcher.run(kernel, [*words, cos.strides[-2], batch, token_axis], self.is_parallel("map", x.dtype, x.size))
        return out

    def sdpa(self, q: Any, k: Any, v: Any, mask: Any, causal: Any, scale: Any, softcap: Any) -> Array | None:
        dtype = getattr(q, "dtype", None)
        elem = ELEMS.get(dtype)
        if elem is None or any(type(x) is not np.ndarray or x.dtype != dtype or x.ndim != 4 or x.size == 0 for x in (q, k, v)):
            return None
        batch, heads, tokens, dim = q.shape
        if k.shape[0] != batch or k.shape[3] != dim or heads % k.shape[1] or v.shape[:3] != k.shape[:3] or v.shape[3] % COLUMNS:
            return None
        if (causal and tokens > k.shape[2]) or not isinstance(softcap, (int, float)) or not 0 < softcap < float("inf"):
            return None
        factor = dim**-0.5 if scale is None else scale
        full = (batch, heads, tokens, k.shape[2])
        seen = _mask_view(mask, full, q.dtype)
        if seen is None or not isinstance(factor, (int, float)) or not abs(factor) < float("inf"):
            return None
        kind, mask_array = seen
        kernel = self.launcher.kernel(KernelSpec.of("sdpa", elem=elem, mask=kind, capped=softcap != 1))
        if kernel is None:
            return None
        q, k, v = _with_dense_rows(q), _with_dense_rows(k), _with_dense_rows(v)
        out = self.pool.empty((batch, heads, tokens, v.shape[3]), q.dtype)
        settings = np.array([factor, 1.0 / softcap, softcap], q.dtype)
        groups = heads // k.shape[1]
        threads = min(self.n_threads, batch * k.shape[1] * -(-groups * tokens // SDPA_ROWS))
        parallel = threads > 1 and self.is_parallel("transcendental", q.dtype, prod(full))
        part = sdpa_scratch_bytes(dim, q.itemsize)
        scratch = aligned_zeros(part * (self.n_threads if parallel else 1))
        words = [batch, heads, k.shape[1], tokens, k.shape[2], dim, v.shape[3], address(out), address(q), address(k), address(v)]
        words += [*q.strides[:3], *k.strides[:3], *v.strides[:3], address(mask_array), *mask_array.strides[:3]]
        words += [int(bool(causal)), address(settings), address(scratch), part]
        self.launcher.run(kernel, words, parallel)
        return out


def _with_dense_rows(x: Array) -> Array:
    """x, copied only if the elements of its last axis do not lie side by side."""
    return x if x.strides[-1] == x.itemsize or x.shape[-1] == 1 else np.ascontiguousarray(x)


def _mask_view(mask: Any, full: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[str, Array] | None:
    """(kind, mask as a view [B, H, T, S] with dense rows); None if it does not fit."""
    if mask is None:
        return "none", np.zeros((1, 1, 1, 1), np.bool_)
    if type(mask) is not np.ndarray or mask.dtype not in (np.dtype(np.bool_), dtype) or mask.ndim > 4:
        return None
    if any(n not in (1, want) for n, want in zip(mask.shape[::-1], full[::-1], strict=False)):
        return None
    if mask.ndim == 0 or mask.shape[-1] != full[3]:
        mask = np.broadcast_to(mask, (*(1,) * (3 - max(mask.ndim - 1, 0)), *mask.shape[:-1], full[3]) if mask.ndim else (1, 1, 1, full[3]))
        mask = np.ascontiguousarray(mask)
    return "bool" if mask.dtype == np.bool_ else "add", np.broadcast_to(_with_dense_rows(mask), full)
