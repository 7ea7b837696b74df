"""Colocation groups: ops that TensorFlow can only run together on one device.

Union-find over the variables' handles. Every op that takes a handle joins the group of the variable; an op that takes several
(a While over two variables) joins their groups. An optimizer slot joins its variable's group. A `_class` hint of the graph
joins two ops. Near-linear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .nodes import data_inputs

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def colocation_groups(nodes: tuple[NodeDef, ...], slots: dict[str, str]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Returns the group of every op (-1 for none), and the groups' names: that of the first variable."""
    index = {node.name: i for i, node in enumerate(nodes)}
    parent = list(range(len(nodes)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def union(a: int, b: int) -> None:
        a, b = find(a), find(b)
        if a != b:
            parent[max(a, b)] = min(a, b)

    handles = {node.name for node in nodes if node.op == "VarHandleOp"}
    for i, node in enumerate(nodes):
        for producer, _ in data_inputs(node):
            if producer in handles:
                union(i, index[producer])
        if "_class" in node.attr:
            for hint in node.attr["_class"].list.s:
                if hint.startswith(b"loc:@") and hint[5:].decode() in index:
                    union(i, index[hint[5:].decode()])
    for slot, variable in slots.items():
        if slot in index and variable in index:
            union(index[slot], index[variable])
    return _named(nodes, [find(i) for i in range(len(nodes))], slots)


def _named(
    nodes: tuple[NodeDef, ...], root: list[int], slots: dict[str, str]
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    members: dict[int, list[int]] = {}
    for i, r in enumerate(root):
        members.setdefault(r, []).append(i)
    group = np.full(len(nodes), -1, dtype=np.int32)
    names: list[str] = []
    for ops in members.values():
        variables = [nodes[i].name for i in ops if nodes[i].op == "VarHandleOp"]
        if len(ops) == 1 and not variables:
            continue
        group[ops] = len(names)
        names.append(next((v for v in variables if v not in slots), nodes[ops[0]].name))
    return group, tuple(names)
