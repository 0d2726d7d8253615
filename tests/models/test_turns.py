"""Turns: who gets the model when several want it, and that nobody waits for ever."""

from __future__ import annotations

import threading
import time

import pytest

from llamita.engine.errors import LlamitaError
from llamita.models import turns as turns_module
from llamita.models.turns import Turns


def test_a_turn_lasts_until_it_is_left() -> None:
    turns, a, b = Turns(), object(), object()
    order: list[str] = []

    def other() -> None:
        assert turns.enter(b)
        order.append("b")
        turns.exit()

    assert turns.enter(a)
    turns.exit()
    thread = threading.Thread(target=other)
    thread.start()
    time.sleep(0.05)
    assert not turns.enter(a)  # still a's, nobody was here in between
    order.append("a")
    turns.exit()
    turns.leave(a)
    thread.join(5)
    assert order == ["a", "b"]
    turns.leave(a)  # no longer a's: b keeps its turn
    assert not turns.enter(b)


def test_the_same_thread_does_not_wait_for_itself() -> None:
    turns, a, b = Turns(), object(), object()
    turns.enter(a)
    turns.exit()
    assert turns.enter(b)
    turns.exit()
    assert turns.enter(a)  # and a learns of it


def test_one_that_rests_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "IDLE_SECONDS", 0.05)
    turns, a = Turns(), object()
    turns.enter(a)
    turns.exit()
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(turns.enter(object())))
    thread.start()
    thread.join(5)
    assert taken == [True]


def test_a_running_step_is_never_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "IDLE_SECONDS", 0.01)
    turns, a, b = Turns(), object(), object()
    turns.enter(a)
    entered = threading.Event()
    thread = threading.Thread(target=lambda: (turns.enter(b, patient=False), entered.set()))
    thread.start()
    assert not entered.wait(0.1)
    turns.exit()
    assert entered.wait(5)
    thread.join()


def test_a_call_from_within_a_step_is_an_error() -> None:
    turns, a = Turns(), object()
    turns.enter(a)
    with pytest.raises(LlamitaError, match="progress callback"):
        turns.enter(object())
