"""GGUF bytes that lie: each refusal, truncation anywhere, random bytes. Nothing but a ModelFileError may come out."""

import os
import random
import struct
import tracemalloc

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf_fixtures import write_tiny_llama
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llamita.engine.errors import CorruptFileError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from llamita.loaders.gguf import GGUFFile
from llamita.loaders.gguf_header import read_header

HUGE = (1 << 64) - 1


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return u64(len(raw)) + raw


def key(name, type_code, value):
    return text(name) + u32(type_code) + value


def tensor(name="t", dims=(32,), type_id=0, offset=0):
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def header(keys=(), tensors=(), version=3, n_keys=None, n_tensors=None):
    counts = u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(keys) if n_keys is None else n_keys)
    return b"GGUF" + u32(version) + counts + b"".join(keys) + b"".join(tensors)


def padded(head, data=128, alignment=32):
    return head + b"\0" * (-len(head) % alignment) + b"\0" * data


ARCH = key("general.architecture", 8, text("llama"))


@pytest.fixture
def refuse(tmp_path):
    """Open bytes as a file, expect a refusal in one line that names the file, and return it."""

    def check(data, error, match):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        with pytest.raises(error, match=match) as caught:
            GGUFFile.open(path)
        message = str(caught.value)
        assert str(path) in message and "\n" not in message and message.isprintable()
        assert type(caught.value) is error

    return check


# -- not a model at all ---------------------------------------------------------------------------------------------------


def test_the_hand_built_header_is_a_good_one(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(padded(header([ARCH], [tensor()])))
    assert GGUFFile.open(path).tensor("t").shape == (32,)


def test_missing_file(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path / "none" / "m.gguf"):
        with pytest.raises(ModelNotFoundError, match=r"none.*no such file; check the path"):
            GGUFFile.open(path)


def test_folder(tmp_path):
    with pytest.raises(ModelFileError, match="expected a file, got a folder"):
        GGUFFile.open(tmp_path)


def test_path_below_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelNotFoundError):
        GGUFFile.open(tmp_path / "file" / "m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="expected a regular file"):
        GGUFFile.open(tmp_path / "pipe")


def test_path_with_a_null(tmp_path):
    with pytest.raises(ModelFileError, match="null"):
        GGUFFile.open(str(tmp_path) + "/a\0b.gguf")


def test_empty_file(refuse):
    refuse(b"", CorruptFileError, "got an empty file; download it again")


def test_text_file(refuse):
    refuse(b"Once upon a time", CorruptFileError, "expected a GGUF file, got b'Once' at its start")


def test_web_page(refuse):
    refuse(b"<!DOCTYPE html><html>", CorruptFileError, "got a web page")


def test_git_lfs_pointer(refuse):
    refuse(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", CorruptFileError, "Git LFS pointer")


@pytest.mark.parametrize("magic", [b"lmgg", b"fmgg", b"tjgg", b"algg"])
def test_formats_before_gguf(refuse, magic):
    refuse(magic + bytes(60), UnsupportedModelError, "expected GGUF, got its predecessor GGML")


@pytest.mark.parametrize("version", [0, 1, 4, 77])
def test_versions(refuse, version):
    refuse(header(version=version), UnsupportedModelError, f"version: expected 2 or 3, got {version}")


def test_big_endian(refuse):
    refuse(b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModelError, "got a big-endian GGUF file")


# -- counts, lengths, nesting ---------------------------------------------------------------------------------------------


def test_too_many_keys(refuse):
    refuse(header(n_keys=HUGE), CorruptFileError, f"{HUGE} metadata keys: expected .* more bytes, got 0")


def test_too_many_tensors(refuse):
    refuse(header([ARCH], n_tensors=HUGE), CorruptFileError, f"{HUGE} tensors: expected .* more bytes, got 0")


def test_key_longer_than_the_file(refuse):
    refuse(header([u64(1 << 40) + b"general"], n_keys=1), CorruptFileError, f"metadata key: expected {1 << 40} more bytes")


def test_string_longer_than_the_file(refuse):
    refuse(header([key("k", 8, u64(HUGE) + b"abc")]), CorruptFileError, f"k: expected {HUGE} more bytes, got 3")


@pytest.mark.parametrize("element", [0, 4, 7, 8, 9, 12])
def test_array_longer_than_the_file(refuse, element):
    refuse(header([key("k", 9, u32(element) + u64(1 << 61))]), CorruptFileError, f"{1 << 61} .* of k: expected .* got 0")


def test_string_in_an_array_longer_than_the_file(refuse):
    refuse(header([key("k", 9, u32(8) + u64(2) + text("a") + u64(HUGE))]), CorruptFileError, "last string of k")
    refuse(header([key("k", 9, u32(8) + u64(2) + u64(HUGE) + text("a"))]), CorruptFileError, "strings of k: expected 2")


@pytest.mark.parametrize("code", [13, 255, 1 << 31])
def test_unknown_value_types(refuse, code):
    refuse(header([key("k", code, bytes(8))]), CorruptFileError, f"type of k: expected 0 to 12, got {code}")
    refuse(header([key("k", 9, u32(code) + u64(1) + bytes(8))]), CorruptFileError, f"element type of k: expected 0 to 12, got {code}")


def nested(depth):
    return b"".join(u32(9) + u64(1) for _ in range(depth - 1)) + u32(0) + u64(1) + b"\7"


def test_nesting(refuse, tmp_path):
    path = tmp_path / "deep.gguf"
    path.write_bytes(header([key("k", 9, nested(64))]))
    value = GGUFFile.open(path).metadata["k"]
    for _ in range(63):
        (value,) = value
    assert value.tolist() == [7]
    refuse(header([key("k", 9, nested(65))]), CorruptFileError, "k: expected arrays nested at most 64 deep")
    refuse(header([key("k", 9, nested(100_000))]), CorruptFileError, "nested")


def test_empty_arrays_are_fine(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(header([key(f"k{code}", 9, u32(code) + u64(0)) for code in range(13)]))
    metadata = GGUFFile.open(path).metadata
    assert all(len(metadata[f"k{code}"]) == 0 for code in range(13))


# -- names ----------------------------------------------------------------------------------------------------------------


def test_key_twice(refuse):
    refuse(header([ARCH, ARCH]), CorruptFileError, "'general.architecture' again")


def test_tensor_twice(refuse):
    refuse(padded(header([ARCH], [tensor("t"), tensor("t", offset=128)]), 256), CorruptFileError, "'t' again")


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"a\nb", b"\x1b[31mred", b"x" * 256])
def test_names_that_cannot_be_shown(refuse, name):
    refuse(header([key(name, 4, u32(1))]), CorruptFileError, "metadata key: expected")
    refuse(padded(header([ARCH], [tensor(name)])), CorruptFileError, "tensor name: expected")


# -- the tensor table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(), (1,) * 5, (1,) * 100])
def test_rank(refuse, dims):
    refuse(padded(header([ARCH], [tensor(dims=dims)])), CorruptFileError, f"rank of tensor t: expected 1 to 4, got {len(dims)}")


@pytest.mark.parametrize("dims", [(0,), (32, 0), (0, 32)])
def test_extent_of_zero(refuse, dims):
    refuse(padded(header([ARCH], [tensor(dims=dims)])), CorruptFileError, "extents of tensor t: expected all above 0")


@pytest.mark.parametrize("dims", [(1 << 40,), (1 << 63, 2), (HUGE,) * 4, (1 << 32, 1 << 32)])
def test_extents_beyond_the_file(refuse, dims):
    refuse(padded(header([ARCH], [tensor(dims=dims)])), CorruptFileError, r"expected a file of at least \d+ bytes.*tensor t")


@pytest.mark.parametrize(("type_id", "width", "block"), [(2, 33, 32), (8, 16, 32), (12, 128, 256), (14, 300, 256)])
def test_rows_that_are_no_whole_blocks(refuse, type_id, width, block):
    data = padded(header([ARCH], [tensor(dims=(width, 2), type_id=type_id)]), 4096)
    refuse(data, CorruptFileError, f"row length: expected a multiple of {block}, got {width}.*tensor t")


def test_offset_beyond_the_file(refuse):
    refuse(padded(header([ARCH], [tensor(offset=1 << 40)])), CorruptFileError, "expected a file of at least .*tensor t")
    refuse(padded(header([ARCH], [tensor(offset=HUGE - 31)])), CorruptFileError, "expected a file of at least .*tensor t")


def test_offset_that_is_not_aligned(refuse):
    refuse(padded(header([ARCH], [tensor(offset=4)]), 256), CorruptFileError, "offset: expected a multiple of 32, got 4.*tensor t")


def test_overlap(refuse):
    for offset in (0, 96):
        data = padded(header([ARCH], [tensor("a"), tensor("b", offset=offset)]), 256)
        refuse(data, CorruptFileError, "expected no overlap, got one with a .*tensor b")


@pytest.mark.parametrize("alignment", [0, 3, 33, (1 << 32) - 1])
def test_alignment_that_is_no_power_of_two(refuse, alignment):
    bad = key("general.alignment", 4, u32(alignment))
    refuse(padded(header([ARCH, bad], [tensor()])), CorruptFileError, f"alignment: expected a power of two, got {alignment}")


@pytest.mark.parametrize("value", [(8, text("32")), (7, b"\1"), (6, b"\0\0\0\x42"), (9, nested(2))])
def test_alignment_that_is_no_number(refuse, value):
    refuse(padded(header([ARCH, key("general.alignment", *value)], [tensor()])), CorruptFileError, "alignment: expected a power of two")


def test_alignment_beyond_the_file(refuse):
    refuse(padded(header([ARCH, key("general.alignment", 4, u32(1 << 31))], [tensor()])), CorruptFileError, "expected a file of at least")


@pytest.mark.parametrize("value", [(8, text("x")), (5, u32((1 << 32) - 1)), (9, nested(1))])
def test_split_count_that_is_no_count(refuse, value):
    refuse(padded(header([ARCH, key("split.count", *value)], [tensor()])), CorruptFileError, "split.count: expected a whole number")


def test_split_count_beyond_reason(refuse):
    refuse(padded(header([ARCH, key("split.count", 10, u64(HUGE))], [tensor()])), ModelNotFoundError, "expected a name like")


@pytest.mark.parametrize("kind", [kind for kind in GGMLQuantizationType if kind > 15 and kind != 30] + [9, 15])
def test_types_that_are_not_read_are_named(refuse, kind):
    name = GGMLQuantizationType(kind).name
    refuse(padded(header([ARCH], [tensor(), tensor("q", (256,), kind, 128)]), 4096), UnsupportedModelError, rf"got {name} \[tensor q\]")


@pytest.mark.parametrize(("type_id", "name"), [(4, "Q4_2"), (5, "Q4_3"), (31, "Q4_0_4_4"), (33, "Q4_0_8_8"), (36, "IQ4_NL_4_4")])
def test_retired_types_are_named(refuse, type_id, name):
    refuse(padded(header([ARCH], [tensor("q", (256,), type_id)])), UnsupportedModelError, rf"got {name} \(retired from GGUF\) \[tensor q\]")


def test_unknown_type(refuse):
    refuse(padded(header([ARCH], [tensor("q", (256,), 12345)])), UnsupportedModelError, r"got unknown \(id 12345\) \[tensor q\]")


# -- truncation, damage -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Bytes of a small model, where its data starts, and where its last tensor ends."""
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "m.gguf", n_layers=1, hidden=32, ffn=32, vocab=288, weight_type="Q4_0")
    file = GGUFFile.open(path)
    start = min(info.offset for info in file.tensors.values())
    return path.read_bytes(), start, max(info.offset + info.nbytes for info in file.tensors.values())


def test_truncation_at_every_offset_of_the_header(tiny):
    data, start, _ = tiny
    for n in range(start):
        try:
            head = read_header(data[:n], "m.gguf")
        except CorruptFileError as error:
            assert "m.gguf" in str(error)
        else:  # only the padding between header and data is missing
            assert n > start - head.alignment and n < head.data_start


def test_truncated_files_are_refused_before_any_data_is_read(tiny, refuse):
    data, start, end = tiny
    offsets = [1, 4, 8, 23, start - 40, start - 1, start, start + 1, end - 1]
    for n in offsets + random.Random(0).sample(range(1, end), 100):
        refuse(data[:n], CorruptFileError, "download it again")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
@example(b"GGUF" + u32(3) + u64(1) + u64(1))
def test_random_bytes_behind_the_magic(data):
    for version in (b"", u32(3), u32(3) + u64(1) + u64(1), u32(2) + u64(2) + u64(0)):
        try:
            head = read_header(b"GGUF" + version + data, "m.gguf")
        except ModelFileError:
            continue
        dict(head.metadata)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_headers_never_crash(tmp_path_factory, tiny, data):
    raw, start, _ = tiny
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 900) | st.integers(0, start - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 9, 127, 255]) | st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        file = GGUFFile.open(path)
    except ModelFileError as error:
        assert str(error).isprintable()
        return
    dict(file.metadata)
    for name in file.tensors:
        tensor = file.tensor(name)
        np.asarray(tensor if isinstance(tensor, np.ndarray) else tensor.dequantize())


def test_lies_about_sizes_allocate_nothing(tmp_path):
    path = tmp_path / "m.gguf"
    lies = [
        header(n_keys=1 << 40), header([ARCH], n_tensors=1 << 40), header([key("k", 8, u64(1 << 40))]),
        header([key("k", 9, u32(8) + u64(1 << 40))]), padded(header([ARCH], [tensor(dims=(1 << 40,))])),
    ]  # fmt: skip
    tracemalloc.start()
    try:
        for lie in lies:
            path.write_bytes(lie)
            with pytest.raises(CorruptFileError):
                GGUFFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
