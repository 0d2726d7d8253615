"""Rotary embedding and scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from ..faces.dtypes import boolean
from ..faces.namespace import Namespace, Value
from . import checks
from .dispatch import define
from .reductions import masked_softmax, softmax


def _tables(p: Namespace, x: Value, cos: Value, sin: Value, token_axis: int) -> tuple[Value, Value]:
    """cos and sin at the rank of x [., ., ., D/2], narrowed to its tokens and broadcasting over heads."""
    tokens = p.shape(x)[token_axis]
    out = []
    for table in (cos, sin):
        rank = len(p.shape(table))
        table = p.narrow(table, rank - 2, 0, tokens)
        batch = p.shape(table)[0] if rank == 3 else 1
        half = p.shape(table)[-1]
        out.append(p.reshape(table, (batch, 1, tokens, half) if token_axis == 2 else (batch, tokens, 1, half)))
    return out[0], out[1]


def _rotate(p: Namespace, first: Value, second: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    return (
        p.sub(p.mul(first, cos), p.mul(second, sin)),
        p.add(p.mul(first, sin), p.mul(second, cos)),
    )


def _half_split(p: Namespace, x: Value, cos: Value, sin: Value, token_axis: int) -> Value:
    cos, sin = _tables(p, x, cos, sin, token_axis)
    d = p.shape(x)[3]
    first, second = p.narrow(x, 3, 0, d // 2), p.narrow(x, 3, d // 2, d)
    return p.concatenate(_rotate(p, first, second, cos, sin), 3)


@define(check=checks.rope_operands, hook=("fused_rope", "rope"))
def rope(p: Namespace, x: Value, cos: Value, sin: Value) -> Value:
    """Rotate the pairs (i, i + D/2) of x[B,H,T,D] by angles given as cos, sin [T',D/2] or [B,T',D/2], T' >= T.

    Row t of the tables serves token t: narrow them to the position first. Raises RankMismatch, ShapeMismatch.
    """
    return _half_split(p, x, cos, sin, 2)


@define(check=checks.rope_operands, hook=("fused_rope", "rope_thd"))
def rope_thd(p: Namespace, x: Value, cos: Value, sin: Value) -> Value:
    """`rope` for the layout x[B,T,H,D]."""
    return _half_split(p, x, cos, sin, 1)


@define(check=checks.rope_operands, hook=("fused_rope", "rope_i"))
def rope_i(p: Namespace, x: Value, cos: Value, sin: Value) -> Value:
    """Rotate the interleaved pairs (2i, 2i + 1) of x[B,H,T,D]; tables as `rope`."""
    cos, sin = _tables(p, x, cos, sin, 2)
    shape = p.shape(x)
    half = (*shape[:3], shape[3] // 2)
    pairs = p.reshape(x, (*half, 2))
    first, second = (p.reshape(p.narrow(pairs, 4, i, i + 1), half) for i in (0, 1))
    rotated = [p.reshape(y, (*half, 1)) for y in _rotate(p, first, second, cos, sin)]
    return p.reshape(p.concatenate(rotated, 4), shape)


def causal_mask(tokens: int, keys: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """bool [T, S], True where query i of the last T positions may see key j: j <= S - T + i."""
    return np.arange(keys)[None, :] <= np.arange(tokens)[:, None] + (keys - tokens)


@define(
    check=checks.sdpa_operands,
    hook=("fused_sdpa",),
)
def sdpa(
    p: Namespace,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 1.0,
) -> Value:
    """softmax(scale * q k^T + mask) v, over grouped heads without repeating k and v.

    q [B,H,T,D], k [B,K,S,D], v [B,K,S,Dv] -> [B,H,T,Dv]; H a multiple of K, and query head h reads kv head h // (H/K).

    Args:
        mask: broadcasts to [B,H,T,S]; bool (True: may see) or added to the scores. A query that sees nothing gives 0.
        causal: query i sees keys j <= S - T + i.
        scale: None: D**-0.5.
        softcap: c != 1: scores become c * tanh(scores / c), before the mask.
    """
    batch, heads, tokens, dim = p.shape(q)
    groups, keys = p.shape(k)[1], p.shape(k)[2]
    # The query heads of a group stand in one block of rows, so one product serves them all.
    rows = (batch, groups, heads // groups * tokens)
    factor = dim**-0.5 if scale is None else scale
    scores = p.scale(p.matmul(p.reshape(q, (*rows, dim)), p.transpose(k, (0, 1, 3, 2))), factor)
    if softcap != 1.0:
        scores = p.scale(p.tanh(p.scale(scores, 1.0 / softcap)), softcap)
    scores = p.reshape(scores, (batch, heads, tokens, keys))
    visible: Value | None = None
    if mask is not None and p.dtype(mask) == boolean:
        visible = mask
    elif mask is not None:
        scores = p.add(scores, mask)
    if causal and tokens > 1:
        allowed = p.array(causal_mask(tokens, keys))
        if visible is None:
            visible = allowed
        else:
            scores = _hide(p, scores, allowed)
    probabilities = softmax.formula(p, scores, 3) if visible is None else masked_softmax.formula(p, scores, visible, 3)
    out = p.matmul(p.reshape(probabilities, (*rows, keys)), v)
    return p.reshape(out, (batch, heads, tokens, p.shape(v)[3]))


def _hide(p: Namespace, scores: Value, visible: Value) -> Value:
    return p.select(visible, scores, p.like(scores, -math.inf))
