"""Everything works, slower, where numba is not installed; what is computed is the same; and every kernel is reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
import functools, importlib, json, sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise ImportError("No module named 'numba'")

if {blocked}:
    sys.meta_path.insert(0, Blocker())
import baechi_lab as bl
from baechi_lab.graph.kernels import jit

kernels, called = set(), set()

def counted(**options):
    "Stands for `njit`: notes which kernels there are, and which are called."
    def decorate(kernel):
        name = kernel.__module__.removeprefix("baechi_lab.") + "." + kernel.__name__
        kernels.add(name)
        @functools.wraps(kernel)
        def noted(*arguments):
            called.add(name)
            return kernel(*arguments)
        noted.py_func = kernel
        return noted
    return decorate

if {blocked}:
    jit.njit = counted
    root = Path(bl.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "@njit(" in path.read_text(encoding="utf-8") and path.name != "jit.py":
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))

def outcome(graph, cluster, placer, **params):
    try:
        placement = bl.place(graph, cluster, placer, **params)
    except bl.InfeasiblePlacement:
        return "nothing fits"
    timeline = bl.simulate(graph, cluster, placement)
    return [placement.device.tolist(), timeline.makespan_us, len(bl.check(graph, cluster, placement, timeline))]

def coarse_and_rules(graph, cluster, placers):
    found = {{"coarse": bl.optimize(graph).n}}
    return {{**found, **{{placer: outcome(graph, cluster, placer) for placer in placers}}}}

graph = bl.generators.random_dag(40, colocation_groups=3, persistent_bytes=1 << 20, temp_bytes=1 << 10, seed=5)
cluster = bl.Cluster.uniform(3, memory_bytes=1 << 30, link=bl.Link(20.0, 0.001), comm="sequential")
result = {{"numba": jit.HAS_NUMBA, **coarse_and_rules(graph, cluster, {placers})}}
if {blocked}:
    {reach}
    result["kernels"], result["called"] = sorted(kernels), sorted(called)
print(json.dumps(result))
"""
REACH = """
    from baechi_lab.placers.planner.reward import SimulatedReward

    graph = bl.generators.random_dag(24, colocation_groups=3, grouped=0.3, persistent_bytes=9, temp_bytes=3, seed=5)
    alone = bl.simulate(graph, cluster, bl.place(graph, cluster, "single")).peak_bytes.max()
    sharing = graph.replace(reuse=[op % 4 for op in range(graph.n)])
    bl.simulate(sharing, cluster, bl.Placement(device=[op % 2 for op in range(graph.n)]))
    effort = {"time_limit": None, "evaluations": 60, "workers": 1}
    for comm, share in (("parallel", 0.6), ("sequential", 0.6), ("duplex", 2.0)):
        room = cluster.replace(comm=comm).with_memory(int(share * alone))
        for scheduler in ("fifo", "pct", "msr"):
            bl.simulate(graph, room, bl.place(graph, cluster, "hash"), scheduler)
        for placer in ("metis", "contiguous", "dfs", "mite", "critical-path", "batch-split", "heft"):
            outcome(graph, room, placer)
        outcome(graph, room, "search", **effort)
        SimulatedReward(graph, room)([[0] * graph.n, [1] * graph.n])
    outcome(graph, cluster, "search", objective="p90", **effort)
    for priority in ("upward-rank", "earliest-start"):
        bl.ListScheduler(priority, "earliest-start").plan(graph, cluster)
    bl.bounds(graph, cluster, effort="high", time_limit=20)
    stages = bl.generators.pipeline([1.0, 2.0], [2.0, 3.0], [1.0, 1.0])
    bl.simulate(stages, cluster, bl.Placement(device=[0, 1] * 3), micro_batches=2, schedule="zb-auto")
    for placer in ("contiguous", "ideals"):
        bl.place(stages, cluster, placer, objective="throughput", replicas=True)
    bl.place(stages, cluster, "search", objective="throughput", **effort)
    near, far = bl.Link(0.0, 0.1), bl.Link(0.0, 1.0)
    links = [[near if a // 2 == b // 2 else far for b in range(4)] for a in range(4)]
    deep = bl.Cluster(bl.Cluster.uniform(4).devices, link=links)
    bl.place(stages, deep, "contiguous", objective="throughput", replicas=True)
"""
PLACERS = ("m-topo", "m-etf", "m-sct", "etf", "sct")


def run(blocked, reach=False, **environment):
    program = PROGRAM.format(blocked=blocked, placers=PLACERS, reach=REACH.strip() if reach else "pass")
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=os.environ | environment
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_results_do_not_depend_on_numba(capsys):
    without = run(True)
    exec(PROGRAM.format(blocked=False, placers=PLACERS, reach="pass"), {})
    with_it = json.loads(capsys.readouterr().out)
    assert (without.pop("numba"), with_it.pop("numba")) == (False, True)
    assert with_it == {key: without[key] for key in with_it}
    assert all(without[placer][2] == 0 for placer in ("m-topo", "m-etf", "m-sct"))


@pytest.mark.slow
def test_results_do_not_depend_on_compiling_and_every_kernel_is_reached():
    without, switched_off = run(True, reach=True), run(False, NUMBA_DISABLE_JIT="1")
    assert switched_off == {key: without[key] for key in switched_off}
    kernels, called = set(without["kernels"]), set(without["called"])
    assert len(kernels) > 100 and len(called) > 0.8 * len(kernels)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    # What only large graphs and long searches reach has tests of its own.
    elsewhere = {name.rpartition(".")[0] for name in kernels - called}
    assert [module for module in elsewhere if f"baechi_lab.{module}" not in tests] == []
