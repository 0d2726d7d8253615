"""What the direct face costs beyond the kernel it calls, at one element, remade by

    python benchmarks/overhead.py

``call`` is the op as a user writes it (defaults left out, names given); ``kernel`` is the same native call with its argument
words made before, or, for an op that NumPy computes, NumPy's calls written by hand. Microseconds, the fastest of many short
batches, in turns; `cost` is the difference and is to be at most 3.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.kernels.targets import current_target
from llamita.engine.runtime.engine import Engine, current_engine
from llamita.models.bench import cpu_name

CALLS = 100
TARGET = 3.0

x = np.ones(1, np.float32)
pair, matrix, heads = np.ones(2, np.float32), np.ones((1, 1), np.float32), np.ones((1, 1, 1, 2), np.float32)
mask, ids = np.ones(1, bool), np.zeros(1, np.int64)
half = matrix

Call = Callable[[], Any]


def native(op: str, *bound: Any) -> Call:
    """The prepared call of an op, alone."""
    found = current_engine().fused.prepare(op, *bound)
    if found is None:
        raise SystemExit(f"{op}: expected a kernel, got none")
    return found.bare([value for value in bound if isinstance(value, np.ndarray)])


def cases() -> dict[str, tuple[Call, Call]]:
    """Label -> (call, kernel)."""
    table: dict[str, tuple[Call, Call]] = {
        f"{name}(x)": (lambda op=ops.OPS[name]: op(x), native(name, x))
        for name in ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh", "mish", "hardsigmoid", "hardswish")
    }
    table |= {
        "gated_silu(x, x)": (lambda: ops.gated_silu(x, x), native("gated_silu", x, x)),
        "elu(x)": (lambda: ops.elu(x), native("elu", x, 1.0)),
        "leaky_relu(x)": (lambda: ops.leaky_relu(x), native("leaky_relu", x, 0.01)),
        "swiglu(x)": (lambda: ops.swiglu(pair), native("swiglu", pair)),
        "softmax(x)": (lambda: ops.softmax(x), native("softmax", x, -1)),
        "log_softmax(x, -1)": (lambda: ops.log_softmax(x, -1), native("log_softmax", x, -1)),
        "masked_softmax(x, mask)": (lambda: ops.masked_softmax(x, mask), native("masked_softmax", x, mask, -1)),
        "rms_norm(x, weight=w)": (lambda: ops.rms_norm(x, weight=x), native("rms_norm", x, -1, x, None, 1e-5)),
        "layer_norm(x, -1, w, b)": (lambda: ops.layer_norm(x, -1, x, x), native("layer_norm", x, -1, x, x, 1e-5)),
        "layer_norm(x, weight=w, bias=b)": (lambda: ops.layer_norm(x, weight=x, bias=x), native("layer_norm", x, -1, x, x, 1e-5)),
    }
    table |= {
        f"{name}(x, cos, sin)": (lambda op=ops.OPS[name]: op(heads, half, half), native(name, heads, half, half))
        for name in ("rope", "rope_i", "rope_thd")
    }
    one = heads[..., :1]
    table |= {
        "sdpa(q, k, v)": (lambda: ops.sdpa(one, one, one), native("sdpa", one, one, one, None, False, None, 1.0)),
        "sdpa(q, k, v, None, True)": (lambda: ops.sdpa(one, one, one, None, True), native("sdpa", one, one, one, None, True, None, 1.0)),
        "sdpa(q, k, v, causal=True)": (lambda: ops.sdpa(one, one, one, causal=True), native("sdpa", one, one, one, None, True, None, 1.0)),
        "linear(x, w)": (lambda: ops.linear(matrix, matrix), lambda: np.matmul(matrix, matrix.T)),
        "linear(x, w, b)": (lambda: ops.linear(matrix, matrix, x), lambda: np.matmul(matrix, matrix.T) + x),
        "matmul(a, b)": (lambda: ops.matmul(matrix, matrix), lambda: np.matmul(matrix, matrix)),
        "embedding(ids, w)": (lambda: ops.embedding(ids, matrix), lambda: matrix.take(ids, 0)),
        "add(x, x)": (lambda: ops.add(x, x), lambda: np.add(x, x)),
        "exp(x)": (lambda: ops.exp(x), lambda: np.exp(x)),
        "relu(x)": (lambda: ops.relu(x), lambda: np.maximum(x, 0)),
        "relu6(x)": (lambda: ops.relu6(x), lambda: np.minimum(np.maximum(x, 0), 6)),
    }
    return table


def measure(table: dict[str, tuple[Call, Call]], seconds: float) -> dict[str, tuple[float, float]]:
    """Label -> (call, kernel), microseconds."""
    best = {label: [float("inf"), float("inf")] for label in table}
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for label, pair_of_calls in table.items():
            for i, call in enumerate(pair_of_calls):
                at = time.perf_counter_ns()
                for _ in range(CALLS):
                    call()
                best[label][i] = min(best[label][i], (time.perf_counter_ns() - at) / CALLS / 1000)
    return {label: (call, kernel) for label, (call, kernel) in best.items()}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="for all ops together")
    args = parser.parse_args()
    with Engine():
        found = measure(cases(), args.seconds)
    print(f"{cpu_name()}, {current_target().name}, NumPy {np.__version__}, Python {platform.python_version()}\n")
    print("| op at one element | call, µs | kernel, µs | cost, µs | at most 3 |\n|---|---|---|---|---|")
    for label, (call, kernel) in found.items():
        cost = call - kernel
        print(f"| {label} | {call:.2f} | {kernel:.2f} | {cost:.2f} | {'yes' if cost <= TARGET else 'no'} |")


if __name__ == "__main__":
    main()
