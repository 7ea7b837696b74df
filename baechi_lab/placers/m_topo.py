"""m-TOPO: fill the devices one after the other, in topological order (Jeon et al. 2020, section 2.2, the strawman).

The cap per device is `sum_i d_i / n + max_i d_i` with `d_i` the bytes of op `i` (persistent, outputs, temporary); where
devices differ in memory, device `p` gets the share `memory_p / sum of memory` of the sum instead of `1/n`. A colocation
group is placed as one when its first op is met. O(ops + devices x groups).

Deviations: a device never holds more persistent bytes than it has; a group that fits on no later device goes back
to fill a gap on an earlier one, and where the caps leave no room at all, to the device filled least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.csr import Integers, grouped_sum
from ..graph.kernels.jit import has_few_entries, njit
from ..graph.units import format_bytes
from .base import Placer
from .list_scheduling.earliest_start_reference import Candidate, Decision
from .memory.feasible import within_memory
from .problem import allowed_group_devices, groups_of


@dataclass(frozen=True)
class MTopo(Placer):
    """Fill devices in topological order up to a balanced memory cap (strawman of Jeon et al. 2020)."""

    name = "m-topo"
    explain: bool = False

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: _fill(graph, limits, self.explain))


def caps(cluster: Cluster, need: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns float64[devices]: bytes that m-TOPO puts on each device, for `need` int64[groups]."""
    memory = cluster.memory_bytes.astype(np.float64)
    share = memory / memory.sum() if memory.sum() > 0 else np.full(cluster.n, 1.0 / cluster.n)
    return need.sum() * share + need.max(initial=0)


def _fill(graph: OpGraph, cluster: Cluster, explain: bool = False) -> Placement:
    group = groups_of(graph)
    count = int(group.max(initial=-1)) + 1
    allowed = allowed_group_devices(graph, cluster, group)
    persistent_bytes = grouped_sum(graph.persistent_bytes, group, count)
    need = persistent_bytes + grouped_sum(graph.output_bytes + graph.temp_bytes, group, count)
    _, first = np.unique(group[graph.order], return_index=True)
    sequence = np.argsort(first, kind="stable")  # groups in the order in which their first op comes
    cap = caps(cluster, need)
    group_device = fill_devices(sequence, need, persistent_bytes, allowed, cap, cluster.memory_bytes)
    info = {"decisions": _decisions(graph, group, group_device, need, cap, allowed)} if explain else {}
    return Placement(device=group_device[group], order=graph.position.astype(np.float64), info=info)


def _decisions(
    graph: OpGraph,
    group: Integers,
    group_device: Integers,
    need: NDArray[np.int64],
    cap: NDArray[np.float64],
    allowed: NDArray[np.bool_],
) -> tuple[Decision, ...]:
    """The log, op by op in topological order, with the bytes on each device. The placer plans no times: `start_us` is NaN."""
    used, log = [0] * len(cap), []
    step_of: dict[int, int] = {}
    for step, op in enumerate(graph.order.tolist()):
        g, p = int(group[op]), int(group_device[group[op]])
        winner = Candidate(op, p, float("nan"))
        if g in step_of:
            log.append(Decision(step, (winner,), winner, f"Its colocation group was placed in step {step_of[g] + 1}."))
            continue
        step_of[g] = step
        candidates = tuple(
            Candidate(
                op, d, float("nan"), "" if d == p else _reject_reason(d, p, used, need[g], cap, bool(allowed[g, d]))
            )
            for d in range(len(cap))
        )
        used[p] += int(need[g])
        fill_sentence = f"{format_bytes(used[p])} of its cap of {format_bytes(int(cap[p]))}"
        log.append(
            Decision(
                step, candidates, winner, f"Needs {format_bytes(int(need[g]))}; the device then has {fill_sentence}."
            )
        )
    return tuple(log)


def _reject_reason(
    d: int, placed_device: int, used: list[int], need: int, cap: NDArray[np.float64], allowed: bool
) -> str:
    if not allowed:
        return "not allowed there"
    if used[d] + need > cap[d]:
        return f"full: has {format_bytes(used[d])} of its cap of {format_bytes(int(cap[d]))}"
    return "its turn has not come" if d > placed_device else "its turn is over"


@njit(cache=True, nogil=True, interpreted_if=has_few_entries)
def fill_devices(
    sequence: NDArray[np.int64],
    need: NDArray[np.int64],
    persistent_bytes: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    cap: NDArray[np.float64],
    limit: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Returns int32[groups]: the device of every group."""
    devices = len(cap)
    used, promised_bytes, current = np.zeros(devices, np.int64), np.zeros(devices, np.int64), 0
    group_device = np.zeros(len(need), np.int32)
    for g in sequence:
        while (
            current < devices - 1
            and allowed[g, current]
            and (
                used[current] + need[g] > cap[current] or promised_bytes[current] + persistent_bytes[g] > limit[current]
            )
        ):
            current += 1
        best_device = -1
        for k in range(devices):
            p = (current + k) % devices
            if allowed[g, p] and used[p] + need[g] <= cap[p] and promised_bytes[p] + persistent_bytes[g] <= limit[p]:
                best_device = p
                break
        if best_device < 0:  # the device that lacks the fewest bytes, then that which is filled least
            least_missing, least_filled = 0, 0.0
            for p in range(devices):
                missing, bytes_over_cap = max(promised_bytes[p] + persistent_bytes[g] - limit[p], 0), used[p] - cap[p]
                if allowed[g, p] and (
                    best_device < 0
                    or missing < least_missing
                    or (missing == least_missing and bytes_over_cap < least_filled)
                ):
                    best_device, least_missing, least_filled = p, missing, bytes_over_cap
        group_device[g] = best_device
        used[best_device] += need[g]
        promised_bytes[best_device] += persistent_bytes[g]
    return group_device
