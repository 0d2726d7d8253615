"""Norm, gate and exponential kernels against their formulas in float64, alone and in front of a quantised product."""

import numpy as np
import pytest
from kernel_drivers import Rows, bits, dequantized, product_error, random_tensor, team

from llamita.engine import ops

COLUMNS = (1, 7, 31, 32, 33, 48, 64, 100, 576)


def composite(op, *arrays, dtype=np.float64, **attrs):
    with np.errstate(all="ignore"):
        return op(*(a if a is None else a.astype(dtype) for a in arrays), **attrs)


def rms_norm(weight, eps=1e-5):
    return lambda x: ops.rms_norm(x, -1, weight, None, eps)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", COLUMNS)
def test_rms_norm(columns):
    x, weight = normal(17, columns) * np.float32(10) ** normal(17, 1, seed=1), normal(columns, seed=2)
    y = Rows(rms_norm(weight), x).run(range(17))
    exact = composite(ops.rms_norm, x, axis=-1, weight=weight.astype(np.float64), eps=1e-5)
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=0)


def test_rms_norm_at_its_edges():
    weight = normal(48)
    x = normal(9, 48)
    x[1], x[2, 7], x[3, 47], x[4, 0], x[5], x[6] = 0, np.nan, np.inf, -np.inf, 1e30, 1e-30
    for eps in (1e-6, 0.0):
        kernel = Rows(rms_norm(weight, eps), x)
        y = kernel.run(range(9))
        expected = composite(ops.rms_norm, x, axis=-1, weight=weight, eps=eps, dtype=np.float32)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=0)  # NaN where the formula has it, and nowhere else
        for t in range(9):
            assert np.array_equal(bits(kernel.run([t])[0]), bits(y[t]))


@pytest.mark.parametrize("columns", COLUMNS)
def test_gated_silu(columns):
    gate, up = normal(17, columns) * 8, normal(17, columns, seed=1)
    y = Rows(ops.gated_silu, gate, up).run(range(17))
    np.testing.assert_allclose(y, composite(ops.gated_silu, gate, up), rtol=1e-6, atol=1e-37)


def test_gated_silu_at_its_edges():
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 88, -88, 200, -200, 3e38, -3e38, 1e-40, -1e-40], np.float32)
    gate, up = (a.ravel() for a in np.meshgrid(special, special))
    gate, up = np.pad(gate, (0, 7))[None], np.pad(up, (0, 7))[None]
    y = Rows(ops.gated_silu, gate, up).run([0])
    expected = composite(ops.gated_silu, gate, up, dtype=np.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-34)


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("columns", [32, 96, 576])
def test_what_they_hand_to_a_quantised_product(width, columns):
    weight = random_tensor("Q8_0", 40, columns)
    w, scale = dequantized(weight), normal(columns, seed=3)
    x, up = normal(9, columns, seed=4), normal(9, columns, seed=5)
    x[4] = 0
    for fn, tables, formula in (
        (rms_norm(scale), (x,), lambda a: ops.rms_norm(a, -1, scale.astype(np.float64), None, 1e-5)),
        (ops.gated_silu, (x, up), ops.gated_silu),
    ):
        kernel = Rows(lambda *rows, fn=fn: ops.linear(fn(*rows), weight), *tables, width=width)
        h = formula(*(table.astype(np.float64) for table in tables))
        y = kernel.run(range(9))
        assert (np.abs(y - h @ w.T.astype(np.float64)) <= 1.5 * product_error(h, w, width)).all()
        for ids in ([8], [3, 2, 1]):
            assert np.array_equal(bits(kernel.run(ids)), bits(y[ids]))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_change_nothing(n_threads):
    x, weight = normal(33, 100), normal(100, seed=1)
    one, other = (Rows(rms_norm(weight), x, on=team(n)).run(range(33)) for n in (2, n_threads))
    assert np.array_equal(bits(one), bits(other))
    one, other = (Rows(ops.gated_silu, x, x, on=team(n)).run(range(33)) for n in (2, n_threads))
    assert np.array_equal(bits(one), bits(other))


@pytest.fixture(scope="module")
def exp():
    """The kernels' exponential over arrays, compiled in this process."""
    from numba import njit

    from llamita.engine.kernels import functions, simd

    @njit
    def run(x, y, n):
        for i in range(0, n, 16):
            simd.store(y + 4 * i, functions.exp(simd.load_f32x16(x + 4 * i)))

    def over(values):
        x = np.ascontiguousarray(np.pad(values, (0, -len(values) % 16)), np.float32)
        y = np.empty_like(x)
        run(x.ctypes.data, y.ctypes.data, len(x))
        return y[: len(values)]

    return over


def test_exp_is_within_two_ulp(exp):
    x = np.linspace(-87.3, 88.3, 2_000_003).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp(x) - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    small = np.random.default_rng(0).standard_normal(100_000).astype(np.float32) * np.float32(1e-3)
    exact = np.exp(small.astype(np.float64))
    assert (np.abs(exp(small) - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()


def test_exp_at_its_edges(exp):
    x = np.array([0, -0.0, -87.4, -1e30, -np.inf, 89, 128, 1e30, np.inf, np.nan, 1e-45], np.float32)
    expected = np.array([1, 1, 0, 0, 0, np.inf, np.inf, np.inf, np.inf, np.nan, 1], np.float32)
    np.testing.assert_array_equal(exp(x), expected)
