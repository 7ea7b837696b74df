"""Small clusters of unequal devices and links, and graphs with restrictions."""

import numpy as np
from random_cases import MODES, random_graph

import baechi_lab as bl


def mixed_cluster(rng: np.random.Generator, memory=(0, 1 << 20), comm=None) -> bl.Cluster:
    """Two to four devices with powers of two as speeds, and a link of its own for every pair."""
    n = int(rng.integers(2, 5))
    devices = tuple(
        bl.Device(f"d{i}", "big" if i % 2 else "small", int(rng.integers(*memory)), float(2.0 ** rng.integers(-1, 3)))
        for i in range(n)
    )
    link = [[bl.Link(float(rng.integers(0, 3)), float(rng.integers(1, 4)) / 2) for _ in range(n)] for _ in range(n)]
    return bl.Cluster(devices, link, comm or MODES[int(rng.integers(0, 3))])


def restricted_graph(rng: np.random.Generator, most: int = 14, zero: bool = True) -> bl.OpGraph:
    """A random graph with colocation groups in which some ops are tied to a kind of device."""
    graph = random_graph(rng, most, zero=zero, groups=bool(rng.integers(0, 2)))
    kind = np.where(rng.random(graph.n) < 0.2, 0, -1)
    kind[graph.colocation >= 0] = -1
    return graph.replace(allowed=kind, allowed_sets=(("big",),))
