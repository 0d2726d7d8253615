"""generate_tokens: what is evaluated, when it ends, what it reports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_model import EOS, EOT, N_VOCAB, MockModel, replies

from llamita.engine.errors import ContextOverflowError, IndexOutOfRange, InvalidArgument, ModelFileError
from llamita.engine.generation import SamplingParams, generate_tokens
from llamita.engine.generation.loop import common_prefix, evaluate

GREEDY = SamplingParams(temperature=0)


def greedy_reference(model: MockModel, prompt: list[int], n: int) -> list[int]:
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(model.logits_after(ids).argmax()))
    return ids[len(prompt) :]


def test_greedy_tokens() -> None:
    model = MockModel()
    run = generate_tokens(model, [1, 2, 3], SamplingParams(temperature=0, max_tokens=10))
    steps = list(run)
    assert [s.token for s in steps] == run.tokens == greedy_reference(model, [1, 2, 3], 10)
    assert [s.finish_reason for s in steps] == [None] * 9 + ["length"]
    assert model.calls == [[1, 2, 3], *([t] for t in run.tokens[:-1])]  # one token a step; the last is not evaluated


@pytest.mark.parametrize("end", [EOS, EOT])
def test_every_end_of_generation_token_ends_it(end: int) -> None:
    run = generate_tokens(MockModel(choose=replies(b"abc", 1, end)), [9], GREEDY, eog_ids={EOS, EOT})
    steps = list(run)
    assert [s.token for s in steps] == [*b"abc", end]
    assert (steps[-1].finish_reason, run.finish_reason) == ("stop", "stop")
    assert run.tokens == list(b"abc")  # what ends it is not part of it
    assert run.usage.completion_tokens == 3


def test_ignore_eos_never_chooses_one() -> None:
    model = MockModel(choose=lambda ids: EOS)
    run = generate_tokens(model, [9], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), eog_ids={EOS, EOT})
    list(run)
    assert len(run.tokens) == 5 and not {EOS, EOT} & set(run.tokens)
    assert run.finish_reason == "length"


def test_the_context_is_a_limit() -> None:
    run = generate_tokens(MockModel(n_ctx=8), [1, 2, 3], GREEDY)
    list(run)
    assert run.finish_reason == "length" and run.usage.total_tokens == 8


@pytest.mark.parametrize("max_tokens", [None, 0])
def test_no_room_for_a_token(max_tokens: int | None) -> None:
    model = MockModel(n_ctx=3 if max_tokens is None else 8)
    run = generate_tokens(model, [1, 2, 3], SamplingParams(max_tokens=max_tokens))
    assert [(s.token, s.finish_reason) for s in run] == [(None, "length")]
    assert model.cached_ids == [1, 2, 3]


def test_a_prompt_that_is_too_long_costs_nothing() -> None:
    model = MockModel(n_ctx=4)
    with pytest.raises(ContextOverflowError, match=r"at most 4 tokens.*got 5"):
        generate_tokens(model, [1] * 5)
    assert model.calls == []


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ([], InvalidArgument, "at least one token, got none"),
        ([1, N_VOCAB, 2], IndexOutOfRange, rf"\[0, {N_VOCAB}\), got {N_VOCAB} \[position 1\]"),
        ([-1], IndexOutOfRange, "got -1"),
        ([1.5], InvalidArgument, "float64"),
        ([[1, 2], [3]], InvalidArgument, "nested"),
        ([[1, 2]], InvalidArgument, r"shape \(1, 2\)"),
        ("text", InvalidArgument, "text 'text'"),
        ([True], InvalidArgument, "bool"),
        ([None], InvalidArgument, "object"),
    ],
)
def test_prompts_that_are_none(prompt: list[int], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        generate_tokens(MockModel(), prompt)


def test_prompts_of_any_integer_sequence() -> None:
    for prompt in ([1, 2], (1, 2), np.array([1, 2], dtype=np.uint16), range(1, 3)):
        assert generate_tokens(MockModel(), prompt).prompt == [1, 2]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_only_what_is_new_is_evaluated(cached: list[int], ids: list[int]) -> None:
    model = MockModel()
    if cached:
        model.forward(cached)
    before = len(model.calls)
    logits, reused = evaluate(model, ids)
    expected = 0
    while expected < min(len(cached), len(ids) - 1) and cached[expected] == ids[expected]:
        expected += 1
    assert reused == expected
    assert model.calls[before:] == [ids[expected:]]
    assert model.cached_ids == ids
    assert np.array_equal(logits, model.logits_after(ids))


def test_the_second_turn_reuses_the_first() -> None:
    model = MockModel()
    first = generate_tokens(model, [1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    list(first)
    prompt = [1, 2, 3, *first.tokens, 7, 8]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=6)
    warm = generate_tokens(model, prompt, params)
    list(warm)
    assert warm.usage.cached_tokens == 6  # the last token of a turn was not evaluated in it
    cold = generate_tokens(MockModel(), prompt, params)
    list(cold)
    assert cold.usage.cached_tokens == 0
    assert warm.tokens == cold.tokens
    assert warm.usage.prompt_tokens == cold.usage.prompt_tokens == 9


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2


def test_seed_is_reported_and_reproduces() -> None:
    run = generate_tokens(MockModel(), [1], SamplingParams(max_tokens=20))
    list(run)
    again = generate_tokens(MockModel(), [1], SamplingParams(max_tokens=20, seed=run.seed))
    list(again)
    assert run.tokens == again.tokens


def test_logprobs_belong_to_the_position_that_produced_the_token() -> None:
    model = MockModel()
    run = generate_tokens(model, [1, 2], SamplingParams(temperature=0, max_tokens=5, logprobs=3, repeat_penalty=1.7))
    for i, step in enumerate(run):
        raw = model.logits_after([1, 2, *run.tokens[:i]]).astype(np.float64)
        expected = raw - np.log(np.exp(raw).sum())
        assert step.logprob == pytest.approx(expected[step.token], abs=1e-5)
        assert list(step.top_logprobs) == np.argsort(-expected)[:3].tolist()


def test_no_logprobs_unless_asked_for() -> None:
    step = next(generate_tokens(MockModel(), [1]))
    assert step.logprob is None and step.top_logprobs is None


def test_closing_leaves_the_model_usable() -> None:
    model = MockModel()
    run = generate_tokens(model, [1, 2, 3], GREEDY)
    next(run)
    next(run)
    run.close()
    assert list(run) == []
    again = generate_tokens(model, [1, 2, 3], SamplingParams(temperature=0, max_tokens=5))
    assert [s.token for s in again] == greedy_reference(MockModel(), [1, 2, 3], 5)


def test_nothing_is_evaluated_before_the_first_step() -> None:
    model = MockModel()
    generate_tokens(model, [1, 2, 3]).close()
    assert model.calls == []


def test_progress_of_the_prompt() -> None:
    seen: list[tuple[int, int]] = []
    next(generate_tokens(MockModel(), [1, 2, 3], on_progress=lambda done, total: seen.append((done, total))))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_an_interrupted_prompt_leaves_the_model_usable() -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    model = MockModel()
    with pytest.raises(KeyboardInterrupt):
        next(generate_tokens(model, [1, 2, 3, 4], on_progress=interrupt))
    again = generate_tokens(model, [1, 2, 3, 4], SamplingParams(temperature=0, max_tokens=3))
    assert [s.token for s in again] == greedy_reference(MockModel(), [1, 2, 3, 4], 3)


def test_timings() -> None:
    run = generate_tokens(MockModel(), [1, 2, 3], SamplingParams(max_tokens=3, temperature=0))
    assert run.timings.prompt_per_second == 0 and run.timings.predicted_per_second == 0
    list(run)
    times = run.timings
    assert times.prompt_per_second == pytest.approx(3 / times.prompt_ms * 1e3)
    assert times.predicted_per_second == pytest.approx(2 / times.predicted_ms * 1e3)
    warm = generate_tokens(run._model, [1, 2, 3], SamplingParams(max_tokens=1))
    list(warm)
    assert warm.timings.prompt_per_second == pytest.approx(1 / warm.timings.prompt_ms * 1e3)  # cached tokens do not count
    assert warm.timings.predicted_per_second == 0


def test_a_broken_model_is_named() -> None:
    model = MockModel()
    model.logits_after = lambda ids: np.full(N_VOCAB, np.nan, dtype=np.float32)
    with pytest.raises(ModelFileError, match="got nan for token 0"):
        list(generate_tokens(model, [1]))
