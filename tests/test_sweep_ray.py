"""Sweeps on Ray itself; `test_sweep_executors` has its interface without it."""

import contextlib
import os
import signal
import time

import pytest

import baechi_lab as bl
from baechi_lab.sweeps import RayExecutor

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.subprocess]

GRAPH = bl.OpGraph.from_edges([1 + i % 7 for i in range(60)], [(i // 3, i, 4 + i) for i in range(1, 60)])
SETTINGS = {"devices": [1, 2, 3, 4], "memory_bytes": ["1kB", "1MB"], "placer": ["single", "m-topo", "m-etf"]}


def table(executor, **options):
    rows = bl.sweep(GRAPH, executor=executor, progress=False, **SETTINGS, **options)
    return rows.drop(columns="place_seconds")  # the only column that is measured


@pytest.fixture(scope="module")
def started():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def test_ray_as_it_comes(started):
    assert table(RayExecutor()).equals(table("here"))


def test_killed_workers_lose_and_double_no_row(started, tmp_path):
    """After the second and the eighth row one of the two workers that there were at first is killed."""
    executor, rows = RayExecutor(num_cpus=1), []

    def who():  # long enough for both to be asked
        time.sleep(1)
        return os.getpid()

    pids = list({future.result(60) for future in [executor.submit(who) for _ in range(2)]})

    def kill_one(row):
        rows.append((row["devices"], row["memory_bytes"], row["placer"]))
        if len(rows) in (2, 8) and pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids.pop(), signal.SIGKILL)

    rows_found = table(executor, path=tmp_path / "rows.db", on_row=kill_one)
    assert rows_found.equals(table("here")) and not pids
    assert len(rows) == len(set(rows)) == len(rows_found)


def test_what_is_no_python_function(started):
    assert RayExecutor().submit(max, 1, 2).result(60) == 2
