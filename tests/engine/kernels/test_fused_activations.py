"""Fused activations against their composites: every length, any layout, every edge, the same bits on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import INF, NAN, run

from llamita.engine import ops
from llamita.engine.runtime.engine import Engine

NAMES = ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh", "mish", "hardsigmoid", "hardswish", "elu", "leaky_relu")
NUMBERS = {"elu": (0.7,), "leaky_relu": (0.01,)}
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SIZES = (1, 15, 16, 17, 31, 33, 1000, 70001)
ENGINE = Engine(n_threads=1)


def fused(name: str, x: np.ndarray, engine: Engine = ENGINE) -> np.ndarray:
    y = engine.fused_activation(name, x, *NUMBERS.get(name, ()))
    assert type(y) is np.ndarray and y.shape == x.shape and y.dtype == x.dtype and y.flags.c_contiguous
    return y


def composite(name: str, x: np.ndarray) -> np.ndarray:
    return run("composite", lambda v: ops.OPS[name](v, *NUMBERS.get(name, ())), x)


def assert_agrees(name: str, y: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit (any NaN is as good as another); gelu in float32 has an erf of its own."""
    if name == "gelu" and y.dtype == np.float32:
        np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(y[~finite], expected[~finite])
        np.testing.assert_allclose(y[finite], expected[finite], rtol=3e-7, atol=4.8e-7)
    else:
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(np.signbit(y) & ~np.isnan(y), np.signbit(expected) & ~np.isnan(expected))


def wide(n: int, dtype: type, seed: int = 0) -> np.ndarray:
    """Numbers of every magnitude and sign, most of them near 0."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 2, n)).astype(dtype)


@DTYPES
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_composite(name, n, dtype):
    x = wide(n, dtype)
    assert_agrees(name, fused(name, x), composite(name, x))


@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_agrees_on_a_dense_grid(name, dtype):
    x = np.linspace(-110, 110, 40001).astype(dtype)
    assert_agrees(name, fused(name, x), composite(name, x))
    x = np.linspace(-8, 8, 40001).astype(dtype)
    assert_agrees(name, fused(name, x), composite(name, x))


@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_edges(name, dtype):
    info = np.finfo(dtype)
    x = np.array([0.0, -0.0, INF, -INF, NAN, 1000, -1000, 40, -40, -700, info.max, info.min, info.tiny, -info.tiny], dtype)
    x = np.concatenate([x, [info.smallest_subnormal, -info.smallest_subnormal, 88.7, -88.7, -103, -104, 709, -709, -745, -746]]).astype(
        dtype
    )
    assert_agrees(name, fused(name, x), composite(name, x))


@DTYPES
@pytest.mark.parametrize("n", [1, 31, 33])
@pytest.mark.parametrize("name", NAMES)
def test_t12_nan_and_infinities_stay_in_their_places(name, n, dtype):
    clean = fused(name, wide(n, dtype))
    for at in {0, n // 2, n - 1}:
        for value in (NAN, INF, -INF):
            x = wide(n, dtype)
            x[at] = value
            y = fused(name, x)
            np.testing.assert_array_equal(y[at], composite(name, x)[at])
            np.testing.assert_array_equal(np.delete(y, at), np.delete(clean, at))


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """Views of x[6, 8, 10]."""
    readonly = x.copy()
    readonly.flags.writeable = False
    return {
        "transposed": x.T,
        "permuted": x.transpose(1, 0, 2),
        "sliced": x[:, 1:7:2, 3:],
        "reversed": x[::-1, :, ::-1],
        "broadcast": np.broadcast_to(x[:1], x.shape),
        "rank 0": x[1, 2, 3:4].reshape(()),
        "read only": readonly,
        "unaligned": np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
        "fortran": np.asfortranarray(x),
        "unit axes": x[:, None, :, None],
    }


@DTYPES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", list(layouts(np.zeros((6, 8, 10), np.float32))))
def test_any_layout(name, layout, dtype):
    view = layouts(wide(480, dtype).reshape(6, 8, 10))[layout]
    before = view.copy()
    np.testing.assert_array_equal(fused(name, view), fused(name, before))
    np.testing.assert_array_equal(view, before)


@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_threads_change_no_bit(name, dtype):
    x = wide(200_003, dtype)
    np.testing.assert_array_equal(fused(name, x, Engine(n_threads=2)), fused(name, x))


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_half_types_round_once(name, half):
    x = ops.cast(wide(1000, np.float32), half)
    y, expected = ops.OPS[name](x, *NUMBERS.get(name, ())), composite(name, x)
    assert y.dtype == x.dtype
    y, expected = ops.cast(y, "f64"), ops.cast(expected, "f64")
    # A double rounding at most: neighbours in the half type.
    np.testing.assert_allclose(y, expected, rtol=2**-7 if half == "bf16" else 2**-10, atol=6e-8)


@DTYPES
@pytest.mark.parametrize("n", [1, 31, 33, 4096])
def test_gated_silu(n, dtype):
    gate, up = wide(n, dtype), wide(n, dtype, 1)
    y = ENGINE.fused_gated_silu(gate, up)
    np.testing.assert_array_equal(y, run("composite", ops.gated_silu, gate, up))
    pairs = wide(12 * 2 * n, dtype).reshape(12, 2 * n)
    expected = ENGINE.fused_gated_silu(*map(np.copy, np.split(pairs, 2, 1)))
    np.testing.assert_array_equal(ENGINE.fused_gated_silu(pairs[:, :n], pairs[:, n:]), expected)
    np.testing.assert_array_equal(ENGINE.fused_gated_silu(pairs[:, :n], pairs[:, n:].copy()), expected)


@DTYPES
@pytest.mark.parametrize("n", [1, 31, 33, 3000])
def test_swiglu(n, dtype):
    x = wide(6 * 2 * n, dtype).reshape(2, 3, 2 * n)
    for view in (x, x[0, 0], x[:, ::-1], x.transpose(1, 0, 2), x[..., ::-1], np.broadcast_to(x[:1], x.shape)):
        y = ENGINE.fused_swiglu(view)
        assert y.shape == (*view.shape[:-1], n) and y.flags.c_contiguous
        np.testing.assert_array_equal(y, run("composite", ops.swiglu, view))
        np.testing.assert_array_equal(ops.swiglu(view), y)
    np.testing.assert_array_equal(Engine(n_threads=2).fused_swiglu(np.tile(x, (50, 1, 1))), np.tile(ENGINE.fused_swiglu(x), (50, 1, 1)))
    for wrong in (x[..., 1:], x.astype(np.int32), np.zeros((), dtype), np.zeros((3, 0), dtype)):
        assert ENGINE.fused_swiglu(wrong) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_refuses_instead_of_raising(name):
    for x in (np.zeros(3, np.complex64), np.zeros(3, np.int32), np.zeros(3, bool), np.zeros(3, ">f4"), "text", None, [1.0], 1.0):
        assert ENGINE.fused_activation(name, x, *NUMBERS.get(name, ())) is None
    assert ENGINE.fused_activation("unknown", np.zeros(3)) is None
    assert ENGINE.fused_activation("elu", np.zeros(3), "x") is None
    for up in (np.zeros(4), np.zeros(3, np.float32), None):
        assert ENGINE.fused_gated_silu(np.zeros(3), up) is None


@DTYPES
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_empty(shape, dtype):
    for name in NAMES:
        y = ops.OPS[name](np.zeros(shape, dtype))
        assert y.shape == shape and y.dtype == dtype
