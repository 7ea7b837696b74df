"""`throughput`: the period of a pipeline that always has another micro-batch to process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ..checks import check_flag, check_whole, finite
from ..errors import InvalidInput, in_short
from ..graph import Cluster, OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.costs import placed_durations
from ..graph.kernels.csr import Integers, distinct, grouped_sum


@dataclass(frozen=True, eq=False, repr=False)
class Throughput:
    """The steady state of endless micro-batches: the load of each resource per micro-batch.

    `period_us` is the largest load, the time from one micro-batch to the next. `loads` maps a kind of resource to
    float64[devices] in microseconds: always "compute"; besides it "queue" if transfers are `sequential`, "send" and
    "receive" if they are `duplex`, and nothing if they are `parallel`; "communication" in a graph with collectives. With
    `sum=True` it has "compute and transfers" instead of compute and queues.
    """

    period_us: float
    loads: Mapping[str, NDArray[np.float64]]
    device_names: tuple[str, ...]

    @property
    def bottleneck(self) -> tuple[str, str]:
        """The resource with the largest load and its device; ties: the first kind, the lowest device."""
        kind = max(self.loads, key=lambda k: float(self.loads[k].max()))
        return kind, self.device_names[int(self.loads[kind].argmax())]

    def samples_per_second(self, batch_size: float) -> float:
        """Samples per second when one micro-batch holds `batch_size` samples; infinite for a period of 0."""
        if (size := finite(batch_size)) is None or size <= 0:
            raise InvalidInput(f"batch_size is {in_short(batch_size)}; it must be finite and above 0")
        return float(np.inf) if self.period_us == 0 else size * 1e6 / self.period_us

    def __repr__(self) -> str:
        kind, device = self.bottleneck
        return f"<Throughput: a micro-batch every {self.period_us:.6g} us, held up by {kind} of {device}>"


def throughput(
    graph: OpGraph, cluster: Cluster, placement: Placement, sum: bool = False, micro_batches: int | None = None
) -> Throughput:
    """Returns the period of `placement` when micro-batches, each one run of `graph`, follow each other without end.

    Every micro-batch loads each device with the durations of its ops, including the processor time of messages, and each
    transfer queue with the costs of the tensors that pass it. A tensor goes to a device at most once
    (docs/simulated-time.md). All ops of `graph` count, also those that update parameters.

    A resource does one thing at a time, so no schedule has a shorter period than the largest load. This period is reached if
    enough micro-batches are in flight, which takes memory, and if queues serve the most urgent transfer first: every
    micro-batch then does one period later what its predecessor did. A queue depends on the cluster's communication mode:

    - `parallel`: transfers never wait, so they load nothing.
    - `sequential`: the queue of a device carries what it sends and what it receives.
    - `duplex`: one queue for what a device sends, one for what it receives.

    `sum=True` is the cost model of the dnn-partitioning papers (Tarnawski et al., NeurIPS 2020, section 3) instead: a
    device computes, sends or receives, one at a time, so the load of a device is the sum of the three. A tensor is
    charged once to its producer's device if that sends it at all (at the most expensive of the links that it takes), and
    once to each device that receives it. The communication mode has no effect then.

    Each replica of a pipeline stage takes one micro-batch in r. Its load also has an all-reduce of the stage's gradients
    (`passes.all_reduce.ring_us`), which takes its queues: one for every round of r micro-batches, or with `micro_batches` one
    for every step of so many, as in a simulated step.

    Args:
        graph: one micro-batch.
        cluster: its devices and links.
        placement: of its ops, or of the groups of a coarse graph made from it.
        sum: add up what a device computes, sends and receives.
        micro_batches: how many of them have one update; None: one for each replica of a pipeline stage.

    Raises:
        InvalidInput: the placement was made for another graph or names a device that the cluster lacks.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([4.0, 6.0, 3.0], [(0, 1, 10), (0, 2, 10)])
    >>> cluster, placement = Cluster.uniform(3, link=Link(1.0, 0.1)), Placement(device=[0, 1, 2])
    >>> steady = throughput(graph, cluster, placement)    # sends 2 tensors of 1 + 0.1 * 10 us
    >>> steady.period_us, steady.loads["queue"].tolist(), steady.samples_per_second(32)
    (6.0, [4.0, 2.0, 2.0], 5333333.333333333)
    >>> throughput(graph, cluster, placement, sum=True).loads["compute and transfers"].tolist()
    [6.0, 8.0, 5.0]
    """
    check_records(graph=graph, cluster=cluster, placement=placement)
    check_flag("sum", sum)
    op_placement = placement.checked(graph, cluster.n)
    rounds = lcm(*(len(group) for group in op_placement.replicas))
    loads_by_round = [_loads(graph, cluster, op_placement.at(round_number), sum) for round_number in range(rounds)]
    loads = {kind: np.mean([load[kind] for load in loads_by_round], axis=0) for kind in loads_by_round[0]}
    if micro_batches is not None:
        check_whole("micro_batches", micro_batches)
    # float64[devices]: queue time of the all-reduce among replicas, per micro-batch.
    all_reduce_us = np.zeros(cluster.n)
    if op_placement.replicas:
        from ..passes.all_reduce import gradient_bytes, ring_us

        device_gradient_bytes = np.bincount(op_placement.device, gradient_bytes(graph), cluster.n)
        for group in op_placement.replicas:
            ring_time_us = ring_us(cluster, group, device_gradient_bytes[group[0]])
            all_reduce_us[list(group)] = ring_time_us / (micro_batches or len(group))
    for kind in loads:
        if kind not in ("compute", "communication"):
            loads[kind] += all_reduce_us
    return Throughput(max(float(load.max()) for load in loads.values()), loads, cluster.names)


def _loads(graph: OpGraph, cluster: Cluster, device: NDArray[np.int32], sum: bool) -> dict[str, NDArray[np.float64]]:
    """Returns the load of each resource by one micro-batch: kind -> float64[devices] in microseconds."""
    duration_us, collective = placed_durations(graph, cluster, device), graph.on_communication_lane
    compute = _per_device(device, np.where(collective, 0.0, duration_us), cluster)
    communication = _per_device(device, np.where(collective, duration_us, 0.0), cluster)
    lane = {"communication": communication} if collective.any() else {}
    # Tensor, source, target and cost in microseconds of every transfer.
    target = device[graph.consumers].astype(np.int64)
    remote = device[graph.edge_source] != target
    pair = distinct(graph.edge_tensor[remote] * np.int64(cluster.n) + target[remote])
    tensor, target = pair // cluster.n, pair % cluster.n
    source = device[graph.tensor_producer[tensor]]
    cost = cluster.latency_us[source, target] + cluster.us_per_byte[source, target] * graph.tensor_bytes[tensor]
    received_us = _per_device(target, cost, cluster)
    if sum:
        largest_cost = np.zeros(graph.tensor_count)
        np.maximum.at(largest_cost, tensor, cost)
        sent_us = _per_device(device[graph.tensor_producer], largest_cost, cluster)
        return {"compute and transfers": compute + sent_us + received_us, **lane}
    return {"compute": compute, **lane, **_queues(cluster.comm, _per_device(source, cost, cluster), received_us)}


def _per_device(device: Integers, us: NDArray[np.float64], cluster: Cluster) -> NDArray[np.float64]:
    """Returns float64[devices]: the sum of the times `us` of each device."""
    return grouped_sum(us, device, cluster.n)


def _queues(
    comm: str, sent_us: NDArray[np.float64], received_us: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Returns the loads of the transfer queues that the communication mode has."""
    if comm == "sequential":
        return {"queue": sent_us + received_us}
    return {"send": sent_us, "receive": received_us} if comm == "duplex" else {}
