"""Perplexity of a text, by llama-perplexity's rule, so that the numbers can be compared with those published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..engine.errors import InvalidArgument
from ..engine.generation import TokenModel

_PIECE = 64  # positions whose logits are held at once


@dataclass(frozen=True)
class Perplexity:
    """After `chunks` of `n_chunks`: the perplexity of all scored tokens so far and its standard error."""

    chunks: int
    n_chunks: int
    value: float
    error: float

    @property
    def text(self) -> str:
        """What llama-perplexity prints: "[1]8.0517," and after the last chunk its line with the final estimate."""
        running = f"[{self.chunks}]{self.value:.4f},"
        return running if self.chunks < self.n_chunks else f"{running}\nFinal estimate: PPL = {self.value:.4f} +/- {self.error:.5f}\n"


def perplexity(
    decoder: TokenModel, ids: Sequence[int], n_ctx: int = 512, bos: int | None = None, max_chunks: int | None = None
) -> Iterator[Perplexity]:
    """Perplexity of the text with token ids `ids`, after each chunk.

    The text is cut into chunks of `n_ctx` tokens, the rest is left out; the first token of each is replaced by `bos` if
    there is one; a token is scored if at least n_ctx / 2 others of its chunk precede it.

    Raises InvalidArgument when there are fewer than 2 * n_ctx tokens, or n_ctx is below 4 or above the decoder's context.
    """
    if n_ctx < 4:
        raise InvalidArgument(f"perplexity: chunk length: expected at least 4 tokens, got {n_ctx}")
    if n_ctx > decoder.n_ctx:
        raise InvalidArgument(f"perplexity: chunk length: expected at most {decoder.n_ctx} tokens (the context), got {n_ctx}")
    if len(ids) < 2 * n_ctx:
        what = f"expected at least {2 * n_ctx} tokens (two chunks of {n_ctx}), got {len(ids)}"
        raise InvalidArgument(f"perplexity: text: {what}: use a longer text or shorter chunks")
    n_chunks = len(ids) // n_ctx if max_chunks is None else min(len(ids) // n_ctx, max_chunks)
    return _scored(decoder, ids, n_ctx, bos, n_chunks)


def _scored(decoder: TokenModel, ids: Sequence[int], n_ctx: int, bos: int | None, n_chunks: int) -> Iterator[Perplexity]:
    total = squares = 0.0
    count = 0
    for index in range(n_chunks):
        chunk = list(ids[index * n_ctx : (index + 1) * n_ctx])
        if bos is not None:
            chunk[0] = bos
        losses = _losses(decoder, chunk, n_ctx // 2)
        total += float(losses.sum())
        squares += float((losses * losses).sum())
        count += losses.size
        mean = total / count
        variance = squares / count - mean * mean
        value = math.exp(mean)
        error = value * math.sqrt(variance / (count - 1)) if variance > 0 and count > 1 else 0.0
        yield Perplexity(index + 1, n_chunks, value, error)


def _losses(decoder: TokenModel, chunk: list[int], first: int) -> npt.NDArray[np.float64]:
    """-log p of chunk[first + 1:], each given what precedes it."""
    decoder.rewind(0)
    if first:
        decoder.forward(chunk[:first])
    losses = []
    for start in range(first, len(chunk) - 1, _PIECE):
        piece = chunk[start : min(start + _PIECE, len(chunk) - 1)]
        logits = decoder.forward_all(piece).astype(np.float64)
        targets = chunk[start + 1 : start + 1 + len(piece)]
        top = logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        losses.append(log_sum - logits[np.arange(len(piece)), targets])
    return np.concatenate(losses)
