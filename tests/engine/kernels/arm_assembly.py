"""Writes what kernels become on Arm, on any machine: `arm_assembly.py TARGET` reads [[module, params], ...] and prints assembly.

numba compiles as always but gives its code to no processor; LLVM's other back end takes it instead.
"""

import json
import os
import re
import sys

import llvmlite.binding as llvm
from numba import njit
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

from llamita.engine.kernels import targets

TRIPLE = "aarch64-unknown-linux-gnu"


def pretend_to_be_arm(target: str) -> None:
    """From here on the machine has Arm's features, and numba emits no native code."""
    targets._family = lambda: "arm"
    targets.host_features = lambda: frozenset(("neon", "dotprod", "i8mm"))
    targets.available_targets = lambda: (target, "generic")
    os.environ[targets.ENV] = target
    njit(lambda x: x)(1)  # what numba emits for itself, it has by now
    JITCPUCodegen.set_env = lambda self, name, env: None
    JITCodeLibrary._finalize_specific = lambda self: None
    JITCodeLibrary.get_pointer_to_function = lambda self, name: self._ensure_finalized() or 0


def assembly(module: str, params: dict) -> str:
    """Assembly of one kernel for the pretended target."""
    from llamita.engine.kernels.compile import kernel_ir

    target = targets.current_target()
    text = re.sub(r"^target (triple|datalayout) = .*$", "", kernel_ir(module, params), flags=re.MULTILINE)
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )
    return machine.emit_assembly(llvm.parse_assembly(f'target triple = "{TRIPLE}"\n{text}'))


if __name__ == "__main__":
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    pretend_to_be_arm(sys.argv[1])
    print(json.dumps([assembly(*job) for job in json.load(sys.stdin)]))
