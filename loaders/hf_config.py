"""config.json and its neighbours in a Hugging Face folder, said in GGUF's metadata keys and tensor names."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.errors import CorruptFileError, ModelFileError, ModelNotFoundError, UnsupportedModelError

# model_type -> GGUF architecture. A name is added when a test has shown that its tensors need nothing but renaming.
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

_TRY_GGUF = "a GGUF of the model may work"

_REQUIRED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class HfConfig:
    """What a folder says about its model.

    Attributes:
        folder: where it was read.
        config: config.json.
        generation: generation_config.json, {} if there is none.
        tokenizer: tokenizer_config.json, {} if there is none.
    """

    folder: Path
    config: dict[str, Any]
    generation: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> HfConfig:
        """Read the JSON files of a folder.

        Raises ModelNotFoundError if config.json is missing, CorruptFileError if one is broken, UnsupportedModelError for a model
        that needs more than renaming.
        """
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(f"{folder}: model: expected config.json in the folder, got none; download the whole model")
        neighbours = [folder / "generation_config.json", folder / "tokenizer_config.json"]
        optional = [read_json(file) if file.is_file() else {} for file in neighbours]
        config = cls(folder, read_json(folder / "config.json"), *optional)
        config._refuse_unsupported()
        return config

    @property
    def architecture(self) -> str:
        """GGUF's name of the architecture."""
        return ARCHITECTURES[self.config["model_type"]]

    @property
    def rope_interleaved(self) -> bool:
        """Whether rope pairs neighbours (2i, 2i + 1). Hugging Face pairs halves unless the config says otherwise."""
        return self.config.get("rope_interleaved") is True

    @property
    def tied(self) -> bool | None:
        """Whether the output shares the embedding's weights; None where the config does not say."""
        value = self.config.get("tie_word_embeddings")
        return value if isinstance(value, bool) else None

    def metadata(self) -> dict[str, Any]:
        """GGUF-style metadata. Raises CorruptFileError naming a key of config.json that is missing or no number."""
        a = self.architecture
        heads = self._integer("num_attention_heads")
        head_dim = self._head_dim()
        name = self.config.get("_name_or_path") or self.folder.resolve().name
        values: dict[str, Any] = {"general.architecture": a, "general.name": str(name)}
        values |= {f"{a}.{key}": self._integer(name) for key, name in _REQUIRED.items()}
        values[f"{a}.attention.head_count_kv"] = self._integer("num_key_value_heads", heads)
        values[f"{a}.attention.layer_norm_rms_epsilon"] = self._number(self.config, "rms_norm_eps", 1e-6)
        values[f"{a}.attention.key_length"] = values[f"{a}.attention.value_length"] = head_dim
        values[f"{a}.rope.dimension_count"] = int(head_dim * self._number(self.config, "partial_rotary_factor", 1.0))
        values[f"{a}.rope.freq_base"] = self._rope_base()
        window = self.config.get("sliding_window")
        if type(window) is int and self.config.get("use_sliding_window", self.config["model_type"] == "mistral"):
            values[f"{a}.attention.sliding_window"] = window
        return values | self._rope_scaling_keys() | self._tokenizer_keys()

    def gguf_name(self, name: str) -> str | None:
        """"model.layers.0.mlp.up_proj.weight" -> "blk.0.ffn_up.weight"; None for a tensor that the architecture does not have."""
        mapped = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        return None if mapped is None else str(mapped)

    def rope_factors(self) -> npt.NDArray[np.float32] | None:
        """Llama 3.1's rope scaling as GGUF's rope_freqs.weight: float32 [head_dim / 2] by which each pair's angle is divided.

        Pairs that turn fast (wavelength below original context / high_freq_factor) keep their angle, slow ones get the whole
        factor, those between a blend. None for other kinds of scaling.
        """
        scaling = self._rope_scaling()
        if scaling is None or scaling[0] != "llama3":
            return None
        values = scaling[1]
        factor = self._number(values, "factor")
        low, high = self._number(values, "low_freq_factor"), self._number(values, "high_freq_factor")
        context = self._number(values, "original_max_position_embeddings")
        if low >= high:
            raise CorruptFileError(f"{self._file}: rope_scaling: expected low_freq_factor below high_freq_factor, got {low} and {high}")
        head_dim = self._head_dim()
        turns = context / (2 * math.pi) * self._rope_base() ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray(1 / (kept + (1 - kept) / factor), dtype=np.float32)

    # -- parts ----------------------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.folder / "config.json"

    @cached_property
    def _names(self) -> Any:
        from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

        arch = next((arch for arch in MODEL_ARCH if MODEL_ARCH_NAMES[arch] == self.architecture), None)
        if arch is None:
            raise UnsupportedModelError(f"{self._file}: model_type: the gguf package is too old to know {self.architecture}; update gguf")
        return get_tensor_name_map(arch, self._integer("num_hidden_layers"))

    def _refuse_unsupported(self) -> None:
        model_type = self.config.get("model_type")
        if model_type not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedModelError(f"{self._file}: model_type: expected one of {known}, got {model_type!r}; {_TRY_GGUF}")
        for key in ("quantization_config", "quantization"):
            if self.config.get(key):
                raise UnsupportedModelError(f"{self._file}: {key}: expected F32, F16 or BF16 weights, got quantised ones; {_TRY_GGUF}")
        act = self.config.get("hidden_act", "silu")
        if act != "silu":
            raise UnsupportedModelError(f"{self._file}: hidden_act: expected 'silu', got {act!r}; {_TRY_GGUF}")
        if self._integer("num_hidden_layers") > 10_000:
            raise CorruptFileError(f"{self._file}: num_hidden_layers: expected at most 10000, got {self._integer('num_hidden_layers')}")

    def _head_dim(self) -> int:
        return self._integer("head_dim", self._integer("hidden_size") // self._integer("num_attention_heads"))

    def _rope_base(self) -> float:
        nested = self.config.get("rope_parameters")
        if isinstance(nested, dict) and "rope_theta" in nested:
            return self._number(nested, "rope_theta")
        return self._number(self.config, "rope_theta", 10000.0)

    def _rope_scaling(self) -> tuple[str, dict[str, Any]] | None:
        """Kind and parameters of rope scaling, None if there is none."""
        values = self.config.get("rope_scaling") or self.config.get("rope_parameters")
        if not isinstance(values, dict):
            return None
        kind = values.get("rope_type", values.get("type", "default"))
        return None if kind == "default" else (str(kind), values)

    def _rope_scaling_keys(self) -> dict[str, Any]:
        scaling, a = self._rope_scaling(), self.architecture
        if scaling is None or scaling[0] == "llama3":  # llama3 is a tensor: rope_factors
            return {}
        kind, values = scaling
        if kind not in ("linear", "yarn"):
            raise UnsupportedModelError(f"{self._file}: rope scaling: expected linear, yarn or llama3, got {kind!r}; {_TRY_GGUF}")
        keys: dict[str, Any] = {f"{a}.rope.scaling.type": kind, f"{a}.rope.scaling.factor": self._number(values, "factor")}
        if kind == "yarn":
            context = values.get("original_max_position_embeddings", self.config.get("max_position_embeddings"))
            keys[f"{a}.rope.scaling.original_context_length"] = context
        return keys

    def _tokenizer_keys(self) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for name in ("bos", "eos"):
            ids = self.generation.get(f"{name}_token_id", self.config.get(f"{name}_token_id"))
            ids = [i for i in (ids if isinstance(ids, list) else [ids]) if type(i) is int]
            if ids:
                keys[f"tokenizer.ggml.{name}_token_id"] = ids[0]
            if name == "eos" and len(ids) > 1:
                keys["tokenizer.eog_token_ids"] = ids
            if isinstance(self.tokenizer.get(f"add_{name}_token"), bool):
                keys[f"tokenizer.ggml.add_{name}_token"] = self.tokenizer[f"add_{name}_token"]
        return keys | self._template_keys()

    def _template_keys(self) -> dict[str, Any]:
        """The chat template: chat_template.jinja, else tokenizer_config.json; of several named ones "default" is the template."""
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return {"tokenizer.chat_template": _read_text(file)}
        template = self.tokenizer.get("chat_template")
        if isinstance(template, str):
            return {"tokenizer.chat_template": template}
        keys = {}
        for entry in template if isinstance(template, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
                suffix = "" if entry["name"] == "default" else "." + entry["name"]
                keys["tokenizer.chat_template" + suffix] = entry["template"]
        return keys

    def _integer(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is None:
            value = default
        if type(value) is not int or value < 1:
            raise CorruptFileError(f"{self._file}: {name}: expected a whole number above 0, got {value!r}")
        return value

    def _number(self, values: dict[str, Any], name: str, default: float | None = None) -> float:
        value = values.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise CorruptFileError(f"{self._file}: {name}: expected a number above 0, got {value!r}")
        return float(value)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CorruptFileError if it is none, ModelFileError if it cannot be read."""
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: expected JSON, got a file that is none ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CorruptFileError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path}: expected UTF-8 text, got other bytes; the file is damaged, download it again") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
