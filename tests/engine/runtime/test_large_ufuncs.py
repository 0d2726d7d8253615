"""Single ufuncs on large arrays: NumPy's bits, whoever computes them, in storage of the pool."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.faces.eager import tracked
from llamita.engine.faces.primitives import PRIMITIVES
from llamita.engine.runtime import large_ufuncs
from llamita.engine.runtime.engine import Engine
from llamita.engine.runtime.pool import BufferPool

N = large_ufuncs.POOLED // 4 + 13  # elements: from the pool in both types, and no multiple of a block
UFUNCS = sorted(name for name, primitive in PRIMITIVES.items() if primitive.ufunc is not None)


@pytest.fixture
def engines(monkeypatch):
    """Serial, and a team that shares whatever it can."""
    monkeypatch.setenv("LLAMITA_COST", "dispatch=0")
    serial, team = Engine(n_threads=1), Engine(n_threads=2)
    for engine in (serial, team):
        engine.__dict__["pool"] = BufferPool(poison=True)
    yield serial, team
    if "team" in team.__dict__:
        team.team.close()


def values(n: int, dtype, seed: int) -> np.ndarray:
    x = (np.random.default_rng(seed).standard_normal(n) * 3).astype(dtype)
    x[[0, n // 2, n - 1]] = [np.nan, -np.inf, 0.0]
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UFUNCS)
def test_every_ufunc_gives_numpys_bits(engines, name, dtype):
    primitive = PRIMITIVES[name]
    operands = [values(N, dtype, seed) for seed in range(primitive.ufunc.nin)]
    with np.errstate(all="ignore"):
        expected = primitive.ufunc(*operands)
        for engine in engines:
            with engine:
                got = primitive.evaluate(*operands)
            assert got.dtype == expected.dtype and got.flags.c_contiguous
            np.testing.assert_array_equal(got, expected)
            if primitive.ufunc.nin == 2:
                number = np.asarray(2.0, dtype)
                with engine:
                    np.testing.assert_array_equal(primitive.evaluate(operands[0], number), primitive.ufunc(operands[0], number))
                    np.testing.assert_array_equal(primitive.evaluate(number, operands[0]), primitive.ufunc(number, operands[0]))


def test_layouts_and_what_is_not_served(engines):
    x = values(N * 2, np.float64, 0).reshape(2, N)
    views = [x.T, x[:, ::-1], x[:, ::2], np.asfortranarray(x), np.broadcast_to(x[:1], x.shape), np.broadcast_to(x[:, :1], x.shape)]
    integers, row, complexes = np.arange(N * 2).reshape(2, N), x[0], x.astype(np.complex128)
    for engine in engines:
        with engine:
            for view in views:  # the bits of a copy: along strides NumPy rounds differently
                np.testing.assert_array_equal(ops.exp(view), np.exp(view.copy()))
                assert ops.exp(view).flags.c_contiguous
            np.testing.assert_array_equal(ops.add(integers, integers), integers + integers)
            np.testing.assert_array_equal(ops.add(x, row), x + row)
            np.testing.assert_array_equal(ops.neg(complexes), -complexes)


def test_large_results_come_from_the_pool_and_go_back(engines):
    x = np.ones(1 << 17)
    for engine in engines:
        with engine:
            y = ops.add(x, x)
            z = ops.add(tracked(y), x).numpy()
            view = z[5:]
            del y, z
            assert engine.pool.stats.buffers == 1
            del view
            assert engine.pool.stats.buffers == 2
            for _ in range(20):
                ops.exp(x)
            assert engine.pool.stats.buffers == 2


def test_matrix_products(engines):
    a, b = (np.random.default_rng(i).standard_normal((400, 400)) for i in range(2))
    for engine in engines:
        with engine:
            np.testing.assert_array_equal(ops.matmul(a, b), a @ b)
            np.testing.assert_array_equal(ops.matmul(a.T, b), a.T @ b)
            assert engine.pool.stats.buffers >= 1


def test_without_a_native_loop_numpy_does_it_alone(engines, monkeypatch):
    monkeypatch.setattr(large_ufuncs, "_kernel", lambda *args: None)
    x = np.ones(N)
    with engines[1]:
        np.testing.assert_array_equal(ops.exp(x), np.exp(x))
