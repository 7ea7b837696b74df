"""What part each op plays in a training step that is cut into micro-batches: what runs once, and what runs for each."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from .forward_only import backward_ops, helper_ops

SETUP, FORWARD, BACKWARD, UPDATE = range(4)
"""`SETUP` and `UPDATE` run once per step, before and after all micro-batches; the others once per micro-batch."""

Bools = NDArray[np.bool_]

_UPDATES = re.compile(
    r"((Stateless)?(If|Case|While))?Update$|State$|Stored$|Assign|ResourceStridedSliceAssign|(Resource)?(Sparse)?Apply[A-Z]|"
    r"(Resource)?Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)$"
)
_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
_CONSTANTS = frozenset({"Const", "HostConst", *_VARIABLES})
_RANDOM = re.compile(r"Random|Multinomial|Dropout|Rng")
_SUMS = frozenset({"Add", "AddN", "AddV2", "AccumulateNV2"})


def roles(graph: OpGraph) -> NDArray[np.int8]:
    """int8[n]: `SETUP`, `FORWARD`, `BACKWARD` or `UPDATE` for every op of one micro-batch's graph.

    - UPDATE: ops that write variables (by type: `ResourceApply...`, `Assign...`, `Update`, ...; a conditional or loop that
      does is an `IfUpdate`, `CaseUpdate` or `WhileUpdate`) or bring what they write
      from a host and back (`State`, `Stored`) unless a backward op depends on them, and what follows them. What only they
      read is done once as well where it does not look at the batch (learning rates), or comes after the gradients and is no
      gradient itself (no `forward_of`): clipping by the norm of all gradients happens after they were accumulated. Sums of
      gradients of one variable stay with the micro-batch.
    - SETUP: what does not depend on the batch: variables, constants, and what is computed from those alone (reads,
      casts of weights), except random numbers, other backward ops, and what those belong to. In a graph whose every source is
      one of these, only variables and their reads, since its batch must be among the constants. A variable is known by
      its type, or as an op that reads nothing, keeps bytes, and takes no time or shares its group with an update.
    - BACKWARD: ops with a `forward_of`, their descendants, and what only those read.
    - FORWARD: the rest. In a graph without backward ops that is everything that looks at the batch.

    Ops of a coarse graph are judged by the type of their longest member. O(ops + edges).

    >>> graph = OpGraph.from_edges([0, 5, 9, 1], [(0, 1, 4), (1, 2, 4), (2, 3, 4)], forward_of=[-1, -1, 1, -1],
    ...                            op_types=["Variable", "MatMul", "MatMulGrad", "Update"])
    >>> roles(graph).tolist() == [SETUP, FORWARD, BACKWARD, UPDATE]
    True
    """
    if graph not in _ROLES_OF_GRAPH:
        _ROLES_OF_GRAPH[graph] = _compute_roles(graph)
    return _ROLES_OF_GRAPH[graph].copy()


_ROLES_OF_GRAPH: WeakKeyDictionary[OpGraph, NDArray[np.int8]] = WeakKeyDictionary()
"""What was found for graphs that still exist: a search asks again and again."""


def _compute_roles(graph: OpGraph) -> NDArray[np.int8]:
    descends = backward_ops(graph)
    update = _update_ops(graph, descends)
    batch = _looks_at_batch(graph, update)
    update |= _feeds_only(graph, update, batch, descends)
    role = np.full(graph.n, FORWARD, dtype=np.int8)
    role[descends | helper_ops(graph, descends & ~update)] = BACKWARD
    role[~batch] = SETUP
    role[update] = UPDATE
    return role


def _update_ops(graph: OpGraph, descends: Bools) -> Bools:
    """Ops that write variables, and their descendants."""
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    needed = (graph.forward_of >= 0).tolist()  # a backward op, or one that a backward op depends on
    for op in graph.order[::-1].tolist():
        if needed[op]:
            for k in predecessor[pointer[op] : pointer[op + 1]]:
                needed[k] = True
    writes = [bool(_UPDATES.match(t)) and not n for t, n in zip(graph.op_types, needed, strict=True)]
    for op in graph.order.tolist():
        writes[op] = writes[op] or any(writes[k] for k in predecessor[pointer[op] : pointer[op + 1]])
    return np.array(writes, dtype=np.bool_)


def _looks_at_batch(graph: OpGraph, update: Bools) -> Bools:
    """Ops whose result may differ from micro-batch to micro-batch."""
    source = np.diff(graph.predecessors[0]) == 0
    updated = np.zeros(len(graph.colocation_names) + 1, dtype=np.bool_)
    updated[graph.colocation[update]] = True
    updated[-1] = False  # ops without a group
    idle = graph.duration_us == 0
    for column in graph.duration_by_kind.values():
        idle &= column == 0
    variable = np.array([t in _VARIABLES for t in graph.op_types], dtype=np.bool_)
    variable |= source & (graph.persistent_bytes > 0) & (idle | updated[graph.colocation])
    constant = variable | np.array([t in _CONSTANTS for t in graph.op_types], dtype=np.bool_)
    fixed = constant if np.any(source & ~constant) else variable
    random = [bool(_RANDOM.search(t)) for t in graph.op_types]
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    looks_first = source & ~fixed | (graph.forward_of >= 0) & ~constant
    looks_first[graph.forward_of[graph.forward_of >= 0]] = True
    looks = looks_first.tolist()
    for op in graph.order.tolist():
        looks[op] = looks[op] or random[op] or any(looks[k] for k in predecessor[pointer[op] : pointer[op + 1]])
    return np.array(looks, dtype=np.bool_)


def _feeds_only(graph: OpGraph, update: Bools, batch: Bools, descends: Bools) -> Bools:
    """Ops read by updates alone that are done once: what ignores the batch, and what comes after the gradients."""
    pointer, successor = (a.tolist() for a in graph.successors)
    may = (~batch | (descends & (graph.forward_of < 0))).tolist()
    is_update, has_readers = update.tolist(), (np.diff(graph.successors[0]) > 0).tolist()
    for op in graph.order[::-1].tolist():
        if may[op] and has_readers[op] and not is_update[op]:
            is_update[op] = all(is_update[k] for k in successor[pointer[op] : pointer[op + 1]])
    # Adding up the gradients of one variable is cheaper before they are accumulated, which is adding as well. What an optimizer
    # adds to them, such as a penalty on the weight, comes once.
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    for op in graph.order.tolist():
        if is_update[op] and batch[op] and not update[op] and graph.op_types[op] in _SUMS:
            is_update[op] = any(is_update[k] for k in predecessor[pointer[op] : pointer[op + 1]])
    # A variable that is only updated is read before it is: it stays with the others.
    return np.array(is_update, dtype=np.bool_) & (graph.persistent_bytes == 0)
