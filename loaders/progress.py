"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Called with (stage, done, total). Stages of this room: "wait" for another process, "download" and "unpack" in bytes."""
