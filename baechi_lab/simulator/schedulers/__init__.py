"""Schedulers: how a device chooses among its ready ops. One small object each, by name or as an object."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidInput
from ...graph import Placement
from ...registry import Registry
from .base import SchedulerLike, by_rank
from .fifo import Fifo
from .msr import Msr
from .pct import Pct, path_computation_time
from .planned import Planned

__all__ = [
    "SCHEDULERS",
    "Fifo",
    "Msr",
    "Pct",
    "Planned",
    "SchedulerLike",
    "by_rank",
    "make_scheduler",
    "path_computation_time",
]

SCHEDULERS: Registry[Any] = Registry(
    "scheduler", SchedulerLike, {"fifo": Fifo, "planned": Planned, "pct": Pct, "msr": Msr}
)


def make_scheduler(scheduler: Any, placement: Placement) -> SchedulerLike:
    """A scheduler object from a name, an object, or None (planned where there is a plan, else fifo)."""
    if scheduler is None:
        return Fifo() if placement.rank is None else Planned()
    if isinstance(scheduler, str):
        scheduler_object: SchedulerLike = SCHEDULERS.find(scheduler)()
        return scheduler_object
    if not isinstance(scheduler, SchedulerLike):
        raise InvalidInput(
            f"scheduler is {scheduler!r}; it must be a name ({', '.join(SCHEDULERS.names())}) or a scheduler object"
        )
    return scheduler
