"""Running the command line in tests: in this process with a stand-in model, or as a user does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from mock_model import EOS, ByteTokenizer, MockModel, MockTemplate

from llamita.cli import main
from llamita.models.language_model import LanguageModel


@dataclass
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str

    def one_line_error(self, status: int) -> str:
        """The error's line, after checks that it is one, that it is no traceback, and that nothing else was printed."""
        assert self.status == status, self
        assert self.out == "", self
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("llamita: "), self.err
        assert "Traceback" not in self.err and "internal error" not in self.err
        return lines[0]


class Stdin(io.TextIOWrapper):
    """Standard input with given bytes; a terminal if asked to be one."""

    def __init__(self, data: bytes, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class CommandLine:
    """`cli("run", "hi")` runs a command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *args: str, stdin: bytes = b"", terminal: bool = False) -> Result:
        self._monkeypatch.setattr(sys, "stdin", Stdin(stdin, terminal))
        self._capsys.readouterr()
        status = main(args)
        out, err = self._capsys.readouterr()
        return Result(status, out, err)


@dataclass
class Stand:
    """Stands in for `load`: notes its arguments and hands out a model that answers with `replies`, one after the other."""

    replies: list[bytes] = field(default_factory=lambda: [b"Hello!"])
    n_ctx: int = 200
    template: bool = True
    tokenizer: bool = True
    loads: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    model: MockModel | None = None

    def load(self, model: str | None = None, **options: Any) -> LanguageModel:
        self.loads.append({"model": model, **options})
        decoder = MockModel(n_ctx=options.get("n_ctx") or self.n_ctx, choose=self._next)
        self.model = decoder
        return _Noting(
            self,
            decoder,
            ByteTokenizer() if self.tokenizer else None,  # type: ignore[arg-type]
            MockTemplate() if self.template else None,  # type: ignore[arg-type]
            resources=(decoder,),
        )

    def _next(self, ids: list[int]) -> int:
        reply = (*self.replies[min(len(self.prompts), len(self.replies)) - 1], EOS)
        return reply[len(ids) - len(self.prompts[-1])]


class _Noting(LanguageModel):
    """Notes each prompt and the options that it came with."""

    def __init__(self, stand: Stand, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.stand = stand
        self.options: list[dict[str, Any]] = []

    def _start(self, what: str, ids: Sequence[int], *rest: Any) -> Any:
        self.stand.prompts.append(list(ids))
        self.stand.loads[-1]["generation"] = rest[-1]
        return super()._start(what, ids, *rest)


def llamita(*args: str, stdin: str | None = None, timeout: float = 300, **environment: str) -> Result:
    """Run a command in a process of its own, as a user does."""
    command = [sys.executable, "-c", "import sys; from llamita.cli import main; sys.exit(main())", *args]
    given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        env=os.environ | environment,
        **given,  # type: ignore[call-overload]
    )
    return Result(done.returncode, done.stdout, done.stderr)
