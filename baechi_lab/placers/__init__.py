"""Stage 3: a graph and a cluster become a placement. One algorithm per file, found by name in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import Cluster, OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.kernels.compiling import working_seconds
from ..lazy import lazy_names
from .base import Placer
from .direct import place_directly
from .memory_trades.selection import place_with_memory_trades
from .registry import list_placers, make_placer, placer_names

if TYPE_CHECKING:
    from .parametric import ListScheduler
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["ListScheduler", "Placer", "list_placers", "make_placer", "place", "placer_names"]


def place(graph: OpGraph, cluster: Cluster, placer: str | Placer = "m-sct", **params: object) -> Placement:
    """Place `graph` on `cluster` with a registered placer (parameters by keyword) or a placer object.

    On links with `overhead_us` placers count the processor time of a message as latency, and prove nothing. Where
    `graph.reuse` says that outputs lie in the memory of others, they still give every output bytes of its own: one that
    refuses is asked again with larger limits, and what it finds must keep within the real ones when it is simulated
    (`placers.memory.adjusted_limits`). A placement of one step that takes more than its placer counted, for views or late
    messages, is planned again with smaller limits, or refused. Where memory is short, nothing is proven of the time, and that
    nothing fits only from bytes that are not shared (`placers.memory.packing`).

    Args:
        graph: the ops to place; of `bl.profile`, or a coarse one of `bl.optimize`. Of a coarse one only the groups are placed:
            where they do not fit, pipelines, `bl.compare` and the commands go on to smaller groups, and to single ops.
        cluster: the devices to place them on.
        placer: a name of `bl.list_placers()`, or an object such as `bl.ListScheduler.point("heft")`.
        params: the placer's parameters. Those that go on improving take `time_limit` (seconds) and `seed`.

    Returns:
        A Placement with the placer's name, parameters and seconds. One of a coarse graph remembers its groups, so it
        can be simulated and run on the original graph too. With `give_up=` (`search`, `auto`) it is a placement of
        its `graph`, which may recompute or offload; simulate, check and run it with that graph.

    Raises:
        UnknownNameError: no such placer or parameter.
        InvalidInput: a parameter out of range.
        InfeasiblePlacement: the placer found nothing that fits memory and allowed devices.

    >>> from baechi_lab import Cluster, OpGraph
    >>> place(OpGraph.from_edges([1, 1]), Cluster.uniform(2), "m-etf").device.tolist()
    [0, 1]
    """
    check_records(graph=graph, cluster=cluster)
    rule = make_placer(placer, **params)
    if not getattr(rule, "give_up", ()):
        return place_directly(graph, cluster, rule)
    began = working_seconds()
    placement = place_with_memory_trades(graph, cluster, rule)
    return placement.replace(placer=rule.name, params=rule.get_params(), seconds=working_seconds() - began)
