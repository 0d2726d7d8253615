"""Gradients through the whole decoder: against differences, against PyTorch, through quantised weights."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder as tiny

from llamita import ops
from llamita.engine.errors import MissingGradient
from llamita.engine.faces.checkpoint import checkpointing
from llamita.engine.faces.eager import grad, tracked
from llamita.engine.faces.gradient import gradient
from llamita.engine.faces.tape import stored_bytes
from llamita.engine.faces.traced import trace
from llamita.engine.gradcheck import gradcheck
from llamita.loaders.checkpoint import open_checkpoint
from llamita.models.config import read_config
from llamita.models.llama import assemble

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "decoder_gradients.json"
NAMES = list(tiny.shapes())


def loss(*weights):
    model = tiny.decoder(dict(zip(NAMES, weights, strict=True)))
    return tiny.cross_entropy(model.forward_diff(tiny.IDS))


def test_loss_gradient_agrees_with_differences():
    weights = list(tiny.parameters().values())
    for seed in range(3):
        gradcheck(loss, weights, seed=seed, rtol=1e-6)


def test_loss_and_every_gradient_agree_with_pytorch():
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    leaves = [tracked(w) for w in tiny.parameters().values()]
    y = loss(*leaves)
    assert float(y.numpy()) == pytest.approx(golden["loss"], rel=1e-12)
    for name, g in zip(NAMES, grad(y, leaves), strict=True):
        along, size = golden["gradients"][name]
        assert float(np.sum(g.numpy() * tiny.direction(g.shape))) == pytest.approx(along, rel=1e-9, abs=1e-12), name
        assert float(np.sqrt(np.sum(g.numpy() ** 2))) == pytest.approx(size, rel=1e-9), name


def test_traced_and_checkpointed_gradients_are_the_same_bits():
    weights = list(tiny.parameters().values())
    program = trace(loss, *weights)
    traced = gradient(program, with_values=True).run(*weights)
    for strategy in ("none", "balanced"):
        with checkpointing(strategy):
            leaves = [tracked(w) for w in weights]
            y = loss(*leaves)
            np.testing.assert_array_equal(y.numpy(), traced[0])
            for g, expected in zip(grad(y, leaves), traced[1:], strict=True):
                np.testing.assert_array_equal(g.numpy(), expected)


def test_balanced_keeps_less_of_a_decoder():
    kept = {}
    for strategy in ("none", "balanced"):
        with checkpointing(strategy):
            kept[strategy] = stored_bytes(loss(*map(tracked, tiny.parameters().values())).node)
    assert kept["balanced"] < 0.5 * kept["none"]


def test_forward_keeps_the_gradient_and_equals_forward_diff():
    weights = tiny.parameters()
    model = tiny.decoder(weights)
    x = tracked(weights["token_embd"][tiny.IDS])
    fast = model.from_embeddings(x)
    with ops.composites_only():
        slow = model.from_embeddings(x)
    np.testing.assert_array_equal(fast.numpy(), slow.numpy())
    assert fast.requires_grad
    np.testing.assert_allclose(model.forward(tiny.IDS), fast.numpy(), rtol=1e-9, atol=1e-9)


def test_through_quantised_weights_the_gradient_reaches_activations_and_stops_there():
    weights = {n: w.astype(np.float32) if n.endswith("norm") else ops.Int8Tensor.quantize(w) for n, w in tiny.parameters().items()}
    model = tiny.decoder(weights)
    table = weights["token_embd"].dequantize()[tiny.IDS]
    x = tracked(table)
    y = model.from_embeddings(x)
    cotangent = np.cos(np.arange(y.value.size, dtype=np.float32)).reshape(y.shape)
    (g,) = grad(y, [x], cotangent)
    dense = tiny.decoder({n: np.asarray(w if n.endswith("norm") else w.dequantize(), np.float64) for n, w in weights.items()})
    z = tracked(table.astype(np.float64))
    (exact,) = grad(dense.from_embeddings(z), [z], cotangent.astype(np.float64))
    np.testing.assert_allclose(g.numpy(), exact.numpy(), rtol=1e-3, atol=1e-4)
    with pytest.raises(MissingGradient, match="frozen"):
        grad(y, [weights["output"]], cotangent)


def _decoded(model):
    """Every quantised weight of a decoder replaced by its numbers."""
    for block in model.blocks:
        a, m = block.attention, block.mlp
        for layer in (a.q, a.k, a.v, a.output, m.gate, m.up, m.down):
            layer.weight = layer.weight.dequantize()
    model.output.weight = model.output.weight.dequantize()
    return model


def test_gradient_through_the_real_quantised_model(real_model_path, record_property):
    """d logit / d embedding output: 5 directions within 1e-2 of a central difference; memory and time are reported."""
    psutil = pytest.importorskip("psutil")
    with open_checkpoint(real_model_path) as checkpoint:
        model = assemble(checkpoint, read_config(checkpoint), 64)
        ids = np.arange(64)[None] * 97 % 49152
        embedded = model.embedding.forward(ids)
        seed = np.zeros((1, 64, model.output.weight.shape[0]), np.float32)
        seed[0, -1, 1234] = 1
        before, started = psutil.Process().memory_info().rss, time.perf_counter()
        x = tracked(embedded)
        with ops.composites_only():
            (g,) = grad(model.from_embeddings(x), [x], seed)
        seconds, memory = time.perf_counter() - started, psutil.Process().memory_info().rss - before
        record_property("seconds", seconds)
        record_property("bytes", memory)
        print(f"gradient of one logit over 64 tokens: {seconds:.1f} s, {memory / 2**20:.0f} MiB")
        assert memory < 3 * 2**30
        rng = np.random.default_rng(0)
        floats = _decoded(model)
        for _ in range(5):
            d = rng.standard_normal(embedded.shape).astype(np.float32)
            d *= np.linalg.norm(embedded) / np.linalg.norm(d)
            step = 2e-3
            plus, minus = (float(floats.from_embeddings(embedded + s * step * d)[0, -1, 1234]) for s in (1, -1))
            assert float(np.sum(g.numpy() * d, dtype=np.float64)) == pytest.approx((plus - minus) / (2 * step), rel=1e-2, abs=1e-2)
