"""Jinja2 as chat templates expect it, with bounds on what a template may cost.

A template comes with a model file, so it is somebody else's program. The sandbox keeps it away from Python's insides;
the bounds here keep it from using up memory or never ending. Imported only where a template is rendered: jinja2 is slow
to import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 24  # of any string that a template makes
MAX_STEPS = 5_000_000  # loop turns in one rendering
MAX_COUNT = 100_000  # of widths and repetitions
_WIDE_FORMAT = re.compile(r"[0-9]{6}")

_steps: ContextVar[list[int]] = ContextVar("steps")


class TooExpensive(Exception):
    """The template went over a bound."""


class RaisedByTemplate(Exception):
    """The template called raise_exception."""


class _GenerationBlocks(Extension):
    """{% generation %} ... {% endgeneration %} marks answers for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CodeGenerator(CodeGenerator):
    """Passes what loops run over, and what ~ joins, through the bounds."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = _call("counted", [node.iter])
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.visit(_call("joined", list(node.nodes)), frame)


def _call(name: str, args: list[Any]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment in which Hugging Face's templates are written."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols])
        self.filters["tojson"] = _tojson  # jinja2's own escapes for HTML
        for name in ("batch", "center", "format", "indent", "slice"):
            self.filters[name] = _with_small_counts(self.filters[name])
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def run(self, template: jinja2.Template, **variables: Any) -> str:
        """The text of a template. Raises TooExpensive, RaisedByTemplate, or whatever goes wrong in the template."""
        token = _steps.set([0])
        try:
            pieces: list[str] = []
            size = 0
            for piece in template.generate(**variables):
                size += len(piece)
                _check_size(size)
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _steps.reset(token)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        _check_size(sum(map(len, pieces)))
        return "".join(pieces)

    def joined(self, *values: Any) -> str:
        return self.concat(map(str, values))

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        steps = _steps.get()
        for value in values:
            steps[0] += 1
            if steps[0] > MAX_STEPS:
                raise TooExpensive(f"its loops take more than {MAX_STEPS} turns")
            yield value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator in ("*", "**"):
            _check_product(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str):
            _check_size(len(result))
        return result

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str):  # ljust, zfill, replace, format ...
            _check_counts(args)
            if method.__name__ in ("format", "format_map"):
                _check_format(text)
            elif method.__name__ in ("replace", "join"):
                _check_size(_longest_result(method.__name__, text, args))
        return super().call(__context, __obj, *args, **kwargs)


def _check_size(n_characters: int) -> None:
    if n_characters > MAX_CHARACTERS:
        raise TooExpensive(f"it makes a text of more than {MAX_CHARACTERS} characters")


def _check_counts(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            raise TooExpensive(f"it asks for {str(value)[:20]} characters or items, more than {MAX_COUNT}")


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text) and ("%" in text or "{" in text):
        raise TooExpensive(f"it formats to a width of more than {MAX_COUNT}")


def _check_product(operator: str, left: Any, right: Any) -> None:
    for a, b in ((left, right), (right, left)):
        if isinstance(a, (str, list, tuple)) and isinstance(b, int):
            _check_size(len(a) * max(b, 0))
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
        if bits > MAX_COUNT:
            raise TooExpensive("it computes a number too large to be of use")


def _longest_result(method: str, text: str, args: tuple[Any, ...]) -> int:
    if method == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        return len(text) + (text.count(args[0]) if args[0] else len(text) + 1) * len(args[1])
    if method == "join" and args and isinstance(args[0], (list, tuple)):
        return sum(len(item) for item in args[0] if isinstance(item, str)) + len(text) * len(args[0])
    return 0


def _with_small_counts(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps jinja2's marks on it
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_counts((*args, *kwargs.values()))
        for value in args:
            if isinstance(value, str) and function.__name__ == "do_format":
                _check_format(value)
        return function(*args, **kwargs)

    return checked


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
