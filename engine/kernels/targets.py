"""What this CPU can do, and which kernel target follows from it. Knows llvmlite, never numba."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import KernelError

ENV = "LLAMITA_TARGET"


@dataclass(frozen=True)
class Target:
    """A kernel target: what LLVM compiles for and how products of bytes are spelled.

    name: what `llamita info` shows and LLAMITA_TARGET takes. cpu, features: LLVM's. dot4: the spelling of `simd.dot`.
    plain: whether half floats and fused multiply-add must do without instructions of their own. family: "x86", "arm" or "other".
    """

    name: str
    cpu: str
    features: str
    dot4: str
    plain: bool = False
    family: str = "x86"


@dataclass(frozen=True)
class _Step:
    """A target of the ladder: the LLVM features it needs, its spelling of `dot`, and the CPU it means when it is forced."""

    name: str
    family: str
    needs: tuple[str, ...]
    dot4: str
    cpu: str


_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "f16c", "fma")
_LADDER = (  # best first
    _Step("avx512vnni", "x86", _AVX512, "vpdpbusd512", "icelake-server"),
    _Step("avxvnni", "x86", ("avx2", "avxvnni", "f16c", "fma"), "vpdpbusd256", "alderlake"),
    _Step("avx2", "x86", ("avx2", "f16c", "fma"), "maddubs", "haswell"),
    _Step("i8mm", "arm", ("neon", "dotprod", "i8mm"), "usdot", "generic"),
    _Step("dotprod", "arm", ("neon", "dotprod"), "sdot", "generic"),
)


def _family() -> str:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i686"):
        return "x86"
    return "arm" if machine in ("arm64", "aarch64") else "other"


def _arm_features() -> frozenset[str]:
    """What the operating system says of an Arm CPU, in LLVM's words; LLVM itself does not ask on every platform."""
    if sys.platform == "darwin":
        return frozenset({"neon", *(name for name, key in (("dotprod", "FEAT_DotProd"), ("i8mm", "FEAT_I8MM")) if _sysctl(key))})
    try:
        found = re.search(r"^Features\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    except OSError:
        return frozenset()
    words = {"asimd": "neon", "asimddp": "dotprod", "i8mm": "i8mm"}
    return frozenset(words[word] for word in (found[1].split() if found else ()) if word in words)


def _sysctl(key: str) -> bool:
    """Whether macOS reports the named Arm feature."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    name = f"hw.optional.arm.{key}".encode()
    failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and value.value == 1


def _llvm_features() -> dict[str, bool]:
    import llvmlite.binding as llvm

    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM cannot tell on this platform
        return {}


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """Names of the CPU features that this machine has, as LLVM spells them."""
    named = frozenset(name for name, on in _llvm_features().items() if on)
    return named | _arm_features() if _family() == "arm" else named


@lru_cache(maxsize=1)
def available_targets() -> tuple[str, ...]:
    """Targets that run on this machine, best first; "generic" always does."""
    has = host_features()
    return (*(step.name for step in _LADDER if step.family == _family() and has.issuperset(step.needs)), "generic")


def current_target() -> Target:
    """The target in use: the best one, or the one that LLAMITA_TARGET names.

    Raises KernelError when LLAMITA_TARGET names one that this machine cannot run.
    """
    names = available_targets()
    forced = os.environ.get(ENV, "")
    if forced and forced not in names:
        raise KernelError(f"{ENV}: expected one of {', '.join(names)}, got {forced!r}; unset it to use the best one")
    return _target(forced or names[0], bool(forced))


@lru_cache(maxsize=8)
def _target(name: str, forced: bool) -> Target:
    """A target for this CPU, or, if forced, for any that has what it needs."""
    import llvmlite.binding as llvm

    family = _family()
    step = next((step for step in _LADDER if step.name == name), None)
    if step is None:
        cpu = {"x86": "x86-64", "arm": "generic"}.get(family, "")
        return Target(name, cpu, "", "generic", family != "arm", family)
    features = dict.fromkeys(step.needs, True)
    if not forced:
        features |= {key: on for key, on in _llvm_features().items() if not key.startswith("amx") and key not in features}
    flat = ",".join(("+" if on else "-") + key for key, on in sorted(features.items()))
    return Target(name, step.cpu if forced else llvm.get_host_cpu_name(), flat, step.dot4, family=family)
