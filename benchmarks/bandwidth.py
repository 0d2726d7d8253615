"""How fast this machine reads memory: the roof of decode, which has to read every weight once a token.

    python benchmarks/bandwidth.py -t 1,2 --mib 64,256,1024
    python benchmarks/bandwidth.py -t 2 -m model.gguf

The buffer is read in order, each thread its own part, by the same team of threads and the same SIMD loads as the matrix
kernels use, and nothing else is done with what is read than adding it up. Reading is tried in several ways (one stream a
thread or four, with and without asking ahead); the fastest one counts, so that the roof is not one kernel's habit.
With -m the buffer is as large as the file's tensors: weights that fit in the last-level cache are read from there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from interference import TOLERATED, Others

from llamita.engine.runtime.arrays import aligned_zeros
from llamita.engine.runtime.team import Team, usable_cpus

LINE = 64
# (streams a thread, bytes that are asked for ahead; 0: none)
WAYS = ((1, 0), (1, 4096), (4, 0), (4, 4096))
_STEP = 8 * LINE  # bytes of one turn of the loop


def _kernel(streams: int, ahead: int) -> Callable[..., None]:
    """Add up a thread's share of [address, turns, sums]: `streams` runs of lines side by side, `turns` of 512 bytes in all."""
    from numba import njit

    from llamita.engine.kernels import simd

    lines = 8 // streams

    @njit(forceinline=True)
    def turn(at: int, s0: Any, s1: Any, s2: Any, s3: Any, s4: Any, s5: Any, s6: Any, s7: Any, gap: int) -> Any:
        if ahead:
            for stream in range(streams):
                for line in range(lines):
                    simd.prefetch(at + stream * gap + 64 * line + ahead)
        # Eight sums, so that no addition waits for the one before it.
        s0 = s0 + simd.load_i32x16(at)
        s1 = s1 + simd.load_i32x16(at + (1 // lines) * gap + 64 * (1 % lines))
        s2 = s2 + simd.load_i32x16(at + (2 // lines) * gap + 64 * (2 % lines))
        s3 = s3 + simd.load_i32x16(at + (3 // lines) * gap + 64 * (3 % lines))
        s4 = s4 + simd.load_i32x16(at + (4 // lines) * gap + 64 * (4 % lines))
        s5 = s5 + simd.load_i32x16(at + (5 // lines) * gap + 64 * (5 % lines))
        s6 = s6 + simd.load_i32x16(at + (6 // lines) * gap + 64 * (6 % lines))
        s7 = s7 + simd.load_i32x16(at + (7 // lines) * gap + 64 * (7 % lines))
        return s0, s1, s2, s3, s4, s5, s6, s7

    def kernel(args: int, thread: int, n_threads: int) -> None:
        turns = simd.get_i64(args + 8)
        first, last = turns * thread // n_threads, turns * (thread + 1) // n_threads
        at, gap = simd.get_i64(args) + first * 512, (last - first) * (512 // streams)
        s0 = simd.splat_i32(0)
        s1 = s2 = s3 = s4 = s5 = s6 = s7 = s0
        for _ in range(last - first):
            s0, s1, s2, s3, s4, s5, s6, s7 = turn(at, s0, s1, s2, s3, s4, s5, s6, s7, gap)
            at += 64 * lines
        simd.store(simd.get_i64(args + 16) + 64 * thread, ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))

    return kernel


@cache
def _compiled(streams: int, ahead: int) -> Any:
    """The kernel as native code; its address lives as long as this object."""
    from numba import cfunc, types

    word = types.int64
    return cfunc(types.void(word, word, word), nopython=True, error_model="numpy")(_kernel(streams, ahead))


class Reader:
    """A buffer of n_bytes (rounded up to 512) that a team reads."""

    def __init__(self, team: Team, n_bytes: int):
        self._team = team
        turns = max(team.n_threads, -(-n_bytes // _STEP))
        self.n_bytes = turns * _STEP
        self._data = aligned_zeros(self.n_bytes)
        self._data.view(np.int32)[:] = 1  # untouched pages would all be the same one
        self._sums = aligned_zeros(LINE * team.n_threads)
        self._args = np.array([self._data.ctypes.data, turns, self._sums.ctypes.data], np.int64)
        self._kernels = {way: _compiled(*way) for way in WAYS}
        self._code = {way: np.array([[kernel.address, self._args.ctypes.data, 1]], np.int64) for way, kernel in self._kernels.items()}
        for way in WAYS:
            self._once(way)
            if int(self._sums.view(np.int32).sum()) != self.n_bytes // 4:
                raise RuntimeError(f"bandwidth: the kernel {way} did not read the whole buffer")

    def _once(self, way: tuple[int, int]) -> float:
        started = time.perf_counter()
        self._team.run(self._code[way])
        return time.perf_counter() - started

    def rate(self, way: tuple[int, int], seconds: float) -> float:
        """Bytes a second, the median over passes that take about `seconds` in all."""
        self._once(way)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not times:
            times.append(self._once(way))
        return self.n_bytes / statistics.median(times)

    def best(self, seconds: float) -> float:
        """The fastest way's rate; `seconds` are shared among the ways."""
        return max(self.rate(way, seconds / len(WAYS)) for way in WAYS)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--threads", default=f"1,{usable_cpus()}", help="comma list [default: %(default)s]")
    parser.add_argument("--mib", default="64,256,1024", help="sizes of the buffer in MiB, comma list [default: %(default)s]")
    parser.add_argument("-m", "--model", action="append", default=[], type=Path, help="read as many bytes as this file's tensors have")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement [default: %(default)s]")
    options = parser.parse_args()
    from llamita.loaders.checkpoint import open_checkpoint

    sizes = []
    for path in options.model:
        with open_checkpoint(path) as checkpoint:
            sizes.append((path.stem, int(checkpoint.size_bytes)))
    if not sizes:
        sizes = [(f"{n} MiB", int(n) << 20) for n in options.mib.split(",")]
    head = [f"{streams} stream{'s'[: streams > 1]}{', ahead' if ahead else ''}" for streams, ahead in WAYS]
    print("| buffer | threads | " + " | ".join(head) + " | best GB/s |")
    print("| --- | ---: |" + " ---: |" * (len(WAYS) + 1))
    others = Others([])
    for name, n_bytes in sizes:
        for n_threads in sorted({int(n) for n in options.threads.split(",")}):
            team = Team(n_threads)
            try:
                reader = Reader(team, n_bytes)
                rates = [reader.rate(way, options.seconds / len(WAYS)) / 1e9 for way in WAYS]
            finally:
                team.close()
            print(f"| {name} | {n_threads} | " + " | ".join(f"{rate:.1f}" for rate in rates) + f" | **{max(rates):.1f}** |", flush=True)
    if (share := others.share() or 0.0) > TOLERATED:
        print(f"\nOther programs took {share:.0%} of the processors: close them and measure again.")


if __name__ == "__main__":
    main()
