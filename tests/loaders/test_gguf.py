"""GGUF files as the gguf package writes them: metadata, tensors, splits, closing."""

import gc

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants
from gguf_fixtures import Tiny, tiny_metadata, tiny_weights, write_tiny_llama

from llamita.engine.errors import ClosedError, CorruptFileError, ModelNotFoundError
from llamita.loaders.gguf import GGUFFile
from llamita.quant.formats import FORMATS
from llamita.quant.qtensor import QTensor


def write(path, fill, **options):
    writer = GGUFWriter(path, "llama", **options)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# -- metadata -------------------------------------------------------------------------------------------------------------


def test_every_type_of_value(tmp_path):
    numbers = {
        GGUFValueType.UINT8: 200, GGUFValueType.INT8: -100, GGUFValueType.UINT16: 60000, GGUFValueType.INT16: -30000,
        GGUFValueType.UINT32: 4_000_000_000, GGUFValueType.INT32: -2_000_000_000, GGUFValueType.UINT64: 2**63 + 1,
        GGUFValueType.INT64: -(2**62), GGUFValueType.FLOAT32: 0.5, GGUFValueType.FLOAT64: 1e300,
    }  # fmt: skip

    def fill(writer):
        for kind, value in numbers.items():
            writer.add_key_value(kind.name, value, kind)
        writer.add_bool("yes", True)
        writer.add_bool("no", False)
        writer.add_string("text", "Grüße\n")
        writer.add_array("strings", ["a", "", "日本"])
        writer.add_array("ints", [1, -2, 3])
        writer.add_array("floats", [0.5, -1.5])
        writer.add_array("bools", [True, False])
        writer.add_array("nested", [["a"], ["b", "c"]])

    metadata = GGUFFile.open(write(tmp_path / "m.gguf", fill)).metadata
    assert {kind: metadata[kind.name] for kind in numbers} == numbers
    assert metadata["yes"] is True and metadata["no"] is False
    assert metadata["text"] == "Grüße\n"
    assert metadata["strings"] == ["a", "", "日本"]
    assert metadata["ints"].tolist() == [1, -2, 3] and metadata["ints"].dtype == np.int32
    assert metadata["floats"].tolist() == [0.5, -1.5]
    assert metadata["bools"].tolist() == [True, False] and metadata["bools"].dtype == bool
    assert metadata["nested"] == [["a"], ["b", "c"]]
    assert metadata["general.architecture"] == "llama"
    assert metadata.get("absent", 7) == 7
    assert "absent" not in metadata
    assert len(metadata) == len(dict(metadata)) == 19
    with pytest.raises(KeyError):
        metadata["absent"]


def test_arrays_are_decoded_once_and_outlive_the_file(tmp_path):
    file = GGUFFile.open(write_tiny_llama(tmp_path / "m.gguf"))
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert file.metadata["tokenizer.ggml.tokens"] is tokens
    file.close()
    assert tokens == tiny_metadata(Tiny())["tokenizer.ggml.tokens"]
    assert file.metadata["tokenizer.ggml.merges"][0] == "Ġ t"


def test_bytes_that_are_not_utf8_are_replaced_in_values(tmp_path):
    path = write(tmp_path / "m.gguf", lambda w: (w.add_string("text", "ab_cd"), w.add_array("list", ["ab_cd"])))
    path.write_bytes(path.read_bytes().replace(b"ab_cd", b"ab\xffcd"))
    metadata = GGUFFile.open(path).metadata
    assert metadata["text"] == "ab�cd"
    assert metadata["list"] == ["ab�cd"]


# -- tensors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_type", FORMATS)
def test_tensors_of_every_format(tmp_path, weight_type):
    path = write_tiny_llama(tmp_path / "m.gguf", weight_type=weight_type, vocab=288)
    reader = GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for expected in reader.tensors:
            got, info = file.tensor(expected.name), file.tensors[expected.name]
            assert info.shape == got.shape == tuple(int(n) for n in reversed(expected.shape))
            assert (info.offset, info.nbytes) == (expected.data_offset, expected.n_bytes)
            if info.format.name == "F32":
                assert isinstance(got, np.ndarray) and got.dtype == np.float32 and not got.flags.writeable
                np.testing.assert_array_equal(got, expected.data)
            else:
                assert isinstance(got, QTensor) and got.format is FORMATS[weight_type] and got.name == expected.name
                np.testing.assert_array_equal(got.dequantize(), quants.dequantize(expected.data, expected.tensor_type))


def test_extents_come_out_row_major(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    file = GGUFFile.open(write(tmp_path / "m.gguf", lambda w: w.add_tensor("t", values)))
    np.testing.assert_array_equal(file.tensor("t"), values)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_of_the_file_is_used(tmp_path, alignment):
    values = [np.full(3, i, np.float32) for i in range(3)]

    def fill(writer):
        writer.add_custom_alignment(alignment)
        for i, v in enumerate(values):
            writer.add_tensor(f"t{i}", v)

    file = GGUFFile.open(write(tmp_path / "m.gguf", fill))
    assert all(info.offset % alignment == 0 for info in file.tensors.values())
    for i, v in enumerate(values):
        np.testing.assert_array_equal(file.tensor(f"t{i}"), v)


def test_data_is_a_view_of_the_file(tmp_path):
    file = GGUFFile.open(write_tiny_llama(tmp_path / "m.gguf", weight_type="Q8_0"))
    for name in ("blk.0.attn_norm.weight", "blk.0.attn_q.weight"):
        tensor = file.tensor(name)
        data = tensor.blocks if isinstance(tensor, QTensor) else tensor
        assert not data.flags.owndata and not data.flags.writeable


def test_padding_after_the_last_tensor_may_be_missing(tmp_path):
    path = write(tmp_path / "m.gguf", lambda w: w.add_tensor("t", np.ones(3, np.float32)))
    end = GGUFFile.open(path).tensors["t"]
    path.write_bytes(path.read_bytes()[: end.offset + end.nbytes])
    assert GGUFFile.open(path).tensor("t").tolist() == [1, 1, 1]


def test_a_vocabulary_without_tensors(tmp_path):
    file = GGUFFile.open(write(tmp_path / "m.gguf", lambda w: w.add_token_list(["a", "b"])))
    assert (len(file.tensors), file.metadata["tokenizer.ggml.tokens"]) == (0, ["a", "b"])


def test_version_2_is_read_too(tmp_path):
    path = write_tiny_llama(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    assert GGUFFile.open(path).version == 2


# -- closing --------------------------------------------------------------------------------------------------------------


def test_close_refuses_new_tensors_and_keeps_old_ones(tmp_path):
    file = GGUFFile.open(write_tiny_llama(tmp_path / "m.gguf"))
    before = file.tensor("output_norm.weight")
    file.close()
    file.close()
    gc.collect()
    np.testing.assert_array_equal(before, tiny_weights(Tiny())["output_norm.weight"])
    with pytest.raises(ClosedError, match="output_norm"):
        file.tensor("output_norm.weight")


def test_the_map_goes_when_the_last_view_goes(tmp_path):
    file = GGUFFile.open(write_tiny_llama(tmp_path / "m.gguf"))
    ((_, data),) = file._files._maps
    view = file.tensor("output_norm.weight")
    file.close()
    with pytest.raises(BufferError):
        data.close()
    del view
    data.close()


# -- split models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    """Three shards of two tensors each."""

    def fill(writer):
        for i in range(6):
            writer.add_tensor(f"t{i}", np.full((2, 4), i, np.float32))

    write(tmp_path / "m.gguf", fill, split_max_tensors=2)
    paths = sorted(tmp_path.glob("m-*.gguf"))
    assert [path.name for path in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def test_any_shard_opens_the_whole_model(shards):
    for path in shards:
        file = GGUFFile.open(path)
        assert file.path == path
        assert list(file.tensors) == [f"t{i}" for i in range(6)]
        assert [file.tensor(f"t{i}")[0, 0] for i in range(6)] == list(range(6))
        assert file.metadata["general.architecture"] == "llama"
        assert file.file_bytes == sum(shard.stat().st_size for shard in shards)


def test_a_missing_shard_is_named(shards):
    shards[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"expected 3 shards.*missing m-00002-of-00003\.gguf"):
        GGUFFile.open(shards[2])


def test_a_renamed_shard_is_refused(shards):
    renamed = shards[0].rename(shards[0].with_name("model.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"-00001-of-00003\.gguf, got 'model\.gguf'"):
        GGUFFile.open(renamed)


def test_shards_that_do_not_belong_together(shards):
    shards[1].write_bytes(shards[2].read_bytes())
    with pytest.raises(CorruptFileError, match=r"m-00002.*expected \[1, 3\], got \[2, 3\].*do not belong together"):
        GGUFFile.open(shards[0])


def test_a_tensor_in_two_shards(shards):
    shards[1].write_bytes(shards[1].read_bytes().replace(b"t2", b"t0"))
    with pytest.raises(CorruptFileError, match=r"'t0' in two"):
        GGUFFile.open(shards[0])


def test_the_number_of_tensors_in_all_shards_is_checked(shards):
    data, key = shards[0].read_bytes(), b"split.tensors.count"
    at = data.index(key) + len(key) + 4
    shards[0].write_bytes(data[:at] + (7).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(CorruptFileError, match="expected 7 tensors in all shards, got 6"):
        GGUFFile.open(shards[0])


def test_a_truncated_shard_is_named(shards):
    shards[2].write_bytes(shards[2].read_bytes()[:-64])
    with pytest.raises(CorruptFileError, match="m-00003"):
        GGUFFile.open(shards[0])
