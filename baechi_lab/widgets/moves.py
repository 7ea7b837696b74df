"""Moves of ops by hand: from a placement and names of ops to a new placement, or to a sentence that says why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasiblePlacement, InvalidInput, UnknownOpError, in_short
from ..graph import Cluster, OpGraph, Placement, allowed_devices
from ..graph.arguments import check_records
from ..graph.columns import text
from ..viz.nested.tree import Tree


def move(
    placement: Placement, graph: OpGraph, cluster: Cluster, moves: Mapping[str, str] | Iterable[tuple[str, str]]
) -> Placement:
    """Returns `placement` for `graph` with ops moved to other devices; ops of one colocation group move together.

    Args:
        placement: the placement to change; its planned order stays.
        graph, cluster: the graph and the cluster of the placement.
        moves: device names by the ops that move there; a later entry overrides an earlier one. A key is an op's name; a
            scope's name with "/" at its end, for all ops in it; or "@" and an op's name, for all ops of its group (of the
            coarse graph that was placed).

    Returns:
        A new placement. Memory is not checked: simulate the placement and read its violations.

    Raises:
        UnknownOpError, UnknownNameError: an op, scope or device does not exist.
        InfeasiblePlacement: the op, or another of its colocation group, may not run on that device.

    >>> g = OpGraph.from_edges([1, 2], [(0, 1, 4)], names=["a/x", "a/y"])
    >>> move(Placement(device=[0, 0]), g, Cluster.uniform(2), {"a/y": "gpu:1"}).device.tolist()
    [0, 1]
    """
    check_records(placement=placement, graph=graph, cluster=cluster)
    op_placement = placement.checked(graph, cluster.n)
    try:
        pairs = [(name, target) for name, target in (moves.items() if isinstance(moves, Mapping) else moves)]
    except (TypeError, ValueError):
        raise InvalidInput(f"moves is {in_short(moves)}; it must map what moves to device names") from None
    if not pairs:
        return op_placement
    device, allowed = op_placement.device.copy(), allowed_devices(graph, cluster)
    for name, target in pairs:
        ops = with_colocated_ops(graph, named_ops(graph, name, placement.group_of))
        device_index = cluster.index(target)
        not_allowed = ops[~allowed[ops, device_index]]
        if len(not_allowed):
            op = int(not_allowed[0])
            free = ", ".join(cluster.names[d] for d in np.flatnonzero(allowed[op]).tolist())
            mate = f" is colocated with {graph.names[op]!r}, which" if graph.names[op] != name else ""
            raise InfeasiblePlacement(
                f"{name!r} cannot move to {cluster.names[device_index]}: it{mate} may run only on {free}"
            )
        device[ops] = device_index
    return op_placement.replace(device=device, info={**op_placement.info, "moves": len(pairs)})


def named_ops(graph: OpGraph, name: str, group_of: NDArray[np.int32] | None = None) -> NDArray[np.int64]:
    """Returns the ops of a key of `move`'s argument `moves`; without `group_of` every op is a group of its own."""
    text("the op of a move", name)
    if name in graph.index:
        return np.array([graph.index[name]])
    if name.startswith("@") and name[1:] in graph.index:
        op = graph.index[name[1:]]
        return np.array([op]) if group_of is None else np.flatnonzero(group_of == group_of[op])
    inside = [i for i, op in enumerate(graph.names) if op.startswith(name)] if name.endswith("/") else []
    if not inside:
        raise UnknownOpError(f"graph {graph.name!r} has no op {name!r}, and no ops below a scope of that name")
    return np.array(inside)


def with_colocated_ops(graph: OpGraph, ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns `ops` and all ops of their colocation groups, ascending."""
    groups = np.unique(graph.colocation[ops])
    mates = np.flatnonzero(np.isin(graph.colocation, groups[groups >= 0]))
    return np.union1d(ops, mates)


def all_moving_ops(graph: OpGraph, ops: Iterable[int], group_of: NDArray[np.int32] | None = None) -> NDArray[np.int64]:
    """Returns `ops` and all ops that move with them: those of their groups in the coarse graph, and colocated ones."""
    op_indices = np.unique(np.fromiter(ops, dtype=np.int64))
    while True:
        moved_along = with_colocated_ops(graph, op_indices)
        if group_of is not None and len(moved_along):
            moved_along = np.flatnonzero(np.isin(group_of, np.unique(group_of[moved_along])))
        if len(moved_along) == len(op_indices):
            return op_indices
        op_indices = moved_along


def in_words(
    graph: OpGraph,
    tree: Tree,
    asked_ops: NDArray[np.int64],
    moved_ops: NDArray[np.int64],
    group_of: NDArray[np.int32] | None = None,
) -> str:
    """Describes the ops that move with `asked_ops`: `MatMul, which moves with its group of 279 ops (colocation kernel)`."""
    if not len(asked_ops):
        return ""
    one = len(asked_ops) == 1
    subject = graph.names[int(asked_ops[0])] if one else _box_of(tree, asked_ops) or f"{len(asked_ops):,} ops"
    if len(moved_ops) == len(asked_ops):
        return subject
    names = [graph.colocation_names[c] for c in np.unique(graph.colocation[moved_ops]) if c >= 0]
    reason = (
        "coarse graph" if not names else f"colocation {names[0]}" if len(names) == 1 else f"{len(names)} colocations"
    )
    if one:
        return f"{subject}, which moves with its group of {len(moved_ops):,} ops ({reason})"
    groups = 1 if group_of is None else len(np.unique(group_of[moved_ops]))
    companions = (
        "their group" if groups == 1 else f"their {groups:,} groups" if group_of is not None else "their colocations"
    )
    return f"{subject}, which move with the rest of {companions}: {len(moved_ops):,} ops in all ({reason})"


def _box_of(tree: Tree, ops: NDArray[np.int64]) -> str:
    """Returns the scope or level that holds exactly `ops`, with their number; empty if there is none."""
    node = int(tree.leaf_of[ops[0]])
    for box in reversed(tree.path(node)[1:]):
        if tree.high[box] - tree.low[box] == len(ops) and np.array_equal(np.sort(tree.members(box)), ops):
            return f"{tree.names[box]} ({len(ops):,} ops)"
    return ""


def shortest_names(
    graph: OpGraph, ops: Iterable[int], scope: str = "", group_of: NDArray[np.int32] | None = None
) -> tuple[str, ...]:
    """Returns few keys of `moves` for exactly `ops`: their scope if it holds no others, else whole groups and single ops."""
    indices = [int(i) for i in ops]
    if scope and scope + "/" not in graph.index:
        below = {i for i, op in enumerate(graph.names) if op.startswith(scope + "/")}
        if below == set(indices):
            return (scope + "/",)
    if group_of is None:
        return tuple(graph.names[i] for i in indices)
    size, inside = np.bincount(group_of), np.bincount(group_of[indices], minlength=int(group_of.max(initial=0)) + 1)
    names, used_names = [], set()
    for i in indices:
        g = int(group_of[i])
        if inside[g] < size[g] or size[g] == 1:
            names.append(graph.names[i])
        elif g not in used_names:
            names.append("@" + graph.names[i])
            used_names.add(g)
    return tuple(names)
