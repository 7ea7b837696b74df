"""Compile what the tests call: numba keeps it beside the modules of this checkout, and tests read it from there."""

import contextlib
from collections.abc import Callable

import numpy as np

import baechi_lab as bl
from baechi_lab.graph.kernels import jit
from baechi_lab.placers.evaluation.assignment import Limits, make_assignment
from baechi_lab.placers.evaluation.evaluate import evaluate
from baechi_lab.placers.evaluation.model import make_model
from baechi_lab.placers.evaluation.work import make_work
from baechi_lab.placers.planner.reward import Batch
from baechi_lab.simulator.bounds.merge import forced_merges


def compile_for(function: Callable[..., object], *arguments: object, **options: object) -> None:
    """Calls a function for the kernels that it needs. One that another process is compiling is left to it."""
    with contextlib.suppress(bl.BaechiLabError, *jit.SKIPPED_ERRORS):
        function(*arguments, **options)


jit.become_second_compiler()  # otherwise kernels of graphs as small as these run as Python
graph = bl.generators.random_dag(40, colocation_groups=3, persistent_bytes=1 << 20, temp_bytes=1 << 10, seed=5)
tiny = bl.generators.random_dag(8, seed=1)
stages = bl.generators.pipeline([8.0, 11.0, 2.0, 1.0], [16.0, 22.0, 4.0, 2.0], output_bytes=4)
cluster = bl.Cluster.uniform(3, memory_bytes=1 << 30, link=bl.Link(20.0, 0.001), comm="sequential")
compile_for(bl.optimize, graph)
for name in ("m-topo", "m-etf", "m-sct", "etf", "sct", "contiguous", "dfs", "critical-path", "heft"):
    compile_for(bl.place, graph, cluster, name)
for scheduler in ("fifo", "pct", "msr"):
    compile_for(bl.simulate, graph, cluster, bl.Placement(device=[0] * graph.n), scheduler=scheduler)
compile_for(bl.place, graph, cluster, "search", time_limit=None, evaluations=60, workers=1)
compile_for(
    bl.place, bl.generators.layered_dag(60, seed=3), cluster, "search", time_limit=None, evaluations=3000, workers=1
)
for bounded_graph, seconds in ((graph, 1), (tiny, 20)):
    compile_for(bl.bounds, bounded_graph, cluster, effort="high", time_limit=seconds)
one_device = np.zeros(graph.n, dtype=np.int32)
compile_for(Batch(graph, cluster).seconds, one_device[None])
compile_for(forced_merges, tiny, cluster, 0.0, np.inf, 20.0)
model = make_model(graph, cluster)
compile_for(evaluate, model, make_work(model), make_assignment(one_device, None), Limits(True))
two_kinds = bl.Cluster(
    [bl.Device("fast", "gpu", 1 << 30, speed=3.0), bl.Device("slow", "gpu", 1 << 30)], bl.Link(20.0, 0.001)
)
compile_for(bl.place, stages, two_kinds, "ideals")
for objective in ("latency", "throughput", "step"):
    for small_graph in (tiny, stages):
        compile_for(bl.place, small_graph, cluster, "auto", objective=objective)
tight_cluster = bl.Cluster.uniform(3, memory_bytes=16 << 20, link=bl.Link(20.0, 0.001))
for name in ("hash", "mite", "batch-split", "critical-path"):
    for memory in (cluster, tight_cluster):
        compile_for(bl.place, graph, memory, name)
compile_for(bl.simulate, stages, cluster, bl.Placement(device=[0] * stages.n), micro_batches=4, schedule="zb-auto")
machines = bl.Cluster.machines(4, 2, memory_bytes=1 << 30, link=bl.Link(1.0, 0.001), network=bl.Link(20.0, 0.01))
for name in ("contiguous", "ideals"):
    compile_for(bl.place, stages, machines, name, objective="throughput", replicas=True)
views = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[0, 1, 0])
compile_for(bl.simulate, views, cluster, bl.Placement(device=[0, 0, 1]))
