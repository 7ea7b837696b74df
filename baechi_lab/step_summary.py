"""Sentences on a step time: compared with one device and with the lower bound, and why no placement is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BaechiLabError
from .graph import Cluster, OpGraph, Timeline
from .graph.units import format_us, plural
from .profilers.machine_load import describe_repeats

if TYPE_CHECKING:
    import pandas

SLOWER = 1.05
"""A step longer than this many times that of one device counts as slower."""
AT_THE_BOUND = 0.005
"""A gap to the lower bound (`step / bound - 1`) below this counts as none."""
WELL_DIVIDED = 0.75
"""A step of at most this share of that of one device shows that the groups can be divided."""
GROUPS_PER_DEVICE = 4
"""With at most this many groups per device, there are too few to balance the loads."""
LARGEST_SHARE = 0.5
"""A graph with a group of more than this share of the work can hardly be divided."""
_KINDS = ("compute", "transfer", "queue", "idle")


def one_device(graph: OpGraph, cluster: Cluster, **pipeline: Any) -> Timeline | None:
    """Simulates the step on the one device that runs it fastest, whether or not it fits there.

    Args:
        graph, cluster: as in `bl.place`.
        pipeline: `micro_batches` and `schedule`, as in `bl.simulate`.

    Returns:
        The simulated timeline, or None if no device may run some op.
    """
    from .placers.single import on_one_device
    from .simulator import simulate

    try:
        return simulate(graph, cluster, on_one_device(graph, cluster), **pipeline)
    except BaechiLabError:  # the placements themselves will say why
        return None


def against_one_device(step_us: float, one_device_us: float) -> str:
    """Compares a step with that of one device in words; empty if a time is missing.

    >>> against_one_device(106.0, 100.0), against_one_device(50.0, 100.0), against_one_device(100.2, 100.0)
    ('1.06 times slower than one device', '2 times faster than one device', 'as fast as one device')
    """
    if not (step_us > 0 and one_device_us > 0):
        return ""
    ratio = step_us / one_device_us
    if abs(ratio - 1.0) < 0.005:
        return "as fast as one device"
    return f"{ratio:.3g} times slower than one device" if ratio > 1 else f"{1 / ratio:.3g} times faster than one device"


def speedup_of(table: pandas.DataFrame) -> pandas.Series:
    """Returns the step of one device over that of every row: float64[rows], NaN if one of them is missing or 0."""
    one_device_us, makespan_us = table["one_device_us"].astype(float), table["makespan_us"].astype(float)
    return one_device_us.where(one_device_us > 0) / makespan_us.where(np.isfinite(makespan_us) & (makespan_us > 0))


def change_in_words(step_us: float, before_us: float) -> str:
    """Returns the change from one step to another in percent; empty if a time is missing or grows from 0.

    >>> change_in_words(141.0, 100.0), change_in_words(97.5, 100.0), change_in_words(5.0, 5.0)
    ('+41%', '-2.5%', 'no change')
    >>> change_in_words(0.0, 0.0), change_in_words(0.0, 5.0), change_in_words(5.0, 0.0)
    ('no change', '-100%', '')
    """
    if step_us == before_us:
        return "no change"
    if not (step_us >= 0 and before_us > 0):
        return ""
    change = (step_us / before_us - 1.0) * 100
    if abs(change) < 0.05:
        return "no change"
    return f"{change:+.0f}%" if abs(change) >= 10 else f"{change:+.1f}%"


def from_to_in_words(before_us: float, after_us: float) -> str:
    """Returns two steps in the unit that suits the longer one; empty if one is missing.

    >>> from_to_in_words(422_800.0, 351_800.0), from_to_in_words(25.0, 17.0), from_to_in_words(float("nan"), 1.0)
    ('422.8 -> 351.8 ms', '25.0 -> 17.0 us', '')
    """
    if not (before_us > 0 and after_us > 0 and math.isfinite(before_us) and math.isfinite(after_us)):
        return ""
    longest = max(before_us, after_us)
    factor, unit = (1e6, "s") if longest >= 1e6 else (1e3, "ms") if longest >= 1e3 else (1.0, "us")
    digits = 1 if longest / factor >= 10 else 3
    return f"{before_us / factor:.{digits}f} -> {after_us / factor:.{digits}f} {unit}"


@dataclass(frozen=True)
class StepPart:
    """One kind of time on the critical path: `kind` is "compute", "transfer", "queue" or "idle".

    `device` computes (-1 for the other kinds), `us` is the sum over the step, and `window_us` the longest interval of it.
    """

    kind: str
    device: int
    us: float
    window_us: tuple[float, float]


def step_parts(timeline: Timeline, ops: Sequence[int], transfers: Sequence[int]) -> tuple[StepPart, ...]:
    """Divides the step from 0 to its end into the parts of its critical path, which add up to the makespan.

    Between two ops of the path, a transfer first waits in queues and then sends. The remaining time is idle: the device waits
    for a planned order, or for other work of a real runtime.

    Args:
        timeline: of the step.
        ops, transfers: the critical path in order of time, ops of the timeline and rows of its transfers.
    """
    intervals = _path_intervals(timeline, ops, transfers)
    sums: dict[tuple[str, int], float] = {}
    longest: dict[tuple[str, int], tuple[float, float]] = {}
    for kind, device, start, end in intervals:
        key = (kind, device)
        sums[key] = sums.get(key, 0.0) + end - start
        if key not in longest or end - start > longest[key][1] - longest[key][0]:
            longest[key] = (start, end)
    order = sorted(sums, key=lambda key: (_KINDS.index(key[0]), key[1]))
    rounding_us = 1e-9 * timeline.makespan_us
    return tuple(StepPart(*key, sums[key], longest[key]) for key in order if sums[key] > rounding_us)


def _path_intervals(
    timeline: Timeline, ops: Sequence[int], transfers: Sequence[int]
) -> list[tuple[str, int, float, float]]:
    """Returns the intervals of the path in order, `(kind, device, start, end)`; neighbours of one kind and device are joined."""
    rows = {int(op): row for row, op in enumerate(timeline.op.tolist())}
    sends, intervals, now_us = timeline.transfers, [], 0.0
    pending = [int(row) for row in transfers]
    for op in ops:
        row = rows[int(op)]
        start, end = float(timeline.start_us[row]), float(timeline.end_us[row])
        if pending and start > now_us:
            arrival_us = float(sends.end_us[pending[0]])
            if (
                arrival_us <= start + 1e-9 * timeline.makespan_us
                and int(sends.target[pending[0]]) == timeline.device[row]
            ):
                send_start_us = max(float(sends.start_us[pending[0]]), float(sends.receive_us[pending[0]]))
                intervals += [("queue", -1, now_us, send_start_us), ("transfer", -1, send_start_us, arrival_us)]
                now_us = arrival_us
        while pending and float(sends.end_us[pending[0]]) <= start:
            pending.pop(0)
        intervals += [("idle", -1, now_us, start), ("compute", int(timeline.device[row]), max(start, now_us), end)]
        now_us = max(now_us, end)
    intervals.append(("idle", -1, now_us, timeline.makespan_us))
    joined_intervals: list[tuple[str, int, float, float]] = []
    for kind, device, start, end in intervals:
        if end <= start:
            continue
        if joined_intervals and joined_intervals[-1][:2] == (kind, device) and joined_intervals[-1][3] >= start:
            joined_intervals[-1] = (kind, device, joined_intervals[-1][2], end)
        else:
            joined_intervals.append((kind, device, start, end))
    return joined_intervals


def gap_in_words(gap: float) -> str:
    """Returns the gap to the lower bound as a rounded percentage.

    >>> gap_in_words(0.0123), gap_in_words(1.05), gap_in_words(21.529), gap_in_words(-1e-5), gap_in_words(float("nan"))
    ('1.2%', '105.0%', '2,150%', '0.0%', 'unknown')
    """
    if math.isnan(gap):
        return "unknown"
    return f"{gap:.1%}".replace("-0.0%", "0.0%") if gap < 10 else f"{float(f'{100 * gap:.3g}'):,.0f}%"


def group_work(graph: OpGraph) -> NDArray[np.float64]:
    """Returns the microseconds of work of every colocation group, in any order; an op without one is a group of its own.

    >>> sorted(group_work(OpGraph.from_edges([1, 3, 4], colocation=[0, 0, -1], colocation_names=("g",))).tolist())
    [4.0, 4.0]
    """
    from .placers.problem import groups_of

    return np.bincount(groups_of(graph), graph.duration_us).astype(np.float64) if graph.n else np.zeros(0)


def largest_share(graph: OpGraph) -> float:
    """Returns the share of all work that the largest group has; 0 of an empty graph.

    >>> largest_share(OpGraph.from_edges([1, 3], [(0, 1, 8)]))
    0.75
    """
    work = group_work(graph)
    return float(work.max() / work.sum()) if len(work) and work.sum() > 0 else 0.0


def too_coarse(graph: OpGraph, coarse: OpGraph, cluster: Cluster) -> bool:
    """Whether passes left groups that are too large or too few to divide among the devices."""
    if coarse is graph or cluster.n == 1:
        return False
    max_groups = GROUPS_PER_DEVICE * cluster.n
    groups_after, groups_before = len(group_work(coarse)), len(group_work(graph))
    return groups_after <= max_groups < groups_before or largest_share(coarse) > LARGEST_SHARE >= largest_share(graph)


def coarse_in_words(coarse: OpGraph) -> str:
    """Describes the groups that the passes made, if there is little to divide."""
    count = len(group_work(coarse))
    groups = f"{coarse.n:,} {plural('group', coarse.n)}"
    if count < coarse.n:
        groups += f", tied by colocation into {count:,}"
    return (
        f"the passes left {groups}, the largest with {largest_share(coarse):.0%} of the work: little is left to divide"
    )


def note_on_groups(graph: OpGraph, coarse: OpGraph, cluster: Cluster) -> str:
    """Says that passes left little to divide among the devices, and how to place smaller parts; empty if they did not.

    >>> note_on_groups(OpGraph.from_edges([1, 2]), OpGraph.from_edges([3]), Cluster.uniform(1))
    ''
    """
    advice = " (fewer passes=, --no-optimize place smaller parts)"
    return coarse_in_words(coarse) + advice if too_coarse(graph, coarse, cluster) else ""


def notes_on(table: pandas.DataFrame, graph: OpGraph, placed_graph: OpGraph, cluster: Cluster) -> tuple[str, ...]:
    """Returns notes without which a table of `bl.compare` would mislead, one sentence each.

    Args:
        table: with the columns `placer`, `makespan_us`, `gap`, `feasible` and `one_device_us`.
        graph, placed_graph: the graph, and the one that was placed: itself, or its groups.
        cluster: the devices.
    """
    divided_rows = table[(table["placer"] != "single") & table["feasible"].astype(bool)]
    well_divided = (table["gap"] < AT_THE_BOUND) | (table["makespan_us"] <= WELL_DIVIDED * table["one_device_us"])
    is_well_divided = bool((well_divided & table["feasible"].astype(bool)).any())
    group_note = "" if is_well_divided else note_on_groups(graph, placed_graph, cluster)
    notes = [group_note] if group_note else []
    if len(divided_rows) == 0 or cluster.n == 1:
        return tuple(notes)
    best_us, one_device_us = float(divided_rows["makespan_us"].min()), float(divided_rows["one_device_us"].iloc[0])
    if not math.isnan(one_device_us) and best_us > SLOWER * one_device_us:
        advice = (
            "; ops were placed one by one: place groups of them (passes=, --optimize)" if placed_graph is graph else ""
        )
        notes.append(
            f"one device alone takes {format_us(one_device_us)}: even the best split here is "
            f"{against_one_device(best_us, one_device_us)}{advice}"
        )
    elif best_us > (1 - AT_THE_BOUND) * one_device_us and not group_note:
        least_gap = float(divided_rows["gap"].min())
        bound_us, proof = best_us / (1.0 + least_gap), ""
        if bound_us > (1 - 1e-9) * one_device_us:
            proof = ": by the lower bound, none can be"
        elif least_gap < AT_THE_BOUND:
            proof = f": by the lower bound, none takes less than {format_us(bound_us)}"
        notes.append(f"no placement here is faster than one device, which takes {format_us(one_device_us)}{proof}")
    return tuple(notes)


def note_on_native(placer_rows: pandas.DataFrame, native: pandas.DataFrame) -> tuple[str, ...]:
    """Compares the fastest measured placement with the fastest undivided step of the framework, in one sentence.

    Both tables have the columns `placer` and `measured_us`, as `bl.compare` makes them.
    """
    fastest_placed, fastest_native = (
        rows.dropna(subset=["measured_us"]).sort_values("measured_us")[:1] for rows in (placer_rows, native)
    )
    if not len(fastest_placed) or not len(fastest_native):
        return ()
    ratio = float(fastest_placed["measured_us"].iloc[0]) / float(fastest_native["measured_us"].iloc[0])
    comparison_text = f"{1 / ratio:.3g} times faster" if ratio < 1 else f"{ratio:.3g} times slower"
    name = str(fastest_native["placer"].iloc[0])
    return (
        f"{name}, undivided on one device, measured {format_us(float(fastest_native['measured_us'].iloc[0]))}: "
        f"the fastest placement, {fastest_placed['placer'].iloc[0]}, is {comparison_text}",
    )


def below_bound(measured_us: float, lower_bound_us: float, graph: OpGraph) -> str:
    """Says why a measured step is shorter than the lower bound of the simulation; empty if it is not.

    >>> below_bound(90.0, 100.0, OpGraph.from_edges([1.0])).split(":")[0]
    'measured 90.00 us, below the lower bound of 100.00 us'
    >>> below_bound(101.0, 100.0, OpGraph.from_edges([1.0]))
    ''
    """
    if not measured_us < lower_bound_us * (1.0 - AT_THE_BOUND):
        return ""
    repeats_text = f" ({describe_repeats(graph.info['measured'])})" if "measured" in graph.info else ""
    return (
        f"measured {format_us(measured_us)}, below the lower bound of {format_us(lower_bound_us)}: the bound holds for the "
        f"times of the profile{repeats_text}, which has every op on its own; in a real step ops may overlap, use more cores and "
        "do without what observing them takes"
    )


def note_on_bound(placer_rows: pandas.DataFrame, graph: OpGraph) -> tuple[str, ...]:
    """Says which placement ran faster than the lower bound, and why that is possible.

    The table has the columns `placer`, `measured_us` and `lower_bound_us`, as `bl.compare` makes them.
    """
    fastest = placer_rows.dropna(subset=["measured_us", "lower_bound_us"]).sort_values("measured_us")[:1]
    if not len(fastest):
        return ()
    sentence = below_bound(float(fastest["measured_us"].iloc[0]), float(fastest["lower_bound_us"].iloc[0]), graph)
    return (f"{fastest['placer'].iloc[0]} {sentence}",) if sentence else ()


def shorter_passes(passes: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the passes without the last one, without the last two, and so on to none.

    >>> shorter_passes(("colocation", "fusion"))
    [('colocation',), ()]
    """
    return [tuple(passes[:k]) for k in range(len(passes) - 1, -1, -1)]
