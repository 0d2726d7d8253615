"""Which steps become regions: counts, cuts, absorbed broadcasts, last uses, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamita.engine import ops
from llamita.engine.faces.fusion import FUSABLE, MAX_INPUTS
from llamita.engine.faces.gradient import vjp
from llamita.engine.faces.primitives import PRIMITIVES
from llamita.engine.faces.traced import Program, spec, trace

N = spec((20001,), "f64")


def planned(fn, *specs) -> list[list[str]]:
    return [[node.name for node in region.nodes] for region in trace(fn, *specs).fusion_plan]


@pytest.mark.parametrize(
    ("fn", "operands", "regions"),
    [
        (lambda x, y: (x + y) * x, 2, (1, 2)),
        (lambda x, y, z: ops.exp(x * y + z), 3, (1, 3)),
        (lambda x, y: ops.tanh(ops.sin(x * x + x) * y + y), 2, (1, 6)),
        (lambda a, b, c, d, e: a + b + c + d + e, 5, (0, 0)),
        (ops.gelu, 1, (1, 5)),  # refused when it runs: it contains erf
        (ops.gelu_tanh, 1, (1, 9)),
    ],
)
def test_region_counts(fn, operands, regions):
    assert trace(fn, *[N] * operands).regions == regions


def test_single_steps_are_no_region():
    assert planned(lambda x, w: x * w, spec((4, 8)), spec((8,))) == []
    assert planned(ops.exp, N) == []


def test_steps_of_another_kind_end_a_run():
    assert planned(lambda x: ops.exp(ops.select(ops.compare(x, x, "gt"), -x, x)) + x, N) == [["exp", "add"]]
    assert planned(lambda x: ops.tanh(-ops.reshape(ops.exp(-x), (4, 2))), spec((2, 4))) == [["neg", "exp"], ["neg", "tanh"]]


def test_another_dtype_or_shape_ends_a_run():
    single = spec((20001,), "f32")
    assert planned(lambda x, y: (ops.exp(-x), ops.tanh(-y)), N, single) == [["neg", "exp"], ["neg", "tanh"]]
    # The sum is broadcast after it was computed, so a reader cannot look through to it.
    assert planned(lambda x, w: x * (w + w) * x, spec((4, 8)), spec((8,))) == [["mul", "mul"]]


def test_t15_five_inputs_are_not_planned_and_do_not_raise():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(20001) for _ in range(5)]
    program = trace(lambda a, b, c, d, e: a + b + c + d + e, *arrays).prepare()
    a, b, c, d, e = arrays
    np.testing.assert_array_equal(program.run(*arrays), a + b + c + d + e)
    assert program.fused_fallback == (0, 0)


def test_a_run_is_cut_only_between_values_that_are_wanted():
    def two_sums(a, b, c, d, e):
        first = ops.exp(a + b + c)
        return first, ops.tanh(d * e * first)

    assert planned(two_sums, *[N] * 5) == [["add", "add", "exp"], ["mul", "mul", "tanh"]]
    assert planned(lambda *xs: ops.tanh(two_sums(*xs)[1]), *[N] * 5) == []


def test_constants_are_no_inputs():
    def scaled(x):
        for factor in (0.1, 0.2, 0.3, 0.4, 0.5):
            x = ops.add(ops.mul(x, np.float64(factor)), np.float64(1.0))
        return x

    (region,) = trace(scaled, N).fusion_plan
    assert (len(region.nodes), len(region.inputs), len(region.constants)) == (10, 1, 6)


def test_broadcasts_become_strided_inputs():
    program = trace(lambda x, row, column, one: ops.exp(x * row + column) - one, spec((4, 8)), spec((8,)), spec((4, 1)), spec((1,)))
    (region,) = program.fusion_plan
    assert [(source.kind, source.dims) for source in region.inputs] == [("array", ()), ("view", (1,)), ("view", (0,)), ("number", ())]
    assert all(node.name == "broadcast_in_dim" for node in region.broadcasts) and region.absorbed == region.broadcasts


def test_a_broadcast_that_others_read_is_not_absorbed():
    (region,) = trace(ops.sigmoid, N).fusion_plan
    assert len(region.broadcasts) == 1 and region.absorbed == ()


def test_outputs_and_last_uses():
    def fn(x, y):
        a = x + y
        b = ops.exp(a)
        return b, ops.tanh(b * a)

    (region,) = trace(fn, N, N).fusion_plan
    assert region.outputs == (1, 3)
    assert region.last_uses == ((), (), (0, 1), (2,))


@pytest.mark.parametrize(
    ("fn", "dtype", "reason"),
    [
        (lambda x: ops.erf(-x), "f64", "it contains erf"),
        (lambda x: ops.remainder(-x, x), "f64", "it contains remainder"),
        (lambda x: -x + x, "i64", "its dtype is I64"),
        (lambda x: -x + x, "c128", "its dtype is C128"),
    ],
)
def test_refused_regions_run_one_by_one(fn, dtype, reason):
    x = (np.arange(20001) - 7).astype({"f64": float, "i64": np.int64, "c128": complex}[dtype])
    program = trace(fn, x).prepare()
    (region,) = program.fusion_plan
    assert region.refusal == reason
    np.testing.assert_array_equal(program.run(x), fn(x))
    program.run(x)
    assert program.fused_fallback == (0, 2) and program.fusion_paths == [f"one by one: {reason}"]


def test_gradient_programs_are_planned_too():
    gradient = vjp(trace(lambda x, y: ops.tanh(x * y + x), N, N))
    count, covered = gradient.regions
    assert count >= 1 and covered >= 2


def by_hand(program: Program, arrays) -> list[np.ndarray]:
    """Node by node, without any schedule."""
    values = dict(zip(program.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        for node in program.nodes:
            operands = (values[i] for i in node.inputs)
            values[node] = node.value if node.name == "constant" else PRIMITIVES[node.name].evaluate(*operands, **node.attrs)
    return [values[node] for node in program.outputs]


STEPS = st.lists(
    st.tuples(st.sampled_from("add mul maximum neg tanh exp row column sum scale gt".split()), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=16,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_any_program_is_planned_rightly(steps, n_outputs):
    """Regions are runs with at most four inputs whose operands exist in time; refused ones give the same numbers."""

    def fn(x, y, row):
        values = [x, y, row]
        for name, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            match name:
                case "row":
                    values.append(ops.reduce_sum(a, (0,)) if a.ndim == 2 else a)
                case "column":
                    values.append(ops.reshape(ops.reduce_max(a, (1,)), (3, 1)) if a.shape == (3, 4) else a)
                case "sum":
                    values.append(ops.add(ops.reduce_max(a, tuple(range(a.ndim))), a))
                case "scale":
                    values.append(ops.mul(a, np.float64(0.5)))
                case "gt":
                    values.append(ops.select(ops.compare(a, b, "gt"), a, b))
                case "neg" | "tanh" | "exp":
                    values.append(getattr(ops, name)(a))
                case _:
                    values.append(getattr(ops, name)(a, b))
        return tuple(values[-n_outputs:])

    program = trace(fn, spec((3, 4), "f64"), spec((3, 4), "f64"), spec((4,), "f64"))
    order = {node: i for i, node in enumerate(program.nodes)}
    seen = set()
    for region in program.fusion_plan:
        assert len(region.nodes) >= 2 and len(region.inputs) <= MAX_INPUTS and not seen & set(region.nodes)
        seen |= set(region.nodes)
        assert {node.name for node in region.nodes} <= FUSABLE
        assert len({(node.shape, node.dtype) for node in region.nodes}) == 1
        first, last = (order[region.nodes[i]] for i in (0, -1))
        between = {node.name for node in program.nodes[first:last] if node not in region.nodes}
        assert between <= {"constant", "broadcast_in_dim", "reshape"}
        assert not {source.node for source in region.inputs} & set(region.nodes)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((3, 4), (3, 4), (4,))]
    for got, expected in zip(program.run(*arrays), by_hand(program, arrays), strict=True):
        np.testing.assert_array_equal(got, expected)
