"""Ways to make a step fit besides more devices: a smaller batch, micro-batches, recomputation, offloading."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import BaechiLabError
from ..graph import HOST, Cluster, OpGraph
from ..graph.device import Device
from ..graph.units import format_bytes
from ..memory_saving.offload import host_of, offloaded_placement
from ..placers.giving_up.offloading import ways_to_offload
from ..placers.giving_up.placing import Placing, code_of, code_of_over
from ..placers.giving_up.recomputing import Joint, recompute_and_place, words_of
from ..simulator import simulate
from .attempt import all_hosts, computing, tried
from .record import Way
from .subject import CANNOT, Subject

MOST_MICRO_BATCHES = 16


def smaller_batches(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Half the batch, a quarter, ... until one fits."""
    if subject.rebuild is None or subject.batch_size is None:
        yield Way("smaller batch", "any", error=CANNOT)
        return
    size = subject.batch_size // 2
    while size >= 1:
        way = Way("smaller batch", f"batch {size}", f"a batch of {subject.batch_size}", batch_size=size)
        try:
            now = tried(way, subject.at(size), cluster, placing, subject.code_at(size))
        except BaechiLabError as error:
            now = replace(way, error=str(error))
        yield now
        if now.fits:
            return
        size //= 2


def micro_batches(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Twice as many micro-batches until the step fits."""
    if subject.rebuild is None or subject.batch_size is None:
        yield Way("micro-batches", "any", error=CANNOT)
        return
    for count in micro_batch_counts(subject.batch_size):
        now = in_micro_batches(subject, cluster, placing, count)
        yield now
        if now.fits:
            return


def micro_batch_counts(batch_size: int) -> list[int]:
    """Powers of two that divide the batch, up to `MOST_MICRO_BATCHES`."""
    return [1 << k for k in range(1, MOST_MICRO_BATCHES.bit_length()) if batch_size % (1 << k) == 0]


def in_micro_batches(
    subject: Subject, cluster: Cluster, placing: Placing, count: int, small: OpGraph | None = None, made: str = ""
) -> Way:
    """The step in `count` micro-batches; `small` is the graph of one and `made` its code, by default the model's."""
    size = subject.batch_size // count  # type: ignore[operator]
    way = Way("micro-batches", f"{count} of {size}", "nothing but time", batch_size=subject.batch_size, cluster=cluster)
    try:
        small, made = (small, made) if small is not None else (subject.at(size), subject.code_at(size))
        found, why = placing.fastest(small, cluster)
        if found is None:
            return replace(way, graph=small, error=why)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            timeline = simulate(small, cluster, found[0], micro_batches=count, schedule="1f1b")
    except BaechiLabError as error:
        return replace(way, error=str(error))
    if any("statistics" in str(w.message) for w in told):
        way = replace(way, gives_up="statistics of the whole batch")
    placed = code_of("small", "cluster", found[0], computing(cluster))
    code = f"bl.simulate(small := {made}, cluster, {placed}, micro_batches={count}, schedule='1f1b')"
    broken = timeline.violations[0].message if timeline.violations else ""
    return replace(way, graph=small, placement=found[0], timeline=timeline, command=code, error=broken)


def recomputation(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """The fastest of all choices and of turns between recomputing and placing."""
    way = Way("recomputation", "any", batch_size=subject.batch_size, cluster=cluster)
    try:
        found = recompute_and_place(subject.graph, cluster, placing, computing(cluster))
    except BaechiLabError as error:
        yield replace(way, error=str(error))
        return
    if not found:
        yield replace(way, error="no choice of ops to compute again fits, in any placement that was found")
        return
    shown: set[object] = set()
    least = float("inf")
    # The fastest first: a larger budget that is slower is no choice, nor is the same step once more.
    for joint in found:
        budget = joint.keyword.get("budget", 0)
        costs = (joint.timeline.makespan_us, *joint.timeline.peak_bytes.tolist())
        if not {joint.what, costs} & shown and budget <= least:
            shown |= {joint.what, costs}
            least = min(least, budget or least)
            yield _recomputed(way, subject, joint, computing(cluster))


def _recomputed(way: Way, subject: Subject, joint: Joint, devices: int) -> Way:
    before = float(subject.graph.duration_us.sum())
    more = (float(joint.graph.duration_us.sum()) - before) / max(before, 1e-9)
    keyword = words_of(joint.keyword)
    short = keyword if len(keyword) < 200 else "drop=names  # names: the forward_of of the copies"
    again = f"bl.recompute({subject.original}, {short})"
    code = code_of(again, "cluster", joint.placement, devices)
    return replace(
        way, choice=joint.what, gives_up=_more_in_words(more), command=code, graph=joint.graph,
        placement=joint.placement, timeline=joint.timeline,
    )  # fmt: skip


def _more_in_words(share: float) -> str:
    """What is computed again, as a share of the step.

    >>> _more_in_words(0.212), _more_in_words(0.0001), _more_in_words(0.0)
    ('21.2% more computation', 'less than 0.1% more computation', 'nothing')
    """
    if share <= 0.0:
        return "nothing"
    return f"{share:.1%} more computation" if share >= 0.001 else "less than 0.1% more computation"


def offloading(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Outputs by shares, optimizer state, and both, until the step fits."""
    if all_hosts(cluster):
        yield Way("offloading", "any", error="all devices are of kind 'host', which then compute: none is beside them")
        return
    assumed = not any(device.kind == HOST for device in cluster.devices)
    room = _room_of_host(cluster)
    cluster = _with_host(cluster, room) if assumed else cluster
    where = cluster.names[host_of(cluster)] if sum(d.kind == HOST for d in cluster.devices) == 1 else None
    where = where or next(d.name for d in cluster.devices if d.kind == HOST)
    at = f"cluster.with_host({room}, name={where!r})" if assumed else "cluster"
    over, placing = placing.least_over(subject.graph, cluster), replace(placing, repairs=False)
    last: Way | None = None
    for keyword, moved in ways_to_offload(subject.graph, cluster, where):
        words = _moved_words(keyword["share"], keyword["state"])
        way = Way("offloading", words, batch_size=subject.batch_size, graph=moved, cluster=cluster)
        made = f"bl.offload({subject.original}, {at}, {words_of(keyword)})"
        last = _offloaded(way, moved, cluster, placing, over, (subject.original, at, made))
        if last.timeline is not None:
            needs = int(last.timeline.peak_bytes[cluster.index(where)])
            assumes = ", assumed behind the devices' link" if assumed else ""
            last = replace(last, gives_up=f"{format_bytes(needs)} of a host{assumes}")
        if last.fits:
            break
    yield last or Way(
        "offloading", "any", error="no output waits longer than two transfers, and no optimizer state is known"
    )


def _offloaded(
    way: Way, moved: OpGraph, cluster: Cluster, placing: Placing, over: Any, code: tuple[str, str, str]
) -> Way:
    """Under the placement of the step as it is; where that does not fit, or all of it moved, placed again."""
    original, at, made = code
    under = replace(way, error="no placement of the step as it is was found")
    if over is not None:
        placed = offloaded_placement(over[0], moved, cluster)
        timeline = simulate(moved, cluster, placed)
        error = timeline.violations[0].message if timeline.violations else ""
        held = f"bl.offloaded_placement({code_of_over(original, at, over[0])}, {made}, {at})"
        under = replace(way, placement=placed, timeline=timeline, error=error, command=held)
    if under.fits or (computing(cluster) > 1 and "100%" not in way.choice):
        return under
    again = tried(way, moved, cluster, placing, made, at)
    return again if again.fits else under


def _moved_words(share: float, state: bool) -> str:
    outputs = f"{share:.0%} of the outputs that wait" if share else ""
    return " and ".join(x for x in (outputs, "optimizer state" if state else "") if x)


def _room_of_host(cluster: Cluster) -> int:
    """Bytes of the host that is assumed: of all devices, four times, as far as they can be counted."""
    held = int(cluster.memory_bytes.sum())
    return min(4 * held, (1 << 62) - held)


def _with_host(cluster: Cluster, room: int) -> Cluster:
    name = "host"
    while name in cluster.names:
        name += "'"
    return (
        cluster.with_host(room, name=name)
        if room > 0
        else cluster.replace(devices=(*cluster.devices, Device(name, HOST, 0)))
    )
