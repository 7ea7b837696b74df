"""Recomputation: outputs of forward ops are dropped after the forward pass and computed again when the backward pass is due.

A plan is a sequence of runs (`passes.runs`); each run of an op after its first becomes a copy (`name/again`), and every
reader reads the latest run before it. A copy is due with the op that follows it in the sequence. It waits, by a
control dependency, for the last of that op's inputs that the backward pass makes, since a copy that runs earlier saves no
memory. Where there is none, at the start of the backward pass, it waits for the last forward op that is read there. Which
ops are kept is chosen in `passes.checkpoints`, plans within a budget are made in `passes.checkpoint_budget`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import is_list
from ..errors import InvalidInput
from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import offsets
from ..graph.units import format_bytes, parse_bytes
from .base import Pass
from .checkpoints import KEEP, kept_ops
from .peak import readiness_peak
from .repeatable import Parts
from .runs import Runs, runs_of

Ints = NDArray[np.int64]


def recompute(
    graph: OpGraph,
    keep: str | Iterable[str] | None = None,
    *,
    drop: Iterable[str] | None = None,
    budget: int | str | None = None,
    ordered: bool = False,
    time_limit: float | None = None,
) -> OpGraph:
    """The graph of a step that computes dropped outputs of forward ops again before the backward pass reads them.

    Never repeated, hence always kept: variables, constants and reads of them, sources, random ops (the backward pass
    must see the same mask), batch statistics, ops with side effects, and what an update reads. Copies are named `name/again`,
    share their original's colocation group, hold no persistent bytes, and have it as their `forward_of`; copies of an
    op that keeps bytes get a group with it. An unrolled graph stays one, so a placement of its micro-batch holds for
    the copies too. An op that reads a variable itself is computed again before that variable's update.
    What a choice saves is checked on one device that runs ops in the order of readiness: "sqrt" tries other numbers of
    segments where its own saves nothing, and a choice that saves nothing is a warning. O((ops + edges) log) besides a budget.

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
        budget: most bytes on one device, a number or a text such as "3GB", as simulated: parameters, outputs, gradients
            and temporaries. The least work that must be repeated is found, ops being computed again as often as that
            takes: exactly in graphs of up to 12 ops, over all orders of them (`passes.checkpoint_orders`; where these are too
            many, as in larger ones), of up to 12 values of forward ops, for one order (`passes.checkpoint_exact`), on
            chains (`passes.checkpoint_chain`), and, of plans in which an op runs again at most once between two late ops
            that read it, of up to 40 ops by an integer program (`passes.checkpoint_milp`); else in groups. Where the order
            of readiness would take more, control dependencies keep the order of the plan.
            What is held counts as `bl.simulate` has it, with what `graph.reuse` says. A smaller budget never gives less work.
        ordered: control dependencies keep one device to the order of the plan, whatever its scheduler: TensorFlow's executor
            promises no order, and may run copies earlier than they are due. For steps on one device.
        time_limit: seconds for the integer program on larger graphs too, and up to 80 ops over all plans; its plan is taken
            where it repeats less within the budget. Then a smaller budget may give less work, and a slower machine
            another plan.

    Returns:
        The new graph; the given one when nothing is computed again.

    Raises:
        UnknownNameError: no choice of that name.
        UnknownOpError: no op of that name.
        InvalidInput: a coarse graph; an op in `drop` that cannot be repeated; several choices.
        InfeasiblePlacement: `budget` is below the least that a plan needs, which is in `needed_bytes`; the message says
            what is proven.

    >>> graph = OpGraph.from_edges([1, 1, 1, 1, 2, 2],
    ...     [(0, 1, 8), (1, 2, 80), (2, 3, 80), (3, 4, 8), (4, 5, 8), (1, 5, 80), (2, 4, 80)], temp_bytes=[0, 0, 0, 80, 0, 0],
    ...     names=["x", "a", "b", "loss", "b_grad", "a_grad"], forward_of=[-1, -1, -1, -1, 2, 1])
    >>> recompute(graph, drop=["a"]).names
    ('x', 'a', 'b', 'loss', 'b_grad', 'a_grad', 'a/again')
    """
    chosen = Recompute(_names_or_choice("keep", keep), _names_or_choice("drop", drop), budget, ordered, time_limit)
    chosen.check()
    return chosen.apply(graph)


def _names_or_choice(field: str, given: Any) -> Any:
    """A text or None as it is, names as a tuple."""
    if given is None or isinstance(given, str):
        return given
    if not is_list(given):
        raise InvalidInput(f"{field} is {given!r:.60}; it must be a list of op names" + CHOICES[field])
    return tuple(given)


CHOICES = {"keep": f", or one of {', '.join(map(repr, KEEP))}", "drop": ""}


@dataclass(frozen=True)
class Recompute(Pass):
    """Outputs of forward ops are dropped and computed again before the backward pass reads them."""

    name: ClassVar[str] = "recompute"
    keep: str | tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    budget: int | str | None = None
    ordered: bool = False
    time_limit: float | None = None

    def validate(self) -> None:
        given = [key for key in ("keep", "drop", "budget") if getattr(self, key) is not None]
        if len(given) > 1:
            raise InvalidInput(f"{' and '.join(given)} are given; choose by one of keep, drop and budget")
        _names_or_choice("keep", self.keep)
        _names_or_choice("drop", self.drop)
        if isinstance(self.drop, str):
            raise InvalidInput(f"drop is {self.drop!r}; it must be a list of op names, for example [{self.drop!r}]")
        if self.budget is not None and parse_bytes(self.budget, "budget") < 0:
            raise InvalidInput(f"budget is {self.budget!r}; it must be a number of bytes of at least 0")
        if self.time_limit is not None and self.budget is None:
            raise InvalidInput(f"time_limit is {self.time_limit!r} and budget is None; only a budget is searched for")
        if self.time_limit is not None and not self.time_limit > 0:
            raise InvalidInput(f"time_limit is {self.time_limit!r}; it must be a number of seconds above 0")

    def apply(self, graph: OpGraph) -> OpGraph:
        if not isinstance(graph, OpGraph):
            raise InvalidInput(f"graph is a {type(graph).__name__}; it must be an OpGraph")
        if graph.group_of is not None:
            raise InvalidInput(f"graph {graph.name!r} is coarse; recompute in the graph that it was made from")
        if self.budget is not None:
            from .checkpoint_budget import within

            return within(graph, parse_bytes(self.budget, "budget"), self.ordered, self.time_limit)
        parts, before = Parts(graph), readiness_peak(graph)
        plans = (runs_of(parts, kept) for kept in kept_ops(parts, self.keep, self.drop))
        choices = (with_copies(runs, runs.node if self.ordered else None) for runs in plans)
        first = next(choices)
        if first is graph or (peak := readiness_peak(first)) < before:
            return first
        for other in choices:
            if readiness_peak(other) < before:
                return other
        warnings.warn(
            f"recomputing saves nothing here: the peak of graph {graph.name!r} on one device is {format_bytes(peak)}, and "
            f"{format_bytes(before)} without",
            stacklevel=3,
        )
        return first


class _Copies:
    """Numbers of the copies, what they read, and what they wait for."""

    def __init__(self, runs: Runs, order: Ints | None = None):
        self.runs, self.graph, self.order = runs, runs.graph, order
        self.origin = runs.ops[runs.copies]
        self.total = self.graph.n + len(self.origin)
        sized = self.graph.tensor_bytes > CONTROL_BYTES
        outputs = np.diff(self.graph.output_ptr)[self.origin]
        made = np.repeat(self.graph.output_ptr[self.origin] - np.cumsum(outputs) + outputs, outputs)
        made += np.arange(len(made))
        maker = np.repeat(np.arange(len(self.origin)), outputs)
        self.tensors, self.maker = (
            made[sized[made]],
            maker[sized[made]],
        )  # of each tensor that copies make: origin, copy

    def data(self) -> tuple[Ints, Ints]:
        """(tensor row, reader) of all reads; the rows of what copies make follow those of the graph."""
        runs, graph = self.runs, self.graph
        tensor, made, reader = runs.reads
        row = tensor.copy()
        by_copy = ~runs.first[made]
        key = self.maker * np.int64(max(graph.tensor_count, 1)) + self.tensors  # ascending
        copy = runs.node[made[by_copy]] - graph.n
        row[by_copy] = graph.tensor_count + np.searchsorted(key, copy * max(graph.tensor_count, 1) + tensor[by_copy])
        return row, runs.node[reader]

    def waits(self) -> list[tuple[int, int]]:
        """(op, op) of the control dependencies: copies after their trigger, updates after copies that read the variable."""
        runs, found = self.runs, set()
        _, made, reader = runs.reads
        reads: dict[int, set[int]] = {}
        for source, position in zip(made.tolist(), reader.tolist(), strict=True):
            reads.setdefault(position, set()).add(source)
        for position in runs.copies.tolist():
            op, node, due = int(runs.ops[position]), int(runs.node[position]), runs.due[position]
            if not any(not runs.first[k] and runs.due[k] == due for k in reads.get(position, ())):
                found.add((runs.trigger(int(due)), node))
            found |= {(node, update) for update in runs.parts.updates_read.get(op, ())}
        if self.order is not None:
            read = {(int(runs.node[k]), int(runs.node[p])) for p, sources in reads.items() for k in sources}
            found |= set(pairwise(self.order.tolist())) - read
        return sorted(found)


def with_copies(runs: Runs, order: Ints | None = None) -> OpGraph:
    """The graph in which the copies of `runs` are ops of their own.

    Control dependencies make one device run them in `order`, int64[runs] as `Runs.node` numbers them, whatever its scheduler.
    """
    graph, at = runs.graph, _Copies(runs, order)
    if not len(at.origin) and order is None:
        return graph
    origin = np.concatenate([np.arange(graph.n), at.origin])
    again = np.arange(len(origin)) >= graph.n
    optional = {k: v[origin] for k in ("copy_of", "micro_batch", "reuse") if (v := getattr(graph, k)) is not None}
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
        **_tensors(graph, at),
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
    lone = np.unique(copied[(graph.colocation[copied] < 0) & (graph.persistent_bytes[copied] > 0)])
    group = graph.colocation.copy()
    group[lone] = len(graph.colocation_names) + np.arange(len(lone))
    known = set(graph.colocation_names)
    names = [graph.names[i] for i in lone.tolist()]
    fresh = [f"{name} and its copy" if name in known else name for name in names]
    return {"colocation": group[origin], "colocation_names": (*graph.colocation_names, *fresh)}


def _tensors(graph: OpGraph, at: _Copies) -> dict[str, Any]:
    """Producer, bytes, names and readers of all tensors, ordered by producer; a wait is a tensor without bytes."""
    waits = np.array(at.waits(), dtype=np.int64).reshape(-1, 2)
    before, which = np.unique(waits[:, 0], return_inverse=True)
    rows, readers = at.data()
    rows = np.concatenate([rows, graph.tensor_count + len(at.tensors) + which.reshape(-1)])
    readers = np.concatenate([readers, waits[:, 1]])
    producer = np.concatenate([graph.tensor_producer, graph.n + at.maker, before])
    size = np.concatenate([graph.tensor_bytes, graph.tensor_bytes[at.tensors], np.zeros(len(before), np.int64)])
    origin = np.concatenate([np.arange(graph.n), at.origin])
    labels = [*graph.tensor_names, *(graph.tensor_names[t] for t in at.tensors.tolist())]
    labels += [_free_label(graph, int(origin[op])) for op in before.tolist()]
    order = np.argsort(producer, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    total = np.int64(at.total)
    key = np.unique(number[rows] * total + readers)
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
