"""`hf:owner/repo[/file.gguf]` -> a path, through huggingface_hub and its own cache, tokens and settings."""

from __future__ import annotations

import errno
import inspect
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.errors import DownloadError, ModelNotFoundError
from .progress import OnProgress

_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+)|/(?P<file>.+))?")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_PREFERRED = "Q4_K_M"  # llama.cpp's choice where a repository holds several
_FOLDER_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*", "chat_template*"]


class HubName(NamedTuple):
    """The parts of `hf:owner/repo[:QUANT]` and `hf:owner/repo/file.gguf`; what was not given is ""."""

    repo: str
    quant: str
    file: str


def parse(name: str) -> HubName:
    """Split an `hf:` name. Raises ModelNotFoundError when it is not one."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ModelNotFoundError(f"{name!r}: not a hub name: expected hf:owner/repo, hf:owner/repo:QUANT or hf:owner/repo/file.gguf")
    return HubName(match["repo"], match["quant"] or "", match["file"] or "")


def choose(files: Sequence[str], quant: str = "") -> list[str]:
    """The files to fetch out of a repository's: every shard of one GGUF model, or [] when it has none.

    `quant` names the quantisation; without it Q4_K_M, else the first file in alphabetical order, is taken.
    Projectors and importance matrices are not models and are passed over.
    """
    models = sorted(file for file in files if file.lower().endswith(".gguf") and not _is_beside_the_model(file))
    heads = [file for file in models if (shard := _SHARD.search(file)) is None or shard[1] == "00001"]
    wanted = re.compile(rf"(?:^|[-._/]){re.escape(quant or _PREFERRED)}(?:[-._/]|$)", re.IGNORECASE)
    chosen = next((file for file in heads if wanted.search(file)), None)
    if chosen is None and not quant:
        chosen = next(iter(heads), None)
    return [] if chosen is None else _shards(chosen)


def fetch(name: str, on_progress: OnProgress | None = None, refresh: bool = False) -> Path:
    """Bring the model that `name` means into the hub's cache; returns the .gguf (its first shard) or the folder with safetensors.

    A named file that is cached is used as it is, unless `refresh` asks the hub for a newer one; what is cached also
    serves when the hub cannot be reached.
    Raises ModelNotFoundError when there is no such repository or file, DownloadError when it could not be fetched.
    """
    repo, quant, file = parse(name)
    try:
        if not refresh and (cached := _cached(repo, quant or _PREFERRED, file)):
            return cached
        if not file:
            files = _list_files(repo)
            chosen = choose(files, quant)
            if not chosen:
                return _fetch_folder(name, repo, quant, files, on_progress)
        else:
            chosen = _shards(file)
        paths = [_fetch_file(repo, part, on_progress) for part in chosen]
        return paths[0]
    except (DownloadError, ModelNotFoundError):
        raise
    except Exception as error:  # the hub's client and its HTTP library have several unrelated roots
        raise _explain(name, repo, error) from error


def _cached(repo: str, quant: str, file: str) -> Path | None:
    """The model in the hub's cache, when the name leaves no doubt about the file and all its shards are there."""
    folder = _snapshot(repo)
    if folder is None:
        return None
    chosen = _shards(file) if file else choose(_files_below(folder), quant)
    paths = [folder / part for part in chosen]
    return paths[0] if paths and all(path.is_file() for path in paths) else None


def _snapshot(repo: str) -> Path | None:
    """The repository's folder in the hub's cache, which may hold a part of its files; None when there is none."""
    from huggingface_hub import constants

    # The cache's layout is documented; the client's own look-up refuses a folder that lacks files nobody asked for.
    root = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    try:
        commit = (root / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = root / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def _files_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _is_beside_the_model(file: str) -> bool:
    return any(word in file.rsplit("/", 1)[-1].lower() for word in ("mmproj", "imatrix"))


def _shards(file: str) -> list[str]:
    """All files of the split that `file` belongs to, the first one first; [file] when it is whole."""
    shard = _SHARD.search(file)
    if shard is None:
        return [file]
    return [f"{file[: shard.start()]}-{index:05d}-of-{shard[2]}.gguf" for index in range(1, int(shard[2]) + 1)]


def _list_files(repo: str) -> list[str]:
    """The repository's files; what is cached of it when the hub cannot be reached."""
    import huggingface_hub

    try:
        return huggingface_hub.HfApi().list_repo_files(repo)
    except Exception as error:
        if not _is_unreachable(error):
            raise
        folder = _snapshot(repo)
        if folder is None:
            raise
        return _files_below(folder)


def _fetch_file(repo: str, file: str, on_progress: OnProgress | None) -> Path:
    import huggingface_hub

    return Path(huggingface_hub.hf_hub_download(repo, file, **_progress_arguments(huggingface_hub.hf_hub_download, on_progress)))


def _fetch_folder(name: str, repo: str, quant: str, files: Sequence[str], on_progress: OnProgress | None) -> Path:
    import huggingface_hub

    if quant or not any(file.endswith(".safetensors") for file in files):
        found = [file for file in files if file.endswith(".gguf")][:8]
        what = f"no {quant} .gguf file" if quant else "neither a .gguf nor a .safetensors file"
        raise ModelNotFoundError(f"{name}: {what} in {repo}: it has {', '.join(found) or 'none at all'}")
    arguments = _progress_arguments(huggingface_hub.snapshot_download, on_progress)
    return Path(huggingface_hub.snapshot_download(repo, allow_patterns=_FOLDER_PATTERNS, **arguments))


def _progress_arguments(function: Any, on_progress: OnProgress | None) -> dict[str, Any]:
    """A bar class that draws nothing and reports to `on_progress`, for versions of the hub's client that take one."""
    if "tqdm_class" not in inspect.signature(function).parameters:
        return {}
    from tqdm.auto import tqdm

    class Reporter(tqdm):  # type: ignore[misc,type-arg,unused-ignore]
        monitor_interval = 0  # no thread that redraws

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"file": io.StringIO(), "disable": False}))

        def display(self, *args: Any, **kwargs: Any) -> None:
            return None

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            if on_progress and self.unit == "B" and self.total:
                on_progress("download", int(self.n), int(self.total))
            return drawn

    return {"tqdm_class": Reporter}


def _is_unreachable(error: BaseException) -> bool:
    """Whether the error, or one that led to it, says that there was no connection."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if isinstance(seen, ConnectionError) or "Timeout" in name or name in ("ConnectError", "ProxyError", "OfflineModeIsEnabled"):
            return True
        if name == "ConnectionError":  # the HTTP library's own, which is no built-in ConnectionError
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _explain(name: str, repo: str, error: Exception) -> DownloadError | ModelNotFoundError:
    """One line about why the hub did not deliver: what happened, what to do."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return DownloadError(f"{name}: {repo} wants its licence accepted: do so on its page, log in with `hf auth login`, and try again")
    if "RepositoryNotFoundError" in kinds:
        return ModelNotFoundError(f"{name}: no repository {repo} on the hub (or it is private: log in with `hf auth login`)")
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return ModelNotFoundError(f"{name}: no such file in {repo}: name one of its .gguf files, or none to have one chosen")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DownloadError(f"{name}: the disk of the hub's cache is full: free some space, or set HF_HOME to a folder on another disk")
    if isinstance(error, PermissionError):
        return DownloadError(f"{name}: cannot write to the hub's cache ({error}): set HF_HOME to a folder that you can write to")
    if _is_unreachable(error) or "LocalEntryNotFoundError" in kinds:
        return DownloadError(f"{name}: the hub cannot be reached and the file is not cached: check the network and try again")
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return DownloadError(f"{name}: the hub's client failed: {type(error).__name__}: {first}")
