"""The buffer pool: what returns to it, what does not, and that nothing uninitialised becomes visible."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from llamita.engine.errors import InvalidArgument
from llamita.engine.runtime.pool import DEFAULT_LIMIT, BufferPool

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
MIB = 2**20


def make(pool: BufferPool, nbytes: int, dtype: np.dtype = F32) -> np.ndarray:
    return pool.output((nbytes // dtype.itemsize,), dtype).finish()


def test_an_output_is_an_ordinary_aligned_array():
    output = BufferPool().output((64, 1024), F32)
    y = output.finish()
    assert type(y) is np.ndarray and y.shape == (64, 1024) and y.dtype == F32
    assert y.flags.c_contiguous and y.flags.writeable
    assert output.address == y.ctypes.data and output.address % 64 == 0


def test_storage_returns_when_the_array_is_dropped_and_is_found_again():
    pool = BufferPool()
    y = make(pool, MIB)
    address = y.ctypes.data
    assert pool.stats.buffers == 0
    del y
    assert (pool.stats.buffers, pool.stats.capacity_bytes) == (1, MIB)
    assert make(pool, MIB).ctypes.data == address
    assert (pool.stats.hits, pool.stats.misses) == (1, 1)


def test_best_fit_by_dtype():
    pool = BufferPool()
    arrays = [make(pool, n * MIB, dtype) for n, dtype in ((4, F32), (2, F32), (1, F64), (3, F32))]
    addresses = [y.ctypes.data for y in arrays]
    del arrays
    assert make(pool, 2 * MIB - 4).ctypes.data == addresses[1]  # the smallest that holds it, not the f64 one
    held = make(pool, 2 * MIB)
    second = make(pool, 2 * MIB)
    assert [held.ctypes.data, second.ctypes.data] == [addresses[1], addresses[3]]
    misses = pool.stats.misses
    make(pool, 2 * MIB, F64)
    assert pool.stats.misses == misses + 1


def views(y: np.ndarray) -> dict[str, object]:
    return {
        "slice": y[10:20],
        "of a view": y[10:][5:].reshape(-1, 1).T,
        "other dtype": y.view(np.uint8),
        "broadcast": np.broadcast_to(y[:1], (3, 1)),
        "strided": np.lib.stride_tricks.as_strided(y, (2,), (8,)),
        "memoryview": memoryview(y),
        "frombuffer": np.frombuffer(y, np.float32),
        "iterator": y.flat,
        "subclass": y.view(np.recarray),
        "field": y[None],
    }


@pytest.mark.parametrize("kind", list(views(np.zeros(64, np.float32))))
def test_t19_a_view_keeps_the_storage_out(kind):
    pool = BufferPool()
    y = make(pool, MIB)
    view = views(y)[kind]
    del y
    assert pool.stats.buffers == 0
    del view
    assert pool.stats.buffers == 1


def test_t19_a_slice_survives_with_its_values():
    pool = BufferPool()
    y = make(pool, MIB)
    y[:] = np.arange(y.size)
    part = y[100:200]
    del y
    other = make(pool, MIB)
    other[:] = -1
    np.testing.assert_array_equal(part, np.arange(100, 200))


def test_an_abandoned_output_returns():
    pool = BufferPool()
    with pytest.raises(ZeroDivisionError), pool.output((MIB,), F32) as guard:
        guard.address // 0
    assert pool.stats.buffers == 1
    guard = pool.output((MIB,), F32)
    assert pool.stats.buffers == 0
    del guard
    assert pool.stats.buffers == 1


def test_a_guard_finishes_once():
    with BufferPool().output((3,), F32) as guard:
        guard.array[:] = 1
        np.testing.assert_array_equal(guard.finish(), [1, 1, 1])
        with pytest.raises(InvalidArgument, match=r"pool.*guard"):
            guard.finish()
    with pytest.raises(InvalidArgument, match=r"pool.*guard"):
        _ = guard.array


def test_t19_without_the_pool_arrays_live_on_and_are_freed():
    pool = BufferPool()
    y, z = make(pool, MIB), make(pool, MIB)
    y[:] = 7
    gone, storage = weakref.ref(pool), weakref.ref(y.base)
    del z, pool
    assert gone() is None
    assert (y == 7).all()
    del y
    assert storage() is None


def test_t19_one_too_large_is_refused_and_evicts_nothing():
    pool = BufferPool(100 * MIB)
    small = [make(pool, MIB) for _ in range(3)]
    large = make(pool, 128 * MIB)
    del small
    del large
    stats = pool.stats
    assert (stats.buffers, stats.capacity_bytes, stats.evictions) == (3, 3 * MIB, 0)


def test_over_the_limit_the_smallest_go_first():
    pool = BufferPool(6 * MIB)
    arrays = [make(pool, n * MIB) for n in (1, 2, 4)]
    del arrays
    stats = pool.stats
    assert (stats.buffers, stats.capacity_bytes, stats.evictions) == (2, 6 * MIB, 1)


def test_lowering_the_limit_evicts_at_once_and_zero_keeps_nothing():
    pool = BufferPool(8 * MIB)
    arrays = [make(pool, n * MIB) for n in (1, 2, 4)]
    del arrays
    pool.limit = 4 * MIB
    assert (pool.stats.buffers, pool.stats.capacity_bytes) == (1, 4 * MIB)
    pool.limit = 0
    assert pool.stats.buffers == 0
    y = make(pool, MIB)
    del y
    assert pool.stats.buffers == 0


def test_clear():
    pool = BufferPool()
    y, z = make(pool, MIB), make(pool, MIB)
    del y
    pool.clear()
    assert (pool.stats.buffers, pool.stats.capacity_bytes) == (0, 0)
    del z
    assert pool.stats.buffers == 1


def test_small_and_empty_outputs_do_not_take_part():
    pool = BufferPool()
    for shape in ((0,), (3, 0), (), (5,)):
        output = pool.output(shape, F64)
        assert output.finish().shape == shape
        del output
    assert pool.stats == BufferPool().stats
    tiny = BufferPool(smallest=1)
    for shape in ((0,), (1,)):
        tiny.output(shape, F64)
    assert tiny.stats.buffers == 1


def test_limit_from_the_environment(monkeypatch):
    for value, expected in (("1234", 1234), ("0", 0), ("many", DEFAULT_LIMIT), ("-1", DEFAULT_LIMIT), ("", DEFAULT_LIMIT)):
        monkeypatch.setenv("LLAMITA_POOL_LIMIT", value)
        assert BufferPool().limit == expected
    assert BufferPool(77).limit == 77
    for wrong in (-1, 1.5, True):
        with pytest.raises(InvalidArgument, match=r"pool.*limit"):
            BufferPool(wrong)


def test_poison():
    pool = BufferPool(poison=True)
    assert np.isnan(make(pool, MIB)).all() and np.isnan(pool.empty((3,), F64)).all()
    assert (pool.empty((3,), np.dtype(np.int32)) == 1).all()


def test_zeros():
    pool = BufferPool()
    y = make(pool, MIB)
    y[:] = np.nan
    del y
    z = pool.zeros((MIB // 4,), F32)
    assert pool.stats.hits == 1 and not z.any()
    assert not pool.zeros((2, 3), F64).any()


def test_a_finalizer_inside_a_checkout_does_not_deadlock():
    pool = BufferPool()
    taken = pool._lock
    y = make(pool, MIB)
    with taken:  # what a finalizer sees that runs while this thread checks storage out
        del y
    assert pool.stats.buffers == 1
    make(pool, MIB)
    assert pool.stats.hits == 1


def test_collections_inside_checkouts():
    pool = BufferPool()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list[object] = [make(pool, MIB)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    stats = pool.stats
    assert stats.hits + stats.misses == 300
    assert stats.capacity_bytes == stats.buffers * MIB


def test_threads():
    pool = BufferPool(64 * MIB, smallest=1)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        kept: list[np.ndarray] = []
        for _ in range(300):
            y = pool.output((int(rng.integers(1, 3000)),), F32).finish()
            y[:] = seed
            kept.append(y)
            if len(kept) > 8:
                old = kept.pop(int(rng.integers(len(kept))))
                if not (old == seed).all():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    stats = pool.stats
    assert stats.hits + stats.misses == 1200
    assert stats.buffers == stats.misses - stats.evictions
