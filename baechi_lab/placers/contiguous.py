"""`contiguous`: cut an order of the graph into one run per device, as layers are divided by hand.

Idea: put the colocation groups in a line so that edges run forward. Cut the line at `devices - 1` places, such that no device has
more than a given share of the work, and the bytes that cross the cuts cost least. With f_d(j) the least
cost of giving the first j groups to the first d devices and c(j) the cost of the tensors that cross place j,

    f_d(j) = c(j) + min { f_{d-1}(i) : i <= j, work(i..j) <= cap_d, bytes(i..j) <= memory_d },

solved by dynamic programming in O(devices * groups), since the feasible i form a window that moves forward. The lines
tried: topological order, the same with every backward op beside its forward op (a layer's training ops stay together) or a
little nearer to it, depth first, and breadth first; the caps: 1 to 4 times the fair share, of all devices, of half of them, and
so on. The simulation picks among the cuts.

Source: the dynamic programs for pipelines, as in Narayanan et al. 2019, doi:10.1145/3341301.3359646, with the work of a
device as a cap and the transfers as the cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement, allowed_devices, durations
from ..graph.kernels.csr import inverse
from ..graph.kernels.jit import has_few_entries, njit
from ..simulator.paths import heads_and_tails
from .base import Placer
from .evaluation.orders import Orders, Simulations, best_of, usual_orders
from .memory.depth_first import depth_first_order
from .memory.feasible import within_memory
from .pipeline_stages.device_sequences import chain_along, device_orders, device_sequences
from .pipeline_stages.dynamic_program import ChainStage, pack_on_first_devices
from .pipeline_stages.line_cuts import cut_lines, sums_across_places
from .pipeline_stages.link_levels import cuts_by_link_level
from .pipeline_stages.objective import Objective
from .pipeline_stages.pipeline_cuts import PipelineCut, data_parallel_cuts, make_pipeline_cut, place_best_cut
from .pipeline_stages.pipeline_units import make_pipeline_units
from .problem import allowed_group_devices, groups_of, transfer_us

Positions = Mapping[str, NDArray[np.float64]]
LEANINGS = (0.15, 0.35)
"""Shares of the distance to its forward op by which a backward op is moved in some lines. Chosen on profiles of GNMT."""
CAPS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0, 3.0, 4.0)  # of a device's work, over an equal share


@dataclass(frozen=True)
class Contiguous(Placer):
    """Layer-wise: the best cut of a topological order into one run per device, by dynamic programming.

    Args:
        caps: the most work a device may get, as multiples of its fair share of all devices, of half of them, and so on; each is
            tried (for "latency").
        objective: "latency" (one step), "throughput" (the period of endless micro-batches) or "step" (`micro_batches`
            under a `schedule`, or None for none); the last two cut the lines by `pipeline_stages/line_cuts.py`.
        replicas: let several equal devices share a pipeline stage (not for "latency"); where links have levels, whole pipelines.
        sum: a device computes or transfers, never both at once.
    """

    name = "contiguous"
    caps: tuple[float, ...] = CAPS
    objective: str = "latency"
    micro_batches: int = 8
    schedule: str | None = "1f1b"
    replicas: bool = False
    sum: bool = False

    def validate(self) -> None:
        self._goal.validate()
        if not self.caps or any(not (isinstance(c, Real) and 1 <= c < np.inf) for c in self.caps):
            raise InvalidInput(f"caps is {self.caps}; it must hold numbers of at least 1")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        if self.objective == "latency" or graph.n == 0:
            if graph.n == 0:
                return Placement(device=np.zeros(0, dtype=np.int32))
            positions, orders = {**lines(graph), **_leaning_lines(graph)}, usual_orders(graph, cluster)
            caps = caps_for_fewer_devices(self.caps, cluster.n)
            splits: dict[bytes, list[tuple[str, NDArray[np.int32]]]] = {}
            simulations: Simulations = {}

            def plan(limits: Cluster, careful: bool) -> Placement:
                # Limits above the persistent bytes of all ops allow every cut.
                limit = np.minimum(limits.memory_bytes, graph.persistent_bytes.sum()).tobytes()
                if limit not in splits:
                    splits[limit] = list(contiguous_splits(graph, limits, caps, positions))
                return self._plan(graph, limits, splits[limit], orders, simulations if careful else None)

            return within_memory(graph, cluster, plan)
        return place_best_cut(graph, cluster, self._goal, lambda limits: self._cuts(graph, limits))

    @property
    def _goal(self) -> Objective:
        return Objective(self.objective, self.micro_batches, self.schedule, self.sum, self.replicas)

    def _cuts(self, graph: OpGraph, limits: Cluster) -> Iterator[PipelineCut]:
        """The best cut of every line, for every order of devices and every goal."""
        lines_cut: set[bytes] = set()
        for name, place in lines(graph).items():
            units = make_pipeline_units(graph, limits, place, self._goal.micro_batches_per_update)
            if units.unit.tobytes() in lines_cut:
                continue
            lines_cut.add(units.unit.tobytes())
            # Sequences of equal devices make equal chains.
            cuts_of_chain: dict[bytes, list[tuple[float, list[ChainStage]]]] = {}
            orders = device_orders(limits, units.allowed)
            for sequence in (sequence for order in orders for sequence in device_sequences(self._goal, order)):
                chain = chain_along(sequence, units, limits, self._goal)
                content = b" ".join(np.asarray(column).tobytes() for column in chain)
                if content not in cuts_of_chain:
                    cuts_of_chain[content] = cut_lines(units, chain, self._goal.program_goals)
                for cost, stages in cuts_of_chain[content]:
                    for packed_stages in pack_on_first_devices(stages, chain) if stages else ():
                        yield make_pipeline_cut(
                            units.unit, units.n, packed_stages, sequence.devices, f"{name} line", cost
                        )
                if sequence.with_replicas and len(lines_cut) == 1 and self.objective == "step":
                    max_replicas = min(int(chain.run[0]), self.micro_batches)
                    yield from data_parallel_cuts(units.unit, units.n, sequence.devices, max_replicas)
            if self.replicas:
                yield from cuts_by_link_level(units, limits, f"{name} line", sum=self.sum)

    def _plan(
        self,
        graph: OpGraph,
        cluster: Cluster,
        splits: Sequence[tuple[str, NDArray[np.int32]]],
        orders: Orders,
        simulations: Simulations | None,
    ) -> Placement:
        best = best_of(graph, cluster, splits, orders, simulations)
        if best is None:
            return Placement(device=allowed_devices(graph, cluster).argmax(axis=1))
        return Placement(device=best.device, order=best.rank, info={"split": best.name, "splits": len(splits)})


def contiguous_splits(
    graph: OpGraph, cluster: Cluster, caps: tuple[float, ...] = CAPS, positions: Positions | None = None
) -> Iterator[tuple[str, NDArray[np.int32]]]:
    """Distinct (name, device int32[n]) for every line and cap for which cuts exist. `positions`: what `lines` returns."""
    group = groups_of(graph)
    count = int(group.max()) + 1
    work = np.bincount(group, durations(graph, cluster).min(axis=1) * cluster.speed.max(), count)
    persistent_bytes = np.bincount(group, graph.persistent_bytes, count).astype(np.int64)
    group_allowed = allowed_group_devices(graph, cluster, group)
    devices_yielded: set[bytes] = set()
    for name, place in (lines(graph) if positions is None else positions).items():
        # Groups by the mean position of their ops; ties by group index.
        mean = np.bincount(group, place, count) / np.bincount(group, minlength=count)
        line = np.argsort(mean, kind="stable")
        cross = np.zeros(count + 1)  # cost of the tensors that cross the place before each position of the line
        if graph.edge_count and cluster.n > 1:
            spot = inverse(line)
            source, reader = spot[group[graph.tensor_producer]], spot[group[graph.consumers]]
            cross = sums_across_places(source, graph.edge_tensor, reader, transfer_us(graph, cluster), count)
        for cap in caps:
            work_caps = cap * work.sum() * cluster.speed / cluster.speed.sum() + work.max(initial=0.0) * 1e-9
            cuts = cut_line(work[line], persistent_bytes[line], cross, work_caps, cluster.memory_bytes)
            if cuts[-1] < 0:
                continue
            group_device = np.empty(count, dtype=np.int64)
            group_device[line] = np.searchsorted(cuts, np.arange(count), side="right")
            group_device = np.where(
                group_allowed[np.arange(count), group_device], group_device, group_allowed.argmax(axis=1)
            )
            device = group_device[group].astype(np.int32)
            if device.tobytes() not in devices_yielded:
                devices_yielded.add(device.tobytes())
                yield f"{name} line, cap {cap:g}", device


def lines(graph: OpGraph) -> Positions:
    """Lines of the ops: a position float64[n] each."""
    position = graph.position.astype(np.float64)
    positions: dict[str, NDArray[np.float64]] = {
        "topological": position,
        "depth-first": depth_first_order(graph),
        "layer": heads_and_tails(graph, np.ones(graph.n))[0],  # edges on the longest path before each op
    }
    has_forward = graph.forward_of >= 0
    if has_forward.any():
        for name in list(positions):
            folded_positions = positions[name].copy()
            folded_positions[has_forward] = positions[name][graph.forward_of[has_forward]]
            positions[f"folded {name}"] = folded_positions
    return positions


def _leaning_lines(graph: OpGraph) -> Positions:
    """Returns topological lines with every backward op a little nearer to its forward op; none without backward ops."""
    position, backward = graph.position.astype(np.float64), graph.forward_of >= 0
    distance = np.where(backward, position[graph.forward_of] - position, 0.0)
    return {f"topological, leaning {share:g}": position + share * distance for share in LEANINGS if backward.any()}


def caps_for_fewer_devices(caps: Sequence[float], devices: int) -> tuple[float, ...]:
    """Returns caps that are multiples of the share of all devices, of half of them, of a quarter and so on, in those of all.

    With one run per device and more devices, steps may become longer; these caps leave the last devices idle.

    >>> caps_for_fewer_devices((1.0, 1.5), 4)
    (1.0, 1.5, 2.0, 3.0, 4.0)
    """
    counts = [devices >> k for k in range(devices.bit_length())]
    return tuple(sorted({min(cap * devices / count, float(devices)) for cap in caps for count in counts}))


@njit(cache=True, interpreted_if=has_few_entries)
def cut_line(
    work: NDArray[np.number],
    persistent_bytes: NDArray[np.int64],
    cross: NDArray[np.float64],
    cap: NDArray[np.float64],
    memory: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Returns int64[D]: where each device's run ends, the last at the end of the line; -1 at the end if no cuts fit.

    The run of device d that ends at j may begin in a window [low, j]. Both ends of the window move forward, so a queue of
    candidates with rising cost keeps its minimum at the front. Of equal candidates the last is kept: idle devices come last.
    """
    n, devices = len(work), len(cap)
    load, bytes_before = np.zeros(n + 1), np.zeros(n + 1, np.int64)
    for j in range(n):
        load[j + 1] = load[j] + work[j]
        bytes_before[j + 1] = bytes_before[j] + persistent_bytes[j]
    cost = np.full(n + 1, np.inf)
    cost[0] = 0.0
    run_start = np.full((devices, n + 1), -1, np.int64)
    queue = np.empty(n + 1, np.int64)
    for d in range(devices):
        next_cost = np.full(n + 1, np.inf)
        first, last, low = 0, 0, 0
        for j in range(n + 1):
            while last > first and cost[queue[last - 1]] >= cost[j]:
                last -= 1
            queue[last] = j
            last += 1
            while load[j] - load[low] > cap[d] or bytes_before[j] - bytes_before[low] > memory[d]:
                low += 1
            while queue[first] < low:
                first += 1
            i = queue[first]
            if cost[i] < np.inf:
                next_cost[j] = cost[i] + (0.0 if j in (0, i, n) else cross[j])
                run_start[d, j] = i
        cost = next_cost
    cuts = np.full(devices, -1, np.int64)
    if cost[n] < np.inf:
        j = n
        for d in range(devices - 1, -1, -1):
            cuts[d] = j
            j = run_start[d, j]
    return cuts
