"""Messages of a chat: what they must look like, and which are left out when they outgrow the context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..engine.errors import InvalidArgument

Message = Mapping[str, str]

ROLES = ("system", "developer", "user", "assistant", "tool")


def checked_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Copies of the messages. Each needs a known role and a text; further keys are passed on to the template.

    Raises InvalidArgument that names the message's index and the key.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidArgument(f"chat: messages: expected a list of {{'role': ..., 'content': ...}}, got {type(messages).__name__}")
    if not messages:
        raise InvalidArgument("chat: messages: expected at least one, got none")
    checked = []
    for index, message in enumerate(messages):
        where = f"chat: messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidArgument(f"{where}: expected a mapping with 'role' and 'content', got {type(message).__name__}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                got = type(message[key]).__name__ if key in message else "nothing"
                raise InvalidArgument(f"{where}: {key}: expected a string, got {got}")
        if message["role"] not in ROLES:
            raise InvalidArgument(f"{where}: role: expected one of {', '.join(ROLES)}, got {message['role']!r}")
        checked.append(dict(message))
    return checked


def fit(
    messages: list[dict[str, str]], render: Callable[[list[dict[str, str]]], list[int]], n_ctx: int, reserve: int
) -> tuple[list[int], int]:
    """The prompt's ids with as few of the oldest turns left out as leave `reserve` tokens for the answer.

    A turn is a user's message with all that follows it up to the next one. System messages at the beginning and the last
    turn always stay, so that the ids returned may be too many still.

    Returns: the ids, and how many turns were left out.
    """
    ids = render(messages)
    if len(ids) + reserve <= n_ctx:
        return ids, 0
    n_system = next((i for i, m in enumerate(messages) if m["role"] not in ("system", "developer")), len(messages))
    starts = [i for i, m in enumerate(messages) if m["role"] == "user"]  # whatever precedes the first goes with it
    low, high = 1, len(starts) - 1  # every rendering is expensive in a long chat, so bisect
    if high < 1:
        return ids, 0

    def without(n: int) -> list[int]:
        return render(messages[:n_system] + messages[starts[n] :])

    fitting = without(high)
    if len(fitting) + reserve > n_ctx:
        return fitting, high
    while low < high:
        middle = (low + high) // 2
        candidate = without(middle)
        if len(candidate) + reserve <= n_ctx:
            high, fitting = middle, candidate
        else:
            low = middle + 1
    return fitting, high
