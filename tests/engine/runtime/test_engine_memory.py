"""Op outputs in pool storage: nothing unwritten shows, nothing grows, and arrays outlive their engine."""

from __future__ import annotations

import gc
import resource

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.autodiff import grad, trace, tracked
from llamita.engine.runtime.engine import Engine
from llamita.engine.runtime.pool import BufferPool

SHAPES = ((1,), (31,), (33,), (3, 5, 17), (2, 4, 3), (1, 1, 513), (40, 600))
OPS = {
    **{name: ops.OPS[name] for name in ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh", "softmax", "log_softmax")},
    "rms_norm": lambda x: ops.rms_norm(x, -1),
    "layer_norm": lambda x: ops.layer_norm(x, 0),
    "softmax 0": lambda x: ops.softmax(x, 0),
    "masked": lambda x: ops.masked_softmax(x, np.ones(x.shape[-1], bool)),
    "gated": lambda x: ops.gated_silu(x, x),
}


@pytest.mark.parametrize("name", list(OPS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_t18_poisoned_storage_is_never_visible(name, dtype):
    engine = Engine(n_threads=1)
    engine.__dict__["pool"] = BufferPool(poison=True, smallest=1)
    with engine:
        for shape in SHAPES:
            x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
            for view in (x, x.T, x[::-1], np.broadcast_to(x[:1], shape)):
                assert np.isfinite(OPS[name](view)).all()
        assert OPS[name](np.zeros((3, 0), dtype)).shape == (3, 0)
    assert engine.pool.stats.hits


def test_no_growth_and_no_page_faults_in_steady_state():
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    with Engine(n_threads=1) as engine:
        for _ in range(3):
            ops.softmax(x)
        before, faults = engine.pool.stats, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            ops.softmax(x)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        small = x[:32]
        for _ in range(1000):
            ops.sigmoid(small)
        assert (before.buffers, before.capacity_bytes) == (1, x.nbytes)
        assert grown < 100  # a fresh result of 4 MiB would take 1024 a call
        assert engine.pool.stats.buffers == 1 and engine.pool.stats.misses == before.misses


def test_large_sums_reuse_their_storage_as_the_limit_allows():
    x = np.ones(1 << 20)
    size = x.nbytes
    for limit, kept in ((4 * size, 1), (0, 0), (size - 1, 0)):
        with Engine(n_threads=1, pool_limit=limit) as engine:
            for _ in range(3):
                ops.add(x, x)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(8):
                ops.add(x, x)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            stats = engine.pool.stats
        assert (stats.buffers, stats.capacity_bytes) == (kept, kept * size)
        assert stats.hits == (10 if kept else 0) and stats.misses == (1 if kept else 11)
        if kept:
            assert grown < 100  # each fresh result would take 2048


def test_programs_and_gradients_do_not_grow_over_a_thousand_runs():
    import psutil

    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    program = trace(lambda v: ops.softmax(ops.gelu_tanh(v)) * v, x).prepare()
    small = tracked(x[:2, :8])
    with Engine(n_threads=1) as engine:
        for warm in range(1200):
            y = program.run(x)
            (g,) = grad(ops.softmax(small) * small, [small], small.numpy())
            if warm == 200:
                before, stats = psutil.Process().memory_info().rss, engine.pool.stats
        after = engine.pool.stats
        assert psutil.Process().memory_info().rss - before < 16 * 2**20
        assert (after.buffers, after.misses) == (stats.buffers, stats.misses)
    assert np.isfinite(y).all() and np.isfinite(g.numpy()).all()


def test_t19_arrays_outlive_their_engine():
    engine = Engine(n_threads=1)
    with engine:
        y = ops.sigmoid(np.zeros((64, 1024), np.float32))
    pool = engine.pool
    assert pool.stats.buffers == 0
    del engine, pool
    gc.collect()
    assert (y == 0.5).all()
    part = y[3:5]
    del y
    assert (part == 0.5).all()


def test_composites_only(monkeypatch):
    assert Engine(composites_only=True).fused_activation("sigmoid", np.zeros(3)) is None
    monkeypatch.setenv("LLAMITA_COMPOSITES_ONLY", "1")
    assert Engine().fused_softmax(np.zeros(3), -1) is None
    assert Engine(composites_only=False).fused_softmax(np.zeros(3), -1) is not None
