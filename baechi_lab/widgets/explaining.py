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

from ..graph import OpGraph, Placement, Timeline
from ..graph.units import format_us
from ..placers.list_scheduling.replay import Replay
from ..placers.registry import placer_class
from ..simulator import simulate
from ..stages import Place
from .compute import Outcome

MOST_OPS = 3000
"""A list scheduler's own log is made by its readable twin, whose cost grows with the square of the ops."""
MOST_SHOWN, MOST_LOOKED = 40, 400


@dataclass(frozen=True, eq=False)
class Log:
    """Decisions of one placement of `coarse`; step `k` placed group `order[k]`. `logged_by_placer`: not replayed."""

    placement: Placement
    coarse: OpGraph
    decisions: Sequence[Any]
    order: NDArray[np.int64]
    device_names: tuple[str, ...]
    logged_by_placer: bool = True

    def __len__(self) -> int:
        return len(self.order)

    def ops(self, step: int) -> NDArray[np.int64]:
        """The graph's ops that step `step` placed."""
        return self.coarse.members[self.order[step]]

    def decided(self, step: int) -> NDArray[np.int64]:
        """The graph's ops that are placed once step `step` is done."""
        members = self.coarse.members
        member_ops = [members[i] for i in self.order[: step + 1].tolist()]
        return np.concatenate(member_ops) if member_ops else np.zeros(0, dtype=np.int64)

    def step_of(self, op: int) -> int:
        """The step that placed an op of the graph."""
        group = op if self.coarse.group_of is None else int(self.coarse.group_of[op])
        return int(np.flatnonzero(self.order == group)[0])

    def sentence(self, step: int) -> str:
        """What was chosen, and why."""
        d = self.decisions[step]
        name, device = self.coarse.names[d.chosen.op], self.device_names[d.chosen.device]
        start = "" if math.isnan(d.chosen.start_us) else f", starting at {format_us(d.chosen.start_us)}"
        # Some reasons are sentences, others the end of one.
        why = f". {d.reason}" if d.reason.endswith(".") else f": {d.reason}." if d.reason else "."
        return f"step {step + 1} of {len(self)}: {name} goes to {device}{start}{why}"

    def tied(self, step: int) -> str:
        """Candidates that could have started when the chosen one does, and what decided among them; empty for none."""
        d = self.decisions[step]
        same = [c for c in d.candidates if not c.excluded and c.start_us == d.chosen.start_us]
        tied_count = len({(c.op, c.device) for c in same} - {(d.chosen.op, d.chosen.device)})
        if not tied_count or math.isnan(d.chosen.start_us):
            return ""
        earliest = d.reason.startswith("earliest start")
        rule = "the lower number of the op decides, then the device of its favourite parent, then the lower number of the device"
        by = rule if earliest else "the placer's own rule decided"
        pairs = "pair" if tied_count == 1 else "pairs"
        return f"A tie: {tied_count:,} other {pairs} of op and device could start then too; {by}."

    def interesting(self, step: int) -> str:
        """What makes a step worth a look: a device ruled out, memory refused, a favourite followed; empty for nothing."""
        d = self.decisions[step]
        why = [c.excluded for c in d.candidates if c.excluded and c.op == d.chosen.op]
        if any("memory" in text or "bytes" in text for text in why):
            return "memory refused"
        if "favourite" in d.reason:
            return "a favourite followed"
        return "a device excluded" if why else ""

    def next_interesting(self, step: int) -> int:
        """The next step worth a look, from the first again after the last; `step` itself if there is no other."""
        order = [*range(step + 1, len(self)), *range(step)]
        looked = order if self.logged_by_placer else order[:MOST_LOOKED]  # a replay works each step out
        return next((k for k in looked if self.interesting(k)), step)

    def against_timeline(self, step: int, timeline: Timeline) -> str:
        """Why the start of a decision is not that of the timeline; empty where it is."""
        start, ops = self.decisions[step].chosen.start_us, self.ops(step)
        rows = np.isin(timeline.op, ops)
        if math.isnan(start) or not rows.any():
            return ""
        shown = float(timeline.start_us[rows].min())
        if abs(shown - start) <= 1e-6 * max(timeline.makespan_us, 1.0):
            return ""
        why = (
            "a group counts as one op while it is placed, and its ops start one by one when simulated"
            if self.coarse.group_of is not None
            else "the plan fills devices one op after the other, the simulation lets each device take what is ready"
        )
        return f"On the timeline it starts at {format_us(shown)}: {why}."

    def rows(self, step: int, limit: int = MOST_SHOWN) -> list[list[str]]:
        """Candidates of a step: the chosen one, then the earliest, then those ruled out; op, device, start, and why.

        The other devices of the chosen op are always listed.
        """
        d = self.decisions[step]
        same_op = [c for c in d.candidates if c.op == d.chosen.op and c.device != d.chosen.device]
        other_ops = [c for c in d.candidates if c.op != d.chosen.op]
        listed = sorted(same_op + other_ops, key=lambda c: (bool(c.excluded), c.start_us, c.op, c.device))[: limit - 1]
        listed += [c for c in same_op if c not in listed]
        return [self._row(d.chosen, "chosen"), *(self._row(c, c.excluded) for c in listed)]

    def _row(self, c: Any, why: str) -> list[str]:
        start = "" if math.isnan(c.start_us) else format_us(c.start_us)
        return [self.coarse.names[c.op], self.device_names[c.device], start, why]


def tells(placer: str) -> bool:
    """The placer can tell its own decisions at once; one that goes on improving would have to be run again."""
    placer_cls = placer_class(placer)
    return "explain" in placer_cls.__dataclass_fields__ and not placer_cls.anytime


def explain(outcome: Outcome) -> Log:
    """The decision log of the outcome's placement, before moves by hand: the placer's own if it has one, else a replay."""
    setting, coarse = outcome.setting, outcome.coarse
    if tells(setting.placer) and coarse.n <= MOST_OPS:
        placement = Place(setting.placer, **{**setting.placer_params, "explain": True})(coarse, setting.share)
        decisions = placement.info.get("decisions", ())
        # A plan that was repaired to fit memory is not what its decisions led to.
        if len(decisions) == coarse.n and np.array_equal(placement.device, outcome.base.device):
            order = np.array([d.chosen.op for d in decisions], dtype=np.int64)
            return Log(placement, coarse, decisions, order, setting.share.names)
    order = schedule_order(outcome)
    log = Replay(coarse, setting.share, outcome.base, order)
    return Log(outcome.base, coarse, log, order, setting.share.names, logged_by_placer=False)


def schedule_order(outcome: Outcome) -> NDArray[np.int64]:
    """int64[n]: groups in the order in which they start when the placement of the coarse graph is simulated."""
    coarse = outcome.coarse
    timeline = simulate(coarse, outcome.setting.share, outcome.base, outcome.setting.scheduler)
    rows = np.lexsort((coarse.position[timeline.op], timeline.end_us, timeline.start_us))
    return np.asarray(timeline.op[rows], dtype=np.int64)
