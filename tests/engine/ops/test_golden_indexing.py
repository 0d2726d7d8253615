"""Golden values of take_along_axis, gather and embedding, on every face."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_faces import FACES, gradient, run

from llamita.engine import ops
from llamita.engine.errors import IndexOutOfRange, InvalidArgument, RankMismatch, ShapeMismatch, UnsupportedDType
from llamita.engine.faces.gather import GatherConfig

X = np.array([[10.0, 20], [11, 21], [12, 22]])


@pytest.mark.parametrize("face", FACES)
def test_g21_take_along_axis(face):
    y = run(face, lambda x, i: ops.take_along_axis(x, i, 0), X, np.array([[2, 1], [0, 1]]))
    np.testing.assert_array_equal(y, [[12, 21], [10, 21]])


@pytest.mark.parametrize("face", FACES)
def test_g22_and_t08_clamped_outside(face):
    y = run(face, lambda x, i: ops.take_along_axis(x, i, 0), X, np.array([[5, -1]]))
    np.testing.assert_array_equal(y, [[12, 20]])


@pytest.mark.parametrize("face", FACES)
def test_g23_last_axis(face):
    x = np.arange(8.0).reshape(2, 2, 2)
    y = run(face, lambda v, i: ops.take_along_axis(v, i, 2), x, np.array([[[1, 0]], [[0, 0]]]))
    np.testing.assert_array_equal(y, [[[1, 0], [3, 2]], [[4, 4], [6, 6]]])


@pytest.mark.parametrize("face", ["direct", "traced"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_take_along_axis_agrees_with_numpy_inside(face, dtype, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    wanted = [data.draw(st.sampled_from([1, n])) for n in shape]
    wanted[axis] = data.draw(st.integers(0, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = rng.normal(size=shape)
    index = rng.integers(0, shape[axis], size=wanted).astype(dtype)
    full = np.broadcast_to(index, [wanted[i] if i == axis else n for i, n in enumerate(shape)])
    y = run(face, lambda v, i: ops.take_along_axis(v, i, axis), x, index)
    np.testing.assert_array_equal(y, np.take_along_axis(x, full.astype(np.int64), axis))


def test_take_along_axis_errors():
    with pytest.raises(UnsupportedDType, match=r"take_along_axis.*indices must be I32 or I64"):
        ops.take_along_axis(X, np.zeros((1, 2)), 0)
    with pytest.raises(UnsupportedDType, match="I32 or I64"):
        ops.take_along_axis(X, np.zeros((1, 2), np.uint32), 0)
    with pytest.raises(RankMismatch, match="take_along_axis"):
        ops.take_along_axis(X, np.zeros(2, np.int64), 0)
    with pytest.raises(ShapeMismatch, match="take_along_axis"):
        ops.take_along_axis(np.zeros((3, 4)), np.zeros((1, 2), np.int64), 0)
    with pytest.raises(InvalidArgument, match="zero-length axis 1"):
        ops.take_along_axis(np.zeros((2, 0)), np.zeros((2, 1), np.int64), 1)
    assert ops.take_along_axis(np.zeros((2, 0)), np.zeros((2, 0), np.int64), 1).shape == (2, 0)
    assert ops.take_along_axis(X, np.zeros((0, 2), np.int64), 0).shape == (0, 2)


def test_gradient_of_repeated_and_clamped_indices_accumulates():
    (g,) = gradient(lambda x: ops.take_along_axis(x, np.array([[2, 2, -9]]), 1), [np.zeros((2, 3))], [[1, 2, 4], [8, 16, 32]])
    np.testing.assert_array_equal(g, [[4, 0, 3], [32, 0, 24]])


@pytest.mark.parametrize("face", FACES)
def test_gather_windows(face):
    x = np.arange(20.0).reshape(4, 5)
    config = GatherConfig(slice_sizes=(2, 3), collapsed=(), index_axes=(0, 1), offset_dims=(1, 2))
    y = run(face, lambda v, i: ops.gather(v, i, config), x, np.array([[0, 0], [1, 1], [9, 9]]))
    np.testing.assert_array_equal(y, [x[0:2, 0:3], x[1:3, 1:4], x[2:4, 2:5]])
    (g,) = gradient(lambda v: ops.gather(v, np.array([[0, 0], [1, 1]]), config), [x])
    expected = np.zeros((4, 5))
    expected[0:2, 0:3] += 1
    expected[1:3, 1:4] += 1
    np.testing.assert_array_equal(g, expected)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_embedding(face, dtype):
    table = np.arange(12.0).reshape(4, 3)
    ids = np.array([[3, 0], [1, 3]], dtype)
    np.testing.assert_array_equal(run(face, lambda w: ops.embedding(ids, w), table), table[ids])
    (g,) = gradient(lambda w: ops.embedding(ids, w), [table])
    np.testing.assert_array_equal(g[:, 0], [1, 1, 0, 2])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("bad", [-1, 4])
def test_t08_embedding_raises_outside(face, bad):
    with pytest.raises(IndexOutOfRange, match=rf"embedding.*{bad}"):
        run(face, lambda w: ops.embedding(np.array([0, bad, 1]), w), np.zeros((4, 3)))


def test_embedding_wants_integers():
    with pytest.raises(UnsupportedDType, match=r"embedding.*ids"):
        ops.embedding(np.zeros(2), np.zeros((4, 3)))
