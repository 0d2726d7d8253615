"""When threads pay: the cost model, its overrides and its cache, and the policy of waking a team."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llamita.engine.errors import InvalidArgument
from llamita.engine.runtime import cost
from llamita.engine.runtime.cost import CLASSES, TYPES, CostModel, ThreadPolicy, cost_model, with_overrides
from llamita.engine.runtime.engine import Engine
from llamita.engine.runtime.fusion_steps import cost_class

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
RATES = {f"{kind}.{dtype}": 1.0 if kind == "transcendental" else 0.1 for kind in CLASSES for dtype in TYPES}


def test_t06_a_transcendental_is_shared_where_an_addition_is_not():
    assert [cost_class(f) for f in (np.tanh, np.exp, np.sin, np.log1p, np.power)] == ["transcendental"] * 5
    assert [cost_class(f) for f in (np.add, np.multiply, np.maximum, np.sqrt)] == ["map"] * 4
    costs = CostModel(RATES, dispatch_ns=5000.0)
    assert costs.is_parallel("transcendental", F64, 65536, 2)
    assert not costs.is_parallel("map", F64, 8192, 2)
    assert not costs.is_parallel("transcendental", F64, 65536, 1)


def test_t05_one_more_row_does_not_change_who_works():
    costs = CostModel(RATES, dispatch_ns=5000.0)
    assert not any(costs.is_parallel("map", F32, rows * 576, 2) for rows in (1, 32, 33, 64))
    assert costs.is_parallel("map", F32, 4096 * 576, 2)


def test_the_threshold_is_three_dispatches_a_section():
    costs = CostModel(RATES, dispatch_ns=5000.0)
    assert [costs.is_parallel("transcendental", F32, n, 2) for n in (14_999, 15_000)] == [False, True]
    assert not costs.is_parallel("transcendental", F32, 15_000, 2, sections=2)


def test_measured_costs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMITA_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMITA_COST", raising=False)
    runs = []
    first = cost_model(2, lambda: runs.append(1))
    assert runs and all(first.ns_per_element[f"{kind}.{dtype}"] > 0 for kind in CLASSES for dtype in TYPES)
    assert 0 <= first.awake_ns <= first.dispatch_ns
    measured = len(runs)
    assert cost_model(2, lambda: runs.append(1)) == first and len(runs) == measured
    cost_model(3, lambda: runs.append(1))
    assert len(runs) > measured and len(json.loads((tmp_path / "costs.json").read_text())) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"dispatch": -1}}'])
def test_a_damaged_file_counts_as_empty(tmp_path, monkeypatch, text):
    monkeypatch.setenv("LLAMITA_HOME", str(tmp_path))
    (tmp_path / "costs.json").write_text(text)
    assert cost_model(2, lambda: None).dispatch_ns >= 0


def test_overrides():
    costs = with_overrides({**RATES, "dispatch": 9000.0, "awake": 4000.0}, "map.f64=0.5, dispatch=100")
    assert costs.ns_per_element["map.f64"] == 0.5 and costs.ns_per_element["map.f32"] == 0.1
    assert (costs.dispatch_ns, costs.awake_ns) == (100.0, 100.0)
    for wrong in ("map.f64", "map.f64=fast", "map.f64=-1", "speed=1"):
        with pytest.raises(InvalidArgument, match="LLAMITA_COST"):
            with_overrides({**RATES, "dispatch": 1.0, "awake": 1.0}, wrong)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def policy(clock: Clock, awake: list[bool]) -> ThreadPolicy:
    return ThreadPolicy(CostModel(RATES, dispatch_ns=100_000.0, awake_ns=4_000.0), 2, lambda: awake[0], clock)


def test_work_that_pays_only_with_an_awake_team():
    clock, awake = Clock(), [False]
    decide = policy(clock, awake).is_parallel
    assert not decide("transcendental", F64, 11_999) and decide("transcendental", F64, 300_000)
    assert not decide("transcendental", F64, 40_000)
    awake[0] = True
    assert decide("transcendental", F64, 40_000) and not decide("transcendental", F64, 11_999)


def test_a_burst_wakes_the_team_once_it_has_lost_what_waking_costs():
    clock = Clock()
    decide = policy(clock, [False]).is_parallel
    answers = []
    for _ in range(12):
        clock.now += 50_000
        answers.append(decide("transcendental", F64, 40_000))  # two threads would save 20 us
    assert answers == [False, False, False, False, True] * 2 + [False, False]


def test_rare_work_never_wakes_the_team():
    clock = Clock()
    decide = policy(clock, [False]).is_parallel
    for _ in range(50):
        clock.now += 5_000_000
        assert not decide("transcendental", F64, 40_000)


def test_a_serial_engine_starts_no_thread_and_measures_nothing(monkeypatch):
    monkeypatch.setattr(cost, "measure_rates", lambda: pytest.fail("measured"))
    with Engine(n_threads=1) as engine:
        assert not engine.fused.is_parallel("transcendental", F64, 1 << 24)
        assert "team" not in engine.__dict__ and not engine._is_awake()


def test_an_engine_knows_whether_its_team_is_awake():
    engine = Engine(n_threads=2)
    assert not engine._is_awake()
    engine.fused.launcher.run_nothing()
    assert isinstance(engine._is_awake(), bool) and "team" in engine.__dict__
    engine.team.close()
