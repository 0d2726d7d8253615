"""chat: a conversation with a stand-in model over standard input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import CommandLine, Stand
from test_run import chat_ids


def test_turns_build_on_each_other(cli: CommandLine, stand: Stand) -> None:
    stand.replies = [b"One.", b"Two."]
    result = cli("chat", stdin=b"first\n\nsecond\n")
    assert result.status == 0 and result.out == "One.\nTwo.\n"
    assert stand.prompts == [chat_ids(("user", "first")), chat_ids(("user", "first"), ("assistant", "One."), ("user", "second"))]
    assert "cached" in result.err and result.err.count("prompt: ") == 2
    assert len(stand.loads) == 1 and stand.model is not None and stand.model.closed == 1


def test_exit_clear_and_unknown_commands(cli: CommandLine, stand: Stand) -> None:
    result = cli("chat", "--system", "be kind", stdin=b"first\n/clear\n/what\nsecond\n/exit\nunread\n")
    assert result.status == 0 and result.out == "Hello!\nHello!\n"
    assert stand.prompts[1] == chat_ids(("system", "be kind"), ("user", "second"))
    assert "/what" in result.err and "/regen" in result.err


def test_regen_asks_again_with_another_seed(cli: CommandLine, stand: Stand) -> None:
    stand.replies = [b"One.", b"Other."]
    result = cli("chat", "-s", "5", stdin=b"first\n/regen\nsecond\n")
    assert result.out.startswith("One.\nOther.\n")
    assert stand.prompts[0] == stand.prompts[1]
    assert stand.prompts[2] == chat_ids(("user", "first"), ("assistant", "Other."), ("user", "second"))
    assert "seed: 5" in result.err and "seed: 6" in result.err


def test_regen_without_an_answer(cli: CommandLine, stand: Stand) -> None:
    result = cli("chat", stdin=b"/regen\n")
    assert result.status == 0 and "no answer yet" in result.err


def test_save(cli: CommandLine, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("chat", stdin=f"grün\n/save {tmp_path / 'talk.json'}\n/save\n/save /no/such/folder/x\n".encode())
    saved = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert saved == [{"role": "user", "content": "grün"}, {"role": "assistant", "content": "Hello!"}]
    (named,) = tmp_path.glob("chat-*.json")
    assert json.loads(named.read_text(encoding="utf-8")) == saved
    assert result.status == 0 and "/no/such/folder/x" in result.err


def test_ctrl_c_stops_the_answer_only(cli: CommandLine, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.replies = [b"One two three.", b"Again."]
    answered = stand._next

    def interrupt(ids: list[int]) -> int:
        if len(stand.prompts) == 1 and len(ids) > len(stand.prompts[0]) + 2:
            raise KeyboardInterrupt
        return answered(ids)

    monkeypatch.setattr(stand, "_next", interrupt)
    result = cli("chat", stdin=b"first\nsecond\n")
    assert result.status == 0 and result.out == "One\nAgain.\n"
    assert stand.prompts[1] == chat_ids(("user", "first"), ("assistant", "One"), ("user", "second"))


def test_ctrl_c_before_the_answer_forgets_the_question(cli: CommandLine, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = stand._next

    def interrupt(ids: list[int]) -> int:
        if len(stand.prompts) == 1:
            raise KeyboardInterrupt
        return answered(ids)

    monkeypatch.setattr(stand, "_next", interrupt)
    assert cli("chat", stdin=b"first\nsecond\n").status == 0
    assert stand.prompts[1] == chat_ids(("user", "second"))


def test_an_error_ends_the_answer_only(cli: CommandLine, stand: Stand) -> None:
    stand.n_ctx = 60
    result = cli("chat", stdin=b"x" * 100 + b"\nshort\n")
    assert result.status == 0 and result.out == "Hello!\n"
    assert "60" in result.err and stand.prompts[-1] == chat_ids(("user", "short"))


def test_old_turns_are_left_out_and_that_is_said(cli: CommandLine, stand: Stand) -> None:
    stand.n_ctx = 80
    result = cli("chat", "--system", "kind", stdin=b"aaaaaaaaaaaaaaaaaaaa\nbbbbbbbbbbbbbbbbbbbb\ncccccc\n")
    assert result.status == 0 and result.out == "Hello!\n" * 3
    assert "left out the oldest turn of the conversation" in result.err
    assert stand.prompts[-1][: len("system:kind") + 1] == chat_ids(("system", "kind"))[: len("system:kind") + 1]


def test_raw_puts_the_texts_one_after_the_other(cli: CommandLine, stand: Stand) -> None:
    cli("chat", "--raw", stdin=b"first\nsecond\n")
    assert bytes(stand.prompts[1][1:]) == b"firstHello!second"


def test_single_turn(cli: CommandLine, stand: Stand) -> None:
    assert cli("chat", "-st", "-q", stdin=b"first\nsecond\n").out == "Hello!\n"
    assert len(stand.prompts) == 1


def test_model_without_a_template(cli: CommandLine, stand: Stand) -> None:
    stand.template = False
    result = cli("chat", "-q", stdin=b"first\n")
    assert "template" in result.err and result.out == ""
