"""Turning token ids into text piece by piece, without ever cutting a character in two."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class TextStream:
    """Decodes ids one at a time; what `push` and `flush` return adds up to the text of all ids.

    A token may hold a part of a UTF-8 character only: its bytes wait until the rest arrives. Bytes that never become
    a character come out as U+FFFD.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        control: frozenset[int],
        skip_special: bool,
        prefix_ends: frozenset[int] | None,
        after: Iterable[int] = (),
    ) -> None:
        """
        token_bytes: the bytes of an id; raises for ids that do not exist.
        control: ids that are markup; with skip_special they leave no text.
        prefix_ends: None when the tokenizer puts no space before a text; else the ids after which it puts one, as
            it does at the start. That space was never in the text, so it is dropped again.
        after: ids that came before, whose text has been printed already.
        """
        self._token_bytes = token_bytes
        self._control = control
        self._hidden = control if skip_special else frozenset()
        self._prefix_ends = prefix_ends
        self._drop_space = prefix_ends is not None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in after:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is unfinished."""
        data = self._token_bytes(token_id)
        if self._prefix_ends is not None:
            if token_id in self._prefix_ends:
                self._drop_space = True
            elif token_id not in self._control:
                if self._drop_space and data[:1] == b" ":
                    data = data[1:]
                self._drop_space = False
        return self._decoder.decode(b"" if token_id in self._hidden else data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished. The stream can go on after it."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
