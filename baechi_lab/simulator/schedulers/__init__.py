"""Schedulers: how a device chooses among its ready ops. One small object each, by name or as an object."""

from __future__ import annotations

from ...errors import InvalidInput, in_short
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
    "SchedulerOption",
    "by_rank",
    "make_scheduler",
    "path_computation_time",
]

SCHEDULERS: Registry[SchedulerLike] = Registry(
    "scheduler", SchedulerLike, {"fifo": Fifo, "planned": Planned, "pct": Pct, "msr": Msr}
)


SchedulerOption = str | SchedulerLike
"""What a `scheduler` argument may be: a name, or an object."""


def make_scheduler(scheduler: SchedulerOption | None, placement: Placement) -> SchedulerLike:
    """Returns a scheduler object from a name, an object, or None (planned where there is a plan, else fifo)."""
    if scheduler is None:
        return Fifo() if placement.rank is None else Planned()
    if isinstance(scheduler, str):
        return SCHEDULERS.find(scheduler)()
    if not isinstance(scheduler, SchedulerLike):
        raise InvalidInput(
            f"scheduler is {in_short(scheduler, 200)}; it must be a name ({', '.join(SCHEDULERS.names())}) or a scheduler object"
        )
    return scheduler
