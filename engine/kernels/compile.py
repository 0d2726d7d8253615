"""Compile kernels to native objects. Runs in helper processes that runtime/store.py starts.

Standard input holds one JSON object a line, {"module", "params", "file", "sources"}; for each, the object is written to
FOLDER/file and its name is printed, unless the sources are no longer those that the name stands for. The main process
(runtime/store.py) never imports this module's numba.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

SYMBOL = "llamita_kernel"


def kernel_ir(module: str, params: dict[str, Any]) -> str:
    """Optimised LLVM code of one kernel, which exports `llamita_kernel(args, thread, n_threads)`.

    module: name of the module in engine/kernels; params: what its `build` takes.
    """
    from numba import cfunc, types

    build = importlib.import_module(f".{module}", __package__).build
    word = types.int64
    options: dict[str, Any] = {"nopython": True, "error_model": "numpy", "boundscheck": False}
    native = cfunc(types.void(word, word, word), **options)(build(**params))
    return re.sub(rf'@"?{re.escape(native.native_name)}"?(?=[\s(,])', f"@{SYMBOL}", native.inspect_llvm())


def compile_kernel(module: str, params: dict[str, Any]) -> bytes:
    """Native object code of `kernel_ir` for the current target."""
    import llvmlite.binding as llvm

    from .targets import current_target

    parsed, target = llvm.parse_assembly(kernel_ir(module, params)), current_target()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    return bytes(machine.emit_object(parsed))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sealed(data: bytes) -> bytes:
    """The object with its SHA-256 in front, so that a damaged file is noticed."""
    import hashlib

    return hashlib.sha256(data).digest() + data


def main() -> None:
    """Entry point of the helper process."""
    from .sources import digest
    from .targets import current_target

    # numba compiles natively on the way: for the same processor, or it may not know the target's instructions.
    target = current_target()
    if target.cpu:
        os.environ.update(NUMBA_CPU_NAME=target.cpu, NUMBA_CPU_FEATURES=target.features)
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        job = json.loads(line)
        data = compile_kernel(job["module"], job["params"])
        if digest() != job["sources"]:  # an upgrade in between: the object would be another version's under this one's name
            break
        write_atomically(folder / job["file"], sealed(data))
        print(job["file"], flush=True)
