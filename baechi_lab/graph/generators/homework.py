"""An instance for each student, whose optimum is known: a full schedule is drawn first, then a graph that it obeys.

Every device is filled with ops without a gap up to `STEP_US`. Edges are added only where the tensor is there before its
reader starts. So the work bound, all durations over the number of devices, is reached: every instance has a placement of
gap 0, however it was drawn, and the bound that proves it needs no solver. The idea of planting a solution is that of
Kwok and Ahmad, "Benchmarking and Comparison of the Task Graph Scheduling Algorithms" (1999, doi:10.1006/jpdc.1999.1578).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...checks import check_whole
from ..cluster import Cluster
from ..link import Link
from ..opgraph import OpGraph

DEVICES = 3
STEP_US = 60
"""Length of the planted schedule, which no placement can beat."""
SHORTEST_US, LONGEST_US, LARGEST_BYTES, MOST_INPUTS = 2, 7, 6, 3
"""Limits of the durations and sizes of ops, and of the inputs of one."""
MEMORY_SHARE = 1.1
"""Memory of a device over what the fullest device of the planted schedule needs."""


class Homework(NamedTuple):
    """A graph and the cluster to place it on."""

    graph: OpGraph
    cluster: Cluster


def homework(seed: int) -> Homework:
    """Returns the instance of one student: about 40 ops for three devices of too little memory for all of them.

    Every instance has a placement that takes 60 us, the work bound, and none takes less. One byte takes one microsecond to
    another device; transfers do not wait for each other.

    Args:
        seed: the student's number, at least 0. Equal numbers give equal instances.

    Raises:
        InvalidInput: the seed is no whole number, or negative.

    >>> graph, cluster = homework(17)
    >>> float(graph.duration_us.sum()) / cluster.n
    60.0
    """
    graph, cluster, _, _ = planted_instance(seed)
    return Homework(graph, cluster)


def planted_instance(seed: int) -> tuple[OpGraph, Cluster, np.ndarray, np.ndarray]:
    """Returns an instance, and its optimum: the device of every op, and the time at which it starts."""
    check_whole("seed", seed, low=0)
    rng = np.random.default_rng(seed)
    lengths = [_filling(rng) for _ in range(DEVICES)]
    device = np.repeat(np.arange(DEVICES), [len(each) for each in lengths])
    duration = np.concatenate(lengths)
    end = np.concatenate([np.cumsum(each) for each in lengths])
    start = end - duration
    weights = rng.integers(1000, 3001, len(duration))
    edges = [edge for op in range(len(duration)) for edge in _inputs(op, device, start, end, rng)]
    position = rng.permutation(len(duration))  # the numbers of ops say nothing about the schedule
    order = np.argsort(position)
    graph = OpGraph.from_edges(
        duration[order].astype(np.float64),
        sorted((int(position[i]), int(position[j]), size) for i, j, size in edges),
        persistent_bytes=weights[order],
        names=[f"op{k:02d}" for k in range(len(order))],
        name=f"homework-{seed}",
    )
    fullest = np.bincount(device, weights).max() + sum(size for _, _, size in edges)
    link = Link(0.0, 1.0)
    cluster = Cluster.uniform(DEVICES, memory_bytes=int(MEMORY_SHARE * fullest), link=link, comm="parallel")
    return graph, cluster, device[order], start[order]


def _filling(rng: np.random.Generator) -> np.ndarray:
    """Returns random durations that add up to `STEP_US`."""
    lengths: list[int] = []
    while (remaining_us := STEP_US - sum(lengths)) > LONGEST_US:
        lengths.append(int(rng.integers(SHORTEST_US, min(LONGEST_US, remaining_us - SHORTEST_US) + 1)))
    return np.array([*lengths, remaining_us])


def _inputs(
    op: int, device: np.ndarray, start: np.ndarray, end: np.ndarray, rng: np.random.Generator
) -> list[tuple[int, int, int]]:
    """Edges (producer, op, bytes) of some of the ops whose tensor can be there in time, the latest ones preferred."""
    slack = start[op] - end
    most_bytes = np.where(device == device[op], LARGEST_BYTES, np.minimum(slack, LARGEST_BYTES))
    candidates = np.flatnonzero((slack >= 0) & (most_bytes >= 1))
    latest = candidates[np.argsort(slack[candidates], kind="stable")][: 2 * MOST_INPUTS]
    count = min(len(latest), int(rng.integers(1, MOST_INPUTS + 1)))
    producers = rng.choice(latest, count, replace=False) if count else latest[:0]
    return [(int(i), op, int(rng.integers(1, most_bytes[i] + 1))) for i in producers]
