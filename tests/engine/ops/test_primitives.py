"""erf, half types, comparison, layout: what the composites stand on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_faces import FACES, INF, NAN, run, ulps

from llamita.engine import ops
from llamita.engine.errors import InvalidArgument, UnsupportedDType
from llamita.engine.faces.direct import DIRECT
from llamita.engine.faces.dtypes import bf16, boolean, f32, from_bfloat16, i32, to_bfloat16


@pytest.mark.parametrize("face", FACES)
def test_erf_within_an_ulp_of_libm(face):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-6.5, 6.5, 3000), rng.uniform(0.8, 1.3, 3000), 10.0 ** rng.uniform(-300, 0, 200)])
    expected = np.array([math.erf(v) for v in x])
    assert ulps(run(face, ops.erf, x), expected) <= 1
    single = x.astype(np.float32)
    assert ulps(run(face, ops.erf, single), np.array([math.erf(v) for v in single], np.float32)) <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("face", FACES)
def test_erf_edges(face, dtype):
    y = run(face, ops.erf, np.array([0.0, -0.0, INF, -INF, NAN, 7.0, -30.0], dtype))
    np.testing.assert_array_equal(y, [0, 0, 1, -1, NAN, 1, -1])
    np.testing.assert_array_equal(np.signbit(y[:2]), [False, True])
    assert run(face, ops.erf, np.array(0.5, dtype)).shape == ()


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
@settings(deadline=None)
def test_bfloat16_rounds_to_nearest_even(values):
    x = np.array(values, np.float32)
    back = from_bfloat16(to_bfloat16(x))
    np.testing.assert_array_equal(np.isnan(back), np.isnan(x))
    np.testing.assert_array_equal(to_bfloat16(back), to_bfloat16(x))
    for value, rounded in zip(x, back, strict=True):
        if not np.isfinite(value) or abs(value) >= 3.3895e38:
            continue
        bits = int(np.float32(value).view(np.uint32))
        below, above = (np.array([b << 16], np.uint32).view(np.float32)[0] for b in (bits >> 16, (bits >> 16) + 1))
        distances = abs(float(value) - float(below)), abs(float(above) - float(value))
        expected = below if distances[0] < distances[1] or (distances[0] == distances[1] and not (bits >> 16) & 1) else above
        assert rounded == expected


def test_bfloat16_payload_cannot_be_computed_with():
    x = to_bfloat16(np.ones(3, np.float32))
    assert x.dtype == bf16 and x.reshape(3, 1).T.shape == (1, 3)
    with pytest.raises(TypeError):
        x + x


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("op", [ops.silu, ops.gelu_tanh, ops.exp, lambda x: ops.mul(x, x), lambda x: ops.rms_norm(x, -1), ops.softmax])
def test_half_types_compute_in_float32_and_round_once(op, dtype, face):
    x = ops.cast(np.random.default_rng(4).normal(size=(3, 33)), dtype)
    expected = ops.cast(run("composite", op, ops.cast(x, "f32")), dtype)
    y = run(face, op, x)
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(ops.cast(y, "f32"), ops.cast(expected, "f32"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_move_unchanged(dtype):
    x = ops.cast(np.arange(6.0).reshape(2, 3), dtype)
    y = ops.concatenate([ops.transpose(x), ops.pad(ops.reshape(x, (3, 2)), (0, 0), (1, 0))], 0)
    assert y.dtype == x.dtype and y.shape == (7, 2)
    np.testing.assert_array_equal(ops.cast(ops.embedding(np.array([1]), x), "f32"), [[3, 4, 5]])
    assert ops.compare(x, x, "eq").all()


@pytest.mark.parametrize("face", FACES)
def test_t14_maximum_and_minimum_propagate_nan_from_either_side(face):
    a, b = np.array([NAN, 1.0, 2.0]), np.array([1.0, NAN, 1.0])
    np.testing.assert_array_equal(run(face, ops.maximum, a, b), [NAN, NAN, 2])
    np.testing.assert_array_equal(run(face, ops.minimum, a, b), [NAN, NAN, 1])
    np.testing.assert_array_equal(run(face, lambda x: ops.clamp(x, 0.0, 1.5), a), [NAN, 1, 1.5])
    for at in range(3):
        x = np.array([1.0, 2.0, 3.0])
        x[at] = NAN
        assert np.isnan(run(face, ops.reduce_max, x))


@pytest.mark.parametrize("face", FACES)
def test_comparisons_with_nan(face):
    a, b = np.array([NAN, 1.0, 2.0]), np.array([NAN, 2.0, 1.0])
    for op, expected in ((ops.eq, 0b000), (ops.ne, 0b111), (ops.lt, 0b010), (ops.le, 0b010), (ops.gt, 0b001), (ops.ge, 0b001)):
        np.testing.assert_array_equal(run(face, op, a, b), [bool(expected >> 2 & 1), bool(expected >> 1 & 1), bool(expected & 1)])


def test_constants():
    assert DIRECT.constant(NAN, f32).dtype == f32
    assert DIRECT.constant(3.0, i32) == 3
    for value in (2.5, 2**31, INF):
        with pytest.raises(InvalidArgument, match="exact integer"):
            DIRECT.constant(value, i32)
    with pytest.raises(UnsupportedDType, match="BOOL"):
        DIRECT.constant(1, boolean)


@pytest.mark.parametrize("face", FACES)
def test_layout_ops(face):
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(run(face, lambda v: ops.transpose(v, (2, 0, -2)), x), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(run(face, ops.transpose, x), x.T)
    np.testing.assert_array_equal(run(face, lambda v: ops.reshape(v, (4, -1)), x), x.reshape(4, 6))
    np.testing.assert_array_equal(run(face, lambda v: ops.slice(v, -1, 0, 4, 3), x), x[:, :, 0:4:3])
    np.testing.assert_array_equal(run(face, lambda v: ops.slice(v, 2, 1, 4, 2), x), x[:, :, 1:4:2])
    np.testing.assert_array_equal(run(face, lambda v: ops.pad(v, (1, 0, 0), (0, 0, 2)), x), np.pad(x, ((1, 0), (0, 0), (0, 2))))
    np.testing.assert_array_equal(run(face, lambda v: ops.broadcast_in_dim(v, (3, 5, 4, 2), (3, 0, 2)), x)[:, 1], x.transpose(1, 2, 0))


@pytest.mark.parametrize("face", FACES)
def test_results_are_row_major_for_any_input_layout(face):
    x = np.random.default_rng(0).normal(size=(5, 6)).T
    for op in (ops.exp, ops.sigmoid, ops.softmax, ops.erf, lambda v: ops.add(v, v), lambda v: ops.select(ops.gt(v, 0.0), v, v)):
        assert run(face, op, x).flags.c_contiguous
        np.testing.assert_array_equal(run(face, op, x), run(face, op, x.copy()))


def test_remainder_has_the_sign_of_the_divisor():
    np.testing.assert_array_equal(ops.remainder(np.array([5.0, -5.0, 5.0]), np.array([3.0, 3.0, -3.0])), [2, 1, -1])


def test_argmax_first_of_equals():
    np.testing.assert_array_equal(ops.argmax(np.array([[1.0, 3, 3], [NAN, 9, NAN]])), [1, 0])
