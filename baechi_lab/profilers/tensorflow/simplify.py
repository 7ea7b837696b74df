"""Take from a traced graph what only tracing put there, so that what is left can be spread over devices.

A traced function ends in a barrier: its outputs wait for every side effect, and Keras passes all gradients
through one `IdentityN`. On one device that costs nothing; on several it would pull every gradient through one of
them. The rewrites below keep every value and every order between reads and writes of one variable:

* data flows past IdentityN and past the arguments and results of inlined calls, handles past any Identity;
* the barrier of the outputs becomes the list of side effects that must run (`updates`);
* NoOps that join control dependencies are dissolved where that adds no edges;
* control dependencies of and on constants go;
* reads of one variable that must see the same value are one read.

Each pass is linear in nodes and edges.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from ...errors import InvalidInput
from ...graph.kernels.csr import topological_order
from .nodes import READ_ONLY, control_inputs, data_inputs, has_side_effect, join, reachable, split

INLINER_SCOPE = "Func/"
"""Where TensorFlow's inliner puts the arguments and results of a call."""

_ALWAYS_READY = frozenset({"Const", "VarHandleOp", "Placeholder"})


def simplify(
    nodes: list[Any], inputs: list[str], outputs: list[str], effects: list[str]
) -> tuple[list[Any], list[str], list[str]]:
    """Nodes in topological order, the outputs' references, and the ops that must run besides them.

    `nodes` are NodeDefs (changed in place), `inputs` names of Placeholders that are kept in any case, `outputs`
    references like `"Identity:0"`, `effects` ops that the function runs for their side effects.
    """
    table = {n.name: n for n in nodes}
    ran = reachable(table, [*effects, *(split(r)[0] for r in outputs)])
    updates = [n.name for n in nodes if n.name in ran and has_side_effect(n.op)]
    _release_outputs(table, outputs)
    outputs = _bypass_identities(nodes, outputs)
    _drop_constant_controls(table)
    _merge_reads(table)
    _dissolve_barriers(table)
    kept = reachable(table, [*inputs, *updates, *(split(r)[0] for r in outputs)])
    return _in_topological_order([n for n in nodes if n.name in kept]), outputs, updates


def _set_inputs(node: Any, references: list[str]) -> None:
    """Data inputs first and in order, then each control dependency once, none on an op that is read anyway."""
    data = [r for r in references if not r.startswith("^")]
    read = {split(r)[0] for r in data}
    controls = [r for r in dict.fromkeys(references) if r.startswith("^") and r[1:] not in read and r[1:] != node.name]
    del node.input[:]
    node.input.extend(data + controls)


def _release_outputs(table: dict[str, Any], outputs: list[str]) -> None:
    """An output's final Identity need not wait for side effects that are run in their own right."""
    for reference in outputs:
        node = table[split(reference)[0]]
        if node.op == "Identity":
            _set_inputs(node, [join(*r) for r in data_inputs(node)])


def _bypass_identities(nodes: list[Any], outputs: list[str]) -> list[str]:
    """Consumers read what an IdentityN or a call's argument reads, and a handle from its source.

    What the bypassed op waited for, its consumers wait for. Returns the outputs' new references.
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
    """A tensor's full name, `"op:0"`."""
    name, output = split(reference)
    return f"{name}:{output}"


def _drop_constant_controls(table: dict[str, Any]) -> None:
    """A constant need not wait, and waiting for one is no wait."""
    for node in table.values():
        if control_inputs(node):
            keep = (
                []
                if node.op in _ALWAYS_READY
                else [c for c in control_inputs(node) if table[c].op not in _ALWAYS_READY]
            )
            _set_inputs(node, [*(join(*r) for r in data_inputs(node)), *("^" + c for c in keep)])


def _merge_reads(table: dict[str, Any]) -> None:
    """One ReadVariableOp for all that wait for the same ops; for a variable that nobody writes, one in all.

    Reads that wait for the same ops see the same value: the traced function orders every write after each of them.
    """
    written: set[str] = set()
    for node in table.values():
        if node.op not in READ_ONLY:
            written.update(name for name, _ in data_inputs(node) if table[name].op == "VarHandleOp")
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for node in table.values():
        if node.op != "ReadVariableOp":
            continue
        handle = split(node.input[0])
        waits = (
            frozenset(control_inputs(node)) if handle[0] in written or table[handle[0]].op != "VarHandleOp" else None
        )
        if waits is None:
            _set_inputs(node, [join(*handle)])
        same[node.name] = first.setdefault((handle, node.attr["dtype"].type, waits), node.name)
    for node in table.values():
        moved = [join(same.get(p, p), k) for p, k in map(split, node.input)]
        if moved != list(node.input):
            _set_inputs(node, moved)


def _dissolve_barriers(table: dict[str, Any]) -> None:
    """Connect the two sides of a NoOp directly where that needs no more edges than the NoOp."""
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


def _in_topological_order(nodes: list[Any]) -> list[Any]:
    index = {n.name: i for i, n in enumerate(nodes)}
    pairs = [(index[split(r)[0]], i) for i, n in enumerate(nodes) for r in n.input]
    source, target = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    order = topological_order(len(nodes), source, target)
    if order is None:
        raise InvalidInput(
            "the traced graph has a cycle of ops; loops must be tf.while_loop or Python loops over tensors"
        )
    return [nodes[i] for i in order.tolist()]
