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

from ..checks import is_list
from ..errors import InvalidInput, in_short
from ..graph import OpGraph
from ..graph.arguments import check_records
from ..graph.units import format_bytes, parse_bytes
from ..internal_warnings import warn
from ..memory.peak import readiness_peak
from ..passes.base import Pass
from .budget import best_graph_within
from .checkpoints import KEEP, checkpoint_choices
from .op_sequence import recompute_sequence
from .recomputed_graph import graph_with_copies
from .training_graph import TrainingGraph


def recompute(
    graph: OpGraph,
    keep: str | Iterable[str] | None = None,
    *,
    drop: Iterable[str] | None = None,
    budget: int | str | None = None,
    ordered: bool = False,
    time_limit: float | None = None,
) -> OpGraph:
    """Rewrites the graph of a step so that dropped outputs of forward ops are computed again before the backward pass reads them.

    Some outputs are always kept: those of variables, constants and reads of them, sources, random ops (the backward pass
    needs the same mask), batch statistics, ops with side effects, and ops that an update reads. A copy is named `name/again`,
    has its original as `forward_of`, shares its colocation group, and holds no persistent bytes. A copy of an op with
    persistent bytes forms a group with it. An unrolled graph stays unrolled, so a placement of its micro-batch also places
    the copies. An op that reads a variable itself runs again before that variable's update.

    The peak is compared on one device that runs ops in the order of readiness. If "sqrt" saves no memory, other numbers of
    segments are tried. A choice that saves no memory gives a warning, and if "sqrt" or "boundaries" would raise the peak, the
    given graph is returned. O((ops + edges) log) without a budget.

    Args:
        graph: the profile of a training step, not coarsened.
        keep: the forward ops that keep their outputs. At most one of `keep`, `drop` and `budget` may be set.

            - `"all"`: nothing is recomputed.
            - `"boundaries"`: ops whose output another layer reads in the forward pass. A layer is a colocation group;
              for ops without one, the ops whose names agree up to the last `/`; an op without either is one itself.
            - `"sqrt"` (the default): the forward ops in topological order are cut into about sqrt(n) segments of equal
              bytes, where n is the number of ops that the backward pass reads. The last segment is kept, and outputs that
              another segment reads (Chen et al. 2016, section 4.1, arXiv:1604.06174).
            - names: these ops.
        drop: names of the ops whose outputs are dropped; all others are kept.
        budget: most bytes on one device, a number or a text such as "3GB", as `bl.simulate` counts them with `graph.reuse`:
            parameters, outputs, gradients and temporaries. The plan repeats the least work; ops may run again several times.
            It is optimal over all orders in graphs of up to 12 ops (`memory_saving.order_search`, unless there are too many
            orders), and for one order with up to 12 values of forward ops (`memory_saving.state_search`) and on chains
            (`memory_saving.chain`). With up to 40 ops it is optimal among plans in which an op runs again at most once between
            two backward ops that read it (`memory_saving.integer_program`). Larger graphs are planned in groups. If the order
            of readiness exceeds the budget, control dependencies keep the order of the plan.
            A smaller budget never gives less work, except for a PyTorch profile. There, plans that also fit the budget in the
            order of the code are preferred, and if none does, a warning says what PyTorch may need.
        ordered: add control dependencies, so that one device runs the plan in its order under any scheduler. TensorFlow's
            executor promises no order, and may otherwise run copies earlier than they are due. For steps on one device.
        time_limit: seconds for the integer program, which is then also solved for larger graphs, and over all plans up to 80
            ops. Its plan is used where it repeats less. Then a smaller budget may give less work, and a slower machine
            another plan.

    Returns:
        The new graph; the given one if no op is computed again, or if a choice by name would raise the peak.

    Raises:
        UnknownNameError: `keep` is no known choice.
        UnknownOpError: no op has a name in `keep` or `drop`.
        InvalidInput: the graph is coarse; an op in `drop` cannot be repeated; several of keep, drop and budget are set.
        InfeasiblePlacement: `budget` is below the least peak of all plans, which is in `needed_bytes`; the message says
            whether that is proven.

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
        raise InvalidInput(f"{field} is {in_short(argument)}; it must be a list of op names" + CHOICES[field])
    return tuple(argument)


CHOICES = {"keep": f", or one of {', '.join(map(repr, KEEP))}", "drop": ""}


@dataclass(frozen=True)
class Recompute(Pass):
    """Drop outputs of forward ops and compute them again before the backward pass reads them."""

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
        check_records(graph=graph)
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
        is_named = self.drop is None and (self.keep is None or self.keep in KEEP)
        if first is graph and is_named and self.keep != "all":
            warn(f"recomputing saves nothing here: {self.keep or 'sqrt'!r} drops no output of graph {graph.name!r}")
        if first is graph or (peak := readiness_peak(first)) < before:
            return first
        for alternative in choices:
            if readiness_peak(alternative) < before:
                return alternative
        rises = peak > before and is_named
        warn(
            f"recomputing saves nothing here: the peak of graph {graph.name!r} on one device is {format_bytes(peak)}, and "
            f"{format_bytes(before)} without" + ("; the graph is returned as it was" if rises else "")
        )
        return graph if rises else first
