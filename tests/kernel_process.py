"""A small set of kernels in a process of its own, for tests of the kernel store: `python kernel_process.py OUT.npz [all]`.

Writes the results, and whether numba was imported on the way.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from kernel_drivers import CacheMemory, Rows, random_tensor

from llamita.engine import ops
from llamita.engine.runtime.team import Team
from llamita.quant.packing import pack_spec

TOKENS, WIDE = 21, 256
BLOCKS = {8: ("Q4_1", "Q4_1"), 16: ("Q6_K", "Q4_0"), 32: ("F16", "F16")}  # width of activations -> formats of the products


def gated(team: Team) -> np.ndarray:
    """The gate of an MLP alone."""
    gate, up = np.random.default_rng(2).standard_normal((2, 9, 96)).astype(np.float32) * 8
    return Rows(ops.gated_silu, gate, up, on=team).run(range(9))


def block(team: Team, width: int) -> np.ndarray:
    """Every kind of kernel in one plan: lookups, norm, attention with positions, gate, products of two formats."""
    formats = BLOCKS[width]
    weights = [random_tensor(name, WIDE, WIDE, seed) for seed, name in enumerate(formats)]
    team.store.load([pack_spec(weight) for weight in weights])
    rng = np.random.default_rng(0)
    scale = rng.standard_normal(WIDE).astype(np.float32)
    angles = np.arange(TOKENS)[:, None] * 0.5 ** np.arange(16)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def heads(x: Any) -> Any:
        return ops.transpose(ops.reshape(x, (1, TOKENS, x.shape[2] // 32, 32)), (0, 2, 1, 3))

    def traced(x: Any, k: Any, v: Any, past: Any) -> Any:
        a, b = weights
        q = heads(ops.linear(ops.rms_norm(x, -1, scale, None, 1e-5), a))
        k, v = heads(k), heads(v)
        rows = past.rows(cos, TOKENS), past.rows(sin, TOKENS)
        y = ops.sdpa(ops.rope(q, *rows), *past.append(0, ops.rope(k, *rows), v), None, True, None)
        x = x + ops.linear(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (1, TOKENS, WIDE)), b)
        return x + ops.linear(ops.gated_silu(ops.linear(x, a), x), b)

    tables = [random_tensor(formats[0], TOKENS, WIDE, 3), *rng.standard_normal((2, TOKENS, 64)).astype(np.float32)]
    rows = Rows(traced, *tables, width=width, cache=CacheMemory(1, 2, 32, TOKENS), on=team)
    return np.concatenate([rows.run(range(20)), rows.run([20], 20)])


def main() -> None:
    """Run and report."""
    team = Team(2)
    results = {"gated": gated(team)}
    if sys.argv[2:] == ["all"]:
        results |= {f"block {width}": block(team, width) for width in BLOCKS}
    np.savez(sys.argv[1], numba="numba" in sys.modules, **results)


if __name__ == "__main__":
    main()
