"""Keeping special tokens that a message's author wrote apart from those of the chat template.

Template and messages become one text before it is tokenised, and a message may spell `<|im_end|>` like the template
does. So a guard, a number nobody can guess, goes inside such spellings before the template sees them: the tokenizer
looks for special tokens first and takes the guards out afterwards. Text without such spellings is not touched.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class ContentGuard:
    """Guards against the given spellings, one guard for one rendering.

    guard: digits, because those survive whatever a template does with a text (trim, upper, JSON).
    """

    def __init__(self, special_texts: Iterable[str]) -> None:
        self.guard = "".join(secrets.choice("0123456789") for _ in range(40))
        texts = sorted({text for text in special_texts if text}, key=len, reverse=True)
        self._starts = re.compile("[" + re.escape("".join({text[0] for text in texts})) + "]") if texts else None
        self._spelling = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._heads = {text[:n] for text in texts for n in range(1, len(text))}
        self._tails = {text[n:] for text in texts for n in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def everywhere(self, text: str) -> str:
        """A guard after every character that begins a special token: nothing the template cuts out can join one."""
        return text if self._starts is None else self._begin(self._starts.sub(lambda m: m[0] + self.guard, text), text)

    def spellings(self, text: str) -> str:
        """A guard inside every special token, and where the text's ends could become part of one."""
        if self._spelling is None:
            return text
        guarded = text
        while self._spelling.search(guarded) is not None:
            guarded = self._spelling.sub(lambda m: m[0][0] + self.guard + m[0][1:], guarded)
        body = text.rstrip()
        if any(body[-n:] in self._heads for n in range(1, min(self._longest, len(body) + 1))):
            trailing = len(text) - len(body)
            guarded = guarded[: len(guarded) - trailing] + self.guard + guarded[len(guarded) - trailing :]
        return self._begin(guarded, text)

    def _begin(self, guarded: str, text: str) -> str:
        body = text.lstrip()
        if any(body[:n] in self._tails for n in range(1, min(self._longest, len(body) + 1))):
            leading = len(text) - len(body)
            return text[:leading] + self.guard + guarded[leading:]
        return guarded


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of messages (or tools) with every text changed, but not keys, roles and types: templates compare those."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: item if key in ("role", "type") else map_texts(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_texts(item, change) for item in value]
    return value
