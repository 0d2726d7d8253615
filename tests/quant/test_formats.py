"""The tensor formats: hand-built blocks, the gguf package as oracle, rounding, error bounds, refusals."""

import copy
import pickle

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from llamita.engine.errors import InvalidArgument, ShapeMismatch, UnsupportedDType, UnsupportedModelError
from llamita.quant.formats import FORMATS, format_by_id, format_by_name, type_label
from llamita.quant.formats_base import round_half_away

READ_ONLY = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
QUANTISED = [name for name in FORMATS if name not in ("F32", "F16", "BF16")]
WRITABLE = [name for name in FORMATS if name not in READ_ONLY]


def half(x):
    return np.float16(x).tobytes()


def decode(name, *parts):
    block = np.frombuffer(b"".join(parts), np.uint8)
    return FORMATS[name].dequantize(block[None])[0]


# -- registry ---------------------------------------------------------------------------------------------------------


def test_registry_has_the_thirteen_formats_in_order_of_type_id():
    assert list(FORMATS) == "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K BF16".split()


@pytest.mark.parametrize("name", FORMATS)
def test_ids_and_sizes_are_ggmls(name):
    fmt = FORMATS[name]
    assert fmt.type_id == GGMLQuantizationType[name]
    assert (fmt.block_size, fmt.block_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert format_by_id(fmt.type_id) is fmt
    assert format_by_name(name.lower()) is fmt
    assert pickle.loads(pickle.dumps(fmt)) is fmt
    assert copy.deepcopy(fmt) is fmt


def test_bits_per_weight():
    assert FORMATS["Q4_0"].bits_per_weight == 4.5
    assert FORMATS["Q6_K"].bits_per_weight == 6.5625


def test_other_types_are_named_not_read():
    assert format_by_id(20) is None
    assert type_label(20) == "IQ4_NL"
    assert type_label(2) == "Q4_0"
    assert "Q4_0_4_4" in type_label(31)
    assert "retired" in type_label(4)
    assert "99" in type_label(99)
    for known in GGMLQuantizationType:
        assert type_label(known) == known.name
    with pytest.raises(UnsupportedModelError, match=r"Q4_0.*'Q9_9'"):
        format_by_name("Q9_9")


# -- golden blocks ----------------------------------------------------------------------------------------------------


def test_q4_0_block():
    low, high = np.arange(16), np.arange(16)[::-1]
    got = decode("Q4_0", half(0.5), (low | high << 4).astype(np.uint8).tobytes())
    np.testing.assert_array_equal(got, np.concatenate([low - 8, high - 8]) * 0.5)


def test_q4_1_block():
    low, high = np.arange(16), np.arange(16)[::-1]
    got = decode("Q4_1", half(0.5), half(-3), (low | high << 4).astype(np.uint8).tobytes())
    np.testing.assert_array_equal(got, np.concatenate([low, high]) * 0.5 - 3)


@pytest.mark.parametrize(("name", "head", "offset"), [("Q5_0", b"", -16.0), ("Q5_1", half(7), 7.0)])
def test_five_bit_blocks(name, head, offset):
    codes = np.arange(32)[::-1]
    word = sum(1 << j for j, code in enumerate(codes) if code & 16)
    low = codes & 15
    got = decode(name, half(1), head, word.to_bytes(4, "little"), (low[:16] | low[16:] << 4).astype(np.uint8).tobytes())
    np.testing.assert_array_equal(got, codes + offset)


def test_q8_0_block():
    codes = np.arange(-128, 128, 8).astype(np.int8)
    np.testing.assert_array_equal(decode("Q8_0", half(0.25), codes.tobytes()), codes * 0.25)


def test_q2_k_block():
    # Every weight of sub-block i has code i % 4, scale i and minimum 15 - i.
    scales = np.array([i | (15 - i) << 4 for i in range(16)], np.uint8)
    codes = np.repeat(np.arange(16) % 4, 16).reshape(2, 4, 32)
    qs = sum(codes[:, j] << 2 * j for j in range(4)).astype(np.uint8)
    got = decode("Q2_K", scales.tobytes(), qs.tobytes(), half(2), half(0.5)).reshape(16, 16)
    expected = [2 * i * (i % 4) - 0.5 * (15 - i) for i in range(16)]
    np.testing.assert_array_equal(got, np.repeat(expected, 16).reshape(16, 16))


def test_q3_k_block():
    sc = np.arange(16) * 4 + 1  # six bits each
    scales = np.zeros(12, np.uint8)
    for i, s in enumerate(sc):
        scales[i % 8] |= (s & 15) << (4 if i >= 8 else 0)
        scales[8 + i % 4] |= (s >> 4) << (2 * (i // 4))
    codes = np.arange(256).reshape(2, 4, 32) * 5 % 8
    qs = sum((codes[:, j] & 3) << 2 * j for j in range(4)).astype(np.uint8)
    hmask = sum((plane >> 2) << j for j, plane in enumerate(codes.reshape(8, 32))).astype(np.uint8)
    got = decode("Q3_K", hmask.tobytes(), qs.tobytes(), scales.tobytes(), half(0.5))
    np.testing.assert_array_equal(got, 0.5 * np.repeat(sc - 32, 16) * (codes.ravel() - 4))


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K"])
def test_q4_k_and_q5_k_blocks(name):
    sc, m = np.arange(8) * 9, 63 - np.arange(8) * 9
    scales = np.zeros(12, np.uint8)
    for i in range(4):
        scales[i], scales[4 + i] = sc[i] | (sc[4 + i] >> 4) << 6, m[i] | (m[4 + i] >> 4) << 6
        scales[8 + i] = sc[4 + i] & 15 | (m[4 + i] & 15) << 4
    codes = (np.arange(256) * 7 % (32 if name == "Q5_K" else 16)).reshape(4, 2, 32)
    qs = (codes[:, 0] & 15 | (codes[:, 1] & 15) << 4).astype(np.uint8)
    qh = sum((plane >> 4) << j for j, plane in enumerate(codes.reshape(8, 32))).astype(np.uint8)
    got = decode(name, half(0.5), half(0.25), scales.tobytes(), qh.tobytes() if name == "Q5_K" else b"", qs.tobytes())
    np.testing.assert_array_equal(got, 0.5 * np.repeat(sc, 32) * codes.ravel() - 0.25 * np.repeat(m, 32))


def test_q6_k_block():
    sc = (np.arange(16) * 16 - 120).astype(np.int8)
    codes = np.arange(256).reshape(2, 4, 32) * 11 % 64
    low = codes & 15
    ql = np.stack([low[:, 0] | low[:, 2] << 4, low[:, 1] | low[:, 3] << 4], axis=1).astype(np.uint8)
    qh = sum((codes[:, j] >> 4) << 2 * j for j in range(4)).astype(np.uint8)
    got = decode("Q6_K", ql.tobytes(), qh.tobytes(), sc.tobytes(), half(0.125))
    np.testing.assert_array_equal(got, 0.125 * np.repeat(sc.astype(float), 16) * (codes.ravel() - 32))


def test_g40_q4_0_round_trip_of_arange():
    fmt = FORMATS["Q4_0"]
    got = fmt.dequantize(fmt.quantize(np.arange(128, dtype=np.float32).reshape(4, 32))).ravel()
    np.testing.assert_array_equal(got[:10], [-0.0, -0.0, 3.875, 3.875, 3.875, 3.875, 7.75, 7.75, 7.75, 7.75])
    np.testing.assert_array_equal(got[64 + 32 : 64 + 35], [95.25, 95.25, 95.25])
    np.testing.assert_array_equal(got[-8:], np.full(8, 127.0))


# -- the gguf package as oracle -----------------------------------------------------------------------------------------


def same_bits(got, expected):
    """Equal bit by bit; NaNs anywhere in the same places (their payload is the compiler's choice)."""
    assert got.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(np.where(nan, 0, got.view(np.uint32)), np.where(nan, 0, expected.view(np.uint32)))


@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_equals_gguf_on_random_bytes(name):
    fmt = FORMATS[name]
    blocks = np.random.default_rng(1).integers(0, 256, (4096, fmt.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(blocks, GGMLQuantizationType[name])
    assert np.isnan(expected).any()
    same_bits(fmt.dequantize(blocks), expected)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8000])  # inf, -inf, NaN, subnormal, -0
def test_dequantize_equals_gguf_on_special_scales(name, scale):
    fmt = FORMATS[name]
    blocks = np.random.default_rng(2).integers(0, 256, (64, fmt.block_bytes), dtype=np.uint8)
    fields = blocks.view(fmt.layout)
    for field in {"d", "dmin", "m"} & set(fmt.layout.names):
        fields[field] = np.uint16(scale).view(np.float16)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(blocks, GGMLQuantizationType[name])
    same_bits(fmt.dequantize(blocks), expected)


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-9, 3e3])
def test_quantize_equals_gguf(name, spread):
    fmt, rng = FORMATS[name], np.random.default_rng(3)
    values = (rng.standard_normal((2048, fmt.block_size)) * spread).astype(np.float32)
    values[::3] = np.round(values[::3] / spread * 8) / 8 * spread  # ties
    values[::5] = 0
    with np.errstate(all="ignore"):
        expected = quants.quantize(values, GGMLQuantizationType[name])
    np.testing.assert_array_equal(fmt.quantize(values), expected.view(np.uint8).reshape(len(values), -1))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(FORMATS)), st.data())
def test_dequantize_equals_gguf_on_any_bytes(name, data):
    fmt = FORMATS[name]
    blocks = data.draw(hnp.arrays(np.uint8, (data.draw(st.integers(0, 5)), fmt.block_bytes)))
    got = fmt.dequantize(blocks)
    assert got.shape == (len(blocks), fmt.block_size)
    if len(blocks):
        with np.errstate(all="ignore"):
            same_bits(got, quants.dequantize(blocks, GGMLQuantizationType[name]).reshape(got.shape))


# -- rounding and error bounds --------------------------------------------------------------------------------------------


def test_t13_halves_are_rounded_away_from_zero():
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, np.nextafter(np.float32(0.5), np.float32(0)), 8388609.0, -0.2], np.float32)
    np.testing.assert_array_equal(round_half_away(x), [1, 2, 3, -1, -3, 0, 8388609.0, -0.0])
    block = np.zeros((1, 32), np.float32)
    block[0, :4] = [127, 2.5, -2.5, 0.5]
    codes = FORMATS["Q8_0"].quantize(block)[0, 2:6].view(np.int8)
    np.testing.assert_array_equal(codes, [127, 3, -3, 1])


@pytest.mark.parametrize("name", [n for n in WRITABLE if n in QUANTISED])
def test_round_trip_error_of_a_cosine(name):
    """GGML's own bound for its reference signal: root of the summed squares over n."""
    values = (0.1 + 2 * np.cos(np.arange(4096))).astype(np.float32)
    fmt = FORMATS[name]
    error = fmt.dequantize(fmt.quantize(values.reshape(-1, fmt.block_size))).ravel() - values
    assert np.sqrt((error.astype(np.float64) ** 2).sum()) / 4096 <= 0.002


STEPS = {"Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31, "Q8_0": 127}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(STEPS)), hnp.arrays(np.float32, (3, 32), elements=st.floats(-1000, 1000, width=32)))
def test_round_trip_error_is_at_most_a_step(name, values):
    fmt = FORMATS[name]
    got = fmt.dequantize(fmt.quantize(values))
    reach = np.ptp(values, axis=1) if name.endswith("_1") else np.abs(values).max(axis=1)
    step = reach / STEPS[name]
    # One step (the positive end of Q4_0 and Q5_0 lacks a code) plus what rounding scale and minimum to float16 costs.
    slack = step * 1.001 + np.abs(values).max(axis=1) * 2**-10 + 32 * 2.0**-24
    assert (np.abs(got - values) <= slack[:, None]).all()


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, (8, 1), elements=st.floats(width=32)))
def test_float_formats_keep_what_fits(values):
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    for name, reference in (("F32", values), ("F16", expected)):
        same_bits(FORMATS[name].dequantize(FORMATS[name].quantize(values)), reference)
    exact = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    same_bits(FORMATS["BF16"].dequantize(FORMATS["BF16"].quantize(exact)), exact)


def test_tiny_values_quantise_to_zero_instead_of_garbage():
    values = np.full((1, 32), 1e-39, np.float32)
    for name in STEPS:
        fmt = FORMATS[name]
        np.testing.assert_array_equal(fmt.dequantize(fmt.quantize(values)), np.zeros((1, 32)))


# -- refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(READ_ONLY))
def test_read_only_formats_say_so(name):
    with pytest.raises(UnsupportedDType, match=name):
        FORMATS[name].quantize(np.zeros((1, 256), np.float32))


@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_no_scale_can_hold_are_refused(name, bad):
    values = np.zeros((3, 32), np.float32)
    values[1, 4] = bad
    with pytest.raises(InvalidArgument, match=rf"{name}.*block 1"):
        FORMATS[name].quantize(values)


def test_shapes_and_types_are_checked():
    fmt = FORMATS["Q4_0"]
    with pytest.raises(ShapeMismatch, match="18"):
        fmt.dequantize(np.zeros((2, 17), np.uint8))
    with pytest.raises(ShapeMismatch, match="18"):
        fmt.dequantize(np.zeros(18, np.uint8))
    with pytest.raises(UnsupportedDType, match="int8"):
        fmt.dequantize(np.zeros((1, 18), np.int8))
    with pytest.raises(ShapeMismatch, match="32"):
        fmt.quantize(np.zeros((1, 31), np.float32))
    with pytest.raises(UnsupportedDType, match="int64"):
        fmt.quantize(np.zeros((1, 32), np.int64))
    with pytest.raises(ShapeMismatch, match=r"multiple of 32, got 33"):
        fmt.row_bytes(33)
