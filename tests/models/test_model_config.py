"""What a file may say of a model: defaults, refusals that name the key and the value, tensors that do not fit."""

import gguf_fixtures
import numpy as np
import pytest
from gguf_fixtures import tiny_weights, write_tiny_llama, write_tiny_safetensors

from llamita.engine.errors import CorruptFileError, InvalidArgument, UnsupportedModelError
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.config import read_config
from llamita.models.session import build_decoder, default_context

SHAPE = {"hidden": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn": 96}


def config_of(path):
    with open_checkpoint(path) as checkpoint:
        return read_config(checkpoint)


def build(path, **options):
    with open_checkpoint(path) as checkpoint:
        build_decoder(checkpoint, **options).close()


def test_numbers_and_defaults(tmp_path):
    optional = ("llama.attention.head_count_kv", "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base")
    optional += ("llama.rope.dimension_count", "llama.context_length", "llama.vocab_size")
    full = config_of(write_tiny_llama(tmp_path / "full.gguf", **SHAPE, eps=1e-6, rope_base=5e5))
    assert (full.n_layers, full.hidden, full.ffn, full.vocab) == (2, 64, 96, 320)
    assert (full.n_heads, full.n_kv_heads, full.head_dim, full.context_length) == (4, 2, 16, 128)
    assert (full.norm_eps, full.rope_base, full.rope_scale) == (pytest.approx(1e-6), 5e5, 1)
    bare = config_of(write_tiny_llama(tmp_path / "bare.gguf", dict.fromkeys(optional), **{**SHAPE, "n_kv_heads": 4}))
    assert (bare.n_kv_heads, bare.head_dim, bare.context_length, bare.vocab) == (4, 16, 2048, 320)
    assert (bare.norm_eps, bare.rope_base, bare.rope_scale) == (1e-5, 10000, 1)
    assert full.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2


def test_rope_pairing_follows_the_file(tmp_path):
    assert config_of(write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE)).rope_interleaved
    assert not config_of(write_tiny_safetensors(tmp_path / "folder", **SHAPE)).rope_interleaved


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4.0),
        ({"scaling.factor": 4.0}, 4.0),  # a file that names no type means linear
        ({"scale_linear": 2.0}, 2.0),  # the key's old name
        ({"scaling.type": "linear", "scale_linear": 2.0}, 2.0),
        ({"scaling.type": "none", "scaling.factor": 4.0}, 1.0),
        ({"scaling.type": "linear"}, 1.0),
    ],
)
def test_linear_rope_scaling(tmp_path, keys, scale):
    path = write_tiny_llama(tmp_path / "tiny.gguf", {f"llama.rope.{key}": value for key, value in keys.items()}, **SHAPE)
    assert config_of(path).rope_scale == scale


def test_one_number_for_all_layers(tmp_path):
    assert config_of(write_tiny_llama(tmp_path / "a.gguf", {"llama.attention.head_count": [4, 4]}, **SHAPE)).n_heads == 4
    with pytest.raises(UnsupportedModelError, match=r"head_count: expected one number for all layers, got \[4, 8\]"):
        config_of(write_tiny_llama(tmp_path / "b.gguf", {"llama.attention.head_count": [4, 8]}, **SHAPE))


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "feed_forward_length", "attention.head_count"])
def test_a_missing_key_is_named(tmp_path, key):
    path = write_tiny_llama(tmp_path / "tiny.gguf", {f"llama.{key}": None}, **SHAPE)
    with pytest.raises(CorruptFileError, match=rf"tiny\.gguf: metadata: expected the key llama\.{key}"):
        build(path)


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("block_count", "two", CorruptFileError, "expected a whole number from 1 on, got 'two'"),
        ("block_count", 0, CorruptFileError, "got 0"),
        ("block_count", -1, CorruptFileError, "got -1"),
        ("block_count", True, CorruptFileError, "got True"),
        ("embedding_length", 64.0, CorruptFileError, "got 64.0"),
        ("attention.head_count", 2**31, CorruptFileError, "got 2147483648"),
        ("attention.layer_norm_rms_epsilon", "small", CorruptFileError, "expected a finite number above 0, got 'small'"),
        ("attention.layer_norm_rms_epsilon", float("nan"), CorruptFileError, "got nan"),
        ("rope.freq_base", float("inf"), CorruptFileError, "got inf"),
        ("rope.freq_base", -1.0, CorruptFileError, "got -1.0"),
        ("attention.head_count_kv", 3, CorruptFileError, "expected a divisor of 4 heads, got 3"),
        ("expert_count", 8, UnsupportedModelError, "experts are not supported"),
        ("rope.dimension_count", 8, UnsupportedModelError, "head sizes"),
        ("attention.key_length", 15, UnsupportedModelError, "head sizes"),
        ("attention.value_length", 32, UnsupportedModelError, "head sizes"),
        ("rope.scaling.type", "yarn", UnsupportedModelError, "expected none or linear, got 'yarn'"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, key, value, error, message):
    path = write_tiny_llama(tmp_path / "tiny.gguf", {f"llama.{key}": value}, **SHAPE)
    with pytest.raises(error, match=message) as caught:
        build(path)
    assert "tiny.gguf" in str(caught.value) and "\n" not in str(caught.value)
    if message != "head sizes":
        assert f"llama.{key}" in str(caught.value)


def test_an_unknown_architecture_is_named(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"general\.architecture: expected .*llama.*, got 'mamba9'"):
        build(write_tiny_llama(tmp_path / "tiny.gguf", architecture="mamba9"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("blk.1.ffn_up.weight", None, r"blk\.1\.ffn_up\.weight"),
        ("output_norm.weight", None, r"output_norm\.weight"),
        ("token_embd.weight", None, r"token_embd\.weight"),
        ("blk.0.attn_k.weight", lambda w: w[:16], r"blk\.0\.attn_k\.weight: expected shape \[32, 64\], got \[16, 64\]"),
        ("blk.0.attn_norm.weight", lambda w: w[:-1], r"blk\.0\.attn_norm\.weight: expected shape \[64\], got \[63\]"),
        ("blk.1.ffn_down.weight", lambda w: w[:, :64], r"blk\.1\.ffn_down\.weight: expected shape \[64, 96\], got \[64, 64\]"),
        ("output.weight", lambda w: w[:300], r"output\.weight: expected shape \[320, 64\], got \[300, 64\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, monkeypatch, name, change, message):
    def changed(tiny):
        weights = tiny_weights(tiny)
        old = weights.pop(name)
        return weights if change is None else {**weights, name: np.ascontiguousarray(change(old))}

    monkeypatch.setattr(gguf_fixtures, "tiny_weights", changed)
    path = write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE)
    with pytest.raises(CorruptFileError, match=message):
        build(path)


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.1.attn_norm.bias", "blk.2.attn_q.weight", "cls.weight"])
def test_a_tensor_without_use_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(gguf_fixtures, "tiny_weights", lambda tiny: {**tiny_weights(tiny), name: np.ones((64, 64), np.float32)})
    with pytest.raises(UnsupportedModelError, match=rf"tiny\.gguf: tensors: expected .* llama decoder, got {name} too"):
        build(write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE))


@pytest.mark.parametrize("activations", [0, 4, 64, True])
def test_activation_widths_are_three(tmp_path, activations):
    with pytest.raises(InvalidArgument, match="activations: expected 8, 16 or 32"):
        build(write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE), activations=activations)


def test_a_context_beyond_memory_is_refused_before_anything_is_made_for_it(tmp_path):
    with pytest.raises(InvalidArgument, match=r"n_ctx: expected at most \d+ tokens, .*, got 1000000000000"):
        build(write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE), n_ctx=10**12)


def test_the_context_is_the_models_own_or_what_memory_holds(tmp_path, monkeypatch):
    config = config_of(write_tiny_llama(tmp_path / "tiny.gguf", n_ctx=100_000, **SHAPE))
    monkeypatch.setattr("llamita.models.session._memory_bytes", lambda: 1 << 40)
    assert default_context(config) == 100_000
    monkeypatch.setattr("llamita.models.session._memory_bytes", lambda: 4 * 2000 * config.kv_bytes_per_token())
    assert default_context(config) == 2000
    assert default_context(config, "f32") == 1000
    monkeypatch.setattr("llamita.models.session._memory_bytes", lambda: 1)
    assert default_context(config) == 512


@pytest.mark.parametrize(("weight_type", "cache_types"), [("Q8_0", ("f16", "f16", "f32")), ("F16", ("f32",) * 3), ("F32", ("f32",) * 3)])
def test_the_cache_is_rounded_where_something_else_is_too(tmp_path, weight_type, cache_types):
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=weight_type, **SHAPE)
    for activations, expected in zip((8, 16, 32), cache_types, strict=True):
        with open_checkpoint(path) as checkpoint, build_decoder(checkpoint, n_ctx=32, activations=activations) as decoder:
            assert decoder.cache_type == expected
            width = {"f16": 2, "f32": 4}[expected]
            assert decoder.bytes_read(6) - decoder.bytes_read(1) == 5 * read_config(checkpoint).kv_bytes_per_token(width)


@pytest.mark.parametrize("key", ["attention.scale", "logit_scale", "attn_logit_softcapping", "final_logit_softcapping", "residual_scale"])
def test_a_number_that_would_change_the_model_is_refused_by_name(tmp_path, key):
    neutral = 1.0 if key.endswith("_scale") else 0.0
    config_of(write_tiny_llama(tmp_path / "neutral.gguf", {f"llama.{key}": neutral}, **SHAPE))
    with pytest.raises(UnsupportedModelError, match=rf"llama\.{key}: expected {neutral} or no such key, got 30"):
        config_of(write_tiny_llama(tmp_path / "other.gguf", {f"llama.{key}": 30.0}, **SHAPE))


@pytest.mark.parametrize(("window", "context"), [(0, 128), (64, 64), (4096, 128)])
def test_a_sliding_window_bounds_the_context(tmp_path, window, context):
    path = write_tiny_llama(tmp_path / "window.gguf", {"llama.attention.sliding_window": window}, **SHAPE)
    assert config_of(path).context_length == context
