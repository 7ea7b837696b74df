"""Parameters of evaluation and annealing in one frozen object, each with its unit, meaning and origin."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class Moves(NamedTuple):
    """The fields of `EvaluationParameters` that compiled code reads, under the same names."""

    order_share: float
    anywhere_share: float
    run_share: float
    whole_share: float
    overfull_tries: int


def number(default: object, unit: str, meaning: str, origin: str = "by hand") -> Any:
    """Defines a field of a parameter object by its default value, unit, meaning and origin."""
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "origin": origin})


@dataclass(frozen=True)
class EvaluationParameters:
    """Parameters of `placers.evaluation`; `describe` lists the unit, meaning and origin of each.

    >>> EvaluationParameters().overfull_tries
    8
    """

    spare_bytes: int = number(
        256,
        "bytes",
        "kept free around small arrays, some lines of a processor's cache",
        "threads that wrote to neighbouring memory waited for each other; not tuned further",
    )
    page_bytes: int = number(
        4096, "bytes", "arrays larger than this stay where they are", "a page of memory; not tuned"
    )
    order_share: float = number(0.35, "share of the moves", "change an order where priorities are searched")
    anywhere_share: float = number(
        0.25, "share of the moves", "go to any device, where others go to that of a neighbour"
    )
    run_share: float = number(0.1, "share of the moves", "take along the units that follow in topological order")
    whole_share: float = number(
        0.5, "share of the changes of an order", "move all ops of a unit, where others move one"
    )
    overfull_tries: int = number(8, "draws", "to find a unit on a device that exceeds its memory, while one does")
    improving_heat: float = number(0.003, "step times", "first temperature where a placement that fits is improved")
    improving_cooling: float = number(0.05, "share of the first temperature", "the last one of an improvement")
    way_ops: int = number(
        4096, "ops", "most of a label within which ways are followed for edges that others imply", "bounds the memory"
    )

    @property
    def moves(self) -> Moves:
        """The parameters that compiled code reads."""
        return Moves(*(getattr(self, name) for name in Moves._fields))

    def describe(self) -> list[tuple[str, object, str, str, str]]:
        """Returns name, value, unit, meaning and origin of every parameter."""
        return [(f.name, getattr(self, f.name), *(f.metadata[k] for k in f.metadata)) for f in fields(self)]


EVALUATION = EvaluationParameters()
"""The default parameters."""
