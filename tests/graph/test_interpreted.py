"""Small calls run kernels as plain Python: the same bytes as compiled, and nothing is compiled for them."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.kernels import jit, readiness
from baechi_lab.graph.kernels.interpreted import run_interpreted, to_lists
from baechi_lab.placers import batch_split, contiguous, critical_path, dfs, hash_partition, m_topo, mite
from baechi_lab.placers.list_scheduling import earliest_start, insertion
from baechi_lab.placers.sct_program import solver
from baechi_lab.simulator import kernel, paths, ranks
from baechi_lab.simulator.bounds import stagger, sweep, units

pytest.importorskip("numba")

ROOT = Path(__file__).parents[2]
KERNELS = [
    *((kernel, "_run"), (earliest_start, "_schedule"), (insertion, "_schedule"), (mite, "_choose_devices")),
    *((dfs, "_visit"), (dfs, "_choose_devices"), (critical_path, "_balance_work"), (batch_split, "_assign_batches")),
    *((hash_partition, "spread_units"), (contiguous, "cut_line"), (solver, "_spend_remaining_savings")),
    *((paths, "_heads"), (paths, "tails"), (ranks, "_longest_path_tree")),
    *((sweep, "sweep"), (stagger, "staggered_work_us"), (units, "group_units"), (m_topo, "fill_devices")),
]
PLACERS = ("m-topo", "m-etf", "m-sct", "heft", "mite", "dfs", "critical-path", "batch-split", "hash", "contiguous")


def timelines_and_bounds(graph, cluster):
    for placer in PLACERS:
        placement = bl.place(graph, cluster, placer)
        for scheduler in (None, "fifo", "pct", "msr"):
            timeline = bl.simulate(graph, cluster, placement, scheduler)
            memory, transfers = timeline.memory, timeline.transfers
            columns = (placement.device, timeline.start_us, timeline.end_us, timeline.peak_bytes, transfers.end_us)
            yield [column.tobytes() for column in (*columns, memory.device, memory.time_us, memory.delta, memory.op)]
    yield {name: float(value) for name, value in bl.bounds(graph, cluster).items()}


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["parallel", "sequential", "duplex"])
def test_interpreted_kernels_give_the_same_bytes(comm, monkeypatch):
    graph = bl.generators.random_dag(90, colocation_groups=4, persistent_bytes=1 << 20, temp_bytes=1 << 10, seed=7)
    cluster = bl.Cluster.uniform(3, memory_bytes=60 << 20, link=bl.Link(20.0, 0.001), comm=comm)
    monkeypatch.setattr(jit, "is_on_disk", lambda kernel, arguments: True)  # compile them
    compiled = list(timelines_and_bounds(graph, cluster))
    interpreted = set()
    for module, name in KERNELS:
        compiled_kernel = getattr(module, name)

        def run(*arguments, function=compiled_kernel.py_func, name=f"{module.__name__}.{name}"):
            interpreted.add(name)
            return run_interpreted(function, jit.records, arguments)

        for importing in [m for m in list(sys.modules.values()) if getattr(m, name, None) is compiled_kernel]:
            monkeypatch.setattr(importing, name, run)
    assert list(timelines_and_bounds(graph, cluster)) == compiled
    assert len(interpreted) >= len(KERNELS) - 3, interpreted  # bounds of transfers need transfers that wait


def test_the_order_of_readiness_is_the_same():
    """0 (2 us) feeds 3 and 1 (1 us) feeds 2: 2 and 3 become ready at 3 and 2 us; without durations, by index. Then a cycle."""
    pointer, successors = np.array([0, 1, 2, 2, 2]), np.array([3, 2])
    for durations, expected_order in (([2.0, 1.0, 1.0, 1.0], [0, 1, 3, 2]), ([0.0] * 4, [0, 1, 2, 3])):
        interpreted = partial(run_interpreted, readiness.order_of_readiness.py_func, None)
        for run in (readiness.order_of_readiness, lambda *columns, run=interpreted: run(columns)):
            order = run(pointer, successors, np.array([0, 0, 1, 1]), np.array(durations))
            assert order.tolist() == expected_order
    loop = readiness.order_of_readiness(np.array([0, 1, 2]), np.array([1, 0]), np.array([1, 1]), np.zeros(2))
    assert len(loop) == 0


def test_a_kernel_changes_its_structured_arrays_and_arrays_in_place():
    """Three rows of (1, 2.5): the kernel adds the row's number to `a`, halves `b` and returns what it has counted."""

    def change(rows, grid, total):
        for i in range(len(rows)):
            rows[i].a += i
            grid[1, i] = rows[i].b
            total[0] += 1
        counted = np.zeros(2, np.int64)
        counted[1] = total[0]
        return counted, rows[2].a

    rows = np.array([(1, 2.5)] * 3, [("a", "i4"), ("b", "f8")])
    grid, total = np.zeros((2, 3)), np.zeros(1, np.int64)
    frozen = np.arange(3)
    frozen.flags.writeable = False
    counted, last = run_interpreted(change, jit.records, (rows, grid, total))
    assert rows["a"].tolist() == [1, 2, 3] and last == 3
    assert grid.tolist() == [[0, 0, 0], [2.5, 2.5, 2.5]] and total.tolist() == [3]
    assert counted.tolist() == [0, 3] and counted.dtype == np.int64


def test_arrays_become_lists_with_the_same_indexing():
    assert to_lists(np.array([[1, 2], [3, 4]]))[1, 0] == 3
    assert to_lists(np.zeros(0, [("a", "i4"), ("b", "f8")])).array().dtype.names == ("a", "b")
    assert to_lists(3) == 3


PROGRAM = """
import json
from numba.core import event
import baechi_lab as bl
compiled = []
class Names(event.Listener):
    def on_start(self, started):
        compiled.append(started.data["dispatcher"].py_func.__module__)
    def on_end(self, ended):
        pass
event.register("numba:compile", Names())
graph = bl.load_graph("data/gnmt-length40-batch128.json.gz")
cluster = bl.Cluster.uniform(4, memory_bytes="2GB")
placement = bl.place(bl.optimize(graph, cluster), cluster, "m-etf")
makespan_us = bl.simulate(graph, cluster, placement).makespan_us
print(json.dumps([makespan_us, [name for name in compiled if name.startswith("baechi_lab")]]))
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_first_placement_and_timeline_wait_for_no_compiler(tmp_path):
    """The README's example, with an empty cache: nothing is compiled, and the step time is that of compiled kernels."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
    )
    assert process.returncode == 0, process.stderr
    makespan_us, compiled = json.loads(process.stdout)
    assert compiled == []
    graph = bl.load_graph(ROOT / "data" / "gnmt-length40-batch128.json.gz")
    cluster = bl.Cluster.uniform(4, memory_bytes="2GB")
    placement = bl.place(bl.optimize(graph, cluster), cluster, "m-etf")
    assert makespan_us == bl.simulate(graph, cluster, placement).makespan_us


def test_after_some_seconds_as_python_a_kernel_is_compiled(monkeypatch):
    """Two calls that count 2 seconds each leave none of 3: the third call is compiled."""
    interpreted_calls = []
    seconds = iter(range(0, 100, 2))
    monkeypatch.setattr(jit.time, "thread_time", lambda: next(seconds))
    monkeypatch.setattr(
        jit, "run_interpreted", lambda function, records, arguments: interpreted_calls.append(arguments)
    )

    def add_one(x):
        return x + 1

    add_one = jit.njit(interpreted_if=lambda x: x < 10)(add_one)
    monkeypatch.setattr(jit, "is_on_disk", lambda kernel, arguments: False)
    assert (add_one(1), add_one(2)) == (None, None) and interpreted_calls == [(1,), (2,)]
    assert add_one(3) == 4 and len(interpreted_calls) == 2


def test_a_large_call_is_compiled_at_once(monkeypatch):
    monkeypatch.setattr(jit, "is_on_disk", lambda kernel, arguments: False)
    add_one = jit.njit(interpreted_if=lambda x: x < 10)(lambda x: x + 1)
    assert add_one(10) == 11 and add_one.signatures


@pytest.mark.parametrize("count", [1, jit.FEW_ENTRIES])
def test_entries_of_arrays_in_tuples_count(count):
    nested = (np.zeros(count), (3, np.zeros((2, 2))))
    assert jit.has_few_entries("name", nested) == (count + 4 < jit.FEW_ENTRIES)
