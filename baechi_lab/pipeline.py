"""Pipeline: profile -> optimize -> place -> simulate -> execute, recomputing only what changed."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import InfeasiblePlacement, InvalidInput, UnknownNameError
from .graph import Cluster, OpGraph, Placement, Run, Step, Timeline
from .graph.placement import with_keys_of
from .memo import Memo
from .params import Params

if TYPE_CHECKING:
    from .simulator import Bounds
    from .torch_steps.step import TorchStep

SLOTS = ("profile", "optimize", "place", "simulate", "execute")
"""The places of stages in a pipeline, in their order. `baechi_lab.stages` has a stage for each."""


class Stage(Params):
    """One step of a pipeline: a callable parameter object, with the slot in which it stands. `a | b` is a `Pipeline` of both."""

    slot: ClassVar[str]
    __call__: Callable[..., object]

    def __post_init__(self) -> None:
        self.validate()

    def __or__(self, other: Callable[..., object]) -> Pipeline:
        return Pipeline.of(self) | other


@dataclass(frozen=True, eq=False)
class Result:
    """The results of a pipeline; None for stages that it lacks (without `optimize`, `coarse` is `graph`).

    Args:
        graph, coarse, placement, timeline, run: what the stages gave. `coarse` is the graph that was placed: where none of
            its placements fits, that is one of smaller groups, or of single ops, and `placement.finer_groups` says so.
        bounds: the named lower bounds of the step in microseconds, `.best` the largest.
        recomputed: the stages that were computed and not remembered.
    """

    graph: OpGraph
    coarse: OpGraph
    placement: Placement | None
    timeline: Timeline | None
    bounds: Bounds
    run: Run | None
    recomputed: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far the simulated step is above the best lower bound: 0.25 means at most 25% to gain; NaN if unknown."""
        best = self.bounds.best
        return float("nan") if self.timeline is None or best <= 0 else self.timeline.makespan_us / best - 1.0


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Pipeline:
    """The stages wired together: `Profile() | Optimize() | Place("m-sct") | Simulate()`.

    Any stage may be replaced by a callable with the inputs of its slot (`baechi_lab.stages`). A function in a chain takes the
    slot after its neighbour's, or the one that its attribute `slot` names; `replace(place=f)` says it outright.

    Args:
        memo: the memory of results; pipelines derived from one another share one.
        stages: a stage, or any callable, by slot; None leaves a slot out.

    Raises:
        InvalidInput: stages out of order, or one that lacks the stage it needs.

    >>> from baechi_lab import Cluster, OpGraph, Place, Simulate
    >>> graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 2)])
    >>> pipe = Place("m-etf") | Simulate()
    >>> pipe.run(graph, Cluster.uniform(2)).recomputed
    ('place', 'simulate', 'bounds')
    >>> pipe.replace(simulate=Simulate("fifo")).run(graph, Cluster.uniform(2)).recomputed
    ('simulate',)
    """

    stages: Mapping[str, Callable[..., Any]]
    memo: Memo

    def __init__(self, memo: Memo | None = None, **stages: Callable[..., object] | None):
        for slot, stage in stages.items():
            if slot not in SLOTS:
                raise UnknownNameError.of("stage", slot, SLOTS)
            if stage is not None and not callable(stage):
                raise InvalidInput(f"stage {slot} is {stage!r}; it must be callable, for example {slot.capitalize()}()")
            if getattr(stage, "slot", slot) != slot:
                raise InvalidInput(f"stage {slot} is {stage!r}, which belongs to another slot")
        present = {slot: stages[slot] for slot in SLOTS if stages.get(slot) is not None}
        for slot in ("simulate", "execute"):
            if slot in present and "place" not in present:
                raise InvalidInput(f"a pipeline with {slot} needs a place stage before it")
        object.__setattr__(self, "stages", present)
        object.__setattr__(self, "memo", Memo() if memo is None else memo)

    def run(
        self,
        subject: Step | TorchStep | OpGraph,
        cluster: Cluster,
        *,
        recompute: Collection[str] = (),
        again: Collection[str] | None = None,
    ) -> Result:
        """Runs the stages on a step, or on a graph that was profiled before.

        Args:
            subject: a step, or its graph.
            cluster: the devices.
            recompute: names of stages that run even if their result is remembered, for example to measure once more.
            again: deprecated name of `recompute`.

        Raises:
            InvalidInput: no profile stage for a step, or no step for an execute stage; and what the stages raise.
        """
        if again is not None:
            warnings.warn("again= is deprecated; use recompute=", DeprecationWarning, stacklevel=2)
            recompute = again
        step = self._check_subject(subject, cluster, recompute)
        recomputed_stages: list[str] = []

        def run_stage(slot: str, *inputs: object, otherwise: object = None) -> Any:
            stage = _bounds if slot == "bounds" else self.stages.get(slot)
            if stage is None:
                return otherwise
            value, is_computed = self.memo.recall(slot, stage, *inputs, fresh=slot in recompute)
            if is_computed:
                recomputed_stages.append(slot)
            return value

        def place(groups: OpGraph, devices: Cluster) -> Placement | None:
            """Places `groups`, and adds to the placement which graph it is of: a user's function may leave that out."""
            placement: Placement | None = run_stage("place", groups, devices)
            if placement is None or placement.graph_key is not None or placement.n != groups.n:
                return placement
            return with_keys_of(groups, placement)

        graph: Any = subject if step is None else run_stage("profile", step)
        coarse = run_stage("optimize", graph, cluster, otherwise=graph)
        coarse, placement = place_in_groups(graph, coarse, cluster, self.stages.get("optimize"), place, self.memo)
        on_coarse = getattr(self.stages.get("simulate"), "on", "graph") == "coarse"
        timeline = run_stage("simulate", coarse if on_coarse else graph, cluster, placement)
        bounds = run_stage("bounds", graph, cluster)
        run = run_stage("execute", step, placement)
        return Result(graph, coarse, placement, timeline, bounds, run, tuple(recomputed_stages))

    def _check_subject(self, subject: Any, cluster: object, recompute: Collection[str]) -> Step | TorchStep | None:
        """Rejects invalid arguments before anything slow starts; returns the step, None for a graph."""
        of_torch = getattr(subject, "framework", "") == "torch"
        if not of_torch and not isinstance(subject, (Step, OpGraph)):
            raise InvalidInput(
                f"a pipeline runs on a Step (bl.trace), a bl.torch.TorchStep or an OpGraph, not on {type(subject).__name__}"
            )
        if not isinstance(cluster, Cluster):
            raise InvalidInput(f"cluster is {type(cluster).__name__}; it must be a Cluster")
        for name in recompute:
            if name not in (*SLOTS, "bounds"):
                raise UnknownNameError.of("stage to recompute", name, (*SLOTS, "bounds"))
        if of_torch or isinstance(subject, Step):
            if "profile" not in self.stages:
                raise InvalidInput("a pipeline without a profile stage runs on an OpGraph, not on a Step")
            return subject
        if "execute" in self.stages:
            raise InvalidInput("a pipeline with an execute stage runs on a Step; an OpGraph cannot be executed")
        return None

    # -- composing -----------------------------------------------------------------------------------

    @classmethod
    def of(cls, stage: Callable[..., object]) -> Pipeline:
        """Returns the pipeline of one stage."""
        return cls(**{stage.slot: stage}, memo=None) if isinstance(stage, Stage) else cls() | stage

    def __or__(self, other: Callable[..., object]) -> Pipeline:
        filled_slots = [SLOTS.index(s) for s in self.stages]
        after = max(filled_slots, default=-1)
        added_stages = other.stages if isinstance(other, Pipeline) else {_slot_of(other, after): other}
        for slot in added_stages:
            if SLOTS.index(slot) <= after:
                raise InvalidInput(f"stage {slot} comes after {SLOTS[after]}; the order is {' | '.join(SLOTS)}")
        return Pipeline(self.memo, **{**self.stages, **added_stages})

    def replace(self, **stages: Callable[..., object] | None) -> Pipeline:
        """Returns the pipeline with some stages replaced (None removes one); it shares remembered results."""
        return Pipeline(self.memo, **{**self.stages, **stages})

    def get_params(self) -> dict[str, object]:
        """Returns the stages by slot."""
        return dict(self.stages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.stages == other.stages

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return " | ".join(_name(stage) for stage in self.stages.values()) or "Pipeline()"

    def _repr_html_(self) -> str:
        cells = (
            stage._repr_html_() if isinstance(stage, Stage) else f"<code>{html.escape(_name(stage))}</code>"
            for stage in self.stages.values()
        )
        return '<div style="display:flex;gap:1em">' + "".join(f"<div>{cell}</div>" for cell in cells) + "</div>"


def place_in_groups(
    graph: OpGraph,
    coarse: OpGraph,
    cluster: Cluster,
    optimize: Any,
    place: Callable[[OpGraph, Cluster], Any],
    memo: Memo,
) -> tuple[OpGraph, Any]:
    """Places `coarse`; where none of its placements fits, places smaller groups of ops, and at last single ops.

    Args:
        graph: the original graph.
        coarse: what `optimize` made of it.
        cluster: where it is placed.
        optimize: the stage. Only an `Optimize` has smaller groups.
        place: places a graph on a cluster.
        memo: remembers smaller groups.

    Returns:
        The graph that was placed, and its placement. If that graph is not `coarse`, `placement.finer_groups` says so and
        `placement.passes` are the passes that made its groups (with `forward_only=False`).

    Raises:
        InfeasiblePlacement: what is proven of single ops, or why single ops were not placed either.

    >>> from baechi_lab import Optimize, Place
    >>> graph = OpGraph.from_edges([1, 1], [(0, 1, 8)], persistent_bytes=[60, 60])
    >>> stage, cluster = Optimize(("coplacement",)), Cluster.uniform(2, memory_bytes=100)
    >>> groups = stage(graph, cluster)
    >>> placed, placement = place_in_groups(graph, groups, cluster, stage, Place("m-etf"), Memo())
    >>> placement.device.tolist(), placement.finer_groups
    ([0, 1], 'no placement of groups by coplacement was found that fits: single ops were placed')
    """
    try:
        return coarse, place(coarse, cluster)
    except InfeasiblePlacement as error:
        if coarse is graph or not hasattr(optimize, "finer"):
            raise
        refusal = error
    last_groups = coarse
    for stage in optimize.finer():
        groups = memo.recall("optimize", stage, graph, cluster)[0] if stage.passes else graph
        if groups == last_groups:
            continue
        try:
            placement = place(groups, cluster)
        except InfeasiblePlacement as error:
            refusal, last_groups = error, groups
            continue
        refused_groups = ("forward-only " if stage.passes == optimize.passes else "") + _groups_in_words(optimize)
        words = f"no placement of {refused_groups} was found that fits: {_groups_in_words(stage)} were placed"
        return groups, placement.replace(finer_groups=words, passes=stage.passes)
    raise refusal


def _groups_in_words(optimize: Any) -> str:
    passes = ", ".join(str(getattr(graph_pass, "name", graph_pass)) for graph_pass in optimize.passes)
    return f"groups by {passes}" if passes else "single ops"


def _bounds(graph: OpGraph, cluster: Cluster) -> Bounds:
    from .simulator.bounds import bounds

    return bounds(graph, cluster)


def _slot_of(stage: object, after: int) -> str:
    if not callable(stage):
        raise InvalidInput(f"{stage!r} is not a stage; it must be callable")
    slot = getattr(stage, "slot", None)
    if slot is not None:
        if slot not in SLOTS:
            raise UnknownNameError.of("stage", slot, SLOTS)
        return str(slot)
    if after + 1 >= len(SLOTS):
        raise InvalidInput(f"no stage comes after {SLOTS[-1]}; the order is {' | '.join(SLOTS)}")
    return SLOTS[after + 1]


def _name(stage: object) -> str:
    return repr(stage) if isinstance(stage, Stage) else getattr(stage, "__name__", repr(stage))
