"""Finding stop strings in a text that arrives in pieces.

Knows text only. A stop string may begin in one piece and end in another, and a text that looks like the beginning of
one must not be shown before it is clear that it is none. What comes out depends on the whole text, never on the pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..errors import InvalidArgument


class StopMatcher:
    """Passes text on up to the stop string that begins first; of two that begin together, the shorter.

    The order of `stops` does not matter. Each character costs O(1) amortised, however long the text and the strings
    (an Aho-Corasick automaton whose depth is the length of the text that has to be held back).

        >>> matcher = StopMatcher(["\\n\\n"])
        >>> matcher.push("one\\n"), matcher.push("two\\n"), matcher.push("\\nthree"), matcher.matched
        ('one', '\\ntwo', '', '\\n\\n')
    """

    def __init__(self, stops: str | Iterable[str] = ()) -> None:
        """Raises InvalidArgument if a stop string is empty or not a string."""
        self.stops = _checked(stops)
        self.matched: str | None = None
        """The stop string that was found, once it is certain that none begins earlier."""
        self._held = ""  # text that may still turn out to belong to a stop string
        self._node = 0
        self._found: tuple[int, str] | None = None  # where in _held the best stop string so far begins
        self._build()

    def _build(self) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._longest: list[str | None] = [None]  # the longest stop string that ends here: the one that begins first
        for stop in self.stops:
            node = 0
            for character in stop:
                child = self._next[node].get(character)
                if child is None:
                    child = len(self._next)
                    self._next[node][character] = child
                    self._next.append({})
                    self._fail.append(0)
                    self._depth.append(self._depth[node] + 1)
                    self._longest.append(None)
                node = child
            self._longest[node] = stop
        queue = deque(self._next[0].values())
        while queue:  # breadth first: the node that a failure leads to is finished before
            node = queue.popleft()
            if self._longest[node] is None:
                self._longest[node] = self._longest[self._fail[node]]
            for character, child in self._next[node].items():
                self._fail[child] = self._step(self._fail[node], character)
                queue.append(child)

    def _step(self, node: int, character: str) -> int:
        while node and character not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(character, 0)

    def push(self, text: str) -> str:
        """Takes the next piece and returns the text that is now certain to come before any stop string."""
        if self.matched is not None:
            return ""
        if not self.stops:
            return text
        position, node, found = len(self._held), self._node, self._found
        held = self._held + text
        for character in text:
            node = self._step(node, character)
            position += 1
            stop = self._longest[node]
            if stop is not None and (found is None or position - len(stop) < found[0]):
                found = position - len(stop), stop
            # A stop string found is the answer unless what is held may complete one that begins before it.
            if found is not None and position - self._depth[node] >= found[0]:
                self.matched = found[1]
                self._held, self._found = "", None
                return held[: found[0]]
        safe = position - self._depth[node]
        self._held, self._node = held[safe:], node
        self._found = None if found is None else (found[0] - safe, found[1])
        return held[:safe]

    def flush(self) -> str:
        """The text ends here: returns what was held back, up to a stop string if one is complete in it."""
        held, found = self._held, self._found
        self._held, self._node, self._found = "", 0, None
        if found is None:
            return held
        self.matched = found[1]
        return held[: found[0]]


def _checked(stops: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(stops, str):
        stops = (stops,)
    if not isinstance(stops, Iterable):
        raise InvalidArgument(f"stop: expected a string or several, got {stops!r}")
    checked = tuple(stops)
    for index, stop in enumerate(checked):
        if not isinstance(stop, str) or not stop:
            raise InvalidArgument(f"stop[{index}]: expected a string of at least one character, got {stop!r}")
    return checked
