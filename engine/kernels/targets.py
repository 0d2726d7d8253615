"""What this CPU can do, and which kernel target follows from it. Knows llvmlite, never numba."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache

from ..errors import KernelError

ENV = "LLAMITA_TARGET"


@dataclass(frozen=True)
class Target:
    """A kernel target: what LLVM compiles for and how a four-byte dot product is spelled.

    name: what `llamita info` shows and LLAMITA_TARGET takes. cpu, features: LLVM's. dot4: the lowering of `simd.dot4`.
    """

    name: str
    cpu: str
    features: str
    dot4: str


# Best first; each needs all the named LLVM features of the host.
_LADDER = (
    ("avx512vnni", "x86", ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "f16c", "fma"), "vpdpbusd512"),
    ("avxvnni", "x86", ("avx2", "avxvnni", "f16c", "fma"), "vpdpbusd256"),
    ("avx2", "x86", ("avx2", "f16c", "fma"), "maddubs"),
    ("i8mm", "arm", ("neon", "i8mm"), "usdot"),
    ("dotprod", "arm", ("neon", "dotprod"), "sdot"),
)
_FORCED_CPU = {"avx2": "haswell", "avxvnni": "alderlake", "avx512vnni": "icelake-server"}


def _family() -> str:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i686"):
        return "x86"
    return "arm" if machine in ("arm64", "aarch64") else "other"


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """Names of the CPU features that LLVM sees on this machine."""
    import llvmlite.binding as llvm

    try:
        return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    except RuntimeError:  # LLVM cannot tell on this platform
        return frozenset()


def available_targets() -> tuple[str, ...]:
    """Targets that run on this machine, best first; "generic" always does."""
    has = host_features()
    return (*(name for name, family, needs, _ in _LADDER if family == _family() and has.issuperset(needs)), "generic")


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
    import llvmlite.binding as llvm

    dot4 = next((dot for known, _, _, dot in _LADDER if known == name), "generic")
    if name == "generic":
        cpu = {"x86": "x86-64", "arm": "generic"}.get(_family(), "")
        return Target(name, cpu, "", dot4)
    if forced and name in _FORCED_CPU:
        return Target(name, _FORCED_CPU[name], "", dot4)
    features = llvm.get_host_cpu_features()
    features = {k: v for k, v in features.items() if not k.startswith("amx")}
    flat = ",".join(("+" if on else "-") + key for key, on in sorted(features.items()))
    return Target(name, llvm.get_host_cpu_name(), flat, dot4)
