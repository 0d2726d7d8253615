"""Chat templates: from messages to the prompt that a model was trained on."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from ..engine.errors import TemplateError
from .content_guard import ContentGuard, map_texts

if TYPE_CHECKING:
    import jinja2

    from .template_sandbox import TemplateSandbox
    from .tokenizer import Tokenizer

Message = Mapping[str, Any]

_SYSTEM_ROLES = ("system", "developer")
_SEARCHED_MESSAGES = 256  # among which the one that a template rejects is looked for


class ChatTemplate:
    """A Jinja template as models carry it in `tokenizer.chat_template`, rendered as Hugging Face's libraries do.

    Templates see messages, add_generation_prompt, bos_token, eos_token, tools, documents and any further keyword.
    A system message becomes part of the first user message where the template has no place for it.
    """

    def __init__(self, source: str, bos_token: str | None = None, eos_token: str | None = None) -> None:
        """source: the template; it is compiled when first rendered, so a faulty one raises there."""
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """The prompt as text.

        messages: mappings with `role` and `content` (a text, or what else the template understands), oldest first.
        add_generation_prompt: end with the header of the assistant's turn.
        kwargs: further variables, e.g. tools, enable_thinking.
        Raises TemplateError when the template is faulty, rejects the messages (its own words, with the message's
            index and role where it can be told), or costs too much.
        """
        text, _ = self._render_with_system(_checked(messages), self._variables(add_generation_prompt, kwargs))
        return text

    def render_ids(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        parse_content: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids, beginning with exactly one BOS where the template or the tokenizer wants one.

        The template's special tokens become their ids. Those spelled in messages, tools or documents stay plain text
        unless `parse_content` is set. Roles count as the template's own words. Raises as `render` does.
        """
        variables = self._variables(add_generation_prompt, kwargs)
        text, rendered = self._render_with_system(_checked(messages), variables)
        if not text:
            raise TemplateError("chat template: the model's template makes an empty prompt of these messages")
        guard = ""
        if not parse_content:
            text, guard = self._guarded(text, rendered, variables, tokenizer)
        ids = tokenizer.encode(text, add_special=False, parse_special=True, guard=guard)
        bos = tokenizer.bos_id
        if bos is not None:
            if tokenizer.add_bos and ids[:1] != [bos]:
                ids.insert(0, bos)
            while ids[:2] == [bos, bos]:
                del ids[0]
        return ids

    # ---- rendering

    @cached_property
    def _compiled(self) -> tuple[TemplateSandbox, jinja2.Template]:
        from .template_sandbox import TemplateSandbox

        sandbox = TemplateSandbox()
        try:
            return sandbox, sandbox.from_string(self.source)
        except Exception as error:
            _fail(error, "is faulty")

    def _variables(self, add_generation_prompt: bool, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"tools": None, "documents": None}
        return {**defaults, **self._tokens, "add_generation_prompt": add_generation_prompt, **kwargs}

    def _render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        from .template_sandbox import RaisedByTemplate

        sandbox, template = self._compiled
        try:
            return sandbox.run(template, messages=messages, **variables)
        except RaisedByTemplate as error:
            raise _Rejected(" ".join(str(error).split())) from None
        except Exception as error:
            _fail(error, "cannot be rendered")

    def _render_with_system(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """The text, and the messages that it was made of: with the system message folded in if it had to be."""
        folded, system = _fold_system(messages)
        try:
            text = self._render(messages, variables)
            if not system or system in text or self._shows_system(messages, variables):
                return text, messages
        except _Rejected as rejection:
            if folded is not messages:
                try:
                    return self._render(folded, variables), folded
                except TemplateError:
                    pass  # the first complaint is about what the user wrote
            raise self._located(rejection, messages, variables) from None
        try:  # the template ignores the system message silently
            with_system = self._render(folded, variables)
        except TemplateError:
            return text, messages
        return (with_system, folded) if system in with_system else (text, messages)

    def _shows_system(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> bool:
        """Whether the template uses the system message, if in another form than it has."""
        marker = "".join(secrets.choice("0123456789") for _ in range(20))
        try:
            return marker in self._render([{**messages[0], "content": marker}, *messages[1:]], variables)
        except TemplateError:
            return True

    def _located(self, rejection: _Rejected, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> TemplateError:
        """The rejection with the message that caused it: the last of the shortest beginning that is rejected alike."""
        where = ""
        for n in range(1, min(len(messages), _SEARCHED_MESSAGES) + 1):
            try:
                self._render(messages[:n], variables)
            except _Rejected as other:
                if str(other) == str(rejection):
                    where = f" [messages[{n - 1}], role {messages[n - 1]['role']!r}]"
                    break
            except TemplateError:
                pass
        return TemplateError(f"chat template: the model's template rejects these messages: {rejection}{where}")

    def _guarded(self, plain: str, messages: list[dict[str, Any]], variables: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[str, str]:
        """The prompt with guards inside special tokens that are not the template's, and the guard."""
        content_guard = ContentGuard(tokenizer.special_texts)

        def render(guard_text: Callable[[str], str]) -> str | None:
            guarded_messages, guarded_variables = _guarded_input(messages, variables, guard_text)
            if (guarded_messages, guarded_variables) == (messages, variables):
                return plain
            try:
                return self._render(guarded_messages, guarded_variables)
            except TemplateError:
                return None

        strict = render(content_guard.everywhere)
        if strict is not None and strict.replace(content_guard.guard, "") == plain:
            return strict, content_guard.guard
        # The template looks for something in the messages that the guards hide: put them where they are needed only,
        # unless it then joins special tokens out of pieces of a message.
        loose = render(content_guard.spellings)
        if loose is not None and (strict is None or tokenizer.special_ids(loose) == tokenizer.special_ids(strict)):
            return loose, content_guard.guard
        if strict is not None:  # another text than the plain one, but obeying nobody's message
            return strict, content_guard.guard
        raise TemplateError(
            "chat template: a message spells special tokens, and the template fails when they are kept as plain text; "
            "remove them from the message, or pass parse_content=True if you trust it"
        )


class _Rejected(TemplateError):
    """The template's own complaint, before it is known which message it is about."""


def _guarded_input(
    messages: list[dict[str, Any]], variables: Mapping[str, Any], guard_text: Callable[[str], str]
) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    untrusted = {name: map_texts(variables[name], guard_text) for name in ("tools", "documents")}
    guarded: list[dict[str, Any]] = map_texts(messages, guard_text)
    return guarded, {**variables, **untrusted}


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies, so that a template that changes them leaves the caller's alone."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TemplateError(f"chat template: messages: expected a list of mappings, got {type(messages).__name__}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TemplateError(f"chat template: messages[{i}]: expected a mapping with 'role' and 'content', got {str(message)[:60]}")
    return [copy.deepcopy(dict(message)) for message in messages]


def _fold_system(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with a leading system message put before the first user message, and that system message."""
    if not messages or messages[0]["role"] not in _SYSTEM_ROLES or not isinstance(messages[0].get("content"), str):
        return messages, ""
    system: str = messages[0]["content"].strip()
    if not system:
        return messages[1:], ""
    rest = [dict(message) for message in messages[1:]]
    first = next((message for message in rest if message["role"] == "user"), None)
    if first is None:
        rest.insert(0, {"role": "user", "content": system})
    elif isinstance(first.get("content"), str):
        first["content"] = f"{system}\n\n{first['content']}"
    elif isinstance(first.get("content"), list):
        first["content"] = [{"type": "text", "text": f"{system}\n\n"}, *first["content"]]
    return rest, system


def _fail(error: Exception, what: str) -> NoReturn:
    """Raises TemplateError for whatever jinja2 or the template ran into, with the line of the template if known."""
    line = getattr(error, "lineno", None)
    traceback = error.__traceback__
    while traceback is not None and not isinstance(error, SyntaxError):
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    where = f" in line {line}" if line else ""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, RecursionError):
        reason = "it calls itself without end"
    raise TemplateError(f"chat template: the model's template {what}{where}: {reason}") from None
