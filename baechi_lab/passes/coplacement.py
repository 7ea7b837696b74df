"""Co-placement (Jeon et al. 2020, section 3.2): groups of ops between which a transfer would only cost time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph
from ..graph.kernels.csr import Ints, distinct
from .base import Pass
from .forward_only import backward_ops, helper_ops
from .joined_ops import JoinedOps


@dataclass(frozen=True)
class CoPlacement(Pass):
    r"""Put an op with its only reader, and a backward op with its forward op, into one group.

    Rules:

    - (i, `chains`) An op whose outputs are all read by exactly one op joins that op's group.
    - (ii, `backward`) A backward op joins the group of its forward op.
    - (iii, `constants`, not in the paper) An op that reads nothing and belongs to no group joins the one group that holds all
      of its readers.
    - (iv, `cells`) The ops of one cell join: those whose name (for a backward op, its forward op's) agrees up to a component
      that matches the regular expression `cells`. Members of a given group are left out of this rule.

    The groups of the result are the closure of the rules and of the given colocation groups, by union-find in op order. They
    are written as colocation groups. Ops are joined only if the allowed list of one side contains that of the other, so that
    a group may run wherever one of its ops may. So the rules make no graph infeasible on a cluster that could run its ops.

    `cells`: Baechi "applies the co-placement optimization to LSTM cell operators and also to attention operators"
    (Jeon et al. 2020, section 5.1). In its TensorFlow 1.12 an LSTM cell is one object per layer, called at every time step, so
    the default takes all that is unrolled below one component (`encoder/layer1/t7/...` belongs to `encoder/layer1`).
    r"t\d+" makes every time step a cell of its own, None none at all. `operators`, likewise by name, are those that
    were one operator in TensorFlow 1.12 and are a dozen here, batch normalizations: they count as one op in rule (i).

    `readers`: the readers that count in rule (i). "forward", the default: only forward readers of a forward op, and a backward
    op with a `forward_of` joins only that op; Jeon et al. 2020 place "only forward operators" and let the others
    follow (section 3.3). "all" also counts backward readers and joins gradients, so that through rule (ii) a whole
    model may become one group. Rule (i) treats `operators` and given groups as single ops, and then each op
    alone. A given group (a variable) that a single op, operator or cell reads joins it first.

    `largest`: with a share such as 0.25, a join that would give one group more than that share of all work is left
    out (rules i and iii). The paper has no such limit and had to switch co-placement off for Inception-V3, where it
    "generated a massive operator group" (section 5.4); None is the paper's rule.

    O((ops + edges) log ops).
    """

    name: ClassVar[str] = "coplacement"
    chains: bool = True
    backward: bool = True
    constants: bool = True
    cells: str | None = r"[^/]+(?=/t\d+/)"
    operators: str | None = r"([^/]+_)?(batch_normalization|bn)(_\d+)*"
    readers: str = "forward"
    largest: float | None = None

    def validate(self) -> None:
        for field, pattern in (("cells", self.cells), ("operators", self.operators)):
            try:
                re.compile(pattern or "")
            except (re.error, TypeError) as error:
                text = f"{field} is {pattern!r}; it must be a regular expression or None: {error}"
                raise InvalidInput(text) from error
        if self.readers not in ("forward", "all"):
            raise InvalidInput(f"readers is {self.readers!r}; it must be 'forward' or 'all'")
        if self.largest is not None and (isinstance(self.largest, bool) or not 0 < self.largest <= 1):
            raise InvalidInput(
                f"largest is {self.largest!r}; it must be a share of the work above 0 and at most 1, or None"
            )

    def apply(self, graph: OpGraph) -> OpGraph:
        joined_ops, backward = JoinedOps(graph), None
        if self.readers == "forward":
            descends = backward_ops(graph)
            backward = descends | helper_ops(graph, descends)
        if self.backward:
            member = np.flatnonzero(graph.forward_of >= 0)
            joined_ops.join_pairs(member, graph.forward_of[member])
        limit = None if self.largest is None else self.largest * float(graph.duration_us.sum())
        operator_of = np.arange(graph.n)
        if self.operators is not None:
            member, head = _cells(graph, self.operators)
            operator_of[member] = head
            joined_ops.join_pairs(member, head, limit)
        if self.chains:
            _join_variables(graph, joined_ops, limit, backward)
        units = joined_ops.roots()
        if self.cells is not None:
            joined_ops.join_pairs(*_cells(graph, self.cells), limit)
        if self.chains:
            _join_variables(graph, joined_ops, limit, backward)
            for unit in (operator_of, units):
                joined_ops.join_pairs(*_only_readers(graph, unit, backward), limit)
        if self.constants:
            # Rule (iii): single ops without inputs join the group that holds all of their readers.
            pointer, successor = (a.tolist() for a in graph.successors)
            roots = joined_ops.roots()
            size, root = np.bincount(roots, minlength=graph.n), roots.tolist()
            for op in np.flatnonzero((np.diff(graph.inputs[0]) == 0) & (size == 1)).tolist():
                readers = {root[reader] for reader in successor[pointer[op] : pointer[op + 1]]}
                if root[op] == op and len(readers) == 1:
                    joined_ops.join(op, readers.pop(), limit)
        root = joined_ops.roots()
        size = np.bincount(root, minlength=graph.n) if graph.n else root
        # A given group of one op stays; the colocation pass drops such groups.
        is_grouped = (size[root] > 1) | (graph.colocation >= 0)
        heads, column = np.unique(root[is_grouped], return_inverse=True)
        colocation = np.full(graph.n, -1, dtype=np.int32)
        colocation[is_grouped] = column.reshape(-1)
        # The name of the first given group in each set, else `with/<first member>`.
        given_names: dict[int, str] = {}
        for op in np.flatnonzero(graph.colocation >= 0).tolist():
            given_names.setdefault(int(colocation[op]), graph.colocation_names[graph.colocation[op]])
        used_names, set_names = set(given_names.values()), []
        for k, head in enumerate(heads.tolist()):
            name = given_names.get(k, f"with/{graph.names[head]}")
            while k not in given_names and name in used_names:
                name += "'"
            used_names.add(name)
            set_names.append(name)
        if np.array_equal(colocation, graph.colocation) and tuple(set_names) == graph.colocation_names:
            return graph
        return graph.replace(colocation=colocation, colocation_names=tuple(set_names))


def _join_variables(
    graph: OpGraph, joined_ops: JoinedOps, limit: float | None, backward: NDArray[np.bool_] | None
) -> None:
    """Applies rule (i) to given groups: a group that a single group reads joins it."""
    unit = joined_ops.roots()
    source, reader = _only_readers(graph, unit, backward)
    is_grouped = np.isin(source, unit[graph.colocation >= 0])
    joined_ops.join_pairs(source[is_grouped], reader[is_grouped], limit)


def _cells(graph: OpGraph, pattern: str) -> tuple[Ints, Ints]:
    """Returns the ops of cells, and the first op of each op's cell."""
    component, first = re.compile(rf"^(?:.*/)?(?:{pattern})(?=/)"), dict[str, int]()
    forward = np.where(graph.forward_of >= 0, graph.forward_of, np.arange(graph.n)).tolist()
    member, head = [], []
    for op in np.flatnonzero(graph.colocation < 0).tolist():
        cell = component.match(graph.names[forward[op]])
        if cell:
            member.append(op)
            head.append(first.setdefault(cell[0], op))
    return np.array(member, dtype=np.int64), np.array(head, dtype=np.int64)


def _only_readers(graph: OpGraph, cell: Ints, backward: NDArray[np.bool_] | None) -> tuple[Ints, Ints]:
    """Returns the cells that exactly one other cell reads, and the cell that reads each. An op without a cell is its own cell.

    Where `backward` ops are known, only forward ops count as readers of forward ops, and a backward op with a `forward_of` is
    left out.
    """
    source, reader = graph.edge_source.astype(np.int64), graph.consumers.astype(np.int64)
    if backward is not None:
        counts = (backward[source] == backward[reader]) & (graph.forward_of[source] < 0)
        source, reader = source[counts], reader[counts]
    pair = cell[source] * np.int64(graph.n + 1) + cell[reader]
    pair = distinct(pair[cell[source] != cell[reader]])
    source, reader = pair // (graph.n + 1), pair % (graph.n + 1)
    only = np.bincount(source, minlength=graph.n)[source] == 1
    return source[only], reader[only]
