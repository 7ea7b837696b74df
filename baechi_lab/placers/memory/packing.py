"""Packs the persistent bytes of groups into devices, and proves where no placement fits.

Every colocation group keeps its persistent bytes on one device throughout. Bin packing is NP-hard: best fit decreasing
looks for a packing, and branch and bound over the groups (largest first, equal devices tried once) decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasiblePlacement
from ...graph import Cluster, OpGraph
from ...graph.kernels.csr import grouped_sum
from ...graph.opgraph import GROWS
from ...graph.units import format_bytes, plural
from ...memory.peak import bytes_while_running
from ..problem import allowed_group_devices, groups_of
from .lower_bounds import largest_bytes_across_op

MAX_BRANCHES = 200_000
"""Branches of the search. After that the question stays open."""
MOST_LISTED = 8
"""Equal devices that an error lists one by one."""


def promised_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[groups]: persistent bytes of each group (`groups_of`)."""
    group = groups_of(graph)
    return grouped_sum(graph.persistent_bytes, group, int(group.max(initial=-1)) + 1)


def best_fit(
    weight: NDArray[np.int64], need: NDArray[np.int64], allowed: NDArray[np.bool_], capacity: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Returns a device per group such that `need` int64[groups] fits `capacity` int64[D], or None if this heuristic finds none.

    Best fit decreasing by `need`. Groups without any need balance `weight`.
    """
    free_bytes, load = capacity.tolist(), [0] * len(capacity)
    group_device = np.zeros(len(need), dtype=np.int64)
    for g in np.lexsort((np.arange(len(need)), -weight, -need)).tolist():
        fits = [d for d in np.flatnonzero(allowed[g]).tolist() if free_bytes[d] >= need[g]]
        if not fits:
            return None
        if need[g]:
            d = min(fits, key=lambda d: (free_bytes[d], d))
        else:
            d = min(fits, key=lambda d: (load[d] / max(int(capacity[d]), 1), d))
        group_device[g] = d
        free_bytes[d] -= int(need[g])
        load[d] += int(weight[g])
    return group_device


def packing_proof(graph: OpGraph, cluster: Cluster, with_reuse: bool = False) -> str | None:
    """Returns one sentence that proves that no placement fits, or None.

    The proof holds for every placement and schedule:

    - The persistent bytes of a group share a device.
    - An op runs next to the persistent bytes of its group, with its temporaries, outputs and all inputs.
    - Across an op the devices hold the tensors made before it and read after it (`memory.lower_bounds`).

    Every output has bytes of its own, as placers count. The sentence says so if the graph, or the ops of its groups, reuse
    memory. With `with_reuse`, outputs that may lie in others count 0 bytes, and the ops of groups are counted instead.
    """
    if graph.n == 0:
        return None
    group, need = groups_of(graph), promised_bytes(graph)
    allowed = allowed_group_devices(graph, cluster, group)
    if graph.original is not None and with_reuse:  # in turns, the ops of a group may hold less than the group as one op
        persistent_proof = _prove_devices_too_small(graph, cluster, need, allowed)
        ops_proof = packing_proof(graph.original, cluster, True)
        return persistent_proof or ops_proof or _prove_no_packing(need, allowed, cluster)
    premise = "if no memory is reused, " if not with_reuse and reuses_memory(graph) else ""
    if proof := _prove_op_too_large(graph, cluster, group, allowed, with_reuse):
        return premise + proof
    if proof := _prove_devices_too_small(graph, cluster, need, allowed):
        return proof
    if proof := _prove_cluster_too_small(graph, cluster, allowed, with_reuse):
        return premise + proof
    return _prove_no_packing(need, allowed, cluster)


def reuses_memory(graph: OpGraph) -> bool:
    """Whether outputs of ops, or of the ops of groups, lie in the memory of others, or exist only from their op on."""
    ops = graph if graph.original is None else graph.original
    return ops.reuse is not None and bool(ops.reuse.any())


def raise_if_impossible(graph: OpGraph, cluster: Cluster) -> None:
    """Raises `InfeasiblePlacement` if it is proven that no placement fits, before a placer tries."""
    if (why := packing_proof(graph, cluster)) is not None:
        raise infeasible_placement(why, graph, cluster)


UNPROVEN = "no placement that fits was found, which is no proof that none exists"
"""Reason of a placer that found no placement."""


def infeasible_placement(why: str, graph: OpGraph, cluster: Cluster, *, is_proof: bool = True) -> InfeasiblePlacement:
    """Returns the error with reason `why`, the persistent bytes of the graph and the memory of the devices.

    For a coarse graph the message says that it holds for groups of ops: single ops may still fit.
    """
    ops = graph if graph.original is None else graph.original
    needed_bytes = int(ops.persistent_bytes.sum())
    memory_text = "devices have " + ", ".join(f"{d.name} {format_bytes(d.memory_bytes)}" for d in cluster.devices)
    if cluster.n > MOST_LISTED and len(set(cluster.memory_bytes.tolist())) == 1:
        memory_text = f"{cluster.n} devices have {format_bytes(int(cluster.memory_bytes[0]))} each"
    message = f"{why}; the graph keeps {format_bytes(needed_bytes)} persistently, the {memory_text}"
    if is_grouped(graph):
        count = len(promised_bytes(graph))
        groups = "1 group" if count == 1 else f"{count:,} groups"
        message += f"; this holds for the {groups} that ops were joined to: smaller groups or single ops may fit"
    return InfeasiblePlacement(message, needed_bytes, cluster.memory_bytes.tolist(), is_proof=is_proof)


def is_grouped(graph: OpGraph) -> bool:
    """Whether passes joined ops of another graph to groups. Proofs are then about groups."""
    has_groups = graph.group_of is not None and graph.n < len(graph.group_of)
    return has_groups or graph.original is not None


def runs_in_words(graph: OpGraph, op: int) -> str:
    """Says that an op runs; of several ops in a group, that they are counted as one op. In turns they may hold less."""
    count = 1 if graph.group_of is None else int((graph.group_of == op).sum())
    return "runs as one op" if count > 1 else "runs"


def describe_op(graph: OpGraph, op: int) -> str:
    """Names an op, or a group of ops with its largest op.

    >>> describe_op(OpGraph.from_edges([1], names=["a"]), 0)
    "op 'a'"
    """
    members = np.zeros(0) if graph.group_of is None else np.flatnonzero(graph.group_of == op)
    if len(members) == 0:
        return f"op {graph.names[op]!r}"
    ops = graph.original
    if ops is None:
        return f"the group {graph.names[op]!r} of {len(members):,} {plural('op', len(members))}"
    if len(members) == 1:
        return f"op {ops.names[int(members[0])]!r}"
    needs = (bytes_while_running(ops) + ops.persistent_bytes)[members]
    largest = f"{ops.names[int(members[needs.argmax()])]!r} with {format_bytes(int(needs.max()))}"
    return f"the group of {len(members):,} ops, the largest of which is {largest},"


def _prove_op_too_large(
    graph: OpGraph, cluster: Cluster, group: NDArray[np.int32], allowed: NDArray[np.bool_], with_reuse: bool
) -> str | None:
    """Returns a sentence if an op needs more memory than any device that may run it has, else None."""
    persistent_bytes = persistent_bytes_beside(graph, with_reuse)
    running = bytes_while_running(graph, with_reuse) + persistent_bytes
    largest_memory = np.where(allowed, cluster.memory_bytes, -1).max(axis=1)[group]
    worst = int(np.argmax(running - largest_memory))
    if running[worst] <= largest_memory[worst]:
        return None
    total, limit = int(running[worst]), format_bytes(int(largest_memory[worst]))
    other_bytes, other_text = int(persistent_bytes[worst] - graph.persistent_bytes[worst]), ""
    if other_bytes:  # persistent bytes of the other ops of its colocation group
        other_count = int((graph.colocation == graph.colocation[worst]).sum()) - 1
        noun = "op" if graph.group_of is None else "part"
        others_keep = (
            f"1 other {noun} of {{}} keeps" if other_count == 1 else f"{other_count:,} other {noun}s of {{}} keep"
        )
        group_noun = "its colocation group" if graph.group_of is None else "its group by colocation and passes"
        other_text = (
            f", with {format_bytes(other_bytes)} that {others_keep.format(group_noun)} persistently on its device: "
            f"together {format_bytes(total)},"
        )
    return (
        f"{describe_op(graph, worst)} needs {format_bytes(total - other_bytes)} while it {runs_in_words(graph, worst)} "
        f"(persistent bytes, inputs, outputs and temporaries){other_text} and the largest device that it may use has {limit}"
    )


def persistent_bytes_beside(graph: OpGraph, with_reuse: bool = False) -> NDArray[np.int64]:
    """Returns int64[n]: persistent bytes on an op's device while it runs: those of its group, without bytes that grow later."""
    group, grows = groups_of(graph), np.zeros(graph.n, dtype=np.bool_)
    if with_reuse and graph.reuse is not None:
        grows = graph.reuse == GROWS
    group_bytes = grouped_sum(np.where(grows, 0, graph.persistent_bytes), group, int(group.max(initial=-1)) + 1)
    return group_bytes[group] + np.where(grows, graph.persistent_bytes, 0)


def needed_bytes(graph: OpGraph) -> tuple[int, int]:
    """Returns the bytes that one device needs, and that all need together, in any placement; shared outputs count 0.

    Of groups the ops are counted, if they are known.
    """
    graph = graph if graph.original is None else graph.original
    alone = bytes_while_running(graph, with_reuse=True) + persistent_bytes_beside(graph, with_reuse=True)
    together = max(largest_bytes_across_op(graph, with_reuse=True)[0], int(graph.persistent_bytes.sum()))
    return int(alone.max(initial=0)), together


def _prove_cluster_too_small(
    graph: OpGraph, cluster: Cluster, allowed: NDArray[np.bool_], with_reuse: bool
) -> str | None:
    """Returns a sentence if the bytes that exist while some op runs exceed all devices together, else None."""
    memory = int(cluster.memory_bytes[allowed.any(axis=0)].sum())
    total, op = largest_bytes_across_op(graph, with_reuse, memory)
    if total <= memory:
        return None
    return (
        f"while {describe_op(graph, op)} {runs_in_words(graph, op)}, {format_bytes(total)} are held in any order and on any "
        "devices (persistent bytes, and what ops before it made and it or ops behind it read), and the devices have "
        f"{format_bytes(memory)} together"
    )


def _prove_devices_too_small(
    graph: OpGraph, cluster: Cluster, need: NDArray[np.int64], allowed: NDArray[np.bool_]
) -> str | None:
    """Returns a sentence if ops that may run only on some devices have more persistent bytes than these, else None."""
    noun = "groups of ops" if is_grouped(graph) else "ops"
    for device_set in [np.ones(cluster.n, dtype=np.bool_), *np.unique(allowed, axis=0)]:
        bound_to_set = ~np.any(allowed & ~device_set, axis=1)
        total, memory = int(need[bound_to_set].sum()), int(cluster.memory_bytes[device_set].sum())
        if total > memory:
            device_names = ", ".join(np.array(cluster.names)[device_set].tolist())
            return (
                f"{noun} that may run only on {device_names} keep {format_bytes(total)} persistently and these devices have "
                f"{format_bytes(memory)} together"
            )
    return None


def _prove_no_packing(need: NDArray[np.int64], allowed: NDArray[np.bool_], cluster: Cluster) -> str | None:
    """Returns a sentence if an exhaustive search finds no device for the persistent bytes of each group, else None."""
    with_bytes = np.flatnonzero(need)
    if best_fit(need[with_bytes], need[with_bytes], allowed[with_bytes], cluster.memory_bytes) is not None:
        return None
    if _packing_exists(need[with_bytes], allowed[with_bytes], cluster.memory_bytes) is not False:
        return None
    return (
        f"no packing exists: the {len(with_bytes)} groups that keep bytes persistently ({format_bytes(int(need.sum()))}, the "
        f"largest {format_bytes(int(need.max()))}) cannot be divided among the devices, by exhaustive search"
    )


def _packing_exists(need: NDArray[np.int64], allowed: NDArray[np.bool_], memory: NDArray[np.int64]) -> bool | None:
    """Whether a packing exists; None if the search ended after `MAX_BRANCHES` branches."""
    order = np.lexsort((np.arange(len(need)), -need)).tolist()
    sizes, free_bytes, masks = need.tolist(), memory.tolist(), allowed.tolist()
    remaining_bytes = np.cumsum(need[order][::-1])[::-1].tolist() + [0]
    allowed_groups = [tuple(allowed[:, d].tolist()) for d in range(len(free_bytes))]
    branches_left = MAX_BRANCHES
    dead_ends: set[tuple[int, ...]] = set()

    def descend(k: int) -> bool | None:
        nonlocal branches_left
        if k == len(order):
            return True
        key = (k, *free_bytes)
        if key in dead_ends:
            return False
        branches_left -= 1
        if branches_left < 0:
            return None
        if sum(free_bytes) < remaining_bytes[k]:
            return False
        tried_classes: set[tuple[int, tuple[bool, ...]]] = set()
        for d in sorted(range(len(free_bytes)), key=lambda d: (free_bytes[d], d)):
            device_class = (free_bytes[d], allowed_groups[d])  # equal devices are tried once
            if not masks[order[k]][d] or free_bytes[d] < sizes[order[k]] or device_class in tried_classes:
                continue
            tried_classes.add(device_class)
            free_bytes[d] -= sizes[order[k]]
            answer = descend(k + 1)
            free_bytes[d] += sizes[order[k]]
            if answer is not False:
                return answer
        dead_ends.add(key)
        return False

    return descend(0) if len(order) < 900 else None  # the recursion is as deep as there are groups
