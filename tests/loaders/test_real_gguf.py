"""The default model's own file against the gguf package, and how long its header takes."""

from time import perf_counter

import numpy as np
from gguf import GGUFReader, quants

from llamita.loaders.checkpoint import open_checkpoint
from llamita.loaders.gguf import GGUFFile


def best_of(n, work):
    """The fastest of n runs in seconds: what the code takes when nothing else disturbs it."""
    times = []
    for _ in range(n):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def test_every_tensor_dequantises_to_the_bits_of_the_gguf_package(real_model_path):
    with open_checkpoint(real_model_path) as checkpoint:
        tensors = GGUFReader(real_model_path).tensors
        assert checkpoint.tensor_names == tuple(tensor.name for tensor in tensors)
        for expected in tensors:
            got = checkpoint.tensor(expected.name)
            got = got if isinstance(got, np.ndarray) else got.dequantize()
            want = quants.dequantize(expected.data, expected.tensor_type).reshape(got.shape)
            np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), expected.name)


def test_what_the_file_says_about_itself(real_model_path):
    with open_checkpoint(real_model_path) as checkpoint:
        assert (checkpoint.architecture, checkpoint.file_type, checkpoint.rope_interleaved) == ("llama", "Q4_1", True)
        assert (checkpoint.n_params, checkpoint.size_bytes, checkpoint.file_bytes) == (134_515_008, 96_576_768, 98_362_432)
        assert "output.weight" not in checkpoint.tensor_names


def test_header_and_vocabulary_are_read_fast(real_model_path):
    assert best_of(3, lambda: GGUFFile.open(real_model_path)) <= 0.1
    files = iter([GGUFFile.open(real_model_path) for _ in range(3)])
    assert best_of(3, lambda: next(files).metadata["tokenizer.ggml.tokens"]) <= 0.05
