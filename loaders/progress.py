"""How long work tells how far it is, and a line on a terminal that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

OnProgress = Callable[[str, int, int], None]
"""Called with (stage, done, total). Stages of this room: "wait" for another process, "download" and "unpack" in bytes."""

_LABELS = {
    "wait": "waiting for another llamita that is downloading",
    "download": "downloading",
    "unpack": "unpacking and checking",
    "compile": "compiling kernels for this CPU (once)",
    "pack": "packing weights",
    "prefill": "reading the prompt",
}
_IN_BYTES = ("download", "unpack")
_LASTING = ("wait", "download", "compile")  # what a reader of a log wants to find in it
_PATIENCE = 0.4  # seconds before a stage that is usually short is shown at all
_REDRAW, _REPEAT = 0.1, 5.0  # seconds between two states on a terminal, and in a log


class ProgressLine:
    """Shows progress on `stream`: one line that changes on a terminal, a few plain lines anywhere else.

    An instance is an `OnProgress`; a quiet one shows nothing. `close` ends the line, so that other output starts on a clean one.
    """

    def __init__(self, stream: TextIO, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._quiet, self._clock = stream, quiet, clock
        self._is_terminal = stream.isatty()
        self._stage, self._ended = "", ""
        self._since, self._drawn, self._width = 0.0, 0.0, 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of `stage` are finished."""
        if self._quiet or (stage == self._ended and done >= total):
            return
        now = self._clock()
        self._ended = ""
        if stage != self._stage:
            self.close()
            self._stage, self._since, self._drawn = stage, now, float("-inf")
        if stage not in _LASTING and now - self._since < _PATIENCE:
            return
        ended = done >= total
        if not ended and now - self._drawn < (_REDRAW if self._is_terminal else _REPEAT):
            return
        self._drawn = now
        self._show(self._text(stage, done, total))
        if ended:
            if stage in _LASTING and stage != "wait":
                self._keep()
            self.close()
            self._ended = stage

    def close(self) -> None:
        """Clear what is shown; the next call starts a new line."""
        if self._is_terminal and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
        self._stage, self._width = "", 0

    def _text(self, stage: str, done: int, total: int) -> str:
        label = _LABELS.get(stage, stage)
        if stage == "wait" or total <= 0:
            return f"{label} ..."
        numbers = f"{done / 2**20:.0f}/{total / 2**20:.0f} MiB" if stage in _IN_BYTES else f"{done}/{total}"
        return f"{label}: {numbers} ({100 * done // total}%)"

    def _show(self, text: str) -> None:
        if self._is_terminal:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _keep(self) -> None:
        if self._is_terminal:
            self._stream.write("\n")
            self._width = 0
