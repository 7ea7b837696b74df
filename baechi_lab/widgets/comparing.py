"""Comparison of placers in a table, and the differences between two placements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..comparison import DEFAULT_PLACERS, order_of, summary, table_of, winner_of
from ..graph import Placement, Timeline
from ..graph.units import format_us, plural
from ..memo import Memo
from ..step_summary import notes_on
from .bars import only_renamed
from .compute import (
    Outcome,
    Report,
    optimize_under,
    place_groups_under,
    silent,
    simulate_under,
    with_moves_and_replicas,
)
from .guard import Guard, Problem
from .setting import Setting

if TYPE_CHECKING:
    import pandas

CURRENT = "current"


def compare_placers(
    outcome: Outcome,
    memo: Memo,
    placers: Iterable[str] = DEFAULT_PLACERS,
    report: Report = silent,
    on_rows: Callable[[pandas.DataFrame], None] = lambda table: None,
) -> pandas.DataFrame:
    """Compares placers like `bl.compare`, on the outcome's graph, cluster, passes and scheduler; stages are cached.

    The current setting's placer keeps its parameters. A placement changed by hand has its own row, "current". `on_rows` is
    called with the finished rows after each row. The column `busy_shares` has the arrays of `busy_shares`.
    """
    names = list(placers)
    rows: list[dict[str, object]] = []
    for k, name in enumerate(names):
        report(f"comparing: {name}", k / len(names))
        rows.append({"placer": name, **_row(outcome, memo, name, report)})
        on_rows(_table(outcome, rows))
    if outcome.setting.moves:
        line = outcome.timeline
        shares = busy_shares(line)
        rows.append({"placer": CURRENT, **summary(line), "place_seconds": outcome.base.seconds, "busy_shares": shares})
        rows[-1]["order"] = order_name(outcome.setting, outcome.base)
    table = _table(outcome, rows)
    # Groups of which no placement fits were placed in smaller ones, perhaps in single ops: advice to place groups would be wrong.
    groups = optimize_under(outcome.setting, outcome.graph, memo)
    table.attrs["notes"] = notes_on(table, outcome.graph, groups, outcome.setting.cluster) + finer_groups_in_words(rows)
    return table


def _table(outcome: Outcome, rows: list[dict[str, object]]) -> pandas.DataFrame:
    import pandas as pd

    bounded_rows = [{"lower_bound_us": outcome.lower_bound_us, **row} for row in rows]
    table = table_of(bounded_rows, None, outcome.one_device_us)
    table["order"] = [row.get("order", "") for row in rows]
    table["busy_shares"] = pd.Series([row.get("busy_shares") for row in rows], dtype=object)
    return table


def finer_groups_in_words(rows: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Returns once each sentence on smaller groups that were placed, with the placers that placed them.

    >>> finer_groups_in_words([{"placer": "a", "finer_groups": "x"}, {"placer": "b"}, {"placer": "c", "finer_groups": "x"}])
    ('x (a, c)',)
    """
    placers: dict[str, list[str]] = {}
    for row in rows:
        if sentence := str(row.get("finer_groups") or ""):
            placers.setdefault(sentence, []).append(str(row["placer"]))
    return tuple(f"{sentence} ({', '.join(names)})" for sentence, names in placers.items())


def busy_shares(timeline: Timeline, bins: int = 60) -> NDArray[np.float64]:
    """Returns float64[devices, bins]: the busy share of each device in equal parts of the step, from 0 to 1.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> timeline = simulate(OpGraph.from_edges([4.0, 1.0]), Cluster.uniform(2), Placement(device=[0, 1]))
    >>> busy_shares(timeline, 2).tolist()
    [[1.0, 1.0], [0.5, 0.0]]
    """
    edges = np.linspace(0.0, timeline.makespan_us, bins + 1)
    shares = np.zeros((len(timeline.device_names), bins))
    for device in np.unique(timeline.device).tolist():
        on_device = timeline.device == device
        busy_us = _elapsed_sum(timeline.start_us[on_device], edges) - _elapsed_sum(timeline.end_us[on_device], edges)
        shares[device] = np.diff(busy_us) / max(timeline.makespan_us / bins, 1e-12)
    return np.clip(shares.round(6), 0.0, 1.0)


def _elapsed_sum(instants: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns, for every edge, the sum of the times that have passed since each instant before it."""
    sorted_instants = np.sort(instants)
    count = np.searchsorted(sorted_instants, edges)
    return count * edges - np.append(0.0, np.cumsum(sorted_instants))[count]


def name_of(outcome: Outcome) -> str:
    """Returns the name of an outcome: its placer, and the number of ops that were moved by hand."""
    count = outcome.moved_by_hand
    return outcome.setting.placer + (f" + {count:,} {plural('op', count)} moved by hand" if count else "")


def order_name(setting: Setting, placement: Placement) -> str:
    """Names the order in which devices work: a schedule, a scheduler, or the order of the placement; and the micro-batches.

    >>> from ..graph import Cluster
    >>> order_name(Setting(Cluster.uniform(2), micro_batches=8, schedule="1f1b"), Placement(device=[0]))
    '1f1b, 8 micro-batches'
    """
    count = setting.micro_batches
    micro_batches = [] if count is None else [f"{count:,} {plural('micro-batch', count)}"]
    return ", ".join([order_of(placement, setting.schedule or setting.scheduler), *micro_batches])


def best_first(table: pandas.DataFrame) -> pandas.DataFrame:
    """Sorts rows: those that fit, fastest first, then those that do not fit, then those without a placement."""
    keys = table.assign(broken=~table["feasible"].astype(bool))
    order = keys.sort_values(["broken", "makespan_us"], kind="stable", na_position="last").index
    return table.loc[order].reset_index(drop=True)


def comparison_in_words(table: pandas.DataFrame) -> str:
    """Names the fastest placement that fits."""
    count_sentence = f"{len(table)} {plural('placement', len(table))} compared"
    fitting_rows = best_first(table[table["feasible"].astype(bool)])
    if not len(fitting_rows):
        return f"{count_sentence}: none fits"
    placer, step = fitting_rows.loc[0, "placer"], format_us(float(fitting_rows.loc[0, "makespan_us"]))
    return f"{count_sentence}, the fastest that fits: {placer}, {step}"


def _row(outcome: Outcome, memo: Memo, placer: str, report: Report) -> dict[str, object]:
    own_params = outcome.setting.params if placer == outcome.setting.placer else {}
    setting = outcome.setting.replace(placer=placer, params=own_params, moves=())
    problems: list[Problem] = []
    with Guard(problems.append):  # an error of one placer does not stop the other rows
        coarse = optimize_under(setting, outcome.graph, memo)
        _, base = place_groups_under(setting, outcome.graph, coarse, memo, report)
        timeline = simulate_under(setting, outcome.graph, with_moves_and_replicas(setting, outcome.graph, base), memo)
    if problems:
        return {"feasible": False, "error": problems[0].sentence}
    return {
        **summary(timeline),
        "place_seconds": base.seconds,
        "winner": winner_of(base),
        "order": order_name(setting, base),
        "finer_groups": base.finer_groups,
        "busy_shares": busy_shares(timeline),
    }


@dataclass(frozen=True, eq=False)
class Difference:
    """The difference of two placements of one graph: the groups (of the first's coarse graph) on other devices.

    `groups` are ops of the coarse graph, `ops` of the graph; `before` and `after` name the devices of each group.
    """

    groups: NDArray[np.int64]
    names: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    duration_us: NDArray[np.float64]
    ops: NDArray[np.int64]


def difference(first: Outcome, second: Outcome) -> Difference | None:
    """Returns the difference from `first` to `second`; None if their graphs or devices differ."""
    names = first.setting.cluster.names
    if first.graph.key != second.graph.key or names != second.setting.cluster.names:
        return None
    a, b = first.placement.device, second.placement.device
    equal = len({(d.kind, d.memory_bytes, d.speed) for d in first.setting.cluster.devices}) == 1
    ops = np.flatnonzero(a != b) if not (equal and only_renamed(a, b)) else np.zeros(0, np.int64)
    group_of = np.arange(first.graph.n) if first.coarse.group_of is None else first.coarse.group_of
    groups: NDArray[np.int64]
    groups, first_op = np.unique(group_of[ops], return_index=True)
    return Difference(
        groups=groups,
        names=tuple(first.coarse.names[g] for g in groups.tolist()),
        before=tuple(names[d] for d in a[ops[first_op]].tolist()),
        after=tuple(names[d] for d in b[ops[first_op]].tolist()),
        duration_us=np.bincount(group_of, first.op_us)[groups].astype(np.float64),
        ops=ops,
    )
