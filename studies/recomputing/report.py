"""What a recomputed step saves and costs, simulated and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TARGET = 0.10
"""How far the measured saving may be from the simulated one, as a share of the latter."""


@dataclass(frozen=True)
class Row:
    """One choice of recomputation of one model on one device; bytes of the peak, and microseconds of a step.

    `choice` is "plain", "ordered" (plain, in the order of a plan), a name that `bl.recompute` knows, or "budget"; `copies`
    counts ops that run again.
    """

    framework: str
    model: str
    choice: str
    copies: int
    simulated_bytes: int
    measured_bytes: int
    simulated_us: float
    measured_us: float
    same_losses: bool


def saving_error(plain: Row, row: Row) -> float:
    """The measured saving in peak over the simulated one, less 1; 0 where nothing is saved either way.

    >>> plain = Row("torch", "m", "plain", 0, 100, 90, 1.0, 1.0, True)
    >>> round(saving_error(plain, Row("torch", "m", "sqrt", 3, 60, 52, 1.2, 1.2, True)), 3)    # 38 of 40
    -0.05
    """
    simulated = plain.simulated_bytes - row.simulated_bytes
    measured = plain.measured_bytes - row.measured_bytes
    return 0.0 if simulated == measured else measured / simulated - 1.0 if simulated else float("inf")


def plain_of(rows: Sequence[Row], row: Row) -> Row:
    """The row of the same model without recomputation, in the order of a plan where there is one."""
    row_of_choice = {r.choice: r for r in rows if (r.framework, r.model) == (row.framework, row.model)}
    return row_of_choice.get("ordered", row_of_choice["plain"]) if row.choice != "plain" else row
