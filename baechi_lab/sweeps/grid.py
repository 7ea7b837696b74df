"""The settings of a sweep, and the keys under which a file stores their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..checks import check_whole, is_list
from ..errors import InvalidInput, in_short
from ..graph import Cluster, OpGraph, Step
from ..graph.device import device_count
from ..graph.hardware import DEFAULT_HARDWARE, by_kind
from ..graph.units import parse_bytes
from ..identity import content_digest
from ..models.registry import model_class
from ..version import __version__

if TYPE_CHECKING:
    from ..simulator.schedules import ScheduleOption

Subject = str | Step | OpGraph | Callable[[int], OpGraph]


@dataclass(frozen=True)
class Profiling:
    """The arguments by which the graph of a batch size is built and profiled: see `bl.models.build` and `bl.profile`."""

    mode: str = "estimated"
    hardware: str | None = None
    model_params: tuple[tuple[str, object], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `bl.profile`."""
        return {"mode": self.mode, "hardware": self.hardware}


@dataclass(frozen=True)
class Placing:
    """Options that all rows share: see `bl.optimize`, `bl.place` and `bl.simulate`."""

    passes: tuple[str, ...]
    forward_only: bool | str
    scheduler: str | None
    params: tuple[tuple[str, tuple[tuple[str, object], ...]], ...]

    def of(self, placer: str) -> dict[str, object]:
        """Returns the parameters given for a placer."""
        return dict(dict(self.params).get(placer, ()))


@dataclass(frozen=True, eq=False)
class Cell:
    """One setting of a sweep.

    Args:
        batch_size: of its graph; None: the graph's own.
        cluster, placer: the devices, and the name of the placer.
        samples: per step; None: unknown.
        micro_batches, schedule: as in `bl.simulate`.
        replicas: the number of copies of the placement, each on its share of the devices.
        error: why this setting cannot be simulated; empty if it can.
    """

    batch_size: int | None
    cluster: Cluster
    placer: str
    samples: int | None = None
    micro_batches: int | None = None
    schedule: ScheduleOption | None = None
    replicas: int = 1
    error: str = ""

    @property
    def pipeline(self) -> dict[str, Any]:
        """Those of `micro_batches` and `schedule` that are not None."""
        options = {"micro_batches": self.micro_batches, "schedule": self.schedule}
        return {key: value for key, value in options.items() if value is not None}

    @property
    def placer_arguments(self) -> dict[str, object]:
        """Those of `pipeline` that are parameters of the placer."""
        from ..placers.registry import pipeline_parameters

        return pipeline_parameters(self.placer, self.pipeline)

    @property
    def columns(self) -> dict[str, object]:
        """The columns of the row that describe the setting."""
        return {
            "batch_size": self.samples,
            "micro_batches": self.micro_batches,
            "schedule": None if self.schedule is None else str(self.schedule),
            "replicas": self.replicas,
            "devices": self.cluster.n,
            "memory_bytes": int(self.cluster.memory_bytes[~self.cluster.is_host].min()),
            "placer": self.placer,
        }

    def key(self, graph_key: str, placing: Placing) -> str:
        """Returns the key of the row in a file.

        Raises:
            Unidentified: a parameter, pass or scheduler has no content to compare.
        """
        from ..placers.registry import placer_class

        parameters = {**self.placer_arguments, **placing.of(self.placer)}
        step = (self.pipeline, self.replicas, self.samples, self.error)
        rules = (placing.passes, placing.forward_only, placing.scheduler)
        return content_digest(
            (__version__, graph_key, self.cluster, placer_class(self.placer), parameters, rules, step)
        )


def graph_key(subject: Subject, batch_size: int | None, profiling: Profiling) -> str:
    """Returns the key of a batch size's graph in a file; a function is identified by its code and what that refers to.

    Raises:
        Unidentified: the function reads files, or refers to something that has no content to compare.
    """
    if isinstance(subject, OpGraph):
        return content_digest(("graph", subject))
    if not isinstance(subject, (str, Step)):
        return content_digest((__version__, "function", subject, batch_size))
    hardware = by_kind(profiling.hardware or DEFAULT_HARDWARE) if profiling.mode == "estimated" else None
    costs = (profiling.mode, hardware, profiling.model_params)
    if isinstance(subject, Step):  # its costs do not depend on the values of its variables
        origin = (None, None) if subject.built_from is None else (subject.built_from.model, subject.built_from.params)
        return content_digest((__version__, "step", subject.key, origin, batch_size, costs))
    return content_digest((__version__, "model", subject, model_class(subject), batch_size, costs))


@dataclass(frozen=True)
class Steps:
    """Lists of the swept options of steps: `micro_batches` and `schedule` (None: not given) and `replicas`.

    A batch that the micro-batches do not divide is rejected at once if there is one count, else in its rows.
    """

    micro_batches: tuple[int | None, ...] = (None,)
    schedule: tuple[ScheduleOption | None, ...] = (None,)
    replicas: tuple[int, ...] = (1,)

    @classmethod
    def of(cls, micro_batches: object, schedule: object, replicas: object) -> Steps:
        """Returns the checked lists; each argument is one value or several."""
        from ..passes.unroll import MOST_OPS
        from ..simulator.pipelined_graph import pipeline_options

        counts = [None] if micro_batches is None else as_list("micro_batches", micro_batches)
        schedules = [None] if schedule is None else as_list("schedule", schedule)
        for count, option in product(counts, schedules):
            pipeline_options(count, option)
            if count is not None and count > MOST_OPS:
                raise InvalidInput(f"micro_batches is {in_short(count)}; it must be at most {MOST_OPS}")
        for field, values in (("micro_batches", counts), ("schedule", schedules)):
            if not values:
                raise InvalidInput(f"{field} is empty; give at least one value to sweep over")
        replica_counts = [device_count(replica_count, "replicas") for replica_count in as_list("replicas", replicas)]
        if not replica_counts:
            raise InvalidInput("replicas is empty; give at least one value to sweep over")
        return cls(tuple(counts), tuple(schedules), tuple(replica_counts))


def cells(
    batch_size: Iterable[int] | None,
    devices: Iterable[int],
    memory_bytes: Iterable[int | str] | None,
    placer: Iterable[str],
    template: Cluster,
    steps: Steps | None = None,
) -> Iterator[Cell]:
    """Yields all combinations, batch sizes and micro-batches outermost, so that each graph is built once.

    Without `memory_bytes`, devices have the memory of the template's.
    """
    steps = Steps() if steps is None else steps
    sizes = [None] if batch_size is None else [check_whole("batch_size", size) for size in batch_size]
    device_counts = [device_count(count, "devices") for count in devices]
    memory = [None] if memory_bytes is None else [parse_bytes(size) for size in memory_bytes]
    names = list(placer)
    for field, values in (
        ("batch_size", sizes),
        ("devices", device_counts),
        ("memory_bytes", memory),
        ("placer", names),
    ):
        if not values:
            raise InvalidInput(f"{field} is empty; give at least one value to sweep over")
    for samples, micro_batches in product(sizes, steps.micro_batches):
        graph_batch, batch_error = _micro_batch_size(samples, micro_batches, len(steps.micro_batches) > 1)
        options = product(device_counts, memory, names, steps.replicas, steps.schedule)
        for device_number, capacity_bytes, placer_name, replicas, schedule in options:
            cluster = template.resized(device_number)
            if capacity_bytes is not None:
                cluster = cluster.with_memory(capacity_bytes)
            yield Cell(
                batch_size=graph_batch,
                cluster=cluster,
                placer=placer_name,
                samples=samples,
                micro_batches=micro_batches,
                schedule=schedule,
                replicas=replicas,
                error=batch_error or replica_error(device_number, replicas, micro_batches),
            )


def _micro_batch_size(samples: int | None, count: int | None, several: bool) -> tuple[int | None, str]:
    """Returns the samples of a micro-batch, or None and the reason; raises the reason unless there are `several` counts."""
    from ..passes.unroll import micro_batch_size

    if samples is None or count is None:
        return samples, ""
    try:
        return micro_batch_size(samples, count), ""
    except InvalidInput as error:
        if not several:
            raise
        return None, str(error)


def replica_error(devices: int, replicas: int, micro_batches: int | None) -> str:
    """Returns why this number of devices cannot hold the replicas; empty if it can.

    >>> replica_error(1, 2, 4)
    'replicas is 2; 1 device cannot be divided among so many'
    >>> replica_error(4, 2, None)
    'replicas is 2 and the batch is whole; cut the batch into at least 2 micro-batches, one per replica'
    """
    if devices % replicas:
        count = f"the {devices} devices" if devices > 1 else "1 device"
        return f"replicas is {replicas}; {count} cannot be divided among so many"
    if replicas > (micro_batches or 1):
        count = "the batch is whole" if micro_batches is None else f"micro_batches is {micro_batches}"
        return (
            f"replicas is {replicas} and {count}; cut the batch into at least {replicas} micro-batches, one per replica"
        )
    return ""


def as_list(field: str, values: Any) -> list[Any]:
    """Returns one value or several as a list. Raises `InvalidInput` for anything else."""
    if isinstance(values, (str, int)):
        return [values]
    if not is_list(values) or isinstance(values, Mapping):
        raise InvalidInput(f"{field} is {in_short(values)}; give one value or a list of them")
    return list(values)
