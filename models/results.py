"""What a generation hands out: chunks while it runs, a completion when it is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..engine.errors import LlamitaError
from ..engine.generation import FinishReason, Timings, Usage


@dataclass(frozen=True)
class Chunk:
    """One step of a generation. The texts of all chunks, joined, are the whole text.

    text             whole characters; "" while a character or a possible stop string is still incomplete
    token            the id that was chosen; None if this step adds none (the model ended, or there was no room)
    logprob          its log-probability under the raw logits; None unless `logprobs` was asked for
    top_logprobs     {id: log-probability} of the best ids, best first; None unless asked for
    finish_reason    None, and in the last chunk "stop" (the model ended, or a stop string) or "length" (a limit was hit)
    stop             in the last chunk: the stop string that was found, if one was
    usage, timings, seed   in the last chunk
    dropped_turns    how many of a chat's oldest turns did not fit into the context
    """

    text: str
    token: int | None = None
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None
    finish_reason: FinishReason | None = None
    stop: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    seed: int | None = None
    dropped_turns: int = 0


@dataclass(frozen=True)
class Completion:
    """A finished generation. `tokens` are all ids that were chosen, those of a stop string included, an end token not.

    The other fields are those of `Chunk`; `logprobs` and `top_logprobs` have one entry a token if they were asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    stop: str | None = None
    logprobs: list[float] | None = field(default=None, repr=False)
    top_logprobs: list[dict[int, float]] | None = field(default=None, repr=False)
    dropped_turns: int = 0

    @classmethod
    def from_chunks(cls, chunks: Iterable[Chunk]) -> Completion:
        """Runs a generation to its end: `Completion.from_chunks(llm.chat(messages))`.

        Raises LlamitaError if the chunks end without a last one.
        """
        texts: list[str] = []
        tokens: list[int] = []
        logprobs: list[float] = []
        best: list[dict[int, float]] = []
        last: Chunk | None = None
        for last in chunks:
            texts.append(last.text)
            if last.token is not None:
                tokens.append(last.token)
            if last.logprob is not None:
                logprobs.append(last.logprob)
            if last.top_logprobs is not None:
                best.append(last.top_logprobs)
        if last is None or last.finish_reason is None or last.usage is None or last.timings is None or last.seed is None:
            raise LlamitaError("completion: expected chunks up to one with a finish_reason, got a generation that was cut off")
        return cls(
            text="".join(texts),
            tokens=tokens,
            finish_reason=last.finish_reason,
            usage=last.usage,
            timings=last.timings,
            seed=last.seed,
            stop=last.stop,
            logprobs=logprobs or None,
            top_logprobs=best or None,
            dropped_turns=last.dropped_turns,
        )
