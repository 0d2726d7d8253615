"""QTensor: shapes, rows, immutability, refusals."""

import numpy as np
import pytest

from llamita.engine.errors import IndexOutOfRange, RankMismatch, ShapeMismatch, UnsupportedDType
from llamita.quant.formats import FORMATS
from llamita.quant.qtensor import QTensor

Q8 = FORMATS["Q8_0"]


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_round_trip_keeps_the_shape():
    values = random(2, 3, 64)
    q = QTensor.quantize(values, Q8, "w")
    assert (q.shape, q.ndim, q.size, q.nbytes, q.blocks.shape) == ((2, 3, 64), 3, 384, 6 * 68, (6, 68))
    assert repr(q) == "QTensor(Q8_0 [2, 3, 64] w)"
    np.testing.assert_allclose(q.dequantize(), values, atol=0.02)


def test_a_vector_is_one_row():
    q = QTensor.quantize(random(32), Q8)
    assert q.blocks.shape == (1, 34)
    assert q.dequantize().shape == (32,)


def test_large_tensors_are_decoded_piecewise_with_the_same_result():
    q = QTensor.quantize(random(3000, 96), FORMATS["Q4_0"])
    whole = FORMATS["Q4_0"].dequantize(q.blocks.reshape(-1, 18)).reshape(3000, 96)
    np.testing.assert_array_equal(q.dequantize(), whole)


def test_rows_are_those_of_the_whole():
    q = QTensor.quantize(random(7, 64), FORMATS["Q5_1"])
    np.testing.assert_array_equal(q.rows([6, 0, 6]), q.dequantize()[[6, 0, 6]])
    np.testing.assert_array_equal(q.rows(np.array([3], np.uint32)), q.dequantize()[3:4])
    assert q.rows([]).shape == (0, 64)


@pytest.mark.parametrize("bad", [7, -1])
def test_rows_out_of_range_are_named(bad):
    with pytest.raises(IndexOutOfRange, match=rf"embd.*\[0, 7\), got {bad}"):
        QTensor.quantize(random(7, 32), Q8, "embd").rows([0, bad])


def test_rows_wants_a_list_of_integers():
    q = QTensor.quantize(random(7, 32), Q8)
    with pytest.raises(RankMismatch):
        q.rows([[0]])
    with pytest.raises(UnsupportedDType, match="float64"):
        q.rows([0.5])


def test_it_is_immutable_and_leaves_the_callers_array_alone():
    mine = np.zeros((1, 34), np.uint8)
    q = QTensor(Q8, (1, 32), mine)
    with pytest.raises(ValueError, match="read-only"):
        q.blocks[0] = 1
    with pytest.raises(AttributeError):
        q.name = "other"
    mine[0] = 1


def test_g40_product_with_a_dequantised_weight():
    """Reference product of quantised ramps: the values that candle's tests hold, rounded to integers."""
    x = np.arange(192, dtype=np.float32).reshape(3, 64)
    w = QTensor.quantize(np.arange(256, dtype=np.float32).reshape(4, 64), FORMATS["Q4_0"])
    expected = [[84946, 214126, 344757, 473798], [213458, 604350, 1000469, 1387990], [341970, 994574, 1656181, 2302182]]
    np.testing.assert_allclose(x @ w.dequantize().T, expected, atol=0.6)


def test_contradictions_are_refused():
    with pytest.raises(ShapeMismatch, match=r"w: blocks: expected \[2, 34\].*got \[1, 34\]"):
        QTensor(Q8, (2, 32), np.zeros((1, 34), np.uint8), "w")
    with pytest.raises(ShapeMismatch, match="multiple of 32, got 31"):
        QTensor(Q8, (1, 31), np.zeros((1, 34), np.uint8))
    with pytest.raises(UnsupportedDType, match="int8"):
        QTensor(Q8, (1, 32), np.zeros((1, 34), np.int8))
    with pytest.raises(RankMismatch):
        QTensor(Q8, (), np.zeros((1, 34), np.uint8))
    with pytest.raises(RankMismatch):
        QTensor.quantize(np.float32(1.0)[...], Q8)
