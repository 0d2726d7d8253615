"""Fused rotary embedding and attention against their composites."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import INF, NAN, run

from llamita.engine import ops
from llamita.engine.runtime.engine import Engine

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
ROPES = pytest.mark.parametrize("name", ["rope", "rope_i", "rope_thd"])
ENGINE = Engine(n_threads=1)


def normal(shape: tuple[int, ...], dtype: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@DTYPES
@ROPES
@pytest.mark.parametrize("dim", [2, 6, 30, 32, 34, 64])
def test_rope_is_the_composite_bit_for_bit(name, dim, dtype):
    x = normal((2, 3, 5, dim), dtype)
    for shape in ((7, dim // 2), (2, 7, dim // 2)):
        cos, sin = normal(shape, dtype, 1), normal(shape, dtype, 2)
        for view in (x, x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), x[:, ::-1], x[..., ::-1]):
            expected = run("composite", ops.OPS[name], view, cos, sin)
            np.testing.assert_array_equal(ENGINE.fused_rope(name, view, cos, sin), expected)


@ROPES
def test_rope_keeps_nan_in_its_pair(name):
    x, table = normal((1, 2, 3, 36), np.float32), np.ones((3, 18), np.float32)
    for at in (0, 17, 35):
        poisoned = x.copy()
        poisoned[0, 1, 1, at] = NAN
        y = ENGINE.fused_rope(name, poisoned, table, table)
        np.testing.assert_array_equal(y, run("composite", ops.OPS[name], poisoned, table, table))
        assert np.isnan(y).sum() == 2


def test_rope_refuses_instead_of_raising():
    x, table = np.zeros((1, 2, 3, 8)), np.zeros((3, 4))
    wrong = [(x[0], table), (x, table[:2]), (x, table[:, :3]), (x, table.astype(np.float32)), (x, np.zeros((2, 3, 4))), (x, None)]
    for operand, cos in (*wrong, (None, table), (x.astype(np.int32), table)):
        assert ENGINE.fused_rope("rope", operand, cos, cos) is None
    assert ENGINE.fused_rope("rope", x, table, np.zeros((4, 4))) is None


def operands(dtype: type, heads: int = 6, groups: int = 3, tokens: int = 5, keys: int = 37, dim: int = 20) -> list[np.ndarray]:
    shapes = ((2, heads, tokens, dim), (2, groups, keys, dim), (2, groups, keys, 32))
    return [normal(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def assert_attends(arrays: list[np.ndarray], mask=None, causal=False, scale=None, softcap=1.0, engine: Engine = ENGINE) -> np.ndarray:
    y = engine.fused_sdpa(*arrays, mask, causal, scale, softcap)
    expected = run("composite", lambda *a: ops.sdpa(*a, mask, causal, scale, softcap), *arrays)
    assert y.shape == expected.shape and y.dtype == expected.dtype
    tolerance = 1e-5 if y.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    return y


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [1.0, 5.0])
def test_t22_attention(causal, softcap, dtype):
    for tokens, keys in ((1, 1), (1, 40), (5, 37), (33, 33)):
        assert_attends(operands(dtype, tokens=tokens, keys=keys), None, causal, 0.3, softcap)


@DTYPES
@pytest.mark.parametrize("columns", [1, 7, 15, 16, 17, 33])
def test_any_width_of_a_value(columns, dtype):
    q, k, v = operands(dtype)
    v = normal((*k.shape[:3], columns), dtype, 3)
    assert_attends([q, k, v])
    assert_attends([q, k, v[..., ::-1]], causal=True, softcap=3.0)
    poisoned = v.copy()
    poisoned[0, 0, 3, columns - 1] = NAN
    y = ENGINE.fused_sdpa(q, k, poisoned, None, False, None, 1.0)
    assert np.isnan(y[0, :2, :, columns - 1]).all() and np.isnan(y).sum() == 2 * 5


@DTYPES
def test_t26_masks(dtype):
    arrays = operands(dtype)
    shown = np.random.default_rng(7).random((2, 6, 5, 37)) < 0.6
    shown[:, :, 2] = False
    for mask in (shown, shown[:1, :1], shown[0, 0], shown[:, :, :, :1], shown[0, 0, 0]):
        y = assert_attends(arrays, mask, causal=mask.ndim == 2)
        assert not np.isnan(y).any()
    assert not assert_attends(arrays, shown)[:, :, 2].any()
    added = np.where(shown, normal(shown.shape, dtype, 8), dtype(-INF))
    for mask in (added, added[:1], added[0, 0]):
        assert_attends(arrays, mask)


@DTYPES
def test_views_and_nan(dtype):
    q, k, v = operands(dtype)
    views = [q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k[:, :, ::-1], np.broadcast_to(v[:1], v.shape)]
    assert_attends(views)
    assert_attends([x[..., ::-1] for x in (q, k, v)])
    for at in (0, 2, 4):
        poisoned = q.copy()
        poisoned[1, 3, at, 7] = NAN
        y = ENGINE.fused_sdpa(poisoned, k, v, None, False, None, 1.0)
        assert np.isnan(y[1, 3, at]).all() and np.isnan(y).sum() == 32


@DTYPES
def test_threads_change_no_bit(dtype):
    arrays = operands(dtype, heads=9, groups=3, tokens=130, keys=150)
    serial = ENGINE.fused_sdpa(*arrays, None, True, None, 1.0)
    np.testing.assert_array_equal(Engine(n_threads=2).fused_sdpa(*arrays, None, True, None, 1.0), serial)


def test_attention_refuses_instead_of_raising():
    q, k, v = operands(np.float32)
    wrong = [(q[0], k, v), (q, k[:, :2], v), (q, k[..., :3], v), (q, k, v[:, :, :3]), (q.astype(float), k, v), (q, None, v), (None, k, v)]
    for arrays in (*wrong, (q[:, :5], k, v)):
        assert ENGINE.fused_sdpa(*arrays, None, False, None, 1.0) is None
    for mask in (np.ones((4, 37), bool), np.ones((5, 37)), np.ones((1, 2, 6, 5, 37), bool), "all"):
        assert ENGINE.fused_sdpa(q, k, v, mask, False, None, 1.0) is None
    for scale, softcap in ((NAN, 1.0), (None, 0.0), (None, NAN), (None, "x"), ("x", 1.0)):
        assert ENGINE.fused_sdpa(q, k, v, None, False, scale, softcap) is None
    assert ENGINE.fused_sdpa(q, k[:, :, :3], v[:, :, :3], None, True, None, 1.0) is None
