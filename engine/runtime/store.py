"""The kernel store: kernels compiled once on a machine, kept as native objects, loaded without numba.

A kernel is named by a `KernelSpec`. Its object lives in the cache folder under a hash of the kernel sources, the
compiler's versions and the CPU target, so an edit, an upgrade or another machine never meets a stale object. What is
missing is compiled by helper processes; what cannot be kept (a read-only or full folder) is compiled into a temporary one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import KernelError
from ..kernels import sources
from ..kernels.targets import current_target
from .cpus import usable_cpus

if TYPE_CHECKING:
    import subprocess

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class KernelSpec:
    """A kernel to compile: the module in engine/kernels and the parameters of its `build`, in a fixed order."""

    module: str
    params: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, module: str, **params: Any) -> KernelSpec:
        """Spell a spec with keyword arguments."""
        return cls(module, tuple(sorted(params.items())))


def cache_root() -> Path:
    """The user's cache folder for llamita: LLAMITA_HOME, or the platform's."""
    home = os.environ.get("LLAMITA_HOME")
    if home:
        return Path(home)
    import platformdirs

    return Path(platformdirs.user_cache_dir("llamita"))


@lru_cache(maxsize=1)
def _sources() -> str:
    return sources.digest()


@lru_cache(maxsize=8)
def _environment(target: str) -> bytes:
    chosen = current_target()
    parts = (target, chosen.cpu, chosen.features, chosen.dot4, sys.platform)
    return "\0".join(parts).encode() + _version("numba") + _version("llvmlite") + _sources().encode()


def _version(package: str) -> bytes:
    """What tells versions of a package apart. Its own file says it: looking through what is installed costs 15 ms."""
    found = find_spec(package)
    folder = Path(found.origin).parent if found and found.origin else None
    try:
        return (folder / "_version.py").read_bytes() if folder else b""
    except OSError:
        from importlib.metadata import version

        return version(package).encode()


def object_name(spec: KernelSpec) -> str:
    """File name of a kernel's object in the store."""
    digest = hashlib.sha256(repr(spec).encode() + _environment(current_target().name)).hexdigest()
    return f"{spec.module}-{digest[:32]}.o"


class KernelStore:
    """Addresses of compiled kernels. Thread-safe; an address stays valid as long as the process lives."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder
        self._addresses: dict[tuple[str, KernelSpec], int] = {}
        self._engines: list[Any] = []  # they own the code
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """Where the objects are kept."""
        return self._folder or cache_root() / "kernels"

    def load(self, specs: Iterable[KernelSpec], on_progress: Progress | None = None) -> dict[KernelSpec, int]:
        """Address of each kernel, compiling what the store lacks. on_progress("compile", done, total) reports that.

        Raises KernelError when a kernel does not compile.
        """
        wanted, target = list(dict.fromkeys(specs)), current_target().name
        with self._lock:
            new = [spec for spec in wanted if (target, spec) not in self._addresses]
            objects = {spec: self._read(self.folder / object_name(spec)) for spec in new}
            missing = [spec for spec, data in objects.items() if data is None]
            if missing:
                objects.update(self._compile(missing, on_progress))
            for spec in new:
                self._addresses[target, spec] = self._link(objects[spec] or b"")
            return {spec: self._addresses[target, spec] for spec in wanted}

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        data = raw[32:]
        return data if hashlib.sha256(data).digest() == raw[:32] else None

    def _compile(self, specs: Sequence[KernelSpec], on_progress: Progress | None) -> dict[KernelSpec, bytes]:
        import tempfile

        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            if on_progress:
                on_progress("compile", done, len(specs))

        if on_progress:
            on_progress("compile", 0, len(specs))
        with tempfile.TemporaryDirectory(prefix="llamita-") as scratch:
            folder = self.folder if _writable(self.folder) else Path(scratch)
            _compile_in_helpers(specs, folder, tick)
            compiled = {spec: self._read(folder / object_name(spec)) for spec in specs}
        return {spec: data if data is not None else _compile_here(spec, self.folder) for spec, data in compiled.items()}

    def _link(self, data: bytes) -> int:
        import llvmlite.binding as llvm

        from ..kernels.compile import SYMBOL

        _initialise_llvm()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="jitdefault")
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        address = int(engine.get_function_address(SYMBOL))
        if not address:
            raise KernelError(f"kernel store: expected the symbol {SYMBOL} in an object, found none; empty {self.folder}")
        self._engines.append(engine)
        return address


@lru_cache(maxsize=1)
def _initialise_llvm() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # LLVM may turn loops into these.
    known: dict[str, Any] = {"memset": ctypes.memset, "memmove": ctypes.memmove, "memcpy": ctypes.memmove}
    # One unknown symbol leaves all of an object's at address 0. These two stand in code for errors that no kernel raises;
    # numba would define them.
    known.update(numba_gil_ensure=ctypes.pythonapi.PyGILState_Ensure, numba_gil_release=ctypes.pythonapi.PyGILState_Release)
    for name, function in known.items():
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value or 0)


def _writable(folder: Path) -> bool:
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0" * 65536)
        return True
    except OSError:
        return False


# A helper finds modules where this process does. `python -m` would look into the working folder first: at files that only
# happen to be called like a module, and at another llamita, whose kernels would be kept as this one's.
_HELPER = f"""import sys
sys.path[:] = sys.argv[2:]
from {__package__.rsplit(".", 1)[0]}.kernels.compile import main
main()"""


def _compile_in_helpers(specs: Sequence[KernelSpec], folder: Path, tick: Callable[[], None]) -> None:
    """Share the jobs among helper processes; whatever they fail to write is left to the caller."""
    import subprocess

    count = max(1, min(usable_cpus(), 4, len(specs)))
    helpers = []
    for start in range(count):
        jobs = "".join(
            json.dumps({"module": s.module, "params": dict(s.params), "file": object_name(s), "sources": _sources()}) + "\n"
            for s in specs[start::count]
        )
        command = [sys.executable, "-c", _HELPER, str(folder), *sys.path]
        try:
            helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            continue
        helpers.append(helper)
        threading.Thread(target=_feed, args=(helper, jobs), daemon=True).start()
    readers = [threading.Thread(target=_count, args=(helper, tick), daemon=True) for helper in helpers]
    for reader in readers:
        reader.start()
    try:
        for reader, helper in zip(readers, helpers, strict=True):
            reader.join()
            helper.wait()
    finally:
        for helper in helpers:
            if helper.poll() is None:
                helper.kill()
                helper.wait()
            if helper.stdout:
                helper.stdout.close()


def _feed(helper: subprocess.Popen[str], jobs: str) -> None:
    try:
        if helper.stdin:
            helper.stdin.write(jobs)
            helper.stdin.close()
    except OSError:  # it died; its kernels are compiled by the caller
        pass


def _count(helper: subprocess.Popen[str], tick: Callable[[], None]) -> None:
    for _ in helper.stdout or ():
        tick()


def _compile_here(spec: KernelSpec, folder: Path) -> bytes:
    """Compile in this process: slower to start, but it raises what went wrong."""
    from ..kernels.compile import compile_kernel, sealed, write_atomically

    try:
        data = compile_kernel(spec.module, dict(spec.params))
    except Exception as error:  # numba raises many kinds
        raise KernelError(f"kernel {spec.module} {dict(spec.params)}: could not be compiled: {str(error).strip()[:400]}") from error
    if sources.digest() != _sources():
        raise KernelError(f"kernel {spec.module}: its source files have changed since this process started: start it again")
    try:
        write_atomically(folder / object_name(spec), sealed(data))
    except OSError:
        pass
    return data


@lru_cache(maxsize=1)
def default_store() -> KernelStore:
    """The store that all engines of this process share."""
    return KernelStore()
