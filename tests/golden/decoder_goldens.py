"""Makes tests/data/golden/decoder.json: logits of tiny random models by transformers, in float64.

Run with llamita, torch and transformers installed: `python tests/golden/decoder_goldens.py`. The weights are those of
tests/gguf_fixtures.py, so that only a few logits need to be kept.
"""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
OUT = TESTS / "data" / "golden" / "decoder.json"
TOKENS, POSITIONS, EVERY = 48, (0, 5, 21, 47), 8
SHAPE = {"hidden": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn": 96, "n_layers": 2, "seed": 3}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# name -> overrides of the fixture, rope scaling of config.json
CASES = {
    "grouped heads": ({}, None),
    "one kv head": ({"n_kv_heads": 1, "tied": True}, None),
    "wide heads": ({"head_dim": 32, "rope_base": 500000.0}, None),
    "biases": ({"qkv_bias": True}, None),
    "linear scaling": ({}, {"rope_type": "linear", "factor": 2.5}),
    "llama3 scaling": ({}, LLAMA3),
}


def prompt(vocab=320):
    """Ids that repeat nothing."""
    return [(37 * i + 11) % vocab for i in range(TOKENS)]


def reference(overrides, scaling):
    """Logits of one case, [len(POSITIONS)][vocab / EVERY]."""
    import torch
    from gguf_fixtures import Tiny, hf_name, tiny_weights
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = Tiny(**{**SHAPE, **overrides}).sized()
    config = LlamaConfig(
        vocab_size=tiny.vocab,
        hidden_size=tiny.hidden,
        intermediate_size=tiny.ffn,
        num_hidden_layers=tiny.n_layers,
        num_attention_heads=tiny.n_heads,
        num_key_value_heads=tiny.n_kv_heads,
        head_dim=tiny.head_dim,
        max_position_embeddings=tiny.n_ctx,
        rms_norm_eps=tiny.eps,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": tiny.rope_base},
        tie_word_embeddings=tiny.tied,
        attention_bias=tiny.qkv_bias,
    )
    model = LlamaForCausalLM(config).eval()
    state = {hf_name(name): torch.from_numpy(w) for name, w in tiny_weights(tiny).items()}
    if tiny.qkv_bias:  # there, a bias of the queries brings one of the output
        state |= {f"model.layers.{i}.self_attn.o_proj.bias": torch.zeros(tiny.hidden) for i in range(tiny.n_layers)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    with torch.no_grad():
        logits = model.double()(torch.tensor([prompt(tiny.vocab)])).logits[0]
    return [[round(float(x), 6) for x in logits[p, ::EVERY]] for p in POSITIONS]


def main():
    """Write the file."""
    sys.path[:0] = [str(TESTS)]
    OUT.write_text(json.dumps({name: reference(*case) for name, case in CASES.items()}, indent=1).replace("\n   ", "") + "\n")


if __name__ == "__main__":
    main()
