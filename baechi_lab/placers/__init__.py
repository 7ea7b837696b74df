"""Stage 3: placing a graph on a cluster. Each file holds one algorithm; the registry finds it by name."""

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
from .second_compiler import compile_ahead

if TYPE_CHECKING:
    from .parametric import ListScheduler
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["ListScheduler", "Placer", "list_placers", "make_placer", "place", "placer_names"]


def place(graph: OpGraph, cluster: Cluster, placer: str | Placer = "m-sct", **params: object) -> Placement:
    """Places `graph` on `cluster` with a registered placer (parameters by keyword) or a placer object.

    Placers simplify two rules of the simulator. They count `overhead_us` of a link as latency, and then prove nothing. They
    count bytes for every output, although `graph.reuse` may say that an output lies in the memory of another. Two corrections
    follow (`placers.memory.adjusted_limits`). A placer that finds nothing runs again with larger memory limits, and its
    placement must fit the real limits when it is simulated. A placement whose simulated step takes more memory than its placer
    counted is planned again with smaller limits, or `InfeasiblePlacement` is raised. In both cases the placement proves nothing
    about the step time. That nothing fits is proven only from bytes that are not shared (`placers.memory.packing`).

    Args:
        graph: the ops to place: a graph of `bl.profile`, or a coarse graph of `bl.optimize`. Here the groups of a coarse
            graph stay whole. Pipelines, `bl.compare` and the commands go on to smaller groups where these do not fit.
        cluster: the devices to place them on.
        placer: a name of `bl.list_placers()`, or an object such as `bl.ListScheduler.point("heft")`.
        params: the placer's parameters. Placers that go on improving take `time_limit` (seconds) and `seed`.

    Returns:
        A Placement with the placer's name, parameters and seconds. A placement of a coarse graph keeps its groups, so it
        can be simulated and run on the original graph too. With `give_up=` (`search`, `auto`) the placement belongs to
        its own `graph`, which may recompute or offload; simulate, check and run it with that graph.

    Raises:
        UnknownNameError: no placer or parameter has this name.
        InvalidInput: a parameter is out of range.
        InfeasiblePlacement: the placer found no placement that fits the memory and the allowed devices.

    >>> from baechi_lab import Cluster, OpGraph
    >>> place(OpGraph.from_edges([1, 1]), Cluster.uniform(2), "m-etf").device.tolist()
    [0, 1]
    """
    check_records(graph=graph, cluster=cluster)
    rule = make_placer(placer, **params)
    compile_ahead(rule.name, graph.n)
    if not getattr(rule, "give_up", ()):
        return place_directly(graph, cluster, rule)
    start_seconds = working_seconds()
    placement = place_with_memory_trades(graph, cluster, rule)
    return placement.replace(placer=rule.name, params=rule.get_params(), seconds=working_seconds() - start_seconds)
