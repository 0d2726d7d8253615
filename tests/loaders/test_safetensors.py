"""Hugging Face folders: names, types, shards, config keys, refusals."""

import json

import numpy as np
import pytest
from gguf_fixtures import (
    CHATML,
    Tiny,
    hf_name,
    interleave_rope_rows,
    safetensors_bytes,
    tiny_weights,
    write_tiny_llama,
    write_tiny_safetensors,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from llamita.engine.errors import ClosedError, CorruptFileError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from llamita.loaders.checkpoint import open_checkpoint
from llamita.quant.qtensor import QTensor


def values(tensor):
    return tensor.dequantize() if isinstance(tensor, QTensor) else tensor


def edit(folder, name="config.json", **changes):
    data = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return folder


# -- tensors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_tensors_have_gguf_names_and_the_files_values(tmp_path, dtype, n_shards):
    checkpoint = open_checkpoint(write_tiny_safetensors(tmp_path, dtype=dtype, n_shards=n_shards, qkv_bias=True))
    expected = tiny_weights(Tiny(qkv_bias=True))
    assert set(checkpoint.tensor_names) == set(expected)
    tolerance = {"F32": 0, "F16": 2**-11, "BF16": 2**-8}[dtype]
    for name, want in expected.items():
        got = checkpoint.tensor(name)
        assert got.shape == want.shape
        assert isinstance(got, np.ndarray) == (dtype == "F32")
        np.testing.assert_allclose(values(got), want, rtol=tolerance, atol=1e-7 if tolerance else 0)
    assert checkpoint.file_type == {"F32": "all F32"}.get(dtype, dtype)


def test_what_the_package_writes_is_read(tmp_path):
    from safetensors.numpy import save_file

    write_tiny_safetensors(tmp_path)
    weights = tiny_weights(Tiny())
    save_file({hf_name(name): w for name, w in weights.items()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    for name, want in weights.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), want)


def test_rows_of_q_and_k_are_those_of_the_gguf_in_another_order(tmp_path):
    folder = open_checkpoint(write_tiny_safetensors(tmp_path / "hf"))
    file = open_checkpoint(write_tiny_llama(tmp_path / "m.gguf"))
    assert (folder.rope_interleaved, file.rope_interleaved) == (False, True)
    for name, heads in (("attn_q", 4), ("attn_k", 2)):
        name = f"blk.1.{name}.weight"
        hf, gguf = folder.tensor(name), file.tensor(name)
        assert not np.array_equal(hf, gguf)
        # Row r of the first and second half of a head become rows 2r and 2r + 1.
        np.testing.assert_array_equal(hf[1], gguf[2])
        np.testing.assert_array_equal(hf[8], gguf[1])
        np.testing.assert_array_equal(interleave_rope_rows(hf, heads), gguf)
    np.testing.assert_array_equal(folder.tensor("blk.1.attn_v.weight"), file.tensor("blk.1.attn_v.weight"))


def test_data_is_a_view_of_the_file(tmp_path):
    checkpoint = open_checkpoint(write_tiny_safetensors(tmp_path, dtype="BF16"))
    tensor = checkpoint.tensor("blk.0.attn_q.weight")
    assert not tensor.blocks.flags.owndata and not tensor.blocks.flags.writeable
    checkpoint.close()
    with pytest.raises(ClosedError):
        checkpoint.tensor("blk.0.attn_q.weight")


def test_tied_output_is_absent_even_if_stored(tmp_path):
    checkpoint = open_checkpoint(write_tiny_safetensors(tmp_path, config={"tie_word_embeddings": True}))
    assert "output.weight" not in checkpoint.tensor_names
    assert "output.weight" in open_checkpoint(edit(tmp_path, tie_word_embeddings=None)).tensor_names
    with pytest.raises(CorruptFileError, match=r"expected lm_head\.weight"):
        open_checkpoint(write_tiny_safetensors(tmp_path / "b", tied=True, config={"tie_word_embeddings": False}))


def test_frequencies_stored_by_old_versions_are_skipped(tmp_path):
    write_tiny_safetensors(tmp_path)
    stored = {hf_name(name): ("F32", w) for name, w in tiny_weights(Tiny()).items()}
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.ones(8))
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert set(open_checkpoint(tmp_path).tensor_names) == set(tiny_weights(Tiny()))


# -- config -----------------------------------------------------------------------------------------------------------------


def test_metadata_is_what_the_gguf_says(tmp_path):
    folder = open_checkpoint(write_tiny_safetensors(tmp_path / "hf"))
    file = open_checkpoint(write_tiny_llama(tmp_path / "m.gguf"))
    for key in file.metadata:
        if key.startswith("llama.") or key in ("general.architecture", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"):
            assert folder.metadata[key] == pytest.approx(file.metadata[key]), key
    assert folder.tokenizer_json == tmp_path / "hf" / "tokenizer.json"
    assert folder.metadata["general.name"] == "hf"


def test_defaults(tmp_path):
    absent = dict.fromkeys(("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "hidden_act"))
    metadata = open_checkpoint(write_tiny_safetensors(tmp_path, n_kv_heads=4, config=absent, tokenizer=False)).metadata
    assert metadata["llama.attention.head_count_kv"] == 4
    assert metadata["llama.attention.key_length"] == metadata["llama.rope.dimension_count"] == 16
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-6
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert "tokenizer.chat_template" not in metadata


def test_model_without_a_tokenizer(tmp_path):
    assert open_checkpoint(write_tiny_safetensors(tmp_path, tokenizer=False)).tokenizer_json is None


@pytest.mark.parametrize(("model_type", "architecture"), [("mistral", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_model_types(tmp_path, model_type, architecture):
    checkpoint = open_checkpoint(write_tiny_safetensors(tmp_path, config={"model_type": model_type, "sliding_window": 64}))
    assert checkpoint.architecture == architecture
    assert not checkpoint.rope_interleaved
    assert checkpoint.metadata.get(f"{architecture}.attention.sliding_window") == (64 if model_type == "mistral" else None)


def test_rope_pairing_of_the_config_is_believed(tmp_path):
    assert not open_checkpoint(write_tiny_safetensors(tmp_path, config={"rope_interleaved": False})).rope_interleaved
    assert open_checkpoint(edit(tmp_path, rope_interleaved=True)).rope_interleaved


def test_rope_parameters_of_newer_versions(tmp_path):
    config = {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    metadata = open_checkpoint(write_tiny_safetensors(tmp_path, config=config)).metadata
    assert metadata["llama.rope.freq_base"] == 5e5
    assert "llama.rope.scaling.type" not in metadata


def test_linear_and_yarn_scaling(tmp_path):
    linear = open_checkpoint(write_tiny_safetensors(tmp_path, config={"rope_scaling": {"type": "linear", "factor": 4.0}})).metadata
    assert (linear["llama.rope.scaling.type"], linear["llama.rope.scaling.factor"]) == ("linear", 4.0)
    scaling = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64}
    yarn = open_checkpoint(edit(tmp_path, rope_scaling=scaling)).metadata
    assert [yarn[f"llama.rope.scaling.{key}"] for key in ("type", "factor", "original_context_length")] == ["yarn", 2.0, 64]


def test_llama3_scaling_becomes_a_tensor(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {"rope_scaling": scaling | {"original_max_position_embeddings": 8192}, "rope_theta": 5e5}
    checkpoint = open_checkpoint(write_tiny_safetensors(tmp_path, hidden=256, n_heads=2, head_dim=128, config=config))
    factors = checkpoint.tensor("rope_freqs.weight")
    assert factors.shape == checkpoint.tensors["rope_freqs.weight"].shape == (64,)
    assert factors.dtype == np.float32
    # Llama 3.1: fast pairs keep their angle, slow ones are divided by 8, those between are blended.
    wavelength = 2 * np.pi * 5e5 ** (np.arange(64) / 64)
    assert (factors[wavelength < 8192 / 4] == 1).all() and (factors[wavelength > 8192] == 8).all()
    between = (wavelength >= 8192 / 4) & (wavelength <= 8192)
    smooth = (8192 / wavelength[between] - 1) / 3
    np.testing.assert_allclose(factors[between], 1 / ((1 - smooth) / 8 + smooth), rtol=1e-6)
    assert between.sum() == 6


def test_ends_of_generation(tmp_path):
    write_tiny_safetensors(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "bos_token_id": 1}))
    metadata = open_checkpoint(tmp_path).metadata
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert metadata["tokenizer.eog_token_ids"] == [2, 0]
    assert metadata["tokenizer.ggml.add_bos_token"] is False


def test_where_the_chat_template_comes_from(tmp_path):
    write_tiny_safetensors(tmp_path)
    assert open_checkpoint(tmp_path).metadata["tokenizer.chat_template"] == CHATML
    named = [{"name": "default", "template": "D"}, {"name": "tools", "template": "T"}]
    metadata = open_checkpoint(edit(tmp_path, "tokenizer_config.json", chat_template=named)).metadata
    assert (metadata["tokenizer.chat_template"], metadata["tokenizer.chat_template.tools"]) == ("D", "T")
    (tmp_path / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert open_checkpoint(tmp_path).metadata["tokenizer.chat_template"] == "J"


# -- refusals -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "gemma3"}, "model_type: expected one of llama, .*got 'gemma3'"),
        ({"model_type": None}, "model_type: expected one of llama, .*got None"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu', got 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"quantization": {"bits": 4}}, "quantization"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling: expected linear, yarn or llama3, got 'dynamic'"),
    ],
)
def test_what_is_not_run_is_named(tmp_path, config, match):
    with pytest.raises(UnsupportedModelError, match=rf"config\.json: {match}"):
        open_checkpoint(write_tiny_safetensors(tmp_path, config=config))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: expected a whole number above 0, got None"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected at most 10000"),
        ({"hidden_size": "64"}, "hidden_size: .*got '64'"),
        ({"num_attention_heads": 0}, "num_attention_heads: .*got 0"),
        ({"vocab_size": -1}, "vocab_size: .*got -1"),
        ({"rope_theta": 0}, "rope_theta: expected a number above 0, got 0"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps: expected a number above 0, got 'x'"),
        ({"rope_scaling": {"type": "linear"}}, "factor: expected a number above 0, got None"),
    ],
)
def test_contradictions_in_the_config_are_named(tmp_path, config, match):
    with pytest.raises(CorruptFileError, match=rf"config\.json: {match}"):
        open_checkpoint(write_tiny_safetensors(tmp_path, config=config))


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"", b"[" * 100_000])
def test_broken_json(tmp_path, content):
    write_tiny_safetensors(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"config\.json: expected"):
        open_checkpoint(tmp_path)


def test_missing_parts_are_named(tmp_path):
    folder = write_tiny_safetensors(tmp_path, n_shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"expected 3 shards, missing model-00002-of-00003\.safetensors"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"expected config\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b", "..\\x", "", 7, None])
def test_an_index_must_stay_in_its_folder(tmp_path, name):
    write_tiny_safetensors(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(ModelFileError, match="m"):
        open_checkpoint(tmp_path / "m")


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_needs_a_map(tmp_path, weight_map):
    write_tiny_safetensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CorruptFileError, match="weight_map: expected tensor names"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "error", "match"),
    [
        ("model.norm.weight", "F64", (4,), UnsupportedModelError, r"expected F32, F16 or BF16, got F64 \[tensor model\.norm\.weight\]"),
        ("model.nrom.weight", "F32", (4,), UnsupportedModelError, r"expected one of a llama model, got 'model\.nrom\.weight'"),
        ("model.norm.weight", "F32", (0,), CorruptFileError, r"expected extents above 0, got \[0\]"),
        ("model.norm.weight", "F32", (), CorruptFileError, r"expected extents above 0, got \[\]"),
    ],
)
def test_tensors_that_do_not_belong(tmp_path, name, dtype, shape, error, match):
    write_tiny_safetensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({name: (dtype, np.ones(shape))}))
    with pytest.raises(error, match=match):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_shards(tmp_path):
    folder = write_tiny_safetensors(tmp_path, n_shards=2)
    (folder / "model-00002-of-00002.safetensors").write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(CorruptFileError, match="expected each once"):
        open_checkpoint(folder)


def test_truncation_anywhere(tmp_path):
    folder = write_tiny_safetensors(tmp_path, n_layers=1)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    for n in [0, 1, 7, 8, 9, 100, 1000, len(data) // 2, len(data) - 1]:
        file.write_bytes(data[:n])
        with pytest.raises(CorruptFileError, match=r"model\.safetensors"):
            open_checkpoint(folder)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_headers_never_crash(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damaged"
    file = write_tiny_safetensors(folder, n_layers=1, tokenizer=False) / "model.safetensors"
    raw = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    file.write_bytes(raw)
    try:
        checkpoint = open_checkpoint(folder)
    except ModelFileError:
        return
    for name in checkpoint.tensor_names:
        checkpoint.tensor(name)
