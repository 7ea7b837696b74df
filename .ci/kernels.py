"""Compile what the tests call: numba keeps it beside the modules of this checkout, and tests read it from there."""

import baechi_lab as bl

EFFORT = {"time_limit": None, "evaluations": 60, "workers": 1}

graph = bl.generators.random_dag(40, colocation_groups=3, persistent_bytes=1 << 20, temp_bytes=1 << 10, seed=5)
cluster = bl.Cluster.uniform(3, memory_bytes=1 << 30, link=bl.Link(20.0, 0.001), comm="sequential")
bl.optimize(graph)
for name in ("m-topo", "m-etf", "m-sct", "etf", "sct", "contiguous", "dfs", "critical-path", "heft"):
    placed = bl.place(graph, cluster, name)
    bl.check(graph, cluster, placed, bl.simulate(graph, cluster, placed))
bl.place(graph, cluster, "search", **EFFORT)
bl.bounds(graph, cluster, effort="high", time_limit=1)
