"""Run one kernel: on the calling thread, or shared by a team when that pays. Addresses go in, nothing is checked here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import KernelError
from .cost import CostModel, ThreadPolicy, cost_model
from .pool import BufferPool
from .store import KernelSpec, default_store
from .team import Team

_Native = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
# Without declared argument types a call costs half: bytes pass as their address, the other two are converted already.
_Undeclared, _Held = ctypes.CFUNCTYPE(None), ctypes.PYFUNCTYPE(None)
FIRST, ALONE = ctypes.c_int64(0), ctypes.c_int64(1)
ALWAYS_SERIAL = 4096  # elements: no dispatch pays below, so the cost model is not even asked for
NOTHING, PREPARED = KernelSpec.of("nothing"), KernelSpec.of("prepared")

Array = np.ndarray[Any, np.dtype[Any]]


class Kernel:
    """A loaded kernel.

    Attributes:
        call: with the address of argument words, a thread number and the number of threads.
        call_packed: with packed argument words, FIRST and ALONE: the same on this thread alone.
        call_briefly: `call_packed` for a few microseconds of work, in which other Python threads wait.
    """

    __slots__ = ("address", "call", "call_briefly", "call_packed")

    def __init__(self, address: int) -> None:
        self.address = address
        self.call: Callable[[int, int, int], None] = _Native(address)
        self.call_packed: Callable[..., None] = _Undeclared(address)
        self.call_briefly: Callable[..., None] = _Held(address)

    def run(self, words: bytes) -> None:
        """One call on this thread with packed argument words."""
        self.call_packed(words, FIRST, ALONE)


class Launcher:
    """Kernels by spec, the team that shares their work, and the costs that decide whether it does.

    Args:
        pool: where copies of strided operands come from.
        n_threads: of the team.
        team: gives the team; asked for at the first parallel run, so that a serial engine starts no thread.
        is_awake: whether the team has been started and waits for work.
        enabled: False: there are no kernels, so that every op takes its composite.
    """

    def __init__(
        self, pool: BufferPool, n_threads: int, team: Callable[[], Team], is_awake: Callable[[], bool], enabled: bool = True
    ) -> None:
        self.pool, self.n_threads = pool, n_threads
        self._team, self._is_awake = team, is_awake
        self._kernels: dict[Any, Kernel | None] = {}
        self._enabled = enabled

    def named(self, module: str, *names: str, **params: Any) -> Kernel | None:
        """The kernel `module` with `params`; names tell it from others of the module, a key that is found faster."""
        try:
            return self._kernels[module, names]
        except KeyError:
            found = self._kernels[module, names] = self.kernel(KernelSpec.of(module, **params))
            return found

    def kernel(self, spec: KernelSpec) -> Kernel | None:
        """The kernel of a spec, compiled or loaded at first use; None where it cannot be had (ops then take composites)."""
        if spec not in self._kernels:
            found = None
            if self._enabled:
                try:
                    found = Kernel(default_store().load([spec, PREPARED])[spec])
                except KernelError:
                    pass
            self._kernels[spec] = found
        return self._kernels[spec]

    @cached_property
    def prepared(self) -> Kernel | None:
        """The kernel that runs prepared calls; None: there are none."""
        return self.kernel(PREPARED)

    # ----- threads -----
    @cached_property
    def costs(self) -> CostModel:
        """What work and threads cost here; measured, or read from the cache, when first asked for."""
        return cost_model(self.n_threads, self.run_nothing)

    @cached_property
    def _policy(self) -> ThreadPolicy:
        return ThreadPolicy(self.costs, self.n_threads, self._is_awake)

    def may_share(self, elements: int) -> bool:
        """False where no cost model needs to be asked."""
        return elements >= ALWAYS_SERIAL and self.n_threads > 1

    def is_parallel(self, kind: str, dtype: np.dtype[Any], elements: int) -> bool:
        """Whether the team should share work of a class of the cost model."""
        return self.may_share(elements) and self._policy.is_parallel(kind, dtype, elements)

    def run(self, kernel: Kernel, words: bytes, parallel: bool) -> None:
        """One call with packed argument words, or one a thread of the team."""
        if not parallel:
            kernel.run(words)
            return
        block = (ctypes.c_char * len(words)).from_buffer_copy(words)
        self._team().run(np.array([[kernel.address, ctypes.addressof(block), 0]], np.int64))

    def run_nothing(self) -> None:
        """An empty parallel section, to measure what dispatch costs."""
        kernel = self.kernel(NOTHING)
        if kernel is not None:
            self.run(kernel, b"\0" * 8, True)

    # ----- operands -----
    def dense(self, x: Array) -> Array:
        """x row-major: itself, or a copy in pool storage."""
        if x.flags.c_contiguous:
            return x
        copy = self.pool.empty(x.shape, x.dtype)
        copy[...] = x
        return copy


# Element types that kernels take, by NumPy's.
ELEMS: dict[Any, str] = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
