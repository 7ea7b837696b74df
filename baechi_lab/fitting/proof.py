"""Proofs that a step does not fit, as it is or with any option besides a smaller batch.

The bounds are those of `placers.memory.lower_bounds` and `placers.memory.packing`; they count outputs that may lie in the memory
of others as nothing. Every order of every placement is only tried in small graphs (`placers.memory.exhaustive`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Cluster, OpGraph
from ..graph.units import format_bytes
from ..memory.peak import bytes_while_running
from ..placers.memory.exhaustive import first_fitting
from ..placers.memory.packing import describe_op, needed_bytes, packing_proof, runs_in_words


@dataclass(frozen=True)
class Proof:
    """Lower bounds on the memory and the devices that a step needs.

    Args:
        least_bytes: no placement of the step as it is fits if every device has less memory than this.
        least_devices: no placement fits on fewer devices of the largest size; 0 if no number of devices is enough.
        as_it_is: a sentence why no placement of the step as it is fits; empty if that is not proven.
        whatever: a sentence why more devices, recomputation and offloading do not help; empty if that is not proven.
        coarse: whether the ops are groups whose original ops may fit.
    """

    least_bytes: int
    least_devices: int
    as_it_is: str = ""
    whatever: str = ""
    coarse: bool = False

    def __str__(self) -> str:
        """
        >>> str(Proof(7, 1))
        'No proof that no placement fits: proven is only that a device needs at least 7 B.'
        """
        if self.whatever:
            finer = ", or the graph that its groups were made of" if self.coarse else ""
            return f"Proven: {self.whatever}; only smaller batches help{finer}."
        if self.as_it_is:
            return f"Proven of the step as it is: {self.as_it_is}."
        least = format_bytes(self.least_bytes)
        finer = " Smaller groups, or the graph that its groups were made of, may fit." if self.coarse else ""
        return f"No proof that no placement fits: proven is only that a device needs at least {least}.{finer}"


def proof_of(graph: OpGraph, cluster: Cluster) -> Proof:
    """Returns the proof for a step for which no placement was found."""
    computes = ~cluster.is_host
    capacity_bytes, count = int(cluster.memory_bytes[computes].max(initial=0)), max(int(computes.sum()), 1)
    largest_op, together = needed_bytes(graph)
    enough = -(-together // capacity_bytes) if capacity_bytes else 0
    as_it_is = packing_proof(graph, cluster, with_reuse=True)
    if as_it_is is None and graph.reuse is None and graph.original is None:
        _, as_it_is = first_fitting(graph, cluster)  # empty where a placement fits
    ops = graph if graph.original is None else graph.original
    alone, whatever = bytes_while_running(ops, with_reuse=True), ""
    if ops.n and int(alone.max()) > capacity_bytes:
        op = int(alone.argmax())
        whatever = (
            f"{describe_op(ops, op)} reads, makes and uses {format_bytes(int(alone[op]))} while it {runs_in_words(ops, op)}, "
            f"and no device has more than {format_bytes(capacity_bytes)}"
        )
    return Proof(
        max(largest_op, -(-together // count)),
        int(max(enough, 1) if largest_op <= capacity_bytes else 0),
        as_it_is or "",
        whatever,
        graph.group_of is not None and not (whatever and graph.original is not None),
    )
