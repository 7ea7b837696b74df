"""Packing promised bytes into devices: what must fit before anything runs, and a proof where it cannot.

Every colocation group keeps its persistent bytes on one device throughout. Bin packing is NP-hard; here best fit
decreasing finds a packing, and a branch and bound over the groups (largest first, equal devices tried once) decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasiblePlacement
from ...graph import Cluster, OpGraph, allowed_devices
from ...graph.opgraph import GROWS
from ...graph.units import format_bytes
from ..problem import groups_of
from .needs import alone_bytes, most_across

NODES = 200_000
"""Branches looked at before the question is left open."""


def promises(graph: OpGraph) -> NDArray[np.int64]:
    """int64[groups]: persistent bytes of each group (`groups_of`)."""
    group = groups_of(graph)
    total = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(total, group, graph.persistent_bytes)
    return total


def best_fit(
    weight: NDArray[np.int64], need: NDArray[np.int64], allowed: NDArray[np.bool_], room: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """A device per group such that `need` int64[groups] fits `room` int64[D]; None when this heuristic finds none.

    Best fit decreasing on `need`; groups without any go where `weight` balances best.
    """
    left, load = room.tolist(), [0] * len(room)
    home = np.zeros(len(need), dtype=np.int64)
    for g in np.lexsort((np.arange(len(need)), -weight, -need)).tolist():
        fits = [d for d in np.flatnonzero(allowed[g]).tolist() if left[d] >= need[g]]
        if not fits:
            return None
        d = (
            min(fits, key=lambda d: (left[d], d))
            if need[g]
            else min(fits, key=lambda d: (load[d] / max(int(room[d]), 1), d))
        )
        home[g] = d
        left[d] -= int(need[g])
        load[d] += int(weight[g])
    return home


def packing_proof(graph: OpGraph, cluster: Cluster, shared: bool = False) -> str | None:
    """One sentence that proves that no placement fits, or None where none was found.

    Proven from what holds for every placement and schedule: a group's persistent bytes share a device; an op runs
    beside the persistent bytes of its own group, with its temporaries, its outputs and all of its inputs; and across an op the
    devices hold what ops before it made and ops behind it read (`memory.needs`). Every output has bytes of its own, as
    placers count; with `shared`, those that may lie in others have none.
    """
    if graph.n == 0:
        return None
    group, need = groups_of(graph), promises(graph)
    able = np.ones((len(need), cluster.n), dtype=np.bool_)
    np.logical_and.at(able, group, allowed_devices(graph, cluster))
    return (
        _an_op_alone(graph, cluster, group, able, shared)
        or _too_much(graph, cluster, need, able)
        or _too_much_at_once(graph, cluster, able, shared)
        or _no_packing(need, able, cluster)
    )


def refuse_the_impossible(graph: OpGraph, cluster: Cluster) -> None:
    """Raise `InfeasiblePlacement` at once where it is proven that no placement fits, before rules try in vain."""
    if (why := packing_proof(graph, cluster)) is not None:
        raise infeasible(why, graph, cluster)


def infeasible(why: str, graph: OpGraph, cluster: Cluster) -> InfeasiblePlacement:
    """The error that says `why`, what the graph keeps and what the devices have.

    What holds for groups of ops need not hold for the ops, so the message of a coarse graph says that it speaks of groups.
    """
    ops = graph if graph.original is None else graph.original
    needed = int(ops.persistent_bytes.sum())
    has = ", ".join(f"{d.name} {format_bytes(d.memory_bytes)}" for d in cluster.devices)
    message = f"{why}; the graph keeps {format_bytes(needed)} persistently, the devices have {has}"
    if is_grouped(graph):
        count = len(promises(graph))
        groups = "1 group" if count == 1 else f"{count:,} groups"
        message += f"; this holds for the {groups} that ops were joined to: smaller groups or single ops may fit"
    return InfeasiblePlacement(message, needed, cluster.memory_bytes.tolist())


def is_grouped(graph: OpGraph) -> bool:
    """Whether passes joined ops of another graph to groups, of which proofs then speak."""
    joined = graph.group_of is not None and graph.n < len(graph.group_of)
    return joined or graph.original is not None


def op_in_words(graph: OpGraph, op: int) -> str:
    """An op by its name, or the group of ops that it stands for, with the one of these that takes most bytes.

    >>> op_in_words(OpGraph.from_edges([1], names=["a"]), 0)
    "op 'a'"
    """
    members = np.zeros(0) if graph.group_of is None else np.flatnonzero(graph.group_of == op)
    if len(members) == 0:
        return f"op {graph.names[op]!r}"
    ops = graph.original
    if ops is None:
        return f"the group {graph.names[op]!r} of {len(members):,} op{'' if len(members) == 1 else 's'}"
    if len(members) == 1:
        return f"op {ops.names[int(members[0])]!r}"
    needs = (alone_bytes(ops) + ops.persistent_bytes)[members]
    largest = f"{ops.names[int(members[needs.argmax()])]!r} with {format_bytes(int(needs.max()))}"
    return f"the group of {len(members):,} ops, the largest of which is {largest},"


def _an_op_alone(
    graph: OpGraph, cluster: Cluster, group: NDArray[np.int32], able: NDArray[np.bool_], shared: bool
) -> str | None:
    kept = beside(graph, shared)
    running = alone_bytes(graph, shared) + kept
    most = np.where(able, cluster.memory_bytes, -1).max(axis=1)[group]
    worst = int(np.argmax(running - most))
    if running[worst] <= most[worst]:
        return None
    return (
        f"{op_in_words(graph, worst)} needs {format_bytes(int(running[worst]))} while it runs "
        f"({_kept_in_words(graph, worst, int(kept[worst]))}, inputs, outputs and temporaries) and the largest device that it "
        f"may use has {format_bytes(int(most[worst]))}"
    )


def beside(graph: OpGraph, shared: bool = False) -> NDArray[np.int64]:
    """int64[n]: persistent bytes on an op's device while it runs: those of its group, as far as they do not grow later."""
    group, grows = groups_of(graph), np.zeros(graph.n, dtype=np.bool_)
    if shared and graph.reuse is not None:
        grows = graph.reuse == GROWS
    there = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(there, group, np.where(grows, 0, graph.persistent_bytes))
    return there[group] + np.where(grows, graph.persistent_bytes, 0)


def _kept_in_words(graph: OpGraph, op: int, kept_bytes: int) -> str:
    """The persistent bytes beside an op: its own, and those of what is colocated with it."""
    group = int(graph.colocation[op])
    count = 1 if group < 0 else int((graph.colocation == group).sum())
    if count == 1:
        return "persistent bytes"
    what = "ops" if graph.group_of is None else "parts"
    return f"{format_bytes(kept_bytes)} that the {count:,} {what} of its colocation group keep persistently"


def _too_much_at_once(graph: OpGraph, cluster: Cluster, able: NDArray[np.bool_], shared: bool) -> str | None:
    room = int(cluster.memory_bytes[able.any(axis=0)].sum())
    total, op = most_across(graph, shared, room)
    if total <= room:
        return None
    return (
        f"while {op_in_words(graph, op)} runs, {format_bytes(total)} are held in any order and on any devices (persistent "
        "bytes, and what ops before it made and it or ops behind it read), and the devices have "
        f"{format_bytes(room)} together"
    )


def _too_much(graph: OpGraph, cluster: Cluster, need: NDArray[np.int64], able: NDArray[np.bool_]) -> str | None:
    what = "groups of ops" if is_grouped(graph) else "ops"
    for only in [np.ones(cluster.n, dtype=np.bool_), *np.unique(able, axis=0)]:
        inside = ~np.any(able & ~only, axis=1)
        total, room = int(need[inside].sum()), int(cluster.memory_bytes[only].sum())
        if total > room:
            where = ", ".join(np.array(cluster.names)[only].tolist())
            return (
                f"{what} that may run only on {where} keep {format_bytes(total)} persistently and these devices have "
                f"{format_bytes(room)} together"
            )
    return None


def _no_packing(need: NDArray[np.int64], able: NDArray[np.bool_], cluster: Cluster) -> str | None:
    held = np.flatnonzero(need)
    if best_fit(need[held], need[held], able[held], cluster.memory_bytes) is not None:
        return None
    if _packs(need[held], able[held], cluster.memory_bytes) is not False:
        return None
    return (
        f"no packing exists: the {len(held)} groups that keep bytes persistently ({format_bytes(int(need.sum()))}, the "
        f"largest {format_bytes(int(need.max()))}) cannot be divided among the devices, by exhaustive search"
    )


def _packs(need: NDArray[np.int64], able: NDArray[np.bool_], room: NDArray[np.int64]) -> bool | None:
    """Whether a packing exists; None when the search was cut off after `NODES` branches."""
    order = np.lexsort((np.arange(len(need)), -need)).tolist()
    sizes, left, masks = need.tolist(), room.tolist(), able.tolist()
    rest = np.cumsum(need[order][::-1])[::-1].tolist() + [0]
    columns = [tuple(able[:, d].tolist()) for d in range(len(left))]
    budget = [NODES]
    dead: set[tuple[int, ...]] = set()

    def descend(k: int) -> bool | None:
        if k == len(order):
            return True
        key = (k, *left)
        if key in dead:
            return False
        budget[0] -= 1
        if budget[0] < 0:
            return None
        if sum(left) < rest[k]:
            return False
        tried: set[tuple[int, tuple[bool, ...]]] = set()
        for d in sorted(range(len(left)), key=lambda d: (left[d], d)):
            same = (left[d], columns[d])
            if not masks[order[k]][d] or left[d] < sizes[order[k]] or same in tried:
                continue
            tried.add(same)
            left[d] -= sizes[order[k]]
            answer = descend(k + 1)
            left[d] += sizes[order[k]]
            if answer is not False:
                return answer
        dead.add(key)
        return False

    return descend(0) if len(order) < 900 else None  # the recursion is as deep as there are groups
