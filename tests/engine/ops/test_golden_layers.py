"""Golden values of linear and rope, and sdpa against the plain formula, on every face."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import FACES, INF, run

from llamita.engine import ops
from llamita.engine.errors import DTypeMismatch, InvalidArgument, RankMismatch, ShapeMismatch

RNG = np.random.default_rng(11)
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@pytest.mark.parametrize("face", FACES)
def test_g27_linear(face):
    w = np.array([[1.0, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(run(face, ops.linear, np.array([[10.0, 100]]), w), [[210, 430, 650]])
    np.testing.assert_array_equal(run(face, ops.linear, np.array([10.0, 100]), w, np.array([1.0, 2, 3])), [211, 432, 653])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("shape", [(4,), (2, 4), (3, 2, 4), (2, 1, 3, 4), (0, 4)])
def test_linear_of_any_rank(face, shape):
    x, w, b = RNG.normal(size=shape), RNG.normal(size=(5, 4)), RNG.normal(size=5)
    np.testing.assert_allclose(run(face, ops.linear, x, w, b), x @ w.T + b, rtol=1e-12, atol=1e-14)


def test_t20_linear_of_a_view_equals_that_of_its_copy():
    x, w = RNG.normal(size=(3, 5, 4)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)
    view = x.transpose(1, 0, 2)
    np.testing.assert_allclose(ops.linear(view, w), ops.linear(view.copy(), w), rtol=1e-6)


def test_linear_errors():
    w = np.ones((3, 2))
    with pytest.raises(ShapeMismatch, match=r"linear.*\(1, 4\).*incompatible"):
        ops.linear(np.ones((1, 4)), w)
    with pytest.raises(ShapeMismatch, match="bias"):
        ops.linear(np.ones((1, 2)), w, np.ones(2))
    with pytest.raises(DTypeMismatch, match="weight"):
        ops.linear(np.ones((1, 2)), w.astype(np.float32))
    with pytest.raises(RankMismatch):
        ops.linear(np.float64(1.0), w)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g33_rope(face, dtype):
    x = np.array([1, 2, 3, 4], dtype).reshape(1, 1, 1, 4)
    cos, sin = np.array([[0.6, 0.8]], dtype), np.array([[0.8, 0.6]], dtype)
    np.testing.assert_allclose(run(face, ops.rope, x, cos, sin).ravel(), [-1.8, -0.8, 2.6, 4.4], rtol=1e-6)
    np.testing.assert_allclose(run(face, ops.rope_i, x, cos, sin).ravel(), [-1, 2, 0, 5], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(run(face, ops.rope_thd, x, cos, sin).ravel(), [-1.8, -0.8, 2.6, 4.4], rtol=1e-6)


def _angles(tokens, half, batch=None):
    angle = RNG.normal(size=(tokens, half) if batch is None else (batch, tokens, half))
    return np.cos(angle), np.sin(angle)


@DTYPES
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("batch", [None, 2])
def test_rope_layouts_agree_and_longer_tables_are_narrowed(face, dtype, batch):
    x = RNG.normal(size=(2, 3, 5, 8)).astype(dtype)
    cos, sin = (t.astype(dtype) for t in _angles(7, 4, batch))
    y = run(face, ops.rope, x, cos, sin)
    thd = run(face, ops.rope_thd, np.ascontiguousarray(x.transpose(0, 2, 1, 3)), cos, sin)
    np.testing.assert_array_equal(y, thd.transpose(0, 2, 1, 3))
    pairs = np.concatenate([x[..., 0::2], x[..., 1::2]], -1)
    interleaved = run(face, ops.rope_i, x, cos, sin)
    np.testing.assert_array_equal(run(face, ops.rope, pairs, cos, sin)[..., :4], interleaved[..., 0::2])
    rotated = np.sqrt(y[..., :4] ** 2 + y[..., 4:] ** 2)
    np.testing.assert_allclose(rotated, np.sqrt(x[..., :4] ** 2 + x[..., 4:] ** 2), rtol=1e-5)


@pytest.mark.parametrize("op", [ops.rope, ops.rope_i, ops.rope_thd])
def test_fused_and_composed_rope_are_bitwise_equal_in_f32(op):
    x = RNG.normal(size=(2, 3, 3, 8)).astype(np.float32)
    cos, sin = (t.astype(np.float32) for t in _angles(4, 4))
    for view in (x, x.transpose(0, 2, 1, 3), x[:, ::2]):
        np.testing.assert_array_equal(run("direct", op, view, cos, sin), run("composite", op, view, cos, sin))


@pytest.mark.parametrize("op", [ops.rope, ops.rope_i, ops.rope_thd])
def test_rope_errors(op):
    x = np.zeros((2, 1, 3, 8)) if op is not ops.rope_thd else np.zeros((2, 3, 1, 8))
    good = np.zeros((3, 4))
    with pytest.raises(RankMismatch, match=rf"{op.name}.*rank 4"):
        op(x[0], good, good)
    with pytest.raises(ShapeMismatch, match=rf"{op.name}.*inconsistent last dim size"):
        op(x, np.zeros((3, 3)), np.zeros((3, 3)))
    with pytest.raises(ShapeMismatch, match=rf"{op.name}.*3 positions, got 2"):
        op(x, good[:2], good[:2])
    with pytest.raises(ShapeMismatch, match=rf"{op.name}.*batch 2"):
        op(x, np.zeros((3, 3, 4)), np.zeros((3, 3, 4)))
    with pytest.raises(DTypeMismatch, match=op.name):
        op(x, good.astype(np.float32), good)


def _attention(q, k, v, visible, scale, softcap=1.0):
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhtd,bhsd->bhts", q, k) * scale
    if softcap != 1:
        s = np.tanh(s / softcap) * softcap
    s = np.where(visible, s, -INF)
    s = s.astype(np.float64)
    top = np.max(s, -1, keepdims=True, initial=np.finfo(np.float64).min)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    return np.einsum("bhts,bhsd->bhtd", e / np.where(total == 0, 1, total), v)


@DTYPES
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [1.0, 5.0])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (3, 1)])
def test_t22_sdpa(face, causal, softcap, heads, dtype):
    h, k_heads = heads
    q, k, v = RNG.normal(size=(2, h, 3, 8)), RNG.normal(size=(2, k_heads, 5, 8)), RNG.normal(size=(2, k_heads, 5, 6))
    visible = ops.causal_mask(3, 5) if causal else np.ones((3, 5), bool)
    y = run(face, lambda *a: ops.sdpa(*a, causal=causal, softcap=softcap), *(x.astype(dtype) for x in (q, k, v)))
    np.testing.assert_allclose(y, _attention(q, k, v, visible, 8**-0.5, softcap), rtol=1e-5, atol=1e-5 if dtype == np.float32 else 1e-12)


@DTYPES
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("causal", [False, True])
def test_t26_sdpa_masks(face, causal, dtype):
    q, k, v = (RNG.normal(size=(2, 4, 3, 8)).astype(dtype) for _ in range(3))
    mask = RNG.random((2, 1, 3, 3)) > 0.4
    mask[0, 0, 1] = False
    visible = mask & ops.causal_mask(3, 3) if causal else mask
    expected = _attention(q, k, v, visible, 0.5)
    y = run(face, lambda *a: ops.sdpa(*a, mask, causal, 0.5), q, k, v)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y[0, :, 1], 0)
    additive = np.where(mask, 0, -INF).astype(dtype)
    np.testing.assert_allclose(run(face, lambda *a: ops.sdpa(*a, additive, causal, 0.5), q, k, v), expected, rtol=1e-5, atol=1e-6)


@DTYPES
def test_t12_nan_in_a_key_reaches_only_queries_that_see_it(dtype):
    q, k, v = (RNG.normal(size=(1, 2, 4, 16)).astype(dtype) for _ in range(3))
    k[0, 0, 2, 3] = np.nan
    for face in FACES:
        y = run(face, lambda *a: ops.sdpa(*a, causal=True), q, k, v)
        assert np.isnan(y[0, 0, 2:]).all() and not np.isnan(y[0, 0, :2]).any() and not np.isnan(y[0, 1]).any()


@DTYPES
@pytest.mark.parametrize("at", [0, 9, 19])
@pytest.mark.parametrize("value", [np.nan, INF])
@pytest.mark.parametrize("causal", [False, True])
def test_t12_a_value_that_is_not_finite_spoils_what_the_formula_says_on_every_face(dtype, at, value, causal):
    q, k, v = (RNG.normal(size=shape).astype(dtype) for shape in ((1, 4, 5, 8), (1, 2, 20, 8), (1, 2, 20, 6)))
    v[0, 1, at, 3] = value
    expected = run("composite", lambda *a: ops.sdpa(*a, causal=causal), q, k, v)
    assert np.isnan(expected).any() or value == INF
    for face in FACES:
        np.testing.assert_allclose(run(face, lambda *a: ops.sdpa(*a, causal=causal), q, k, v), expected, rtol=1e-4, atol=1e-5)


def test_sdpa_errors():
    q, k = np.zeros((1, 4, 3, 8)), np.zeros((1, 2, 5, 8))
    with pytest.raises(ShapeMismatch, match=r"sdpa.*multiple"):
        ops.sdpa(q, np.zeros((1, 3, 5, 8)), np.zeros((1, 3, 5, 8)))
    with pytest.raises(ShapeMismatch, match=r"sdpa.*head dim"):
        ops.sdpa(q, np.zeros((1, 2, 5, 4)), k)
    with pytest.raises(ShapeMismatch, match=r"sdpa.*k, v"):
        ops.sdpa(q, k, np.zeros((1, 2, 4, 8)))
    with pytest.raises(ShapeMismatch, match=r"sdpa.*mask"):
        ops.sdpa(q, k, k, np.ones((2, 3, 5), bool))
    with pytest.raises(DTypeMismatch, match=r"sdpa.*v"):
        ops.sdpa(q, k, k.astype(np.float32))
    with pytest.raises(ShapeMismatch, match=r"sdpa.*causal"):
        ops.sdpa(k, q[:, :2], q[:, :2], causal=True)
    with pytest.raises(InvalidArgument, match=r"sdpa.*softcap"):
        ops.sdpa(q, k, k, softcap=0.0)
    with pytest.raises(RankMismatch, match=r"sdpa.*k"):
        ops.sdpa(q, k[0], k[0])


def test_t21_the_pairing_matters_and_the_permutation_undoes_it():
    heads, kv_heads, dim, tokens, width = 4, 2, 8, 5, 12
    wq, wk = RNG.normal(size=(heads * dim, width)), RNG.normal(size=(kv_heads * dim, width))
    x = RNG.normal(size=(tokens, width))
    cos, sin = _angles(tokens, dim // 2)

    def permuted(w, n):
        return w.reshape(n, 2, dim // 2, width).swapaxes(1, 2).reshape(-1, width)

    def scores(op, q_weight, k_weight):
        q = op(ops.linear(x, q_weight).reshape(1, tokens, heads, dim).transpose(0, 2, 1, 3), cos, sin)
        k = op(ops.linear(x, k_weight).reshape(1, tokens, kv_heads, dim).transpose(0, 2, 1, 3), cos, sin)
        return np.einsum("bhtd,bhsd->bhts", q, np.repeat(k, heads // kv_heads, 1))

    half_split = scores(ops.rope, wq, wk)
    np.testing.assert_allclose(scores(ops.rope_i, permuted(wq, heads), permuted(wk, kv_heads)), half_split, rtol=0, atol=1e-12)
    assert np.abs(scores(ops.rope_i, wq, wk) - half_split).max() > 0.1
