"""The worker that runs llamita: the same questions as llamacpp_worker.py answers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from wire import serve

import llamita
from llamita.engine.runtime.bandwidth import BandwidthReader


class Llamita:
    """One model with one cache."""

    def load(self, path: str, n_ctx: int, n_threads: int, activations: int | None = None) -> dict[str, Any]:
        """Load a model; what both sides must agree on, and what ran."""
        from llamita.engine.kernels.targets import current_target

        self._model = llamita.load(path, n_ctx=n_ctx, n_threads=n_threads, activations=activations)
        self._decoder: Any = self._model.decoder
        self._reader: BandwidthReader | None = None
        return {
            "n_vocab": self._decoder.n_vocab,
            "version": llamita.__version__,
            "features": current_target().name,
            "activations": self._decoder.activations,
        }

    def bytes_read(self, n_cached: int) -> int:
        """Bytes that a decode step reads with `n_cached` tokens in the cache."""
        return int(self._decoder.bytes_read(n_cached))

    def rewind(self, n: int) -> None:
        """Keep the first n tokens."""
        self._decoder.rewind(n)

    def time(self, depth: list[int], prompt: list[int], generated: list[int]) -> int:
        """Nanoseconds to evaluate `prompt` at once and then `generated` one by one, with `depth` in the cache already."""
        decoder = self._decoder
        if decoder.cached_ids[: len(depth)] == depth:
            decoder.rewind(len(depth))
        else:
            decoder.rewind(0)
            decoder.forward(depth)
        started = time.perf_counter_ns()
        if prompt:
            decoder.forward(prompt)
        for token in generated:
            decoder.forward([token])
        return time.perf_counter_ns() - started

    def logits(self, ids: list[int], file: str) -> None:
        """Append ids and save the logits of all of them: float32 [len(ids), V]."""
        np.save(file, self._decoder.forward_all(ids))

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, as the model's own tokenizer makes them."""
        return self._model.tokenize(text)

    def bandwidth(self, n_bytes: int, seconds: float) -> float:
        """Bytes a second that the decoder's own threads read from a buffer of n_bytes."""
        if self._reader is None or not n_bytes <= self._reader.n_bytes < n_bytes + 4096 * self._decoder.team.n_threads:
            self._reader = BandwidthReader(self._decoder.team, n_bytes)
        return self._reader.best(seconds)


if __name__ == "__main__":
    side = Llamita()
    serve({op: getattr(side, op) for op in ("load", "bytes_read", "rewind", "time", "logits", "tokenize", "bandwidth")})
