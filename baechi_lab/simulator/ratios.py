"""Approximation ratios that theory proves for a graph on a cluster, and the ratio of a placement.

Source: Jeon et al. 2020, sections 2.3 to 2.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph import Cluster, OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.costs import allowed_durations
from .bounds.bounds import bounds
from .simulation import simulate


@dataclass(frozen=True)
class Ratios:
    """`rho` = longest transfer / shortest op; proven ratios to the optimum (NaN where they do not exist).

    `sct_assumption`: rho <= 1. `sct_share`: share of edges whose transfer is no longer than either of its ops.
    `memory_factor` is K = n M / sum d_i. `premises` lists the requirements of the proofs that this case lacks: unless it
    is empty, the ratios are no guarantees. `achieved`: makespan over the best lower bound, an upper limit of
    the true ratio (NaN without a placement).
    """

    rho: float
    sct_assumption: bool
    sct_share: float
    etf: float
    sct: float
    m_sct: float
    memory_factor: float
    premises: tuple[str, ...]
    achieved: float


def ratios(graph: OpGraph, cluster: Cluster, placement: Placement | None = None) -> Ratios:
    """Returns the proven approximation ratios of ETF, SCT and m-SCT, and the gap that `placement` achieved.

    - ETF: `2 + rho - 1/n`.
    - SCT on n devices: `1 + (1 - 1/n) beta` with `beta = (2 + 2 rho) / (2 + rho)`.
    - m-SCT: `1 + (1 - 1/n) beta + (1 - beta/n) / (K - 1)`, for K > 1.

    See docs/papers.md for the symbols.

    Args:
        graph, cluster: the case for which the ratios are computed.
        placement: a placement whose simulated step is divided by the best lower bound, as `achieved_ratio`.

    Returns:
        The ratios, the values from which they were computed, and the premises of their proofs that this case lacks.

    Raises:
        InfeasiblePlacement: an op has no allowed device.

    >>> from baechi_lab import Cluster, Link, OpGraph
    >>> g = OpGraph.from_edges([2, 4], [(0, 1, 1)])
    >>> r = ratios(g, Cluster.uniform(4, link=Link(2.0, 0.0), comm="parallel"))
    >>> r.rho, r.etf, round(r.sct, 6)
    (1.0, 2.75, 2.0)
    """
    check_records(graph=graph, cluster=cluster)
    n = cluster.n
    is_pair = ~np.eye(cluster.n, dtype=bool)
    if cluster.n == 1:
        cost = np.zeros(graph.edge_count)
    else:
        size = graph.tensor_bytes[graph.edge_tensor]
        # the slowest pair for each size: latency and bandwidth may be worst on different links
        cost = (cluster.latency_us[is_pair][:, None] + cluster.us_per_byte[is_pair][:, None] * np.unique(size)).max(
            axis=0
        )[np.searchsorted(np.unique(size), size)]
    compute = allowed_durations(graph, cluster).min(axis=1, initial=np.inf)
    shortest, longest = float(compute.min(initial=np.inf)), float(cost.max(initial=0.0))
    rho = 0.0 if longest == 0 else longest / shortest if shortest > 0 else np.inf
    beta = 2.0 if np.isinf(rho) else (2 + 2 * rho) / (2 + rho)
    needed_bytes = int((graph.persistent_bytes + graph.temp_bytes).sum() + graph.tensor_bytes.sum())
    factor = float(cluster.memory_bytes.sum() / needed_bytes) if needed_bytes else np.inf
    sct = 1 + (1 - 1 / n) * beta
    fits = cost <= np.minimum(compute[graph.edge_source], compute[graph.consumers])
    has_equal_devices = len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) == 1
    checks = (
        (rho <= 1, "transfers no longer than the shortest op (SCT assumption)"),
        (cluster.comm == "parallel", "parallel transfers"),
        (has_equal_devices, "equal devices"),
        (not graph.colocation_names, "no colocation groups"),
        (not graph.allowed_sets, "every op allowed on every device"),
        (not graph.on_communication_lane.any(), "no collectives"),
    )
    if placement is None:
        achieved_ratio = float("nan")
    else:
        best = bounds(graph, cluster).best
        makespan = simulate(graph, cluster, placement).makespan_us
        achieved_ratio = makespan / best if best > 0 else 1.0
    return Ratios(
        rho=rho,
        sct_assumption=rho <= 1,
        sct_share=float(fits.mean()) if len(fits) else 1.0,
        etf=2 + rho - 1 / n,
        sct=sct,
        m_sct=sct + (1 - beta / n) / (factor - 1) if factor > 1 else np.nan,
        memory_factor=factor,
        premises=tuple(premise for holds, premise in checks if not holds),
        achieved=achieved_ratio,
    )
