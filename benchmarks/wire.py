"""Workers: processes that answer one question at a time, as JSON lines over pipes. Standard library only, so that an
interpreter without llamita can serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def serve(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer questions {"op", "args"} from standard input until it ends; an exception becomes {"error"}.

    Whatever else the process prints goes to standard error.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            reply = {"value": answers[question["op"]](**question["args"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


class WorkerError(Exception):
    """A worker could not answer, or died."""


class Worker:
    """A process that runs `script` (a file of this folder) under an interpreter; a context manager."""

    def __init__(self, name: str, script: str, python: str | Path = sys.executable):
        self.name = name
        try:
            self._process = subprocess.Popen(
                [str(python), str(HERE / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        except OSError as error:
            raise WorkerError(f"{name}: {python}: could not be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, op: str, **args: Any) -> Any:
        """The answer to a question; raises WorkerError with the worker's own words, or with how it ended."""
        if self._process.stdin is None or self._process.stdout is None:
            raise WorkerError(f"{self.name}: it has no pipes")
        try:
            self._process.stdin.write(json.dumps({"op": op, "args": args}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(f"{self.name}: {op}: the worker {how}; its last words are above")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name}: {op}: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
