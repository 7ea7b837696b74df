"""Post-adjusted colocation: place every op by itself, then move each group to one device.

Jeon et al. 2020, section 3.1, tried three rules and rejected them (step times up to 406% worse than the expert's): prefer the
device of the op that computes longest, of the op that holds most memory, or of the majority of the group. They are here so
that "co-adjusting is better" can be seen. Ties go to the lower op, then the lower device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UnknownNameError
from ..graph import Cluster, OpGraph, Placement, allowed_devices
from ..graph.kernels.csr import Integers
from .base import Placer
from .memory.feasible import within_memory
from .problem import groups_of
from .registry import make_placer

RULES = ("compute", "memory", "majority")


@dataclass(frozen=True)
class PostAdjusted(Placer):
    """Place ops one by one, then move each colocation group to one device (Jeon et al. 2020 tried and rejected it).

    Args:
        rule: whose device a group gets: that of the op that computes longest ("compute"), that holds most ("memory"), or
            of the "majority".
        placer: name of the placer that places the ops one by one.
    """

    name = "post-adjusted"
    rule: str = "compute"
    placer: str = "m-etf"

    def validate(self) -> None:
        if self.rule not in RULES:
            raise UnknownNameError.of("post-adjustment rule", self.rule, RULES)
        make_placer(self.placer)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        mask = allowed_devices(graph, cluster)
        ungrouped_graph = graph.replace(colocation=np.full(graph.n, -1), colocation_names=())

        def attempt(limits: Cluster, careful: bool) -> Placement:
            plan = make_placer(self.placer).assign(ungrouped_graph, limits)
            return plan.replace(device=adjust_to_groups(graph, plan.device, mask, self.rule), info={})

        return within_memory(graph, cluster, attempt)


def adjust_to_groups(graph: OpGraph, device: Integers, allowed: NDArray[np.bool_], rule: str) -> NDArray[np.int32]:
    """Returns int32[n]: the devices after every colocation group moved to the allowed device that `rule` prefers."""
    adjusted_device = np.array(device, dtype=np.int32)
    group = groups_of(graph)
    weight = {
        "compute": graph.duration_us,
        "memory": graph.persistent_bytes + graph.temp_bytes + graph.output_bytes,
        "majority": np.ones(graph.n),
    }[rule]
    combine = np.add if rule == "majority" else np.maximum
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]):
        if len(members) < 2:
            continue
        allowed_for_group = allowed[members].all(axis=0)
        score = np.zeros(allowed.shape[1])
        combine.at(score, adjusted_device[members], weight[members])
        score[~allowed_for_group] = -1.0
        adjusted_device[members] = int(np.argmax(score))
    return adjusted_device
