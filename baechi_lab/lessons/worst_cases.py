"""Exercises of `08_attack.ipynb`: worst cases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ..graph import Cluster, Device, Link, OpGraph
from ..placers import place
from ..simulator import simulate
from .exercise import Check, number

DEVICES, MOST_OPS = 3, 8


@dataclass(frozen=True)
class Instance:
    """An instance: durations of ops, bytes by `(producer, consumer)` with producer < consumer, device speeds, us per byte."""

    durations: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    speeds: tuple[float, ...]
    us_per_byte: float

    def records(self) -> tuple[OpGraph, Cluster]:
        """Returns the graph and the cluster, with parallel transfers and ample memory."""
        devices = tuple(Device(f"device {i}", "device", 1 << 30, s) for i, s in enumerate(self.speeds))
        return OpGraph.from_edges(self.durations, self.edges), Cluster(
            devices, Link(0.0, self.us_per_byte), comm="parallel"
        )


def time_of(placer: str, graph: OpGraph, cluster: Cluster) -> float:
    """Returns the simulated step in microseconds; `critical-path` is scheduled with `pct`."""
    scheduler = "pct" if placer == "critical-path" else None
    return simulate(graph, cluster, place(graph, cluster, placer), scheduler).makespan_us


def ratio(instance: Instance, placer: str, reference: str) -> float:
    """Returns the step of placer `placer` as a multiple of that of `other`."""
    graph, cluster = instance.records()
    return time_of(placer, graph, cluster) / time_of(reference, graph, cluster)


def attacks(attacked: str, baseline: str, times: float, most_ops: int) -> Check:
    """Makes the check of an `Instance` on which placer `attacked` takes `times` as long as `baseline`."""

    def check(answer: object) -> str:
        if not isinstance(answer, Instance):
            return f"give an Instance, not {type(answer).__name__}"
        if not 1 <= len(answer.durations) <= most_ops:
            return f"it has {len(answer.durations)} ops; 1 to {most_ops} are allowed"
        if min(answer.durations) <= 0 or min(answer.speeds) <= 0:
            return "durations and speeds must be greater than 0"
        times_as_long = ratio(answer, attacked, baseline)
        if times_as_long >= times - 1e-9:
            return ""
        return f"{attacked} takes {times_as_long:.2f} times as long as {baseline}, {times:g} are asked for"

    return check


def graham(answer: object) -> str:
    """Checks durations of independent ops, in the order of the list, that make list scheduling as bad as possible."""
    if not isinstance(answer, (list, tuple)) or not 1 <= len(answer) <= MOST_OPS:
        return f"give a list of 1 to {MOST_OPS} durations"
    if not all(isinstance(x, (int, float)) and x > 0 for x in answer):
        return "durations must be numbers greater than 0"
    cluster = Cluster.uniform(DEVICES, link=Link(0.0, 0.0), comm="parallel")
    graph = OpGraph.from_edges([float(x) for x in answer])
    makespan_us = simulate(graph, cluster, place(graph, cluster, "etf")).makespan_us
    durations = np.array(answer, dtype=np.float64)
    every = np.array(list(product(range(DEVICES), repeat=len(durations))))
    times_optimum = makespan_us / float(np.stack([(every == d) @ durations for d in range(DEVICES)]).max(axis=0).min())
    limit = 2 - 1 / DEVICES
    if times_optimum >= limit - 1e-9:
        return ""
    return f"the list takes {times_optimum:.2f} times the optimum; {limit:.2f} are possible"


CHECKS = {
    # Earliest start: one on each device, 20 / 1. Both on the fast one: 2 * 20 / 4 = 10.
    1: number(
        2.0,
        "times",
        {
            4.0: "that is one op; with two, what would the best placement do?",
            1.0: "ETF lets no device idle, not even the slow one",
            20.0: "those are the microseconds of ETF's step",
        },
    ),
    2: attacks("m-etf", "heft", 4.0, 1),
    3: attacks("heft", "m-etf", 1.2, 6),
    4: graham,
}
