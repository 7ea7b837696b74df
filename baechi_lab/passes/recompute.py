"""Recomputation: outputs of forward ops are dropped after the forward pass and computed again when the backward pass is due.

A dropped op that the backward pass needs is copied (`name/again`). The backward ops read the copy, and so do the copies
of its forward readers; the forward pass reads the original, whose outputs are then free. A copy is due with the first
backward op, in topological order, that needs it. It waits, by a control dependency, for the last of that op's inputs
that the backward pass makes, since a copy that runs earlier saves no memory. Where there is none, at the start of the
backward pass, it waits for the last forward op that is read there. Which ops are kept is chosen in
`passes.checkpoints`. Each op is computed again at most once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import offsets
from .base import Pass
from .checkpoints import KEEP, kept_ops
from .repeatable import Parts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


def recompute(
    graph: OpGraph,
    keep: str | Iterable[str] | None = None,
    *,
    drop: Iterable[str] | None = None,
    budget: int | None = None,
) -> OpGraph:
    """The graph of a step that computes dropped outputs of forward ops again before the backward pass reads them.

    Never repeated, hence always kept: variables, constants and reads of them, sources, random ops (the backward pass
    must see the same mask), batch statistics, ops with side effects, and what an update reads. Copies are named `name/again`,
    share their original's colocation group, hold no persistent bytes, and have it as their `forward_of`; copies of an
    op that keeps bytes get a group with it. An unrolled graph stays one, so a placement of its micro-batch holds for
    the copies too. An op that reads a variable itself is computed again before that variable's update.
    O((ops + edges) log) besides the choice.

    Args:
        graph: the profile of a training step, not coarsened.
        keep: which forward ops keep their outputs; give one of `keep`, `drop` and `budget`.

            - `"all"`: nothing is recomputed.
            - `"boundaries"`: ops whose output another layer reads in the forward pass. A layer is a colocation group;
              for ops without one, the ops whose names agree up to the last `/`; an op without either is one itself.
            - `"sqrt"` (the default): the forward ops in topological order are cut into about sqrt(n) segments of
              equal bytes, n ops being read by the backward pass. Kept are the last segment and what one segment reads of
              another (Chen et al. 2016, section 4.1, arXiv:1604.06174).
            - names: these ops.
        drop: names of the ops whose outputs are dropped; all others are kept.
        budget: bytes that may be held at once for the backward pass: outputs of forward ops that are kept, and copies.
            The least work that must be repeated is found by an integer program (`passes.checkpoint_program`).

    Returns:
        The new graph; the given one when nothing is computed again.

    Raises:
        UnknownNameError: no choice of that name.
        UnknownOpError: no op of that name.
        InvalidInput: a coarse graph; an op in `drop` that cannot be repeated; several choices.
        InfeasiblePlacement: `budget` is below the least that any plan of the program needs; it is in `needed_bytes`.

    >>> graph = OpGraph.from_edges([1, 1, 1, 1, 2, 2],
    ...     [(0, 1, 8), (1, 2, 8), (2, 3, 8), (3, 4, 8), (4, 5, 8), (1, 5, 8), (2, 4, 8)],
    ...     names=["x", "a", "b", "loss", "b_grad", "a_grad"], forward_of=[-1, -1, -1, -1, 2, 1])
    >>> recompute(graph, drop=["a"]).names
    ('x', 'a', 'b', 'loss', 'b_grad', 'a_grad', 'a/again')
    """
    chosen = Recompute(_names_or_choice("keep", keep), _names_or_choice("drop", drop), budget)
    chosen.check()
    return chosen.apply(graph)


def _names_or_choice(field: str, given: Any) -> Any:
    """A text or None as it is, names as a tuple."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Iterable):
        raise InvalidInput(f"{field} is {given!r:.60}; it must be a list of op names" + CHOICES[field])
    return tuple(given)


CHOICES = {"keep": f", or one of {', '.join(map(repr, KEEP))}", "drop": ""}


@dataclass(frozen=True)
class Recompute(Pass):
    """Outputs of forward ops are dropped and computed again before the backward pass reads them."""

    name: ClassVar[str] = "recompute"
    keep: str | tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    budget: int | None = None

    def validate(self) -> None:
        given = [key for key in ("keep", "drop", "budget") if getattr(self, key) is not None]
        if len(given) > 1:
            raise InvalidInput(f"{' and '.join(given)} are given; choose by one of keep, drop and budget")
        _names_or_choice("keep", self.keep)
        _names_or_choice("drop", self.drop)
        if isinstance(self.drop, str):
            raise InvalidInput(f"drop is {self.drop!r}; it must be a list of op names, for example [{self.drop!r}]")
        if self.budget is not None and self.budget < 0:
            raise InvalidInput(f"budget is {self.budget!r}; it must be a number of bytes of at least 0")

    def apply(self, graph: OpGraph) -> OpGraph:
        if not isinstance(graph, OpGraph):
            raise InvalidInput(f"graph is a {type(graph).__name__}; it must be an OpGraph")
        if graph.group_of is not None:
            raise InvalidInput(f"graph {graph.name!r} is coarse; recompute in the graph that it was made from")
        parts = Parts(graph)
        dropped = parts.may_repeat & ~kept_ops(parts, self.keep, self.drop, self.budget)
        due = due_with(parts, dropped)
        return _with_copies(parts, due) if np.any(due < NEVER) else graph


def due_with(parts: Parts, dropped: Bools) -> Ints:
    """int64[n]: rank of the first backward op that needs a dropped op's copy, `NEVER` where none does or it is kept."""
    graph = parts.graph
    due = np.full(graph.n, NEVER)
    for op in parts.ordered[::-1].tolist():
        if dropped[op]:
            readers = parts.readers(op)
            late = parts.late[readers]
            due[op] = min(parts.rank[readers[late]].min(initial=NEVER), due[readers[~late]].min(initial=NEVER))
    return due


class _Copies:
    """Numbers of the copies, and what they wait for."""

    def __init__(self, parts: Parts, due: Ints):
        self.parts, self.graph = parts, parts.graph
        self.origin = parts.ordered[due[parts.ordered] < NEVER]
        self.number = np.full(self.graph.n, -1, dtype=np.int64)
        self.number[self.origin] = self.graph.n + np.arange(len(self.origin))
        trigger = {rank: parts.trigger(int(parts.ordered[rank])) for rank in np.unique(due[self.origin]).tolist()}
        self.trigger = np.array([trigger[rank] for rank in due[self.origin].tolist()], dtype=np.int64)

    def data(self) -> tuple[Ints, Ints]:
        """(tensor row, reader) of all data edges; the rows of copies follow those of the graph."""
        graph = self.graph
        tensor, reader, source = graph.edge_tensor.astype(np.int64), graph.consumers, graph.edge_source
        moved = (self.number[source] >= 0) & (graph.tensor_bytes[tensor] > CONTROL_BYTES)
        again = np.where(moved, self.row_of_copy(tensor), tensor)
        copied = self.number[reader] >= 0
        late = moved & self.parts.late[reader]
        rows = np.concatenate([np.where(late, again, tensor), again[copied]])
        return rows, np.concatenate([reader, self.number[reader[copied]]])

    def row_of_copy(self, tensor: Ints) -> Ints:
        """Row of the copy of a tensor whose producer is copied."""
        row = np.zeros(self.graph.tensor_count, dtype=np.int64)
        row[self.tensors] = self.graph.tensor_count + np.arange(len(self.tensors))
        return row[tensor]

    @property
    def tensors(self) -> Ints:
        """Tensors that copies make again, ascending."""
        return np.flatnonzero(self.number[self.graph.tensor_producer] >= 0)

    def waits(self) -> list[tuple[int, int]]:
        """(op, op) of the control dependencies: copies after their trigger, updates after copies that read the variable."""
        graph, found = self.graph, set()
        wait = dict(zip(self.origin.tolist(), self.trigger.tolist(), strict=True))
        pointer, tensors = graph.inputs
        for op, trigger in wait.items():
            read = tensors[pointer[op] : pointer[op + 1]].tolist()
            if not any(wait.get(int(graph.tensor_producer[t])) == trigger for t in read):
                found.add((trigger, int(self.number[op])))
            for t in read:
                if self.parts.setup[graph.tensor_producer[t]]:
                    readers = graph.tensor_consumers(t)
                    found |= {(int(self.number[op]), u) for u in readers[self.parts.update[readers]].tolist()}
        return sorted(found)


def _with_copies(parts: Parts, due: Ints) -> OpGraph:
    graph, at = parts.graph, _Copies(parts, due)
    origin = np.concatenate([np.arange(graph.n), at.origin])
    again = np.arange(len(origin)) >= graph.n
    optional = {k: v[origin] for k in ("copy_of", "micro_batch") if (v := getattr(graph, k)) is not None}
    forward = graph.forward_of[origin]
    forward[again] = at.origin
    return OpGraph(
        names=_names(graph, at.origin),
        op_types=tuple(graph.op_types[i] for i in origin.tolist()),
        duration_us=graph.duration_us[origin],
        duration_by_kind={kind: us[origin] for kind, us in graph.duration_by_kind.items()},
        temp_bytes=graph.temp_bytes[origin],
        persistent_bytes=np.where(again, 0, graph.persistent_bytes[origin]),
        allowed=graph.allowed[origin],
        allowed_sets=graph.allowed_sets,
        forward_of=forward,
        copied_key=graph.copied_key,
        name=f"{graph.name}, recomputing",
        **optional,
        **_colocation(graph, at.origin, origin),
        **_tensors(graph, at, len(origin)),
    )


def _names(graph: OpGraph, copied: Ints) -> tuple[str, ...]:
    taken, out = set(graph.names), list(graph.names)
    for op in copied.tolist():
        name = f"{graph.names[op]}/again"
        while name in taken:
            name += "/again"
        taken.add(name)
        out.append(name)
    return tuple(out)


def _colocation(graph: OpGraph, copied: Ints, origin: Ints) -> dict[str, Any]:
    """Copies in the group of their original; those of an op that keeps bytes need one, since the bytes are there once."""
    lone = copied[(graph.colocation[copied] < 0) & (graph.persistent_bytes[copied] > 0)]
    group = graph.colocation.copy()
    group[lone] = len(graph.colocation_names) + np.arange(len(lone))
    known = set(graph.colocation_names)
    names = [graph.names[i] for i in lone.tolist()]
    fresh = [f"{name} and its copy" if name in known else name for name in names]
    return {"colocation": group[origin], "colocation_names": (*graph.colocation_names, *fresh)}


def _tensors(graph: OpGraph, at: _Copies, total: int) -> dict[str, Any]:
    """Producer, bytes, names and readers of all tensors, ordered by producer."""
    made, waits = at.tensors, np.array(at.waits(), dtype=np.int64).reshape(-1, 2)
    before, which = np.unique(waits[:, 0], return_inverse=True)
    rows, readers = at.data()
    rows = np.concatenate([rows, graph.tensor_count + len(made) + which.reshape(-1)])
    readers = np.concatenate([readers, waits[:, 1]])
    producer = np.concatenate([graph.tensor_producer, at.number[graph.tensor_producer[made]], before])
    size = np.concatenate([graph.tensor_bytes, graph.tensor_bytes[made], np.full(len(before), CONTROL_BYTES)])
    origin = np.concatenate([np.arange(graph.n), at.origin])
    labels = [*graph.tensor_names, *(graph.tensor_names[t] for t in made.tolist())]
    labels += [_free_label(graph, int(origin[op])) for op in before.tolist()]
    order = np.argsort(producer, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    key = np.sort(number[rows] * np.int64(total) + readers)
    return {
        "tensor_producer": producer[order].astype(np.int32),
        "tensor_bytes": size[order],
        "tensor_names": tuple(labels[k] for k in order.tolist()),
        "consumer_ptr": offsets(key // total, len(order)),
        "consumers": (key % total).astype(np.int32),
    }


def _free_label(graph: OpGraph, op: int) -> str:
    """A tensor name for a control dependency that no tensor of the op has."""
    label, taken = "control", {graph.tensor_names[t] for t in graph.outputs(op)}
    while label in taken:
        label += "'"
    return label
