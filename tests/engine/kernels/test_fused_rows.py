"""Fused softmax and norms against their composites: every axis of any view, every edge, the same bits on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from op_faces import INF, NAN, run, ulps

from llamita.engine import ops
from llamita.engine.runtime.engine import Engine

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SIZES = (1, 2, 15, 16, 17, 31, 33, 576)
ENGINE = Engine(n_threads=1)
Row = Callable[[np.ndarray, int], np.ndarray]


def mask_of(x: np.ndarray) -> np.ndarray:
    """About a quarter hidden, the first row wholly."""
    mask = np.random.default_rng(9).random(x.shape) < 0.75
    mask.reshape(-1)[: x.shape[-1]] = False
    return mask


def weights(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    n = x.shape[axis]
    return np.linspace(0.5, 2, n).astype(x.dtype), np.linspace(-1, 1, n).astype(x.dtype)


# What the engine's hook gives, and the op that it has to equal.
CASES: dict[str, tuple[Callable[[Engine, np.ndarray, int], Any], Row]] = {
    "softmax": (lambda e, x, a: e.fused_softmax(x, a), ops.softmax),
    "masked_softmax": (lambda e, x, a: e.fused_masked_softmax(x, mask_of(x), a), lambda x, a: ops.masked_softmax(x, mask_of(x), a)),
    "rms_norm": (lambda e, x, a: e.fused_rms_norm(x, a, None, None, 1e-5), lambda x, a: ops.rms_norm(x, a, None, None, 1e-5)),
    "rms_norm weighted": (
        lambda e, x, a: e.fused_rms_norm(x, a, weights(x, a)[0], None, 1e-6),
        lambda x, a: ops.rms_norm(x, a, weights(x, a)[0], None, 1e-6),
    ),
    "layer_norm": (lambda e, x, a: e.fused_layer_norm(x, a, None, None, 1e-5), lambda x, a: ops.layer_norm(x, a, None, None, 1e-5)),
    "layer_norm weighted": (
        lambda e, x, a: e.fused_layer_norm(x, a, *weights(x, a), 1e-5),
        lambda x, a: ops.layer_norm(x, a, *weights(x, a), 1e-5),
    ),
}
CASES["log_softmax"] = (lambda e, x, a: e.fused_log_softmax(x, a), ops.log_softmax)
CASES["masked_log_softmax"] = (
    lambda e, x, a: e.fused_masked_log_softmax(x, mask_of(x), a),
    lambda x, a: ops.masked_log_softmax(x, mask_of(x), a),
)
EACH = pytest.mark.parametrize("case", list(CASES))


def fused(case: str, x: np.ndarray, axis: int = -1, engine: Engine = ENGINE) -> np.ndarray:
    y = CASES[case][0](engine, x, axis)
    assert type(y) is np.ndarray and y.shape == x.shape and y.dtype == x.dtype and y.flags.c_contiguous
    return y


def composite(case: str, x: np.ndarray, axis: int = -1) -> np.ndarray:
    return run("composite", lambda v: CASES[case][1](v, axis), x)


def assert_agrees(case: str, y: np.ndarray, expected: np.ndarray) -> None:
    """The order of sums is all that differs."""
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    if case in ("softmax", "masked_softmax"):
        assert ulps(y, expected) <= 4
        return
    # A difference of two numbers (x - log sum, x - mean) is as exact as they are, however small it is itself.
    tolerance = 8 * np.finfo(y.dtype).eps
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


def normal(shape: tuple[int, ...], dtype: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype) * dtype(3)


@DTYPES
@EACH
@pytest.mark.parametrize("n", SIZES)
def test_agrees_with_the_composite(case, n, dtype):
    x = normal((5, n), dtype)
    assert_agrees(case, fused(case, x), composite(case, x))


@DTYPES
@EACH
def test_t07_every_axis_of_any_view(case, dtype):
    x = normal((3, 4, 5, 18), dtype)
    engine_served = 0
    for view in (x, x.transpose(2, 0, 3, 1), x[:, ::2, :, 1:], x[::-1, :, ::-1, :], np.broadcast_to(x[:1], x.shape)):
        for axis in range(-4, 4):
            y = CASES[case][0](ENGINE, view, axis)
            engine_served += y is not None
            if y is None:
                y = CASES[case][1](view, axis)
            assert y.flags.c_contiguous
            assert_agrees(case, y, composite(case, view.copy(), axis))
    assert engine_served


@DTYPES
@EACH
@pytest.mark.parametrize("n", [1, 31, 33])
def test_t12_nan_spoils_its_own_row_only(case, n, dtype):
    if "masked" in case:
        pytest.skip("what the mask hides does not spoil: see test_what_the_mask_hides")
    x = normal((3, n), dtype)
    clean = fused(case, x)
    for at in {0, n // 2, n - 1}:
        for value in (NAN, INF):
            poisoned = x.copy()
            poisoned[1, at] = value
            y = fused(case, poisoned)
            np.testing.assert_array_equal(np.isnan(y), np.isnan(composite(case, poisoned)))
            np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])


@DTYPES
def test_g07_g12_g31_rows_of_the_softmax(dtype):
    rows = np.array([[1000, 1001, 1002], [-INF] * 3, [1, NAN, 2], [0, -INF, 0], [INF, 0, 0]], dtype)
    y = fused("softmax", rows)
    expected = [[0.09003057317038046, 0.24472847105479764, 0.6652409557748218], [0, 0, 0], [NAN] * 3, [0.5, 0, 0.5], [NAN] * 3]
    assert ulps(y, np.array(expected, dtype)) <= 2
    np.testing.assert_array_equal(fused("softmax", np.array([[1234, 0]], dtype)), [[1, 0]])
    np.testing.assert_array_equal(fused("softmax", np.full((2, 17), -INF, dtype)), np.zeros((2, 17)))


@DTYPES
def test_softmax_across_columns_keeps_the_policy(dtype):
    for inner in (1, 15, 16, 17, 40):
        x = normal((2, 7, inner), dtype)
        x[0, :, 0] = -INF
        x[1, 3, inner - 1] = NAN
        x[0, 2, inner // 2] = INF if inner > 1 else x[0, 2, inner // 2]
        y = ops.softmax(x, 1)
        assert_agrees("softmax", y, composite("softmax", x, 1))


@DTYPES
@EACH
@pytest.mark.parametrize("inner", [1, 16, 33])
def test_t12_nan_across_columns_spoils_its_own_column_only(case, inner, dtype):
    if "masked" in case:
        pytest.skip("what the mask hides does not spoil: see test_what_the_mask_hides")
    x = normal((2, 31, inner), dtype)
    clean = CASES[case][1](x, 1)
    for at in (0, 15, 30):
        for value in (NAN, INF):
            poisoned = x.copy()
            poisoned[1, at, inner - 1] = value
            y = CASES[case][1](poisoned, 1)
            np.testing.assert_array_equal(np.isnan(y), np.isnan(composite(case, poisoned, 1)))
            np.testing.assert_array_equal(y[0], clean[0])
            np.testing.assert_array_equal(y[1, :, : inner - 1], clean[1, :, : inner - 1])


@DTYPES
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("n", [2, 31, 33])
def test_g10_what_the_mask_hides_of_logarithms_and_columns(n, axis, dtype):
    x, mask = normal((4, n), dtype), np.ones((4, n), bool)
    mask[0, [0, n // 2, n - 1]] = mask[1] = False
    x[~mask] = np.resize(np.array([NAN, INF, -INF], dtype), (~mask).sum())
    if axis == 0:
        x, mask = np.ascontiguousarray(x.T), np.ascontiguousarray(mask.T)
    for op in (ops.masked_softmax, ops.masked_log_softmax):
        y = op(x, mask, axis)
        np.testing.assert_array_equal(y[~mask], 0 if op is ops.masked_softmax else -INF)
        np.testing.assert_allclose(y[mask], run("composite", lambda v, op=op: op(v, mask, axis), x)[mask], rtol=1e-5)
        spoiled = x.copy()
        spoiled[(0, 3) if axis == 0 else (3, 0)] = NAN
        z = op(spoiled, mask, axis)
        own = np.isnan(z)
        assert (own[:, 3] if axis == 0 else own[3]).all() and own.sum() == n


@DTYPES
@pytest.mark.parametrize("n", [2, 31, 33, 64])
def test_g09_g24_what_the_mask_hides(n, dtype):
    x = normal((4, n), dtype)
    mask = np.ones((4, n), bool)
    mask[0, [0, n // 2, n - 1]] = False
    mask[1] = False
    mask[2, 0] = False
    x[0, [0, n // 2, n - 1]] = [NAN, INF, -INF]
    x[1] = NAN
    y = ENGINE.fused_masked_softmax(x, mask, -1)
    assert ulps(y, run("composite", lambda v: ops.masked_softmax(v, mask), x)) <= 4
    assert not y[~mask].any() and not np.isnan(y).any()
    x[2, n - 1] = NAN
    assert np.isnan(ENGINE.fused_masked_softmax(x, mask, -1)[2]).all()


@DTYPES
@pytest.mark.parametrize("mask_shape", [(), (1,), (33,), (1, 33), (4, 1), (4, 33), (3, 1, 33), (3, 1, 1), (2, 3, 4, 33), (2, 1, 1, 33)])
def test_masks_broadcast(mask_shape, dtype):
    x = normal((2, 3, 4, 33), dtype)
    mask = np.asarray(np.random.default_rng(4).random(mask_shape) < 0.7)
    y = ENGINE.fused_masked_softmax(x, mask, 3)
    assert y is not None
    assert ulps(y, run("composite", lambda v: ops.masked_softmax(v, mask), x)) <= 4


@DTYPES
def test_g13_g15_g16_g18_g19_norms(dtype):
    rows = np.array([[2, 2, 2, 2], [1, 2, 3, 4]], dtype)
    expected = [[0] * 4, [-1.3416354199689269, -0.447211806656309, 0.447211806656309, 1.3416354199689269]]
    np.testing.assert_allclose(ENGINE.fused_layer_norm(rows, -1, None, None, 1e-5), expected, rtol=4 * np.finfo(dtype).eps)
    expected = [[NAN] * 4, [-1.3416407864998738, -0.4472135954999579, 0.4472135954999579, 1.3416407864998738]]
    np.testing.assert_allclose(ENGINE.fused_layer_norm(rows, -1, None, None, 0.0), expected, rtol=4 * np.finfo(dtype).eps)
    zeros = np.zeros((1, 3), dtype)
    np.testing.assert_array_equal(ENGINE.fused_rms_norm(zeros, -1, None, None, 1e-6), zeros)
    np.testing.assert_array_equal(ENGINE.fused_rms_norm(zeros, -1, None, None, 0.0), [[NAN] * 3])
    large = np.array([[1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3]], dtype)
    y = ENGINE.fused_layer_norm(large, -1, None, None, 1e-5)
    np.testing.assert_allclose(y, [[-1.3416355, -0.44721183, 0.44721183, 1.3416355]], rtol=1e-6)
    np.testing.assert_array_equal(ENGINE.fused_layer_norm(np.array([[1, 3]], dtype), -1, None, None, 0.0), [[-1, 1]])


@DTYPES
def test_large_magnitudes(dtype):
    rng = np.random.default_rng(5)
    for x in (rng.choice([-7e9, 7e9], (4, 6912)), rng.uniform(-7e9, 7e9, (4, 6912))):
        x = x.astype(dtype)
        for case in ("rms_norm", "layer_norm"):
            y = fused(case, x)
            assert np.isfinite(y).all()
            np.testing.assert_allclose(y, composite(case, x), atol=5e-3)
        assert ulps(fused("softmax", x), composite("softmax", x)) <= 4


@DTYPES
@EACH
def test_threads_change_no_bit(case, dtype):
    x = normal((301, 577), dtype)
    np.testing.assert_array_equal(fused(case, x, engine=Engine(n_threads=2)), fused(case, x))


@DTYPES
@EACH
def test_a_row_does_not_depend_on_its_neighbours(case, dtype):
    if "masked" in case:
        pytest.skip("its mask is made for all rows together")
    x = normal((33, 100), dtype)
    y = fused(case, x)
    np.testing.assert_array_equal(np.concatenate([fused(case, x[i : i + 1]) for i in range(33)]), y)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@EACH
def test_half_types_round_once(case, half):
    x = ops.cast(normal((3, 100), np.float32), half)
    op = (
        CASES[case][1]
        if "weighted" not in case
        else (lambda v, a: ops.OPS[case.split()[0]](v, a, ops.cast(weights(np.zeros((1, 100), np.float32), 1)[0], half)))
    )
    y, expected = op(x, -1), run("composite", lambda v: op(v, -1), x)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(ops.cast(y, "f64"), ops.cast(expected, "f64"), rtol=2**-7 if half == "bf16" else 2**-10, atol=6e-8)


def test_a_hook_refuses_instead_of_raising():
    x, w = np.zeros((2, 3)), np.zeros(3)
    for wrong in (np.zeros((2, 3), np.int32), np.zeros((2, 3), np.complex64), np.zeros(()), None, "x", 1.0, np.zeros((2, 3), ">f8")):
        assert ENGINE.fused_softmax(wrong, -1) is None
        assert ENGINE.fused_masked_softmax(wrong, np.ones(3, bool), -1) is None
        assert ENGINE.fused_rms_norm(wrong, -1, None, None, 1e-5) is None
        assert ENGINE.fused_layer_norm(wrong, -1, None, None, 1e-5) is None
    for axis in (2, -3, None, 1.0, "last"):
        assert ENGINE.fused_softmax(x, axis) is None
        assert ENGINE.fused_masked_softmax(x, np.ones(3, bool), axis) is None
        assert ENGINE.fused_rms_norm(x, axis, None, None, 1e-5) is None
    for mask in (np.ones(3), np.ones((2, 2), bool), np.ones((1, 2, 3), bool), None, [True]):
        assert ENGINE.fused_masked_softmax(x, mask, -1) is None
    for eps in (-1, NAN, INF, None, "small"):
        assert ENGINE.fused_rms_norm(x, -1, None, None, eps) is None
    for weight in (np.zeros(2), np.zeros((1, 3)), w.astype(np.float32), [1.0, 2, 3], "w"):
        assert ENGINE.fused_layer_norm(x, -1, weight, None, 1e-5) is None
        assert ENGINE.fused_layer_norm(x, -1, None, weight, 1e-5) is None
    for shape in ((3, 0), (0, 3), (0,)):
        assert ops.softmax(np.zeros(shape)).shape == shape
        assert ops.rms_norm(np.zeros(shape), -1, np.zeros(shape[-1])).shape == shape
