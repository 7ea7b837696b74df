"""`optimize`: applies passes one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..checks import is_list
from ..errors import InvalidInput, in_short
from ..graph import Cluster, OpGraph
from ..graph.arguments import check_records
from ..memory.peak import single_device_peak
from .base import Pass
from .forward_only import ForwardOnly
from .registry import make_pass

PASSES = ("colocation", "coplacement", "fusion")


def optimize(
    graph: OpGraph,
    cluster: Cluster | None = None,
    passes: Sequence[str | Pass] = PASSES,
    forward_only: bool | str = "auto",
) -> OpGraph:
    """Makes a smaller graph to place, by applying `passes` in order.

    Args:
        graph: a graph of `bl.profile`, or any other.
        cluster: the devices whose memory decides, for `forward_only="auto"`.
        passes: names of `bl.list_passes()` or pass objects, in the order in which they are applied.
        forward_only: whether to place only the forward ops (`baechi_lab.passes.forward_only`). "auto" does so if every
            device of `cluster` can hold the whole model, by its exact peak on one device (Jeon et al. 2020, section 3.3).
            Backward ops are folded into their forward ops before the first "fusion" among `passes`, after passes on the whole
            graph.

    Returns:
        A DAG whose `group_of` maps the ops of `graph` (of its original, if `graph` is coarse) to its own ops, so a placement
        of it is a placement of the original. `original` is that graph.

    Raises:
        UnknownNameError: no pass has this name.
        InvalidInput: an argument has a wrong type or value.
        ColocationError: constraints of ops conflict.

    >>> from baechi_lab.graph.generators import unrolled_rnn
    >>> graph = unrolled_rnn(10, 2)
    >>> optimize(graph).n < graph.n
    True
    """
    check_records(graph=graph)
    if cluster is not None:
        check_records(cluster=cluster)
    if isinstance(passes, (str, Pass)):
        raise InvalidInput(f"passes is {passes!r}; it must be a list of passes, for example [{passes!r}]")
    if not is_list(passes):
        raise InvalidInput(f"passes is {in_short(passes)}; it must be a list of passes")
    if not isinstance(forward_only, (bool, str)) or forward_only not in (True, False, "auto"):
        raise InvalidInput(f'forward_only is {in_short(forward_only)}; it must be True, False or "auto"')
    steps = [make_pass(p) for p in passes]
    if fits_everywhere(graph, cluster) if forward_only == "auto" else forward_only:
        fusions = [k for k, p in enumerate(steps) if p.name == "fusion"]
        steps.insert(fusions[0] if fusions else len(steps), ForwardOnly())
    coarse = graph
    for step in steps:
        coarse = step.apply(coarse)
    if coarse is not graph:
        object.__setattr__(coarse, "original", graph if graph.group_of is None else graph.original)
    return coarse


def fits_everywhere(graph: OpGraph, cluster: Cluster | None) -> bool:
    """Whether every device of the cluster can hold the whole model; False without a cluster."""
    return cluster is not None and bool(np.all(cluster.memory_bytes >= single_device_peak(graph)))
