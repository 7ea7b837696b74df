"""Jeon et al.'s Figure 8: place with a wrong profile, run with the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from baechi_lab.errors import InvalidInput
from baechi_lab.graph import Cluster, Link, OpGraph
from baechi_lab.passes import optimize
from baechi_lab.placers import place
from baechi_lab.simulator import makespan_and_peak

if TYPE_CHECKING:
    import pandas

ERRORS = (0.05, 0.1, 0.2, 0.4, 0.8)


def perturbed(graph: OpGraph, link: Link, error: float, seed: int) -> tuple[OpGraph, Link]:
    """Every duration and tensor size and the link times a factor of its own, uniform from `1 - error` to `1 + error`.

    Raises:
        InvalidInput: `error` is not in [0, 1).

    >>> from baechi_lab.graph.generators import chain
    >>> perturbed(chain(3), Link(1.0, 2.0), 0.0, 0)[1]
    Link(latency_us=1.0, us_per_byte=2.0)
    """
    if not 0 <= error < 1:
        raise InvalidInput(f"error is {error}; it must be at least 0 and below 1")
    rng = np.random.default_rng(seed)
    factor = rng.uniform(1 - error, 1 + error, graph.n)
    size = np.round(graph.tensor_bytes * rng.uniform(1 - error, 1 + error, graph.tensor_count)).astype(np.int64)
    by_kind = {kind: us * factor for kind, us in graph.duration_by_kind.items()}
    wrong = graph.replace(duration_us=graph.duration_us * factor, duration_by_kind=by_kind, tensor_bytes=size)
    return wrong, Link(link.latency_us * rng.uniform(1 - error, 1 + error), link.us_per_byte)


def sensitivity(
    graph: OpGraph,
    cluster: Cluster,
    link: Link,
    placers: Sequence[str],
    *,
    errors: Sequence[float] = ERRORS,
    samples: int = 3,
    seed: int = 0,
) -> pandas.DataFrame:
    """Step time relative to a placement made with the right profile: one row per error, one column per placer.

    The median over `samples` wrong profiles. `cluster` must be uniform with `link` between all devices. Passes run
    once, on the right profile: their rules do not look at costs.
    """
    import pandas as pd

    coarse = optimize(graph, cluster)
    right = {p: makespan_and_peak(graph, cluster, place(coarse, cluster, p))[0] for p in placers}
    rows = []
    for error in errors:
        steps: dict[str, list[float]] = {p: [] for p in placers}
        for sample in range(samples):
            wrong, slower = perturbed(coarse, link, error, seed + sample)
            wrong_cluster = Cluster.uniform(
                cluster.n, memory_bytes=int(cluster.memory_bytes[0]), link=slower, comm=cluster.comm
            )
            for p in placers:
                steps[p].append(makespan_and_peak(graph, cluster, place(wrong, wrong_cluster, p))[0] / right[p])
        rows.append({p: float(np.median(steps[p])) for p in placers})
    return pd.DataFrame(rows, index=pd.Index(errors, name="profile error"))
