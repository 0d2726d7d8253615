"""Prepared calls: what is kept from one call to the next never shows."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import LlamitaError
from llamita.engine.runtime import fused, prepared
from llamita.engine.runtime.arrays import address_of
from llamita.engine.runtime.engine import Engine


def soft(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_call_reads_the_operands_of_now():
    engine = Engine(n_threads=1)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((3, 5)) for _ in range(4)]
    results = [engine.fused_softmax(x, -1) for x in inputs]
    for x, y in zip(inputs, results, strict=True):
        np.testing.assert_allclose(y, soft(x), rtol=1e-14)
    assert len({address_of(y) for y in results}) == 4


def test_attributes_count_with_their_type():
    engine, x = Engine(n_threads=1), np.ones((2, 3))
    assert engine.fused_softmax(x, 1) is not None
    for axis in (True, 1.0, np.int64(1), [1]):
        assert engine.fused_softmax(x, axis) is None
    assert engine.fused_rms_norm(x, 1, None, None, 1) is not None
    assert engine.fused_rms_norm(x, 1, None, None, True) is None
    assert engine.fused_rms_norm(x, 1, None, None, float("nan")) is None


@pytest.mark.parametrize("axis", [[1], {}, "last", 1.5])
def test_what_is_no_axis_is_named(axis):
    with pytest.raises(LlamitaError, match=r"softmax: .*axis"):
        ops.softmax(np.ones((2, 3)), axis)


def test_signatures_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(fused, "MOST_CALLS", 8)
    engine = Engine(n_threads=1)
    for n in range(1, 40):
        np.testing.assert_allclose(engine.fused_softmax(np.zeros(n), 0), np.full(n, 1 / n))
        assert len(engine.fused._calls) <= 8


def test_layouts_of_one_shape_are_told_apart():
    engine, x = Engine(n_threads=1), np.random.default_rng(1).standard_normal((4, 4))
    for view in (x, x.T, x[::-1], x[:, ::-1], np.broadcast_to(x[:1], x.shape)):
        np.testing.assert_allclose(engine.fused_softmax(view, -1), soft(view), rtol=1e-14)


def test_addresses_where_the_struct_of_an_array_is_not_known(monkeypatch):
    monkeypatch.setattr(prepared, "_DATA_FIELD", -1)
    monkeypatch.setattr(prepared, "_handle_of", address_of)
    engine, x = Engine(n_threads=2), np.random.default_rng(2).standard_normal((300, 64))
    np.testing.assert_allclose(engine.fused_softmax(x, -1), soft(x), rtol=1e-13)
    np.testing.assert_allclose(engine.fused_softmax(x[:, ::2], -1), soft(x[:, ::2]), rtol=1e-13)


def test_threads_of_the_caller_do_not_mix():
    engine, wrong = Engine(n_threads=1), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            x = rng.standard_normal((2, 7))
            if not np.allclose(engine.fused_softmax(x, -1), soft(x), rtol=1e-12):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_embedding_by_rows():
    table = np.arange(12.0).reshape(4, 3)
    engine = Engine(n_threads=1)
    for ids in (np.array([[3, 0], [1, 1]]), np.array(2, np.int32), np.array([3], np.uint32)):
        np.testing.assert_array_equal(engine.fused_embedding(ids, table), table[ids])
    for ids in (np.array([-1]), np.array([4]), np.array([0, 2**31], np.uint32), np.array([1.0]), np.array([1], np.int8), np.zeros(0, int)):
        assert engine.fused_embedding(ids, table) is None
    assert engine.fused_embedding(np.array([1]), table.T) is None
    assert engine.fused_embedding(np.array([1]), table.astype(int)) is None
