"""What a model is and what this computer makes of it, for people and programs; and the parts of `load` that need no weights."""

from __future__ import annotations

import platform
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..engine.errors import LlamitaError
from .bench import cpu_name, short_count
from .bench_output import params_text, size_text

if TYPE_CHECKING:
    from ..loaders.checkpoint import Checkpoint
    from ..loaders.tokenizer import Tokenizer
    from .loading import LoadProgress

# Features that kernels are chosen by or that explain a speed; CPUs report many more.
_TELLING_FEATURES = tuple("avx f16c fma avx2 avxvnni avx512f avx512bw avx512vnni amx-int8 neon dotprod i8mm sve".split())


def open_model(model: str | None, on_progress: LoadProgress | None = None) -> Checkpoint:
    """The checkpoint that a model argument means; fetched first if need be. Raises what `load` raises for it."""
    from ..loaders.checkpoint import open_checkpoint
    from ..loaders.library import DEFAULT_MODEL, resolve

    return open_checkpoint(resolve(DEFAULT_MODEL if model is None else model, on_progress))


def load_tokenizer(model: str | None, on_progress: LoadProgress | None = None) -> Tokenizer:
    """A model's tokenizer, without its weights. Raises TokenizerError if it has none that can be used."""
    from .loading import read_tokenizer

    with open_model(model, on_progress) as checkpoint:
        tokenizer, problem = read_tokenizer(checkpoint)
    if tokenizer is None:
        raise problem or LlamitaError(f"{checkpoint.path}: the file has no tokenizer")
    return tokenizer


def warm_up(model: str | None, activations: int | None = None, on_progress: LoadProgress | None = None) -> None:
    """Compile what the model needs and is not compiled yet. Raises what `load` raises."""
    from .loading import load

    with load(model, activations=activations, on_progress=on_progress):
        pass


def describe(model: str | None, n_ctx: int | None = None, on_progress: LoadProgress | None = None) -> dict[str, Any]:
    """Facts about a model file and this computer, as plain values that JSON can hold.

    A model that cannot be run is described too; "problem" then says why.
    """
    with open_model(model, on_progress) as checkpoint:
        facts: dict[str, Any] = {
            "path": str(checkpoint.path),
            "name": _plain(checkpoint.metadata.get("general.name")),
            "architecture": checkpoint.architecture,
            "file_type": checkpoint.file_type,
            "n_params": checkpoint.n_params,
            "size_bytes": checkpoint.size_bytes,
            "file_bytes": checkpoint.file_bytes,
            "tensors": _tensor_kinds(checkpoint),
            "tokenizer": _tokenizer_facts(checkpoint),
            "chat_template": isinstance(checkpoint.metadata.get("tokenizer.chat_template"), str),
        }
        facts |= _model_facts(checkpoint, n_ctx)
    return facts | {"machine": machine_facts()}


def info_text(facts: dict[str, Any]) -> str:
    """The facts of `describe` for people to read."""
    lines = [
        ("file", f"{facts['path']} ({size_text(facts['file_bytes'])})"),
        ("name", facts["name"] or "-"),
        ("model", f"{facts['architecture']} {short_count(facts['n_params'])} {facts['file_type']}"),
        ("parameters", f"{params_text(facts['n_params'])} in {sum(kind['count'] for kind in facts['tensors'].values())} tensors"),
        ("tensor types", ", ".join(f"{name} {size_text(kind['bytes'])} ({kind['count']})" for name, kind in facts["tensors"].items())),
    ]
    if config := facts.get("config"):
        lines.append(("sizes", ", ".join(f"{key} {_short(value)}" for key, value in config.items() if key != "architecture")))
    tokenizer = facts["tokenizer"]
    lines.append(("tokenizer", tokenizer.get("problem") or ", ".join(f"{key} {value}" for key, value in tokenizer.items())))
    lines.append(("chat template", "yes" if facts["chat_template"] else "no"))
    if context := facts.get("context"):
        lines.append(("context", f"{context['n_ctx']} tokens (the model's own: {context['trained']})"))
    if memory := facts.get("memory"):
        lines.append(("memory", ", ".join(f"{key.replace('_', ' ')} {size_text(value)}" for key, value in memory.items())))
    if problem := facts.get("problem"):
        lines.append(("cannot run", problem))
    machine = facts["machine"]
    lines.append(("CPU", f"{machine['cpu']}: {' '.join(machine['features'])}"))
    lines.append(("kernel target", machine["kernel_target"]))
    return "\n".join(f"{key + ':':<15}{value}" for key, value in lines)


def machine_facts() -> dict[str, Any]:
    """The processor, those of its features that matter here, and what kernels are compiled for."""
    from ..engine.kernels.targets import available_targets, current_target, host_features

    has = host_features()
    return {
        "cpu": cpu_name(),
        "features": [name for name in _TELLING_FEATURES if name in has],
        "kernel_target": current_target().name,
        "kernel_targets": list(available_targets()),
    }


def version_text() -> str:
    """Versions of llamita and of what it stands on, and this computer's kernel target: what a bug report should hold."""
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "llvmlite"))
    machine = machine_facts()
    return (
        f"llamita {version('llamita')}\n"
        f"Python {platform.python_version()}, {packages}; {platform.system()} {platform.machine()}\n"
        f"kernel target: {machine['kernel_target']}; CPU features: {' '.join(machine['features']) or 'none of those that matter'}"
    )


def _model_facts(checkpoint: Checkpoint, n_ctx: int | None) -> dict[str, Any]:
    """Sizes, context and memory of a model that can be run; what is in the way otherwise."""
    from dataclasses import asdict

    from .config import read_config
    from .session import CACHE_BYTES, DEFAULT_ACTIVATIONS, cache_type, default_context

    if not checkpoint.tensor_names:
        return {"problem": "the file holds a vocabulary and no weights: it tokenizes, and that is all"}
    try:
        config = read_config(checkpoint)
    except LlamitaError as error:
        return {"problem": str(error)}
    kind = cache_type(checkpoint, DEFAULT_ACTIVATIONS)
    context = n_ctx or default_context(config, kind)
    cache = context * config.kv_bytes_per_token(CACHE_BYTES[kind])
    return {
        "config": asdict(config),
        "context": {"n_ctx": context, "trained": config.context_length},
        "memory": {"weights": checkpoint.size_bytes, "kv_cache": cache, "total": checkpoint.size_bytes + cache},
    }


def _tensor_kinds(checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
    """Tensor type -> how many there are and their bytes, the largest share first."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for info in checkpoint.tensors.values():
        count[info.format.name] += 1
        size[info.format.name] += info.nbytes
    return {name: {"count": count[name], "bytes": n_bytes} for name, n_bytes in size.most_common()}


def _tokenizer_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    from .loading import read_tokenizer

    tokenizer, problem = read_tokenizer(checkpoint)
    if tokenizer is None:
        return {"problem": str(problem)}
    kinds = {key: _plain(checkpoint.metadata.get(f"tokenizer.ggml.{key}")) for key in ("model", "pre")}
    return {key: value for key, value in kinds.items() if value is not None} | {
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "eog_ids": sorted(tokenizer.eog_ids),
        "add_bos": tokenizer.add_bos,
    }


def _plain(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
