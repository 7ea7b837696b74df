"""The clock of placers stands still while kernels are compiled, so that limits of time leave it out."""

import pytest

from baechi_lab.graph.kernels import compiling
from baechi_lab.graph.kernels.jit import HAS_NUMBA, njit
from baechi_lab.placers.search.budget import Budget


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told to."""
    time_of_clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: time_of_clock[0])
    monkeypatch.setattr(compiling, "clock", compiling.Clock())
    return time_of_clock


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_a_kernel_that_is_compiled_is_heard_of_and_one_that_is_there_is_not():
    @njit(cache=False)
    def double(x):
        return 2 * x

    before = compiling.clock.seconds
    double(1.0)
    after = compiling.clock.seconds
    double(2.0)
    assert before < after == compiling.clock.seconds


def test_nested_kernels_count_once_and_the_present_one_counts_so_far(clock):
    compiling.clock.start()
    clock[0] += 1.0
    compiling.clock.start()
    clock[0] += 2.0
    assert compiling.working_seconds() == 100.0
    compiling.clock.end()
    clock[0] += 4.0
    compiling.clock.end()
    clock[0] += 8.0
    assert compiling.working_seconds() == 108.0


def test_a_budget_does_not_pay_for_compiling(clock):
    compiling.clock.state = 5.0, None
    budget = Budget(10.0, None)
    clock[0] += 1.0
    compiling.clock.start()
    clock[0] += 40.0
    assert budget.elapsed == pytest.approx(1.0)
    compiling.clock.end()
    clock[0] += 4.0
    assert budget.elapsed == pytest.approx(5.0)
    assert budget.spent(0) == pytest.approx(0.5)


def test_bug_the_clock_went_back_while_another_thread_compiled(monkeypatch):
    """The clock was read twice: what passed between both readings was taken off once more."""
    readings = iter(range(100))
    monkeypatch.setattr(compiling, "clock", compiling.Clock())
    monkeypatch.setattr("time.perf_counter", lambda: float(next(readings)))
    compiling.clock.start()
    assert compiling.working_seconds() <= compiling.working_seconds()
