"""The native loop that carries out a plan on every thread of a team.

The control block, in 64-bit words, each writer's words on a cache line of their own:
    0 sequence of the last posted plan    1 address of its instructions    2 their number    3 stop flag
    8 threads that have arrived at the barrier    16 barrier phase    24 spins before a worker parks
    25 address of a function that yields the processor    26 where a timed run leaves the clock
    32 + 8*thread: sequence that the thread has carried out
An instruction is three words: kernel address, argument block address, 1 if a barrier follows.
"""

from numba import njit

from . import simd

_SPINS_BEFORE_YIELD = 1000


@njit(inline="always")
def _barrier(control, n_threads):
    phase = simd.atomic_get(control + 8 * 16)
    if simd.atomic_add(control + 8 * 8, 1) == n_threads - 1:
        simd.atomic_put(control + 8 * 8, 0)
        simd.atomic_put(control + 8 * 16, phase + 1)
        return
    spins = 0
    while simd.atomic_get(control + 8 * 16) == phase:
        simd.pause()
        spins += 1
        if spins > _SPINS_BEFORE_YIELD:  # somebody is descheduled: let them run
            simd.call_nothing(simd.get_i64(control + 8 * 25))


@njit(inline="always")
def _wait_for_all(control, n_threads):
    posted = simd.get_i64(control)
    for thread in range(1, n_threads):
        spins = 0
        while simd.atomic_get(control + 8 * (32 + 8 * thread)) != posted:
            simd.pause()
            spins += 1
            if spins > _SPINS_BEFORE_YIELD:
                simd.call_nothing(simd.get_i64(control + 8 * 25))


@njit(inline="always")
def _run(control, thread, n_threads):
    at = simd.get_i64(control + 8)
    end = at + 24 * simd.get_i64(control + 16)
    while at < end:
        simd.call_kernel(simd.get_i64(at), simd.get_i64(at + 8), thread, n_threads)
        if n_threads > 1 and simd.get_i64(at + 16) != 0:
            _barrier(control, n_threads)
        at += 24


def build(role):
    """The leader posts the plan and takes part as thread 0; a worker waits for plans until its patience ends.

    role: "lead", "lead_timed" (the same, with a clock) or "work".
    """

    def lead(control, thread, n_threads):
        if n_threads > 1:
            simd.atomic_put(control, simd.get_i64(control) + 1)
        _run(control, 0, n_threads)
        _wait_for_all(control, n_threads)

    def lead_timed(control, thread, n_threads):
        if n_threads > 1:
            simd.atomic_put(control, simd.get_i64(control) + 1)
        at, times = simd.get_i64(control + 8), simd.get_i64(control + 8 * 26)
        simd.put_i64(times, simd.cycles())
        for _ in range(simd.get_i64(control + 16)):
            simd.call_kernel(simd.get_i64(at), simd.get_i64(at + 8), 0, n_threads)
            if n_threads > 1 and simd.get_i64(at + 16) != 0:
                _barrier(control, n_threads)
            at += 24
            times += 8
            simd.put_i64(times, simd.cycles())
        _wait_for_all(control, n_threads)

    def work(control, thread, n_threads):
        mine = control + 8 * (32 + 8 * thread)
        patience = simd.get_i64(control + 8 * 24)
        spins = 0
        while spins < patience and simd.atomic_get(control + 24) == 0:
            posted = simd.atomic_get(control)
            if posted != simd.get_i64(mine):
                _run(control, thread, n_threads)
                simd.atomic_put(mine, posted)
                spins = 0
            simd.pause()
            spins += 1

    return {"lead": lead, "lead_timed": lead_timed, "work": work}[role]
