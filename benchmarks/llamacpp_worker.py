"""The worker that runs llama.cpp, through the C interface that llama-cpp-python exposes. Needs numpy and llama_cpp only."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from wire import serve

N_BATCH = 512  # llama-bench's micro-batch
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_FTYPES = {"F32": "LLAMA_FTYPE_ALL_F32"}  # all others are LLAMA_FTYPE_MOSTLY_<name>

_messages: list[str] = []


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _: Any) -> None:
    """Keep warnings and errors: they explain a failure."""
    if level >= 3:
        _messages.append(text.decode("utf-8", "replace").strip())


def _fail(what: str) -> RuntimeError:
    return RuntimeError(" / ".join([what, *_messages[-2:]]))


class LlamaCpp:
    """One model with one context and one sequence."""

    def __init__(self) -> None:
        llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._cached: list[int] = []

    def load(self, path: str, n_ctx: int, n_threads: int, flash_attention: str = "auto") -> dict[str, Any]:
        """Load a model; what both sides must agree on, and what ran."""
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self._model:
            raise _fail(f"{path}: llama.cpp could not load it")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = n_ctx, N_BATCH, N_BATCH
        options.n_threads = options.n_threads_batch = n_threads
        options.flash_attn_type = FLASH_ATTENTION[flash_attention]
        options.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise _fail(f"{path}: llama.cpp could not make a context of {n_ctx} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        self._tokens, self._positions, self._counts, self._wanted = (
            np.ctypeslib.as_array(pointer, (N_BATCH,))
            for pointer in (self._batch.token, self._batch.pos, self._batch.n_seq_id, self._batch.logits)
        )
        self._counts[:] = 1
        for i in range(N_BATCH):
            self._batch.seq_id[i][0] = 0
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._n_vocab = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        starts = llama_cpp.llama_vocab_get_add_bos(vocabulary)
        return {
            "n_vocab": self._n_vocab,
            "bos": int(llama_cpp.llama_vocab_bos(vocabulary)) if starts else None,
            "version": llama_cpp.__version__,
            "features": llama_cpp.llama_print_system_info().decode(),
            "n_params": int(llama_cpp.llama_model_n_params(self._model)),
            "n_bytes": int(llama_cpp.llama_model_size(self._model)),
        }

    def _decode(self, ids: Sequence[int] | np.ndarray, every: bool = False) -> None:
        """Append up to N_BATCH ids; logits of the last one, or of every one."""
        n, start = len(ids), len(self._cached)
        self._batch.n_tokens = n
        self._tokens[:n] = ids
        self._positions[:n] = np.arange(start, start + n)
        self._wanted[:n] = every
        self._wanted[n - 1] = 1
        if status := llama_cpp.llama_decode(self._context, self._batch):
            raise _fail(f"llama_decode of {n} tokens at {start}: status {status}")
        self._cached.extend(ids)

    def _append(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), N_BATCH):
            self._decode(ids[start : start + N_BATCH])

    def rewind(self, n: int) -> None:
        """Keep the first n tokens."""
        if n == 0:
            llama_cpp.llama_memory_clear(self._memory, False)
        elif not llama_cpp.llama_memory_seq_rm(self._memory, 0, n, -1):
            raise _fail(f"llama_memory_seq_rm: could not keep {n} tokens")
        del self._cached[n:]

    def time(self, depth: list[int], prompt: list[int], generated: list[int]) -> int:
        """Nanoseconds to evaluate `prompt` at once and then `generated` one by one, with `depth` in the cache already."""
        if self._cached[: len(depth)] == depth:
            self.rewind(len(depth))
        else:
            self.rewind(0)
            self._append(depth)
        llama_cpp.llama_synchronize(self._context)
        started = time.perf_counter_ns()
        self._append(prompt)
        for token in generated:
            self._decode([token])
            llama_cpp.llama_synchronize(self._context)
        llama_cpp.llama_synchronize(self._context)
        return time.perf_counter_ns() - started

    def logits(self, ids: list[int], file: str) -> None:
        """Append ids and save the logits of all of them: float32 [len(ids), V]."""
        parts = []
        for start in range(0, len(ids), N_BATCH):
            part = ids[start : start + N_BATCH]
            self._decode(part, every=True)
            rows = llama_cpp.llama_get_logits(self._context)
            parts.append(np.ctypeslib.as_array(rows, (len(part), self._n_vocab)).copy())
        np.save(file, np.concatenate(parts))

    def quantize(self, source: str, target: str, kind: str, pure: bool, n_threads: int) -> None:
        """Write `source` again with the weights of llama-quantize's type `kind`."""
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = getattr(llama_cpp, _FTYPES.get(kind, f"LLAMA_FTYPE_MOSTLY_{kind}"))
        options.allow_requantize, options.pure, options.nthread = True, pure, n_threads
        if status := llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options)):
            raise _fail(f"{source} -> {kind}: llama_model_quantize: status {status}")


if __name__ == "__main__":
    side = LlamaCpp()
    serve({op: getattr(side, op) for op in ("load", "rewind", "time", "logits", "quantize")})
