"""Kernels of the direct face, compiled in one batch, here for the generic target: ops then compile nothing more."""

from __future__ import annotations

import numpy as np
import pytest
from op_faces import ulps

from llamita.engine import ops
from llamita.engine.errors import InvalidArgument
from llamita.engine.runtime import store, warmup
from llamita.engine.runtime.engine import Engine


@pytest.fixture
def generic(monkeypatch):
    """The target that runs anywhere, its common float32 kernels ready, and no way to compile another."""
    monkeypatch.setenv("LLAMITA_TARGET", "generic")
    seen = []
    n = warmup.warm_up(on_progress=lambda *step: seen.append(step))
    assert n == 2 + len(warmup.common_kernels("f32"))
    assert not seen or seen[-1] == ("compile", seen[-1][2], seen[-1][2])

    def refuse(*_):
        raise AssertionError("a kernel was compiled after the warm-up")

    monkeypatch.setattr(store.KernelStore, "_compile", refuse)
    with Engine(n_threads=1) as engine:
        yield engine


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_ops_find_their_kernels_and_agree_on_the_generic_target(generic):
    x, weight, table = normal(2, 3, 5, 22), normal(22), normal(5, 11)
    mask = normal(5, 22) > 0
    cases = [
        *((name, (x,)) for name in ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh", "swiglu")),
        ("gated_silu", (x, x[::-1])),
        *((name, (x, axis)) for name in ("softmax", "log_softmax") for axis in (-1, 1)),
        *((name, (x, mask, axis)) for name in ("masked_softmax", "masked_log_softmax") for axis in (3, 2)),
        ("rms_norm", (x, -1, weight, None, 1e-5)),
        ("rms_norm", (x, -1, None, None, 1e-5)),
        ("layer_norm", (x, -1, weight, weight, 1e-5)),
        ("layer_norm", (x, -1, None, None, 1e-5)),
        *((name, (x[:, :, :5], table, table)) for name in ("rope", "rope_i")),
        ("rope_thd", (x.transpose(0, 2, 1, 3), table, table)),
        ("sdpa", (x[:, :2], x[:, :1], x[:, :1, :, :7], None, True, None, 1.0)),
        ("sdpa", (x[:, :2], x[:, :1], x[:, :1], np.tri(5, dtype=bool), False, 0.3, 1.0)),
    ]
    for name, bound in cases:
        prepared = generic.fused.prepare(name, *bound)
        assert prepared is not None, name
        y = ops.OPS[name](*bound)
        with ops.composites_only():
            expected = ops.OPS[name](*bound)
        np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6, err_msg=name)
    poisoned = x.copy()
    poisoned[0, 0, 0, [0, 11, 21]] = np.nan
    assert np.isnan(ops.softmax(poisoned)[0, 0, 0]).all() and np.isnan(ops.softmax(poisoned)).sum() == 22
    assert ulps(ops.softmax(np.full((2, 17), -np.inf, np.float32)), np.zeros((2, 17))) == 0


def test_an_unknown_element_type_is_named():
    with pytest.raises(InvalidArgument, match=r"warm_up: elems: .*'f16'"):
        warmup.warm_up(("f16",))
