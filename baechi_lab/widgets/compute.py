"""Computes the outcome of a setting: runs the stages one after the other, each cached by the content of its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasiblePlacement, InvalidInput, UnknownOpError
from ..graph import Cluster, OpGraph, Placement, Step, Timeline, load_graph
from ..graph.units import plural
from ..memo import Memo
from ..memory_saving.recompute import recompute
from ..passes.unroll import unroll
from ..pipeline import place_in_groups
from ..placers.registry import placer_class
from ..stages import Optimize, Place, Profile, Simulate
from ..step_summary import one_device
from ..sweeps.work import side_by_side
from ..viz.nested.scene import placed_us
from .moves import move
from .schedule import Chain, critical_chain
from .setting import Setting

if TYPE_CHECKING:
    from ..torch_steps.step import TorchStep

TrainingStep: TypeAlias = "Step | TorchStep"
Subject: TypeAlias = "Step | TorchStep | OpGraph"
Report = Callable[..., object]
"""`report(text, share, point)`: the current work in words, its share that is done, `(seconds, best so far in us)`."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """All results of one setting: `base` is the placer's placement, `placement` the one after moves by hand.

    `executed_graph` has the ops of the timeline: `graph`, or with micro-batches the unrolled graph. `once` is the timeline
    of `graph` itself, one micro-batch, with its devices and transfers. `as_groups_us` is the step that an anytime placer
    optimized, with every group as one op; NaN if there are no groups.
    """

    setting: Setting
    step: TrainingStep | None
    graph: OpGraph
    coarse: OpGraph
    base: Placement
    placement: Placement
    executed_graph: OpGraph
    timeline: Timeline
    once: Timeline
    bounds: Mapping[str, float]
    chain: Chain
    one_device: Timeline | None
    seconds: float
    as_groups_us: float = float("nan")

    @property
    def one_device_us(self) -> float:
        """The step of the whole graph on one device, whether or not it fits there; NaN if no device may run all ops."""
        return float("nan") if self.one_device is None else self.one_device.makespan_us

    @property
    def samples(self) -> int | None:
        """The number of samples of a step, if it is known."""
        if self.setting.batch_size is not None:
            return self.setting.batch_size
        if is_torch_step(self.step):
            return self.step.batch_size
        built_from = self.step.built_from if isinstance(self.step, Step) else None
        return None if built_from is None else built_from.batch_size * (self.setting.micro_batches or 1)

    @property
    def op_us(self) -> NDArray[np.float64]:
        """float64[n]: the time of every op of `graph` where it is placed, in one micro-batch."""
        return placed_us(self.graph, self.once)

    @property
    def moved_by_hand(self) -> int:
        """The number of ops of `graph` that moves by hand put on another device than the placer's."""
        setting = self.setting
        if not setting.moves:
            return 0
        placed_device = self.base.checked(self.graph, setting.share.n).device
        moved_device = move(self.base, self.graph, setting.share, setting.moves).device
        return int(np.count_nonzero(moved_device != placed_device))

    @property
    def bubble(self) -> float:
        """The idle share of all devices; NaN for a step of 0 us."""
        span = self.timeline.makespan_us * self.setting.cluster.n
        return max(1.0 - float(self.timeline.busy_us.sum()) / span, 0.0) if span > 0 else float("nan")

    def originals(self, ran_ops: object) -> NDArray[np.int64]:
        """Returns the ops of `graph`, ascending, whose copies are the given ops of the timeline."""
        return np.unique(self.original_of(np.asarray(ran_ops, dtype=np.int64)))

    @property
    def critical(self) -> NDArray[np.int64]:
        """The ops of `graph` on the critical path of the timeline, in order of time."""
        return self.original_of(self.chain.ops)

    def original_of(self, ops: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the op of `graph` of which each op of the timeline is a copy."""
        return (
            ops if self.executed_graph is self.graph else np.asarray(self.executed_graph.copy_of, dtype=np.int64)[ops]
        )

    def copies(self, ops: object) -> NDArray[np.int64]:
        """Returns the copies, in every micro-batch, of ops of `graph`: ops of the timeline."""
        if self.executed_graph is self.graph:
            return np.asarray(ops, dtype=np.int64)
        return np.flatnonzero(np.isin(np.asarray(self.executed_graph.copy_of), np.asarray(ops, dtype=np.int64)))

    @property
    def lower_bound_us(self) -> float:
        """The largest lower bound, NaN if there is none."""
        return float(self.bounds.best) if self.bounds else float("nan")  # type: ignore[attr-defined]

    @property
    def gap(self) -> float:
        """The share by which the makespan exceeds the best lower bound (0.25: 25%); NaN if unknown."""
        best = self.lower_bound_us
        return self.timeline.makespan_us / best - 1.0 if best > 0 else float("nan")


MOST_OPS = 10_000_000
"""Most ops of all micro-batches together, which need about 5 GB."""

_CHAINS: WeakKeyDictionary[Timeline, Chain] = WeakKeyDictionary()
"""The critical chain of every living timeline: a cache by identity, which is cheaper than one by content."""


def silent(text: str, share: float = -1.0, point: tuple[float, float] | None = None) -> None:
    """Reports nothing."""


def is_torch_step(subject: object) -> TypeGuard[TorchStep]:
    """Whether `subject` is a `bl.torch.TorchStep`, without importing PyTorch."""
    return getattr(type(subject), "framework", "") == "torch"


def is_step(subject: object) -> TypeGuard[TrainingStep]:
    """Whether `subject` is a training step of TensorFlow or PyTorch."""
    return isinstance(subject, Step) or is_torch_step(subject)


def compute(setting: Setting, subject: Subject | None, memo: Memo, report: Report = silent) -> Outcome:
    """Runs the stages that are not cached. `report` is called before each stage, and may raise to stop.

    Raises:
        BaechiLabError: as the stages raise it.
        InvalidInput: the setting needs a given graph and there is none.
    """
    start_seconds = time.perf_counter()
    step, graph = source(setting, subject, memo, report)
    check_micro_batches(setting, graph)
    coarse = optimize_under(setting, graph, memo, report)
    report(f"placing {placed_parts(coarse)} with {setting.placer}", 0.5)
    coarse, base = place_groups_under(setting, graph, coarse, memo, report)
    placement = with_moves_and_replicas(setting, graph, base)
    report("simulating", 0.85)
    timeline = simulate_under(setting, graph, placement, memo)
    simulated_graph = unroll_under(setting, graph, placement, memo)
    if simulated_graph is graph:
        once = timeline
    else:
        once = simulate_under(setting.once, graph, move(base, graph, setting.share, setting.moves), memo)
    chain = _CHAINS.get(timeline) or _CHAINS.setdefault(timeline, critical_chain(simulated_graph, timeline))
    report("bounds", 0.95)
    limits = bounds_under(setting, graph, memo, placement)
    alone = memo.recall("one device", _alone, graph, setting.cluster, setting.pipeline)[0]
    seconds = time.perf_counter() - start_seconds
    return Outcome(
        setting=setting,
        step=step,
        graph=graph,
        coarse=coarse,
        base=base,
        placement=placement,
        executed_graph=simulated_graph,
        timeline=timeline,
        once=once,
        bounds=limits,
        chain=chain,
        one_device=alone,
        seconds=seconds,
        as_groups_us=as_groups(setting, graph, coarse, base, memo),
    )


def check_micro_batches(setting: Setting, graph: OpGraph) -> None:
    """Raises `InvalidInput` if the micro-batches of a setting have more ops together than the workbench simulates."""
    if graph.n * (setting.micro_batches or 1) > max(MOST_OPS, graph.n):
        raise InvalidInput(
            f"micro_batches is {setting.micro_batches:,}; with {graph.n:,} ops each, the workbench takes at most "
            f"{MOST_OPS // graph.n:,}"
        )


def placed_parts(coarse: OpGraph) -> str:
    """Says how many groups, or ops without groups, are placed.

    >>> placed_parts(OpGraph.from_edges([1.0, 1.0]))
    '2 ops'
    """
    name = "op" if coarse.group_of is None else "group"
    return f"{coarse.n:,} {plural(name, coarse.n)}"


def with_moves_and_replicas(setting: Setting, graph: OpGraph, base: Placement) -> Placement:
    """Returns the placer's placement after the moves of the setting, repeated on the devices of each replica."""
    moved_placement = move(base, graph, setting.share, setting.moves)
    return (
        moved_placement if setting.replicas == 1 else side_by_side(moved_placement, setting.share.n, setting.replicas)
    )


def unroll_under(setting: Setting, graph: OpGraph, placement: Placement, memo: Memo) -> OpGraph:
    """Returns the graph whose ops the timeline has: unrolled, if there are micro-batches."""
    if not setting.pipeline:
        return graph
    return memo.recall("unroll", unroll, graph, setting.micro_batches or 1, placement)[0]  # type: ignore[no-any-return]


def source(
    setting: Setting, subject: Subject | None, memo: Memo, report: Report = silent
) -> tuple[TrainingStep | None, OpGraph]:
    """Returns the step, if there is one, and its graph, perhaps with recomputed ops.

    For a PyTorch step in micro-batches it is the graph of one of them.
    """
    step, graph = _profiled(setting, subject, memo, report)
    if setting.recompute:
        report(f"recomputing: {setting.recompute}", 0.3)
        graph = memo.recall("recompute", partial(recompute, **setting.recomputation), graph)[0]
    return step, graph


def _profiled(
    setting: Setting, subject: Subject | None, memo: Memo, report: Report
) -> tuple[TrainingStep | None, OpGraph]:
    if setting.path:
        report(f"reading {setting.path}", 0.1)
        file = Path(setting.path)
        modified_seconds = file.stat().st_mtime if file.is_file() else 0.0
        if setting.is_program:
            program = (setting.path, modified_seconds, setting.hardware, setting.built_batch)
            return None, memo.recall("load", _estimate, *program)[0]
        return None, memo.recall("load", _load, setting.path, modified_seconds)[0]
    step = given_step(setting, subject, memo, report)
    if step is None:
        if not isinstance(subject, OpGraph):
            raise InvalidInput("no graph yet: choose a model or a stored graph, or open the workbench with one")
        return None, subject
    report(f"profiling {step.name} ({setting.profile})", 0.25)
    # A measured profile does not depend on the hardware of an earlier estimate.
    hardware: dict[str, Any] = {"hardware": setting.hardware} if setting.profile == "estimated" else {}
    stage = Profile(mode=setting.profile, **hardware)
    if is_torch_step(step):
        return step, memo.recall("profile", TorchProfile(stage, id(step), step), setting.micro_batches)[0]
    return step, memo.recall("profile", stage, step)[0]


@dataclass(frozen=True)
class TorchProfile:
    """Profiles one micro-batch of a PyTorch step, or the whole step.

    The cache has the step's `id` as key and not the step, because a model's code may have no digest: the step is no field.
    """

    stage: Profile
    step_id: int
    step: InitVar[TorchStep]

    def __post_init__(self, step: TorchStep) -> None:
        object.__setattr__(self, "_step", step)

    def __call__(self, micro_batches: int | None) -> OpGraph:
        step: TorchStep = getattr(self, "_step")  # noqa: B009  (set past the frozen fields)
        return self.stage(step if micro_batches is None else step.micro_batches(micro_batches)[0])


def _load(path: str, modified_seconds: float) -> OpGraph:
    """Loads a stored graph; `modified_seconds` makes the cache read a changed file again."""
    return load_graph(path)


def _estimate(path: str, modified_seconds: float, hardware: str, batch_size: int | None) -> OpGraph:
    """Estimates the operators of a program; `modified_seconds` makes the cache read a changed file again."""
    from ..profilers.programs.estimation import profile_program

    return profile_program(path, hardware=hardware, batch_size=batch_size)


def given_step(setting: Setting, subject: Subject | None, memo: Memo, report: Report = silent) -> TrainingStep | None:
    """Returns the step of the setting: a model that is built, perhaps with another batch size, or the given step."""
    name, params = setting.model, dict(setting.model_params)
    if not name and is_torch_step(subject):
        if setting.batch_size not in (None, subject.batch_size):
            raise InvalidInput(
                f"batch_size is {setting.batch_size}; step {subject.name!r} has its own batch of {subject.batch_size}"
            )
        return subject
    size = setting.built_batch
    if not name and isinstance(subject, Step) and size is not None:
        if subject.built_from is None:
            raise InvalidInput(
                f"step {subject.name!r} was traced for its own batch; choose a model to change the batch size"
            )
        if subject.built_from.batch_size == size:
            return subject
        name, params = subject.built_from.model, subject.built_from.other_params
    if not name:
        return subject if isinstance(subject, Step) else None
    if size is not None:
        params["batch_size"] = size
    report(f"building the training step of {name} (TensorFlow)", 0.05)
    return memo.recall("build", _build, name, params)[0]  # type: ignore[no-any-return]


def _build(name: str, params: Mapping[str, object]) -> Step:
    from ..models import build

    return build(name, **params)


def optimize_under(setting: Setting, graph: OpGraph, memo: Memo, report: Report = silent) -> OpGraph:
    """Returns the coarse graph, or the graph itself if there are no passes."""
    if not setting.passes:
        return graph
    report(f"optimizing {graph.n:,} ops", 0.4)
    stage = Optimize(passes=setting.passes, forward_only=setting.forward_only)
    return memo.recall("optimize", stage, graph, setting.share)[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Placing:
    """A `Place` whose slow placers call `report` with their progress; `report` may raise to stop them.

    `report` is no field, so that it is no part of the cache's key.
    """

    stage: Place
    report: InitVar[Report] = silent

    def __post_init__(self, report: Report) -> None:
        object.__setattr__(self, "_report", report)

    def __call__(self, graph: OpGraph, cluster: Cluster) -> Placement:
        name, params = str(self.stage.placer), dict(self.stage.params)
        if "callback" in placer_class(name).__dataclass_fields__:
            params["callback"] = self.take_progress
        if limit := time_limit(name, self.stage.params):  # networks are built before the first placement is found
            self._report(f"{name}: 0 of {limit:g} s, no answer yet", 0.0)
        return Place(name, **params)(graph, cluster)

    def take_progress(self, *progress: Any) -> bool:
        """Reports the progress of the placer; returns True if it should end with its best placement."""
        if len(progress) == 2:
            message, share, point = f"{progress[0]} of {progress[1]} answers", progress[0] / max(progress[1], 1), None
        else:
            message, point = str(progress[0]), (float(progress[0].seconds), best_us(progress[0]))
            limit = time_limit(str(self.stage.placer), self.stage.params)
            share = -1.0 if not limit else min(point[0] / limit, 1.0)
            if limit:
                message = message.replace(f"{point[0]:.1f} s", f"{point[0]:.1f} of {limit:g} s", 1)
        return self._report(f"{self.stage.placer}: {message}", share, point) is True

    def _report(self, *progress: object) -> object:
        report: Report = getattr(self, "_report")  # noqa: B009  (set past the frozen fields)
        return report(*progress)


def best_us(progress: Any) -> float:
    """Returns the best step in the progress of an anytime placer, in microseconds; infinite before the first."""
    if hasattr(progress, "makespan_us"):
        return float(progress.makespan_us)
    return float(progress.best_seconds) * 1e6


def time_limit(placer: str, params: Mapping[str, object]) -> float | None:
    """Returns the seconds after which an anytime placer ends; None without such a limit.

    >>> time_limit("search", {}), time_limit("search", {"time_limit": 3}), time_limit("m-etf", {})
    (10.0, 3.0, None)
    """
    placer_cls = placer_class(placer)
    field = placer_cls.__dataclass_fields__.get("time_limit")
    limit = params.get("time_limit", None if field is None else field.default)
    return float(limit) if placer_cls.anytime and isinstance(limit, (int, float)) else None


def place_under(setting: Setting, coarse: OpGraph, memo: Memo, report: Report = silent) -> Placement:
    """Returns the placer's placement of the coarse graph, starting from that of the setting's `start` if it has one."""
    params = setting.placer_params
    if setting.start is not None:
        try:
            start = place_under(setting.start, coarse, memo, report)
            moves = setting.start.moves
            if moves:
                start = move(start, coarse.original or coarse, setting.share, moves)
            params = {**params, "start": start}
        except (InfeasiblePlacement, UnknownOpError):  # the start does not place these groups
            pass
    stage = Placing(Place(setting.placer, **params), report)
    return memo.recall("place", stage, coarse, setting.share)[0]  # type: ignore[no-any-return]


def place_groups_under(
    setting: Setting, graph: OpGraph, coarse: OpGraph, memo: Memo, report: Report = silent
) -> tuple[OpGraph, Placement]:
    """Returns the placed graph and its placement: `coarse`, or smaller groups if no placement of `coarse` fits."""
    return place_in_groups(
        graph,
        coarse,
        setting.share,
        Optimize(setting.passes, setting.forward_only),
        lambda groups, cluster: place_under(setting, groups, memo, report),
        memo,
    )


def simulate_under(setting: Setting, graph: OpGraph, placement: Placement, memo: Memo) -> Timeline:
    """Returns the timeline of a placement on the full graph."""
    stage = Simulate(setting.scheduler, **setting.pipeline)
    return memo.recall("simulate", stage, graph, setting.cluster, placement)[0]  # type: ignore[no-any-return]


def as_groups(setting: Setting, graph: OpGraph, coarse: OpGraph, base: Placement, memo: Memo) -> float:
    """Returns the step in us that an anytime placer optimized, with every group as one op; NaN if there are no groups."""
    if coarse is graph or setting.pipeline or not placer_class(setting.placer).anytime:
        return float("nan")
    stage = Simulate(setting.scheduler)
    return float(memo.recall("simulate groups", stage, coarse, setting.share, base)[0].makespan_us)


def bounds_under(
    setting: Setting, graph: OpGraph, memo: Memo, placement: Placement | None = None
) -> Mapping[str, float]:
    """Returns the named lower bounds; none if no device may run some op."""
    # Other bounds are for one device per op.
    placement_with_replicas = placement if placement is not None and placement.replicas else None
    try:
        return memo.recall("bounds", _bounds, graph, setting.cluster, setting.micro_batches, placement_with_replicas)[0]  # type: ignore[no-any-return]
    except InfeasiblePlacement:
        return {}


def _bounds(
    graph: OpGraph, cluster: Cluster, micro_batches: int | None, placement: Placement | None
) -> Mapping[str, float]:
    from ..simulator.bounds import bounds

    return bounds(graph, cluster, micro_batches=micro_batches, placement=placement)


def _alone(graph: OpGraph, cluster: Cluster, pipeline: Mapping[str, object]) -> Timeline | None:
    """Returns the step of one device in the schedule's order, or without a schedule if one device cannot follow it."""
    scheduled_us = one_device(graph, cluster, **pipeline)
    if scheduled_us is not None or "schedule" not in pipeline:
        return scheduled_us
    return one_device(graph, cluster, **{key: value for key, value in pipeline.items() if key != "schedule"})
