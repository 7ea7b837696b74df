"""Schedules of pipelines: the order of the (stage, micro-batch, F | B | W) units of every device."""

from __future__ import annotations

from ...errors import InvalidInput, UnknownNameError, in_short
from .base import SHAPES, ScheduleRule, Setting
from .gpipe import GPipe
from .interleaved import Interleaved
from .one_f_one_b import OneFOneB
from .schedule import KINDS, Schedule, Unit, is_schedule_text
from .zb_auto import ZbAuto
from .zb_h1 import ZbH1
from .zb_h2 import ZbH2
from .zb_v import ZbV

__all__ = [
    "KINDS",
    "RULES",
    "SHAPES",
    "GPipe",
    "Interleaved",
    "OneFOneB",
    "Schedule",
    "ScheduleOption",
    "ScheduleRule",
    "Setting",
    "Unit",
    "ZbAuto",
    "ZbH1",
    "ZbH2",
    "ZbV",
    "is_schedule_text",
    "list_schedules",
    "make_rule",
    "make_schedule",
]

RULES: dict[str, type[ScheduleRule]] = {
    rule.name: rule for rule in (GPipe, OneFOneB, Interleaved, ZbH1, ZbH2, ZbAuto, ZbV)
}


ScheduleOption = str | Schedule | ScheduleRule
"""What a `schedule` argument may be: the name of a rule, a rule, a `Schedule`, or the text of one."""


def list_schedules() -> dict[str, str]:
    """Returns every schedule rule with its one-line description."""
    return {name: (rule.__doc__ or "").strip().splitlines()[0] for name, rule in RULES.items()}


def make_rule(schedule: object) -> ScheduleRule:
    """Returns the rule of that name; a rule is returned as it is. `UnknownNameError` suggests the closest name."""
    if isinstance(schedule, ScheduleRule):
        return schedule
    if not isinstance(schedule, str):
        raise InvalidInput(f"schedule is {in_short(schedule)}; it must be a name ({', '.join(RULES)}) or a Schedule")
    if schedule not in RULES:
        raise UnknownNameError.of("schedule", schedule, RULES)
    return RULES[schedule]()


def make_schedule(rule: ScheduleRule, setting: Setting) -> Schedule:
    """Returns the schedule of a rule for a pipeline, checked; for inference without B and W."""
    rule.check_shape(setting.stage_device)
    orders = rule.orders(setting)
    if not setting.training:
        orders = [[unit for unit in order if unit[1] == "F"] for order in orders]
    width = setting.replicas or (1,) * len(orders)
    lines = [
        [unit for unit in order if unit[2] % r == k] for order, r in zip(orders, width, strict=True) for k in range(r)
    ]
    schedule = Schedule.of(lines)
    schedule.check(setting.stage_device, setting.micro_batches, setting.training, setting.replicas)
    return schedule
