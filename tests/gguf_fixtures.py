"""Tiny random models on disk, for tests: one set of weights, written as GGUF or as a Hugging Face folder.

    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q4_0", tied=True)
    folder = write_tiny_safetensors(tmp_path / "tiny")          # the same weights as write_tiny_llama with weight_type="F32"
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

from llamita.quant.formats import format_by_name

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "i n", "Ġt he", "Ġ a", "l l", "e r", "o n", "l o", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld")
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_ZERO_MEAN_MIN = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}  # dmin / d that centres random codes
_K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True)
class Tiny:
    """What to write. Widths default to 64 and 128 (256 for K types, whose blocks hold 256 weights)."""

    architecture: str = "llama"
    n_layers: int = 2
    hidden: int = 0
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 0  # hidden / n_heads
    ffn: int = 0
    vocab: int = 320
    n_ctx: int = 128
    rope_base: float = 10000.0
    eps: float = 1e-5
    weight_type: str = "F32"  # of the matrices; vectors are F32
    tied: bool = False
    qkv_bias: bool = False
    chat_template: str | None = CHATML
    tokenizer: bool = True
    seed: int = 0

    def sized(self) -> "Tiny":
        """The same with every width filled in."""
        k = self.weight_type in _K_TYPES
        hidden = self.hidden or (256 if k else 64)
        ffn = self.ffn or (256 if k else 128)
        return replace(self, hidden=hidden, ffn=ffn, head_dim=self.head_dim or hidden // self.n_heads)


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Tokens and GGUF token types of a byte-level BPE vocabulary, padded to `size` with unused tokens."""
    tokens = [*SPECIALS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))
    if size < len(tokens):
        raise ValueError(f"vocab: expected at least {len(tokens)}, got {size}")
    padding = range(size - len(tokens))
    return [*tokens, *(f"[PAD{i}]" for i in padding)], [*types, *(5 for _ in padding)]


def tiny_weights(tiny: Tiny) -> dict[str, np.ndarray]:
    """Random float32 weights under GGUF names, in the row order of Hugging Face (half-split rope)."""
    tiny = tiny.sized()
    rng = np.random.default_rng(tiny.seed)
    q, kv = tiny.n_heads * tiny.head_dim, tiny.n_kv_heads * tiny.head_dim

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(n: int, mean: float) -> np.ndarray:
        return (mean + 0.1 * rng.standard_normal(n)).astype(np.float32)

    weights = {"token_embd.weight": matrix(tiny.vocab, tiny.hidden) * np.float32(4)}
    for i in range(tiny.n_layers):
        at = f"blk.{i}."
        weights[at + "attn_norm.weight"] = vector(tiny.hidden, 1)
        for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
            weights[f"{at}{name}.weight"] = matrix(rows, tiny.hidden)
            if tiny.qkv_bias:
                weights[f"{at}{name}.bias"] = vector(rows, 0)
        weights[at + "attn_output.weight"] = matrix(tiny.hidden, q)
        weights[at + "ffn_norm.weight"] = vector(tiny.hidden, 1)
        weights[at + "ffn_gate.weight"] = matrix(tiny.ffn, tiny.hidden)
        weights[at + "ffn_up.weight"] = matrix(tiny.ffn, tiny.hidden)
        weights[at + "ffn_down.weight"] = matrix(tiny.hidden, tiny.ffn)
    weights["output_norm.weight"] = vector(tiny.hidden, 1)
    if not tiny.tied:
        weights["output.weight"] = matrix(tiny.vocab, tiny.hidden)
    return weights


def interleave_rope_rows(w: np.ndarray, n_heads: int) -> np.ndarray:
    """Half-split rope rows -> adjacent pairs, as conversion to GGUF does for architecture llama. [rows, ...] -> [rows, ...]."""
    halves = w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(w.shape)


def encode(values: np.ndarray, weight_type: str, seed: int = 0) -> np.ndarray:
    """float32 [n, k] -> the type's bytes, uint8 [n, row bytes]. K types, which gguf cannot write, get random codes of the same spread."""
    if weight_type not in _K_TYPES:
        return quants.quantize(values, GGMLQuantizationType[weight_type]).view(np.uint8)
    fmt = format_by_name(weight_type)
    blocks = np.random.default_rng(seed).integers(0, 256, (values.size // fmt.block_size, fmt.block_bytes), dtype=np.uint8)
    fields = blocks.view(fmt.layout)
    ratio = _ZERO_MEAN_MIN.get(weight_type)
    for scale in (1.0, float(values.std())):
        spread = 1.0 if scale == 1.0 else float(fmt.dequantize(blocks).std())
        fields["d"] = scale / spread
        if ratio is not None:
            fields["dmin"] = ratio * scale / spread
    return blocks.reshape(*values.shape[:-1], -1)


def write_tiny_llama(path: Path, metadata: Mapping[str, Any] | None = None, **overrides: Any) -> Path:
    """Write a tiny random model as GGUF and return its path.

    `overrides` are fields of `Tiny`; `metadata` adds or replaces keys (int, float, bool, str or list), None removes one.
    """
    tiny = Tiny(**overrides).sized()
    writer = GGUFWriter(path, tiny.architecture)
    values = {**tiny_metadata(tiny), **(metadata or {})}
    for key, value in values.items():
        _add(writer, key, value)
    for number, (name, w) in enumerate(tiny_weights(tiny).items()):
        if tiny.architecture == "llama" and ".attn_q." in name:
            w = interleave_rope_rows(w, tiny.n_heads)
        if tiny.architecture == "llama" and ".attn_k." in name:
            w = interleave_rope_rows(w, tiny.n_kv_heads)
        if w.ndim == 1 or tiny.weight_type == "F32":
            writer.add_tensor(name, w)
        else:
            writer.add_tensor(name, encode(w, tiny.weight_type, tiny.seed + number), raw_dtype=GGMLQuantizationType[tiny.weight_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def tiny_metadata(tiny: Tiny) -> dict[str, Any]:
    """The GGUF keys of a tiny model, without general.architecture."""
    tiny, a = tiny.sized(), tiny.architecture
    values: dict[str, Any] = {
        "general.name": "Tiny",
        f"{a}.block_count": tiny.n_layers,
        f"{a}.context_length": tiny.n_ctx,
        f"{a}.embedding_length": tiny.hidden,
        f"{a}.feed_forward_length": tiny.ffn,
        f"{a}.attention.head_count": tiny.n_heads,
        f"{a}.attention.head_count_kv": tiny.n_kv_heads,
        f"{a}.attention.layer_norm_rms_epsilon": tiny.eps,
        f"{a}.rope.freq_base": tiny.rope_base,
        f"{a}.rope.dimension_count": tiny.head_dim,
        f"{a}.vocab_size": tiny.vocab,
    }
    if tiny.head_dim * tiny.n_heads != tiny.hidden:
        values |= {f"{a}.attention.key_length": tiny.head_dim, f"{a}.attention.value_length": tiny.head_dim}
    if tiny.tokenizer:
        tokens, types = vocabulary(tiny.vocab)
        values |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": list(MERGES),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
        }
        if tiny.chat_template is not None:
            values["tokenizer.chat_template"] = tiny.chat_template
    return values


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if value is None or key == "general.architecture":
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_key_value(key, value, GGUFValueType.UINT32 if value >= 0 else GGUFValueType.INT32)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


# -- Hugging Face folders ---------------------------------------------------------------------------------------------------

_HF_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_HF_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def hf_name(name: str) -> str:
    """"blk.0.attn_q.weight" -> "model.layers.0.self_attn.q_proj.weight"."""
    if name in _HF_TOP:
        return _HF_TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_HF_NAMES[part]}.{kind}"


def write_tiny_safetensors(
    folder: Path, dtype: str = "F32", n_shards: int = 1, config: Mapping[str, Any] | None = None, **overrides: Any
) -> Path:
    """Write a tiny random model as a Hugging Face folder and return the folder: the weights that write_tiny_llama writes.

    dtype: F32, F16 or BF16. `config` adds or replaces keys of config.json, None removes one.
    """
    tiny = Tiny(**overrides).sized()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {hf_name(name): w for name, w in tiny_weights(tiny).items()}
    names = list(weights)
    parts = [names[i::n_shards] for i in range(n_shards)]
    files = ["model.safetensors"] if n_shards == 1 else [f"model-{i + 1:05d}-of-{n_shards:05d}.safetensors" for i in range(n_shards)]
    for file, part in zip(files, parts, strict=True):
        (folder / file).write_bytes(safetensors_bytes({name: (dtype, weights[name]) for name in part}))
    if n_shards > 1:
        weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    values = {**tiny_config(tiny), **(config or {})}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    if tiny.tokenizer:
        _write_tokenizer(folder, tiny)
    return folder


def tiny_config(tiny: Tiny) -> dict[str, Any]:
    """config.json of a tiny model."""
    tiny = tiny.sized()
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}.get(tiny.architecture, "?")],
        "model_type": tiny.architecture,
        "hidden_act": "silu",
        "num_hidden_layers": tiny.n_layers,
        "max_position_embeddings": tiny.n_ctx,
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.ffn,
        "num_attention_heads": tiny.n_heads,
        "num_key_value_heads": tiny.n_kv_heads,
        "head_dim": tiny.head_dim,
        "rms_norm_eps": tiny.eps,
        "rope_theta": tiny.rope_base,
        "vocab_size": tiny.vocab,
        "tie_word_embeddings": tiny.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def safetensors_bytes(tensors: Mapping[str, tuple[str, np.ndarray]]) -> bytes:
    """name -> (dtype, float32 values) as a safetensors file. Written by hand because NumPy has no bfloat16."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        if dtype == "BF16":
            raw = quants.quantize(values.reshape(1, -1), GGMLQuantizationType.BF16).tobytes()
        else:
            raw = values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _write_tokenizer(folder: Path, tiny: Tiny) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, _ = vocabulary(tiny.vocab)
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    if tiny.chat_template is not None:
        settings["chat_template"] = tiny.chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
