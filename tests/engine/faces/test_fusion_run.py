"""Fused regions on compiled kernels: the bits of the unfused program, for every step, dtype, stride pattern and tail."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from region_interpreter import interpret

from llamita.engine import ops
from llamita.engine.faces.fusion import FUSABLE, MIN_ELEMENTS
from llamita.engine.faces.primitives import PRIMITIVES
from llamita.engine.faces.traced import spec, trace
from llamita.engine.runtime import fusion_kernel, store
from llamita.engine.runtime.engine import Engine
from llamita.engine.runtime.pool import BufferPool
from llamita.engine.runtime.ufuncs import inner_loop

DTYPES = (np.float32, np.float64)
NAN, INF = float("nan"), float("inf")
NAMES = {"pow": "powf"}  # where an op is called otherwise than its primitive
UNARY = ("neg", "abs", "conj", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sqrt", "rsqrt")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit; of a NaN only that it is one."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype) and got.flags.c_contiguous
    got, expected = got.reshape(-1), expected.reshape(-1)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    unsigned = f"u{got.itemsize}"
    np.testing.assert_array_equal(got[~nan].view(unsigned), expected[~nan].view(unsigned))


def fused_equals_unfused(fn, *arrays, path: str | None = None) -> None:
    program = trace(fn, *arrays)
    unfused = program.run(*arrays)
    fused = trace(fn, *arrays).prepare()
    results = fused.run(*arrays)
    count = len(fused.fusion_plan)
    assert count and program.fused_fallback == (0, count) and fused.fused_fallback == (count, 0)
    if path is not None:
        assert fused.fusion_paths == [path]
    for got, expected in zip(*((r,) if isinstance(r, np.ndarray) else r for r in (results, unfused)), strict=True):
        same_bits(got, expected)


def numbers(n: int, dtype, seed: int = 0) -> np.ndarray:
    """Numbers of many sizes with what is special among them, also first, in the middle and last."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7, n)
    special = [NAN, INF, -INF, 0.0, -0.0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, -1.0, 710.0, -1e-9]
    for start in (0, n // 2, n - len(special)):
        x[start : start + len(special)] = rng.permutation(special)
    return x.astype(dtype)


def test_every_fusable_step_is_tested():
    assert set(UNARY) | set(BINARY) | {"clamp"} == FUSABLE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary_steps(name, dtype):
    op = PRIMITIVES[name]
    assert op.memory_bound
    fused_equals_unfused(lambda x: ops.tanh(getattr(ops, name)(x)), numbers(MIN_ELEMENTS + 37, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary_steps(name, dtype):
    x, y = numbers(MIN_ELEMENTS + 5, dtype), numbers(MIN_ELEMENTS + 5, dtype, 1)
    op = getattr(ops, NAMES.get(name, name))
    fused_equals_unfused(lambda x, y: ops.tanh(op(x, y)), x, y)
    fused_equals_unfused(lambda x, y: op(x, ops.exp(y)), x, y)
    for c in (2.0, -1.0, 0.5):  # NumPy's loops know numbers that stay the same
        fused_equals_unfused(lambda x, c=c: op(ops.exp(x), dtype(c)), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_steps_compiled_together(dtype):
    x, y = numbers(MIN_ELEMENTS + 63, dtype), numbers(MIN_ELEMENTS + 63, dtype, 1)

    def fn(x, y):
        a = ops.div(ops.neg(x), ops.sqrt(ops.abs(y)))
        return ops.sub(ops.mul(a, ops.rsqrt(ops.add(x, dtype(0.25)))), y)

    fused_equals_unfused(fn, x, y, path="compiled")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [NAN, INF, -INF, -0.0])
def test_t14_maximum_minimum_and_clamp_propagate_nan(dtype, value):
    n = MIN_ELEMENTS
    for at in (0, n // 2, n - 1):
        a, b, c = np.zeros(n, dtype), np.zeros(n, dtype), np.ones(n, dtype)
        a[at] = value
        for name in ("maximum", "minimum"):
            op = getattr(ops, name)
            fused_equals_unfused(lambda a, b, c, op=op: op(a, b) + c, a, b, c, path="chunk")
            fused_equals_unfused(lambda a, b, c, op=op: op(b, a) + c, a, b, c, path="chunk")
            program = trace(lambda a, b, c, op=op: op(b, a) + c, a, b, c).prepare()
            assert np.isnan(program.run(a, b, c)[at]) == np.isnan(value)
        fused_equals_unfused(lambda a: -ops.clamp(a, -0.5, 0.5), a, path="chunk")


@pytest.mark.parametrize("n", [MIN_ELEMENTS, MIN_ELEMENTS + 1, 2 * MIN_ELEMENTS + 1023])
@pytest.mark.parametrize(
    ("fn", "operands", "path"),
    [
        (lambda x, y: (x + y) * x, 2, "compiled"),
        (lambda x, y: x * (x + y), 2, "compiled"),
        (lambda x, y, z: ops.exp(x * y + z), 3, "chunk"),
        (lambda x, y: ops.tanh(ops.sin(x * x + x) * y + y), 2, "chunk"),
        (lambda x, y: ops.rsqrt(ops.sqrt(ops.clamp(x / y, 0.1, 4.0))), 2, "chunk"),
    ],
)
def test_t16_benchmark_expressions(fn, operands, path, n):
    for dtype in DTYPES:
        arrays = [np.random.default_rng(i).standard_normal(n).astype(dtype) for i in range(operands)]
        fused_equals_unfused(fn, *arrays, path=path)
        direct = fn(*arrays)
        np.testing.assert_array_equal(trace(fn, *arrays).prepare().run(*arrays), direct)


def test_t17_reference_interpreter():
    n = MIN_ELEMENTS
    x, y = (np.random.default_rng(i).uniform(0.1, 2.0, n) for i in range(2))

    def fn(x, y):
        a = ops.maximum(ops.log(x), ops.minimum(ops.sub(x, y), np.float64(0.3)))
        return ops.powf(ops.clamp(ops.exp(ops.neg(ops.abs(a))) * y, 0.2, 1.5), x)

    program = trace(fn, x, y).prepare()
    np.testing.assert_allclose(program.run(x, y), interpret(program, x, y), rtol=1e-14)
    assert program.fusion_paths == ["chunk"]


def layouts(dtype):
    base = np.random.default_rng(0).standard_normal((260, 130)).astype(dtype)
    raw = np.zeros(base.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(dtype).reshape(base.shape)
    unaligned[...] = base
    return {
        "transposed": base.T.copy().T,
        "reversed": base[::-1, ::-1],
        "strided": np.repeat(base, 2, axis=1)[:, ::2],
        "constant": np.broadcast_to(base[:1, :1], base.shape),
        "unaligned": unaligned,
        "offset": np.concatenate([base.reshape(-1)[:1], base.reshape(-1)])[1:].reshape(base.shape),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["transposed", "reversed", "strided", "constant", "unaligned", "offset"])
def test_inputs_of_any_layout(layout, dtype):
    x = layouts(dtype)[layout]
    y = np.random.default_rng(1).standard_normal(x.shape).astype(dtype)
    fused_equals_unfused(lambda x, y: ops.exp(x) * y + ops.sin(ops.powf(y, x)), x, y)
    fused_equals_unfused(lambda x, y: (x + y) * x, x, y, path="compiled")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [
        [(), (33, 17, 41)],
        [(41,), (33, 17, 41)],
        [(17, 1), (33, 17, 41)],
        [(33, 1, 1), (33, 17, 41)],
        [(33, 1, 41), (33, 17, 41)],
        [(1, 17, 1), (33, 1, 41)],
        [(1, 1, 1), (33, 17, 41)],
        [(20000,), (3, 20000)],
        [(20000, 1), (20000, 3)],
    ],
)
def test_broadcast_inputs(shapes, dtype):
    x, y = (np.random.default_rng(i).standard_normal(shape).astype(dtype) for i, shape in enumerate(shapes))
    fused_equals_unfused(lambda x, y: ops.tanh(ops.add(x, y)) * ops.exp(x) + ops.powf(y, x), x, y)
    fused_equals_unfused(lambda x, y: ops.mul(ops.sub(y, x), y), x, y)


def test_a_broadcast_may_permute_axes():
    from llamita.engine.faces.graph import Graph
    from llamita.engine.faces.program import Program

    graph = Graph("core")
    x, y = graph.input(spec((130, 140), "f64")), graph.input(spec((140, 130), "f64"))
    z = graph.exp(graph.add(graph.broadcast_in_dim(x, (140, 130), (1, 0)), y))
    arrays = [np.random.default_rng(i).standard_normal(s.shape) for i, s in enumerate((x, y))]
    program = Program(graph, [x.node, y.node], [z.node], single=True).prepare()
    same_bits(program.run(*arrays), np.exp(arrays[0].T + arrays[1]))
    assert program.fusion_paths == ["chunk"]


def test_outputs_inside_a_region():
    def fn(x, y):
        a = x + y
        b = ops.exp(a)
        c = b * a
        return c, ops.tanh(c - x), a, ops.reduce_sum(b, (0,))

    x, y = (np.random.default_rng(i).standard_normal(MIN_ELEMENTS + 9) for i in range(2))
    fused_equals_unfused(fn, x, y, path="chunk")
    fused_equals_unfused(lambda x, y: (x + y, (x + y) * x), x, y, path="compiled")


def test_long_chains_reuse_their_scratch_blocks():
    def fn(x):
        values = [x]
        for i in range(12):
            values.append(ops.tanh(values[-1] + values[i // 2]))
        return values[-1]

    fused_equals_unfused(fn, np.random.default_rng(0).standard_normal(MIN_ELEMENTS), path="chunk")


def test_captured_arrays_and_computed_numbers_are_inputs():
    table = np.random.default_rng(2).standard_normal(MIN_ELEMENTS)
    fused_equals_unfused(lambda x: ops.exp(x * ops.reduce_max(x, (0,)) - table), table * 0.1, path="chunk")


def test_gradient_programs():
    from llamita.engine.faces.gradient import vjp

    x, y = (np.random.default_rng(i).standard_normal(MIN_ELEMENTS) for i in range(2))
    program = trace(lambda x, y: ops.tanh(x * y + x), x, y)
    plain, ready = vjp(program), vjp(program).prepare()
    for got, expected in zip(ready.run(x, y, y), plain.run(x, y, y), strict=True):
        same_bits(got, expected)
    assert ready.fused_fallback[0] >= 1


def test_symbolic_extents():
    program = trace(lambda x, y: ops.exp(x) * y, spec((None,), "f64"), spec((None,), "f64")).prepare()
    x = np.linspace(-1, 1, MIN_ELEMENTS)
    same_bits(program.run(x, x), np.exp(x) * x)
    np.testing.assert_array_equal(program.run(x[:5], x[:5]), np.exp(x[:5]) * x[:5])
    np.testing.assert_array_equal(program.run(x, x[:1]), np.exp(x) * x[:1])
    assert program.fused_fallback == (1, 2) and program.fusion_paths == ["one by one: the shapes of its inputs differ"]


def test_small_arrays_fall_back():
    x = np.zeros(MIN_ELEMENTS - 1)
    program = trace(lambda x: ops.exp(x) + x, x).prepare()
    program.run(x)
    assert program.fused_fallback == (0, 1) and program.fusion_paths == ["one by one: fewer than 16384 elements"]
    empty = trace(lambda x: ops.exp(x) + x, np.zeros((0, 4))).prepare()
    assert empty.run(np.zeros((0, 4))).shape == (0, 4)


def test_run_never_compiles(monkeypatch):
    x = np.zeros(MIN_ELEMENTS)
    program = trace(lambda x: ops.exp(x) + x, x)
    ready = trace(lambda x: ops.exp(x) + x, x).prepare()
    assert ready.prepare_seconds > 0 and ready.prepare() is ready

    def refuse(*args, **kwargs):
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(store.KernelStore, "load", refuse)
    with Engine(n_threads=1):
        program.run(x)
        ready.run(x)
    assert program.fusion_paths == ["one by one: not prepared"] and ready.fusion_paths == ["chunk"]


def test_without_numpys_loops_regions_run_one_by_one(monkeypatch):
    monkeypatch.setattr(fusion_kernel, "inner_loop", lambda ufunc, dtype: None)
    x = np.zeros(MIN_ELEMENTS)
    program = trace(lambda x: ops.exp(x) + x, x).prepare()
    np.testing.assert_array_equal(program.run(x), np.ones(MIN_ELEMENTS))
    assert program.fused_fallback == (0, 1) and "inner loop" in program.fusion_paths[0]


def test_inner_loops():
    assert inner_loop(np.exp, np.dtype(np.float64)) != inner_loop(np.exp, np.dtype(np.float32))
    assert inner_loop(np.exp, np.dtype(np.int64)) is None
    own = np.frompyfunc(lambda x: x, 1, 1)
    assert inner_loop(own, np.dtype(np.float64)) is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit_and_every_element_is_written(monkeypatch, threads):
    monkeypatch.setenv("LLAMITA_COST", "dispatch=0")
    x, y = (np.random.default_rng(i).standard_normal(fusion_kernel.POOLED // 8 + 77) for i in range(2))
    with Engine(n_threads=threads) as engine:
        engine.__dict__["pool"] = BufferPool(poison=True)
        for fn in (lambda x, y: (x + y) * x, lambda x, y: ops.tanh(ops.sin(x * x + x) * y + y)):
            fused_equals_unfused(fn, x, y)
        engine.team.close()


def test_programs_may_run_in_several_threads_at_once():
    program = trace(lambda x, y: ops.exp(x * y) + x, spec((MIN_ELEMENTS,), "f64"), spec((MIN_ELEMENTS,), "f64")).prepare()
    rng = np.random.default_rng(0)
    failures = []

    def work(seed: int) -> None:
        x, y = np.random.default_rng(seed).standard_normal((2, MIN_ELEMENTS))
        for _ in range(20):
            if not np.array_equal(program.run(x, y), np.exp(x * y) + x):
                failures.append(seed)

    workers = [threading.Thread(target=work, args=(int(rng.integers(1000)),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
