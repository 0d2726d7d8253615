"""Fused kernels for arrays: which operands they serve, and whether threads pay.

Every method returns None for what it does not serve; it checks all that a kernel relies on, since kernels check nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from ..kernels.fused_layout import ACTIVATION_LOOPS
from .fused_attention import FusedAttention
from .fused_rows import FusedRows
from .launch import ELEMS, Array, Kernel, Launcher, address
from .ufuncs import inner_loop

_PACK = tuple(Struct(f"={n}q").pack for n in range(12))


class _Activation:
    """A loaded activation: its kernel, and the loops that end its argument words."""

    __slots__ = ("kernel", "loops", "pack")

    def __init__(self, kernel: Kernel, loops: tuple[int, ...]) -> None:
        self.kernel, self.loops = kernel, loops
        self.pack = _PACK[4 + len(loops)]


class FusedKernels:
    """The fused kernels of one engine."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self._rows, self._attention = FusedRows(launcher), FusedAttention(launcher)
        self._activations: dict[Any, _Activation | None] = {}

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int) -> bool:
        """Whether a team pays for so many elements of a class of the cost model."""
        return self.launcher.is_parallel(kind, dtype, elements)

    # ----- elementwise -----
    def activation(self, op: str, x: Any, up: Any = None) -> Array | None:
        """op: a key of `ACTIVATION_LOOPS`; up: the other operand of gated_silu, of the same shape and dtype."""
        if type(x) is not np.ndarray:
            return None
        dtype = x.dtype
        try:
            entry = self._activations[op, dtype]
        except KeyError:
            entry = self._activations[op, dtype] = self._load_activation(op, dtype)
        size = x.size
        if entry is None or not size:
            return None
        if not x.flags.c_contiguous:
            x = self.launcher.dense(x)
        other = 0
        if op == "gated_silu":
            if type(up) is not np.ndarray or up.dtype != dtype or up.shape != x.shape:
                return None
            up = self.launcher.dense(up)
            other = address(up)
        output = self.launcher.pool.output(x.shape, dtype)
        words = entry.pack(size, output.address, address(x), other, *entry.loops)
        self.launcher.run(entry.kernel, words, self.launcher.is_parallel("transcendental", dtype, size))
        return output.finish()

    def _load_activation(self, op: str, dtype: np.dtype[Any]) -> _Activation | None:
        elem, names = ELEMS.get(dtype), ACTIVATION_LOOPS.get(op)
        if elem is None or names is None:
            return None
        loops = [inner_loop(getattr(np, name), dtype) for name in names]
        kernel = self.launcher.named("fused_elementwise", op, elem, op=op, elem=elem)
        if kernel is None or None in loops:
            return None
        return _Activation(kernel, tuple(word for loop in loops if loop is not None for word in loop))

    # ----- rows and attention -----
    def softmax(self, part: str, x: Any, axis: Any, mask: Any = None) -> Array | None:
        """part: softmax or log_softmax; mask: bool or None."""
        return self._rows.softmax(part, x, axis, mask)

    def norm(self, part: str, x: Any, axis: Any, weight: Any, bias: Any, eps: Any) -> Array | None:
        """part: rms_norm or layer_norm."""
        return self._rows.norm(part, x, axis, weight, bias, eps)

    def rope(self, op: str, x: Any, cos: Any, sin: Any) -> Array | None:
        """op: rope, rope_i or rope_thd."""
        return self._attention.rope(op, x, cos, sin)

    def sdpa(self, q: Any, k: Any, v: Any, mask: Any, causal: Any, scale: Any, softcap: Any) -> Array | None:
        """Attention over grouped heads; mask: bool, of q's dtype, or None."""
        return self._attention.sdpa(q, k, v, mask, causal, scale, softcap)
