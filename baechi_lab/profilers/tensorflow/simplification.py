"""Removes ops that only tracing added, so that the remaining graph can be distributed over devices.

A traced function ends in a barrier: its outputs wait for every side effect, and Keras passes all gradients through one
`IdentityN`. On one device that costs nothing; on several devices it would pull every gradient through one of them. The
rewrites below preserve every value and every order between reads and writes of one variable:

* data bypasses IdentityN and the arguments and results of inlined calls, handles bypass any Identity;
* the barrier of the outputs becomes the list of side effects that must run (`updates`);
* NoOps that join control dependencies are dissolved if that adds no edges;
* control dependencies of and on constants are removed;
* reads of one variable that must see the same value are merged.

Each pass is linear in nodes and edges.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidInput
from ...graph.kernels.csr import topological_order
from .nodes import READ_ONLY, control_inputs, data_inputs, has_side_effect, join, reachable, split

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

INLINER_SCOPE = "Func/"
"""Scope of the arguments and results of calls that TensorFlow's inliner has replaced."""

_ALWAYS_READY = frozenset({"Const", "VarHandleOp", "Placeholder"})


def simplify(
    nodes: list[NodeDef], inputs: list[str], outputs: list[str], effects: list[str]
) -> tuple[list[NodeDef], list[str], list[str]]:
    """Returns the nodes in topological order, the outputs' references, and the ops that must run besides them.

    `nodes` are NodeDefs (changed in place), `inputs` are names of Placeholders that always stay, `outputs` are references
    like `"Identity:0"`, `effects` are ops that the function runs for their side effects.
    """
    table = {n.name: n for n in nodes}
    executed_ops = reachable(table, [*effects, *(split(r)[0] for r in outputs)])
    updates = [n.name for n in nodes if n.name in executed_ops and has_side_effect(n.op)]
    # The final Identity of an output waits for side effects, which run in their own right.
    for reference in outputs:
        node = table[split(reference)[0]]
        if node.op == "Identity":
            _set_inputs(node, [join(*r) for r in data_inputs(node)])
    outputs = _bypass_identities(nodes, outputs)
    # Constants wait for nothing, and nothing waits for them.
    for node in table.values():
        if controls := control_inputs(node):
            is_ready = node.op in _ALWAYS_READY
            remaining = ["^" + c for c in controls if not is_ready and table[c].op not in _ALWAYS_READY]
            _set_inputs(node, [*(join(*r) for r in data_inputs(node)), *remaining])
    _merge_reads(table)
    _dissolve_barriers(table)
    remaining_ops = reachable(table, [*inputs, *updates, *(split(r)[0] for r in outputs)])
    nodes = [n for n in nodes if n.name in remaining_ops]
    index = {n.name: i for i, n in enumerate(nodes)}
    pairs = [(index[split(r)[0]], i) for i, n in enumerate(nodes) for r in n.input]
    source, target = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    order = topological_order(len(nodes), source, target)
    if order is None:
        raise InvalidInput(
            "the traced graph has a cycle of ops; loops must be tf.while_loop or Python loops over tensors"
        )
    return [nodes[i] for i in order.tolist()], outputs, updates


def _set_inputs(node: NodeDef, references: list[str]) -> None:
    """Sets data inputs in order, then each control dependency once, without those on ops that are read anyway."""
    data = [r for r in references if not r.startswith("^")]
    read = {split(r)[0] for r in data}
    controls = [r for r in dict.fromkeys(references) if r.startswith("^") and r[1:] not in read and r[1:] != node.name]
    del node.input[:]
    node.input.extend(data + controls)


def _bypass_identities(nodes: list[NodeDef], outputs: list[str]) -> list[str]:
    """Makes consumers read the inputs of an IdentityN or a call's argument, and handles from their source.

    Consumers also wait for the ops that the bypassed op waited for. Returns the outputs' new references.
    """
    import tensorflow as tf

    source: dict[tuple[str, int], tuple[str, int]] = {}
    waits: dict[str, list[str]] = {}
    for node in nodes:
        handle = node.op == "Identity" and node.attr["T"].type == tf.resource.as_datatype_enum
        if node.op == "IdentityN" or handle or (node.op == "Identity" and node.name.startswith(INLINER_SCOPE)):
            source.update(((node.name, k), r) for k, r in enumerate(data_inputs(node)))
            waits[node.name] = control_inputs(node)

    def follow(reference: str) -> list[str]:
        at, controls = split(reference), []
        while at in source:
            controls += ["^" + c for c in waits[at[0]]]
            at = source[at]
        return [join(*at), *controls]

    for node in nodes:
        if any(split(r) in source for r in node.input):
            _set_inputs(node, [f for r in node.input for f in follow(r)])
    return [join_output(follow(r)[0]) for r in outputs]


def join_output(reference: str) -> str:
    """Returns a tensor's full name, `"op:0"`."""
    name, output = split(reference)
    return f"{name}:{output}"


def _merge_reads(table: dict[str, NodeDef]) -> None:
    """Merges the reads of a variable that wait for the same ops; all reads of a variable that is never written.

    Reads that wait for the same ops see the same value: the traced function orders every write after each of them.
    """
    written_variables: set[str] = set()
    for node in table.values():
        if node.op not in READ_ONLY:
            written_variables.update(name for name, _ in data_inputs(node) if table[name].op == "VarHandleOp")
    first: dict[tuple[object, ...], str] = {}
    same: dict[str, str] = {}
    for node in table.values():
        if node.op != "ReadVariableOp":
            continue
        handle = split(node.input[0])
        may_change = handle[0] in written_variables or table[handle[0]].op != "VarHandleOp"
        waits = frozenset(control_inputs(node)) if may_change else None
        if waits is None:
            _set_inputs(node, [join(*handle)])
        same[node.name] = first.setdefault((handle, node.attr["dtype"].type, waits), node.name)
    for node in table.values():
        references = [join(same.get(p, p), k) for p, k in map(split, node.input)]
        if references != list(node.input):
            _set_inputs(node, references)


def _dissolve_barriers(table: dict[str, NodeDef]) -> None:
    """Connects both sides of a NoOp directly if that needs no more edges than the NoOp."""
    waiting: dict[str, set[str]] = defaultdict(set)
    for node in table.values():
        for control in control_inputs(node):
            if table[control].op == "NoOp":
                waiting[control].add(node.name)
    for name in list(waiting):
        before, after = control_inputs(table[name]), waiting[name]
        if len(before) * len(after) > len(before) + len(after):
            continue
        for waiter in after:
            node = table[waiter]
            _set_inputs(node, [*(r for r in node.input if r != "^" + name), *("^" + b for b in before)])
            for b in before:
                if table[b].op == "NoOp":
                    waiting[b].add(waiter)
        for b in before:
            waiting[b].discard(name)
