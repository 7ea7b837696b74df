"""Colocation groups: ops that TensorFlow can only run together on one device.

Every op that takes a variable's handle joins the group of the variable; an op that takes several (a While over two variables)
joins their groups. An optimizer slot joins its variable's group. A `_class` hint of the graph joins two ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...graph.groups import join_groups
from .nodes import data_inputs

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def colocation_groups(nodes: tuple[NodeDef, ...], slots: dict[str, str]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Returns the group of every op (-1 for none), and the groups' names: that of the first variable."""
    index = {node.name: i for i, node in enumerate(nodes)}
    handles = {node.name for node in nodes if node.op == "VarHandleOp"}
    pairs = [(index[slot], index[variable]) for slot, variable in slots.items() if {slot, variable} <= index.keys()]
    for i, node in enumerate(nodes):
        pairs += [(i, index[producer]) for producer, _ in data_inputs(node) if producer in handles]
        if "_class" in node.attr:
            hints = [hint.decode() for hint in node.attr["_class"].list.s if hint.startswith(b"loc:@")]
            names_of_hints = (hint.removeprefix("loc:@") for hint in hints)
            pairs += [(i, index[name]) for name in names_of_hints if name in index]
    group_of_node = join_groups(len(nodes), pairs)
    alone = {index[name] for name in handles}.difference(*group_of_node)
    group = np.full(len(nodes), -1, dtype=np.int32)
    names: list[str] = []
    for ops in sorted([*group_of_node, *((i,) for i in alone)]):
        group[list(ops)] = len(names)
        variables = (nodes[i].name for i in ops if nodes[i].name in handles)
        names.append(next((v for v in variables if v not in slots), nodes[ops[0]].name))
    return group, tuple(names)
