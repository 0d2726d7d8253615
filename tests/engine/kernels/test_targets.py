"""The integer products of every target that this machine can run, in a process each."""

import os
import subprocess
import sys

import pytest

from llamita.engine.kernels.targets import available_targets

# Every width of code, one to eight bits, at the ends of its range and in between, as many in a row as the target allows.
PRODUCTS = """
import ctypes
import numpy as np
from numba import cfunc, types
from llamita.engine.kernels import simd

load, store = simd.tile_load(2, 2), simd.tile_store(2, 2)

def kernel(bits, width):
    start, add, total, run, zero = simd.dot(bits, width)
    codes_of, words = simd.row_loader("i8", 64, 2), simd.broadcast_loader("i32", 2)
    run = min(run, 8)

    @cfunc(types.void(types.int64, types.int64, types.int64, types.int64))
    def product(codes, high, low, out):
        acc = simd.bits_i32(load(out, 128))
        sums = start(acc)
        for c in range(run):
            sums = add(sums, codes_of(codes + 128 * c, 64), words(high + 8 * c, 4), words(low + 8 * c, 4))
        store(out, 128, total(sums, acc))

    return product, run, zero

rng = np.random.default_rng(0)
for bits in range(1, 9):
    for width in (8, 16):
        product, run, zero = kernel(bits, width)
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(product.address)
        for case in range(12):
            ends = [0, 2**bits - 1] if case < 6 else range(2**bits)
            codes = rng.choice(np.array(ends, np.uint8), (run, 2, 16, 4))
            values = rng.integers(-32512, 32513, (run, 2, 4)) if width == 16 else rng.integers(-127, 128, (run, 2, 4))
            if case in (0, 1):
                codes[:] = 2**bits - 1
                values[:] = (-32512, 32512)[case] if width == 16 else (-127, 127)[case]
            if case == 2 and width == 16:
                values[:] = -32640  # both bytes are -128 or -127
            high = (values + 128) >> 8 if width == 16 else values
            low = (values - 256 * high).astype(np.int8)
            high = high.astype(np.int8)
            out = rng.integers(-1000, 1000, (2, 2, 16)).astype(np.int32)  # token, group of rows, lane
            expected = out + np.einsum("crlb,ctb->trl", codes.astype(np.int64) - zero, values)
            call(codes.ctypes.data, high.ctypes.data, low.ctypes.data, out.ctypes.data)
            assert np.array_equal(out, expected), (bits, width, case, out, expected)
print("same")
"""


def run_script(script, target):
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "LLAMITA_TARGET": target}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("target", available_targets())
def test_products_are_exact_integers(target):
    assert run_script(PRODUCTS, target) == "same\n"
