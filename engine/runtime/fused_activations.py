"""Activations: checks and argument words. See kernels/fused_elementwise.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.fused_layout import ACTIVATION_LOOPS
from .launch import ELEMS, Array, Kernel, Launcher
from .operands import dense, pitch_of
from .prepared import RESULT, Place, PreparedCall, Word
from .ufuncs import inner_loop

_X, _UP = Place(1), Place(2)


class FusedActivations:
    """The elementwise kernels. What they do not serve gives None."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def activation(self, op: str, x: Any, number: Any = 0.0) -> PreparedCall | None:
        """op: a key of `ACTIVATION_LOOPS` but gated_silu; number: the parameter of those that take one."""
        loaded = self._load(op, x)
        if loaded is None or type(number) not in (float, int):
            return None
        n, (pitch,), changes = self._rows(x)
        return self._call(loaded, x.shape, x.dtype, (n, RESULT, _X, pitch, 0, 0, float(number)), changes)

    def gated_silu(self, op: str, gate: Any, up: Any) -> PreparedCall | None:
        """up: of gate's shape and dtype."""
        loaded = self._load(op, gate)
        if loaded is None or type(up) is not np.ndarray or up.dtype != gate.dtype or up.shape != gate.shape:
            return None
        n, pitches, changes = self._rows(gate, up)
        return self._call(loaded, gate.shape, gate.dtype, (n, RESULT, _X, pitches[0], _UP, pitches[1], 0.0), changes)

    def swiglu(self, op: str, x: Any) -> PreparedCall | None:
        """x: [..., 2F]: gates, and beside them what they gate."""
        loaded = self._load("gated_silu", x)
        if loaded is None or not x.ndim or x.shape[-1] % 2:
            return None
        n, pitch = x.shape[-1] // 2, pitch_of(x)
        changes = (dense(self._launcher, x) if pitch is None else None,)
        pitch = 2 * n * x.itemsize if pitch is None else pitch
        words = n, RESULT, _X, pitch, Place(1, n * x.itemsize), pitch, 0.0
        return self._call(loaded, (*x.shape[:-1], n), x.dtype, words, changes)

    def _load(self, op: str, x: Any) -> tuple[Kernel, tuple[int, ...]] | None:
        """The kernel, and the (function, data) of each loop that ends its words."""
        names = ACTIVATION_LOOPS.get(op)
        if type(x) is not np.ndarray or names is None or not x.size:
            return None
        elem = ELEMS.get(x.dtype)
        loops = [inner_loop(getattr(np, name), x.dtype) for name in names]
        kernel = None if elem is None else self._launcher.named("fused_elementwise", op, elem, op=op, elem=elem)
        if kernel is None or None in loops:
            return None
        return kernel, tuple(word for loop in loops if loop is not None for word in loop)

    def _rows(self, *operands: Array) -> tuple[int, tuple[int, ...], tuple[Any, ...]]:
        """(elements of a row, bytes between rows of each operand, changes): one row if all are dense, else that of the last axis."""
        if all(x.flags.c_contiguous for x in operands):
            return operands[0].size, (0,) * len(operands), (None,) * len(operands)
        n, size = operands[0].shape[-1], operands[0].itemsize
        pitches = [pitch_of(x) for x in operands]
        changes = tuple(dense(self._launcher, x) if pitch is None else None for x, pitch in zip(operands, pitches, strict=True))
        return n, tuple(n * size if pitch is None else pitch for pitch in pitches), changes

    def _call(
        self, loaded: tuple[Kernel, tuple[int, ...]], shape: tuple[int, ...], dtype: np.dtype[Any], words: tuple[Word, ...], changes: Any
    ) -> PreparedCall:
        kernel, loops = loaded
        size = int(np.prod(shape))
        return PreparedCall(self._launcher, kernel, (size, *words, *loops), shape, dtype, "transcendental", size, changes)
