"""How the stages of a pipeline may lead through the devices: once, in rounds, or there and back, as its schedule asks.

Interleaved 1F1B takes micro-batches through the devices several times (Narayanan et al., SC 2021,
doi:10.1145/3458817.3476209, section 2.2.2), ZB-V leads there and back (Qi et al. 2024, arXiv:2405.15362, section 3). To
the dynamic programmes a device with several stages is several devices in the chain, each of which must have one.
Chains of fewer devices are tried as well: what crosses between stages may cost more than the others save. That the stages
of a device share its memory only the measurement knows (`plan.best_cut`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...graph import Cluster
from ...simulator.pipelined_graph import schedule_shape
from .chain import Chain, make_chain
from .objective import Objective
from .units import Units

ROUNDS = (2, 4)
"""Stages of a device in a pipeline that goes in rounds; with one the schedule is 1F1B."""


class Way(NamedTuple):
    """`devices` in the order of the stages; may equal ones share a stage (`shared`)? must all have one (`whole`)?"""

    devices: tuple[int, ...]
    shared: bool
    whole: bool


def ways(objective: Objective, order: tuple[int, ...]) -> Iterator[Way]:
    """Every way through devices that follow each other in `order`.

    >>> [way.devices for way in ways(Objective("step", schedule="zb-v"), (0, 1, 2))]
    [(0, 1, 2, 2, 1, 0), (0, 0)]
    >>> [way.devices for way in ways(Objective("step", schedule="interleaved-1f1b"), (0, 1))]
    [(0, 1), (0, 1, 0, 1), (0, 1, 0, 1, 0, 1, 0, 1)]
    """
    shape = schedule_shape(objective.schedule) if objective.name == "step" else "chain"
    if shape != "v":
        yield from (Way(order, shared, False) for shared in objective.widths)
    few = len(order) if shape != "chain" else 0
    while few:
        some = order[:few]
        if shape == "v":
            yield Way(some + some[::-1], False, True)
        elif few > 1:
            yield from (Way(some * rounds, False, True) for rounds in ROUNDS)
        few //= 2


def chain_of(way: Way, units: Units, cluster: Cluster, objective: Objective) -> Chain:
    """The chain that the dynamic programmes cut over."""
    return make_chain(
        units,
        cluster,
        way.devices,
        sum=objective.sum,
        replicas=way.shared,
        once=objective.name == "step",
        whole=way.whole,
    )
