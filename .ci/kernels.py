"""Compile what the tests call: numba keeps it beside the modules of this checkout, and tests read it from there."""

import contextlib
from collections.abc import Callable

import baechi_lab as bl
from baechi_lab.graph.kernels import jit


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
compile_for(bl.bounds, graph, cluster, effort="high", time_limit=1)
for objective in ("latency", "throughput", "step"):
    for small_graph in (tiny, stages):
        compile_for(bl.place, small_graph, cluster, "auto", objective=objective)
