"""The generation loop: evaluate, choose, repeat.

Knows token ids, a `TokenModel` and a `Sampler`, never a tokenizer, text or a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ContextOverflowError, IndexOutOfRange, InvalidArgument
from .sampling import Sampler, SamplingParams, token_logprobs

FinishReason = Literal["stop", "length"]
Progress = Callable[[int, int], object]


class TokenModel(Protocol):
    """What the loop asks of a model: one sequence of tokens with a cache of what was evaluated."""

    @property
    def n_ctx(self) -> int:
        """How many tokens the cache can hold."""

    @property
    def n_vocab(self) -> int:
        """Width of a row of logits."""

    @property
    def cached_ids(self) -> Sequence[int]:
        """The tokens that the cache holds, oldest first."""

    def rewind(self, n: int) -> None:
        """Keep the first n cached tokens."""

    def forward(self, ids: Sequence[int], on_progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Append `ids` (at least one) to the cache; logits [n_vocab] after the last. Valid until the next call."""

    def forward_all(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Append `ids` to the cache; logits [len(ids), n_vocab]."""


@dataclass(frozen=True)
class Usage:
    """Token counts. `cached_tokens` of the prompt were in the cache already and cost nothing."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Timings:
    """Time inside the model and the sampler; what the caller does between two tokens does not count.

    prompt_per_second     prompt tokens evaluated (cached ones excluded) per second
    predicted_per_second  decode steps per second. The first token comes from the prompt's logits: n tokens take n - 1 steps.
    """

    prompt_ms: float
    prompt_per_second: float
    predicted_ms: float
    predicted_per_second: float


@dataclass(frozen=True)
class TokenStep:
    """One turn of the loop. `token` is None when there was room for no token; `finish_reason` is set on the last step."""

    token: int | None
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None
    finish_reason: FinishReason | None = None


def checked_ids(ids: Sequence[int], n_vocab: int, what: str) -> list[int]:
    """`ids` as a list of Python integers, each in [0, n_vocab), at least one.

    Raises InvalidArgument (none, or no integers) or IndexOutOfRange (names id and position).
    """
    if isinstance(ids, (str, bytes)):
        raise InvalidArgument(f"{what}: expected token ids, got text {ids[:20]!r}")
    try:
        array: npt.NDArray[Any] = np.asarray(ids)
    except ValueError:  # rows of different lengths
        raise InvalidArgument(f"{what}: expected a flat sequence of integers, got nested ones") from None
    if array.size == 0:
        raise InvalidArgument(f"{what}: expected at least one token, got none")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(f"{what}: expected a flat sequence of integers, got {array.dtype} of shape {array.shape}")
    outside = np.flatnonzero((array < 0) | (array >= n_vocab))
    if outside.size:
        at = int(outside[0])
        raise IndexOutOfRange(f"{what}: expected ids in [0, {n_vocab}), got {array[at]} [position {at}]")
    checked: list[int] = array.tolist()
    return checked


def check_context(n_tokens: int, n_ctx: int, what: str) -> None:
    """Raises ContextOverflowError, naming both numbers, if the tokens do not fit."""
    if n_tokens > n_ctx:
        raise ContextOverflowError(
            f"{what}: expected at most {n_ctx} tokens (the context), got {n_tokens}: shorten it or load the model with a larger n_ctx"
        )


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are the same."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, at C's speed
        return n
    return next(i for i in range(n) if a[i] != b[i])


def evaluate(model: TokenModel, ids: Sequence[int], on_progress: Progress | None = None) -> tuple[npt.NDArray[np.float32], int]:
    """Makes the cache hold exactly `ids`, reusing what it holds already.

    Returns the logits [n_vocab] after the last id, and how many ids did not have to be evaluated. The last one always is.
    """
    cached = list(model.cached_ids)
    reused = common_prefix(cached, list(ids[:-1]))
    if reused < len(cached):
        model.rewind(reused)
    return model.forward(ids[reused:], on_progress), reused


class TokenGeneration:
    """An iterator of `TokenStep`s, see `generate_tokens`. Closing it stops the work; the model can be used on.

    Attributes:
        prompt: the ids that were given.
        tokens: the ids chosen so far, without the one that ended generation.
        seed: what the sampler's generator was seeded with.
        finish_reason: None until the last step.
    """

    def __init__(
        self,
        model: TokenModel,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        eog_ids: Collection[int] = frozenset(),
        n_tokens: int | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.prompt = checked_ids(prompt, model.n_vocab, "generate: prompt")
        check_context(len(self.prompt), model.n_ctx, "generate: prompt")
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._model, self._params, self._on_progress = model, params, on_progress
        self._eog_ids = frozenset(eog_ids)
        self._sampler = Sampler(params, self._eog_ids if params.ignore_eos else (), n_tokens)
        self._cached = self._decode_steps = 0
        self._prompt_seconds = self._predicted_seconds = 0.0
        self.seed = self._sampler.seed
        self._steps = self._run()

    def __iter__(self) -> Iterator[TokenStep]:
        return self

    def __next__(self) -> TokenStep:
        return next(self._steps)

    def close(self) -> None:
        """Ends the generation early."""
        self._steps.close()

    @property
    def evaluated_ids(self) -> list[int]:
        """What the cache must hold for the next step: all but the last token, which that step evaluates."""
        return self.prompt + self.tokens[:-1]

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        n_prompt, n = len(self.prompt), len(self.tokens)
        return Usage(prompt_tokens=n_prompt, completion_tokens=n, total_tokens=n_prompt + n, cached_tokens=self._cached)

    @property
    def timings(self) -> Timings:
        """Times so far."""
        evaluated = len(self.prompt) - self._cached if self._prompt_seconds else 0
        return Timings(
            prompt_ms=self._prompt_seconds * 1e3,
            prompt_per_second=evaluated / self._prompt_seconds if self._prompt_seconds else 0.0,
            predicted_ms=self._predicted_seconds * 1e3,
            predicted_per_second=self._decode_steps / self._predicted_seconds if self._decode_steps else 0.0,
        )

    def _run(self) -> Generator[TokenStep, None, None]:  # a generator, so that close() and errors end it for good
        model, params = self._model, self._params
        room = model.n_ctx - len(self.prompt)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        history = list(self.prompt)
        started = time.perf_counter()
        logits, self._cached = evaluate(model, self.prompt, self._on_progress)
        self._prompt_seconds = time.perf_counter() - started
        if limit == 0:
            self.finish_reason = "length"
            yield TokenStep(None, finish_reason="length")
        while self.finish_reason is None:
            started = time.perf_counter()
            if self.tokens:
                logits = model.forward(history[-1:])
                self._decode_steps += 1
            token = self._sampler(logits, history)
            logprob, best = token_logprobs(logits, token, params.logprobs) if params.logprobs else (None, None)
            if token in self._eog_ids:
                self.finish_reason = "stop"
            else:
                self.tokens.append(token)
                history.append(token)
                if len(self.tokens) == limit:
                    self.finish_reason = "length"
            self._predicted_seconds += time.perf_counter() - started
            yield TokenStep(token, logprob, best, self.finish_reason)


def generate_tokens(
    model: TokenModel,
    prompt: Sequence[int],
    params: SamplingParams | None = None,
    *,
    eog_ids: Collection[int] = frozenset(),
    n_tokens: int | None = None,
    on_progress: Progress | None = None,
) -> TokenGeneration:
    """Tokens that continue `prompt`, one `TokenStep` each.

    The last step has a finish reason: "stop" (its token is one of `eog_ids`, which is not among the generation's
    `tokens`) or "length" (max_tokens reached, or prompt and tokens fill the context). Nothing is evaluated before the
    first step, and of the prompt only what the model's cache does not hold yet.

    Args:
        model: evaluates tokens; nobody else may use it during a step, see `evaluated_ids` for between steps.
        prompt: token ids, at least one.
        params: how to choose; default `SamplingParams()`.
        eog_ids: ids that end generation; with `ignore_eos` they are never chosen.
        n_tokens: choose only ids below this.
        on_progress: called with (done, total) prompt tokens while the prompt is evaluated.

    Raises:
        InvalidArgument, IndexOutOfRange: the prompt is empty or holds something that is no token id.
        ContextOverflowError: the prompt is longer than the context.
    """
    params = SamplingParams() if params is None else params
    return TokenGeneration(model, prompt, params, eog_ids=eog_ids, n_tokens=n_tokens, on_progress=on_progress)
