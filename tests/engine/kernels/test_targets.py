"""Targets: exact integer products on all that this machine can run, and the code that Arm would get."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llamita.engine.kernels import layout, targets
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


MATMUL = {"width": 16, "tile": [1, 1], "planes": [8], "zero": 128}
BYTE_PRODUCTS = ("usdot", "sdot", "smull", "smull2", "smlal", "smlal2")


@pytest.mark.parametrize(
    ("target", "products"), [("i8mm", {"usdot"}), ("dotprod", {"sdot"}), ("generic", {"smull", "smull2", "smlal", "smlal2"})]
)
def test_arm_gets_its_instructions(target, products):
    """The products of bytes, halves widened by one instruction, no call but those of the code for errors."""
    pytest.importorskip("llvmlite")
    script = Path(__file__).with_name("arm_assembly.py")
    jobs = [["matmul", MATMUL], ["quantize", {"width": 16, "norm": True}], ["runner", {"role": "lead_timed"}]]
    done = subprocess.run([sys.executable, script, target], input=json.dumps(jobs), capture_output=True, text=True, timeout=300)
    if "No available targets are compatible" in done.stderr:
        pytest.skip("this LLVM was built without Arm")
    assert done.returncode == 0, done.stderr[-2000:]
    matmul, quantize, runner = json.loads(done.stdout)
    found = set(re.findall(r"^\s+(\w+)\s", matmul, re.MULTILINE))
    assert found.intersection(BYTE_PRODUCTS) <= products and found & products
    assert {"fcvtl", "fcvtl2", "fmla"} <= found
    for text in (matmul, quantize):
        calls = set(re.findall(r"^\s+bl\s+(\w+)", text, re.MULTILINE))
        assert not {name for name in calls if not re.match(r"Py|numba_|NRT_|_ZN7llamita", name)}, calls
    assert "CNTVCT_EL0" in runner.upper() and "PMCCNTR_EL0" not in runner.upper()


@pytest.fixture
def another_machine(monkeypatch):
    """`pretend(machine, platform, llvm, cpuinfo, sysctl)`: what a machine and its operating system say of themselves."""

    def forget():
        for known in (targets.host_features, targets.available_targets, targets._target):
            if hasattr(known, "cache_clear"):
                known.cache_clear()

    def pretend(machine, platform, llvm=None, cpuinfo="", sysctl=()):
        def features():
            if llvm is None:
                raise RuntimeError("failed to get host cpu features.")
            return llvm

        monkeypatch.setattr("platform.machine", lambda: machine)
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", features)
        monkeypatch.setattr(Path, "read_text", lambda path, **_: cpuinfo)
        monkeypatch.setattr(targets, "_sysctl", lambda key: key in sysctl)
        monkeypatch.delenv(targets.ENV, raising=False)
        forget()

    yield pretend
    monkeypatch.undo()
    forget()


PI_5 = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp\nCPU part\t: 0xd0b\n"


@pytest.mark.parametrize(
    ("machine", "platform", "says", "expected"),
    [
        ("arm64", "darwin", {"sysctl": ("FEAT_DotProd",)}, ("dotprod", "generic")),  # M1
        ("arm64", "darwin", {"sysctl": ("FEAT_DotProd", "FEAT_I8MM"), "llvm": {}}, ("i8mm", "dotprod", "generic")),  # M2
        ("aarch64", "linux", {"cpuinfo": PI_5, "llvm": {"neon": True, "crc": True}}, ("dotprod", "generic")),
        ("aarch64", "linux", {"cpuinfo": PI_5.replace("asimddp", "asimddp i8mm")}, ("i8mm", "dotprod", "generic")),
        ("aarch64", "linux", {"cpuinfo": "Features : fp asimd crc32"}, ("generic",)),
        ("aarch64", "linux", {"llvm": {"neon": True, "dotprod": True, "i8mm": False}}, ("dotprod", "generic")),
        ("AMD64", "win32", {"llvm": {"avx2": True, "f16c": True, "fma": True, "avx512f": False}}, ("avx2", "generic")),
        ("riscv64", "linux", {}, ("generic",)),
    ],
)
def test_detection(another_machine, machine, platform, says, expected):
    another_machine(machine, platform, **says)
    assert available_targets() == expected
    chosen = targets.current_target()
    assert chosen.name == expected[0]
    needed = {"i8mm": {"+neon", "+dotprod", "+i8mm"}, "dotprod": {"+neon", "+dotprod"}, "avx2": {"+avx2", "+fma"}}.get(chosen.name, set())
    assert needed <= set(chosen.features.split(","))
    assert chosen.plain == (machine == "riscv64")


def test_every_target_has_a_tile(monkeypatch):
    for name in (*(step.name for step in targets._LADDER), "generic"):
        monkeypatch.setattr(layout, "current_target", lambda name=name: targets.Target(name, "", "", ""))
        for width in (8, 16, 32):
            groups, tokens = layout.product_tile(width)
            assert groups >= 1 and tokens >= 1
