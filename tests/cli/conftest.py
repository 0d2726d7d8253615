"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest
from command_line import CommandLine, Stand


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """A model that is loaded whatever the command asks for."""
    made = Stand()
    monkeypatch.setattr("llamita.models.loading.load", made.load)
    return made
