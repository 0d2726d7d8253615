"""Random programs: every face gives the same numbers and the same gradients, bit for bit, and differences agree."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_faces import run_fused

from llamita.engine import ops
from llamita.engine.autodiff import checkpointing, grad, gradcheck, trace, tracked, vjp
from llamita.engine.runtime import fusion_steps

SHAPE = (3, 4)
UNARY = {
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "softplus": ops.softplus,
    "gelu": ops.gelu,
    "sin": ops.sin,
    "neg": ops.neg,
    "softmax": ops.softmax,
    "log_softmax 0": lambda x: ops.log_softmax(x, 0),
    "rms_norm": lambda x: ops.rms_norm(x, -1, eps=0.1),
    "layer_norm 0": lambda x: ops.layer_norm(x, 0, eps=0.1),
    "mean": lambda x: ops.broadcast_to(ops.reshape(ops.reduce_mean(x, 0), (1, 4)), SHAPE),
    "transposed twice": lambda x: ops.transpose(ops.exp(ops.tanh(ops.transpose(x)))),
    "halves swapped": lambda x: ops.concatenate([ops.narrow(x, 1, 2, 2), ops.narrow(x, 1, 0, 2)], 1),
    "gram": lambda x: ops.matmul(ops.matmul(x, ops.transpose(x)), ops.tanh(x)),
}
BINARY = {
    "add": ops.add,
    "sub": ops.sub,
    "mul": ops.mul,
    "gated": ops.gated_silu,
    "row": lambda a, b: ops.mul(a, ops.narrow(b, 0, 0, 1)),
    "column": lambda a, b: ops.add(ops.narrow(a, 1, 1, 1), b),
    "chosen": lambda a, b: ops.select(np.arange(12).reshape(SHAPE) % 2 == 0, a, b),
}
STEP = st.one_of(
    st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 50)),
    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 50), st.integers(0, 50)),
)


def program_of(steps):
    def fn(*inputs):
        values = list(inputs)
        for name, *reads in steps:
            operands = [values[i % len(values)] for i in reads]
            values.append((UNARY.get(name) or BINARY[name])(*operands))
        return ops.add(values[-1], ops.mul(values[0], values[1]))

    return fn


@given(st.lists(STEP, min_size=1, max_size=8), st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_faces_agree_bit_for_bit(steps, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=SHAPE), rng.normal(size=SHAPE)]
    cotangent = rng.normal(size=SHAPE)
    fn = program_of(steps)
    results = []
    for strategy in ("none", "balanced"):
        with checkpointing(strategy):
            leaves = [tracked(a) for a in arrays]
            y = fn(*leaves)
            results.append([y.numpy(), *(g.numpy() for g in grad(y, leaves, cotangent))])
    results.append(vjp(trace(fn, *arrays), with_values=True).run(*arrays, cotangent))
    with ops.composites_only():
        np.testing.assert_array_equal(fn(*arrays), results[0][0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@given(st.lists(STEP, min_size=1, max_size=8), st.integers(0, 10))
@settings(max_examples=40, deadline=None)
def test_fused_programs_and_gradients_keep_every_bit(steps, seed):
    """With NumPy's loops block by block alone, so that no example compiles anything."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=SHAPE), rng.normal(size=SHAPE), rng.normal(size=SHAPE)]
    with patch.dict(fusion_steps.EXACT, clear=True):
        program = vjp(trace(program_of(steps), *arrays[:2]), with_values=True)
        fused = run_fused(vjp(trace(program_of(steps), *arrays[:2]), with_values=True), *arrays)
    for a, b in zip(program.run(*arrays), fused, strict=True):
        np.testing.assert_array_equal(a, b)


@given(st.lists(STEP, min_size=1, max_size=6), st.integers(0, 10))
@settings(max_examples=40, deadline=None)
def test_differences_agree(steps, seed):
    rng = np.random.default_rng(seed)
    gradcheck(program_of(steps), [rng.normal(size=SHAPE) * 0.5, rng.normal(size=SHAPE) * 0.5], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_second_gradients_of_a_deep_composition(seed):
    rng = np.random.default_rng(seed)
    steps = [("rms_norm", 0), ("gated", 2, 1), ("softmax", 3), ("row", 4, 0), ("gelu", 5)]
    gradcheck(program_of(steps), [rng.normal(size=SHAPE), rng.normal(size=SHAPE)], order=2)
