"""The decoder on tiny random models: against transformers, against its own layers run one by one, against itself."""

import json
import math
import sys
from pathlib import Path

import gguf_fixtures
import numpy as np
import pytest
from gguf_fixtures import tiny_weights, write_tiny_llama, write_tiny_safetensors

from llamita.engine import ops
from llamita.engine.errors import ClosedError, ContextOverflowError, InvalidArgument
from llamita.engine.kv_cache import KVCache
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.session import build_decoder
from llamita.quant.formats import FORMATS

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "golden"))
from decoder_goldens import CASES, EVERY, LLAMA3, POSITIONS, SHAPE, prompt  # noqa: E402

GOLDEN = json.loads((TESTS / "data" / "golden" / "decoder.json").read_text(encoding="utf-8"))
WIDTHS = [8, 16, 32]


def decoder_of(path, **options):
    with open_checkpoint(path) as checkpoint:
        return build_decoder(checkpoint, **{"n_ctx": 128, "n_threads": 2, "activations": 32, **options})


@pytest.fixture
def opened(tmp_path):
    """`opened(activations=16, weight_type="Q4_0")`: a decoder over a new tiny model; closed at the end."""
    made = []

    def get(path=None, n_ctx=128, n_threads=2, activations=16, metadata=None, **overrides):
        sizes = {**SHAPE, "hidden": 0, "ffn": 0, "head_dim": 0, **overrides}  # 0: as the format's blocks allow
        path = path or write_tiny_llama(tmp_path / f"{len(made)}.gguf", metadata, **sizes)
        made.append(decoder_of(path, n_ctx=n_ctx, n_threads=n_threads, activations=activations))
        return made[-1]

    yield get
    for decoder in made:
        decoder.close()


def in_chunks(decoder, ids, size):
    """The logits at the end of every chunk, by position."""
    decoder.rewind(0)
    rows = {}
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        rows[start + len(part) - 1] = decoder.forward(part).copy()
    return rows


# -- other implementations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_transformers_gives_the_same_logits(tmp_path, opened, name):
    overrides, scaling = CASES[name]
    shape = {**SHAPE, **overrides}
    scaled = None if scaling is None else {"rope_scaling": scaling}
    paths = [write_tiny_safetensors(tmp_path / "folder", config=scaled, **shape)]
    if scaling is None or scaling["rope_type"] == "linear":
        keys = scaling and {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": scaling["factor"]}
        paths.append(write_tiny_llama(tmp_path / "tiny.gguf", keys, **shape))
    for path in paths:
        y = opened(path, activations=32).forward_all(prompt())
        np.testing.assert_allclose(y[list(POSITIONS), ::EVERY], GOLDEN[name], rtol=0, atol=1e-4, err_msg=str(path))


def test_goldens_differ_where_the_models_do():
    """Else a decoder without scaling or biases could agree with all of them."""
    same_weights = [np.array(GOLDEN[name]) for name in ("grouped heads", "linear scaling", "llama3 scaling")]
    for i, a in enumerate(same_weights):
        for b in same_weights[:i]:
            np.testing.assert_allclose(a[0], b[0], atol=1e-6)  # at position 0 nothing turns
            assert np.abs(a[-1] - b[-1]).max() > 0.01


def test_rope_factors_from_a_gguf_tensor(tmp_path, opened, monkeypatch):
    """Llama 3.1 and later; the factors by the formula of its release."""
    factors, n = [], LLAMA3["original_max_position_embeddings"]
    for i in range(SHAPE["head_dim"] // 2):
        wavelength = 2 * math.pi * 10000.0 ** (2 * i / SHAPE["head_dim"])
        low, high = n / LLAMA3["low_freq_factor"], n / LLAMA3["high_freq_factor"]
        smooth = min(1, max(0, (n / wavelength - 1) / 3))
        blend = 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)
        factors.append(1 if wavelength < high else LLAMA3["factor"] if wavelength > low else blend)
    extra = {"rope_freqs.weight": np.array(factors, np.float32)}
    monkeypatch.setattr(gguf_fixtures, "tiny_weights", lambda tiny: {**tiny_weights(tiny), **extra})
    path = write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE)
    y = opened(path, activations=32).forward_all(prompt())
    np.testing.assert_allclose(y[list(POSITIONS), ::EVERY], GOLDEN["llama3 scaling"], rtol=0, atol=1e-4)


# -- the same layers, run one by one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_type", FORMATS)
def test_the_plan_equals_the_layers(opened, weight_type):
    decoder = opened(activations=32, weight_type=weight_type, qkv_bias=True)
    ids = prompt()
    planned, layers, c = decoder.forward_all(ids), decoder.decoder, decoder.config
    cache = KVCache(c.n_layers, c.n_kv_heads, c.head_dim, 128)
    parts = []
    with ops.composites_only():
        for part in (ids[:20], ids[20:21], ids[21:]):
            parts.append(layers.forward(np.array([part]), cache)[0])
            cache.advance(len(part))
        whole = layers.forward(np.array([ids]))[0]
    scale = np.abs(whole).max()
    np.testing.assert_allclose(planned, whole, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("weight_type", ["Q4_0", "Q4_1", "Q6_K"])
def test_integer_activations_stay_close_to_floats(opened, weight_type):
    exact = opened(activations=32, weight_type=weight_type).forward_all(prompt())
    spread = exact.std()
    for activations, bound in ((16, 1e-3), (8, 6e-2)):  # 16: it is the cache in half precision that shows
        y = opened(activations=activations, weight_type=weight_type).forward_all(prompt())
        difference = np.sqrt(np.mean((y - exact) ** 2))
        assert 0 < difference <= bound * spread, activations


def test_forward_diff_equals_forward(opened):
    decoder = opened(activations=32, weight_type="F32").decoder
    ids = np.array([prompt()])
    np.testing.assert_allclose(decoder.forward(ids), decoder.forward_diff(ids), rtol=0, atol=2e-5)


# -- the cache --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activations", WIDTHS)
@pytest.mark.parametrize("shape", [{}, {"qkv_bias": True, "n_kv_heads": 1}, {"n_kv_heads": 4, "tied": True, "weight_type": "Q4_K"}])
def test_chunks_steps_and_threads_change_no_bit(opened, activations, shape):
    shape = {"weight_type": "Q4_0", **shape}
    decoder = opened(activations=activations, **shape)
    ids = [i % 320 for i in range(5, 5 + 17 * 101, 17)]
    whole = decoder.forward_all(ids)
    assert whole.shape == (101, 320) and np.isfinite(whole).all()
    for size in (1, 2, 7, 16, 64, 100, 101):
        for position, row in in_chunks(decoder, ids, size).items():
            assert np.array_equal(row, whole[position]), f"chunks of {size}, position {position}"
    for n_threads in (1, 3, 5):
        other = opened(activations=activations, n_threads=n_threads, **shape)
        assert np.array_equal(other.forward_all(ids), whole), f"{n_threads} threads"
        assert np.array_equal(in_chunks(other, ids, 33)[100], whole[100]), f"{n_threads} threads, chunks"


@pytest.mark.parametrize("activations", WIDTHS)
def test_later_tokens_and_what_was_rewound_do_not_matter(opened, activations):
    decoder = opened(activations=activations, weight_type="Q8_0")
    ids = prompt()
    fresh = decoder.forward_all(ids)
    for kept in (0, 1, 15, 16, 17, 30):
        decoder.rewind(0)
        decoder.forward(ids[:kept] + [7] * 60)
        decoder.rewind(kept)
        assert decoder.cached_ids == ids[:kept]
        assert np.array_equal(decoder.forward_all(ids[kept:]), fresh[kept:]), kept
    decoder.rewind(0)
    mixed = decoder.forward_all(ids[:20] + [9] * 20)
    assert np.array_equal(mixed[:20], fresh[:20])
    assert not np.array_equal(mixed[20], fresh[20])


@pytest.mark.parametrize("activations", WIDTHS)
def test_a_broken_embedding_reaches_later_positions_and_no_later_sequence(tmp_path, opened, monkeypatch, activations):
    def broken(tiny):
        weights = tiny_weights(tiny)
        weights["token_embd.weight"][300, 3] = np.nan
        return weights

    monkeypatch.setattr(gguf_fixtures, "tiny_weights", broken)
    decoder = opened(write_tiny_llama(tmp_path / "broken.gguf", weight_type="F16", **SHAPE), activations=activations)
    ids = prompt()
    ids = [i for i in ids if i != 300]
    fresh = decoder.forward_all(ids)
    assert np.isfinite(fresh).all()
    decoder.rewind(20)
    assert np.isnan(decoder.forward_all([300, *[5] * 50])).all()
    for kept in (20, 0, 17):
        decoder.rewind(kept)
        assert np.array_equal(decoder.forward_all(ids[kept:]), fresh[kept:]), kept
    decoder.rewind(10)
    decoder.forward([300])
    decoder.rewind(10)
    steps = [decoder.forward([token]).copy() for token in ids[10:]]
    assert np.array_equal(steps, fresh[10:])


def test_a_prompt_is_interrupted_between_chunks(opened):
    decoder = opened(n_ctx=300, weight_type="F32", activations=32, metadata={"llama.context_length": 512})
    ids = [i * 7 % 320 for i in range(280)]
    seen, expected = [], decoder.forward(ids).copy()
    decoder.rewind(0)
    assert np.array_equal(decoder.forward(ids, on_progress=lambda *event: seen.append(event)), expected)
    assert seen[-1] == (280, 280) and [done for done, _ in seen] == sorted({done for done, _ in seen}) and len(seen) > 1

    def interrupt(done, total):
        raise KeyboardInterrupt

    decoder.rewind(0)
    with pytest.raises(KeyboardInterrupt):
        decoder.forward(ids, on_progress=interrupt)
    assert decoder.cached_ids == ids[: seen[0][0]]
    assert np.array_equal(decoder.forward(ids[seen[0][0] :]), expected)


def test_the_cache_is_used_to_its_last_position(opened):
    decoder = opened(n_ctx=37, weight_type="Q4_0")
    ids = prompt()[:37]
    whole = decoder.forward_all(ids)
    assert np.array_equal(in_chunks(decoder, ids, 36)[36], whole[36])
    with pytest.raises(ContextOverflowError, match=r"38 tokens.*n_ctx = 37"):
        decoder.forward([1])
    assert len(decoder.cached_ids) == 37
    decoder.rewind(36)
    with pytest.raises(InvalidArgument, match=r"position: expected 36.*got 35"):
        decoder.forward([1], position=35)
    assert np.array_equal(decoder.forward(ids[36:], position=36), whole[36])


def test_two_decoders_share_nothing(opened):
    one, other = opened(weight_type="Q4_0"), opened(weight_type="Q4_0")
    ids = prompt()
    expected = one.forward_all(ids)
    one.rewind(0)
    for i, token in enumerate(ids):
        other.forward([300 - token % 100])
        assert np.array_equal(one.forward([token]), expected[i])


# -- making and ending one ----------------------------------------------------------------------------------------------------


def test_progress_of_loading(tmp_path):
    path, seen = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q5_1", **SHAPE), []
    decoder_of(path, on_progress=lambda *event: seen.append(event)).close()
    packed = [(done, total) for stage, done, total in seen if stage == "pack"]
    assert {stage for stage, _, _ in seen} <= {"compile", "pack"}
    assert [done for done, _ in packed] == sorted(done for done, _ in packed) and packed[-1][0] == packed[-1][1] > 0
    assert len({total for _, total in packed}) == 1


def test_closing_twice_and_using_it_afterwards(opened):
    decoder = opened(weight_type="F32")
    decoder.forward([1])
    decoder.close()
    decoder.close()
    for call in (lambda: decoder.forward([1]), lambda: decoder.forward_all([1]), lambda: decoder.bytes_read(1)):
        with pytest.raises(ClosedError, match="closed"):
            call()


@pytest.mark.parametrize("ids", [[], [[1, 2]], [1.5], ["1"]])
def test_what_is_no_list_of_ids(opened, ids):
    decoder = opened(weight_type="F32", activations=32)
    with pytest.raises(InvalidArgument, match="decoder: ids"):
        decoder.forward(ids)
    assert decoder.cached_ids == []
