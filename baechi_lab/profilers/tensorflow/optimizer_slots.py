"""Finds the variable of each optimizer slot (momentum, velocity, ...).

Keras optimizers tell: per kind of slot they keep a list that is parallel to their trainable variables. A list of the same
length may be something else (all variables, or one number per layer), so a slot must be one of the optimizer's own variables
that has its variable's shape or name (factored slots have other shapes).

For other optimizers, data flow tells: a slot is a variable that is read only to update itself and exactly one other variable
of its shape. Fused update ops (`ResourceApplyAdam`, ...) name the variable first and its slots after it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .nodes import data_inputs, split

if TYPE_CHECKING:
    from tensorflow import Tensor, Variable
    from tensorflow.core.framework.graph_pb2 import GraphDef


def keras_slots(candidate: Any) -> dict[int, int]:
    """Returns slot -> variable, by `id` of their handles, for a Keras optimizer; an empty dict for any other object."""
    trainable = getattr(candidate, "_trainable_variables", None)
    if not hasattr(candidate, "apply_gradients") or not trainable:
        return {}
    not_slots = (getattr(candidate, "iterations", None), getattr(candidate, "_learning_rate", None))
    slot_ids = {id(v) for v in candidate.variables} - {id(v) for v in (*trainable, *not_slots)}
    owners: dict[int, set[int]] = defaultdict(set)
    for name, slot_list in vars(candidate).items():
        if name == "_variables" or not isinstance(slot_list, (list, tuple)) or len(slot_list) != len(trainable):
            continue
        pairs = [(slot, variable) for slot, variable in zip(slot_list, trainable, strict=True) if id(slot) in slot_ids]
        if all(tuple(slot.shape) == tuple(variable.shape) or slot.name == variable.name for slot, variable in pairs):
            for slot, variable in pairs:
                owners[id(_handle(slot))].add(id(_handle(variable)))
    # If two lists contradict each other, the data flow decides.
    return {slot: of.pop() for slot, of in owners.items() if len(of) == 1}


def _handle(variable: Variable) -> Tensor:
    """Returns the handle of a Keras variable, or of a `tf.Variable`, whose `value` is a method."""
    return (variable if callable(variable.value) else variable.value).handle


def optimizer_slots(
    graph_def: GraphDef, shapes: dict[str, tuple[int, ...]], declared_slots: dict[str, str]
) -> dict[str, str]:
    """Returns slot -> variable by name: `declared_slots` first, then slots that the graph shows unambiguously."""
    slots = {**_slots_by_data_flow(graph_def, shapes), **_slots_of_fused_updates(graph_def, shapes)}
    owners = set(declared_slots.values())
    slots = {slot: variable for slot, variable in slots.items() if slot not in owners}
    return dict(sorted({**slots, **declared_slots}.items()))


def _slots_of_fused_updates(graph_def: GraphDef, shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    slots = {}
    for node in graph_def.node:
        if node.op.startswith(("ResourceApply", "ResourceSparseApply")):
            handles = [p for p, _ in data_inputs(node) if p in shapes]
            slots.update({s: handles[0] for s in handles[1:] if shapes[s] == shapes[handles[0]]})
    return slots


def _slots_by_data_flow(graph_def: GraphDef, shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """Follows each variable's value through update arithmetic to the variables that are assigned from it."""
    # The ops that are gradient ops or that a gradient op reads, directly or through others.
    before_gradient: set[str] = set()
    for node in reversed(graph_def.node):
        if node.name in before_gradient or "gradient_tape/" in node.name or "gradients/" in node.name:
            before_gradient.add(node.name)
            before_gradient.update(split(r)[0] for r in node.input)
    names = {node.name for node in graph_def.node}
    arithmetic = names - before_gradient
    reads: dict[str, list[str]] = defaultdict(list)
    reach: dict[str, set[str]] = defaultdict(set)  # op -> variables that are assigned from its value
    for node in reversed(graph_def.node):
        sources = list(data_inputs(node))
        if node.op.startswith("Assign") and sources and sources[0][0] in shapes:
            targets = {sources[0][0]}
            sources = sources[1:]
        elif node.op == "ReadVariableOp":
            reads[split(node.input[0])[0]].append(node.name)
            continue
        elif node.name in arithmetic:
            targets = reach[node.name]
        else:
            continue
        for producer, _ in sources:
            reach[producer] |= targets
    slots = {}
    for variable, shape in shapes.items():
        if shape and variable in names and arithmetic.issuperset(reads[variable]):
            targets = set().union(*(reach[read] for read in reads[variable]))
            assigned_variables = {t for t in targets - {variable} if shapes[t] == shape}
            if variable in targets and len(assigned_variables) == 1:
                slots[variable] = assigned_variables.pop()
    return slots
