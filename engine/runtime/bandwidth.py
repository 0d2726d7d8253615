"""How fast a team reads memory, measured: the roof of decode, which has to read every weight once a token.

The buffer is read in order, each thread its own part, by the same threads and the same SIMD loads as the matrix kernels
use, and nothing else is done with what is read than adding it up. Reading is tried in several ways, and the fastest one
counts, so that the roof is not one kernel's habit.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from ..errors import KernelError
from .arrays import aligned_zeros
from .store import KernelSpec, Progress
from .team import Team

# (streams a thread, bytes that are asked for ahead; 0: none)
WAYS = ((1, 0), (1, 4096), (2, 8192), (2, 16384), (4, 0), (4, 4096), (4, 8192))
_LINE = 64
_STEP = 512  # bytes that the kernel counts in


def _spec(way: tuple[int, int]) -> KernelSpec:
    return KernelSpec.of("read", streams=way[0], ahead=way[1])


class BandwidthReader:
    """A buffer of n_bytes (rounded up to 512 a thread), allocated as weights are, that a team reads.

    Raises KernelError when a kernel does not read all of it.
    """

    def __init__(self, team: Team, n_bytes: int, on_progress: Progress | None = None):
        self._team = team
        addresses = team.store.load(map(_spec, WAYS), on_progress)
        turns = max(team.n_threads, -(-n_bytes // _STEP))
        self.n_bytes = turns * _STEP
        self._data = aligned_zeros(self.n_bytes)
        self._data.view(np.int32)[:] = 1  # untouched pages would all be the same one
        self._sums = aligned_zeros(_LINE * team.n_threads)
        self._args = np.array([self._data.ctypes.data, turns, self._sums.ctypes.data], np.int64)
        self._code = {way: np.array([[addresses[_spec(way)], self._args.ctypes.data, 1]], np.int64) for way in WAYS}
        for way in WAYS:
            self._once(way)
            if (found := int(self._sums.view(np.int32).sum(dtype=np.int64))) != self.n_bytes // 4:
                raise KernelError(f"bandwidth: {_spec(way)}: expected {self.n_bytes // 4} words to be read, got {found}")

    def _once(self, way: tuple[int, int]) -> float:
        started = time.perf_counter()
        self._team.run(self._code[way])
        return time.perf_counter() - started

    def rate(self, way: tuple[int, int], seconds: float) -> float:
        """Bytes a second read in one of `WAYS`, the median over passes that take about `seconds` in all."""
        self._once(way)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not times:
            times.append(self._once(way))
        return self.n_bytes / statistics.median(times)

    def best(self, seconds: float) -> float:
        """The fastest way's bytes a second; a third of `seconds` goes to finding that way."""
        looks = {way: self.rate(way, seconds / 3 / len(WAYS)) for way in WAYS}
        return self.rate(max(looks, key=looks.__getitem__), seconds * 2 / 3)
