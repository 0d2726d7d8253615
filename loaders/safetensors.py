"""Hugging Face folders: config.json, model.safetensors (or shards with an index), tokenizer.json.

They are presented as a GGUF file would be: tensor names and metadata keys are GGUF's, so that models know one vocabulary.
Weights are mapped and stay [out, in] and in their own type; q and k rows keep the half-split order of Hugging Face.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from mmap import mmap
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.errors import CorruptFileError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from ..quant.formats import FORMATS
from .hf_config import HfConfig, read_json
from .tensor_info import MappedFiles, Tensor, TensorInfo, open_map

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_ROPE_FREQS = "rope_freqs.weight"


class SafetensorsFolder:
    """An open Hugging Face folder.

    Attributes:
        path: the folder.
        metadata: GGUF-style keys made from config.json and its neighbours.
        tensors: GGUF-style name -> TensorInfo.
        file_bytes: size of the weight files.
        tokenizer_json: path of tokenizer.json, or None.
        rope_interleaved: config.json's own word; False unless it says otherwise.
    """

    def __init__(self, path: Path, config: HfConfig, maps: list[tuple[Path, mmap]]) -> None:
        self.path = path
        self.metadata: Mapping[str, Any] = MappingProxyType(config.metadata())
        self.rope_interleaved = config.rope_interleaved
        self.file_bytes = sum(len(data) for _, data in maps)
        tokenizer = path / "tokenizer.json"
        self.tokenizer_json = tokenizer if tokenizer.is_file() else None
        self._files = MappedFiles(maps)
        self._computed: dict[str, npt.NDArray[np.float32]] = {}
        tensors: dict[str, TensorInfo] = {}
        for number, (file, data) in enumerate(maps):
            for info in _tensor_infos(file, data, number, config):
                if info.name in tensors:
                    raise CorruptFileError(f"{file}: tensors: expected each once, got another {info.name}; download the model again")
                tensors[info.name] = info
        self._settle_output(tensors, config)
        factors = config.rope_factors()
        if factors is not None:
            self._computed[_ROPE_FREQS] = factors
            tensors[_ROPE_FREQS] = TensorInfo(_ROPE_FREQS, factors.shape, FORMATS["F32"], 0, factors.nbytes, -1)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> SafetensorsFolder:
        """Map the weights of a folder and check them.

        Raises ModelNotFoundError (no config.json, no weights, a missing shard), CorruptFileError (contradictions) or
        UnsupportedModelError (an architecture, activation, rope scaling or tensor type that is not run, named).
        """
        path = Path(folder)
        config = HfConfig.read(path)
        return cls(path, config, [(file, open_map(file)) for file in _weight_files(path)])

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`, without a copy: read-only float32 array for F32, QTensor for F16 and BF16. KeyError if absent."""
        if name in self._computed:
            return self._computed[name]
        return self._files.tensor(self.tensors[name])

    def release_pages(self) -> None:
        """Take what was read so far out of this process's memory; it is read again when somebody looks at it."""
        self._files.release_pages()

    def close(self) -> None:
        """Let go of the files. Tensors handed out before stay valid; asking for others raises ClosedError."""
        self._files.close()

    def _settle_output(self, tensors: dict[str, TensorInfo], config: HfConfig) -> None:
        """Tied models have no output.weight (GGUF's convention), even when the file holds a copy."""
        if config.tied is True:
            tensors.pop("output.weight", None)
        elif config.tied is False and "output.weight" not in tensors:
            raise CorruptFileError(f"{self.path}: tensors: expected lm_head.weight (the config says not tied), got none; download it again")


def _weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights, shards in the order of their names."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / SINGLE
        if not single.is_file():
            raise ModelNotFoundError(f"{folder}: weights: expected {SINGLE} or {INDEX}, got neither; download the model again")
        return [single]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFileError(f"{index}: weight_map: expected tensor names and their files, got {type(weight_map).__name__}")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        # An index must not lead out of its folder.
        if Path(name).name != name or "\\" in name:
            raise CorruptFileError(f"{index}: weight_map: expected names of files in the same folder, got {name!r}")
        if not (folder / name).is_file():
            raise ModelNotFoundError(f"{folder}: weights: expected {len(names)} shards, missing {name}; download all of them")
    return [folder / name for name in names]


def _tensor_infos(file: Path, data: mmap, number: int, config: HfConfig) -> Iterator[TensorInfo]:
    """The tensors of one file that the model knows, ranges checked by the safetensors package."""
    start, header = _header(file, data)
    for name, entry in header.items():
        if name == "__metadata__" or name.endswith(".rotary_emb.inv_freq"):
            continue
        mapped = config.gguf_name(name)
        if mapped is None:
            raise UnsupportedModelError(f"{file}: tensor: expected one of a {config.architecture} model, got {name!r}; convert it to GGUF")
        fmt = FORMATS.get(entry["dtype"])
        if fmt is None or fmt.block_size != 1:
            raise UnsupportedModelError(f"{file}: tensor type: expected F32, F16 or BF16, got {entry['dtype']} [tensor {name}]")
        shape = tuple(int(extent) for extent in entry["shape"])
        if not shape or 0 in shape:
            raise CorruptFileError(f"{file}: shape: expected extents above 0, got {list(shape)} [tensor {name}]")
        first, end = entry["data_offsets"]
        yield TensorInfo(mapped, shape, fmt, start + first, end - first, number)


def _header(file: Path, data: mmap) -> tuple[int, dict[str, Any]]:
    """Where the data starts, and the header's entries."""
    from safetensors import SafetensorError, safe_open

    try:
        # Checks the header's length and JSON, that sizes match shapes, that ranges neither overlap nor leave the file.
        with safe_open(file, framework="np"):
            pass
    except SafetensorError as error:
        raise CorruptFileError(f"{file}: safetensors header: {error}; the file is damaged or incomplete, download it again") from error
    except OSError as error:
        raise ModelFileError(f"{file}: model file: cannot be read: {error}") from error
    length = int.from_bytes(data[:8], "little")
    return 8 + length, json.loads(data[8 : 8 + length])
