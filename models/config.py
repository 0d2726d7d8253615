"""What a model is, in numbers: read once from a checkpoint's metadata, checked, and frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ..engine.errors import CorruptFileError, UnsupportedModelError
from ..loaders.checkpoint import Checkpoint

ARCHITECTURES = ("llama",)
# Keys that change what the decoder computes, and the value with which they change nothing.
_NEUTRAL = {"attention.scale": 0.0, "logit_scale": 1.0, "attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0}
_NEUTRAL |= {"embedding_scale": 1.0, "residual_scale": 1.0}
_ABSENT = object()


@dataclass(frozen=True)
class ModelConfig:
    """Numbers of a LLaMA-like decoder.

    Attributes:
        architecture: GGUF's name. n_layers, hidden (C), ffn (F), vocab (V), n_heads (H), n_kv_heads (K), head_dim (D): extents.
        context_length: positions that the model was trained on, and at most a sliding window's. norm_eps: of the RMS norms.
        rope_base, rope_scale, rope_interleaved: see layers/rotary.py.
    """

    architecture: str
    n_layers: int
    hidden: int
    ffn: int
    vocab: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope_base: float
    rope_scale: float
    rope_interleaved: bool

    def kv_bytes_per_token(self, width: int = 2) -> int:
        """Bytes that one token takes in the key/value cache, `width` bytes a number."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * width


class _Reader:
    """Typed reads of metadata; each refusal names the file, the key and the value."""

    def __init__(self, path: Any, metadata: Mapping[str, Any], prefix: str):
        self._path, self._metadata, self._prefix = path, metadata, prefix

    def _read(self, key: str, default: Any, accept: Callable[[Any], bool], wanted: str) -> Any:
        full = f"{self._prefix}.{key}"
        value = self._metadata.get(full, default)
        if value is _ABSENT:
            raise CorruptFileError(f"{self._path}: metadata: expected the key {full}, got none; the file is no complete model")
        if not accept(value):
            raise CorruptFileError(f"{self._path}: {full}: expected {wanted}, got {value!r}")
        return value

    def count(self, key: str, default: Any = _ABSENT) -> int:
        """A whole number from 1 on; a list of equal ones counts as one."""
        value = self._metadata.get(f"{self._prefix}.{key}", default)
        if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
            items = set(value if isinstance(value, (list, tuple)) else value.tolist())
            if len(items) != 1:
                shown = sorted(items, key=str)[:8]
                raise UnsupportedModelError(f"{self._path}: {self._prefix}.{key}: expected one number for all layers, got {shown}")
            default = items.pop()
            return int(self._read(key + "[0]", default, _is_count, "a whole number from 1 on"))
        return int(self._read(key, default, _is_count, "a whole number from 1 on"))

    def number(self, key: str, default: Any = _ABSENT) -> float:
        """A finite number above 0."""
        return float(self._read(key, default, _is_positive, "a finite number above 0"))


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) < 1 << 31


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < float("inf")


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a checkpoint.

    Raises UnsupportedModelError for an architecture or a feature that is not supported (named), CorruptFileError for a
    key that is missing or a value that cannot be.
    """
    arch, path, metadata = checkpoint.architecture, checkpoint.path, checkpoint.metadata
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(f"{path}: general.architecture: expected one of {', '.join(ARCHITECTURES)}, got {arch!r}")
    read = _Reader(path, metadata, arch)
    experts = metadata.get(f"{arch}.expert_count", 0)
    if experts:
        raise UnsupportedModelError(f"{path}: {arch}.expert_count: expected a dense model (0), got {experts!r}; experts are not supported")
    for key, neutral in _NEUTRAL.items():
        if (value := metadata.get(f"{arch}.{key}", neutral)) != neutral:
            raise UnsupportedModelError(f"{path}: {arch}.{key}: expected {neutral} or no such key, got {value!r}; it is not supported")
    hidden, n_heads = read.count("embedding_length"), read.count("attention.head_count")
    n_kv_heads = read.count("attention.head_count_kv", n_heads)
    if n_heads % n_kv_heads:
        raise CorruptFileError(f"{path}: {arch}.attention.head_count_kv: expected a divisor of {n_heads} heads, got {n_kv_heads}")
    head_dim = read.count("attention.key_length", hidden // n_heads)
    rotary = read.count("rope.dimension_count", head_dim)
    if rotary != head_dim or read.count("attention.value_length", head_dim) != head_dim or head_dim % 2:
        raise UnsupportedModelError(
            f"{path}: head sizes: expected key, value and rope to share one even size, got {head_dim}, "
            f"{metadata.get(f'{arch}.attention.value_length', head_dim)!r} and {rotary}"
        )
    scaling = metadata.get(f"{arch}.rope.scaling.type", "linear")  # as llama.cpp reads a file that does not say
    if scaling not in ("none", "linear"):
        raise UnsupportedModelError(f"{path}: {arch}.rope.scaling.type: expected none or linear, got {scaling!r}")
    # Within the window every token sees all others, as here.
    window = read.count("attention.sliding_window") if metadata.get(f"{arch}.attention.sliding_window") else 1 << 31
    return ModelConfig(
        architecture=arch,
        n_layers=read.count("block_count"),
        hidden=hidden,
        ffn=read.count("feed_forward_length"),
        vocab=checkpoint.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in checkpoint.tensors else 0,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        context_length=min(read.count("context_length", 2048), window),
        norm_eps=read.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope_base=read.number("rope.freq_base", 10000.0),
        rope_scale=1.0 if scaling == "none" else read.number("rope.scaling.factor", read.number("rope.scale_linear", 1.0)),
        rope_interleaved=checkpoint.rope_interleaved,
    )
