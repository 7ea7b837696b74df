"""Random small graphs, clusters and placements; integers, so that ties are common."""

from __future__ import annotations

import numpy as np

import baechi_lab as bl

MODES = ("parallel", "sequential", "duplex")


def random_graph(rng: np.random.Generator, most: int = 14, zero: bool = True, groups: bool = False) -> bl.OpGraph:
    """Up to `most` ops with small integer costs; some durations are 0 where `zero`."""
    n = int(rng.integers(0, most + 1))
    density = min(0.5, 3 / max(n, 1))
    edges = [(i, j, int(rng.integers(0, 20))) for i in range(n) for j in range(i + 1, n) if rng.random() < density]
    columns = {}
    if groups and n:
        columns = {"colocation": rng.integers(-1, 3, n), "colocation_names": ("a", "b", "c")}
    return bl.OpGraph.from_edges(
        rng.integers(0 if zero else 1, 10, n).astype(float),
        edges,
        temp_bytes=rng.integers(0, 6, n),
        persistent_bytes=rng.integers(0, 6, n),
        **columns,
    )


def random_cluster(rng: np.random.Generator, memory_bytes: int = 10**6, most: int = 4) -> bl.Cluster:
    """One to `most` equal devices with a small integer link, in any communication mode."""
    link = bl.Link(float(rng.integers(0, 4)), float(rng.integers(0, 3)) / 2)
    mode = MODES[int(rng.integers(0, 3))]
    return bl.Cluster.uniform(int(rng.integers(1, most + 1)), memory_bytes=memory_bytes, link=link, comm=mode)
