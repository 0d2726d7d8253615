"""What a model file says about one tensor, whatever kind of file it is."""

from __future__ import annotations

import mmap as mmap_module
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.errors import ClosedError, CorruptFileError, ModelFileError, ModelNotFoundError
from ..quant.formats import Format
from ..quant.qtensor import QTensor

Tensor: TypeAlias = "npt.NDArray[np.float32] | QTensor"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header describes it, checked against the file.

    Attributes:
        name: GGUF-style name, e.g. "blk.0.attn_q.weight".
        shape: row-major; the last axis is the one that is contiguous (and cut into blocks).
        format: how the weights are stored.
        offset: first byte of the data, from the start of its file.
        nbytes: length of the data.
        file: which of the model's files holds it.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    nbytes: int
    file: int = 0

    @property
    def size(self) -> int:
        """Number of weights."""
        return prod(self.shape)


class MappedFiles:
    """The memory maps of a model's files. Closing forgets them; memory goes back when the last tensor that looks into it is gone."""

    def __init__(self, maps: list[tuple[Path, mmap]]) -> None:
        self._maps: list[tuple[Path, mmap]] | None = maps

    def tensor(self, info: TensorInfo) -> Tensor:
        """The weights of `info` without a copy: float32 array for F32 (read only), QTensor for every other format."""
        if self._maps is None:
            raise ClosedError(f"{info.name}: the model's file was closed; open it again to read tensors")
        data: Any = self._maps[info.file][1]
        if info.format.name == "F32":
            flat = np.frombuffer(data, info.format.layout, info.size, info.offset).reshape(info.shape)
            return flat if flat.flags.aligned and flat.dtype == np.float32 else flat.astype(np.float32)
        rows = prod(info.shape[:-1])
        blocks = np.frombuffer(data, np.uint8, info.nbytes, info.offset).reshape(rows, -1)
        return QTensor(info.format, info.shape, blocks, info.name)

    def release_pages(self) -> None:
        """Take what was read so far out of this process's memory; it is read again when somebody looks at it."""
        for _, data in self._maps or ():
            if hasattr(mmap_module, "MADV_DONTNEED"):  # not on Windows
                data.madvise(mmap_module.MADV_DONTNEED)

    def close(self) -> None:
        """Forget the maps. Tensors handed out before stay valid."""
        self._maps = None


def open_map(path: Path) -> mmap:
    """Map a regular file for reading. Raises ModelNotFoundError, CorruptFileError (empty) or ModelFileError (unreadable)."""
    try:
        if path.is_dir():
            raise ModelFileError(f"{path}: model file: expected a file, got a folder; give the file in it")
        if path.exists() and not path.is_file():
            raise ModelFileError(f"{path}: model file: expected a regular file, got a device or pipe; save it to disk first")
        with open(path, "rb") as file:
            if file.seek(0, 2) == 0:
                raise CorruptFileError(f"{path}: model file: expected a model, got an empty file; download it again")
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"{path}: no such file; check the path, or see `llamita models` for models known by name") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"{path}: model file: cannot be read: {reason}") from error
