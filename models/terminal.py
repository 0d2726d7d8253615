"""What run and chat show on a terminal: the answer as it comes, statistics after it, and a conversation's commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import InvalidArgument, LlamitaError
from .conversation import Conversation

if TYPE_CHECKING:
    from ..loaders.progress import ProgressLine
    from ..loaders.tokenizer import Tokenizer
    from .results import Chunk

COMMANDS = "/exit /clear /regen /save [FILE]"


def say(text: str) -> None:
    """A line on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def read_text(file: Path | None) -> str:
    """The text of a file or, without one, of standard input. Raises LlamitaError when it cannot be read or is not UTF-8."""
    source = "standard input" if file is None else str(file)
    try:
        return (sys.stdin.buffer.read() if file is None else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise LlamitaError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise LlamitaError(f"{source}: expected UTF-8 text, got byte 0x{error.object[error.start]:02x} [offset {error.start}]") from error


def token_lines(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """A line for each token: its id and its text."""
    return (f"{token:>6} -> {tokenizer.piece(token)!r}" for token in ids)


def say_tokens(tokenizer: Tokenizer, ids: list[int]) -> None:
    """A prompt as the model sees it, on standard error."""
    say(f"prompt: {len(ids)} tokens")
    for line in token_lines(tokenizer, ids):
        say(line)


def show_answer(chunks: Iterable[Chunk], progress: ProgressLine, quiet: bool, max_tokens: int | None) -> None:
    """Write an answer to standard output as it comes, then what it took to standard error."""
    last: Chunk | None = None
    for last in chunks:
        if last.text:
            progress.close()
            print(last.text, end="", flush=True)
    progress.close()
    lines = [] if last is None else list(remarks(last, max_tokens))
    if last is not None and not quiet:
        lines.append(statistics(last))
    if sys.stdout.isatty():
        print(flush=True)
    elif lines:
        say("")  # where both outputs go to one place, the answer ends without a newline
    for line in lines:
        say(line)


def statistics(last: Chunk) -> str:
    """Tokens, speeds and seed of a generation, from its last chunk."""
    usage, timings = last.usage, last.timings
    if usage is None or timings is None:
        return ""
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    return (
        f"prompt: {usage.prompt_tokens} tokens{cached}, {timings.prompt_per_second:.1f} tokens/s"
        f" | generation: {usage.completion_tokens} tokens, {timings.predicted_per_second:.1f} tokens/s | seed: {last.seed}"
    )


def remarks(last: Chunk, max_tokens: int | None) -> Iterator[str]:
    """What the reader of an answer must know about it: that it was cut, and that turns were left out."""
    if last.dropped_turns:
        turns = "the oldest turn" if last.dropped_turns == 1 else f"the {last.dropped_turns} oldest turns"
        yield f"left out {turns} of the conversation, so that it fits into the context"
    if last.finish_reason == "length":
        n = 0 if last.usage is None else last.usage.completion_tokens
        if max_tokens is not None and n >= max_tokens:
            yield f"stopped at the limit of {max_tokens} tokens (-n)"
        else:
            yield f"stopped after {n} tokens: the context is full (-c sets its size)"


def converse(talk: Conversation, progress: ProgressLine, quiet: bool, max_tokens: int | None, turns: int | None) -> None:
    """Answer the lines of standard input until /exit, its end, or `turns` answers. Ctrl-C stops an answer only."""
    for line in _lines(quiet):
        try:
            chunks = _command(talk, line) if line.startswith("/") else talk.ask(line)
            if chunks is None:
                continue
            show_answer(chunks, progress, quiet, max_tokens)
            if not sys.stdout.isatty():
                print(flush=True)
        except LlamitaError as error:
            progress.close()
            say(f"llamita: {error}")
        except KeyboardInterrupt:
            progress.close()
            print(flush=True)
            say("stopped; /exit leaves")
        if turns is not None:
            turns -= 1
            if turns <= 0:
                return


def _command(talk: Conversation, line: str) -> Iterator[Chunk] | None:
    name, _, argument = line.partition(" ")
    if name == "/regen":
        return talk.regenerate()
    if name == "/clear":
        talk.clear()
        say("forgotten")
    elif name == "/save":
        path = Path(argument.strip() or time.strftime("chat-%Y%m%d-%H%M%S.json"))
        talk.save(path)
        say(f"saved to {path}")
    else:
        raise InvalidArgument(f"{name}: no such command: expected one of {COMMANDS}")
    return None


def _lines(quiet: bool) -> Iterator[str]:
    """Lines that are not empty, up to /exit. On a terminal the prompt is shown there, elsewhere nowhere."""
    interactive = sys.stdin.isatty()
    if interactive and not quiet:
        say(f"{COMMANDS}; Ctrl-C stops an answer, Ctrl-D leaves")
    while True:
        try:
            line = input("> " if interactive and sys.stdout.isatty() else "").strip()
        except EOFError:
            return
        if line in ("/exit", "/quit", "/bye"):
            return
        if line:
            yield line
