"""Checkpoint: a model's files, opened, whatever format they have. Names and metadata keys are GGUF's throughout.

    with open_checkpoint("model.gguf") as checkpoint:            # or a Hugging Face folder
        checkpoint.metadata["llama.block_count"]
        checkpoint.tensor("blk.0.attn_q.weight")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from ..engine.errors import CorruptFileError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from .gguf import GGUFFile
from .safetensors import INDEX, SINGLE, SafetensorsFolder
from .tensor_info import Tensor, TensorInfo

# GGUF does not say how rope pairs the rows of q and k: it goes with the architecture. These pair halves (i, i + D/2);
# llama and all others pair neighbours (2i, 2i + 1), their rows having been reordered at conversion.
HALF_SPLIT_ROPE = frozenset(
    """bert codeshell dbrx exaone falcon gemma gemma2 gemma3 gptneox grok jina-bert-v2 nemotron nomic-bert olmo2 olmoe phi2 phi3 phimoe
    plamo qwen qwen2 qwen2moe qwen3 qwen3moe stablelm starcoder2""".split()
)

_FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K - Medium", 11: "Q3_K - Small",
    12: "Q3_K - Medium", 13: "Q3_K - Large", 14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium",
    18: "Q6_K", 21: "Q2_K - Small", 32: "BF16",
}  # fmt: skip


class Source(Protocol):
    """What a kind of model file has to offer."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    file_bytes: int

    def tensor(self, name: str) -> Tensor:
        """A tensor without a copy; KeyError if absent."""

    def release_pages(self) -> None:
        """Take what was read so far out of this process's memory."""

    def close(self) -> None:
        """Let go of the files."""


class Checkpoint:
    """An open model.

    Attributes:
        path: the file or folder.
        architecture: GGUF's name, e.g. "llama".
        metadata: GGUF-style key -> value; readable after `close`.
        tensors: GGUF-style name -> TensorInfo (shape, format), in file order.
        rope_interleaved: whether rope pairs neighbouring rows of q and k (2i, 2i + 1) instead of halves.
        tokenizer_json: a Hugging Face tokenizer.json, or None where metadata holds the vocabulary.
        file_bytes: bytes of all files.
    """

    def __init__(self, source: Source, rope_interleaved: bool | None = None, tokenizer_json: Path | None = None) -> None:
        self._source = source
        self.path = source.path
        self.metadata = source.metadata
        self.tensors = source.tensors
        self.file_bytes = source.file_bytes
        self.tokenizer_json = tokenizer_json
        architecture = source.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture.isprintable():
            got = "nothing" if architecture is None else repr(architecture)
            raise CorruptFileError(f"{self.path}: general.architecture: expected a name, got {got}; the file is no complete model")
        self.architecture = architecture
        self.rope_interleaved = architecture not in HALF_SPLIT_ROPE if rope_interleaved is None else rope_interleaved

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors, in file order."""
        return tuple(self.tensors)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def n_params(self) -> int:
        """Number of weights in all tensors."""
        return sum(info.size for info in self.tensors.values())

    @property
    def file_type(self) -> str:
        """How the model is quantised, as llama.cpp's tools call it: "Q4_0", "Q4_K - Medium", "all F32"."""
        number = self.metadata.get("general.file_type")
        if type(number) is int and number in _FILE_TYPES:
            return _FILE_TYPES[number]
        weights: dict[str, int] = {}
        for info in self.tensors.values():
            weights[info.format.name] = weights.get(info.format.name, 0) + info.size
        if not weights:
            return "no tensors"
        most = max(weights, key=lambda name: weights[name])
        return "all F32" if most == "F32" else most

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`, without a copy: read-only float32 array for F32, QTensor for every other format.

        Raises CorruptFileError if the model has none of that name, ClosedError after `close`.
        """
        if name not in self.tensors:
            raise CorruptFileError(f"{self.path}: tensors: expected {name}, got no tensor of that name; the file is no complete model")
        return self._source.tensor(name)

    def release_pages(self) -> None:
        """Take what was read so far out of this process's memory; it is read again when somebody looks at it."""
        self._source.release_pages()

    def close(self) -> None:
        """Let go of the files. Tensors handed out before stay valid."""
        self._source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {self.architecture}, {len(self.tensors)} tensors)"


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open a model: a .gguf file (any shard of a split), a folder with safetensors, or a folder that holds one .gguf.

    Raises ModelNotFoundError, CorruptFileError or UnsupportedModelError with a line that names the path and says what to do.
    """
    path = Path(path)
    if path.suffix == ".safetensors" and path.is_file():
        return _open_safetensors(path.parent)
    if path.is_dir():
        if (path / SINGLE).is_file() or (path / INDEX).is_file():
            return _open_safetensors(path)
        path = _only_gguf(path)
    return Checkpoint(GGUFFile.open(path))


def _open_safetensors(folder: Path) -> Checkpoint:
    source = SafetensorsFolder.open(folder)
    return Checkpoint(source, source.rope_interleaved, source.tokenizer_json)


def _only_gguf(folder: Path) -> Path:
    """The one GGUF model in a folder; the shards of a split model count as one."""
    try:
        files = sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise ModelFileError(f"{folder}: folder: cannot be read: {error.strerror}") from error
    ggufs = [file for file in files if file.suffix == ".gguf"]
    models = {re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"\1", file.name): file for file in reversed(ggufs)}
    if len(models) == 1:
        return next(iter(models.values()))
    if models:
        names = ", ".join(file.name for file in sorted(models.values())[:5])
        raise ModelNotFoundError(f"{folder}: model: expected one .gguf in the folder, got {len(models)} ({names}); give the one to use")
    pickles = [file.name for file in files if file.suffix in (".bin", ".pth", ".pt")]
    if pickles:
        raise UnsupportedModelError(f"{folder}: model: expected safetensors or GGUF, got {pickles[0]}; convert it first")
    raise ModelNotFoundError(f"{folder}: model: expected a .gguf, or {SINGLE} with config.json, got neither in the folder; check the path")
