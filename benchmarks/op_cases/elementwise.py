"""B9-B11, B17: single elementwise ops, the cost model and the pool."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamita.engine import ops
from llamita.engine.runtime.engine import Engine
from op_cases.timing import Check, Contender, Engines, Row, Timing

MIB = 1024 * 1024


def _may_be_shared(engines: Engines, kind: str, n: int) -> bool:
    """Whether threads pay for n doubles once the team is awake."""
    costs = engines.team.fused.launcher.costs
    return costs.is_parallel(kind, np.dtype(np.float64), n, engines.n_threads, awake=True)


def add(engines: Engines) -> list[Row]:
    references = {
        8192: "1.62, 4 threads 2.08",
        16384: "3.29, 3.88",
        32768: "6.08, 6.58",
        65536: "11.5, 12.0",
        131072: "22.3, 13.9",
        262144: "44.4, 21.8",
        1 << 20: "169, 120",
    }
    rows = []
    for n, reference in references.items():
        x, y = (np.random.default_rng(i).standard_normal(n) for i in range(2))

        def run(x: np.ndarray = x, y: np.ndarray = y) -> Any:
            return ops.add(x, y)

        row = Row("B9", f"add f64[{n}]", reference)
        engines.race(row, serial=run, team=Contender(run, engines.team), numpy=lambda x=x, y=y: x + y)
        parallel = _may_be_shared(engines, "map", n)
        if parallel:
            row.checks = [Check("serial/team", row.ratio("serial", "team"), at_least=1.4 if n == 1 << 20 else 1.0)]
        else:
            row.checks = [Check("team - serial, µs", row.times["team"].best - row.times["serial"].best, at_most=0.5)]
        row.notes.append("parallel" if parallel else "serial by the cost model")
        rows.append(row)
    return rows


def unary(engines: Engines) -> list[Row]:
    references = {
        ("tanh", 4096): "29.5", ("tanh", 16384): "109", ("tanh", 65536): "435", ("tanh", 262144): "1741, 8 threads 469",
        ("exp", 4096): "7.7", ("exp", 16384): "28", ("exp", 65536): "110", ("exp", 262144): "437, 8 threads 120",
        ("mul", 4096): "1.1", ("mul", 16384): "3.0", ("mul", 65536): "10.7", ("mul", 262144): "40.7",
    }  # fmt: skip
    rows = []
    for (name, n), reference in references.items():
        x = np.random.default_rng(0).standard_normal(n)
        operands = (x, x) if name == "mul" else (x,)

        def run(name: str = name, operands: tuple[np.ndarray, ...] = operands) -> Any:
            return getattr(ops, name)(*operands)

        row = Row("B10", f"{name} f64[{n}]", reference)
        engines.race(row, serial=run, team=Contender(run, engines.team))
        parallel = _may_be_shared(engines, "map" if name == "mul" else "transcendental", n)
        row.checks = [Check("serial/team", row.ratio("serial", "team"), at_least=1.0 if parallel else 0.9)]
        row.notes.append("parallel" if parallel else "serial by the cost model")
        rows.append(row)
    return rows


def transcendentals(engines: Engines) -> list[Row]:
    references = {
        ("exp", "f64"): "1.776", ("tanh", "f64"): "6.841", ("sin", "f64"): "2.436", ("log", "f64"): "3.057", ("sqrt", "f64"): ".298",
        ("exp", "f32"): ".569", ("tanh", "f32"): "2.903", ("log", "f32"): "1.364",
    }  # fmt: skip
    rows = []
    n = 1 << 22
    for (name, dtype), reference in references.items():
        x = np.abs(np.random.default_rng(0).standard_normal(n)).astype(dtype.replace("f", "float"))

        def run(name: str = name, x: np.ndarray = x) -> Any:
            return getattr(ops, name)(x)

        row = Row("B11", f"{name} {dtype}[2^22]", f"serial {reference} ns an element")
        engines.race(row, serial=run, team=Contender(run, engines.team), numpy=lambda name=name, x=x: getattr(np, name)(x))
        row.checks = [
            Check("ns an element", row.times["serial"].best * 1000 / n),
            Check("serial/numpy", row.ratio("serial", "numpy"), at_most=1.05),
            Check("team/numpy", row.ratio("team", "numpy"), at_most=1.05),
        ]
        rows.append(row)
    return rows


def pool(engines: Engines) -> list[Row]:
    """Page faults and time of eight sums of 128 MiB, after a first one."""
    try:
        import resource
    except ImportError:
        return [Row("B17", "pool", "", notes=["page faults cannot be counted here"])]
    import time

    x = np.ones(1 << 24)
    rows = []
    best = {}
    references = {0: "8195 faults", 512 * MIB: "0 faults, {1, 128 MiB}", 100 * MIB: "{0, 0}"}
    for limit, reference in references.items():
        with Engine(n_threads=1, pool_limit=limit) as engine:
            ops.add(x, x)
            before, taken = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, []
            for _ in range(8):
                started = time.perf_counter_ns()
                ops.add(x, x)
                taken.append((time.perf_counter_ns() - started) / 1000)
            faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 8
            stats = engine.pool.stats
        best[limit] = min(taken)
        name = f"{limit // MIB} MiB" if limit else "0"
        row = Row("B17", f"add f64[2^24] x8, pool limit {name}", reference)
        row.times["add"] = Timing(min(taken), sorted(taken)[4])
        row.checks = [Check("faults a call", faults, at_most=0.5 if limit == 512 * MIB else None)]
        if limit == 512 * MIB:
            row.checks.append(Check("limit 0/this", best[0] / best[limit], at_least=1.0))
        row.notes.append(f"retained {stats.buffers} buffers, {stats.capacity_bytes // MIB} MiB")
        rows.append(row)
    return rows


CASES = {"B9": add, "B10": unary, "B11": transcendentals, "B17": pool}
