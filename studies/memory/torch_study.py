"""Run placements of ten PyTorch models on two CPU devices, and hold measured against simulated peaks.

Both devices are this process, which works for one at a time, and so does the simulation; one step is run with copies between
them (`executors.torch.copying`). Scratch of kernels is
that of this machine's, in the profile and in the measurement. Real GPUs have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from baechi_lab.executors.torch.execution import execute
from baechi_lab.graph import Cluster, OpGraph, Placement
from baechi_lab.placers import place
from baechi_lab.profilers.torch.profile import profile
from baechi_lab.simulator import simulate
from studies.memory.predicting import one_after_another
from studies.memory.report import Row
from studies.memory.study import rows_of
from studies.memory.torch_steps import NAMES, torch_step

PLACEMENTS = ("single", "m-etf", "random")


def torch_study(
    models: Sequence[str] = NAMES,
    placements: Sequence[str] = PLACEMENTS,
    *,
    devices: int = 2,
    seed: int = 0,
    on_model: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """One row per device and placement; arguments as for `study`, models by name.

    >>> rows = torch_study(["gnmt"], ["single"])
    >>> [(row.device, abs(row.error) < 0.05) for row in rows]
    [('cpu:0', True)]
    """
    cluster = Cluster.uniform(devices, kind="cpu", comm="parallel")
    rows: list[Row] = []
    for name in models:
        step = torch_step(name)
        graph = profile(step, warmup=1, runs=2)
        in_turns = one_after_another(graph)
        for placement in placements:
            rule_placement = _place(placement, graph, cluster, seed)
            run = execute(step, rule_placement, 1, warmup=1, cluster=cluster, graph=graph)
            rows += rows_of(
                name, placement, [simulate(in_turns, cluster, rule_placement.replace(graph_key=None))], [run]
            )
        if on_model is not None:
            on_model(rows)
    return rows


def _place(name: str, graph: OpGraph, cluster: Cluster, seed: int) -> Placement:
    """A placement without an order: layers are called as the code has them."""
    if name == "random":
        groups = len(graph.colocation_names)
        drawn_devices = np.random.default_rng(seed).integers(0, cluster.n, groups + graph.n)
        of = np.where(graph.colocation >= 0, graph.colocation, groups + np.arange(graph.n))
        return Placement(device=drawn_devices[of].astype(np.int32), placer="random", graph_key=graph.key)
    return place(graph, cluster, name).on(graph).replace(order=None, priority=None)
