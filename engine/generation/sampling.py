"""Choosing the next token from its logits.

Knows logits and token ids only. The order of the steps is llama.cpp's, so that a set of numbers means the same in both:
repeat penalty, top-k, top-p, min-p, temperature, draw. Truncation therefore sees probabilities at temperature 1.

The vocabulary is never sorted: 49 thousand logits are first cut down by a threshold, and what remains is small.
Equal logits are ordered by id, so that a result does not depend on the machine's sorting routine.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import IndexOutOfRange, InvalidArgument, ModelFileError, ShapeMismatch

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.intp]

_BLOCK = 64  # logits per column of the first cut; 64 keeps it inside one pass over memory
_SHORTLIST = 512  # a nucleus is looked for among this many first: sorting them costs less than a histogram
_BINS, _DEPTH = 2048, 32.0  # histogram of the nucleus: at most 32 nats below the best logit, the last bin holds the rest


def _integer(name: str, value: object, low: int, high: int | None = None) -> int:
    bounds = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low or (high is not None and number > high):
        raise InvalidArgument(f"sampling: {name}: expected {bounds}, got {value!r}")
    return number


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgument(f"sampling: {name}: expected a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        bounds = f"in [{low:g}, {high:g}]" if math.isfinite(high) else f">= {low:g}"
        raise InvalidArgument(f"sampling: {name}: expected a number {bounds}, got {value!r}")
    return number


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop choosing. Each field is checked; `InvalidArgument` names field and value.

    max_tokens      at most this many tokens; None or -1: until the model ends or the context is full; 0: evaluate the prompt only
    temperature     divides the logits; 0 is greedy: the largest logit, without a random number
    top_k           keep the k most likely tokens; 0 or -1: off
    top_p           keep the fewest tokens whose probabilities reach top_p; 1: off
    min_p           keep tokens at least min_p times as likely as the best; 0: off
    repeat_penalty  divides positive and multiplies negative logits of recent tokens; 1: off
    repeat_last_n   how many tokens, prompt included, count as recent; 0: none; -1: all
    seed            of the random generator, below 2**64; None or -1: a fresh one
    logprobs        report the token's log-probability and those of so many best tokens; 0: none
    ignore_eos      never choose a token that ends generation
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    logprobs: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # numpy scalars become Python numbers

        if self.max_tokens is not None:
            limit = _integer("max_tokens", self.max_tokens, -1)
            put("max_tokens", None if limit == -1 else limit)
        put("temperature", _number("temperature", self.temperature, 0.0, math.inf))
        put("top_k", max(0, _integer("top_k", self.top_k, -1)))
        put("top_p", _number("top_p", self.top_p, 0.0, 1.0))
        put("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        put("repeat_penalty", _number("repeat_penalty", self.repeat_penalty, 1e-6, math.inf))
        put("repeat_last_n", _integer("repeat_last_n", self.repeat_last_n, -1))
        if self.seed is not None:
            seed = _integer("seed", self.seed, -1, 2**64 - 1)
            put("seed", None if seed == -1 else seed)
        put("logprobs", _integer("logprobs", self.logprobs, 0))
        if not isinstance(self.ignore_eos, (bool, np.bool_)):
            raise InvalidArgument(f"sampling: ignore_eos: expected True or False, got {self.ignore_eos!r}")
        put("ignore_eos", bool(self.ignore_eos))


def fresh_seed() -> int:
    """A 32-bit seed from the operating system."""
    return int.from_bytes(os.urandom(4), "little")


class Sampler:
    """Chooses tokens under `params`. Owns the random generator, so one sampler serves one generation.

    Args:
        params: the settings; without a seed in them a fresh one is drawn, see `seed`.
        banned: ids that are never chosen.
        n_tokens: only ids below this are chosen, for models whose output is wider than their vocabulary.
    """

    def __init__(self, params: SamplingParams, banned: Iterable[int] = (), n_tokens: int | None = None) -> None:
        self.params = params
        self.seed = fresh_seed() if params.seed is None else params.seed
        self._n_tokens = n_tokens
        self._banned = np.array(sorted(banned), dtype=np.intp)

    @cached_property
    def _rng(self) -> np.random.Generator:
        # Not before it is needed: greedy generation spares the import. PCG64 is named because default_rng may change
        # between numpy versions.
        return np.random.Generator(np.random.PCG64(self.seed))

    def __call__(self, logits: Floats, recent: Sequence[int] = ()) -> int:
        """The next token. `logits` [vocabulary] is not changed; `recent` are the ids so far, oldest first.

        Raises ModelFileError if a logit is NaN or +inf, InvalidArgument if no token is left to choose from.
        """
        if logits.ndim != 1 or logits.size == 0:
            raise ShapeMismatch(f"sample: logits: expected one row [vocabulary], got shape {logits.shape}")
        with np.errstate(over="ignore", under="ignore"):
            return self._choose(self._prepare(logits, recent))

    def _prepare(self, logits: Floats, recent: Sequence[int]) -> Floats:
        """Ids that may not be chosen go, repeated ones are penalised."""
        limit = logits.size if self._n_tokens is None else min(self._n_tokens, logits.size)
        logits = logits[:limit]
        last_n, penalty = self.params.repeat_last_n, self.params.repeat_penalty
        repeated = np.empty(0, dtype=np.intp)
        if penalty != 1.0 and last_n != 0:
            window = recent if last_n == -1 else recent[-last_n:]
            repeated = np.array([i for i in set(window) if 0 <= i < limit], dtype=np.intp)
        if repeated.size or self._banned.size:
            logits = logits.copy()
            values = logits[repeated]
            logits[repeated] = np.where(values > 0, values / penalty, values * penalty)
            logits[self._banned[self._banned < limit]] = -np.inf
        return logits

    def _choose(self, logits: Floats) -> int:
        best = int(logits.argmax())  # argmax stops at a NaN, so that one look at the best value finds any
        top = float(logits[best])
        if not math.isfinite(top):
            if top == -math.inf:
                raise InvalidArgument("sample: logits: expected at least one token to choose, got none: every token is banned")
            raise ModelFileError(
                f"sample: logits: expected finite numbers, got {top} for token {best}: the model's weights are damaged, "
                "or too large for half precision: try activations of 32 bits"
            )
        temperature = self.params.temperature
        if temperature == 0.0:
            return best
        ids = truncate(logits, self.params.top_k, self.params.top_p, self.params.min_p)
        if ids is None:  # the whole vocabulary stays in float32, which has to hold the temperature too
            temperature, kept = min(max(temperature, 1e-30), 1e30), logits
        else:
            kept = logits[ids].astype(np.float64)
        choice = draw(np.exp((kept - top) / temperature), self._rng.random())
        return choice if ids is None else int(ids[choice])


def largest(values: Floats, k: int) -> Ids:
    """Indices of the k largest values, best first, equal ones by index. No NaN may be among them."""
    n = values.size
    columns = n // _BLOCK
    if k >= n:
        chosen = np.arange(n)
    else:
        # At least k values reach the k-th largest of the columns' maxima: a cheap lower bound of the k-th largest value.
        pool = values[: columns * _BLOCK].reshape(_BLOCK, columns).max(axis=0) if columns >= k else values
        threshold = np.partition(pool, pool.size - k)[pool.size - k]
        chosen = np.flatnonzero(values >= threshold)
    return chosen[np.argsort(-values[chosen], kind="stable")[:k]]


def truncate(logits: Floats, top_k: int, top_p: float, min_p: float) -> Ids | None:
    """Ids that survive top-k, then top-p, then min-p; None when all do. The most likely token always survives.

    top-p counts probabilities among what top-k left, and takes in the token with which the sum reaches top_p.
    """
    top = logits.max()
    floor = top + logits.dtype.type(math.log(min_p)) if min_p > 0 else None
    if 0 < top_k < logits.size:
        ids = largest(logits, top_k)
        values = logits[ids]
        keep = ids.size
        if top_p < 1:
            weights = np.exp(values.astype(np.float64) - float(top))
            keep = _prefix(weights, top_p * float(weights.sum()))
        if floor is not None:
            keep = min(keep, int(np.count_nonzero(values >= floor)))
        return ids[:keep]
    if top_p < 1:
        # Both rules keep the likeliest tokens, so min-p may go first, as long as top-p counts the whole vocabulary's mass.
        # Nor does top-p ever need tokens so unlikely that all of them together weigh less than it leaves out.
        mass = float(np.exp(logits - top).sum(dtype=np.float64))
        needless = top + logits.dtype.type(math.log((1 - top_p) * mass / logits.size) - 1e-3)
        floor = needless if floor is None else max(floor, needless)
    if floor is None:
        return None
    survivors = np.flatnonzero(logits >= floor)
    if top_p < 1:
        survivors = survivors[_nucleus(logits[survivors], float(top), top_p * mass)]
    return survivors


def _prefix(weights: Floats, mass: float) -> int:
    """How many of the weights, from the first on, it takes to reach `mass`: at least one, at most all."""
    return min(int(np.searchsorted(np.cumsum(weights, dtype=np.float64), mass)) + 1, weights.size)


def _nucleus(values: Floats, top: float, mass: float) -> Ids:
    """Indices of the fewest largest values whose exp(value - top) sum to `mass`, or all of them."""
    shortlist = largest(values, _SHORTLIST)
    weights = np.exp(values[shortlist].astype(np.float64) - top)
    if shortlist.size == values.size or weights.sum() >= mass:
        return shortlist[: _prefix(weights, mass)]
    # A flat distribution: find the bin in which the sum is reached and sort that one alone.
    depth = min(top - float(values.min()), _DEPTH) or 1.0
    bins = np.minimum((top - values) * ((_BINS - 1) / depth), _BINS - 1).astype(np.intp)
    reached = np.cumsum(np.bincount(bins, weights=np.exp(values - top), minlength=_BINS))
    edge = min(int(np.searchsorted(reached, mass)), _BINS - 1)
    members = np.flatnonzero(bins == edge)
    members = members[np.argsort(-values[members], kind="stable")]
    rest = mass - (float(reached[edge - 1]) if edge else 0.0)
    members = members[: _prefix(np.exp(values[members].astype(np.float64) - top), rest)] if members.size else members
    return np.concatenate([np.flatnonzero(bins < edge), members])


def draw(weights: Floats, u: float) -> int:
    """Index i with probability weights[i] / sum(weights), for `u` uniform in [0, 1). A zero weight is never drawn."""
    start, size = 0, weights.size
    if size > 4 * _SHORTLIST:  # cumsum adds one after another; a first look at blocks spares most of it
        starts = np.arange(0, size, _SHORTLIST)
        reached = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
        target = u * float(reached[-1])
        block = min(int(np.searchsorted(reached, target, side="right")), starts.size - 1)
        start = int(starts[block])
        target -= float(reached[block - 1]) if block else 0.0
        weights = weights[start : start + _SHORTLIST]
        reached = np.cumsum(weights, dtype=np.float64)
    else:
        reached = np.cumsum(weights, dtype=np.float64)
        target = u * float(reached[-1])
    choice = int(np.searchsorted(reached, target, side="right"))
    if choice == weights.size:  # only when rounding made the target the whole sum
        choice = int(weights.argmax())
    return start + choice


def token_logprobs(logits: Floats, token: int, n: int) -> tuple[float, dict[int, float]]:
    """Log-softmax of the raw logits at `token`, and the n best ids with theirs, best first.

    Raw: before penalties, truncation and temperature, at the position that produced the token.
    """
    if not 0 <= token < logits.size:
        raise IndexOutOfRange(f"logprobs: token: expected an id in [0, {logits.size}), got {token}")
    with np.errstate(over="ignore", under="ignore"):
        top = float(logits.max())
        norm = top + math.log(float(np.exp(logits - logits.dtype.type(top)).sum(dtype=np.float64)))
        best = largest(logits, n) if n else np.empty(0, dtype=np.intp)
        return float(logits[token]) - norm, {int(i): float(logits[i]) - norm for i in best}
