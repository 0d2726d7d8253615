"""The engine: what runs ops. It owns the buffer pool, the cost model and the fused kernels that ops may ask for.

with Engine(n_threads=1, pool_limit=0):
    ops.softmax(x, -1)
"""

from __future__ import annotations

import os
import weakref
from contextvars import ContextVar, Token
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ClosedError, InvalidArgument
from .cost import ENV_COST, parsed_overrides
from .cpus import usable_cpus
from .fused import FusedKernels
from .launch import Launcher
from .pool import BufferPool, valid_limit
from .team import Team

ENV_COMPOSITES = "LLAMITA_COMPOSITES_ONLY"
_current: ContextVar[Engine | None] = ContextVar("engine", default=None)
_default: Engine | None = None


class Engine:
    """Runs ops for a block of code (``with Engine(...):``) or, as the default one, everywhere else.

    Hooks (``fused_*``) return None when no fused kernel serves these operands; the op then takes its composite.
    A hook never raises for a dtype, rank, axis or layout: naming the error is the composite's task.

    Args:
        n_threads: threads for kernels; None: the CPUs that this process may use.
        pool_limit: idle bytes that the buffer pool may retain; None: the environment variable
            ``LLAMITA_POOL_LIMIT`` or 100 MiB; 0 retains nothing.
        activations: bits that activations are rounded to before they meet quantised weights: 8, 16, or 32 for float32.
        composites_only: never compile or run a fused kernel on arrays; None: the environment variable
            ``LLAMITA_COMPOSITES_ONLY`` (1: yes), or False.

    Raises:
        InvalidArgument: n_threads < 1, another number of bits, a negative limit, or ``LLAMITA_COST`` cannot be read.
    """

    def __init__(
        self,
        n_threads: int | None = None,
        pool_limit: int | None = None,
        activations: int = 16,
        composites_only: bool | None = None,
    ) -> None:
        if activations not in (8, 16, 32):
            raise InvalidArgument(f"Engine: activations: expected 8, 16 or 32, got {activations}")
        if n_threads is not None and n_threads < 1:
            raise InvalidArgument(f"Engine: n_threads: expected at least 1, got {n_threads}")
        self.n_threads = n_threads if n_threads is not None else usable_cpus()
        self.pool_limit = None if pool_limit is None else valid_limit(pool_limit)
        self.activations = activations
        self.composites_only = os.environ.get(ENV_COMPOSITES, "") == "1" if composites_only is None else composites_only
        parsed_overrides(os.environ.get(ENV_COST, ""))  # named now rather than in the middle of an op
        self._tokens: list[Token[Engine | None]] = []

    def __enter__(self) -> Engine:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._tokens.pop())

    @cached_property
    def team(self) -> Team:
        """The threads that carry out kernels; started at first use."""
        return Team(self.n_threads)

    @cached_property
    def pool(self) -> BufferPool:
        """Storage of large results."""
        return BufferPool(self.pool_limit)

    @cached_property
    def launcher(self) -> Launcher:
        """What runs kernels, on one thread or on all."""
        me = weakref.ref(self)  # a cycle would keep a dropped engine's storage until the next collection
        return Launcher(self.pool, self.n_threads, lambda: _alive(me).team, lambda: _alive(me)._is_awake(), not self.composites_only)

    def _is_awake(self) -> bool:
        return "team" in self.__dict__ and self.team.is_awake

    @cached_property
    def fused(self) -> FusedKernels:
        """The fused kernels."""
        return FusedKernels(self.launcher)

    # ----- hooks -----
    def fused_activation(self, op: str, x: Any, *number: float) -> Any:
        """op: sigmoid, silu, softplus, gelu, gelu_tanh, mish, hardsigmoid, hardswish, or elu or leaky_relu with their number."""
        return self.fused.call(op, (x, *number))

    def fused_gated_silu(self, gate: Any, up: Any) -> Any:
        """silu(gate) * up."""
        return self.fused.call("gated_silu", (gate, up))

    def fused_swiglu(self, x: Any) -> Any:
        """gated_silu of the halves of the last axis."""
        return self.fused.call("swiglu", (x,))

    def fused_softmax(self, x: Any, axis: int) -> Any:
        return self.fused.call("softmax", (x, axis))

    def fused_log_softmax(self, x: Any, axis: int) -> Any:
        return self.fused.call("log_softmax", (x, axis))

    def fused_masked_softmax(self, x: Any, mask: Any, axis: int) -> Any:
        return self.fused.call("masked_softmax", (x, mask, axis))

    def fused_masked_log_softmax(self, x: Any, mask: Any, axis: int) -> Any:
        return self.fused.call("masked_log_softmax", (x, mask, axis))

    def fused_rms_norm(self, x: Any, axis: int, weight: Any, bias: Any, eps: float) -> Any:
        return self.fused.call("rms_norm", (x, axis, weight, bias, eps))

    def fused_layer_norm(self, x: Any, axis: int, weight: Any, bias: Any, eps: float) -> Any:
        return self.fused.call("layer_norm", (x, axis, weight, bias, eps))

    def fused_rope(self, op: str, x: Any, cos: Any, sin: Any) -> Any:
        """op: rope, rope_i or rope_thd."""
        return self.fused.call(op, (x, cos, sin))

    def fused_sdpa(self, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, softcap: float) -> Any:
        # The kernel passes over keys that causality hides; the formula multiplies their values by 0, which NaN survives.
        several = causal and getattr(q, "shape", ())[-2:-1] != (1,)
        if several and type(v) is np.ndarray and v.dtype.kind == "f" and not np.isfinite(v).all():
            return None
        return self.fused.call("sdpa", (q, k, v, mask, causal, scale, softcap))

    def fused_embedding(self, ids: Any, weight: Any) -> Any:
        return self.fused.embedding(ids, weight)

    def fused_qmatmul(self, x: Any, weight: Any) -> Any:
        """The weight brings its own kernel, if any: quantised formats are known to the room above this one."""
        kernel = getattr(weight, "fused_matmul", None)
        return None if kernel is None else kernel(x)


def _alive(engine: weakref.ref[Engine]) -> Engine:
    found = engine()
    if found is None:
        raise ClosedError("Engine: expected a living engine, got one that was dropped while its kernels were in use")
    return found


def default_engine() -> Engine:
    """The engine that serves code outside every ``with Engine(...)`` block; made at first use."""
    global _default
    if _default is None:
        _default = Engine()
    return _default


def current_engine() -> Engine:
    """The innermost ``with Engine(...)``, else the default one."""
    return _current.get() or _default or default_engine()
