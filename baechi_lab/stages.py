"""The five stages as objects: each has validated parameters and is called with records.

A stage is anything callable with the inputs of its slot:

| slot | called with | returns |
|---|---|---|
| `profile` | step | OpGraph |
| `optimize` | graph, cluster | OpGraph (coarse) |
| `place` | coarse, cluster | Placement |
| `simulate` | graph (or coarse, where the stage has `on = "coarse"`), cluster, placement | Timeline |
| `execute` | step, placement | Run |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from .checks import check_text, check_whole, is_list
from .errors import InvalidInput, UnknownNameError, in_short
from .graph import Cluster, OpGraph, Placement, Run, Step, Timeline
from .passes.optimize import PASSES
from .pipeline import Stage

if TYPE_CHECKING:
    from .graph.hardware import HardwareChoice
    from .placers.base import Placer
    from .simulator.schedulers import SchedulerOption
    from .simulator.schedules import ScheduleOption
    from .torch_steps.step import TorchStep

GROUPING = (*PASSES, "forward-only")
"""Passes that only join ops."""


@dataclass(frozen=True)
class Profile(Stage):
    """Stage 1: a training step becomes a graph with costs, see `bl.profile`.

    Args:
        mode: "measured" (`warmup` steps, then `runs` traced ones on `device`) or "estimated" (a model of kernels); by default
            estimated if hardware or a precision is named.
        hardware: for "estimated": a name, several, or a mapping from device kinds.
        precision: for "estimated": as in `bl.profile`.
        device, warmup, runs, progress: for "measured", as in `bl.profile`.

    >>> Profile(hardware="v100").get_params()["hardware"]
    'v100'
    """

    slot: ClassVar[str] = "profile"
    mode: str | None = None
    hardware: HardwareChoice | None = None
    precision: str | None = None
    device: str | None = None
    warmup: int = 5
    runs: int = 5
    progress: bool = True

    def validate(self) -> None:
        """Rejects an unknown mode, hardware or precision, hardware of a measurement, and counts out of range."""
        from .graph.hardware import Hardware
        from .profilers.precision import Precision, profile_mode

        if self.mode is not None:
            check_text("mode", self.mode)
        profile_mode(self.mode, self.hardware, self.precision)
        Precision.of(self.precision)
        _check_counts(self, warmup=0, runs=1)
        if isinstance(self.hardware, str):
            Hardware.named(self.hardware)

    def __call__(self, step: Step | TorchStep) -> OpGraph:
        from .profilers import profile

        return profile(step, **self.get_params())


@dataclass(frozen=True)
class Optimize(Stage):
    """Stage 2: a graph becomes a smaller one, see `bl.optimize`.

    Args:
        passes, forward_only: as in `bl.optimize`.

    >>> Optimize().passes
    ('colocation', 'coplacement', 'fusion')
    """

    slot: ClassVar[str] = "optimize"
    passes: tuple[Any, ...] = PASSES
    forward_only: bool | str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.passes, str):
            raise InvalidInput(
                f"passes is the text {self.passes!r}; it must be a list of passes, for example ('fusion',)"
            )
        if not is_list(self.passes):
            raise InvalidInput(
                f"passes is {in_short(self.passes)}; it must be a list of passes, for example ('fusion',)"
            )
        object.__setattr__(self, "passes", tuple(self.passes))
        self.validate()

    def validate(self) -> None:
        """Rejects an unknown pass, and a `forward_only` other than True, False and "auto"."""
        from .passes.registry import make_pass

        for graph_pass in self.passes:
            make_pass(graph_pass)
        if not isinstance(self.forward_only, (bool, str)) or self.forward_only not in (True, False, "auto"):
            raise InvalidInput(f"forward_only is {in_short(self.forward_only)}; it must be True, False or 'auto'")

    def depends(self, graph: OpGraph, cluster: Cluster) -> tuple[OpGraph, bool]:
        """Returns what the result depends on: of the cluster, whether every device holds the whole model, if that decides."""
        from .passes.optimize import fits_everywhere

        return graph, self.forward_only == "auto" and fits_everywhere(graph, cluster)

    def __call__(self, graph: OpGraph, cluster: Cluster) -> OpGraph:
        from .passes import optimize

        return optimize(graph, cluster, passes=self.passes, forward_only=self.forward_only)

    def finer(self) -> list[Optimize]:
        """Returns the stages that make smaller groups: without forward-only placement, colocation groups only, single ops.

        >>> [stage.passes for stage in Optimize(("recompute", "colocation", "fusion"), forward_only=False).finer()]
        [('recompute', 'colocation'), ('recompute',)]
        """
        from .passes.registry import make_pass

        names = [make_pass(graph_pass).name for graph_pass in self.passes]
        stages = [self]
        for left_out in (("forward-only",), ("forward-only", "fusion", "coplacement"), GROUPING):
            passes = tuple(p for p, name in zip(self.passes, names, strict=True) if name not in left_out)
            if (stage := Optimize(passes, forward_only=False)) != stages[-1]:
                stages.append(stage)
        return stages[1:]


@dataclass(frozen=True, init=False, repr=False)
class Place(Stage):
    """Stage 3: a graph becomes a placement, see `bl.place`.

    Args:
        placer: a name or an object.
        params: its parameters, by keyword.

    >>> Place("m-sct", threshold=0.2)
    Place('m-sct', threshold=0.2)
    """

    slot: ClassVar[str] = "place"
    placer: str | Placer
    params: Mapping[str, object]

    def __init__(self, placer: object = "m-sct", **params: object):
        self._hold(placer, params)

    def _hold(self, placer: object, params: Mapping[str, object]) -> None:
        object.__setattr__(self, "placer", placer)
        object.__setattr__(self, "params", MappingProxyType(dict(params)))
        self.validate()

    @classmethod
    def with_params(cls, placer: object, params: Mapping[str, object]) -> Place:
        """Returns the stage for parameters of any name, such as the `placer` of post-adjusted."""
        stage = object.__new__(cls)
        stage._hold(placer, params)
        return stage

    def validate(self) -> None:
        """Rejects an unknown placer or parameter, or a value outside its range."""
        from .placers.registry import make_placer

        make_placer(self.placer, **self.params)

    def get_params(self) -> dict[str, object]:
        """Returns `placer` and its parameters."""
        return {"placer": self.placer, **self.params}

    def __call__(self, graph: OpGraph, cluster: Cluster) -> Placement:
        from .placers import place
        from .placers.registry import make_placer

        return place(graph, cluster, make_placer(self.placer, **self.params))

    def __repr__(self) -> str:
        params_text = "".join(f", {key}={value!r}" for key, value in self.params.items())
        return f"Place({self.placer!r}{params_text})"

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True)
class Simulate(Stage):
    """Stage 4: a placement becomes a timeline, see `bl.simulate`.

    Args:
        scheduler: as in `bl.simulate`.
        on: "graph" (every op is simulated) or "coarse" (groups of ops run as one).
        micro_batches, schedule: as in `bl.simulate`; the graph is then that of one micro-batch.

    >>> Simulate("pct").on
    'graph'
    """

    slot: ClassVar[str] = "simulate"
    scheduler: SchedulerOption | None = None
    on: str = "graph"
    micro_batches: int | None = None
    schedule: ScheduleOption | None = None

    def get_params(self) -> dict[str, object]:
        """Returns the parameters by name; those of micro-batches only where given."""
        pipeline = {"micro_batches": self.micro_batches, "schedule": self.schedule}
        return {"scheduler": self.scheduler, "on": self.on} | {k: v for k, v in pipeline.items() if v is not None}

    def validate(self) -> None:
        """Rejects an unknown `on`, scheduler or schedule, and a count of micro-batches below 1."""
        if self.on not in ("graph", "coarse"):
            raise UnknownNameError.of("graph to simulate on", self.on, ("graph", "coarse"))
        if isinstance(self.scheduler, str):
            from .simulator.schedulers import SCHEDULERS

            SCHEDULERS.find(self.scheduler)
        if self.micro_batches is not None or self.schedule is not None:
            from .simulator.pipelined_graph import pipeline_options

            pipeline_options(self.micro_batches, self.schedule)

    def __call__(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> Timeline:
        from .simulator import simulate

        return simulate(
            graph, cluster, placement, self.scheduler, micro_batches=self.micro_batches, schedule=self.schedule
        )


@dataclass(frozen=True)
class Execute(Stage):
    """Stage 5: the placed step runs on real devices, see `bl.execute`.

    Args:
        steps, warmup: `steps` are measured after `warmup` steps.
        cluster: names the devices; None takes the attached ones, which need not be those that were simulated.
        timeout: seconds for everything; None for no limit.

    >>> Execute(steps=5).warmup
    3
    """

    slot: ClassVar[str] = "execute"
    steps: int = 20
    warmup: int = 3
    cluster: object = None
    timeout: float | None = None

    def validate(self) -> None:
        """Rejects counts that are not whole numbers in range."""
        _check_counts(self, steps=1, warmup=0)

    def __call__(self, step: Step, placement: Placement) -> Run:
        from .executors import execute

        return execute(step, placement, **self.get_params())


def _check_counts(stage: Stage, **lowest: int) -> None:
    for key, least in lowest.items():
        check_whole(key, getattr(stage, key), least)
