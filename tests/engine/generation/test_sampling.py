"""The sampler against plain references, and every check of its parameters."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llamita.engine.errors import IndexOutOfRange, InvalidArgument, ModelFileError, ShapeMismatch
from llamita.engine.generation import Sampler, SamplingParams
from llamita.engine.generation.sampling import draw, largest, token_logprobs, truncate


def ranked(logits: np.ndarray) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))


def truncate_reference(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int] | None:
    """Sorts everything. None if rounding alone decides whether a token survives."""
    ids = ranked(logits)[: top_k or None]
    weights = [math.exp(float(logits[i]) - float(logits[ids[0]])) for i in ids]
    total, reached, kept = math.fsum(weights), 0.0, []
    for i, weight in zip(ids, weights, strict=True):
        kept.append(i)
        reached += weight
        if top_p < 1 and abs(reached / total - top_p) < 1e-5:
            return None
        if top_p < 1 and reached >= top_p * total:
            break
    if min_p > 0:
        floor = float(logits[ids[0]]) + math.log(min_p)
        if any(abs(float(logits[i]) - floor) < 1e-4 for i in ids):
            return None
        kept = [i for i in kept if float(logits[i]) >= floor]
    return set(kept)


@st.composite
def logit_rows(draw_from: st.DrawFn) -> np.ndarray:
    n = draw_from(st.sampled_from([1, 2, 7, 64, 65, 500, 1000, 5000]))
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32 - 1)))
    row = rng.standard_normal(n) * draw_from(st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0]))
    if draw_from(st.booleans()):
        row = np.round(row)  # many equal logits
    row[rng.random(n) < draw_from(st.sampled_from([0.0, 0.5]))] = -np.inf
    row[rng.integers(n)] = 1.0
    return row.astype(np.float32)


@given(
    logit_rows(),
    st.sampled_from([0, 1, 2, 40, 300, 10**6]),
    st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
    st.one_of(st.sampled_from([0.0, 1.0, 0.05]), st.floats(1e-30, 1)),
)
def test_truncate_keeps_what_a_full_sort_keeps(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    expected = truncate_reference(logits, top_k, top_p, min_p)
    assume(expected is not None)
    kept = truncate(logits, top_k, top_p, min_p)
    kept_ids = list(range(len(logits))) if kept is None else [int(i) for i in kept]
    assert len(set(kept_ids)) == len(kept_ids)
    assert set(kept_ids) == expected


@given(logit_rows(), st.integers(1, 6000))
def test_largest_is_the_head_of_a_stable_sort(logits: np.ndarray, k: int) -> None:
    assert largest(logits, k).tolist() == ranked(logits)[:k]


def test_the_edges_of_each_rule() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], dtype=np.float32))
    assert truncate(logits, 0, 1.0, 0.0) is None
    assert set(truncate(logits, 2, 1.0, 0.0)) == {0, 1}
    assert set(truncate(logits, 0, 0.0, 0.0)) == {0}  # 0 keeps one
    assert set(truncate(logits, 0, 0.6, 0.0)) == {0, 1}  # the one that reaches top_p is inside
    assert set(truncate(logits, 2, 0.7, 0.0)) == {0, 1}  # 0.5 / 0.75 < 0.7: counted among what top-k left
    assert set(truncate(logits, 2, 0.6, 0.0)) == {0}
    assert set(truncate(logits, 0, 1.0, 1.0)) == {0}
    assert set(truncate(logits, 0, 1.0, 0.29)) == {0, 1, 2}
    assert set(truncate(logits, 0, 0.6, 0.29)) == {0, 1}  # the sum that top_p counts includes what min-p removes


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.5, 1.0, 3.0]), min_size=1, max_size=5000), st.floats(0, 1, exclude_max=True))
def test_draw_finds_the_weight_under_u(weights: list[float], u: float) -> None:
    weights[len(weights) // 2] = 1.0
    array = np.array(weights)
    choice = draw(array, u)
    before, upto, total = math.fsum(weights[:choice]), math.fsum(weights[: choice + 1]), math.fsum(weights)
    assert weights[choice] > 0
    assert before - 1e-9 * total <= u * total <= upto + 1e-9 * total


def test_draw_at_the_ends() -> None:
    weights = np.zeros(10_000)
    weights[[17, 9000]] = 1.0
    assert draw(weights, 0.0) == 17
    assert draw(weights, 0.49) == 17
    assert draw(weights, 0.5) == 9000
    assert draw(weights, math.nextafter(1.0, 0.0)) == 9000


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.4, 0.3, 0.2, 0.1])
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3))
    counts = Counter(sampler(np.log(probabilities).astype(np.float32)) for _ in range(4000))
    assert np.allclose([counts[i] / 4000 for i in range(4)], probabilities, atol=0.03)


def test_temperature_comes_after_truncation() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    sampler = Sampler(SamplingParams(temperature=100.0, top_k=0, top_p=0.6, min_p=0.0, seed=1))
    counts = Counter(sampler(logits) for _ in range(2000))
    assert set(counts) == {0, 1}  # at temperature 100 top-p would have kept all three
    assert abs(counts[0] / 2000 - 0.5) < 0.05


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1.0, 1e300])
def test_extreme_numbers_stay_defined(temperature: float) -> None:
    logits = np.array([-3e38, 3e38, -np.inf, 3e38], dtype=np.float32)
    for params in ({"top_k": 0, "min_p": 0.0, "top_p": 1.0}, {"top_k": 2}, {"top_k": 0, "min_p": 0.0, "top_p": 0.5}):
        sampler = Sampler(SamplingParams(temperature=temperature, seed=0, **params))
        assert sampler(logits) in ({1, 3} if temperature < 1e30 else {0, 1, 3})
        assert sampler(np.array([5.0], dtype=np.float32)) == 0


def test_greedy_is_the_first_of_the_largest() -> None:
    logits = np.array([0.0, 2.0, 2.0, 1.0], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0))(logits) == 1


def penalty_reference(logits: np.ndarray, recent: list[int], penalty: float, last_n: int) -> np.ndarray:
    out = logits.copy()
    for i in set(recent if last_n == -1 else recent[len(recent) - min(last_n, len(recent)) :]):
        out[i] = out[i] / penalty if out[i] > 0 else out[i] * penalty
    return out


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=8, max_size=8),
    st.lists(st.integers(0, 7), max_size=20),
    st.floats(0.25, 4),
    st.integers(-1, 22),
)
def test_repeat_penalty(row: list[float], recent: list[int], penalty: float, last_n: int) -> None:
    logits = np.array(row, dtype=np.float32)
    sampler = Sampler(SamplingParams(repeat_penalty=penalty, repeat_last_n=last_n))
    assert np.allclose(sampler._prepare(logits, recent), penalty_reference(logits, recent, penalty, last_n), rtol=1e-6)
    assert logits.tolist() == np.array(row, dtype=np.float32).tolist()  # the caller's row is not touched


def test_repeat_penalty_changes_greedy() -> None:
    logits = np.array([1.0, 2.0, 1.9], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0, repeat_penalty=1.5))(logits, [1]) == 2


def test_banned_and_out_of_range_ids_are_never_chosen() -> None:
    logits = np.array([0.0, 9.0, 1.0, 8.0], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0), banned={1}, n_tokens=3)(logits, [3]) == 2
    assert Sampler(SamplingParams(temperature=0, repeat_penalty=2.0), banned={1, 3}, n_tokens=3)(logits, [3]) == 2
    with pytest.raises(InvalidArgument, match="every token is banned"):
        Sampler(SamplingParams(), banned={0, 1, 2, 3})(logits)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_not_finite(bad: float, temperature: float) -> None:
    logits = np.zeros(1000, dtype=np.float32)
    logits[617] = bad
    with pytest.raises(ModelFileError, match=rf"got {bad} for token 617: the model's weights are damaged"):
        Sampler(SamplingParams(temperature=temperature))(logits)


def test_logits_of_a_wrong_shape() -> None:
    for shape in [(2, 3), (0,), ()]:
        with pytest.raises(ShapeMismatch, match=r"expected one row"):
            Sampler(SamplingParams())(np.zeros(shape, dtype=np.float32))


def test_seeds() -> None:
    rows = [np.random.default_rng(i).standard_normal(300).astype(np.float32) for i in range(40)]

    def run(seed: int | None) -> tuple[list[int], int]:
        sampler = Sampler(SamplingParams(seed=seed, temperature=1.5))
        return [sampler(row) for row in rows], sampler.seed

    assert run(7) == run(7)
    assert run(7)[0] != run(8)[0]
    unseeded, seed = run(None)
    assert run(seed)[0] == unseeded  # the seed that is reported is the one that was used
    assert unseeded != run(-1)[0]


@given(logit_rows(), st.integers(0, 12), st.integers(0, 4999))
def test_logprobs_are_the_log_softmax(logits: np.ndarray, n: int, token: int) -> None:
    token %= len(logits)
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    logprob, best = token_logprobs(logits, token, n)
    assert math.isclose(logprob, expected[token], abs_tol=1e-4)
    assert list(best) == ranked(logits)[:n]
    assert np.allclose(list(best.values()), expected[list(best)], atol=1e-4)


def test_logprobs_of_no_token() -> None:
    with pytest.raises(IndexOutOfRange, match=r"\[0, 3\), got 3"):
        token_logprobs(np.zeros(3, dtype=np.float32), 3, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -2),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_k", None),
        ("top_p", 7),
        ("top_p", -0.01),
        ("top_p", math.nan),
        ("min_p", 1.01),
        ("min_p", False),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", 1e-320),  # would make infinities of logits
        ("repeat_penalty", -1.0),
        ("repeat_penalty", math.inf),
        ("repeat_last_n", -2),
        ("repeat_last_n", "64"),
        ("seed", -2),
        ("seed", 2**64),
        ("seed", 0.5),
        ("logprobs", -1),
        ("logprobs", None),
        ("ignore_eos", 1),
        ("ignore_eos", None),
    ],
)
def test_every_field_is_checked(field: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SamplingParams(**{field: value})
    assert f"{field}:" in str(caught.value) and f"got {value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_edges_of_every_field_are_taken() -> None:
    off = SamplingParams(max_tokens=-1, temperature=0, top_k=-1, top_p=1, min_p=0, repeat_penalty=1, repeat_last_n=-1, seed=-1)
    assert (off.max_tokens, off.top_k, off.seed) == (None, 0, None)
    given_numpy = SamplingParams(max_tokens=np.int64(0), temperature=np.float32(0.5), top_k=np.int32(3), seed=np.uint64(2**64 - 1))
    assert (given_numpy.max_tokens, given_numpy.temperature, given_numpy.seed) == (0, 0.5, 2**64 - 1)
    assert type(given_numpy.top_k) is int
    with pytest.raises(FrozenInstanceError):
        off.top_k = 1  # type: ignore[misc]
