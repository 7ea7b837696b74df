"""Places one graph with one placer: `bl.place` without memory trades."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasiblePlacement, MissingPackage
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.compiling import working_seconds
from ..graph.placement import with_keys_of
from ..simulator import makespan_and_peak, simulate, simulate_step
from ..simulator.pipelined_graph import without_name_waits
from .base import Placer
from .memory.adjusted_limits import (
    TRIES,
    fastest_of_all_placements,
    place_with_larger_limits,
    place_with_smaller_limits,
)
from .memory.feasible import without_repairs
from .memory.packing import UNPROVEN, infeasible_placement, packing_proof
from .problem import memory_may_run_out
from .registry import make_placer

PROOF_KEYS = ("status", "gap", "bound_us", "no_better_assignment")
"""What placers prove, in `Placement.info`."""
EXHAUSTIVE_PLACERS = ("auto", "search", "exact")
"""Placers that try all placements of a small graph where they count other bytes than the simulation."""
REPAIRED_PLACERS = (
    *("m-topo", "m-etf", "m-sct", "post-adjusted", "critical-path", "mite", "dfs", "hash", "batch-split", "random"),
    *("contiguous", "metis", "scotch"),
)
"""Placers that end in a repair, which tries all placements of a small graph; they do the same where outputs share memory."""


def place_directly(graph: OpGraph, cluster: Cluster, placer: str | Placer, **params: object) -> Placement:
    """Places `graph` by one placer, and checks its placement against the simulated memory.

    Placers count the processor time of messages (`Link.overhead_us`) as latency. They give every output bytes of its own,
    although `graph.reuse` says that some lie in the memory of others. Where either makes a difference, a placer that finds
    no placement is asked again with other limits, and a placement must fit when it is simulated. They also count what groups
    hold that run as one op each. If the original graph of the groups is known, its ops must fit, too.

    Raises the same errors as `bl.place`.
    """
    placer = make_placer(placer, **params)
    start_seconds = working_seconds()
    original = graph
    if getattr(placer, "objective", "latency") not in ("latency", "makespan"):
        graph = without_name_waits(graph)  # in a pipeline no name lives longer than its stage
    cluster_for_placers = cluster.without_overhead()
    has_overhead = cluster.overhead_us.any()
    try:
        placement = placer.assign(graph, cluster_for_placers)
    except InfeasiblePlacement as refusal:
        if graph.reuse is not None:
            placement = _retry_with_buffer_reuse(graph, cluster_for_placers, placer, refusal)
        elif has_overhead:
            placement = _retry_if_messages_delay_ops(graph, cluster, placer, refusal)
        else:
            raise
    ops = original if original.original is None else original.original
    micro_batches = placer.micro_batches if getattr(placer, "objective", "") == "step" else 1  # type: ignore[attr-defined]
    memory_matters = memory_may_run_out(ops, cluster_for_placers, micro_batches)
    is_approximate = graph.reuse is not None or has_overhead or original.original is not None
    if is_approximate and placer.uses_memory and memory_matters:
        fitting_placement = _fit_in_simulation(graph, original, cluster, placer, placement)
        if fitting_placement is not placement:
            placement = fitting_placement.replace(info=_drop_proofs(fitting_placement.info))
    if has_overhead:
        placement = placement.replace(info={**_drop_proofs(placement.info), "overhead": "seen as latency"})
    if graph.reuse is not None and memory_matters:
        placement = placement.replace(info=_drop_proofs(placement.info))
    if original.group_of is not None:
        placement = placement.replace(info=proof_of_groups(placement.info))
    return with_keys_of(original, placement).replace(
        placer=placer.name, params=placer.get_params(), seconds=working_seconds() - start_seconds
    )


def proof_of_groups(info: Mapping[str, object]) -> Mapping[str, object]:
    """Returns `info` whose status says that it is proven of groups that run as one op each. Their ops may take less time.

    >>> proof_of_groups({"status": "OPTIMAL", "gap": 0.0}), proof_of_groups({})
    ({'status': 'OPTIMAL of groups', 'gap': 0.0}, {})
    """
    return {**info, "status": f"{info['status']} of groups"} if "status" in info else info


def _drop_proofs(info: Mapping[str, object]) -> dict[str, object]:
    """Returns `info` without proofs, for placers that assumed other costs, or other memory, than the simulation."""
    return {key: value for key, value in info.items() if key not in PROOF_KEYS}


def _retry_if_messages_delay_ops(
    graph: OpGraph, cluster: Cluster, placer: Placer, refusal: InfeasiblePlacement
) -> Placement:
    """Returns a placement that fits because ops wait for messages, else raises the refusal.

    The refusal is a proof only where it holds whenever ops run.
    """
    if packing_proof(graph, cluster) is not None or not refusal.is_proof:
        raise refusal
    if placer.name in EXHAUSTIVE_PLACERS and (placement := fastest_of_all_placements(graph, cluster)) is not None:
        return placement
    raise _without_proof(refusal, "the processor time of messages was seen as latency") from refusal


def _fit_in_simulation(
    graph: OpGraph, given_graph: OpGraph, cluster: Cluster, placer: Placer, placement: Placement
) -> Placement:
    """Returns a placement that fits when it is simulated, else raises a refusal without a proof.

    Args:
        graph: what `placer` places.
        given_graph: what the caller placed. The ops of its groups are simulated if its original graph is known.
    """
    objective, ops = getattr(placer, "objective", "latency"), given_graph.original

    def peak(of: OpGraph, on: Cluster, candidate: Placement) -> NDArray[np.int64]:
        if objective == "step":
            pipeline = {"micro_batches": placer.micro_batches, "schedule": placer.schedule}  # type: ignore[attr-defined]
            return simulate(of, on, candidate, **pipeline).peak_bytes
        # In one micro-batch each replica holds what the first of its group holds.
        return simulate_step(of, on, candidate.replace(replicas=())).peak_bytes

    def peak_as_simulated(on: Cluster, candidate: Placement) -> NDArray[np.int64]:
        return peak(graph, on, candidate) if ops is None else peak(ops, on, with_keys_of(given_graph, candidate))

    def peak_as_counted(on: Cluster, candidate: Placement) -> NDArray[np.int64]:
        if objective == "step":
            return peak(graph, on, candidate)
        return makespan_and_peak(graph, on, candidate.replace(replicas=()))[1]

    attempts = TRIES // 2 if placer.anytime else TRIES
    fitting = place_with_smaller_limits(
        cluster, lambda limits: placer.assign(graph, limits), placement, peak_as_simulated, peak_as_counted, attempts
    )
    if fitting is None and ops is None and placer.name in EXHAUSTIVE_PLACERS and objective in ("latency", "makespan"):
        fitting = fastest_of_all_placements(graph, cluster)
    if fitting is None:
        cause = "views and messages" if ops is None else "ops in turns"
        why = f"{UNPROVEN}: {cause} take more than placers count"
        raise infeasible_placement(why, graph, cluster, is_proof=False)
    return fitting


def _retry_with_buffer_reuse(
    graph: OpGraph, cluster: Cluster, placer: Placer, refusal: InfeasiblePlacement
) -> Placement:
    """Returns a placement that fits because outputs lie in the memory of others, else raises the refusal.

    The refusal is a proof only where the proof does not count these outputs.
    """
    if (reason := packing_proof(graph, cluster, with_reuse=True)) is not None:
        raise infeasible_placement(reason, graph, cluster) from refusal
    placement = None
    if getattr(placer, "objective", "latency") in ("latency", "makespan") and graph.reuse.any():  # type: ignore[union-attr]
        placement = fastest_of_all_placements(graph, cluster) if placer.name in EXHAUSTIVE_PLACERS else None
        is_repaired = placer.name in REPAIRED_PLACERS
        placement = placement or place_with_larger_limits(graph, cluster, placer.assign, takes_long=not is_repaired)
        if placement is None and is_repaired:
            placement = fastest_of_all_placements(graph, cluster)
        if placement is None and (is_repaired or placer.name in EXHAUSTIVE_PLACERS):
            # Cuts with few bytes between devices hold few copies of what others send.
            with suppress(MissingPackage), without_repairs():
                placement = place_with_larger_limits(graph, cluster, make_placer("metis").assign)
        if placement is None and placer.name in EXHAUSTIVE_PLACERS:
            placement = place_with_larger_limits(graph, cluster, make_placer("m-etf").assign)
    if placement is not None:
        return placement
    why = "every output was given bytes of its own, although some lie in the memory of others"
    raise _without_proof(refusal, why) from refusal


def _without_proof(refusal: InfeasiblePlacement, why: str) -> InfeasiblePlacement:
    """Returns the refusal of a placer that counted bytes or times other than the simulation's."""
    message = f"{refusal}; no proof: {why}"
    return InfeasiblePlacement(message, refusal.needed_bytes, refusal.available_bytes, is_proof=False)
