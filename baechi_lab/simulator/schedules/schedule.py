"""`Schedule`: the order of the units of every device of a pipeline, as a record and as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeGuard

from ...errors import FormatError, InvalidInput

KINDS = "FBW"
"""Forward, gradient of inputs, gradient of weights. Without W units, B is the whole backward pass."""

_UNIT = re.compile(r"(\d+)([FBW])(\d+)")
_IDLE = "-"
"""The line of a device without units, such as the second replica of a stage that has one micro-batch."""


class Unit(NamedTuple):
    """The work of one stage for one micro-batch: `0F3` is the forward pass of micro-batch 3 on stage 0."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """One tuple of units per device of the pipeline, in the order in which it works.

    Devices are counted along the pipeline: the first line belongs to the device of stage 0, the next to the device
    that holds the next stage, and so on; the replicas of a stage follow each other. The text has one line per device, `-`
    where it has no unit, and parses back.

    >>> print(Schedule.parse("0F0 0F1 0B0 0B1\\n1F0 1B0 1F1 1B1"))
    0F0 0F1 0B0 0B1
    1F0 1B0 1F1 1B1
    """

    orders: tuple[tuple[Unit, ...], ...]

    @classmethod
    def of(cls, orders: Iterable[Iterable[tuple[int, str, int]]]) -> Schedule:
        """Returns a schedule from (stage, kind, micro-batch) triples."""
        return cls(tuple(tuple(Unit(*unit) for unit in order) for order in orders))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parses a text. Raises `FormatError` that names the line and the word that is not a unit."""
        orders = []
        for number, line in enumerate(text.strip().splitlines(), 1):
            units = []
            for word in line.split() if line.strip() != _IDLE else ():
                match = _UNIT.fullmatch(word)
                if match is None:
                    raise FormatError(
                        f"schedule line {number} has {word!r}; a unit is a stage, F, B or W, and a micro-batch, as in 0F3"
                    )
                units.append(Unit(int(match[1]), match[2], int(match[3])))
            orders.append(tuple(units))
        return cls(tuple(orders))

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, order)) or _IDLE for order in self.orders)

    @cached_property
    def splits(self) -> bool:
        """Whether gradients of weights are units of their own (W)."""
        return any(unit.kind == "W" for order in self.orders for unit in order)

    def check(
        self, stage_device: Sequence[int], micro_batches: int, training: bool = True, replicas: Sequence[int] = ()
    ) -> None:
        """Raises `InvalidInput` unless every unit runs once, on its stage's device, and the schedule does not block itself.

        `stage_device[s]` is the device of stage s, numbered along the pipeline. Stages form a chain: F waits for F of the
        previous stage, B for B of the next stage (in the last stage for its F), W for B. `replicas[d]` is the number of lines
        of device d; the k-th line has the micro-batches that leave remainder k (default: one each).

        The error names the unit; for a deadlock, also the unit for which it waits.
        """
        kinds = ("FBW" if self.splits else "FB") if training else "F"
        required_units = {Unit(s, k, m) for s in range(len(stage_device)) for k in kinds for m in range(micro_batches)}
        width = list(replicas) or [1] * (max(stage_device, default=-1) + 1)
        first = [sum(width[:d]) for d in range(len(width))]
        if len(self.orders) != sum(width):
            raise InvalidInput(f"the schedule has {len(self.orders)} lines; the pipeline has {sum(width)} devices")

        def line_of(unit: Unit) -> int:
            device = stage_device[unit.stage]
            return first[device] + unit.micro_batch % width[device]

        units_seen: set[Unit] = set()
        for line, order in enumerate(self.orders):
            for unit in order:
                if unit not in required_units:
                    raise InvalidInput(
                        f"line {line + 1} of the schedule has {unit}; the pipeline has stages 0 to {len(stage_device) - 1}, "
                        f"micro-batches 0 to {micro_batches - 1}, and units of the kinds {', '.join(kinds)}"
                    )
                if line_of(unit) != line:
                    raise InvalidInput(
                        f"line {line + 1} of the schedule has {unit}, which belongs to line {line_of(unit) + 1}"
                    )
                if unit in units_seen:
                    raise InvalidInput(f"line {line + 1} of the schedule has {unit} twice")
                units_seen.add(unit)
        if units_seen != required_units:
            raise InvalidInput(f"the schedule lacks {min(required_units - units_seen)}; every unit must run once")
        last = len(stage_device) - 1
        self.check_deadlock(lambda unit: chain_needs(unit, last))

    def check_deadlock(self, needs: Callable[[Unit], Iterable[Unit]]) -> None:
        """Runs the schedule without durations. `needs(unit)` lists the units for which a unit waits.

        Raises `InvalidInput` if all devices wait.
        """
        finished_units: set[Unit] = set()
        position = [0] * len(self.orders)
        has_progress = True
        while has_progress:
            has_progress = False
            for d, order in enumerate(self.orders):
                while position[d] < len(order) and finished_units.issuperset(needs(order[position[d]])):
                    finished_units.add(order[position[d]])
                    position[d] += 1
                    has_progress = True
        blocked_devices = [d for d, order in enumerate(self.orders) if position[d] < len(order)]
        if blocked_devices:
            unit = self.orders[blocked_devices[0]][position[blocked_devices[0]]]
            missing = next(needed_unit for needed_unit in needs(unit) if needed_unit not in finished_units)
            raise InvalidInput(
                f"the schedule blocks itself: {unit} waits for {missing}, whose device waits as well (dead-lock)"
            )


def is_schedule_text(schedule: object) -> TypeGuard[str]:
    """Whether `schedule` is the text of a `Schedule`, not the name of a rule. The text may be empty (a pipeline without units).

    >>> is_schedule_text("0F0 0B0"), is_schedule_text(""), is_schedule_text("zb-h1")
    (True, True, False)
    """
    return isinstance(schedule, str) and ("F0" in schedule or not schedule.strip(_IDLE + " \n"))


def chain_needs(unit: Unit, last: int) -> list[Unit]:
    """Returns the units for which a unit of a chain of stages 0 .. `last` waits."""
    stage, kind, batch = unit
    if kind == "F":
        return [Unit(stage - 1, "F", batch)] if stage else []
    if kind == "W":
        return [Unit(stage, "B", batch)]
    return [Unit(stage, "F", batch)] + ([Unit(stage + 1, "B", batch)] if stage < last else [])
