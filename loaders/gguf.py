"""GGUF files, memory-mapped: one file, or all shards of a split one.

    with GGUFFile.open("model.gguf") as file:
        file.metadata["general.architecture"]
        file.tensor("blk.0.attn_q.weight")           # QTensor looking into the mapped file
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from mmap import mmap
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..engine.errors import CorruptFileError, ModelNotFoundError, UnsupportedModelError
from ..quant.formats import FORMATS, format_by_id, type_label
from .gguf_header import Header, RawTensor, read_header
from .tensor_info import MappedFiles, Tensor, TensorInfo, open_map

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_DAMAGED = "the file is damaged or incomplete, download it again"
_MIXED = "the shards do not belong together, download them again"


class GGUFFile:
    """An open GGUF model. Everything that a header can get wrong has been checked; only reading the data is left.

    Attributes:
        path: the file that was asked for.
        version: 2 or 3.
        metadata: key -> value (of the first shard). It stays readable after `close`.
        tensors: name -> TensorInfo, in file order.
        file_bytes: size of the file, or of all shards.
    """

    def __init__(self, path: Path, parts: list[tuple[Path, mmap, Header]]) -> None:
        self.path = path
        self.version = parts[0][2].version
        self.metadata: Mapping[str, Any] = parts[0][2].metadata
        self.file_bytes = sum(len(data) for _, data, _ in parts)
        tensors: dict[str, TensorInfo] = {}
        for number, (part, data, header) in enumerate(parts):
            for info in _check_tensors(part, len(data), header, number):
                if info.name in tensors:
                    raise CorruptFileError(f"{part}: tensor names: expected each in one shard, got {info.name!r} in two; {_DAMAGED}")
                tensors[info.name] = info
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._files = MappedFiles([(part, data) for part, data, _ in parts])

    @classmethod
    def open(cls, path: str | PathLike[str]) -> GGUFFile:
        """Map `path` (any shard of a split model: all are opened) and check it.

        Raises ModelNotFoundError (no such file, missing shard), CorruptFileError (the bytes contradict themselves or the file's
        size) or UnsupportedModelError (version, byte order, or a tensor type that is not read, named with the tensor).
        """
        path = Path(path)
        data = open_map(path)
        header = read_header(data, str(path))
        count = _shard_count(path, header)
        if count == 1:
            return cls(path, [(path, data, header)])
        return cls(path, _open_shards(path, count))

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`, without a copy: read-only float32 array for F32, QTensor for other formats. KeyError if absent."""
        return self._files.tensor(self.tensors[name])

    def release_pages(self) -> None:
        """Take what was read so far out of this process's memory; it is read again when somebody looks at it."""
        self._files.release_pages()

    def close(self) -> None:
        """Let go of the file. Tensors handed out before stay valid; asking for others raises ClosedError."""
        self._files.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.tensors)} tensors)"


def _check_tensors(path: Path, size: int, header: Header, number: int) -> list[TensorInfo]:
    """The tensor table with formats and absolute offsets, each range inside the file and none on top of another."""
    infos = [_tensor_info(path, raw, header, number) for raw in header.tensors]
    end, before = header.data_start, ""
    for info in sorted(infos, key=lambda info: info.offset):
        where = f"[tensor {info.name}, offset {info.offset}]"
        if info.offset < end:
            raise CorruptFileError(f"{path}: tensor data: expected no overlap, got one with {before} {where}; {_DAMAGED}")
        end, before = info.offset + info.nbytes, info.name
        if end > size:
            raise CorruptFileError(f"{path}: tensor data: expected a file of at least {end} bytes, got {size} {where}; {_DAMAGED}")
    return infos


def _tensor_info(path: Path, raw: RawTensor, header: Header, number: int) -> TensorInfo:
    fmt = format_by_id(raw.type_id)
    if fmt is None:
        what = f"expected one of {' '.join(FORMATS)}, got {type_label(raw.type_id)} [tensor {raw.name}]"
        raise UnsupportedModelError(f"{path}: tensor type: {what}; choose another quantisation of this model")
    where = f"[tensor {raw.name}, offset {raw.at}]"
    if raw.shape[-1] % fmt.block_size:
        got = f"{raw.shape[-1]} for {fmt.name}"
        raise CorruptFileError(f"{path}: row length: expected a multiple of {fmt.block_size}, got {got} {where}; {_DAMAGED}")
    if raw.offset % header.alignment:
        raise CorruptFileError(f"{path}: tensor offset: expected a multiple of {header.alignment}, got {raw.offset} {where}; {_DAMAGED}")
    nbytes = fmt.row_bytes(raw.shape[-1])
    for extent in raw.shape[:-1]:
        nbytes *= extent
    return TensorInfo(raw.name, raw.shape, fmt, header.data_start + raw.offset, nbytes, number)


# -- split models ---------------------------------------------------------------------------------------------------------


def _shard_count(path: Path, header: Header) -> int:
    count = header.metadata.get("split.count", 1)
    if type(count) is not int or count < 0:
        raise CorruptFileError(f"{path}: split.count: expected a whole number, got {count!r}; {_DAMAGED}")
    return max(1, count)


def _open_shards(path: Path, count: int) -> list[tuple[Path, mmap, Header]]:
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        what = f"expected a name like NAME-00001-of-{count:05d}.gguf, got {path.name!r}"
        raise ModelNotFoundError(f"{path}: split model: {what}; give the shards their names back")
    paths = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        what = missing[0] + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise ModelNotFoundError(f"{path}: split model: expected {count} shards in one folder, missing {what}; download all of them")
    parts = []
    for number, part in enumerate(paths):
        data = open_map(part)
        header = read_header(data, str(part))
        said = [header.metadata.get(key) for key in ("split.no", "split.count")]
        if said != [number, count]:
            raise CorruptFileError(f"{part}: split.no, split.count: expected {[number, count]}, got {said}; {_MIXED}")
        parts.append((part, data, header))
    total, listed = sum(len(header.tensors) for _, _, header in parts), parts[0][2].metadata.get("split.tensors.count")
    if listed is not None and listed != total:
        raise CorruptFileError(f"{path}: split.tensors.count: expected {listed} tensors in all shards, got {total}; {_MIXED}")
    return parts
