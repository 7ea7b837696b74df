"""Mayer et al.'s experiment, for `07_critical_path.ipynb`: drawn costs and clusters, every partitioner under every scheduler.

Source: Mayer, Mayer, Laich 2017, section 5.1 and Figure 3 (doi:10.1145/3154842.3154843).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from baechi_lab.graph import Cluster, Device, Link, OpGraph
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from baechi_lab.simulator.bounds import bounds
from baechi_lab.viz.colors import LIMIT, SERIES
from baechi_lab.viz.layout import LEGEND, styled

PARTITIONERS = ("hash", "batch-split", "critical-path", "mite", "dfs", "heft")
SCHEDULERS = ("fifo", "msr", "pct")
DEVICES = 50
COLORS = {"fifo": SERIES[5], "msr": SERIES[3], "pct": SERIES[0]}


def draw(network: OpGraph, seed: int, memory: float | None = 5.0, bandwidth: float = 1.0) -> tuple[OpGraph, Cluster]:
    """The network with drawn costs, and a drawn cluster. `memory`: times the bytes of all tensors (None: no limit)."""
    rng = np.random.default_rng(seed)
    sizes = {"duration_us": rng.integers(1, 101, network.n).astype(float)}
    graph = network.replace(**sizes, tensor_bytes=rng.integers(1, 101, network.tensor_count))
    speed, rate = rng.uniform(10, 100, DEVICES), bandwidth * rng.uniform(10, 60, (DEVICES, DEVICES))
    share = rng.uniform(0.5, 1.5, DEVICES) * graph.tensor_bytes.sum() / DEVICES
    largest = np.bincount(graph.tensor_producer, graph.tensor_bytes, graph.n)
    largest += np.bincount(graph.consumers, graph.tensor_bytes[graph.edge_tensor], graph.n)
    memory_bytes = np.full(DEVICES, 1e15) if memory is None else np.maximum(memory * share, 3 * largest.max())
    devices = tuple(Device(f"device {d}", "device", int(memory_bytes[d]), float(speed[d])) for d in range(DEVICES))
    links = [[Link.from_bandwidth(float(r)) for r in row] for row in rate]
    return graph, Cluster(devices, links, comm="parallel")


def experiment(
    network: OpGraph, seeds: int = 10, partitioners: Sequence[str] = PARTITIONERS, **setting: Any
) -> pd.DataFrame:
    """One row per partitioner, scheduler and seed; `setting` goes to `draw`."""
    rows = []
    for seed in range(seeds):
        graph, cluster = draw(network, seed, **setting)
        bound = bounds(graph, cluster).best
        for partitioner in partitioners:
            placement = place(graph, cluster, partitioner, **({"seed": seed} if partitioner == "hash" else {}))
            for scheduler in SCHEDULERS:
                time_us = simulate(graph, cluster, placement, scheduler).makespan_us
                rows.append(
                    (network.name, partitioner, scheduler, seed, time_us, bound, len(np.unique(placement.device)))
                )
    columns = ["network", "partitioner", "scheduler", "seed", "time", "bound", "devices used"]
    return pd.DataFrame(rows, columns=columns)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over the seeds: partitioners down, network and scheduler across."""
    group = rows.groupby(["network", "partitioner", "scheduler"])["time"]
    text = group.mean().map("{:.0f}".format) + " ± " + group.std().map("{:.0f}".format)
    table = text.unstack(["network", "scheduler"]).loc[[p for p in PARTITIONERS if p in set(rows["partitioner"])]]
    return table[[(n, s) for n in rows["network"].unique() for s in SCHEDULERS]]


def winners(rows: pd.DataFrame) -> pd.DataFrame:
    """Per network the best and the worst combination, and how many times as fast as `hash` + `fifo` others are."""
    mean = rows.groupby(["network", "partitioner", "scheduler"])["time"].mean()
    result_rows = []
    for name in rows["network"].unique():
        of = mean[name]
        best = of.idxmin()
        result_rows.append(
            {
                "network": name,
                "worst": " + ".join(of.idxmax()),
                "best": " + ".join(best),
                "hash+fifo / best": of["hash", "fifo"] / of[best],
                "hash+fifo / critical-path+pct": of["hash", "fifo"] / of["critical-path", "pct"],
                "pct best scheduler for": sum(of[p].idxmin() == "pct" for p in PARTITIONERS),
            }
        )
    return pd.DataFrame(result_rows).set_index("network")


def figure_3(rows: pd.DataFrame) -> go.Figure:
    """Bars as in the paper's Figure 3: mean time per iteration, its standard deviation, and the lower bound."""
    names = list(rows["network"].unique())
    figure = make_subplots(cols=len(names), subplot_titles=names, horizontal_spacing=0.06)
    for column, name in enumerate(names, 1):
        of = rows[rows["network"] == name]
        for scheduler in SCHEDULERS:
            group = of[of["scheduler"] == scheduler].groupby("partitioner")["time"]
            mean, deviation = group.mean()[list(PARTITIONERS)], group.std()[list(PARTITIONERS)]
            figure.add_bar(
                x=PARTITIONERS,
                y=mean,
                error_y={"array": deviation, "color": "gray"},
                name=scheduler,
                col=column,
                row=1,
                marker_color=COLORS[scheduler],
                legendgroup=scheduler,
                showlegend=column == 1,
            )
        figure.add_hline(y=of["bound"].mean(), line={"dash": "dash", "color": LIMIT, "width": 1}, col=column, row=1)
    figure.update_yaxes(title_text="time units per step, simulated", rangemode="tozero", col=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(title_text="partitioner")
    return styled(
        figure,
        "Step time by partitioner and scheduler; dashed: lower bound",
        420,
        legend=LEGEND,
    )


def ten_tasks() -> tuple[OpGraph, Cluster]:
    """The example that HEFT was published with: Topcuoglu, Hariri, Wu 2002, Figures 2 and 3 (doi:10.1109/71.993206)."""
    cost = {
        "P1": [14, 13, 11, 13, 12, 13, 7, 5, 18, 21],
        "P2": [16, 19, 13, 8, 13, 16, 15, 11, 12, 7],
        "P3": [9, 18, 19, 17, 10, 9, 11, 14, 20, 16],
    }
    edges = [
        (1, 2, 18),
        (1, 3, 12),
        (1, 4, 9),
        (1, 5, 11),
        (1, 6, 14),
        (2, 8, 19),
        (2, 9, 16),
        (3, 7, 23),
        (4, 8, 27),
        (4, 9, 23),
        (5, 9, 13),
        (6, 8, 15),
        (7, 10, 17),
        (8, 10, 11),
        (9, 10, 13),
    ]
    names = [f"t{i}" for i in range(1, 11)]
    numbered_edges = [(a - 1, b - 1, size) for a, b, size in edges]
    graph = OpGraph.from_edges(cost["P1"], numbered_edges, names=names, duration_by_kind=cost)
    return graph, Cluster(tuple(Device(p, p, 1 << 30) for p in cost), Link(0.0, 1.0), comm="parallel")
