"""Run one kernel: on the calling thread, or shared by a team. Addresses of arrays go in, nothing is checked here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import KernelError
from ..kernels.targets import current_target
from .store import KernelSpec, default_store
from .team import Team

_Native = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
NOTHING = KernelSpec.of("nothing")


class Kernel:
    """A loaded kernel."""

    __slots__ = ("address", "call")

    def __init__(self, address: int) -> None:
        self.address = address
        self.call: Callable[[int, int, int], None] = _Native(address)


class Launcher:
    """Kernels by spec, and the team that shares their work.

    Args:
        team: gives the team; asked for at the first parallel run, so that a serial engine starts no thread.
    """

    def __init__(self, team: Callable[[], Team]) -> None:
        self._team = team
        self._kernels: dict[KernelSpec, Kernel | None] = {}
        # Without vector units and fused multiply-add, NumPy's own loops are the faster ones.
        self._usable = current_target().name != "generic"

    def kernel(self, spec: KernelSpec) -> Kernel | None:
        """The kernel, compiled or loaded at first use; None where it cannot be had (the op then takes its composite)."""
        try:
            return self._kernels[spec]
        except KeyError:
            pass
        found: Kernel | None = None
        if self._usable:
            try:
                found = Kernel(default_store().load([spec])[spec])
            except KernelError:
                found = None
        self._kernels[spec] = found
        return found

    def run(self, kernel: Kernel, words: Sequence[int], parallel: bool) -> None:
        """One call with argument words, or one a thread of the team."""
        block = (ctypes.c_int64 * len(words))(*words)
        if not parallel:
            kernel.call(ctypes.addressof(block), 0, 1)
            return
        self._team().run(np.array([[kernel.address, ctypes.addressof(block), 0]], np.int64))

    def run_nothing(self) -> None:
        """An empty parallel section, to measure what dispatch costs."""
        kernel = self.kernel(NOTHING)
        if kernel is not None:
            self.run(kernel, (0,), True)


def address(array: np.ndarray[Any, Any]) -> int:
    """Where an array's data starts."""
    return int(array.ctypes.data)
