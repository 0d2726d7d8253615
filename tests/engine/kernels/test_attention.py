"""Rotation, cache append and attention, against plain attention in float64."""

from itertools import pairwise

import numpy as np
import pytest
from kernel_drivers import CacheMemory, Rows, bits, team

from llamita.engine import ops

SHAPES = [(1, 1, 16), (4, 2, 32), (6, 3, 48), (9, 3, 64), (8, 1, 128)]  # H, K, D


class Attention:
    """Random q, k and v rows, their attention as a plan, and the same in float64.

    Row t of a table is position t of a sequence, so that run(start, stop) appends a chunk of it.
    """

    def __init__(self, heads, kv_heads, dim, positions, kv="f16", interleaved=False, n_threads=2, seed=0, size=1.0, scale=None):
        rng = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.dim, self.kv, self.interleaved, self.scale = heads, kv_heads, dim, kv, interleaved, scale
        widths = (heads * dim, kv_heads * dim, kv_heads * dim)
        self.q, self.k, self.v = (rng.standard_normal((positions, n)).astype(np.float32) for n in widths)
        self.q *= np.float32(size)
        angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.n_threads = n_threads
        self.build()

    def build(self):
        """Make the plan anew from the tables as they are."""
        self.cache = CacheMemory(1, self.kv_heads, self.dim, len(self.q), self.kv)
        self.rows = Rows(self._traced, self.q, self.k, self.v, cache=self.cache, on=team(self.n_threads))

    def _traced(self, q, k, v, past):
        tokens, rope = q.shape[1], ops.rope_i if self.interleaved else ops.rope

        def heads_of(x, n):
            return ops.transpose(ops.reshape(x, (1, tokens, n, self.dim)), (0, 2, 1, 3))

        cos, sin = past.rows(self.cos, tokens), past.rows(self.sin, tokens)
        q = rope(heads_of(q, self.heads), cos, sin)
        keys, values = past.append(0, rope(heads_of(k, self.kv_heads), cos, sin), heads_of(v, self.kv_heads))
        y = ops.sdpa(q, keys, values, None, True, self.scale)
        return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (1, tokens, self.heads * self.dim))

    def run(self, start, stop):
        """Append positions start .. stop - 1; their results [stop - start, H*D]."""
        return self.rows.run(range(start, stop), start)

    def in_chunks(self, cuts):
        """The whole sequence, cut at these positions."""
        edges = [0, *cuts, len(self.q)]
        return np.concatenate([self.run(a, b) for a, b in pairwise(edges)])

    def exact(self):
        """[S, H*D] in float64, over keys and values as the cache rounds them."""
        q, k = self._rotated(self.q, self.heads), self._rounded(self._rotated(self.k, self.kv_heads))
        v = self._rounded(self.v.reshape(-1, self.kv_heads, self.dim))
        out = np.empty(q.shape)
        for h in range(self.heads):
            group = h // (self.heads // self.kv_heads)
            scores = q[:, h] @ k[:, group].T * (self.dim**-0.5 if self.scale is None else self.scale)
            scores[np.triu_indices(len(q), 1)] = -np.inf
            p = np.exp(scores - scores.max(1, keepdims=True))
            out[:, h] = p / p.sum(1, keepdims=True) @ v[:, group]
        return out.reshape(len(q), -1)

    def _rounded(self, x):
        return x.astype(np.float16 if self.kv == "f16" else np.float32).astype(np.float64)

    def _rotated(self, x, heads):
        """float32, as the kernel computes it."""
        x = x.reshape(-1, heads, self.dim)
        a, b = (x[..., 0::2], x[..., 1::2]) if self.interleaved else np.split(x, 2, 2)
        c, s = self.cos[:, None], self.sin[:, None]
        pair = (a * c - b * s, a * s + b * c)
        return np.stack(pair, 3).reshape(x.shape) if self.interleaved else np.concatenate(pair, 2)


@pytest.mark.parametrize("kv", ["f16", "f32"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_against_float64(heads, kv_heads, dim, interleaved, kv):
    for positions in (1, 2, 15, 16, 17, 33, 70):
        attention = Attention(heads, kv_heads, dim, positions, kv, interleaved, seed=positions)
        np.testing.assert_allclose(attention.run(0, positions), attention.exact(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kv", ["f16", "f32"])
@pytest.mark.parametrize("cuts", [range(1, 70), [1], [69], [7, 14, 21, 28, 35, 42, 49, 56, 63], [15, 31, 33], [16, 32, 48, 64]])
def test_chunks_change_no_bit(kv, cuts):
    attention = Attention(4, 2, 32, 70, kv)
    whole = attention.run(0, 70)
    assert np.array_equal(bits(attention.in_chunks(cuts)), bits(whole))


@pytest.mark.parametrize("n_threads", [1, 3, 5])
def test_threads_change_no_bit(n_threads):
    for heads, kv_heads, dim, positions in ((4, 2, 32, 70), (1, 1, 16, 600)):
        expected = Attention(heads, kv_heads, dim, positions).run(0, positions)
        other = Attention(heads, kv_heads, dim, positions, n_threads=n_threads)
        assert np.array_equal(bits(other.run(0, positions)), bits(expected))
        assert np.array_equal(bits(other.run(positions - 1, positions)), bits(expected[-1:]))


def test_many_positions():
    attention = Attention(2, 1, 64, 3000)
    exact, cuts = attention.exact(), [512, 1024, 1500, 2999]
    np.testing.assert_allclose(attention.in_chunks(cuts), exact, rtol=0, atol=3e-6)


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_large_scores_do_not_overflow(kv):
    attention = Attention(4, 2, 32, 70, kv, size=300.0)
    np.testing.assert_allclose(attention.run(0, 70), attention.exact(), rtol=0, atol=3e-3)


def test_another_scale():
    attention = Attention(4, 2, 32, 40, scale=0.5)
    np.testing.assert_allclose(attention.run(0, 40), attention.exact(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kv", ["f16", "f32"])
@pytest.mark.parametrize("fill", [0xFF, 0x7B, 0x00])
def test_what_the_cache_held_before_does_not_matter(kv, fill):
    """0xFF bytes are NaN in either type, 0x7B large numbers."""
    attention = Attention(4, 2, 32, 70, kv)
    fresh = attention.in_chunks([17, 18, 40])
    attention.cache.memory[:] = fill
    assert np.array_equal(bits(attention.in_chunks([17, 18, 40])), bits(fresh))


@pytest.mark.parametrize("kv", ["f16", "f32"])
@pytest.mark.parametrize("part", ["k", "v"])
def test_an_earlier_longer_sequence_with_nan_leaves_nothing(kv, part):
    attention = Attention(4, 2, 32, 70, kv)
    fresh = attention.run(0, 70)
    getattr(attention, part)[21:, 3] = np.nan
    attention.build()
    assert np.isnan(attention.run(0, 70)[21:]).any()
    for stop in (1, 15, 16, 17, 20, 21):
        assert np.array_equal(bits(attention.run(0, stop)), bits(fresh[:stop]))
        assert np.array_equal(bits(attention.run(stop - 1, stop)), bits(fresh[stop - 1 : stop]))
        attention.run(0, 70)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_nan_reaches_who_sees_it(part):
    """A NaN key or value reaches the later queries of its kv head, a NaN query its own head alone."""
    attention = Attention(4, 2, 32, 40)
    clean = attention.run(0, 40).reshape(40, 4, 32)
    getattr(attention, part)[21, 40] = np.nan  # head 1, element 8
    attention.build()
    y = attention.in_chunks(range(1, 40)).reshape(40, 4, 32)
    if part == "q":
        assert np.isnan(y[21, 1]).all()
        hit = np.zeros((40, 4, 32), bool)
        hit[21, 1] = True
    else:
        hit = np.zeros((40, 4, 32), bool)
        hit[21:, 2:, slice(None) if part == "k" else 8] = True
    assert np.array_equal(np.isnan(y), hit)
    assert np.array_equal(bits(y[~hit]), bits(clean[~hit]))


@pytest.mark.parametrize("part", ["k", "v"])
def test_later_tokens_of_the_same_chunk_do_not_matter(part):
    attention = Attention(4, 2, 32, 40)
    clean = attention.run(0, 40)
    for value in (-7.0, 6e4):
        getattr(attention, part)[21, 40] = value
        attention.build()
        assert np.array_equal(bits(attention.run(0, 40)[:21]), bits(clean[:21])), value


@pytest.mark.parametrize("part", ["k", "v"])
def test_a_later_nan_of_the_same_chunk_does_not_matter(part):
    attention = Attention(4, 2, 32, 40)
    clean = attention.run(0, 40)
    getattr(attention, part)[21, 40] = np.nan
    attention.build()
    assert np.array_equal(bits(attention.run(0, 40)[:21]), bits(clean[:21]))


def test_infinite_keys_and_values_give_no_silent_numbers():
    attention = Attention(2, 1, 16, 20)
    attention.k[5, 3] = np.inf
    attention.build()
    y = attention.run(0, 20)
    assert np.isfinite(y[:5]).all() and not np.isfinite(y[5:]).all(1).any()
