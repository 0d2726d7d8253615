"""A team of threads that carries out plans. Thread 0 is the caller; the others stay in native code between plans,
spin for a moment and then park on a Python lock, so that a loaded model costs no CPU time while nobody uses it."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import ClosedError, InvalidArgument
from .cpus import usable_cpus
from .store import KernelSpec, KernelStore, default_store

MAX_THREADS = 256
_SPINS = 20_000  # about a millisecond of pause instructions
LEAD, TIMED, WORK = (KernelSpec.of("runner", role=role) for role in ("lead", "lead_timed", "work"))
_Native = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def _yield_address() -> int:
    """Address of the system call that gives up the processor."""
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def _getcpu() -> Callable[[], int] | None:
    return getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None


def _current_cpu() -> int:
    getcpu = _getcpu()
    return int(getcpu()) if getcpu else -1


def _move_away_from(cpu: int) -> None:
    """A woken thread is often put beside its waker, and two spinning threads on one CPU stay there: step aside once."""
    if cpu < 0 or _current_cpu() != cpu:
        return
    allowed = os.sched_getaffinity(0)
    if len(allowed) > 1:
        try:
            os.sched_setaffinity(0, allowed - {cpu})
            os.sched_setaffinity(0, allowed)
        except OSError:  # forbidden: only speed is lost
            pass


_forks = 0  # how often this process is the child of a fork
_starting = threading.Lock()


def _count_fork() -> None:
    global _forks, _starting
    _forks, _starting = _forks + 1, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Team:
    """`n_threads` threads, the caller included. One caller at a time; `run` blocks until the plan is done.

    After a fork the child's first run starts threads anew: only the one that forked goes on there.
    """

    def __init__(self, n_threads: int | None = None, store: KernelStore | None = None):
        self.n_threads = usable_cpus() if n_threads is None else n_threads
        if not 1 <= self.n_threads <= MAX_THREADS:
            raise InvalidArgument(f"team: invalid argument n_threads: expected 1 to {MAX_THREADS}, got {n_threads}")
        self.store = store or default_store()
        addresses = self.store.load([LEAD, WORK])
        self._lead = _Native(addresses[LEAD])
        self._work = _Native(addresses[WORK])
        self._start()

    def _start(self) -> None:
        raw = np.zeros(32 + 8 * self.n_threads + 8, dtype=np.int64)
        self.control: NDArray[np.int64] = raw[(-raw.ctypes.data // 8) % 8 :]
        self._address = self.control.ctypes.data
        self.control[24], self.control[25] = _SPINS, _yield_address()
        self._shared = _Shared(self.control)
        self._running = threading.Lock()
        self._threads = [
            threading.Thread(target=_serve, args=(self._shared, self._work, thread, self.n_threads), name=f"llamita-{thread}", daemon=True)
            for thread in range(1, self.n_threads)
        ]
        for worker in self._threads:
            worker.start()
        self._finalizer = weakref.finalize(self, _stop, self._shared)
        self._forks = _forks  # last: until then another caller waits for `_starting`

    def _restart_after_a_fork(self) -> None:
        with _starting:
            if self._forks != _forks:
                was_closed = int(self.control[3])
                self._finalizer.detach()
                self._start()
                self.control[3] = was_closed

    @property
    def is_awake(self) -> bool:
        """Whether no thread sleeps, so that the next run starts at once."""
        return not self._shared.asleep

    def run(self, instructions: NDArray[np.int64]) -> None:
        """Carry out a plan: int64 [n, 3] of (kernel address, argument address, barrier flag). Raises ClosedError."""
        self._carry_out(self._lead, instructions)

    def run_timed(self, instructions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same; returns each instruction's seconds on thread 0, float64 [n], its wait at the barrier included."""
        lead = _Native(self.store.load([TIMED])[TIMED])
        counter = np.zeros(len(instructions) + 1, np.int64)
        self.control[26] = counter.ctypes.data
        started = time.perf_counter()
        self._carry_out(lead, instructions)
        seconds = time.perf_counter() - started
        return np.diff(counter) * (seconds / max(1, int(counter[-1] - counter[0])))

    def _carry_out(self, lead: Callable[[int, int, int], None], instructions: NDArray[np.int64]) -> None:
        if self._forks != _forks:
            self._restart_after_a_fork()
        with self._running:
            control = self.control
            if control[3]:
                raise ClosedError("team: it was closed: make another one")
            control[1], control[2] = instructions.ctypes.data, instructions.shape[0]
            try:
                if self.n_threads > 1:
                    self._shared.post()
                lead(self._address, 0, self.n_threads)
            finally:  # Ctrl-C may come between the two, and workers would spin for a plan that never starts
                self._shared.posted = int(control[0])

    def close(self) -> None:
        """End the threads; the team cannot run afterwards."""
        if self._forks != _forks:
            self._restart_after_a_fork()
        with self._running:  # a run needs all its workers to the end
            self._finalizer()
        for worker in self._threads:
            if worker is not threading.current_thread():
                worker.join()


class _Shared:
    """What the leader and the workers share on the Python side.

    Only locks in C are used: Ctrl-C raises between any two steps of Python, and inside a `threading.Condition` that would
    leave its lock taken for ever.
    """

    def __init__(self, control: NDArray[np.int64]):
        self.control = control
        self.guard = threading.RLock()  # a finalizer may run wherever a worker stands
        self.asleep: list[threading.Lock] = []  # one a sleeping worker, locked
        self.posted = 0  # the sequence that is being, or about to be, carried out
        self.leader_cpu = -1

    def post(self) -> None:
        """Announce a plan to those that sleep."""
        with self.guard:
            self.posted = int(self.control[0]) + 1
            if self.asleep:
                self.leader_cpu = _current_cpu()
                self.wake()

    def wake(self) -> None:
        """Let every sleeper go on; interrupted anywhere, the next call does the rest."""
        while self.asleep:
            if self.asleep[-1].locked():
                self.asleep[-1].release()
            self.asleep.pop()

    def sleep(self, thread: int) -> None:
        """Wait for the next plan or the end, unless one is there already."""
        gate = threading.Lock()
        gate.acquire()
        with self.guard:
            self.asleep.append(gate)  # before the look at what there is to do, so that whoever comes later finds it
            if self.control[3] or self.posted != int(self.control[32 + 8 * thread]):
                return
        gate.acquire()


def _serve(shared: _Shared, work: Callable[[int, int, int], None], thread: int, n_threads: int) -> None:
    control, address = shared.control, shared.control.ctypes.data
    while not control[3]:
        work(address, thread, n_threads)
        shared.sleep(thread)
        _move_away_from(shared.leader_cpu)


def _stop(shared: _Shared) -> None:
    with shared.guard:
        shared.control[3] = 1
        shared.wake()
