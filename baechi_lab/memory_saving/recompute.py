"""Recomputation: outputs of forward ops are dropped after the forward pass and computed again when the backward pass is due.

A plan is a sequence of runs (`memory_saving.op_sequence`). Each run of an op after its first becomes a copy (`name/again`).
Every reader reads the latest run before it. A copy is due with the op that follows it in the sequence. A control dependency
makes it wait for the last input of that op that the backward pass produces, because a copy that runs earlier saves no
memory. At the start of the backward pass, where there is no such input, it waits for the last forward op that is read there.
`memory_saving.checkpoints` chooses the ops that are kept, `memory_saving.budget` makes plans within a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import is_list
from ..errors import InvalidInput
from ..graph import OpGraph
from ..graph.units import format_bytes, parse_bytes
from ..internal_warnings import warn
from ..memory.peak import readiness_peak
from ..passes.base import Pass
from .budget import best_graph_within
from .checkpoints import KEEP, checkpoint_choices
from .op_sequence import recompute_sequence
from .recomputed_graph import graph_with_copies
from .training_graph import TrainingGraph

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
    segments where its own saves nothing, and a choice that saves nothing is a warning. Where "sqrt" or "boundaries" would raise
    the peak, the graph is returned as it was. O((ops + edges) log) besides a budget.

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
            takes: exactly in graphs of up to 12 ops, over all orders of them (`memory_saving.order_search`; where these are too
            many, as in larger ones), of up to 12 values of forward ops, for one order (`memory_saving.state_search`), on
            chains (`memory_saving.chain`), and, of plans in which an op runs again at most once between two backward ops
            that read it, of up to 40 ops by an integer program (`memory_saving.integer_program`); else in groups. Where the order
            of readiness would take more, control dependencies keep the order of the plan.
            What is held counts as `bl.simulate` has it, with what `graph.reuse` says. A smaller budget never gives less work,
            except of a PyTorch profile: there, plans that keep to the budget in the order of the code too come first, and
            where only others keep to it, a warning says what PyTorch may need. So a smaller budget may allow another kind of
            plan, and a plan of less work may exceed a larger budget in the order of the code.
        ordered: control dependencies keep one device to the order of the plan, whatever its scheduler: TensorFlow's executor
            promises no order, and may run copies earlier than they are due. For steps on one device.
        time_limit: seconds for the integer program on larger graphs too, and up to 80 ops over all plans; its plan is taken
            where it repeats less within the budget. Then a smaller budget may give less work, and a slower machine
            another plan.

    Returns:
        The new graph; the given one when nothing is computed again, or when a choice by name would raise the peak.

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
    recompute_pass = Recompute(
        _names_or_choice("keep", keep), _names_or_choice("drop", drop), budget, ordered, time_limit
    )
    recompute_pass.check()
    return recompute_pass.apply(graph)


def _names_or_choice(field: str, argument: Any) -> Any:
    """Returns a text or None as it is, names as a tuple."""
    if argument is None or isinstance(argument, str):
        return argument
    if not is_list(argument):
        raise InvalidInput(f"{field} is {argument!r:.60}; it must be a list of op names" + CHOICES[field])
    return tuple(argument)


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
        fields = [key for key in ("keep", "drop", "budget") if getattr(self, key) is not None]
        if len(fields) > 1:
            raise InvalidInput(f"{' and '.join(fields)} are given; choose by one of keep, drop and budget")
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
            return best_graph_within(graph, parse_bytes(self.budget, "budget"), self.ordered, self.time_limit)
        training, before = TrainingGraph(graph), readiness_peak(graph)
        plans = (
            recompute_sequence(training, is_kept) for is_kept in checkpoint_choices(training, self.keep, self.drop)
        )
        choices = (graph_with_copies(plan, plan.node if self.ordered else None) for plan in plans)
        first = next(choices)
        if first is graph or (peak := readiness_peak(first)) < before:
            return first
        for alternative in choices:
            if readiness_peak(alternative) < before:
                return alternative
        rises = peak > before and self.drop is None and (self.keep is None or self.keep in KEEP)
        warn(
            f"recomputing saves nothing here: the peak of graph {graph.name!r} on one device is {format_bytes(peak)}, and "
            f"{format_bytes(before)} without" + ("; the graph is returned as it was" if rises else ""),
            stacklevel=3,
        )
        return graph if rises else first
