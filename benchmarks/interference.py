"""What others do to a measurement: the part of the processors' time that went to other programs, or to other machines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TOLERATED = 0.03  # of all processors


class Others:
    """Counts from its making on; `share` may be asked more than once. Linux only, elsewhere the share is None.

    pids: processes that belong to the measurement, besides this one.
    """

    def __init__(self, pids: Iterable[int]):
        self._pids = (os.getpid(), *pids)
        self._start = self._counts()

    def _counts(self) -> tuple[int, int] | None:
        """Ticks of all processors, and those of them that went to others."""
        try:
            user, nice, system, idle, wait, irq, soft, stolen = (int(n) for n in Path("/proc/stat").read_text().split()[1:9])
            ours = 0
            for pid in self._pids:
                after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ours += int(after_name[11]) + int(after_name[12])  # user and system time
        except (OSError, ValueError, IndexError):
            return None
        busy = user + nice + system + irq + soft + stolen
        return busy + idle + wait, busy - ours

    def share(self) -> float | None:
        """0 to 1, of all processors since the start."""
        now = self._counts()
        if now is None or self._start is None or now[0] <= self._start[0]:
            return None
        return max(0.0, (now[1] - self._start[1]) / (now[0] - self._start[0]))
