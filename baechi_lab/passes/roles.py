"""The role of each op in a step of several micro-batches: whether it runs once per step, or once per micro-batch."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.csr import Bools
from .forward_only import backward_ops, helper_ops

SETUP, FORWARD, BACKWARD, UPDATE = range(4)
"""`SETUP` and `UPDATE` run once per step, before and after all micro-batches; the others once per micro-batch."""


_UPDATES = re.compile(
    r"((Stateless)?(If|Case|While))?Update$|State$|Stored$|Assign|ResourceStridedSliceAssign|(Resource)?(Sparse)?Apply[A-Z]|"
    r"(Resource)?Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)$"
)
_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
_CONSTANTS = frozenset({"Const", "HostConst", *_VARIABLES})
_RANDOM = re.compile(r"Random|Multinomial|Dropout|Rng")
_SUMS = frozenset({"Add", "AddN", "AddV2", "AccumulateNV2"})
_COMPARISONS = frozenset("Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot".split())
_SCALAR_BYTES = 8


_ROLES_OF_GRAPH: WeakKeyDictionary[OpGraph, NDArray[np.int8]] = WeakKeyDictionary()
"""Cache of the roles of living graphs, which a search needs many times."""


def roles(graph: OpGraph) -> NDArray[np.int8]:
    """Returns int8[n]: `SETUP`, `FORWARD`, `BACKWARD` or `UPDATE` for every op of one micro-batch's graph.

    - UPDATE: ops that write variables (by type: `ResourceApply...`, `Assign...`, `Update`, ...; a conditional or loop that
      does is an `IfUpdate`, `CaseUpdate` or `WhileUpdate`), or that copy optimizer state from a host and back (`State`,
      `Stored`), unless a backward op depends on them; and their descendants. Ops that only they read are updates too, if they
      do not depend on the batch (learning rates), or if they come after the gradients and are no gradient (no `forward_of`):
      gradients are clipped by their common norm after accumulation. Sums of gradients of one variable belong to the
      micro-batch.
      A comparison of scalars that only updates read (is the loss small?) is an update: it compares the whole batch's.
    - SETUP: ops that do not depend on the batch: variables, constants, and ops computed only from those (reads,
      casts of weights), except random numbers, other backward ops, and the ops of their groups. If every source of a graph is
      one of these, only variables and their reads are SETUP, since the batch must be among the constants. A variable is
      known by its type, or as an op without inputs, with persistent bytes, that takes no time or shares a group with an update;
      only by its type in a graph that would otherwise be all SETUP.
    - BACKWARD: ops with a `forward_of`, their descendants, and ops that only those read.
    - FORWARD: all others. In a graph without backward ops these are all ops that depend on the batch.

    The role of a coarse op is that of its longest member's type, unless its original graph is known. Then a group runs once per
    step only if all its members do. O(ops + edges).
    """
    if graph not in _ROLES_OF_GRAPH:
        descends = backward_ops(graph)
        # Updates are ops that write variables, and their descendants.
        pointer, predecessor = (a.tolist() for a in graph.predecessors)
        backward_needs = (graph.forward_of >= 0).tolist()  # a backward op, or one that a backward op depends on
        for op in graph.order[::-1].tolist():
            if backward_needs[op]:
                for k in predecessor[pointer[op] : pointer[op + 1]]:
                    backward_needs[k] = True
        writes = [bool(_UPDATES.match(t)) and not n for t, n in zip(graph.op_types, backward_needs, strict=True)]
        for op in graph.order.tolist():
            writes[op] = writes[op] or any(writes[k] for k in predecessor[pointer[op] : pointer[op + 1]])
        update = np.array(writes, dtype=np.bool_)
        batch = _depends_on_batch(graph, update)
        update |= _runs_with_updates(graph, update, batch, descends)
        role = np.full(graph.n, FORWARD, dtype=np.int8)
        role[descends | helper_ops(graph, descends & ~update)] = BACKWARD
        role[~batch] = SETUP
        role[update] = UPDATE
        has_groups = graph.original is not None and graph.group_of is not None
        _ROLES_OF_GRAPH[graph] = _roles_by_members(graph, role) if has_groups else role
    return _ROLES_OF_GRAPH[graph].copy()


def group_with_several_roles(graph: OpGraph) -> int | None:
    """Returns a group with members that take time in several passes of a step (forward, backward, update), if any is known.

    Ops that run before all micro-batches, such as variables, count for no pass.
    """
    if graph.original is None or graph.group_of is None:
        return None
    has_role = _has_member_of_role(graph, graph.original.duration_us > 0)
    mixed_groups = np.flatnonzero(has_role[:, [FORWARD, BACKWARD, UPDATE]].sum(axis=1) > 1)
    return int(mixed_groups[0]) if len(mixed_groups) else None


def _has_member_of_role(graph: OpGraph, counts: Bools) -> Bools:
    """Returns bool[n, 4]: whether each group has members of each role, among the original ops that count."""
    has_role = np.zeros((graph.n, 4), dtype=np.bool_)
    has_role[graph.group_of[counts], roles(graph.original)[counts]] = True  # type: ignore[index, arg-type]
    return has_role


def _roles_by_members(graph: OpGraph, role: NDArray[np.int8]) -> NDArray[np.int8]:
    """Corrects `role` int8[n], which is that of the longest members, where other members run once per micro-batch."""
    has_role = _has_member_of_role(graph, np.ones(len(graph.group_of), dtype=np.bool_))  # type: ignore[arg-type]
    repeated_role = np.where(has_role[:, FORWARD], FORWARD, BACKWARD).astype(np.int8)
    is_repeated = has_role[:, FORWARD] | has_role[:, BACKWARD]
    runs_once = (role == SETUP) | (role == UPDATE)
    role = np.where(is_repeated & runs_once, repeated_role, role)
    # Nothing that runs once before the micro-batches reads what they make, and they read nothing of what runs after them.
    for op in graph.order.tolist():
        if role[op] == SETUP and np.any(role[_neighbours(graph.predecessors, op)] != SETUP):
            role[op] = repeated_role[op]
    for op in graph.order[::-1].tolist():
        if role[op] == UPDATE and np.any(role[_neighbours(graph.successors, op)] != UPDATE):
            role[op] = repeated_role[op]
    return role


def _neighbours(pairs: tuple[NDArray[np.int64], NDArray[np.int32]], op: int) -> NDArray[np.int32]:
    pointer, ops = pairs
    return ops[pointer[op] : pointer[op + 1]]


def _depends_on_batch(graph: OpGraph, update: Bools) -> Bools:
    """Returns bool[n]: ops whose outputs may differ between micro-batches."""
    source = np.diff(graph.predecessors[0]) == 0
    has_update = np.zeros(len(graph.colocation_names) + 1, dtype=np.bool_)
    has_update[graph.colocation[update]] = True
    has_update[-1] = False  # ops without a group
    idle = graph.duration_us == 0
    for column in graph.duration_by_kind.values():
        idle &= column == 0
    typed_variable = np.array([t in _VARIABLES for t in graph.op_types], dtype=np.bool_)
    variable = typed_variable | source & (graph.persistent_bytes > 0) & (idle | has_update[graph.colocation])
    constant = variable | np.array([t in _CONSTANTS for t in graph.op_types], dtype=np.bool_)
    random = np.array([bool(_RANDOM.search(t)) for t in graph.op_types], dtype=np.bool_)
    depends_first = random | (graph.forward_of >= 0) & ~constant
    depends_first[graph.forward_of[graph.forward_of >= 0]] = True
    depends = _with_descendants(graph, depends_first | source & ~(constant if np.any(source & ~constant) else variable))
    # If nothing depended on the batch, it must be among the ops that only look like variables.
    return depends if depends.any() else _with_descendants(graph, source & ~typed_variable)


def _with_descendants(graph: OpGraph, marks: Bools) -> Bools:
    """Returns bool[n]: the marked ops and their descendants."""
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    is_marked = marks.tolist()
    for op in graph.order.tolist():
        is_marked[op] = is_marked[op] or any(is_marked[k] for k in predecessor[pointer[op] : pointer[op + 1]])
    return np.array(is_marked, dtype=np.bool_)


def _runs_with_updates(graph: OpGraph, update: Bools, batch: Bools, descends: Bools) -> Bools:
    """Returns bool[n]: ops that only updates read and that run once: those independent of the batch or after the gradients.

    The step may also return their outputs, such as the common norm of its gradients.
    """
    pointer, successor = (a.tolist() for a in graph.successors)
    after_gradients = descends & (graph.forward_of < 0)
    is_output = np.array([t == "Identity" for t in graph.op_types], dtype=np.bool_)
    is_output &= after_gradients & (np.diff(graph.successors[0]) == 0)
    # Comparisons whose inputs are scalars.
    compares = np.array([t in _COMPARISONS for t in graph.op_types], dtype=np.bool_)
    large = graph.tensor_bytes[graph.edge_tensor] > _SCALAR_BYTES
    compares[graph.consumers[large]] = False
    may_be_update, is_returned = (~batch | after_gradients | compares).tolist(), is_output.tolist()
    is_update = update.tolist()
    for op in graph.order[::-1].tolist():
        if may_be_update[op] and not is_update[op]:
            readers = successor[pointer[op] : pointer[op + 1]]
            is_update[op] = any(is_update[k] for k in readers) and all(is_update[k] or is_returned[k] for k in readers)
            for k in readers if is_update[op] else ():
                is_update[k] = True
    # Sums of gradients of one variable are cheaper before the accumulation. Terms that an optimizer adds to gradients, such as
    # a penalty on the weight, are added once.
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    for op in graph.order.tolist():
        if is_update[op] and batch[op] and not update[op] and graph.op_types[op] in _SUMS:
            is_update[op] = any(is_update[k] for k in predecessor[pointer[op] : pointer[op + 1]])
    # A variable that is only updated is read before its update, so it stays SETUP.
    return np.array(is_update, dtype=np.bool_) & (graph.persistent_bytes == 0)
