"""A chat that goes on: what was said so far, and the next answer. Knows no terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import InvalidArgument, LlamitaError
from .results import Chunk

if TYPE_CHECKING:
    from .language_model import LanguageModel


class Conversation:
    """Turns of a user and a model.

    Args:
        llm: answers.
        system: a system message that stays in front of all turns.
        raw: no chat template: the texts are simply put one after the other.
        options: keyword arguments of `LanguageModel.chat` for each answer.
    """

    def __init__(self, llm: LanguageModel, system: str | None = None, raw: bool = False, **options: Any) -> None:
        self._llm, self._raw, self._options = llm, raw, options
        self._system = [{"role": "system", "content": system}] if system else []
        self._attempt = 0
        self.messages: list[dict[str, str]] = list(self._system)

    def check(self) -> None:
        """Raise now what the first question would run into: no weights, no tokenizer, no template or one that fails."""
        _ = self._llm.decoder, self._llm.tokenizer
        if not self._raw:
            self._llm.apply_chat_template([*self._system, {"role": "user", "content": "Hi"}])

    def ask(self, text: str) -> Iterator[Chunk]:
        """The answer to `text`, a chunk at a time. An answer that is cut off stays in the conversation as far as it came;
        a question that got none at all is forgotten when the next one is asked."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()
        self.messages.append({"role": "user", "content": text})
        self._attempt = 0
        return self._answer()

    def regenerate(self) -> Iterator[Chunk]:
        """Another answer to the last question. A fixed seed counts up, so that the answer can differ.

        Raises InvalidArgument when nothing was asked yet.
        """
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages or self.messages[-1]["role"] != "user":
            raise InvalidArgument("chat: there is no answer yet that could be generated again")
        self._attempt += 1
        return self._answer()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._system)

    def save(self, path: Path) -> None:
        """Write the messages as a JSON list. Raises LlamitaError when the file cannot be written."""
        try:
            path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise LlamitaError(f"{path}: the conversation cannot be written there: {error.strerror or error}") from error

    def _answer(self) -> Iterator[Chunk]:
        options = dict(self._options)
        seed = options.get("seed")
        if seed is not None and seed >= 0:
            options["seed"] = seed + self._attempt
        parts: list[str] = []
        try:
            if self._raw:
                chunks = self._llm.generate("".join(message["content"] for message in self.messages), **options)
            else:
                chunks = self._llm.chat(self.messages, **options)
            for chunk in chunks:
                parts.append(chunk.text)
                yield chunk
        finally:
            if parts:
                self.messages.append({"role": "assistant", "content": "".join(parts)})
