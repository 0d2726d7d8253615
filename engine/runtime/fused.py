"""Fused kernels for arrays: which operands they serve. Kernels check nothing, so all they rely on is checked here, once:
what operands of these types, shapes, strides and attributes need is kept as a prepared call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ContextMismatch
from ..kernels.fused_layout import ACTIVATION_LOOPS
from .fused_activations import FusedActivations
from .fused_attention import FusedAttention
from .fused_rows import FusedRows
from .launch import Array, Launcher
from .prepared import PreparedCall

MOST_CALLS = 1024  # that are kept; lengths that grow with every call would fill any memory

_IDS = frozenset(map(np.dtype, (np.int32, np.int64, np.uint32)))
_UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
_TABLES = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))

Prepare = Callable[..., PreparedCall | None]
_ndarray = np.ndarray


class FusedKernels:
    """The fused kernels of one engine."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        rows, attention, activations = FusedRows(launcher), FusedAttention(launcher), FusedActivations(launcher)
        self._prepare: dict[str, Prepare] = {
            **dict.fromkeys(ACTIVATION_LOOPS, activations.activation),
            "gated_silu": activations.gated_silu,
            "swiglu": activations.swiglu,
            **dict.fromkeys(("softmax", "log_softmax"), rows.softmax),
            **dict.fromkeys(("masked_softmax", "masked_log_softmax"), rows.masked_softmax),
            **dict.fromkeys(("rms_norm", "layer_norm"), rows.norm),
            **dict.fromkeys(("rope", "rope_i", "rope_thd"), attention.rope),
            "sdpa": attention.sdpa,
        }
        self._calls: dict[Any, PreparedCall | None] = {}

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int) -> bool:
        """Whether a team pays for so many elements of a class of the cost model."""
        return self.launcher.is_parallel(kind, dtype, elements)

    def call(self, op: str, bound: Sequence[Any]) -> Array | None:
        """The op on its operands and attributes, in the op's order; None: no kernel serves these."""
        arrays: list[Array] = []
        key: list[Any] = [op]
        put = key.append
        for value in bound:
            if type(value) is _ndarray:
                arrays.append(value)
                put(value.dtype)
                put(value.shape)
                if not value.flags.c_contiguous:
                    put(value.strides)
            elif value is None:
                put(None)
            else:
                put(type(value))  # True is no axis, yet it equals 1
                put(value)
        try:
            prepared = self._calls[tuple(key)]
        except KeyError:
            if len(self._calls) >= MOST_CALLS:
                self._calls.clear()
            prepared = self._calls[tuple(key)] = self.prepare(op, *bound)
        except TypeError:  # what cannot be a key is nothing that a kernel takes
            return None
        return None if prepared is None else prepared.run(arrays)

    def prepare(self, op: str, *bound: Any) -> PreparedCall | None:
        """The call for operands like these, its checks done."""
        if any(hasattr(value, "__face__") for value in bound):
            raise ContextMismatch(f"{op}: fused kernel: expected arrays, got a tracked or traced value, whose gradient it would lose")
        prepare = self._prepare.get(op)
        return None if prepare is None or self.launcher.prepared is None else prepare(op, *bound)

    def embedding(self, ids: Any, table: Any) -> Array | None:
        """Rows of a table, by NumPy's own kernel."""
        if type(ids) is not np.ndarray or type(table) is not np.ndarray or table.ndim != 2 or not table.flags.c_contiguous:
            return None
        if ids.dtype not in _IDS or table.dtype not in _TABLES or not ids.size:
            return None
        # As unsigned numbers, negative ids are beyond any table.
        if np.maximum.reduce(ids.view(_UNSIGNED[ids.itemsize]), None) >= len(table):
            return None
        out = self.launcher.pool.empty((*ids.shape, table.shape[1]), table.dtype)
        return table.take(ids, 0, out, "clip")  # any other mode makes a copy on the way
