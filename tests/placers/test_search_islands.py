"""The search on islands: one answer wherever it runs, never worse than its start, calls that are lost are sent again."""

from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph import generators

GRAPH = generators.layered_dag(40, seed=6, duration_us=(10, 100), size_bytes=(100, 1000))
CLUSTER = bl.Cluster.uniform(3, memory_bytes=1 << 40, link=bl.Link(5.0, 0.01))


def search_islands(executor, **changes):
    options = {"evaluations": 600, "time_limit": None, "islands": 3, "workers": 1, "seed": 7, **changes}
    return bl.place(GRAPH, CLUSTER, "search", executor=executor, **options)


def same(one, second):
    return (
        np.array_equal(one.device, second.device)
        and np.array_equal(one.rank, second.rank)
        and one.info["evaluations"] == second.info["evaluations"]
        and [row[2] for row in one.info["history"]] == [row[2] for row in second.info["history"]]
    )


@pytest.fixture(scope="module")
def in_process():
    return search_islands("here")


@pytest.mark.slow
@pytest.mark.subprocess
def test_threads_and_processes_give_what_one_process_gives(in_process):
    with ThreadPoolExecutor(3) as threads:
        assert same(in_process, search_islands(threads))
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        assert same(in_process, search_islands(processes))
    assert not same(in_process, search_islands("here", seed=8))
    costs = [row[2] for row in in_process.info["history"]]
    assert len(costs) == 4 and costs == sorted(costs, reverse=True)  # what is found is never lost
    assert bl.simulate(GRAPH, CLUSTER, in_process).makespan_us == pytest.approx(costs[-1])
    assert costs[-1] <= in_process.info["start_us"]


@pytest.mark.slow
@pytest.mark.subprocess
def test_islands_on_dask_find_the_same(in_process):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as local,
        distributed.Client(local) as client,
    ):
        assert same(in_process, search_islands(client))


class Losing:
    """Runs calls at once; loses every call the first `times` times that it is sent."""

    retryable_errors = (ConnectionError,)

    def __init__(self, times):
        self.times, self.seen, self.sent = times, {}, 0

    def submit(self, function, *args):
        future, key = Future(), repr(args[-1])
        self.sent += 1
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= self.times:
            future.set_exception(ConnectionError("the machine is gone"))
        else:
            future.set_result(function(*args))
        return future


@pytest.mark.slow
def test_what_is_lost_is_sent_again(in_process):
    losing = Losing(2)
    assert same(in_process, search_islands(losing))
    assert losing.sent == 3 * 4 * 3  # 4 rounds of 3 islands, each sent three times
    with pytest.raises(bl.ExecutionError, match=r"lost with its machine 4 times, perhaps .* \(the machine is gone\)"):
        search_islands(Losing(4))


@pytest.mark.slow
def test_a_callback_ends_it_between_rounds():
    reports = []
    stopped = search_islands("here", callback=lambda progress: reports.append(progress) or len(reports) == 2)
    assert len(reports) == 2 and len(stopped.info["history"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "step"])
def test_islands_of_pipelines_are_no_worse_than_their_start(objective):
    graph = generators.with_backward(generators.chain(6, seed=1))
    options = {"executor": "here", "evaluations": 60, "time_limit": None, "islands": 2, "objective": objective}
    placement = bl.place(graph, CLUSTER, "search", micro_batches=4, **options)
    start = bl.place(graph, CLUSTER, "contiguous", objective=objective, micro_batches=4)
    key = "period_us" if objective == "throughput" else "step_us"
    assert placement.info[key] <= start.info[key] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"islands": 0}, "islands is 0; it must be a whole number of at least 1"),
        ({"executor": "mars"}, "executor is 'mars'"),
    ],
)
def test_bad_input_is_rejected(changes, message):
    with pytest.raises(bl.InvalidInput, match=message):
        search_islands(**{"executor": "here", **changes})
