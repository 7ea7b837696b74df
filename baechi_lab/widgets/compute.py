"""From a setting to what the views show: the stages in turn, each remembered by the content of what it depends on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import InfeasiblePlacement, InvalidInput
from ..graph import Cluster, OpGraph, Placement, Step, Timeline, load_graph
from ..memo import Memo
from ..placers.registry import placer_class
from ..stages import Optimize, Place, Profile, Simulate
from ..verdicts import one_device
from .moves import move
from .schedule import Chain, critical_chain
from .setting import Setting

Report = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything that one setting gives: `base` is the placer's placement, `placement` the one after moves."""

    setting: Setting
    step: Step | None
    graph: OpGraph
    coarse: OpGraph
    base: Placement
    placement: Placement
    timeline: Timeline
    bounds: Mapping[str, float]
    chain: Chain
    one_device: Timeline | None
    seconds: float

    @property
    def one_device_us(self) -> float:
        """The step of one device alone, whether or not it fits there; NaN if there is none."""
        return float("nan") if self.one_device is None else self.one_device.makespan_us

    @property
    def samples(self) -> int | None:
        """Samples of a step, where that is known."""
        told = {} if self.step is None else self.step.info.get("params", {})
        size = self.setting.batch_size or told.get("batch_size")
        return int(size) if isinstance(size, int) and size > 0 else None

    @property
    def lower_bound_us(self) -> float:
        """The largest lower bound, NaN if there is none."""
        return float(self.bounds.best) if self.bounds else float("nan")  # type: ignore[attr-defined]

    @property
    def gap(self) -> float:
        """How far the makespan is above the best lower bound (0.25: 25%), NaN if unknown."""
        best = self.lower_bound_us
        return self.timeline.makespan_us / best - 1.0 if best > 0 else float("nan")


_CHAINS: WeakKeyDictionary[Timeline, Chain] = WeakKeyDictionary()
"""The chain of every timeline that somebody still holds: cheaper than remembering it by the timeline's content."""


def silent(text: str, share: float = -1.0) -> None:
    """A report that nobody reads."""


def compute(setting: Setting, subject: Step | OpGraph | None, memo: Memo, report: Report = silent) -> Outcome:
    """Run the stages that are not remembered. `report` is told each of them, and may raise to stop.

    Raises:
        what the stages raise; InvalidInput when the setting needs a given graph and there is none.
    """
    began = time.perf_counter()
    step, graph = source(setting, subject, memo, report)
    coarse = optimized(setting, graph, memo, report)
    report(f"placing {coarse.n} {'groups' if coarse is not graph else 'ops'} with {setting.placer}", 0.5)
    base = placed(setting, coarse, memo, report)
    placement = move(base, graph, setting.cluster, setting.moves)
    report("simulating", 0.85)
    timeline = simulated(setting, graph, placement, memo)
    chain = _CHAINS.get(timeline) or _CHAINS.setdefault(timeline, critical_chain(graph, timeline))
    report("bounds", 0.95)
    limits = bounded(setting, graph, memo)
    alone = memo.recall("one device", one_device, graph, setting.cluster)[0]
    seconds = time.perf_counter() - began
    return Outcome(setting, step, graph, coarse, base, placement, timeline, limits, chain, alone, seconds)


def source(
    setting: Setting, subject: Step | OpGraph | None, memo: Memo, report: Report = silent
) -> tuple[Step | None, OpGraph]:
    """The step, where there is one, and its graph."""
    if setting.path:
        report(f"reading {setting.path}", 0.1)
        return None, memo.recall("load", _load, setting.path, _modified(setting.path))[0]
    step = given_step(setting, subject, memo, report)
    if step is None:
        if not isinstance(subject, OpGraph):
            raise InvalidInput("no graph yet: choose a model or a stored graph, or open the workbench with one")
        return None, subject
    report(f"profiling {step.name} ({setting.profile})", 0.25)
    estimated = setting.profile == "estimated"
    stage = Profile(mode=setting.profile, hardware=setting.hardware if estimated else None)
    return step, memo.recall("profile", stage, step)[0]


def _modified(path: str) -> float:
    file = Path(path)
    return file.stat().st_mtime if file.is_file() else 0.0


def _load(path: str, modified: float) -> OpGraph:
    """The stored graph; a file that was modified since is another one to the memory of results."""
    return load_graph(path)


def given_step(setting: Setting, subject: Step | OpGraph | None, memo: Memo, report: Report = silent) -> Step | None:
    """The step of the setting: built for a model or another batch size, or the given one."""
    name, params = setting.model, dict(setting.model_params)
    if not name and isinstance(subject, Step) and setting.batch_size is not None:
        made_for = subject.info.get("params", {})
        if made_for.get("batch_size") == setting.batch_size:
            return subject
        if "model" not in subject.info:
            raise InvalidInput(
                f"step {subject.name!r} was traced for its own batch; choose a model to change the batch size"
            )
        name, params = subject.info["model"], {k: v for k, v in made_for.items() if k != "batch_size"}
    if not name:
        return subject if isinstance(subject, Step) else None
    if setting.batch_size is not None:
        params["batch_size"] = setting.batch_size
    report(f"building the training step of {name} (TensorFlow)", 0.05)
    return memo.recall("build", _build, name, params)[0]  # type: ignore[no-any-return]


def _build(name: str, params: Mapping[str, Any]) -> Step:
    from ..models import build

    return build(name, **params)


def optimized(setting: Setting, graph: OpGraph, memo: Memo, report: Report = silent) -> OpGraph:
    """The coarse graph, or the graph itself when there are no passes."""
    if not setting.passes:
        return graph
    report(f"optimizing {graph.n} ops", 0.4)
    stage = Optimize(passes=setting.passes, forward_only=setting.forward_only)
    return memo.recall("optimize", stage, graph, setting.cluster)[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Placing:
    """A `Place` whose slow placers tell `report` how far they are, which may raise to stop them in the middle.

    `report` is no field: it does not count in what the result is remembered by.
    """

    stage: Place
    report: InitVar[Report] = silent

    def __post_init__(self, report: Report) -> None:
        object.__setattr__(self, "_report", report)

    def __call__(self, graph: OpGraph, cluster: Cluster) -> Placement:
        name, params = str(self.stage.placer), dict(self.stage.params)
        if "callback" in placer_class(name).__dataclass_fields__:
            params["callback"] = self._tell
        return Place(name, **params)(graph, cluster)

    def _tell(self, *progress: Any) -> None:
        report: Report = getattr(self, "_report")  # noqa: B009  (set past the frozen fields)
        said = f"{progress[0]} of {progress[1]} answers" if len(progress) == 2 else str(progress[0])
        report(f"{self.stage.placer}: {said}", -1.0)


def placed(setting: Setting, coarse: OpGraph, memo: Memo, report: Report = silent) -> Placement:
    """The placer's placement of the coarse graph."""
    stage = Placing(Place(setting.placer, **setting.params), report)
    return memo.recall("place", stage, coarse, setting.cluster)[0]  # type: ignore[no-any-return]


def simulated(setting: Setting, graph: OpGraph, placement: Placement, memo: Memo) -> Timeline:
    """The timeline of a placement on the full graph."""
    return memo.recall("simulate", Simulate(setting.scheduler), graph, setting.cluster, placement)[0]  # type: ignore[no-any-return]


def bounded(setting: Setting, graph: OpGraph, memo: Memo) -> Mapping[str, float]:
    """The named lower bounds, none where no device may run some op."""
    from ..simulator.bounds import bounds

    try:
        return memo.recall("bounds", bounds, graph, setting.cluster)[0]  # type: ignore[no-any-return]
    except InfeasiblePlacement:
        return {}
