"""A GGUF file of random weights in the shapes of a larger model: to measure speed where the real file is not at hand.

    python benchmarks/shaped_model.py models/1b.Q4_0.gguf --shape llama-3.2-1b --type Q4_0
    python benchmarks/shaped_model.py models/tall.Q4_K.gguf --shape llama-3.2-1b --layers 2 --ffn 14336 --type Q4_K

Every matrix has the type that is asked for (--embedding-type differs, if given); norms are ones. Blocks are random bytes
with scales such that weights have mean about 0 and standard deviation 0.02, so that nothing overflows and no arithmetic
meets NaN. The file has no tokenizer (both engines load it and take token ids) and ties its output to the embedding where
the original does. Written as a stream: memory stays small whatever the size.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray

DEVIATION = 0.02  # of weights, as trained ones have
_PIECE = 16 << 20  # bytes that are made at once


@dataclass(frozen=True)
class Shape:
    """Numbers of a LLaMA-like model; tied: the output uses the embedding."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    tied: bool


SHAPES = {
    "smollm2-135m": Shape(576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5, True),
    "smollm2-1.7b": Shape(2048, 8192, 24, 32, 32, 64, 49152, 8192, 1.3e5, True),
    "tinyllama-1.1b": Shape(2048, 5632, 22, 32, 4, 64, 32000, 2048, 1e4, False),
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, True),
    "llama-3.2-3b": Shape(3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5, True),
    "llama-3.1-8b": Shape(4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5, False),
}


@dataclass(frozen=True)
class Halves:
    """Where a block keeps its float16 factors: offset of the scale; of the minimum, and that minimum for a scale of 1."""

    scale: int
    minimum: int | None = None
    centre: float = 0.0


# Minima put the mean of scale * code - minimum at 0 when all codes and sub-scales are equally likely.
HALVES = {
    "Q4_0": Halves(0),
    "Q4_1": Halves(0, 2, -7.5),
    "Q5_0": Halves(0),
    "Q5_1": Halves(0, 2, -15.5),
    "Q8_0": Halves(0),
    "Q2_K": Halves(80, 82, 1.5),
    "Q3_K": Halves(108),
    "Q4_K": Halves(0, 2, 7.5),
    "Q5_K": Halves(0, 2, 15.5),
    "Q6_K": Halves(208),
}
FLOATS = ("F32", "F16", "BF16")


class Blocks:
    """Random blocks of one type."""

    def __init__(self, kind: str, random: np.random.Generator):
        self.kind, self._random = GGMLQuantizationType[kind], random
        self._weights, self.n_bytes = GGML_QUANT_SIZES[self.kind]
        self._scale = 1.0
        if kind in HALVES:
            self._scale = DEVIATION / float(quants.dequantize(self._quantised(4096).reshape(-1), self.kind).std())

    def make(self, n: int) -> NDArray[np.uint8]:
        """`n` blocks, uint8 [n * block bytes]."""
        if self.kind.name in HALVES:
            return self._quantised(n).reshape(-1)
        values = self._random.standard_normal(n * self._weights, np.float32) * np.float32(DEVIATION)
        if self.kind.name == "F16":
            return values.astype(np.float16).view(np.uint8)
        return values.view(np.uint8) if self.kind.name == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)

    def _quantised(self, n: int) -> NDArray[np.uint8]:
        """`n` blocks, uint8 [n, block bytes]."""
        halves = HALVES[self.kind.name]
        blocks = np.frombuffer(self._random.bytes(n * self.n_bytes), np.uint8).reshape(n, self.n_bytes).copy()

        def put(offset: int, values: NDArray[np.float64]) -> None:
            blocks[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(n, 2)

        if halves.minimum is None:  # codes reach further down than up: scales of both signs balance that
            put(halves.scale, self._scale * self._random.choice((-1.0, 1.0), n))
        else:
            put(halves.scale, np.full(n, self._scale))
            put(halves.minimum, np.full(n, self._scale * halves.centre))
        return blocks

    def stream(self, n_weights: int) -> Iterator[NDArray[np.uint8]]:
        """The bytes of `n_weights` weights, piece by piece."""
        left = n_weights // self._weights
        at_once = max(1, _PIECE // self.n_bytes)
        while left:
            yield self.make(min(left, at_once))
            left -= min(left, at_once)


def matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of every matrix, in file order; "norm" vectors have one row."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd", shape.vocab, shape.hidden
    for i in range(shape.layers):
        at = f"blk.{i}."
        yield at + "attn_norm", 1, shape.hidden
        yield at + "attn_q", q, shape.hidden
        yield at + "attn_k", kv, shape.hidden
        yield at + "attn_v", kv, shape.hidden
        yield at + "attn_output", shape.hidden, q
        yield at + "ffn_norm", 1, shape.hidden
        yield at + "ffn_gate", shape.ffn, shape.hidden
        yield at + "ffn_up", shape.ffn, shape.hidden
        yield at + "ffn_down", shape.hidden, shape.ffn
    yield "output_norm", 1, shape.hidden
    if not shape.tied:
        yield "output", shape.vocab, shape.hidden


def _header(writer: GGUFWriter, shape: Shape, name: str) -> None:
    writer.add_name(name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")


def write_model(path: Path, name: str, shape: Shape, kind: str, embedding: str, seed: int = 0) -> None:
    """Write a model called `name`. Raises ValueError when rows are no whole number of blocks.

    kind, embedding: type of the matrices, and of the embedding (and of an output of its own).
    """
    random = np.random.default_rng(seed)
    blocks = {of: Blocks(of, random) for of in sorted({kind, embedding})}
    writer = GGUFWriter(path, "llama")
    _header(writer, shape, name)
    for tensor, rows, columns in matrices(shape):
        if rows == 1:
            writer.add_tensor_info(f"{tensor}.weight", (columns,), np.dtype(np.float32), 4 * columns, GGMLQuantizationType.F32)
            continue
        of = blocks[_type_of(tensor, kind, embedding)]
        block, block_bytes = GGML_QUANT_SIZES[of.kind]
        if columns % block:
            raise ValueError(f"{tensor}: columns: expected a multiple of {block} for {of.kind.name}, got {columns}")
        row_bytes = columns // block * block_bytes
        writer.add_tensor_info(f"{tensor}.weight", (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, of.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:

        def align() -> None:
            file.write(b"\0" * (-file.tell() % writer.data_alignment))

        for tensor, rows, columns in matrices(shape):
            align()
            if rows == 1:
                file.write(np.ones(columns, np.float32).tobytes())
                continue
            for piece in blocks[_type_of(tensor, kind, embedding)].stream(rows * columns):
                file.write(piece.data)
        align()


def _type_of(tensor: str, kind: str, embedding: str) -> str:
    return embedding if tensor in ("token_embd", "output") else kind


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    types = (*FLOATS, *HALVES)
    add("path", type=Path, help="the file to write")
    add("--shape", choices=SHAPES, default="llama-3.2-1b", help="where the numbers come from [default: %(default)s]")
    add("--type", choices=types, default="Q4_0", help="of every matrix [default: %(default)s]")
    add("--embedding-type", choices=types, help="of the embedding, and of an output of its own [default: as --type]")
    add("--seed", type=int, default=0)
    numbers = [field.name for field in fields(Shape) if field.name not in ("tied", "rope_base")]
    for name in numbers:
        add(f"--{name.replace('_', '-')}", type=int, help="instead of the shape's")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in numbers if getattr(options, name) is not None}
    shape = replace(SHAPES[options.shape], **given)
    part = options.path.with_name(options.path.name + ".part")
    started = time.perf_counter()
    try:
        options.path.parent.mkdir(parents=True, exist_ok=True)
        write_model(part, options.path.stem, shape, options.type, options.embedding_type or options.type, options.seed)
        os.replace(part, options.path)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {options.path}: {error}")
    finally:
        part.unlink(missing_ok=True)
    print(f"{options.path}: {options.path.stat().st_size / 2**20:.1f} MiB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
