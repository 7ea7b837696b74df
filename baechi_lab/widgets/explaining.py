"""The decision log of a placement, step by step: what could start, what was ruled out and why, what was chosen.

Placers with a parameter `explain` tell their own decisions. Any other placement, and a graph too large for such a log, is
replayed: op by op in the order of its schedule, with where each could have started (`placers/replay.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Placement
from ..graph.units import format_us
from ..placers.list_scheduling.replay import Replay
from ..placers.registry import placer_class
from ..simulator import simulate
from ..stages import Place
from .compute import Outcome

MOST_OPS = 3000
"""A list scheduler's own log is made by its readable twin, whose cost grows with the square of the ops."""
MOST_SHOWN = 40


@dataclass(frozen=True, eq=False)
class Log:
    """Decisions of one placement of `coarse`; step `k` placed group `order[k]`. `told`: by the placer itself."""

    placement: Placement
    coarse: OpGraph
    decisions: Sequence[Any]
    order: NDArray[np.int64]
    device_names: tuple[str, ...]
    told: bool = True

    def __len__(self) -> int:
        return len(self.order)

    def ops(self, step: int) -> NDArray[np.int64]:
        """The graph's ops that step `step` placed."""
        return self.coarse.members[self.order[step]]

    def decided(self, step: int) -> NDArray[np.int64]:
        """The graph's ops that are placed once step `step` is done."""
        members = self.coarse.members
        parts = [members[i] for i in self.order[: step + 1].tolist()]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def step_of(self, op: int) -> int:
        """The step that placed an op of the graph."""
        group = op if self.coarse.group_of is None else int(self.coarse.group_of[op])
        return int(np.flatnonzero(self.order == group)[0])

    def sentence(self, step: int) -> str:
        """What was chosen, and why."""
        d = self.decisions[step]
        name, device = self.coarse.names[d.chosen.op], self.device_names[d.chosen.device]
        start = "" if math.isnan(d.chosen.start_us) else f", starting at {format_us(d.chosen.start_us)}"
        return f"step {step + 1} of {len(self)}: {name} goes to {device}{start}. {d.reason}"

    def rows(self, step: int, most: int = MOST_SHOWN) -> list[list[str]]:
        """Candidates of a step: the chosen one, then the earliest, then those ruled out; op, device, start, and why.

        The other devices of the chosen op are always listed.
        """
        d = self.decisions[step]
        own = [c for c in d.candidates if c.op == d.chosen.op and c.device != d.chosen.device]
        others = [c for c in d.candidates if c.op != d.chosen.op]
        listed = sorted(own + others, key=lambda c: (bool(c.excluded), c.start_us, c.op, c.device))[: most - 1]
        listed += [c for c in own if c not in listed]
        return [self._row(d.chosen, "chosen"), *(self._row(c, c.excluded) for c in listed)]

    def _row(self, c: Any, why: str) -> list[str]:
        start = "" if math.isnan(c.start_us) else format_us(c.start_us)
        return [self.coarse.names[c.op], self.device_names[c.device], start, why]


def tells(placer: str) -> bool:
    """The placer can tell its own decisions at once; one that goes on improving would have to be run again."""
    found = placer_class(placer)
    return "explain" in found.__dataclass_fields__ and not found.anytime


def explain(outcome: Outcome) -> Log:
    """The decision log of the outcome's placement, before moves by hand: the placer's own if it has one, else a replay."""
    setting, coarse = outcome.setting, outcome.coarse
    if tells(setting.placer) and coarse.n <= MOST_OPS:
        told = Place(setting.placer, **{**setting.placer_params, "explain": True})(coarse, setting.share)
        decisions = told.info.get("decisions", ())
        # A plan that was repaired to fit memory is not what its decisions led to.
        if len(decisions) == coarse.n and np.array_equal(told.device, outcome.base.device):
            order = np.array([d.chosen.op for d in decisions], dtype=np.int64)
            return Log(told, coarse, decisions, order, setting.share.names)
    order = schedule_order(outcome)
    log = Replay(coarse, setting.share, outcome.base, order)
    return Log(outcome.base, coarse, log, order, setting.share.names, told=False)


def schedule_order(outcome: Outcome) -> NDArray[np.int64]:
    """int64[n]: groups in the order in which they start when the placement of the coarse graph is simulated."""
    coarse = outcome.coarse
    timeline = simulate(coarse, outcome.setting.share, outcome.base, outcome.setting.scheduler)
    rows = np.lexsort((coarse.position[timeline.op], timeline.end_us, timeline.start_us))
    return np.asarray(timeline.op[rows], dtype=np.int64)
