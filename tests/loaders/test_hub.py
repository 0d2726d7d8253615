"""hf: names, against a stand-in for the hub. The client reads its settings at import, so each fetch is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import HubStandIn, serve

from llamita.engine.errors import ModelNotFoundError
from llamita.loaders import hub

REPOS = {
    "owner/several": {
        "README.md": b"text",
        "mmproj-model.gguf": b"projector",
        "model-Q4_K_M.gguf": b"four bits" * 1000,
        "model-Q8_0.gguf": b"eight bits",
        "sub/other-F16.gguf": b"sixteen bits",
    },
    "owner/split": {"m-00002-of-00002.gguf": b"second", "m-00001-of-00002.gguf": b"first"},
    "owner/folder": {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}", "pytorch_model.bin": b"unwanted"},
    "owner/empty": {"README.md": b"text"},
    "owner/gated": {},
}

FETCH = """
import json, sys, time
if "--hasty" in sys.argv:  # the client waits between tries: 23 seconds in all
    time.sleep = lambda seconds: None
from llamita.engine.errors import LlamitaError
from llamita.loaders.library import resolve
steps = []
try:
    answer = {"path": str(resolve(sys.argv[1], lambda *step: steps.append(step)))}
except LlamitaError as error:
    answer = {"error": type(error).__name__, "message": str(error)}
print(json.dumps(answer | {"steps": steps}))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[HubStandIn]:
    with serve(REPOS) as running:
        running.gated.add("owner/gated")
        yield running


def fetch(name: str, endpoint: str, home: Path, **extra: str) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING")) and "proxy" not in key.lower()}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **extra}
    done = subprocess.run([sys.executable, "-c", FETCH, name, "--hasty"], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    answer["stderr"] = done.stderr
    return answer


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("hf:owner/several", "model-Q4_K_M.gguf", b"four bits" * 1000),
        ("hf:owner/several:q8_0", "model-Q8_0.gguf", b"eight bits"),
        ("hf:owner/several/sub/other-F16.gguf", "other-F16.gguf", b"sixteen bits"),
        ("hf:owner/split", "m-00001-of-00002.gguf", b"first"),
    ],
)
def test_fetch(server: HubStandIn, tmp_path: Path, name: str, file: str, content: bytes) -> None:
    answer = fetch(name, server.url, tmp_path)
    path = Path(answer["path"])
    assert path.name == file and path.read_bytes() == content
    assert path.is_relative_to(tmp_path)
    assert answer["stderr"] == ""  # a library prints nothing
    assert all(stage == "download" for stage, _, _ in answer["steps"])


def test_progress_reaches_the_end(server: HubStandIn, tmp_path: Path) -> None:
    steps = fetch("hf:owner/several", server.url, tmp_path)["steps"]
    assert not steps or steps[-1][1:] == [9000, 9000]


def test_cached_file_starts_without_asking_the_hub(tmp_path: Path) -> None:
    with serve(REPOS) as server:
        for name in ("hf:owner/several", "hf:owner/several:Q8_0", "hf:owner/split/m-00001-of-00002.gguf"):
            fetch(name, server.url, tmp_path)
            server.seen.clear()
            fetch(name, server.url, tmp_path)
            assert server.seen == []


def test_another_cached_file_is_not_taken_for_the_default(server: HubStandIn, tmp_path: Path) -> None:
    fetch("hf:owner/several:Q8_0", server.url, tmp_path)
    assert Path(fetch("hf:owner/several", server.url, tmp_path)["path"]).name == "model-Q4_K_M.gguf"


def test_every_shard_is_fetched(server: HubStandIn, tmp_path: Path) -> None:
    first = Path(fetch("hf:owner/split", server.url, tmp_path)["path"])
    assert first.with_name("m-00002-of-00002.gguf").read_bytes() == b"second"


def test_folder_with_safetensors(server: HubStandIn, tmp_path: Path) -> None:
    folder = Path(fetch("hf:owner/folder", server.url, tmp_path)["path"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("name", ["hf:owner/several", "hf:owner/several/model-Q4_K_M.gguf", "hf:owner/split", "hf:owner/folder"])
def test_cached_file_serves_when_the_hub_is_away(tmp_path: Path, name: str) -> None:
    with serve(REPOS) as server:
        there = fetch(name, server.url, tmp_path)["path"]
        url = server.url
    assert fetch(name, url, tmp_path)["path"] == there
    assert fetch(name, url, tmp_path, HF_HUB_OFFLINE="1")["path"] == there


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("hf:owner/nothing", "ModelNotFoundError", ["no repository owner/nothing"]),
        ("hf:owner/several/none.gguf", "ModelNotFoundError", ["no such file"]),
        ("hf:owner/several:Q2_K", "ModelNotFoundError", ["no Q2_K", "model-Q4_K_M.gguf"]),
        ("hf:owner/empty", "ModelNotFoundError", ["neither a .gguf nor a .safetensors"]),
        ("hf:owner/gated", "DownloadError", ["licence", "log in"]),
        ("hf:owner", "ModelNotFoundError", ["expected hf:owner/repo"]),
    ],
)
def test_errors_are_one_line(server: HubStandIn, tmp_path: Path, name: str, error: str, words: list[str]) -> None:
    answer = fetch(name, server.url, tmp_path)
    assert answer["error"] == error, answer
    assert [word for word in words if word not in answer["message"]] == [] and "\n" not in answer["message"]


@pytest.mark.parametrize("name", ["hf:owner/several", "hf:owner/several/model-Q8_0.gguf"])
def test_unreachable_hub(tmp_path: Path, name: str) -> None:
    with serve(REPOS) as server:
        url = server.url
    answer = fetch(name, url, tmp_path)
    assert answer["error"] == "DownloadError" and "cannot be reached" in answer["message"], answer


@pytest.mark.parametrize(
    ("files", "quant", "chosen"),
    [
        (["b-Q8_0.gguf", "a-F16.gguf"], "", ["a-F16.gguf"]),
        (["b-Q8_0.gguf", "a-F16.gguf"], "Q8_0", ["b-Q8_0.gguf"]),
        (["m-IQ4_K_M2.gguf", "m.Q4_K_M.gguf"], "", ["m.Q4_K_M.gguf"]),
        (["m-Q4_K_M-00001-of-00003.gguf", "m-Q4_K_M-00002-of-00003.gguf", "m-Q4_K_M-00003-of-00003.gguf"], "q4_k_m", None),
        (["mmproj-F16.gguf", "x.imatrix.gguf", "README.md"], "", []),
        (["Q4_K_M/m-1.gguf", "F16/m-1.gguf"], "", ["Q4_K_M/m-1.gguf"]),
    ],
)
def test_choice(files: list[str], quant: str, chosen: list[str] | None) -> None:
    assert hub.choose(files, quant) == (files if chosen is None else chosen)


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:a b/c", "hf:owner/repo/", "hf:/owner/repo", "owner/repo"])
def test_malformed_names(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="hf:owner/repo"):
        hub.parse(name)
