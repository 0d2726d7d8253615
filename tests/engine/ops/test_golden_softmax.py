"""Golden values and policy of the softmax family, on every face."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import FACES, INF, NAN, gradient, run, ulps

from llamita.engine import ops
from llamita.engine.errors import DTypeMismatch, ShapeMismatch
from llamita.engine.faces.eager import grad, tracked

ROWS = np.array([[1000, 1001, 1002], [-INF, -INF, -INF], [1, NAN, 2], [0, -INF, 0]], float)
THIRD = [0.09003057317038046, 0.24472847105479764, 0.6652409557748218]
MASKED = np.array([[0.5, 9.0, 2.0], [1.0, NAN, 3.0]])
MASK = np.array([[True, False, True], [False, False, False]])
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def tolerance(dtype):
    return 2 if dtype == np.float64 else 4


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g07_softmax(face, dtype):
    expected = np.array([THIRD, [0, 0, 0], [NAN] * 3, [0.5, 0, 0.5]])
    assert ulps(run(face, ops.softmax, ROWS.astype(dtype)), expected.astype(dtype)) <= tolerance(dtype)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g08_and_t27_log_softmax(face, dtype):
    expected = [
        [-2.4076059644443806, -1.4076059644443804, -0.4076059644443804],
        [-INF] * 3,
        [NAN] * 3,
        [-0.6931471805599453, -INF, -0.6931471805599453],
    ]
    assert ulps(run(face, ops.log_softmax, ROWS.astype(dtype)), np.array(expected, dtype)) <= tolerance(dtype)
    wide = np.array([1000.0, -1000.0], dtype)
    np.testing.assert_array_equal(run(face, ops.log_softmax, wide), [0, -2000])


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g09_masked_softmax(face, dtype):
    expected = np.array([[0.18242552380635632, 0, 0.8175744761936437], [0, 0, 0]], dtype)
    assert ulps(run(face, lambda x: ops.masked_softmax(x, MASK), MASKED.astype(dtype)), expected) <= tolerance(dtype)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g10_masked_log_softmax(face, dtype):
    expected = np.array([[-1.7014132779827524, -INF, -0.20141327798275246], [-INF] * 3], dtype)
    assert ulps(run(face, lambda x: ops.masked_log_softmax(x, MASK), MASKED.astype(dtype)), expected) <= tolerance(dtype)


def test_g11_and_t10_masked_softmax_gradient():
    (g,) = gradient(lambda x: ops.masked_softmax(x, MASK), [MASKED], [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_allclose(g[0], [-0.29829290414066556, 0, 0.29829290414066556], rtol=0, atol=1e-15)
    np.testing.assert_array_equal(g[1], [0, 0, 0])
    assert g[0][1] == 0


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_t10_a_masked_entry_of_any_value_has_gradient_zero(value):
    x = np.array([0.5, value, 2.0])
    mask = np.array([True, False, True])
    for op in (ops.masked_softmax, ops.masked_log_softmax):
        (g,) = gradient(lambda x, op=op: op(x, mask), [x], [1.0, 2.0 if op is ops.masked_softmax else 0.0, 3.0])
        assert g[1] == 0 and np.isfinite(g).all()


@pytest.mark.parametrize("upstream", [1.0, 5.0, 1e3, 1e30])
@DTYPES
def test_g12_and_t09_gradient_of_a_slice_of_minus_infinity(upstream, dtype):
    x = np.array([-INF, -INF], dtype)
    for face in FACES:
        np.testing.assert_array_equal(run(face, ops.softmax, x), [0, 0])
    (g,) = gradient(ops.softmax, [x], np.full(2, upstream))
    np.testing.assert_array_equal(g, [0, 0])


def test_t09_single_participant_and_empty_slices():
    (g,) = gradient(ops.softmax, [np.array([5.0])], [3.0])
    assert g[0] == 0
    (g,) = gradient(ops.log_softmax, [np.array([-INF, -INF])], [2.0, 7.0])
    np.testing.assert_array_equal(g, [2.0, 7.0])
    (g,) = gradient(lambda x: ops.masked_log_softmax(x, np.zeros(2, bool)), [np.array([1.0, 2.0])], [2.0, 7.0])
    np.testing.assert_array_equal(g, [0, 0])
    (g,) = gradient(lambda x: ops.masked_softmax(x, np.array([True, False])), [np.array([1.0, 2.0])], [2.0, 7.0])
    np.testing.assert_array_equal(g, [0, 0])


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g24_mask_keeps_nan_out(face, dtype):
    y = run(face, lambda x: ops.masked_softmax(x, np.array([True, True, False])), np.array([1, 1, NAN], dtype))
    np.testing.assert_array_equal(y, [0.5, 0.5, 0])
    y = run(face, lambda x: ops.masked_log_softmax(x, np.array([True, False])), np.array([3, 4], dtype))
    np.testing.assert_array_equal(y, [0, -INF])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(("n", "element", "total"), [(256, 0.00390625, 1.0), (257, 0.0038909912, 0.99998474), (4096, 0.00024414063, 1.0)])
def test_g28_and_t02_softmax_of_bf16_zeros(face, n, element, total):
    zeros = ops.cast(np.zeros((2, n)), "bf16")
    for mask in (None, np.ones(n, bool)):
        fn = ops.softmax if mask is None else lambda x, mask=mask: ops.masked_softmax(x, mask)
        y = run(face, fn, zeros)
        assert y.dtype == zeros.dtype
        wide = ops.cast(y, "f32")
        np.testing.assert_allclose(wide, element, rtol=1e-7)
        np.testing.assert_allclose(wide.sum(axis=-1, dtype=np.float64), total, rtol=1e-7)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("n", [256, 257, 4096])
def test_t02_bf16_logs_means_and_norms(face, n):
    zeros, ones = (ops.cast(np.full((2, n), value), "bf16") for value in (0.0, 1.0))
    shown = np.ones(n, bool)
    for fn, x, expected in (
        (ops.log_softmax, zeros, -np.log(n)),
        (lambda x: ops.masked_log_softmax(x, shown), zeros, -np.log(n)),
        (lambda x: ops.reduce_mean(x, -1), ones, 1.0),
        (lambda x: ops.rms_norm(x, -1), ones, 1.0),
        (lambda x: ops.layer_norm(x, -1), ones, 0.0),
    ):
        expected = ops.cast(ops.cast(np.array(expected), "bf16"), "f32")
        np.testing.assert_array_equal(ops.cast(run(face, fn, x), "f32"), expected)


@pytest.mark.parametrize("face", FACES)
def test_t02_f16_of_length_4096(face):
    x = np.zeros((1, 4096), np.float16)
    np.testing.assert_array_equal(run(face, ops.softmax, x), np.float16(1 / 4096))
    np.testing.assert_array_equal(run(face, ops.log_softmax, x), np.float16(-np.log(4096)))
    np.testing.assert_array_equal(run(face, lambda v: ops.reduce_mean(v, -1), x + np.float16(1)), np.float16(1))
    np.testing.assert_array_equal(run(face, lambda v: ops.rms_norm(v, -1), x + np.float16(1)), np.float16(1))
    np.testing.assert_array_equal(run(face, lambda v: ops.layer_norm(v, -1), x + np.float16(1)), np.float16(0))


X31 = np.array([[[3, 1, 4], [1, 5, 9]], [[2, 1, 7], [8, 2, 8]]], float)


@DTYPES
@pytest.mark.parametrize("face", FACES)
def test_g31_softmax_of_logs(face, dtype):
    x = np.log(X31).astype(dtype)
    expected = [[[0.375, 0.125, 0.5], [1 / 15, 1 / 3, 0.6]], [[0.2, 0.1, 0.7], [4 / 9, 1 / 9, 4 / 9]]]
    np.testing.assert_allclose(run(face, lambda v: ops.softmax(v, 2), x), expected, rtol=1e-6)
    np.testing.assert_allclose(run(face, lambda v: ops.softmax(v, 0), x)[0, 0], [0.6, 0.5, 4 / 11], rtol=1e-6)
    np.testing.assert_array_equal(run(face, ops.softmax, np.array([1234, 0], dtype)), [1, 0])


@DTYPES
@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
@pytest.mark.parametrize("face", ["direct", "eager", "traced"])
def test_t07_any_axis_of_any_view(op, face, dtype):
    x = np.random.default_rng(7).normal(size=(3, 4, 5, 6)).astype(dtype)
    for view in (x, x.transpose(2, 0, 3, 1), x[:, ::2, :, 1:], np.broadcast_to(x[:1], (3, 4, 5, 6))):
        for axis in range(-4, 4):
            expected = run("composite", lambda v, axis=axis: op(v, axis), view.copy())
            assert ulps(run(face, lambda v, axis=axis: op(v, axis), view), expected) <= (8 if op is ops.softmax else 64)


@DTYPES
@pytest.mark.parametrize("op", [ops.softmax, ops.log_softmax])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("at", [0, 16, 32])
@pytest.mark.parametrize("poison", [NAN, INF])
def test_t12_poison_spoils_its_own_slice_only(op, dtype, face, at, poison):
    x = np.random.default_rng(3).normal(size=(3, 33)).astype(dtype)
    clean = run(face, op, x)
    x[1, at] = poison
    y = run(face, op, x)
    assert np.isnan(y[1]).all()
    np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (2, 0, 3)])
def test_empty_axes_give_empty_results(face, shape):
    x = np.zeros(shape)
    for op in (ops.softmax, ops.log_softmax, ops.layer_norm, ops.rms_norm):
        assert run(face, lambda v, op=op: op(v, -1), x).shape == shape
    assert run(face, lambda v: ops.masked_softmax(v, np.ones(shape, bool)), x).shape == shape


@pytest.mark.parametrize("face", FACES)
def test_t26_padded_batch_masked_from_token_rows(face):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 4, 4))
    causal = np.tril(np.ones((4, 4), bool))
    causal[0] = False
    y = run(face, lambda v: ops.masked_softmax(v, causal), x)
    assert not np.isnan(y).any()
    np.testing.assert_array_equal(y[:, :, 0], 0)
    np.testing.assert_allclose(y[:, :, 1:].sum(-1), 1, rtol=1e-14)


def test_masks_that_do_not_fit():
    x = np.zeros((2, 3))
    with pytest.raises(DTypeMismatch, match=r"masked_softmax.*mask"):
        ops.masked_softmax(x, np.ones((2, 3)))
    for shape in ((2, 2), (1, 2, 3), (4,)):
        with pytest.raises(ShapeMismatch, match=r"masked_softmax.*mask"):
            ops.masked_softmax(x, np.ones(shape, bool))


def test_second_gradient_of_softmax_exists():
    x = tracked(np.array([0.3, -1.0, 2.0]))
    (g,) = grad(ops.softmax(x), [x], np.array([1.0, 2.0, 3.0]), create_graph=True)
    (gg,) = grad(g, [x], np.array([1.0, 0.0, 0.0]))
    assert np.isfinite(gg.numpy()).all() and gg.numpy().any()
