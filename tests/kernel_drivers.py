"""Runs kernels on plain arrays: a few op calls are traced, lowered and run as a plan, as a model's are.

    product = Rows(lambda x: ops.linear(x, weight), activations, width=8)
    y = product.run([4, 0, 2])            # three tokens, whose activations are rows 4, 0 and 2

Inputs enter through float32 row lookups, which copy bits, so tests know nothing of argument blocks or buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf_fixtures import encode

from llamita.engine import ops
from llamita.engine.faces.traced import spec, trace
from llamita.engine.plan.builder import CacheMemory, PlanBuilder
from llamita.engine.plan.past import PlanPast
from llamita.engine.runtime.team import Team
from llamita.quant.formats import FORMATS, format_by_name
from llamita.quant.packing import pack
from llamita.quant.qtensor import QTensor

DENSE = ("F32", "F16", "BF16")
K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
EPS = 2.0**-24  # half a unit in the last place of float32, relative


@lru_cache(maxsize=8)
def team(n_threads: int = 2) -> Team:
    """A team that the tests of a process share."""
    return Team(n_threads)


def no_cache() -> CacheMemory:
    """For plans without attention."""
    return CacheMemory(0, 1, 16, 16)


def f32_tensor(values: np.ndarray, name: str = "") -> QTensor:
    """float32 [n, k] as a tensor that packs."""
    values = np.ascontiguousarray(values, np.float32)
    return QTensor(format_by_name("F32"), values.shape, values.view(np.uint8).reshape(len(values), -1), name)


def random_tensor(format_name: str, rows: int, columns: int, seed: int = 0) -> QTensor:
    """Weights of about unit spread in any of the formats."""
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    if format_name == "F32":
        return f32_tensor(values)
    blocks = np.array(encode(values, format_name, seed)).view(np.uint8).reshape(rows, -1)
    return QTensor(format_by_name(format_name), (rows, columns), blocks, f"random {format_name}")


def random_bytes(format_name: str, rows: int, columns: int, seed: int = 0) -> QTensor:
    """Any bit pattern that a file may hold, NaN and infinite scales included."""
    fmt = FORMATS[format_name]
    blocks = np.random.default_rng(seed).integers(0, 256, (rows, fmt.row_bytes(columns)), dtype=np.uint8)
    return QTensor(fmt, (rows, columns), blocks)


def dequantized(tensor: QTensor) -> np.ndarray:
    """float32 weights by the gguf package, which is independent of ours."""
    with np.errstate(all="ignore"):
        return quants.dequantize(np.array(tensor.blocks), GGMLQuantizationType[tensor.format.name]).reshape(tensor.shape)


def bits(values: np.ndarray) -> np.ndarray:
    """The bit patterns of float32 values, all NaN alike."""
    out = np.array(values, np.float32, copy=True, order="C")
    out[np.isnan(out)] = np.nan
    return out.view(np.uint32)


class Rows:
    """A function of rows as a plan.

    Args:
        fn: from one symbol [1, T, C] a table to a symbol [1, T, C'].
        tables: float32 [n, C], or tensors of any format; token t of a run takes row ids[t] of each.
        width: of activations. tokens: the most tokens of a run; None: as many as the first table has rows.
        cache: for functions that attend; fn then gets a last argument, the past.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *tables: np.ndarray | QTensor,
        width: int = 32,
        tokens: int | None = None,
        on: Team | None = None,
        cache: CacheMemory | None = None,
    ):
        weights = [table if isinstance(table, QTensor) else f32_tensor(table, f"table {i}") for i, table in enumerate(tables)]
        tokens = tokens or weights[0].shape[0]
        on = on or team()
        self.builder = PlanBuilder(on.n_threads, cache or no_cache(), tokens, tokens, width, lambda tensor: pack(tensor, on))

        def traced(ids: Any) -> Any:
            past = [] if cache is None else [PlanPast(ids.graph, cache.capacity)]
            return fn(*(ops.embedding(ids, weight) for weight in weights), *past)

        program = trace(traced, spec((1, tokens), np.int64), lowering="plan")
        self.view = self.builder.lower(program)
        self.plan = self.builder.bind(on)

    def run(self, ids: Sequence[int] | np.ndarray, position: int = 0) -> np.ndarray:
        """float32 [len(ids), C'], a copy."""
        self.builder.ids[: len(ids)] = ids
        self.plan.run(len(ids), position)
        columns = int(np.prod([n for axis, n in enumerate(self.view.shape) if axis not in (0, self._token_axis)]))
        return self.view.buffer.floats(len(ids), columns).copy()

    @property
    def _token_axis(self) -> int:
        return 1 if len(self.view.shape) == 3 else 2


def product_error(x: np.ndarray, w: np.ndarray, width: int) -> np.ndarray:
    """How far x[T, K] @ w[N, K].T may be from exact for random numbers, [T, N]: six standard deviations.

    Rounding in float32: proportional to the sum of |x| times the largest weight that shares its scale (a minimum is
    subtracted after the codes are summed). Integer activations: each lies within half a step, the step being its unit's
    largest magnitude over 127 or 32512.
    """
    x, w = x.astype(np.float64), w.astype(np.float64)
    pad = -x.shape[1] % 32
    x, w = np.pad(x, ((0, 0), (0, pad))), np.pad(w, ((0, 0), (0, pad)))
    xs, ws = x.reshape(len(x), -1, 32), w.reshape(len(w), -1, 32)
    largest = np.abs(ws).max(2)
    bound = 2 * EPS * np.abs(xs).sum(2) @ (2 * largest).T
    if width < 32:
        step = np.abs(xs).max(2) / (127 if width == 8 else 32512)
        bound += 6 * np.sqrt((step**2 / 12) @ (ws**2).sum(2).T)
    return bound
