"""Sweeps on other machines: a Dask cluster whose workers are killed, and Ray's interface."""

import contextlib
import os
import signal
import sys
import threading
import types
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import baechi_lab as bl
from baechi_lab.sweeps import RayExecutor
from baechi_lab.workers import executors
from baechi_lab.workers.executors import calls_for

GRAPH = bl.OpGraph.from_edges([1 + i % 7 for i in range(60)], [(i // 3, i, 4 + i) for i in range(1, 60)])
SETTINGS = {"devices": [1, 2, 3, 4], "memory_bytes": ["1kB", "1MB"], "placer": ["single", "m-topo", "m-etf"]}


def table(executor, **options):
    rows = bl.sweep(GRAPH, executor=executor, progress=False, **SETTINGS, **options)
    return rows.drop(columns="place_seconds")  # the only column that is measured


@pytest.fixture(scope="module")
def run_inline():
    return table("here")


# -- Dask --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
def test_a_dask_client_as_it_comes(client, run_inline):
    assert table(client).equals(run_inline)


@pytest.mark.slow
def test_the_executor_of_a_dask_client(client, run_inline):
    assert table(client.get_executor()).equals(run_inline)


@pytest.mark.slow
def test_the_graph_is_told_to_dask_once(client, run_inline, monkeypatch):
    """One task holds the graph's bytes, and the rows name it, whatever their number."""
    sent_bytes, shared = [], executors.DaskCalls.share
    monkeypatch.setattr(
        executors.DaskCalls, "share", lambda self, data: sent_bytes.append(shared(self, data)) or sent_bytes[-1]
    )
    assert table(client).equals(run_inline)
    assert len(sent_bytes) == 1 and len(client.who_has(sent_bytes)[sent_bytes[0].key]) <= 2


@pytest.mark.slow
def test_killed_dask_workers_lose_and_double_no_row(client, run_inline, tmp_path):
    """Two workers are killed, early and in the middle; the scheduler starts others."""
    rows = []

    def kill_one(row):
        rows.append(row)
        if len(rows) in (2, 12):
            pid = next(nanny.pid for nanny in client.cluster.workers.values() if nanny.pid)
            with contextlib.suppress(ProcessLookupError):  # the one killed before may not be missed yet
                os.kill(pid, signal.SIGKILL)

    rows_found = table(client, path=tmp_path / "rows.db", on_row=kill_one)
    assert rows_found.equals(run_inline)
    reported = [(row["devices"], row["memory_bytes"], row["placer"]) for row in rows]
    assert len(reported) == len(set(reported)) == len(run_inline)


def test_calls_that_dask_gives_up_are_sent_again(client):
    from distributed import KilledWorker

    calls = calls_for(client)
    assert KilledWorker in calls.retryable_errors
    future = calls.submit(max, 1, 2)
    assert isinstance(future, Future) and future.result(60) == 2


# -- lost calls --------------------------------------------------------------------------------------------------


class MachineLost(RuntimeError):
    """What a machine that went away leaves."""


class Flaky(ThreadPoolExecutor):
    """Loses every call `times` times before it is answered."""

    retryable_errors = (MachineLost,)

    def __init__(self, times):
        super().__init__(1)
        self.times, self.seen = times, {}

    def submit(self, fn, /, *args, **kwargs):
        key = repr(args[1:])
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= self.times:
            future = Future()
            future.set_exception(MachineLost("gone"))
            return future
        return super().submit(fn, *args, **kwargs)


def test_lost_rows_are_sent_again(run_inline):
    with Flaky(3) as pool:
        assert table(pool).equals(run_inline)


def test_rows_that_are_always_lost_end_the_sweep():
    with Flaky(4) as pool, pytest.raises(bl.ExecutionError, match=r"lost with the machine .* 4 times.*\(gone\)"):
        table(pool)


@pytest.mark.parametrize("executor", ["there", 3, object()])
def test_what_is_no_executor(executor):
    with pytest.raises(bl.InvalidInput, match=r"executor is .*; it must be a concurrent\.futures\.Executor, a dask"):
        table(executor)


def test_an_executor_with_futures_of_its_own():
    class Foreign:
        def submit(self, fn, *args):
            return object()

    with pytest.raises(bl.InvalidInput, match="whose submit returns a object"):
        table(Foreign())


# -- Ray -----------------------------------------------------------------------------------------------------------


class Reference:
    """As `ray.ObjectRef`: stands for a value in arguments, and gives a future."""

    def __init__(self, future):
        self.made = future

    def future(self):
        return self.made


@pytest.fixture
def ray_like(monkeypatch):
    """What RayExecutor uses of Ray, over threads: `remote`, `put`, `cancel`, `init`, exceptions."""
    pool = ThreadPoolExecutor(2)
    calls = {"init": 0, "put": 0, "options": None, "cancelled": []}
    ray = types.ModuleType("ray")
    names = ("RaySystemError", "WorkerCrashedError", "ObjectLostError")
    ray.exceptions = types.SimpleNamespace(**{name: type(name, (Exception,), {}) for name in names})
    ray.is_initialized = lambda: calls["init"] > 0

    def init(**options):
        calls["init"] += 1

    def put(data):
        calls["put"] += 1
        future = Future()
        future.set_result(data)
        return Reference(future)

    def remote(**options):
        calls["options"] = options

        def of(function):
            def call(*args, **kwargs):
                values = [a.made.result() if isinstance(a, Reference) else a for a in args]
                return Reference(pool.submit(function, *values, **kwargs))

            return types.SimpleNamespace(remote=call)

        return of

    ray.init, ray.put, ray.remote, ray.cancel = init, put, remote, calls["cancelled"].append
    monkeypatch.setitem(sys.modules, "ray", ray)
    yield calls
    pool.shutdown()


def test_a_sweep_on_ray_gives_the_same_rows(ray_like, run_inline):
    assert table(RayExecutor(num_cpus=1)).equals(run_inline)
    assert ray_like["init"] == 1 and ray_like["put"] == 1  # the graph is put once, whatever the number of rows
    assert ray_like["options"] == {"max_retries": 3, "num_cpus": 1}


@pytest.mark.slow
def test_cancelling_reaches_ray(ray_like):
    executor, block = RayExecutor(), threading.Event()
    running = [executor.submit(block.wait, 30) for _ in range(2)]
    waiting = executor.submit(block.wait, 30)
    assert waiting.cancel()
    block.set()
    assert all(future.result() for future in running) and len(ray_like["cancelled"]) == 1


@pytest.mark.slow
def test_without_ray_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(bl.MissingPackage, match="needs the package 'ray': pip install ray"):
        RayExecutor()


@pytest.mark.slow
def test_a_closed_dask_client_is_refused():
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        pass
    with pytest.raises(bl.InvalidInput, match=r"dask\.distributed\.Client that is closed"):
        bl.sweep(GRAPH, executor=client, progress=False)


@pytest.mark.slow
def test_an_executor_that_was_shut_down_is_refused():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(bl.InvalidInput, match="ThreadPoolExecutor that takes no calls: cannot schedule"):
        bl.sweep(GRAPH, executor=pool, progress=False)
