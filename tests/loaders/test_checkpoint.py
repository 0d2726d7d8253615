"""Checkpoint and open_checkpoint: which files make a model, what it says about itself."""

import numpy as np
import pytest
from gguf_fixtures import write_tiny_llama, write_tiny_safetensors

from llamita.engine.errors import ClosedError, CorruptFileError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from llamita.loaders.checkpoint import HALF_SPLIT_ROPE, open_checkpoint


def test_a_gguf_file(tmp_path):
    with open_checkpoint(str(write_tiny_llama(tmp_path / "m.gguf", weight_type="Q8_0", tied=True))) as checkpoint:
        assert checkpoint.path == tmp_path / "m.gguf"
        assert checkpoint.architecture == "llama"
        assert checkpoint.metadata["llama.block_count"] == 2
        assert checkpoint.tokenizer_json is None
        assert checkpoint.rope_interleaved
        assert "output.weight" not in checkpoint.tensor_names
        assert checkpoint.tensor_names[0] == "token_embd.weight"
        assert checkpoint.tensors["blk.0.ffn_down.weight"].shape == (64, 128)
        matrices = 320 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
        assert checkpoint.n_params == matrices + 5 * 64
        assert checkpoint.size_bytes == matrices // 32 * 34 + 5 * 64 * 4
        assert checkpoint.size_bytes < checkpoint.file_bytes == (tmp_path / "m.gguf").stat().st_size
        assert "llama" in repr(checkpoint)


def test_a_missing_tensor_is_named(tmp_path):
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path / "m.gguf"))
    with pytest.raises(CorruptFileError, match=r"m\.gguf: tensors: expected blk\.9\.attn_q\.weight"):
        checkpoint.tensor("blk.9.attn_q.weight")


def test_close(tmp_path):
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path / "m.gguf"))
    checkpoint.close()
    assert checkpoint.metadata["general.name"] == "Tiny"
    with pytest.raises(ClosedError):
        checkpoint.tensor("output_norm.weight")


@pytest.mark.parametrize(
    ("architecture", "interleaved"), [("llama", True), ("mistral", True), ("new", True), ("qwen2", False), ("phi3", False)]
)
def test_rope_pairing_goes_with_the_architecture(tmp_path, architecture, interleaved):
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path / "m.gguf", architecture=architecture))
    assert (checkpoint.architecture, checkpoint.rope_interleaved) == (architecture, interleaved)
    assert (architecture not in HALF_SPLIT_ROPE) == interleaved


@pytest.mark.parametrize(("number", "label"), [(0, "all F32"), (2, "Q4_0"), (15, "Q4_K - Medium"), (None, "Q5_1"), (999, "Q5_1")])
def test_file_type(tmp_path, number, label):
    path = write_tiny_llama(tmp_path / "m.gguf", weight_type="Q5_1", metadata={"general.file_type": number})
    assert open_checkpoint(path).file_type == label


def test_file_type_without_the_key(tmp_path):
    assert open_checkpoint(write_tiny_llama(tmp_path / "m.gguf")).file_type == "all F32"
    assert open_checkpoint(write_tiny_llama(tmp_path / "k.gguf", weight_type="Q6_K")).file_type == "Q6_K"


def test_architecture_is_required(tmp_path):
    path = write_tiny_llama(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    with pytest.raises(CorruptFileError, match=r"general\.architecture: expected a name, got nothing"):
        open_checkpoint(path)


# -- folders ----------------------------------------------------------------------------------------------------------------


def test_folder_with_one_gguf(tmp_path):
    write_tiny_llama(tmp_path / "m.gguf")
    (tmp_path / "README.md").write_text("x")
    assert open_checkpoint(tmp_path).path == tmp_path / "m.gguf"


def test_folder_with_the_shards_of_one_gguf(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert open_checkpoint(tmp_path).tensor_names == ("t0", "t1", "t2")


def test_folder_with_two_ggufs_asks_which(tmp_path):
    write_tiny_llama(tmp_path / "a.gguf")
    write_tiny_llama(tmp_path / "b.gguf")
    with pytest.raises(ModelNotFoundError, match=r"expected one \.gguf in the folder, got 2 \(a\.gguf, b\.gguf\)"):
        open_checkpoint(tmp_path)


def test_folder_with_safetensors_and_a_gguf_is_the_folder(tmp_path):
    write_tiny_safetensors(tmp_path)
    write_tiny_llama(tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path).path == tmp_path


def test_a_safetensors_file_stands_for_its_folder(tmp_path):
    write_tiny_safetensors(tmp_path)
    assert open_checkpoint(tmp_path / "model.safetensors").architecture == "llama"


def test_folder_without_a_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"expected a \.gguf, or model\.safetensors with config\.json, got neither"):
        open_checkpoint(tmp_path)


def test_folder_with_pickles(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match=r"got pytorch_model\.bin; convert it first"):
        open_checkpoint(tmp_path)


def test_nothing_there(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_checkpoint(tmp_path / "none")


@pytest.mark.parametrize("name", ["x.gguf", "x.safetensors", "x"])
def test_a_text_file(tmp_path, name):
    (tmp_path / name).write_text("hello")
    with pytest.raises(ModelFileError, match=str(tmp_path)):
        open_checkpoint(tmp_path / name)
