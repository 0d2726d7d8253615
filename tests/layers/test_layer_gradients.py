"""No layer loses a gradient: `forward` and `forward_diff`, any layout, dense and quantised weights."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from llamita import layers
from llamita.engine import ops
from llamita.engine.errors import InvalidArgument
from llamita.engine.faces.eager import grad, tracked
from llamita.engine.gradcheck import gradcheck
from llamita.engine.kv_cache import KVCache, NoPast
from llamita.engine.runtime.engine import Engine
from llamita.quant.formats import format_by_name
from llamita.quant.qtensor import QTensor

RNG = np.random.default_rng(5)
W4, B4 = RNG.normal(size=4), RNG.normal(size=4)
MATRIX = RNG.normal(size=(3, 4))
IDS = np.array([[2, 0, 2]])


def attention(scale=None):
    q, k, v, o = (layers.Linear(RNG.normal(size=s)) for s in ((8, 4), (4, 4), (4, 4), (4, 8)))
    return layers.Attention(q, k, v, o, layers.Rotary(4, 8), 2, 1, scale)


class WithPast(layers.Layer):
    """A layer that needs to know what came before, as a function of x alone."""

    def __init__(self, inner, *args):
        self.inner, self.args = inner, args

    def forward(self, x):
        return self.inner.forward(x, NoPast(), *self.args)


X = RNG.normal(size=(2, 3, 4))
LAYERS = {
    "Linear": (layers.Linear(MATRIX, RNG.normal(size=3)), X),
    "Linear without bias": (layers.Linear(MATRIX), X),
    "RmsNorm": (layers.RmsNorm(W4), X),
    "LayerNorm": (layers.LayerNorm(W4, B4), X),
    "LayerNorm without bias": (layers.LayerNorm(W4), X),
    "GatedMlp": (layers.GatedMlp(*(layers.Linear(RNG.normal(size=s)) for s in ((5, 4), (5, 4), (4, 5)))), X),
    "Rotary": (WithPast(layers.Rotary(4, 8)), RNG.normal(size=(1, 2, 3, 4))),
    "Rotary interleaved": (WithPast(layers.Rotary(4, 8, interleaved=True)), RNG.normal(size=(1, 2, 3, 4))),
    "Attention": (WithPast(attention(), 0), X),
}


@pytest.mark.parametrize("name", LAYERS)
def test_t03_forward_and_forward_diff_give_the_same_gradient_in_any_layout(name):
    layer, x = LAYERS[name]
    swapped = np.ascontiguousarray(np.swapaxes(x, 0, 1)).swapaxes(0, 1)
    cotangent = None
    results = []
    for value in (x, swapped):
        for run in (layer.forward, layer.forward_diff):
            leaf = tracked(value)
            y = run(leaf)
            assert y.requires_grad, "lost gradient"
            cotangent = np.cos(np.arange(y.value.size)).reshape(y.shape) if cotangent is None else cotangent
            results.append(grad(y, [leaf], cotangent)[0].numpy())
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", LAYERS)
def test_finite_differences(name):
    layer, x = LAYERS[name]
    gradcheck(layer.forward, [x])
    gradcheck(layer.forward_diff, [x])


@pytest.mark.parametrize("shape", [(4, 1), (4, 2)])
def test_t03_rms_norm_of_a_transposed_view(shape):
    base = RNG.normal(size=shape)
    layer = layers.RmsNorm(np.ones(4))
    gradients = []
    for value in (base.T, base.T.copy()):
        x = tracked(value)
        (g,) = grad(layer.forward(x), [x], np.arange(1.0, base.size + 1).reshape(value.shape))
        gradients.append(g.numpy())
    np.testing.assert_array_equal(*gradients)
    assert gradients[0].any()


@pytest.mark.parametrize("name", ["Linear", "RmsNorm", "LayerNorm"])
def test_gradients_of_parameters(name):
    def forward(x, *parameters):
        made = {"Linear": layers.Linear, "RmsNorm": layers.RmsNorm, "LayerNorm": layers.LayerNorm}[name](*parameters)
        return made.forward(x)

    gradcheck(forward, [X, *{"Linear": (MATRIX, RNG.normal(size=3)), "RmsNorm": (W4,), "LayerNorm": (W4, B4)}[name]])


def test_embedding_gradient_accumulates_repeated_ids():
    table = tracked(RNG.normal(size=(4, 3)))
    y = layers.Embedding(table).forward(IDS)
    (g,) = grad(y, [table], np.ones((1, 3, 3)))
    np.testing.assert_array_equal(g.numpy()[:, 0], [1, 0, 2, 0])


@pytest.mark.parametrize("format_name", ["Q4_0", "Q8_0", "F16"])
def test_quantised_linear_passes_the_gradient_to_activations(format_name):
    values = RNG.normal(size=(8, 32)).astype(np.float32)
    weight = QTensor.quantize(values, format_by_name(format_name))
    layer = layers.Linear(weight)
    cotangent = RNG.normal(size=(5, 8)).astype(np.float32)
    for run in (layer.forward, layer.forward_diff):
        x = tracked(RNG.normal(size=(5, 32)).astype(np.float32))
        (g,) = grad(run(x), [x], cotangent)
        np.testing.assert_allclose(g.numpy(), cotangent @ weight.dequantize(), rtol=1e-5, atol=1e-5)


def test_quantised_embedding_decodes_rows():
    weight = QTensor.quantize(RNG.normal(size=(4, 32)).astype(np.float32), format_by_name("Q8_0"))
    np.testing.assert_array_equal(layers.Embedding(weight).forward(IDS), weight.dequantize()[IDS])


def test_the_cache_refuses_tracked_values():
    cache = KVCache(1, 1, 4, 8)
    k = tracked(np.zeros((1, 1, 2, 4), np.float32))
    with pytest.raises(InvalidArgument, match="tracked"):
        cache.append(0, k, k)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["Linear", "RmsNorm", "LayerNorm", "GatedMlp", "Rotary", "Rotary interleaved", "Attention", "Embedding"])
def test_half_types_keep_their_type_and_their_gradient(name, half):
    def cast(a):
        return ops.cast(a, half)

    def linear(*shape):
        return layers.Linear(cast(RNG.normal(size=shape)))

    inner, x = {
        "Linear": lambda: (linear(3, 4), X),
        "RmsNorm": lambda: (layers.RmsNorm(cast(W4)), X),
        "LayerNorm": lambda: (layers.LayerNorm(cast(W4), cast(B4)), X),
        "GatedMlp": lambda: (layers.GatedMlp(linear(5, 4), linear(5, 4), linear(4, 5)), X),
        "Rotary": lambda: (WithPast(layers.Rotary(4, 8)), X[:, None]),
        "Rotary interleaved": lambda: (WithPast(layers.Rotary(4, 8, interleaved=True)), X[:, None]),
        "Attention": lambda: (
            WithPast(layers.Attention(linear(8, 4), linear(4, 4), linear(4, 4), linear(4, 8), layers.Rotary(4, 8), 2, 1), 0),
            X,
        ),
        "Embedding": lambda: (layers.Embedding(IDS), MATRIX),
    }[name]()
    if name == "Embedding":
        table = tracked(cast(MATRIX))
        y = layers.Embedding(table).forward(IDS)
        assert y.dtype == table.dtype and grad(y, [table], cast(np.ones(y.shape)))[0].dtype == table.dtype
        return
    plain = inner.forward(cast(x))
    leaf = tracked(cast(x))
    y = inner.forward(leaf)
    (g,) = grad(y, [leaf], cast(np.ones(y.shape)))
    assert plain.dtype == y.dtype == g.dtype == leaf.dtype
    np.testing.assert_allclose(ops.cast(plain, "f32"), ops.cast(y.numpy(), "f32"), rtol=2e-2, atol=2e-2)


def test_rotary_of_half_types_rounds_once():
    x = ops.cast(RNG.normal(size=(1, 2, 3, 4)), "bf16")
    layer = layers.Rotary(4, 8)
    wide = layer.forward(ops.cast(x, "f32"), NoPast())
    np.testing.assert_array_equal(ops.cast(layer.forward(x, NoPast()), "f32"), ops.cast(ops.cast(wide, "bf16"), "f32"))


def test_rms_norm_with_a_quantised_weight_takes_any_layout():
    weight = ops.Int8Tensor.quantize(np.abs(W4) + 0.5)
    x = RNG.normal(size=(4, 6)).astype(np.float32).T
    layer = layers.RmsNorm(weight)
    expected = layers.RmsNorm(weight.dequantize()).forward(x.copy())
    np.testing.assert_allclose(layer.forward(x), expected, rtol=1e-6)
    leaf = tracked(x)
    (g,) = grad(layer.forward(leaf), [leaf], np.ones(x.shape, np.float32))
    assert g.numpy().any()


class Marker(Engine):
    """Answers with something recognisable when it is asked."""

    def fused_rms_norm(self, x, axis, weight, bias, eps):
        return np.full(x.shape, 42.0)


def test_forward_diff_never_asks_for_a_kernel():
    layer = layers.RmsNorm(W4)
    with Marker(n_threads=1):
        assert (layer.forward(X) == 42).all()
        assert not (layer.forward_diff(X) == 42).any()


def test_t04_the_docstring_says_what_forward_diff_is():
    text = inspect.getdoc(layers.Layer.forward_diff)
    assert text and "differentiable" in text and "slower" in text
    for kind in vars(layers).values():
        if inspect.isclass(kind) and issubclass(kind, layers.Layer):
            assert callable(kind.forward_diff)
