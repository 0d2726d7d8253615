"""A kernel that only reads: how fast memory can be, the roof of everything that has to read every weight once."""

from numba import njit

from . import simd


def build(streams=1, ahead=0):
    """The kernel that adds up a thread's share of a buffer as int32 lanes; arguments: address, turns of 512 bytes, sums.

    streams: runs of cache lines that a thread reads side by side, 1, 2, 4 or 8. ahead: bytes that are asked for ahead; 0: none.
    sums: 64 bytes a thread.
    """
    lines = 8 // streams

    @njit(forceinline=True)
    def turn(at, s0, s1, s2, s3, s4, s5, s6, s7, gap):
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

    def kernel(args, thread, n_threads):
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
