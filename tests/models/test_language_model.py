"""LanguageModel over a mock decoder and a byte tokenizer."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_model import BOS, EOS, EOT, N_VOCAB, ByteTokenizer, MockModel, MockTemplate, replies

import llamita
from llamita import Chunk, Completion, LanguageModel
from llamita.engine.errors import (
    ClosedError,
    ContextOverflowError,
    IndexOutOfRange,
    InvalidArgument,
    LlamitaError,
    TemplateError,
    TokenizerError,
    UnsupportedModelError,
)
from llamita.models import turns as turns_module

PROMPT = [BOS, *b"hi"]


def make(decoder: MockModel | None = None, **decoder_options: object) -> LanguageModel:
    decoder = MockModel(**decoder_options) if decoder is None else decoder
    return LanguageModel(decoder, ByteTokenizer(), MockTemplate(), decoder.config, {"general.name": "mock"}, resources=(decoder,))


def saying(reply: str | bytes | Sequence[int], prompt_length: int = len(PROMPT), n_ctx: int = 200, end: int = EOS) -> LanguageModel:
    data = reply.encode() if isinstance(reply, str) else reply
    return make(MockModel(n_ctx, replies(data, prompt_length, end)))


# ---- text


@pytest.mark.parametrize("end", [EOS, EOT])
def test_generate_until_the_model_ends(end: int) -> None:
    chunks = list(saying("Hello!", end=end).generate("hi", temperature=0))
    assert [c.text for c in chunks] == [*"Hello!", ""]
    assert [c.token for c in chunks] == [*b"Hello!", None]
    assert [c.finish_reason for c in chunks] == [None] * 6 + ["stop"]
    assert all(c.usage is c.timings is c.seed is None for c in chunks[:-1])
    last = chunks[-1]
    assert last.usage == llamita.Usage(prompt_tokens=3, completion_tokens=6, total_tokens=9, cached_tokens=0)
    assert last.timings is not None and last.timings.predicted_per_second > 0
    assert isinstance(last.seed, int) and last.stop is None


def test_the_last_chunk_of_a_limit_carries_its_token() -> None:
    chunks = list(make().generate("hi", max_tokens=4))
    assert len(chunks) == 4 and all(c.token is not None for c in chunks)
    assert chunks[-1].finish_reason == "length" and chunks[-1].usage.completion_tokens == 4


def test_complete_is_the_chunks_joined() -> None:
    chunks = list(make().generate("hi", seed=4, max_tokens=30, logprobs=2, stop=["q"]))
    done = make().complete("hi", seed=4, max_tokens=30, logprobs=2, stop=["q"])
    assert done.text == "".join(c.text for c in chunks)
    assert done.tokens == [c.token for c in chunks if c.token is not None]
    assert done.logprobs == [c.logprob for c in chunks if c.token is not None]
    assert done.top_logprobs == [c.top_logprobs for c in chunks if c.token is not None]
    assert (done.finish_reason, done.seed, done.usage, done.stop) == (
        chunks[-1].finish_reason,
        4,
        chunks[-1].usage,
        chunks[-1].stop,
    )
    assert make().complete("hi", seed=4, max_tokens=1).logprobs is None


def test_a_character_is_never_split() -> None:
    text = "né 🙂 日本\n"
    chunks = list(saying(text).generate("hi", temperature=0))
    assert "".join(c.text for c in chunks) == text
    assert all("�" not in c.text for c in chunks)
    assert [c.text for c in chunks[:4]] == ["n", "", "é", " "]


def test_bytes_that_never_become_a_character() -> None:
    done = saying(b"a\xf0\x9f").complete("hi", temperature=0)
    assert done.text == "a�"
    done = saying(b"a\xf0\x9f\x99\x82").complete("hi", temperature=0, max_tokens=2)
    assert (done.text, done.finish_reason) == ("a�", "length")


@settings(max_examples=60, deadline=None)
@given(st.text("ab\n🙂é", max_size=20), st.lists(st.text("ab\n🙂é", min_size=1, max_size=5), max_size=3))
def test_stop_strings_are_found_in_the_text(text: str, stops: list[str]) -> None:
    done = saying(text).complete("hi", temperature=0, stop=stops)
    found = [(text.find(s), len(s), s) for s in stops if s in text]
    assert done.text == (text[: min(found)[0]] if found else text)
    assert done.stop == (min(found)[2] if found else None)
    assert done.finish_reason == "stop"


def test_a_stop_string_ends_the_work() -> None:
    llm = saying("one. two. three.")
    chunks = list(llm.generate("hi", temperature=0, stop=". t"))
    assert "".join(c.text for c in chunks) == "one"
    assert [c.token for c in chunks] == list(b"one. t")  # what was evaluated is reported
    assert chunks[-1].stop == ". t" and chunks[-1].usage.completion_tokens == 6
    assert llm.decoder.cached_ids == [*PROMPT, *b"one. "]


def test_a_stop_string_that_is_complete_at_the_limit() -> None:
    done = saying("abcabd").complete("hi", temperature=0, stop=["bc", "abcabx"], max_tokens=4)
    assert (done.text, done.stop, done.finish_reason) == ("a", "bc", "stop")


def test_stop_strings_are_not_looked_for_in_the_prompt() -> None:
    assert saying("xi").complete("hi", temperature=0, stop="hi").text == "xi"


def test_ignore_eos() -> None:
    done = saying("ok", n_ctx=20).complete("hi", temperature=0, ignore_eos=True)
    assert done.finish_reason == "length" and done.usage.total_tokens == 20
    assert not {EOS, EOT} & set(done.tokens)


def test_ids_wider_than_the_vocabulary_are_never_chosen() -> None:
    wide = MockModel(choose=lambda ids: N_VOCAB - 1)  # the byte tokenizer has one id less
    done = make(wide).complete("hi", max_tokens=5, temperature=0)
    assert N_VOCAB - 1 not in done.tokens


# ---- prompts


def test_exactly_one_bos() -> None:
    llm = make()
    for prompt in ("hi", "<bos>hi"):
        llm.complete(prompt, max_tokens=0)
        assert llm.decoder.cached_ids == PROMPT
    llm.complete("<bos>hi", max_tokens=0, parse_special=False)
    assert llm.decoder.cached_ids == [BOS, *b"<bos>hi"]


def test_the_empty_prompt_is_bos() -> None:
    llm = make()
    assert llm.complete("", max_tokens=1).usage.prompt_tokens == 1
    llm.tokenizer.add_bos = False
    llm.complete("", max_tokens=0)
    assert llm.decoder.cached_ids == [BOS]
    llm.tokenizer.bos_id = None
    with pytest.raises(InvalidArgument, match="at least one token"):
        llm.generate("")
    with pytest.raises(InvalidArgument, match="at least one token"):
        llm.generate([])


def test_an_end_token_that_the_tokenizer_adds_is_not_prompted() -> None:
    llm = make()
    llm.tokenizer.add_eos = True
    llm.complete("hi", max_tokens=0)
    assert llm.decoder.cached_ids == PROMPT


def test_prompts_of_ids() -> None:
    llm = saying("Hello")
    assert llm.complete(PROMPT, temperature=0).text == "Hello"
    assert llm.complete(np.array(PROMPT), temperature=0).text == "Hello"


def test_a_prompt_that_ends_within_a_character() -> None:
    smile = "🙂".encode()
    assert saying(smile[2:], 3).complete([BOS, *smile[:2]], temperature=0).text == "🙂"


def test_a_prompt_that_is_too_long_raises_at_once() -> None:
    llm = make(n_ctx=8)
    with pytest.raises(ContextOverflowError, match=r"8 tokens.*got 9"):
        llm.generate("12345678")
    assert llm.decoder.calls == []


def test_the_context_ends_it_with_length() -> None:
    done = make(n_ctx=8).complete("hi")
    assert done.finish_reason == "length" and done.usage.total_tokens == 8
    done = make(n_ctx=8).complete("1234567")
    assert (done.text, done.tokens, done.finish_reason) == ("", [], "length")


# ---- options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"top_p": 7}, "top_p: .*got 7"),
        ({"temperature": -1}, "temperature: .*got -1"),
        ({"max_tokens": -5}, "max_tokens: .*got -5"),
        ({"stop": ["a", ""]}, r"stop\[1\]"),
        ({"on_progress": 3}, "on_progress"),
    ],
)
def test_bad_options_raise_at_the_call(options: dict[str, object], text: str) -> None:
    for call in (make().generate, make().complete, lambda p, **o: make().chat([{"role": "user", "content": p}], **o)):
        with pytest.raises(InvalidArgument, match=text):
            call("hi", **options)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="no option 'temprature': did you mean 'temperature'"):
        make().generate("hi", temprature=1.0)
    with pytest.raises(TypeError, match="no option 'zzz': expected max_tokens, "):
        make().chat([{"role": "user", "content": "hi"}], zzz=1.0)


def test_options_match_the_sampling_parameters() -> None:
    from dataclasses import fields

    from llamita.engine.generation import SamplingParams
    from llamita.models.language_model import GenerationOptions

    assert [*GenerationOptions.__annotations__] == [*(f.name for f in fields(SamplingParams)), "stop", "on_progress"]


def test_stop_none_is_no_stop() -> None:
    assert saying("ok").complete("hi", temperature=0, stop=None).text == "ok"


def test_seeds() -> None:
    llm = make()
    first = llm.complete("hi", temperature=1.5, max_tokens=30)
    assert llm.complete("hi", temperature=1.5, max_tokens=30, seed=first.seed).tokens == first.tokens
    assert llm.complete("hi", temperature=1.5, max_tokens=30, seed=first.seed).tokens == first.tokens
    other = llm.complete("hi", temperature=1.5, max_tokens=30)
    assert other.seed != first.seed and other.tokens != first.tokens


def test_logprobs() -> None:
    llm = make()
    for i, chunk in enumerate(chunks := list(llm.generate(PROMPT, max_tokens=5, logprobs=3, seed=1))):
        raw = llm.decoder.logits_after([*PROMPT, *(c.token for c in chunks[:i])]).astype(np.float64)
        assert chunk.logprob == pytest.approx((raw - np.log(np.exp(raw).sum()))[chunk.token], abs=1e-5)
        assert list(chunk.top_logprobs) == np.argsort(-raw)[:3].tolist()


def test_progress_and_cancel_during_the_prompt() -> None:
    llm, seen = make(), []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.complete("abcd", on_progress=progress)
    assert seen == [(1, 5), (2, 5)]
    assert llm.complete("abcd", temperature=0, max_tokens=4).tokens == make().complete("abcd", temperature=0, max_tokens=4).tokens


# ---- cache


def test_the_second_turn_evaluates_only_what_is_new() -> None:
    chat = [{"role": "user", "content": "a"}]
    prompt = len(make().apply_chat_template(chat))
    warm = saying("fine", prompt)
    first = Completion.from_chunks(warm.chat(chat, temperature=0))
    chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "b"}]
    warm.decoder.choose = None
    second = Completion.from_chunks(warm.chat(chat, seed=3, max_tokens=20))
    assert second.usage.cached_tokens == prompt + len(b"fine")
    cold = Completion.from_chunks(make(n_ctx=200).chat(chat, seed=3, max_tokens=20))
    assert cold.tokens == second.tokens and cold.usage.cached_tokens == 0


def test_logits_start_from_an_empty_cache() -> None:
    llm = make()
    llm.complete("hi", max_tokens=5)
    got = llm.logits(PROMPT)
    assert got.dtype == np.float32 and got.shape == (3, N_VOCAB)
    assert np.array_equal(got, [llm.decoder.logits_after(PROMPT[:n]) for n in (1, 2, 3)])
    assert llm.complete(PROMPT, max_tokens=1).usage.cached_tokens == 2


@pytest.mark.parametrize(
    ("ids", "error"), [([], InvalidArgument), ([N_VOCAB], IndexOutOfRange), ("hi", InvalidArgument), ([1] * 65, ContextOverflowError)]
)
def test_logits_of_bad_ids(ids: list[int], error: type[Exception]) -> None:
    with pytest.raises(error, match="logits: ids"):
        make().logits(ids)


# ---- chat


def test_chat_renders_the_template() -> None:
    llm = make()
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "<eot>u"}]
    list(llm.chat(messages, max_tokens=0))
    ids = [BOS, *b"system:s", EOT, *b"user:<eot>u", EOT, *b"assistant:"]
    assert llm.decoder.cached_ids == ids == llm.apply_chat_template(messages)
    list(llm.chat(messages, max_tokens=0, template_kwargs={"mark": "!"}))
    assert llm.decoder.cached_ids[-1] == ord("!")
    assert messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "<eot>u"}]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("hi", "expected a list of .*got str"),
        ({"role": "user", "content": "hi"}, "got dict"),
        ([], "at least one, got none"),
        (["hi"], r"messages\[0\]: expected a mapping .*got str"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], r"messages\[1\]: role: expected a string, got nothing"),
        ([{"role": "user"}], r"messages\[0\]: content: expected a string, got nothing"),
        ([{"role": "user", "content": None}], "content: expected a string, got NoneType"),
        ([{"role": "usr", "content": "a"}], "role: expected one of system, .*got 'usr'"),
    ],
)
def test_malformed_messages(messages: object, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make().chat(messages)


def turns_of(n: int, size: int = 4) -> list[dict[str, str]]:
    pairs = [({"role": "user", "content": chr(97 + i) * size}, {"role": "assistant", "content": chr(65 + i) * size}) for i in range(n)]
    return [message for pair in pairs for message in pair][:-1]


@pytest.mark.parametrize("n_ctx", range(60, 400, 17))
def test_a_long_chat_loses_its_oldest_turns(n_ctx: int, caplog: pytest.LogCaptureFixture) -> None:
    llm = make(n_ctx=n_ctx)
    messages = [{"role": "system", "content": "be brief"}, *turns_of(9)]
    with caplog.at_level(logging.WARNING, logger="llamita"):
        chunks = list(llm.chat(messages, max_tokens=3))
    dropped = chunks[-1].dropped_turns
    for n in range(dropped + 1):  # reference: drop one after the other until it fits
        ids = llm.apply_chat_template([messages[0], *messages[1 + 2 * n :]])
        assert (len(ids) + 3 <= n_ctx) == (n == dropped)
    assert llm.decoder.cached_ids[: len(ids)] == ids
    assert [f"chat: {dropped} of the oldest turns" in r.getMessage() for r in caplog.records] == [True] * bool(dropped)
    assert chunks[-1].usage.completion_tokens == 3


def test_a_quarter_of_the_context_is_kept_for_the_answer() -> None:
    llm = make(n_ctx=160)
    done = Completion.from_chunks(llm.chat(turns_of(6), ignore_eos=True))
    assert done.dropped_turns > 0
    assert 120 - 30 <= done.usage.prompt_tokens <= 120 and done.usage.total_tokens == 160


def test_the_last_turn_may_use_the_room_of_the_answer() -> None:
    llm = make(n_ctx=40)
    done = Completion.from_chunks(llm.chat([*turns_of(3), {"role": "user", "content": "x" * 15}], ignore_eos=True))
    assert (done.dropped_turns, done.usage.prompt_tokens, done.usage.total_tokens) == (3, 32, 40)


def test_a_last_turn_that_is_too_long() -> None:
    with pytest.raises(ContextOverflowError, match=r"40 tokens.*got 117"):
        make(n_ctx=40).chat([*turns_of(3), {"role": "user", "content": "x" * 100}])
    with pytest.raises(ContextOverflowError):
        make(n_ctx=40).chat([{"role": "system", "content": "x" * 100}])


# ---- what is missing


def test_a_vocabulary_without_weights() -> None:
    llm = LanguageModel(None, ByteTokenizer(), MockTemplate())
    assert llm.detokenize(llm.tokenize("hi")) == "hi"
    assert llm.config is None
    for call in (
        lambda: llm.generate("hi"),
        lambda: llm.complete([1]),
        lambda: llm.chat(turns_of(1)),
        lambda: llm.logits([1]),
        lambda: llm.n_ctx,
        lambda: llm.decoder,
    ):
        with pytest.raises(UnsupportedModelError, match="only a vocabulary"):
            call()
    llm.close()


def test_weights_without_a_tokenizer() -> None:
    llm = LanguageModel(MockModel(), None, None, tokenizer_problem=TokenizerError("WordPiece"))
    done = llm.complete([1, 2], max_tokens=3, temperature=0)
    assert done.text == "" and len(done.tokens) == 3
    assert llm.logits([1]).shape == (1, N_VOCAB)
    for call in (
        lambda: llm.generate("hi"),
        lambda: llm.generate([1], stop="x"),
        lambda: llm.chat(turns_of(1)),
        lambda: llm.tokenize("hi"),
        lambda: llm.detokenize([1]),
        lambda: llm.tokenizer,
    ):
        with pytest.raises(TokenizerError, match="WordPiece"):
            call()


def test_no_chat_template() -> None:
    llm = LanguageModel(MockModel(), ByteTokenizer())
    assert llm.chat_template is None
    with pytest.raises(TemplateError, match="got one without"):
        llm.chat(turns_of(1))


def test_tokenize_and_detokenize() -> None:
    llm = make()
    assert llm.tokenize("hi<eot>", parse_special=True) == [*PROMPT, EOT]
    assert llm.tokenize("hi", add_special=False) == list(b"hi")
    assert llm.detokenize(PROMPT) == "hi" and llm.detokenize(PROMPT, skip_special=False) == "<bos>hi"
    assert llm.detokenize([]) == ""
    with pytest.raises(InvalidArgument, match="expected a string, got bytes"):
        llm.tokenize(b"hi")
    with pytest.raises(IndexOutOfRange, match="got 999"):
        llm.detokenize([999])
    for wrong in (5, None, iter([1]), np.array(1), [[1], [2, 3]]):
        with pytest.raises(InvalidArgument, match="detokenize: ids: expected a flat sequence"):
            llm.detokenize(wrong)


# ---- closing


def test_use_after_close() -> None:
    with make() as llm:
        decoder = llm.decoder
        run = llm.generate("hi")
        next(run)
    llm.close()
    assert llm.closed and decoder.closed == 1
    calls = (
        lambda: llm.generate("hi"),
        lambda: llm.complete("hi"),
        lambda: llm.chat(turns_of(1)),
        lambda: llm.apply_chat_template(turns_of(1)),
        lambda: llm.logits([1]),
        lambda: llm.tokenize("hi"),
        lambda: llm.detokenize([1]),
        lambda: llm.metadata,
        lambda: llm.tokenizer,
        lambda: llm.n_ctx,
        lambda: llm.chat_template,
        llm.__enter__,
        lambda: next(run),
    )
    for call in calls:
        with pytest.raises(ClosedError):
            call()


def test_closing_waits_for_a_step_but_not_for_a_generation() -> None:
    llm = make()
    started, go_on = threading.Event(), threading.Event()
    decoder = llm.decoder
    decoder.before_forward = lambda: (started.set(), go_on.wait(5))
    errors: list[Exception] = []

    def work() -> None:
        try:
            llm.complete("hi", ignore_eos=True)
        except ClosedError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert started.wait(5)
    closer = threading.Thread(target=llm.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive() and decoder.closed == 0
    go_on.set()
    closer.join(5)
    worker.join(5)
    assert decoder.closed == 1 and len(errors) == 1


def test_closing_a_generation_gives_the_model_to_the_next() -> None:
    llm = make()
    run = llm.generate("hi", seed=1)
    next(run)
    run.close()
    assert list(run) == []
    worker = threading.Thread(target=lambda: llm.complete("hi", max_tokens=3))
    started = time.monotonic()
    worker.start()
    worker.join(5)
    assert time.monotonic() - started < 0.5 * turns_module.IDLE_SECONDS


@pytest.mark.parametrize("how", ["del", "break", "last"])
def test_an_abandoned_generation_gives_the_model_to_the_next(how: str) -> None:
    llm = make()
    run = llm.generate("hi", max_tokens=5)
    kept = []
    for chunk in run:
        kept.append(chunk)
        if how != "last" or chunk.finish_reason:
            break
    if how == "del":
        del run
        gc.collect()
    if how == "break":
        run = None
    done: list[Completion] = []
    worker = threading.Thread(target=lambda: done.append(llm.complete("hi", max_tokens=3)))
    started = time.monotonic()
    worker.start()
    worker.join(5)
    assert len(done) == 1 and time.monotonic() - started < 0.5 * turns_module.IDLE_SECONDS


# ---- several at once


def test_a_generation_within_another_of_the_same_thread() -> None:
    llm = make(n_ctx=200)
    alone = make(n_ctx=200).complete("outer", seed=1, max_tokens=12)
    inner_alone = make(n_ctx=200).complete("inner", seed=2, max_tokens=5)
    tokens = []
    for chunk in llm.generate("outer", seed=1, max_tokens=12):
        tokens.append(chunk.token)
        assert llm.complete("inner", seed=2, max_tokens=5).tokens == inner_alone.tokens
    assert tokens == alone.tokens


def test_two_generations_in_turn() -> None:
    expected = [make().complete(p, seed=1, max_tokens=10).tokens for p in ("left", "right")]
    llm = make()
    pairs = zip(llm.generate("left", seed=1, max_tokens=10), llm.generate("right", seed=1, max_tokens=10), strict=True)
    assert [list(t) for t in zip(*((a.token, b.token) for a, b in pairs), strict=True)] == expected


def test_threads_get_what_each_would_get_alone() -> None:
    prompts = [f"prompt {i}" for i in range(6)]
    expected = [make().complete(p, seed=i, max_tokens=15).tokens for i, p in enumerate(prompts)]
    llm = make()
    running = [0]
    most = [0]

    def watch() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.0005)
        running[0] -= 1

    llm.decoder.before_forward = watch
    got: dict[int, list[int]] = {}
    workers = [
        threading.Thread(target=lambda i=i, p=p: got.update({i: llm.complete(p, seed=i, max_tokens=15).tokens}))
        for i, p in enumerate(prompts)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert [got[i] for i in range(6)] == expected
    assert most[0] == 1
    # One after the other: no generation was disturbed, so nothing but prompts and single tokens was evaluated.
    assert sum(len(c) for c in llm.decoder.calls) <= sum(len(p) + 1 + 14 for p in prompts)


def test_a_reader_that_stalls_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "IDLE_SECONDS", 0.05)
    llm = make()
    expected = make().complete("slow", seed=1, max_tokens=8).tokens
    other: list[Completion] = []
    tokens = []
    for i, chunk in enumerate(llm.generate("slow", seed=1, max_tokens=8)):
        tokens.append(chunk.token)
        if i == 2:
            worker = threading.Thread(target=lambda: other.append(llm.complete("fast", seed=1, max_tokens=8)))
            worker.start()
            worker.join(5)
            assert len(other) == 1
    assert tokens == expected


def test_a_call_from_the_progress_callback() -> None:
    llm = make()
    with pytest.raises(LlamitaError, match="progress callback"):
        llm.complete("hi", on_progress=lambda done, total: llm.complete("x"))
    with pytest.raises(LlamitaError, match="progress callback"):
        llm.complete("ho", on_progress=lambda done, total: llm.close())
    assert len(llm.complete("hi", max_tokens=2).tokens) == 2


# ---- results


def test_a_completion_needs_a_last_chunk() -> None:
    with pytest.raises(LlamitaError, match="cut off"):
        Completion.from_chunks([Chunk("a", 1)])


def test_properties() -> None:
    llm = make()
    assert llm.config == {"n_ctx": 64} and llm.n_ctx == 64
    assert llm.metadata == {"general.name": "mock"}
    assert isinstance(llm.tokenizer, ByteTokenizer) and isinstance(llm.chat_template, MockTemplate)


def test_the_library_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    llm = make(n_ctx=60)
    Completion.from_chunks(llm.chat(turns_of(5), max_tokens=3))
    assert capfd.readouterr() == ("", "")
