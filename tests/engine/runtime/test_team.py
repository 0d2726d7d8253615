"""The thread team: results whatever the threads, many runs, rest when idle, interrupts, ends."""

import _thread
import gc
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest
from kernel_drivers import Rows, bits, f32_tensor

from llamita.engine import ops
from llamita.engine.errors import ClosedError, InvalidArgument
from llamita.engine.runtime.team import Team

X = np.random.default_rng(0).standard_normal((24, 48)).astype(np.float32)
WEIGHTS = [f32_tensor(np.random.default_rng(i).standard_normal((48, 48)) / 7) for i in range(6)]


def chain(team):
    """A plan of many short steps that wait for each other."""

    def traced(x):
        for weight in WEIGHTS:
            x = x + ops.linear(ops.rms_norm(x, -1, X[0], None, 1e-5), weight)
        return x

    return Rows(traced, X, on=team)


@pytest.fixture(scope="module")
def expected():
    """The chain's result on one thread."""
    team = Team(1)
    yield chain(team).run(range(24))
    team.close()


def threads():
    """Threads of this process, native ones included."""
    return psutil.Process().num_threads()


def come_down_to(count, seconds=5.0):
    """Whether there are no more threads than that, soon: one that was joined may take a moment to leave the system."""
    deadline = time.monotonic() + seconds
    while threads() > count and time.monotonic() < deadline:
        time.sleep(0.005)
    return threads() <= count


def cpu_seconds_while_idle(seconds=0.5):
    time.sleep(0.05)  # workers spin for a moment before they park
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_thousands_of_runs(n_threads, expected):
    team = Team(n_threads)
    plan = chain(team)
    rng = np.random.default_rng(n_threads)
    for i in range(1500):
        n = int(rng.integers(1, 25))
        y = plan.run(range(n))
        if i % 10 == 0:
            assert np.array_equal(bits(y), bits(expected[:n])), i
        if i % 500 == 0:
            time.sleep(0.02)  # let the workers park
    team.close()


@pytest.mark.parametrize("n_threads", [2, 5])
def test_wakes_after_every_rest(n_threads, expected):
    team = Team(n_threads)
    plan = chain(team)
    for pause in np.random.default_rng(0).uniform(0, 0.01, 60):  # around the time at which workers park
        time.sleep(pause)
        assert np.array_equal(bits(plan.run(range(24))), bits(expected))
    team.close()


@pytest.mark.parametrize("n_threads", [2, 5])
def test_costs_nothing_while_idle(n_threads):
    team = Team(n_threads)
    assert cpu_seconds_while_idle() < 0.05  # before the first run
    plan = chain(team)
    for _ in range(50):
        plan.run(range(24))
    assert cpu_seconds_while_idle() < 0.05
    team.close()


def test_survives_interrupts(expected):
    """Ctrl-C reaches Python between runs, or between the steps of `run` itself."""
    team = Team(2)
    plan = chain(team)
    plan.run(range(24))
    rng = np.random.default_rng(0)
    for delay in rng.uniform(0, 0.004, 40):
        timer = threading.Timer(delay, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                plan.run(range(24))
        assert np.array_equal(bits(plan.run(range(24))), bits(expected))
    assert cpu_seconds_while_idle() < 0.05
    team.close()


def test_an_interrupt_before_the_plan_starts_leaves_no_worker_spinning(expected, monkeypatch):
    team = Team(2)
    plan = chain(team)
    plan.run(range(24))

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(team, "_lead", interrupted)  # the workers have been told already
        with pytest.raises(KeyboardInterrupt):
            plan.run(range(24))
    assert cpu_seconds_while_idle() < 0.05
    assert np.array_equal(bits(plan.run(range(24))), bits(expected))
    team.close()


def test_callers_take_turns(expected):
    team = Team(2)
    plans, wrong = [chain(team) for _ in range(3)], []

    def call(plan):
        for _ in range(200):
            if not np.array_equal(bits(plan.run(range(24))), bits(expected)):
                wrong.append(plan)

    callers = [threading.Thread(target=call, args=(plan,)) for plan in plans]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    team.close()


def test_several_teams(expected):
    teams = [Team(n) for n in (1, 2, 3)]
    plans = [chain(team) for team in teams]
    for _ in range(50):
        for plan in plans:
            assert np.array_equal(bits(plan.run(range(24))), bits(expected))
    for team in teams:
        team.close()


def test_close_ends_the_threads(expected):
    before = threads()
    for i in range(20):
        team = Team(3)
        if i % 2:
            assert np.array_equal(bits(chain(team).run(range(24))), bits(expected))
        team.close()
        team.close()
        assert come_down_to(before), i


def test_a_team_that_nobody_holds_ends_its_threads():
    before = threads()
    for _ in range(5):
        chain(Team(3)).run(range(24))
    gc.collect()
    assert come_down_to(before)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_closed_team_refuses_to_run(n_threads):
    team = Team(n_threads)
    plan = chain(team)
    plan.run(range(24))
    team.close()
    with pytest.raises(ClosedError, match="closed"):
        plan.run(range(24))


@pytest.mark.parametrize("n_threads", [0, -1, 257])
def test_how_many_threads_there_can_be(n_threads):
    with pytest.raises(InvalidArgument, match=f"n_threads: expected 1 to 256, got {n_threads}"):
        Team(n_threads)


def test_threads_follow_the_cpus_by_default():
    team = Team()
    assert 1 <= team.n_threads <= (psutil.cpu_count() or 1)
    team.close()


def test_an_empty_plan():
    team = Team(2)
    team.run(np.zeros((0, 3), np.int64))
    team.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_forked_child_has_threads_of_its_own(n_threads, expected):
    team, closed = Team(n_threads), Team(n_threads)
    closed.close()
    steps = chain(team)
    steps.run(range(24))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            good = all(np.array_equal(bits(steps.run(range(24))), bits(expected)) for _ in range(20))
            with pytest.raises(ClosedError):
                closed.run(np.zeros((0, 3), np.int64))
            team.close()
            status = 0 if good else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended[0] == child and os.waitstatus_to_exitcode(ended[1]) == 0
    assert np.array_equal(bits(steps.run(range(24))), bits(expected))  # the parent goes on as before
    team.close()
