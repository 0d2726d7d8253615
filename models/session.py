"""A decoder ready to run: traced once, packed, compiled to a plan, with a cache of its own. Token ids in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import ClosedError, ContextOverflowError, IndexOutOfRange, InvalidArgument
from ..engine.faces.traced import spec, trace
from ..engine.plan.builder import CacheMemory, PlanBuilder
from ..engine.plan.past import PlanPast
from ..engine.runtime.arrays import Arena
from ..engine.runtime.cpus import usable_cpus
from ..engine.runtime.store import Progress, default_store
from ..engine.runtime.team import LEAD, WORK, Team
from ..loaders.checkpoint import Checkpoint
from ..quant.packing import PackedWeight, fill, pack_spec, reserve
from ..quant.qtensor import QTensor
from .config import ModelConfig, read_config
from .llama import Decoder, assemble

DEFAULT_ACTIVATIONS = 16
CHUNK = 128  # tokens of one prefill run: enough to share each weight, few enough to answer Ctrl-C
ALL_ROWS = 16  # tokens of one run whose logits are all wanted
CACHE_BYTES = {"f16": 2, "f32": 4}  # of a number in the cache
PACKED_AT_ONCE = 32 << 20  # bytes of weights: few waits for threads and for Python, and still progress and Ctrl-C
KV_SHARE = 4  # by default the cache takes at most this part of the machine's memory


class DecoderSession:
    """A decoder with a cache, one sequence at a time.

    Attributes:
        config: the model's numbers. decoder: its layers. n_ctx: tokens that the cache holds. n_vocab: V.
        activations: bits of activations that meet quantised weights. cached_ids: what the cache holds.
        cache_type: of keys and values, "f16" or "f32".
    """

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        n_ctx: int,
        n_threads: int | None,
        activations: int,
        cache_type: str,
        on_progress: Progress | None,
        after_packing: Callable[[], object] = lambda: None,
    ):
        self.decoder, self.config, self.n_ctx, self.activations, self.cache_type = decoder, config, n_ctx, activations, cache_type
        self.n_vocab = config.vocab
        self.cached_ids: list[int] = []
        n_threads, tokens = usable_cpus() if n_threads is None else n_threads, min(CHUNK, n_ctx)
        cache = CacheMemory(config.n_layers, config.n_kv_heads, config.head_dim, n_ctx, cache_type)
        weights, arena = list[tuple[PackedWeight, QTensor]](), Arena()

        def packer(tensor: QTensor) -> PackedWeight:
            weights.append((reserve(tensor, arena), tensor))
            return weights[-1][0]

        builder = PlanBuilder(n_threads, cache, tokens, min(ALL_ROWS, tokens), activations, packer)
        program = trace(lambda ids: decoder.forward(ids, PlanPast(ids.graph, cache.capacity)), spec((1, tokens), np.int64), lowering="plan")
        output = builder.lower(program)
        # All that is missing is compiled at once, on all processors, before anything runs.
        default_store().load([LEAD, WORK, *builder.specs, *(pack_spec(tensor) for _, tensor in weights)], on_progress)
        self.team: Team | None = Team(n_threads)
        self.packed_bytes = _fill(weights, self.team, on_progress, after_packing)
        self._plan = builder.bind(self.team)
        self._ids, self._chunk, self._all_rows = builder.ids, tokens, builder.all_rows
        self._output = output.buffer
        self._row: NDArray[np.float32] = self._output.floats(1, self.n_vocab)[0]

    def rewind(self, n: int) -> None:
        """Keep the first n tokens of the cache. Raises InvalidArgument unless 0 <= n <= len(cached_ids)."""
        if not 0 <= n <= len(self.cached_ids):
            raise InvalidArgument(f"rewind: n: expected 0 to {len(self.cached_ids)}, got {n}")
        del self.cached_ids[n:]

    def forward(
        self, ids: Sequence[int], on_progress: Callable[[int, int], object] | None = None, position: int | None = None
    ) -> NDArray[np.float32]:
        """Append ids; the logits [V] of the last one, valid until the next call.

        Args:
            on_progress: called with (done, total) after each chunk; an exception from it leaves the cache at what was done.
            position: where the caller believes the first id to stand; None: wherever the cache ends.

        Raises ContextOverflowError, IndexOutOfRange, InvalidArgument for a position that is not the cache's length (nothing is
        appended then), ClosedError.
        """
        if position is not None and position != len(self.cached_ids):
            raise InvalidArgument(f"decoder: position: expected {len(self.cached_ids)}, the cache's length, got {position}; rewind first")
        for n in self._runs(ids, self._chunk, False):
            if on_progress:
                on_progress(n, len(ids))
        return self._row

    def forward_all(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append ids; the logits [len(ids), V] of all of them. Raises as `forward` does."""
        out = np.empty((len(ids), self.n_vocab), np.float32)
        start = 0
        for end in self._runs(ids, self._all_rows, True):
            out[start:end] = self._output.floats(end - start, self.n_vocab)
            start = end
        return out

    def _runs(self, ids: Sequence[int], chunk: int, all_rows: bool) -> Any:
        """Run the plan over chunks of ids; yields how many are done."""
        if self.team is None:
            raise ClosedError("decoder: it was closed: load the model again")
        values = self._checked(ids)
        if (needed := len(self.cached_ids) + len(values)) > self.n_ctx:
            raise ContextOverflowError(f"decoder: {needed} tokens: expected at most n_ctx = {self.n_ctx}; load with a larger n_ctx")
        for start in range(0, len(values), chunk):
            part = values[start : start + chunk]
            self._ids[: len(part)] = part
            self._plan.run(len(part), len(self.cached_ids), all_rows)
            self.cached_ids.extend(part)
            yield start + len(part)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        """Token ids as a list. Raises InvalidArgument, IndexOutOfRange."""
        if type(ids) is list and len(ids) == 1 and type(ids[0]) is int and 0 <= ids[0] < self.n_vocab:
            return ids  # decode: NumPy's checks would be the largest part of Python's share of a step
        values = np.asarray(ids)
        if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
            raise InvalidArgument(f"decoder: ids: expected one or more token ids, got {values.dtype} {list(values.shape)}")
        if (wrong := (values < 0) | (values >= self.n_vocab)).any():
            raise IndexOutOfRange(f"decoder: ids: expected 0 to {self.n_vocab - 1}, got {values[wrong][0]}")
        checked: list[int] = values.tolist()
        return checked

    def bytes_read(self, n_cached: int) -> int:
        """Bytes that a decode step reads when the cache holds `n_cached` tokens: packed weights, keys and values. Raises ClosedError."""
        if self.team is None:
            raise ClosedError("decoder: it was closed: load the model again")
        weights = sum(step.bytes_read for step in self._plan.instructions)
        return weights + (n_cached + 1) * self.config.kv_bytes_per_token(CACHE_BYTES[self.cache_type])

    def timed_steps(self, runs: int) -> list[tuple[str, float, int]]:
        """(label, median seconds, bytes of weights read) of each instruction of a decode step at the cache's end.

        The step is repeated, and what it leaves in the cache is not kept. Raises ContextOverflowError when the cache is full.
        """
        if self.team is None:
            raise ClosedError("decoder: it was closed: load the model again")
        if len(self.cached_ids) >= self.n_ctx:
            raise ContextOverflowError(f"decoder: {self.n_ctx + 1} tokens: expected at most n_ctx = {self.n_ctx}; load with a larger n_ctx")
        self._plan.set_registers(1, len(self.cached_ids))
        seconds = np.median([self.team.run_timed(self._plan.code) for _ in range(runs)], axis=0)
        steps = zip(self._plan.instructions, seconds.tolist(), strict=True)
        return [(step.label, time, step.bytes_read) for step, time in steps]

    def close(self) -> None:
        """Free threads, weights and cache."""
        if self.team is not None:
            self.team.close()
            self.team = None
            del self._plan, self._output, self._row, self.decoder

    def __enter__(self) -> DecoderSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _fill(weights: Sequence[tuple[PackedWeight, QTensor]], team: Team, on_progress: Progress | None, after: Callable[[], object]) -> int:
    """Pack all weights, at least `PACKED_AT_ONCE` bytes at a time; returns the bytes that they take."""
    total, done, start = sum(tensor.nbytes for _, tensor in weights), 0, 0
    pending = 0
    for end, (_, tensor) in enumerate(weights, 1):
        pending += tensor.nbytes
        if pending >= PACKED_AT_ONCE or end == len(weights):
            fill(weights[start:end], team)
            after()
            start, done, pending = end, done + pending, 0
            if on_progress:
                on_progress("pack", done, total)
    return sum(packed.nbytes for packed, _ in weights)


def build_decoder(
    checkpoint: Checkpoint,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    activations: int | None = None,
    on_progress: Progress | None = None,
) -> DecoderSession:
    """A session over a checkpoint.

    Args:
        n_ctx: tokens; None: the model's context length, bounded so that the cache takes at most a quarter of memory.
        n_threads: None: the CPUs that this process may use. activations: 8, 16 (default) or 32.
        on_progress: called with ("compile" | "pack", done, total).

    Raises UnsupportedModelError, CorruptFileError for what the file holds, InvalidArgument for an argument.
    """
    config = read_config(checkpoint)
    width = DEFAULT_ACTIVATIONS if activations is None else activations
    if width not in (8, 16, 32):
        raise InvalidArgument(f"build_decoder: activations: expected 8, 16 or 32, got {activations}")
    kind = cache_type(checkpoint, width)
    if n_ctx is None:
        n_ctx = default_context(config, kind)
    most = _memory_bytes() // config.kv_bytes_per_token(CACHE_BYTES[kind])
    if n_ctx > most:  # before tables and cache are made for it
        raise InvalidArgument(f"load: n_ctx: expected at most {most} tokens, whose keys and values fill this machine's memory, got {n_ctx}")
    decoder = assemble(checkpoint, config, n_ctx)
    # Or the file's pages would count as memory of this process beside the packed weights.
    return DecoderSession(decoder, config, n_ctx, n_threads, width, kind, on_progress, checkpoint.release_pages)


def cache_type(checkpoint: Checkpoint, activations: int) -> str:
    """How keys and values are kept: "f16", or "f32" where nothing else is rounded: no quantised weight, or 32-bit activations."""
    quantised = any(info.format.block_size > 1 for info in checkpoint.tensors.values())
    return "f16" if quantised and activations < 32 else "f32"


def default_context(config: ModelConfig, kind: str = "f16") -> int:
    """The model's context length, or what a quarter of this machine's memory holds if that is less (at least 512).

    kind: the cache's type.
    """
    fits = _memory_bytes() // KV_SHARE // config.kv_bytes_per_token(CACHE_BYTES[kind])
    return max(min(512, config.context_length), min(config.context_length, fits))


def _memory_bytes() -> int:
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 8 << 30
