"""Who may use the model next, when several generations want to."""

from __future__ import annotations

import threading
import time
from collections import deque

from ..engine.errors import LlamitaError

IDLE_SECONDS = 1.0
"""A generation that nobody has asked for its next token for so long gives way."""


class Turns:
    """One generation after the other uses the model, first come, first served; nothing can block for ever.

    A generation keeps its turn over all its steps, until it `leave`s. Between two steps it loses it early if it rests
    for `IDLE_SECONDS` (its reader stalled or forgot it), or to a call from the very thread that moved it last (which would
    otherwise wait for itself). It may then come back later; `enter` tells it that the cache has changed hands.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # its lock is re-entrant: garbage collection may run leave() at any point
        self._waiting: deque[object] = deque()
        self._holder: object | None = None
        self._busy = False
        self._hurried = 0  # how many wait without patience
        self._thread = 0
        self._rests_since = 0.0

    def enter(self, caller: object, patient: bool = True) -> bool:
        """Waits for the turn and begins a step. True if another one has used the model since this caller's last step.

        Without patience it waits for the end of the running step only.
        Raises LlamitaError when called from within a step of the same thread, as by a progress callback.
        """
        me = threading.get_ident()
        with self._changed:
            if self._busy and self._thread == me:
                raise LlamitaError("model: expected no call from within its own progress callback, got one: wait until it returns")
            self._waiting.append(caller)
            self._hurried += not patient
            try:
                while not self._may_go(caller, me, patient):
                    self._changed.wait(self._patience())
            finally:
                self._waiting.remove(caller)
                self._hurried -= not patient
                self._changed.notify_all()
            disturbed = self._holder is not caller
            self._holder, self._busy, self._thread = caller, True, me
            return disturbed

    def _may_go(self, caller: object, me: int, patient: bool) -> bool:
        if self._busy:
            return False
        if not patient or self._holder is caller or (self._holder is not None and self._thread == me):
            return True
        rests = self._holder is None or time.monotonic() - self._rests_since >= IDLE_SECONDS
        return rests and self._waiting[0] is caller

    def _patience(self) -> float:
        return IDLE_SECONDS if self._busy else max(0.001, IDLE_SECONDS - (time.monotonic() - self._rests_since))

    def exit(self) -> None:
        """Ends the step; the turn is kept."""
        with self._changed:
            self._busy = False
            self._rests_since = time.monotonic()
            if self._hurried:
                self._changed.notify_all()

    def leave(self, caller: object) -> None:
        """Ends the turn, if it is still the caller's."""
        with self._changed:
            if self._holder is caller:
                self._holder = None
                self._changed.notify_all()
