"""The decision log of a placement, step by step: the candidates, those that were ruled out and why, and the chosen one.

Placers with a parameter `explain` log their own decisions. Any other placement, and a graph too large for such a log, is
replayed op by op in the order of its schedule, with the starts that each op could have had
(`placers/list_scheduling/replay.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement, Timeline, durations
from ..graph.units import format_us
from ..placers.list_scheduling.earliest_start_reference import Candidate, Decision
from ..placers.list_scheduling.replay import Replay
from ..placers.registry import list_placers, placer_class, placer_names
from ..simulator import simulate
from ..stages import Place
from .compute import Outcome

MOST_OPS = 3000
"""Most ops for a list scheduler's own log: its readable twin makes the log, in time that grows with their square."""
MOST_SHOWN = 20
"""Most candidates that are listed for a step, besides other devices of the chosen op: they fit beside the graph."""
MOST_REPLAYED = 400
"""Most steps of a replay that are searched for the next interesting one."""
WHOLE_GRAPH_RULES = {
    **dict.fromkeys(("metis", "scotch"), "few bytes between devices, and even work"),
    "contiguous": "each device has consecutive ops, cut where few bytes cross",
}
"""What placers want that do not place op by op."""


@dataclass(frozen=True, eq=False)
class Log:
    """Decisions of one placement of `coarse`; decision `k` placed group `order[k]`. `logged_by_placer` is False for a replay.

    `rule` says in a replay by which rule the placer chose devices.
    """

    placement: Placement
    coarse: OpGraph
    decisions: Sequence[Decision]
    order: NDArray[np.int64]
    device_names: tuple[str, ...]
    logged_by_placer: bool = True
    rule: str = ""

    def __len__(self) -> int:
        return len(self.order)

    @property
    def op_count(self) -> int:
        """The number of ops that all decisions together place."""
        return self.coarse.n if self.coarse.group_of is None else len(self.coarse.group_of)

    def ops(self, step: int) -> NDArray[np.int64]:
        """Returns the graph's ops that step `step` placed."""
        return self.coarse.members[self.order[step]]

    def placed_until(self, step: int) -> NDArray[np.int64]:
        """Returns the graph's ops that are placed after step `step`."""
        members = self.coarse.members
        member_ops = [members[i] for i in self.order[: step + 1].tolist()]
        return np.concatenate(member_ops) if member_ops else np.zeros(0, dtype=np.int64)

    def step_of(self, op: int) -> int:
        """Returns the step that placed an op of the graph."""
        group = op if self.coarse.group_of is None else int(self.coarse.group_of[op])
        return int(np.flatnonzero(self.order == group)[0])

    def sentence(self, step: int) -> str:
        """Describes the chosen candidate of a step and the reason for the choice."""
        d = self.decisions[step]
        name, device = self.coarse.names[d.chosen.op], self.device_names[d.chosen.device]
        if (count := len(self.ops(step))) > 1:
            name = f"the group of {name}, {count:,} of the {self.op_count:,} ops,"
        start = "" if math.isnan(d.chosen.start_us) else f", starting at {format_us(d.chosen.start_us)}"
        # Some reasons are sentences, others the end of one.
        why = f". {d.reason}" if d.reason.endswith(".") else f": {d.reason}." if d.reason else "."
        return f"Decision {step + 1:,} of {len(self):,}: {name} goes to {device}{start}{why}"

    def tie(self, step: int) -> str:
        """Describes other candidates with the same start, and the rule that decided among them; empty if there are none."""
        d = self.decisions[step]
        same = [c for c in d.candidates if not c.excluded and c.start_us == d.chosen.start_us]
        tied_count = len({(c.op, c.device) for c in same} - {(d.chosen.op, d.chosen.device)})
        if not tied_count or math.isnan(d.chosen.start_us):
            return ""
        pairs = "pair" if tied_count == 1 else "pairs"
        tie = f"A tie: {tied_count:,} other {pairs} of op and device could start then too"
        if self.logged_by_placer:
            tie += (
                "; the lower number of the op decides, then the device of its favourite parent, then the lower number of the "
                "device"
            )
        return f"{tie}."

    def is_interesting(self, step: int) -> bool:
        """Whether a device was ruled out for the op of a step, as by its memory, or the op followed as a favourite child."""
        d = self.decisions[step]
        return d.follows_favourite or any(c.excluded and c.op == d.chosen.op for c in d.candidates)

    def next_interesting(self, step: int) -> int:
        """Returns the next interesting step, continuing at the first after the last; `step` itself if there is no other."""
        order = [*range(step + 1, len(self)), *range(step)]
        # A replay computes each step on access.
        steps_to_search = order if self.logged_by_placer else order[:MOST_REPLAYED]
        return next((k for k in steps_to_search if self.is_interesting(k)), step)

    def against_timeline(self, step: int, timeline: Timeline) -> str:
        """Says why the start of a decision differs from the timeline's; empty if it does not."""
        start, ops = self.decisions[step].chosen.start_us, self.ops(step)
        rows = np.isin(timeline.op, ops)
        if math.isnan(start) or not rows.any():
            return ""
        simulated_start_us = float(timeline.start_us[rows].min())
        if abs(simulated_start_us - start) <= 1e-6 * max(timeline.makespan_us, 1.0):
            return ""
        if self.coarse.group_of is not None:
            why = "a group counts as one op while it is placed, and its ops start one by one when simulated"
        else:
            why = "the plan fills devices one op after the other, the simulation lets each device take what is ready"
        return f"On the timeline it starts at {format_us(simulated_start_us)}: {why}."

    def rows(self, step: int, limit: int = MOST_SHOWN) -> list[list[str]]:
        """Returns the candidates of a step: the chosen one, then the earliest, then those ruled out.

        Each has op, device, start and reason. The other devices of the chosen op are always listed.
        """
        d = self.decisions[step]
        same_op = [c for c in d.candidates if c.op == d.chosen.op and c.device != d.chosen.device]
        other_ops = [c for c in d.candidates if c.op != d.chosen.op]
        candidates = sorted(same_op + other_ops, key=lambda c: (bool(c.excluded), c.start_us, c.op, c.device))[
            : limit - 1
        ]
        candidates += [c for c in same_op if c not in candidates]
        return [self._row(d.chosen, "chosen"), *(self._row(c, c.excluded) for c in candidates)]

    def _row(self, c: Candidate, why: str) -> list[str]:
        start = "" if math.isnan(c.start_us) else format_us(c.start_us)
        return [self.coarse.names[c.op], self.device_names[c.device], start, why]


def logs_decisions(placer: str) -> bool:
    """Whether the placer logs its decisions; an anytime placer does not, since it would have to run again."""
    placer_cls = placer_class(placer)
    return "explain" in placer_cls.__dataclass_fields__ and not placer_cls.anytime


def explain(outcome: Outcome) -> Log:
    """Returns the decision log of the outcome's placement before moves by hand: the placer's own log, or a replay."""
    setting, coarse = outcome.setting, outcome.coarse
    if logs_decisions(setting.placer) and coarse.n <= MOST_OPS:
        placement = Place(setting.placer, **{**setting.placer_params, "explain": True})(coarse, setting.share)
        decisions = placement.info.get("decisions", ())
        # A plan that was repaired to fit memory differs from its decisions.
        if len(decisions) == coarse.n and np.array_equal(placement.device, outcome.base.device):
            order = np.array([d.chosen.op for d in decisions], dtype=np.int64)
            return Log(placement, coarse, decisions, order, setting.share.names)
    order = schedule_order(outcome)
    log = Replay(coarse, setting.share, outcome.base, order)
    rule = rule_in_words(outcome.base, coarse, setting.share)
    return Log(outcome.base, coarse, log, order, setting.share.names, logged_by_placer=False, rule=rule)


def rule_in_words(placement: Placement, graph: OpGraph, cluster: Cluster) -> str:
    """Says by which rule the placer of a placement chose devices; of `auto`, the placer whose placement it took.

    >>> graph, cluster = OpGraph.from_edges([3, 1], []), Cluster.uniform(2)
    >>> rule_in_words(Placement(device=[0, 1], placer="scotch"), graph, cluster)
    'scotch looks at the graph as a whole: few bytes between devices, and even work. The busiest computes 1.5 times the mean.'
    """
    name = str(placement.info.get("winner_rule") or placement.placer)
    if placement.info.get("winner_annealed"):
        return f"auto annealed the placement of {name}: it moved ops at random and kept what made the step shorter."
    if name in WHOLE_GRAPH_RULES:
        work_us = np.bincount(
            placement.device, durations(graph, cluster)[np.arange(graph.n), placement.device], cluster.n
        )
        excess = work_us.max() / work_us.mean() if work_us.any() else 1.0
        goal = WHOLE_GRAPH_RULES[name]
        return f"{name} looks at the graph as a whole: {goal}. The busiest computes {excess:.3g} times the mean."
    if name not in placer_names():
        return ""
    summary = re.sub(r" \([^)]*(=|needs)[^)]*\)", "", list_placers()[name])
    return f"The rule of {name}: {summary[:1].lower()}{summary[1:]}" + ("" if summary.endswith(".") else ".")


def schedule_order(outcome: Outcome) -> NDArray[np.int64]:
    """Returns int64[n]: the groups in the order in which they start when the coarse graph's placement is simulated."""
    coarse = outcome.coarse
    timeline = simulate(coarse, outcome.setting.share, outcome.base, outcome.setting.scheduler)
    rows = np.lexsort((coarse.position[timeline.op], timeline.end_us, timeline.start_us))
    return np.asarray(timeline.op[rows], dtype=np.int64)
