"""StopMatcher: what comes out depends on the text, never on how it was cut or on the order of the stop strings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamita.engine.errors import InvalidArgument
from llamita.engine.generation import StopMatcher


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Searches the whole text: the match that begins first; of those that begin together, the shortest."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    return (text[: min(found)[0]], min(found)[2]) if found else (text, None)


def stream(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        out += matcher.push(piece)
        if matcher.matched is not None:
            return out, matcher.matched
    return out + matcher.flush(), matcher.matched


# A small alphabet makes overlaps and near misses the rule; the last letter is outside the Basic Multilingual Plane.
texts = st.text("ab\n🙂", max_size=40)
stop_lists = st.lists(st.text("ab\n🙂", min_size=1, max_size=6), max_size=4)


@given(texts, stop_lists, st.lists(st.integers(0, 40), max_size=12))
def test_equals_a_search_of_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert stream(pieces, stops) == reference(text, stops)
    assert stream(list(text), stops[::-1]) == reference(text, stops)


@given(texts, stop_lists)
def test_never_shows_a_character_that_could_belong_to_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, character in enumerate(text, 1):
        shown += matcher.push(character)
        if matcher.matched is not None:
            break
        held = text[len(shown) : end]
        assert held == "" or any(stop.startswith(held[:1]) for stop in stops)
        # As little as possible is held: what is held is itself the beginning of a stop string, or contains a whole one.
        assert held == "" or any(s.startswith(held) for s in stops) or any(s in held for s in stops)


def test_a_stop_string_across_pieces_leaves_no_trace() -> None:
    matcher = StopMatcher(["</s>"])
    assert [matcher.push(p) for p in ("Hi<", "/", "s", ">x")] == ["Hi", "", "", ""]
    assert matcher.matched == "</s>"
    assert matcher.push("more") == "" and matcher.flush() == ""


def test_a_prefix_that_fails_is_shown() -> None:
    matcher = StopMatcher("</s>")
    assert [matcher.push(p) for p in ("a<", "/", "b", "<")] == ["a", "", "</b", ""]
    assert matcher.flush() == "<" and matcher.matched is None


def test_waits_for_one_that_begins_earlier() -> None:
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.push("abc") == "" and matcher.matched is None
    assert matcher.push("d") == "" and matcher.matched == "abcd"
    matcher = StopMatcher(["bc", "abcd"])
    matcher.push("abc")
    assert matcher.push("x") == "a" and matcher.matched == "bc"
    matcher = StopMatcher(["bc", "abcd"])
    matcher.push("abc")
    assert matcher.flush() == "a" and matcher.matched == "bc"


def test_work_does_not_grow_with_the_text() -> None:
    matcher = StopMatcher(["a" * 50 + "b"])  # every character of the text could begin it
    for _ in range(5000):
        matcher.push("aaaa")
        assert len(matcher._held) <= 50
    assert len(matcher._held) == 50


@pytest.mark.parametrize("stops", [[""], ["a", ""], [1], [b"a"]])
def test_refuses_what_is_no_stop_string(stops: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=rf"stop\[{len(stops) - 1}\].*got {stops[-1]!r}"):
        StopMatcher(stops)


def test_refuses_what_is_no_sequence() -> None:
    with pytest.raises(InvalidArgument, match="got 5"):
        StopMatcher(5)  # type: ignore[arg-type]
