"""ProgressLine: what a terminal shows and what a log holds."""

from __future__ import annotations

import io

from llamita.loaders.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(stream: io.StringIO) -> list[str]:
    """The lines that remain on a terminal."""
    lines = []
    for line in stream.getvalue().split("\n"):
        cells = ""
        for part in line.split("\r"):
            cells = part + cells[len(part) :]
        lines.append(cells.rstrip())
    return lines


def test_a_log_gets_the_beginning_and_the_end() -> None:
    log, clock = io.StringIO(), Clock()
    progress = ProgressLine(log, clock=clock)
    for done in range(0, 24 << 20, 1 << 20):
        progress("download", done, 24 << 20)
    progress("download", 24 << 20, 24 << 20)
    progress("download", 24 << 20, 24 << 20)
    assert log.getvalue() == "downloading: 0/24 MiB (0%)\ndownloading: 24/24 MiB (100%)\n"


def test_a_log_gets_a_line_now_and_then() -> None:
    log, clock = io.StringIO(), Clock()
    progress = ProgressLine(log, clock=clock)
    for done in range(11):
        clock.now = done
        progress("compile", done, 20)
    assert [line.split(": ")[1] for line in log.getvalue().splitlines()] == ["0/20 (0%)", "5/20 (25%)", "10/20 (50%)"]


def test_short_stages_are_not_shown() -> None:
    for stream in (io.StringIO(), Terminal()):
        progress = ProgressLine(stream, clock=Clock())
        progress("pack", 1, 2)
        progress("pack", 2, 2)
        progress("prefill", 5, 5)
        progress.close()
        assert stream.getvalue() == ""


def test_a_terminal_shows_a_line_that_changes() -> None:
    terminal, clock = Terminal(), Clock()
    progress = ProgressLine(terminal, clock=clock)
    progress("compile", 0, 12)
    clock.now = 1.0
    progress("compile", 3, 12)
    assert shown(terminal) == ["compiling kernels for this CPU (once): 3/12 (25%)"]
    progress("compile", 12, 12)
    assert shown(terminal) == ["compiling kernels for this CPU (once): 12/12 (100%)", ""]
    progress("pack", 0, 4)
    clock.now = 2.0
    progress("pack", 1, 4)
    assert shown(terminal)[-1] == "packing weights: 1/4 (25%)"
    progress("pack", 4, 4)
    assert shown(terminal)[-1] == ""


def test_close_clears_what_is_shown() -> None:
    terminal = Terminal()
    progress = ProgressLine(terminal, clock=Clock())
    progress("wait", 0, 1)
    assert shown(terminal) == ["waiting for another llamita that is downloading ..."]
    progress.close()
    progress.close()
    assert shown(terminal) == [""]


def test_quiet() -> None:
    log = io.StringIO()
    progress = ProgressLine(log, quiet=True)
    progress("download", 0, 1)
    progress.close()
    assert log.getvalue() == ""


def test_unknown_stages_and_sizes_are_no_reason_to_fail() -> None:
    log = io.StringIO()
    clock = Clock()
    progress = ProgressLine(log, clock=clock)
    progress("ponder", 0, 0)
    clock.now = 1.0
    progress("ponder", -1, 0)
    clock.now = 9.0
    progress("ponder", 1, 2)
    assert "ponder: 1/2 (50%)" in log.getvalue()
