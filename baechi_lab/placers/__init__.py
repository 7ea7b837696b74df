"""Stage 3: a graph and a cluster become a placement. One algorithm per file, found by name in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InfeasiblePlacement
from ..graph import Cluster, OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.kernels.compiling import working_seconds
from ..lazy import lazy_names
from ..simulator import makespan_and_peak, simulate
from .base import Placer
from .memory.packing import infeasible, packing_proof
from .memory.sharing import TRIES, kept_within, tried_out, with_shared_memory
from .problem import memory_may_run_out
from .registry import list_placers, make_placer, placer_names

if TYPE_CHECKING:
    from .parametric import ListScheduler
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["ListScheduler", "Placer", "list_placers", "make_placer", "place", "placer_names"]

THOROUGH = ("auto", "search", "exact")
"""Placers that try out small problems where they count memory as it is not."""


def place(graph: OpGraph, cluster: Cluster, placer: str | Placer = "m-sct", **params: Any) -> Placement:
    """Place `graph` on `cluster` with a registered placer (parameters by keyword) or a placer object.

    On links with `overhead_us` placers count the processor time of a message as latency, and prove nothing. Where
    `graph.reuse` says that outputs lie in the memory of others, they still give every output bytes of its own: one that
    refuses is asked again with larger limits, and what it finds must keep within the real ones when it is simulated
    (`placers.memory.sharing`). A placement of one step that takes more than its placer counted, for views or late messages,
    is planned again with smaller limits, or refused. Where memory is short, nothing is proven of the time, and that nothing
    fits only from bytes that are not shared (`placers.memory.packing`).

    Args:
        graph: the ops to place; of `bl.profile`, or a coarse one of `bl.optimize`. Of a coarse one only the groups are placed:
            where they do not fit, pipelines, `bl.compare` and the commands go on to smaller groups, and to single ops.
        cluster: the devices to place them on.
        placer: a name of `bl.list_placers()`, or an object such as `bl.ListScheduler.point("heft")`.
        params: the placer's parameters. Those that go on improving take `time_limit` (seconds) and `seed`.

    Returns:
        A Placement with the placer's name, parameters and seconds. One of a coarse graph remembers its groups, so it
        can be simulated and run on the original graph too. With `give_up=` (`search`, `auto`) it is a placement of
        `info["graph"]`, which may recompute or offload; simulate, check and run it with that graph.

    Raises:
        UnknownNameError: no such placer or parameter.
        InvalidInput: a parameter out of range.
        InfeasiblePlacement: the placer found nothing that fits memory and allowed devices.

    >>> from baechi_lab import Cluster, OpGraph
    >>> place(OpGraph.from_edges([1, 1]), Cluster.uniform(2), "m-etf").device.tolist()
    [0, 1]
    """
    check_records(graph=graph, cluster=cluster)
    made = make_placer(placer, **params)
    if getattr(made, "give_up", ()):
        from .giving_up.choosing import place_giving_up

        began = working_seconds()
        found = place_giving_up(graph, cluster, made)
        return found.replace(placer=made.name, params=made.get_params(), seconds=working_seconds() - began)
    began = working_seconds()
    # What a message takes of the devices depends on the placement: placers see it as latency.
    seen = cluster.without_overhead()
    try:
        found = made.assign(graph, seen)
    except InfeasiblePlacement as refused:
        if graph.reuse is not None:
            found = _shared(graph, seen, made, refused)
        elif cluster.overhead_us.any():
            found = _later(graph, cluster, made, refused)
        else:
            raise
    if (graph.reuse is not None or cluster.overhead_us.any()) and made.uses_memory and memory_may_run_out(graph, seen):
        found = _kept(graph, cluster, made, found)
    if cluster.overhead_us.any():
        found = found.replace(info={**_unproven(found.info), "overhead": "seen as latency"})
    if graph.reuse is not None and memory_may_run_out(graph, seen):
        found = found.replace(info=_unproven(found.info))
    return found.replace(
        placer=made.name,
        params=made.get_params(),
        seconds=working_seconds() - began,
        graph_key=graph.key,
        group_of=graph.group_of,
        source_key=graph.source_key,
    )


def _unproven(info: Any) -> dict[str, Any]:
    """Without what was proven of costs that the cluster, or of memory that the graph, does not have."""
    return {key: value for key, value in info.items() if key not in ("status", "gap", "bound_us")}


def _later(graph: OpGraph, cluster: Cluster, made: Placer, refused: InfeasiblePlacement) -> Placement:
    """What fits because ops wait for messages, or the refusal: a proof only where it holds whenever ops run."""
    if packing_proof(graph, cluster) is not None or "no proof" in str(refused):
        raise refused
    if made.name in THOROUGH and (found := tried_out(graph, cluster)) is not None:
        return found
    said = f"{refused}; no proof: the processor time of messages was seen as latency"
    raise InfeasiblePlacement(said, refused.needed_bytes, refused.available_bytes) from refused


def _kept(graph: OpGraph, cluster: Cluster, made: Placer, found: Placement) -> Placement:
    """A placement that fits as it is simulated, or a refusal without a proof."""
    goal = getattr(made, "objective", "latency")

    def held(on: Cluster, placed: Placement) -> Any:
        if goal == "step":
            pipeline = {"micro_batches": made.micro_batches, "schedule": made.schedule}  # type: ignore[attr-defined]
            return simulate(graph, on, placed, **pipeline).peak_bytes
        # In one micro-batch each replica holds what the first of its group holds.
        return simulate(graph, on, placed.replace(replicas=())).peak_bytes

    def counted(on: Cluster, placed: Placement) -> Any:
        return held(on, placed) if goal == "step" else makespan_and_peak(graph, on, placed.replace(replicas=()))[1]

    tries = TRIES // 2 if made.anytime else TRIES
    kept = kept_within(cluster, lambda limits: made.assign(graph, limits), found, held, counted, tries)
    if kept is None and made.name in THOROUGH and goal in ("latency", "makespan"):
        kept = tried_out(graph, cluster)
    if kept is None:
        why = "no placement that fits was found, which is no proof that none exists"
        raise infeasible(f"{why}: views and messages take more than placers count", graph, cluster)
    return kept


def _shared(graph: OpGraph, cluster: Cluster, made: Placer, refused: InfeasiblePlacement) -> Placement:
    """A placement that fits because outputs lie in others, or the refusal: a proof only where none counts these outputs."""
    if (why := packing_proof(graph, cluster, shared=True)) is not None:
        raise infeasible(why, graph, cluster) from refused
    found = None
    if getattr(made, "objective", "latency") in ("latency", "makespan") and graph.reuse.any():  # type: ignore[union-attr]
        found = tried_out(graph, cluster) if made.name in THOROUGH else None
        found = found or with_shared_memory(graph, cluster, made.assign)
    if found is not None:
        return found
    said = f"{refused}; no proof: every output was given bytes of its own, although some lie in the memory of others"
    raise InfeasiblePlacement(said, refused.needed_bytes, refused.available_bytes) from refused
