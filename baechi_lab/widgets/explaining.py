"""The decision log of a placer, step by step: what could start, what was ruled out and why, what was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph, Placement
from ..graph.units import format_us
from ..placers.registry import placer_class
from ..stages import Place
from .compute import Outcome

MOST_OPS = 3000
"""The log is made by the readable twin, whose cost grows with the square of the ops."""
MOST_SHOWN = 40


@dataclass(frozen=True, eq=False)
class Log:
    """Decisions of one placement of `coarse`; `members[k]` are the graph's ops placed in step `k`."""

    placement: Placement
    coarse: OpGraph
    decisions: tuple[Any, ...]
    device_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.decisions)

    def ops(self, step: int) -> NDArray[np.int64]:
        """The graph's ops that step `step` placed."""
        return self.coarse.members[self.decisions[step].chosen.op]

    def decided(self, step: int) -> NDArray[np.int64]:
        """The graph's ops that are placed once step `step` is done."""
        parts = [self.ops(k) for k in range(step + 1)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def sentence(self, step: int) -> str:
        """What was chosen, and why."""
        d = self.decisions[step]
        name, device = self.coarse.names[d.chosen.op], self.device_names[d.chosen.device]
        start = format_us(d.chosen.start_us)
        return f"step {step + 1} of {len(self)}: {name} goes to {device}, starting at {start}. {d.reason}"

    def rows(self, step: int, most: int = MOST_SHOWN) -> list[list[str]]:
        """Candidates of a step, earliest first: op, device, earliest start, and why it was ruled out or chosen."""
        d = self.decisions[step]
        chosen = (d.chosen.op, d.chosen.device)
        listed = sorted(d.candidates, key=lambda c: (bool(c.excluded), c.start_us, c.op, c.device))
        return [
            [
                self.coarse.names[c.op], self.device_names[c.device], format_us(c.start_us),
                c.excluded or ("chosen" if (c.op, c.device) == chosen else ""),
            ]
            for c in listed[:most]
        ]  # fmt: skip


def can_explain(placer: str) -> bool:
    """The placer can keep a decision log."""
    return "explain" in placer_class(placer).__dataclass_fields__


def explain(outcome: Outcome) -> Log:
    """The decision log of the outcome's placer on its coarse graph.

    Raises:
        InvalidInput: a placer that keeps no log, or a graph too large for it.
    """
    setting, coarse = outcome.setting, outcome.coarse
    if not can_explain(setting.placer):
        raise InvalidInput(f"placer {setting.placer!r} keeps no decision log; m-etf, m-sct, etf and sct do")
    if coarse.n > MOST_OPS:
        raise InvalidInput(f"the log of {coarse.n} ops would be too long; at most {MOST_OPS}: switch more passes on")
    placement = Place(setting.placer, **{**setting.params, "explain": True})(coarse, setting.cluster)
    decisions = tuple(placement.info.get("decisions", ()))
    if not decisions:
        raise InvalidInput(f"placer {setting.placer!r} made no list of decisions for this graph")
    return Log(placement, coarse, decisions, setting.cluster.names)
