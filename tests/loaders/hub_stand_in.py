"""A stand-in for the Hugging Face hub on 127.0.0.1: the few routes that its client needs to list and fetch files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubStandIn(ThreadingHTTPServer):
    """Serves `repos`: repository -> file name -> bytes. Notes each request in `seen`; `gated` repositories refuse."""

    daemon_threads = True

    def __init__(self, repos: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos = repos
        self.gated: set[str] = set()
        self.seen: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._api("/".join(parts[2:4]), parts[4:])
        if len(parts) > 4 and parts[2] == "resolve":
            return self._file("/".join(parts[:2]), "/".join(parts[4:]))
        return self._send(404, b"", {})

    def _refused(self, repo: str) -> bool:
        if repo in self.server.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this repository is restricted"})
        elif repo not in self.server.repos:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        else:
            return False
        return True

    def _api(self, repo: str, rest: list[str]) -> None:
        if self._refused(repo):
            return
        files = self.server.repos[repo]
        if rest[:1] == ["tree"]:
            answer: object = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()} for name, data in files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in files]
            answer = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False, "downloads": 0}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, name: str) -> None:
        if self._refused(repo):
            return
        data = self.server.repos[repo].get(name)
        headers = {"X-Repo-Commit": COMMIT}
        if data is None:
            return self._send(404, b"", headers | {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        headers["ETag"] = f'"{hashlib.sha1(data).hexdigest()}"'
        headers["Accept-Ranges"] = "bytes"
        self._send(200, data, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve(repos: dict[str, dict[str, bytes]]) -> Iterator[HubStandIn]:
    """Run a stand-in for the time of the block."""
    server = HubStandIn(repos)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
