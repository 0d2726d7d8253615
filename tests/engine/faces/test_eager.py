"""The eager face: what is recorded, what is refused, and what checkpointing keeps."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import ContextMismatch, DTypeMismatch, InvalidArgument, MissingGradient, ShapeMismatch
from llamita.engine.faces import eager
from llamita.engine.faces import vjp as rules
from llamita.engine.faces.backward import Walk
from llamita.engine.faces.checkpoint import Checkpoints, checkpointing
from llamita.engine.faces.eager import Tracked, capture_primitives, grad, tracked
from llamita.engine.faces.modes import no_grad
from llamita.engine.faces.tape import stored_bytes
from llamita.engine.faces.traced import trace
from llamita.engine.runtime.engine import Engine

X = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, -3.0]])


class Marker(Engine):
    """Claims to have every fused kernel; its answers are recognisable."""

    def __init__(self):
        super().__init__(n_threads=1)
        self.asked = []

    def fused_activation(self, op, x):
        self.asked.append(op)
        return np.full(x.shape, 42.0)

    def fused_softmax(self, x, axis):
        self.asked.append("softmax")
        return np.full(x.shape, 42.0)

    def fused_rms_norm(self, x, axis, weight, bias, eps):
        self.asked.append("rms_norm")
        return np.full(x.shape, 42.0)


def test_hooks_are_asked_first_on_the_direct_face():
    with Marker() as engine:
        assert (ops.sigmoid(X) == 42).all() and (ops.softmax(X) == 42).all()
        with ops.composites_only():
            assert not (ops.sigmoid(X) == 42).any()
    assert engine.asked == ["sigmoid", "softmax"]


def test_untracked_rule_of_the_eager_face():
    weight = tracked(np.ones(3))
    with Marker() as engine:
        assert (ops.softmax(Tracked(X)).numpy() == 42).all()
        assert not ops.softmax(Tracked(X)).requires_grad
        assert not (ops.softmax(tracked(X)).numpy() == 42).any()
        # Every operand counts, not the first alone.
        assert ops.rms_norm(X, -1, weight).requires_grad
        assert engine.asked == ["softmax", "softmax"]
        with no_grad():
            y = ops.softmax(tracked(X))
            assert (y.numpy() == 42).all() and not y.requires_grad
        with capture_primitives() as names:
            assert not (ops.softmax(Tracked(X)).numpy() == 42).any()
        assert names.count("exp") == 1
        with ops.composites_only():
            assert not (ops.softmax(Tracked(X)).numpy() == 42).any()


def test_a_hook_that_declines_leaves_the_composite():
    np.testing.assert_array_equal(Engine(n_threads=1).fused_softmax(X.astype(int), -1) is None, True)


def test_numpy_cannot_take_a_tracked_value():
    x = tracked(X)
    with pytest.raises(ContextMismatch, match="numpy"):
        np.asarray(x)
    with pytest.raises((TypeError, ContextMismatch)):
        np.exp(x)
    y = np.ones((2, 3)) * x
    assert isinstance(y, Tracked) and y.requires_grad


def test_operators():
    x = tracked(np.array([[1.0, 2.0], [3.0, 4.0]]))
    y = (2.0 - x) * x / (x + 1.0) - (-x) @ x + 1.0 / x + np.ones((2, 2)) @ x
    v = x.numpy()
    np.testing.assert_allclose(y.numpy(), (2 - v) * v / (v + 1) + v @ v + 1 / v + np.ones((2, 2)) @ v)
    assert grad(y, [x], np.ones((2, 2)))[0].shape == (2, 2)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_operators_on_half_types_are_the_ops(half):
    a, b = (ops.cast(np.random.default_rng(i).normal(size=(3, 3)), half) for i in range(2))

    def by_operators(x, y):
        return (2.0 - x) * y / (x + y) - (-x) @ y

    def by_ops(x, y):
        quotient = ops.div(ops.mul(ops.sub(2.0, x), y), ops.add(x, y))
        return ops.sub(quotient, ops.matmul(ops.neg(x), y))

    expected = ops.cast(by_ops(a, b), "f32")
    leaves = [tracked(a), tracked(b)]
    y = by_operators(*leaves)
    seed = ops.cast(np.ones((3, 3)), half)
    others = grad(by_ops(*leaves), leaves, seed)
    for g, other in zip(grad(y, leaves, seed), others, strict=True):
        np.testing.assert_array_equal(ops.cast(g.numpy(), "f32"), ops.cast(other.numpy(), "f32"))
    for got in (y.numpy(), trace(by_operators, a, b).run(a, b)):
        assert got.dtype == a.dtype
        np.testing.assert_array_equal(ops.cast(got, "f32"), expected)
    plan = trace(by_operators, a, b, lowering="plan")
    assert {node.dtype for node in plan.nodes} == {a.dtype}
    with pytest.raises(DTypeMismatch, match="add"):
        leaves[0] + np.ones((3, 3), np.float32)


def test_operators_leave_other_types_to_python():
    for other in ("one", None, [1.0]):
        with pytest.raises(TypeError, match="unsupported operand"):
            tracked(X) + other
        with pytest.raises(TypeError, match="unsupported operand"):
            trace(lambda x, other=other: other - x, X)
    assert trace(lambda x: X @ x, X.T.copy()).run(X.T.copy()).shape == (2, 2)


def test_a_fused_kernel_refuses_a_tracked_value():
    engine = Engine(n_threads=1)
    for call in (
        lambda x: engine.fused_activation("sigmoid", x),
        lambda x: engine.fused_softmax(x, -1),
        lambda x: engine.fused_rms_norm(X, -1, x, None, 1e-5),
    ):
        with pytest.raises(ContextMismatch, match="gradient"):
            call(tracked(X))


def test_what_has_no_gradient_says_so():
    x = tracked(X)
    with pytest.raises(MissingGradient, match=r"input 0.*does not depend"):
        grad(ops.reduce_sum(x), [tracked(X)])
    (g,) = grad(ops.reduce_sum(x), [tracked(X)], allow_unused=True)
    assert not g.numpy().any()
    with pytest.raises(MissingGradient, match="output 0"):
        grad(Tracked(X), [x])
    with pytest.raises(MissingGradient, match="input 0"):
        grad(ops.reduce_sum(x), [X])
    with pytest.raises(MissingGradient, match="output 0"):
        grad(ops.argmax(x, -1), [x])
    with pytest.raises(MissingGradient, match="real floats"):
        tracked(np.arange(3))
    with pytest.raises(InvalidArgument, match="cotangent"):
        grad(ops.exp(x), [x])
    with pytest.raises(InvalidArgument, match="2 outputs, got 1"):
        grad([ops.exp(x), x], [x], [np.ones((2, 3))])
    with pytest.raises(InvalidArgument, match="sequence"):
        grad(ops.reduce_sum(x), x)
    with pytest.raises(ShapeMismatch, match="cotangent"):
        grad(ops.exp(x), [x], np.ones(3))
    with pytest.raises(DTypeMismatch, match="cotangent"):
        grad(ops.exp(x), [x], np.ones((2, 3), np.float32))


def test_a_missing_rule_names_the_primitive_and_the_operand(monkeypatch):
    monkeypatch.delitem(rules.RULES, "tanh")
    x = tracked(X)
    with pytest.raises(MissingGradient, match="tanh: operand 0"):
        grad(ops.reduce_sum(ops.tanh(x)), [x])


def test_mean_of_nothing_is_still_tracked():
    x = tracked(np.zeros((3, 0)))
    y = ops.reduce_mean(x, 1)
    assert y.requires_grad
    assert grad(y, [x], np.ones(3))[0].shape == (3, 0)


def test_several_outputs():
    x = tracked(np.array([1.0, 2.0]))
    a, b = ops.exp(x), x * x
    (g,) = grad([a, b], [x], [np.ones(2), np.ones(2)])
    np.testing.assert_allclose(g.numpy(), np.exp([1, 2]) + np.array([2, 4]))


# ----- checkpointing -----


def chain(x, steps=10):
    for _ in range(steps):
        x = ops.tanh(x)
    return x


def mixed(x):
    y = ops.exp(ops.mul(x, x))
    z = ops.matmul(y, ops.transpose(ops.sin(y)))
    return ops.add(ops.softmax(z), ops.mul(z, ops.tanh(z)))


def duplicated(x):
    y = ops.exp(x)
    for _ in range(6):
        y = ops.add(ops.mul(y, x), y)
    return y


def half_untracked(x):
    constant = ops.exp(Tracked(X * 0.5))
    return ops.mul(ops.sin(ops.mul(x, constant)), ops.add(x, X))


@pytest.mark.parametrize("fn", [chain, mixed, duplicated, half_untracked])
def test_strategies_agree_bitwise_and_balanced_keeps_less(fn):
    results = {}
    for strategy in ("none", "balanced"):
        with checkpointing(strategy):
            x = tracked(X)
            y = fn(x)
            kept = stored_bytes(y.node)
            results[strategy] = (grad(y, [x], np.ones(y.shape))[0].numpy(), kept)
    np.testing.assert_array_equal(results["none"][0], results["balanced"][0])
    assert results["balanced"][1] < results["none"][1]


def test_a_long_chain_needs_no_recursion():
    with checkpointing("balanced"):
        x = tracked(np.full(3, 0.1))
        y = chain(x, 3000)
        assert stored_bytes(y.node) == 0
        assert np.isfinite(grad(y, [x], np.ones(3))[0].numpy()).all()


def test_recomputed_once_and_dropped_after_the_last_user():
    with checkpointing("balanced"):
        x = tracked(X)
        y = duplicated(x)
    store = Checkpoints()
    walk = Walk(ops.exp(Tracked(X)).__face__, lambda n: [p.node for p in n.parents], lambda n: n)
    order = walk.needed([y.node], [x.node])
    store.expect(order)
    for node in order:
        for parent in node.parents:
            if parent.node is not None:
                store.value(parent.node)
        store.value(node)
        store.done(node)
    assert store.recomputed == sum(node.value is None for node in order)
    assert len(store) == 0


def test_nothing_is_left_of_a_backward_pass(monkeypatch):
    stores = []
    monkeypatch.setattr(eager, "Checkpoints", lambda: stores.append(Checkpoints()) or stores[-1])
    with checkpointing("balanced"):
        x = tracked(X)
        y = mixed(x)
        monkeypatch.setattr(Checkpoints, "close", lambda self: None)  # by counting users alone
        grad(y, [x], np.ones(y.shape))
    assert stores[0].recomputed and len(stores[0]) == 0


def test_an_untracked_parent_makes_the_node_stored():
    with checkpointing("balanced"):
        x = tracked(X)
        assert ops.mul(x, X.copy()).node.value is not None
        assert ops.mul(x, 2.0).node.value is None
        assert ops.mul(x, x).node.value is None
        assert ops.matmul(x, ops.transpose(x)).node.value is not None


def test_unknown_strategy():
    with pytest.raises(InvalidArgument, match="none, balanced"), checkpointing("some"):
        pass
