"""Traced programs: emission rules, counts, diagnostics, running."""

from __future__ import annotations

import numpy as np
import pytest

from llamita.engine import ops
from llamita.engine.errors import ContextMismatch, DTypeMismatch, InvalidArgument, RankMismatch, ShapeMismatch
from llamita.engine.faces.eager import tracked
from llamita.engine.faces.gradient import gradient, vjp
from llamita.engine.faces.traced import spec, trace

M = spec((3, 4), "f64")
V = spec((4,), "f64")


@pytest.mark.parametrize(
    ("op", "two_d", "one_d"),
    [
        (ops.sigmoid, 9, 9),
        (ops.silu, 10, 10),
        (ops.softplus, 7, 7),
        (ops.gelu, 11, 11),
        (ops.gelu_tanh, 17, 17),
        (ops.softmax, 13, 11),
        (ops.log_softmax, 14, 12),
        (ops.layer_norm, 14, 12),
        (ops.rms_norm, 10, 8),
        (lambda x: ops.reduce_mean(x, -1), 4, 3),
        (ops.reduce_mean, 3, 3),
    ],
)
def test_t30_op_counts(op, two_d, one_d):
    assert (trace(op, M).op_count, trace(op, V).op_count) == (two_d, one_d)


def test_t30_op_counts_with_more_operands():
    mask, row = spec((3, 4), "bool"), spec((4,), "bool")
    assert trace(ops.masked_softmax, M, mask).op_count == 16
    assert trace(ops.masked_softmax, M, row).op_count == 17
    assert trace(ops.masked_log_softmax, M, mask).op_count == 17
    assert trace(ops.masked_log_softmax, M, row).op_count == 18
    assert trace(lambda x, w, b: ops.layer_norm(x, -1, w, b), M, V, V).op_count == 18
    assert trace(lambda x, w: ops.rms_norm(x, -1, w), M, V).op_count == 12


def test_t30_take_along_axis_counts():
    program = trace(lambda x, i: ops.take_along_axis(x, i, 0), spec((3, 2)), spec((2, 2), "i64"))
    assert (program.op_count, program.op_list[-1]) == (21, "gather")
    program = trace(lambda x, i: ops.take_along_axis(x, i, 0), spec((3, 2)), spec((2, 1), "i64"))
    assert program.op_list == ["reshape", "gather"]


def test_core_programs_hold_primitives_only():
    program = trace(lambda x: ops.softmax(ops.silu(ops.gelu(x))), M)
    assert not {"sigmoid", "silu", "gelu", "softmax"} & set(program.op_list)


def test_softmax_gradient_program_is_small_and_shares_forward_values():
    program = trace(ops.softmax, V)
    assert vjp(program).op_count <= 45
    assert vjp(program, with_values=True).op_list.count("exp") == 1


def test_equal_steps_are_merged_and_dead_ones_dropped():
    def fn(x):
        ops.tanh(x)
        return ops.add(ops.exp(x), ops.exp(x))

    program = trace(fn, M)
    assert program.op_list == ["exp", "add"]
    assert trace(lambda x: ops.add(x, x), M).op_list == ["add"]


def test_broadcasting_becomes_explicit():
    assert trace(ops.add, M, V).op_list == ["broadcast_in_dim", "add"]
    assert trace(ops.add, M, spec((3, 1), "f64")).op_list == ["reshape", "broadcast_in_dim", "add"]
    assert trace(ops.add, spec((3, 1), "f64"), spec((1, 4), "f64")).op_list == 2 * ["reshape", "broadcast_in_dim"] + ["add"]


def test_captured_arrays_are_bound_and_not_counted():
    table = np.arange(4.0)
    program = trace(lambda x: ops.add(ops.mul(x, table), table), M)
    assert program.op_list == ["broadcast_in_dim", "mul", "add"]
    assert [node.value is table for node in program.captures] == [True]
    np.testing.assert_array_equal(program.run(np.ones((3, 4))), np.broadcast_to(2 * table, (3, 4)))


def test_several_outputs_and_repr():
    program = trace(lambda x: (ops.exp(x), ops.neg(x)), V)
    e, n = program.run(np.zeros(4))
    assert e.sum() == 4 and n.sum() == 0
    assert "exp" in repr(program) and repr(program).splitlines()[-1].startswith("return")


def test_inputs_are_checked():
    program = trace(ops.exp, M)
    with pytest.raises(DTypeMismatch, match="input 0"):
        program.run(np.zeros((3, 4), np.float32))
    with pytest.raises(ShapeMismatch, match="input 0"):
        program.run(np.zeros((4, 3)))
    with pytest.raises(RankMismatch, match="1 arrays"):
        program.run()


def test_t23_symbolic_shapes():
    x = spec((None, 4), "f64")
    for op in (ops.sigmoid, ops.silu, ops.softplus, ops.gelu, ops.softmax, ops.layer_norm):
        with pytest.raises(InvalidArgument, match=rf"{op.name}.*missing shape hint"):
            trace(op, x)
    for op in (ops.exp, ops.erf, ops.neg, ops.tanh, ops.rsqrt):
        assert trace(op, x).op_count == 1
    assert trace(lambda a: ops.add(a, a), x).run(np.ones((2, 4))).shape == (2, 4)
    with pytest.raises(ShapeMismatch):
        trace(ops.exp, x).run(np.ones((2, 5)))


def test_a_trace_returns_values_of_the_trace():
    for wrong in (None, 3.0, "x", [None]):
        with pytest.raises(InvalidArgument, match="expected a traced value or an array"):
            trace(lambda x, wrong=wrong: wrong, M)
    same, number = trace(lambda x: (x, np.float64(3)), V).run(np.ones(4))
    assert same.sum() == 4 and number == 3


def test_gradient_programs_need_concrete_shapes_and_positions_of_inputs():
    for fn in (ops.tanh, lambda x: x * x):
        with pytest.raises(InvalidArgument, match=r"vjp.*concrete"):
            vjp(trace(fn, spec((None,), "f64")))
    for wrt in ([1], [-1]):
        with pytest.raises(InvalidArgument, match=r"vjp: wrt: .*\[0, 1\)"):
            vjp(trace(ops.tanh, V), wrt)


def test_mixing_traces_and_faces_is_refused():
    leaked = []
    trace(lambda x: leaked.append(x) or ops.exp(x), M)
    with pytest.raises(ContextMismatch, match="another"):
        trace(lambda x: ops.add(x, leaked[0]), M)
    with pytest.raises(ContextMismatch, match="add"):
        trace(lambda x: ops.add(x, tracked(np.ones((3, 4)))), M)
    with pytest.raises(ContextMismatch, match="add"):
        trace(lambda x: ops.add(tracked(np.ones((3, 4))), x), M)
    with pytest.raises(TypeError):
        trace(np.exp, M)
    with pytest.raises(ContextMismatch, match="no numbers"):
        trace(np.asarray, M)
    with pytest.raises(InvalidArgument, match="truth value"):
        trace(lambda x: ops.exp(x) if x else x, M)


def test_plan_records_op_calls_and_never_formulas():
    weight = np.ones(4)

    def fn(x):
        y = ops.rms_norm(x, -1, weight, eps=1e-6)
        return ops.silu(y) + x

    program = trace(fn, M, lowering="plan")
    norm, silu, add = program.nodes
    assert [n.name for n in program.nodes] == ["rms_norm", "silu", "add"]
    assert norm.attrs == {"axis": 1, "eps": 1e-6} and norm.operands == ("x", "weight")
    assert norm.operand("weight").value is weight and norm.operand("bias") is None
    assert add.inputs == (silu, program.inputs[0]) and add.shape == (3, 4) and add.dtype == np.float64
    with pytest.raises(ContextMismatch, match="plan"):
        program.run(np.ones((3, 4)))
    with pytest.raises(ContextMismatch):
        vjp(program)


def test_plan_validates_like_every_face():
    with pytest.raises(InvalidArgument, match=r"rms_norm.*eps"):
        trace(lambda x: ops.rms_norm(x, -1, eps=-1.0), M, lowering="plan")
    with pytest.raises(ShapeMismatch, match="linear"):
        trace(lambda x: ops.linear(x, np.ones((3, 5))), M, lowering="plan")


def test_emitted_steps_stay_without_readers():
    def fn(x):
        x.graph.emit("append", [x], {"layer": 0}, (0,), np.float32)
        read = x.graph.emit("read", [], {"layer": 0}, (8, 4), np.float64, effect=False)
        x.graph.emit("unread", [], {}, (1,), np.float32, effect=False)
        return ops.matmul(read, ops.transpose(x))

    program = trace(fn, M, lowering="plan")
    assert [n.name for n in program.nodes] == ["append", "read", "transpose", "matmul"]
    with pytest.raises(ContextMismatch, match="plan"):
        trace(fn, M)


def test_gradient_program_of_a_loss():
    program = trace(lambda x: ops.reduce_sum(ops.mul(x, x)), V)
    x = np.arange(4.0)
    np.testing.assert_array_equal(gradient(program).run(x), 2 * x)
    value, g = gradient(program, with_values=True).run(x)
    assert value == 14 and g[3] == 6
    with pytest.raises(InvalidArgument, match="single-element"):
        gradient(trace(ops.exp, V))


def test_gradient_of_a_gradient_program():
    program = trace(lambda x: ops.reduce_sum(ops.mul(ops.mul(x, x), x)), V)
    second = vjp(gradient(program), wrt=[0])
    x = np.arange(1.0, 5)
    np.testing.assert_allclose(second.run(x, np.ones(4)), 6 * x)
