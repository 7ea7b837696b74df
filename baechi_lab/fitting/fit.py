"""`fit`: does the step fit, and if not, what would make it fit, each way simulated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BaechiLabError
from ..graph import HOST, Cluster, Link, OpGraph
from ..graph.arguments import check_records
from ..graph.cluster import Device
from ..graph.units import format_bytes
from ..passes.offload import host_of, offload, offloaded_placement
from ..simulator import simulate
from .joint import Joint, recompute_and_place
from .placing import Placing, code_of, lacking
from .record import Fit, Way
from .subject import CANNOT, Subject, subject_of

PLACERS = ("single", "m-topo", "m-etf", "contiguous")
MOST_DEVICES_TRIED = 64
MOST_MICRO_BATCHES = 16
HOST_SHARES = (0.25, 0.5, 0.75, 1.0)


def fit(
    graph: Any,
    cluster: Cluster,
    *,
    batch_size: int | None = None,
    hardware: str | Mapping[str, str] = "rtx2080",
    placers: Sequence[str] = PLACERS,
    time_limit: float = 0.0,
    seed: int = 0,
    every_way: bool = False,
    callback: Callable[[str], Any] | None = None,
) -> Fit:
    """Whether a training step fits the devices' memory, and if not, the ways to make it fit, each simulated.

    More devices, a smaller batch, micro-batches, recomputation (jointly with the placement, `fitting.joint`) and
    offloading to a host. A cluster without a device of kind "host" is given one as large as all devices together, four
    times, behind the cluster's link.

    Args:
        graph: the profile of a step; or a model's name, a step of `bl.models.build`, or a function that takes a batch size
            and returns a graph: with these the batch can be changed.
        cluster: the devices there are.
        batch_size: samples of a step, for samples per second; what a function is called with first.
        hardware: for models and steps, as in `bl.profile` with mode="estimated".
        placers: names; each places the optimized graph, the fastest that fits is taken.
        time_limit: seconds that `search` then improves the placement of the step as it is and of every way that fits.
        seed: of the search.
        every_way: try all ways even if the step fits as it is.
        callback: called with the name of every way before it is tried.

    Returns:
        A `Fit`: `fits`, `best`, `missing_bytes`, `ways`, `to_pandas()`; printed, a table with the code of the cheapest ways.

    Raises:
        InvalidInput, UnknownNameError: an argument that is none of the above.

    >>> from baechi_lab.graph.generators import chain, with_backward
    >>> step = with_backward(chain(8, seed=0))
    >>> answer = fit(step, Cluster.uniform(1, memory_bytes="5MB"), batch_size=32)
    >>> answer.fits, answer.best.fits
    (False, True)
    """
    check_records(cluster=cluster)
    placing = Placing(tuple(placers) if not isinstance(placers, str) else placers, time_limit, seed)
    subject = subject_of(graph, batch_size, hardware)
    tell = callback or (lambda _: None)
    tell("as it is")
    first, missing = _as_it_is(subject, cluster, placing)
    ways = [first]
    if not first.fits or every_way:
        for kind in (_more_devices, _smaller_batches, _micro_batches, _recomputation, _offloading):
            tell(kind.__name__.strip("_").replace("_", " "))
            ways += kind(subject, cluster, placing)
    return Fit(tuple(ways), missing, cluster)


def _as_it_is(subject: Subject, cluster: Cluster, placing: Placing) -> tuple[Way, int]:
    count = _computing(cluster)
    choice = f"{count} devices" if count > 1 else "1 device"
    found, why = placing.fastest(subject.graph, cluster)
    way = Way("as it is", choice, "nothing", batch_size=subject.batch_size, graph=subject.graph, cluster=cluster)
    if found is not None:
        code = code_of(_original(subject), "cluster", found[0], count)
        return replace(way, command=code, placement=found[0], timeline=found[1]), 0
    over = placing.least_over(subject.graph, cluster)
    if over is None:
        return replace(way, error=why), 0
    return replace(way, placement=over[0], timeline=over[1], error=why), lacking(over[1], cluster)


def _original(subject: Subject) -> str:
    return subject.code if subject.batch_size is None else subject.code_at(subject.batch_size)


def _computing(cluster: Cluster) -> int:
    hosts = sum(device.kind == HOST for device in cluster.devices)
    return cluster.n - hosts or cluster.n


@dataclass(frozen=True)
class _Tried:
    """One attempt: the record without a timeline, and then with it, or with the reason why not."""

    way: Way

    def placed(self, graph: OpGraph, cluster: Cluster, placing: Placing, code: str, where: str = "cluster") -> Way:
        """`code` makes the graph, `where` the cluster."""
        found, why = placing.fastest(graph, cluster)
        if found is None:
            return replace(self.way, graph=graph, cluster=cluster, error=why)
        command = code_of(code, where, found[0], _computing(cluster))
        return replace(
            self.way, graph=graph, cluster=cluster, placement=found[0], timeline=found[1], command=command
        )  # fmt: skip


def _more_devices(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """The least number of devices that is enough: doubled until one is, then halved towards it."""
    have = _computing(cluster)
    enough: Way | None = None
    low, high = have, 2 * have
    while high <= MOST_DEVICES_TRIED and enough is None:
        tried = _on_devices(subject, cluster, placing, high)
        low, high, enough = (low, high, tried) if tried.fits else (high, 2 * high, None)
    if enough is None:
        yield Way("more devices", f"up to {low} devices", error=f"no placement on {low} devices was found that fits")
        return
    while high - low > 1:
        middle = (low + high) // 2
        tried = _on_devices(subject, cluster, placing, middle)
        low, high, enough = (low, middle, tried) if tried.fits else (middle, high, enough)
    yield enough


def _on_devices(subject: Subject, cluster: Cluster, placing: Placing, count: int) -> Way:
    more = count - _computing(cluster)
    way = Way(
        "more devices", f"{count} devices", f"{more} more device" + "s" * (more > 1), batch_size=subject.batch_size
    )
    larger = grown(cluster, count)
    return _Tried(way).placed(subject.graph, larger, placing, _original(subject), _code_of(larger))


def _code_of(cluster: Cluster) -> str:
    """Code that makes a cluster of equal devices behind equal links; a word for any other."""
    first = cluster.devices[0]
    if len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) > 1 or not isinstance(cluster.link, Link):
        return "larger"
    more = "".join(
        f", {key}={value!r}" for key, value, usual in (("comm", cluster.comm, "sequential"), ("kind", first.kind, "gpu"),
        ("speed", first.speed, 1.0)) if value != usual
    )  # fmt: skip
    return f"bl.Cluster.uniform({cluster.n}, memory_bytes={first.memory_bytes}, link=bl.{cluster.link!r}{more})"


def grown(cluster: Cluster, count: int) -> Cluster:
    """The cluster with copies of its last computing device until `count` devices compute; links are those of that device.

    >>> grown(Cluster.uniform(1), 3).names
    ('gpu:0', 'gpu:1', 'gpu:2')
    """
    last = max(k for k, device in enumerate(cluster.devices) if device.kind != HOST or _all_hosts(cluster))
    kind, number, taken = cluster.devices[last].kind, 0, set(cluster.names)
    origin, devices = list(range(cluster.n)), list(cluster.devices)
    for _ in range(count - _computing(cluster)):
        while f"{kind}:{number}" in taken:
            number += 1
        taken.add(f"{kind}:{number}")
        devices.append(replace(cluster.devices[last], name=f"{kind}:{number}"))
        origin.append(last)
    if isinstance(cluster.link, Link):
        return cluster.replace(devices=tuple(devices))
    among = cluster.link_between(last, last - 1 if last else min(1, cluster.n - 1))
    link = [[among if a == b else cluster.link_between(a, b) for b in origin] for a in origin]
    return cluster.replace(devices=tuple(devices), link=link)


def _all_hosts(cluster: Cluster) -> bool:
    return all(device.kind == HOST for device in cluster.devices)


def _smaller_batches(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Half the batch, a quarter, ... until one fits."""
    if subject.rebuild is None or subject.batch_size is None:
        yield Way("smaller batch", "any", error=CANNOT)
        return
    size = subject.batch_size // 2
    while size >= 1:
        way = Way("smaller batch", f"batch {size}", f"a batch of {subject.batch_size}", batch_size=size)
        try:
            tried = _Tried(way).placed(subject.at(size), cluster, placing, subject.code_at(size))
        except BaechiLabError as error:
            tried = replace(way, error=str(error))
        yield tried
        if tried.fits:
            return
        size //= 2


def _micro_batches(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Twice as many micro-batches until the step fits."""
    if subject.rebuild is None or subject.batch_size is None:
        yield Way("micro-batches", "any", error=CANNOT)
        return
    count = 2
    while count <= min(MOST_MICRO_BATCHES, subject.batch_size):
        if subject.batch_size % count == 0:
            tried = _in_micro_batches(subject, cluster, placing, count)
            yield tried
            if tried.fits:
                return
        count *= 2


def _in_micro_batches(subject: Subject, cluster: Cluster, placing: Placing, count: int) -> Way:
    size = subject.batch_size // count  # type: ignore[operator]
    way = Way("micro-batches", f"{count} of {size}", "nothing but time", batch_size=subject.batch_size, cluster=cluster)
    try:
        small = subject.at(size)
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
    placed = code_of("small", "cluster", found[0], _computing(cluster))
    code = f"bl.simulate(small := {subject.code_at(size)}, cluster, {placed}, micro_batches={count}, schedule='1f1b')"
    broken = timeline.violations[0].message if timeline.violations else ""
    return replace(way, graph=small, placement=found[0], timeline=timeline, command=code, error=broken)


def _recomputation(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """The fastest of all choices and of turns between recomputing and placing."""
    way = Way("recomputation", "any", batch_size=subject.batch_size, cluster=cluster)
    try:
        found = recompute_and_place(subject.graph, cluster, placing, _computing(cluster))
    except BaechiLabError as error:
        yield replace(way, error=str(error))
        return
    if not found:
        yield replace(way, error="no choice of ops to compute again fits, in any placement that was found")
        return
    shown: set[str] = set()
    for joint in found:
        if joint.what not in shown:
            shown.add(joint.what)
            yield _recomputed(way, subject, joint, _computing(cluster))


def _recomputed(way: Way, subject: Subject, joint: Joint, devices: int) -> Way:
    before = float(subject.graph.duration_us.sum())
    more = (float(joint.graph.duration_us.sum()) - before) / max(before, 1e-9)
    keyword = ", ".join(f"{k}={v!r}" for k, v in joint.keyword.items())
    short = keyword if len(keyword) < 200 else "drop=names  # names: the forward_of of the copies"
    again = f"bl.recompute({_original(subject)}, {short})"
    code = code_of(again, "cluster", joint.placement, devices)
    return replace(
        way, choice=joint.what, gives_up=f"{more:.1%} more computation", command=code, graph=joint.graph,
        placement=joint.placement, timeline=joint.timeline,
    )  # fmt: skip


def _offloading(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Outputs by shares, optimizer state, and both, until the step fits."""
    assumed = not any(device.kind == HOST for device in cluster.devices) or _all_hosts(cluster)
    cluster = _with_host(cluster) if assumed else cluster
    where = cluster.names[host_of(cluster)] if sum(d.kind == HOST for d in cluster.devices) == 1 else None
    where = where or next(d.name for d in cluster.devices if d.kind == HOST)
    over = placing.least_over(subject.graph, cluster)
    options = [(0.0, True), *((share, state) for share in HOST_SHARES for state in (False, True))]
    last: Way | None = None
    for share, state in options:
        moved = offload(subject.graph, cluster, share=share, state=state, host=where)
        if moved is subject.graph:
            continue
        way = Way("offloading", _moved_words(share, state), batch_size=subject.batch_size, graph=moved, cluster=cluster)
        made = f"bl.offload({_original(subject)}, cluster, share={share}, state={state}, host={where!r})"
        last = _offloaded(way, moved, cluster, placing, over, made)
        if last.timeline is not None:
            needs = int(last.timeline.peak_bytes[cluster.index(where)])
            assumes = ", assumed behind the devices' link" if assumed else ""
            last = replace(last, gives_up=f"{format_bytes(needs)} of a host{assumes}")
        if last.fits:
            break
    yield last or Way(
        "offloading", "any", error="no output waits longer than two transfers, and no optimizer state is known"
    )


def _offloaded(way: Way, moved: OpGraph, cluster: Cluster, placing: Placing, over: Any, made: str) -> Way:
    """Under the placement of the step as it is; where that does not fit, or all of it moved, placed again."""
    under = replace(way, error="no placement of the step as it is was found")
    if over is not None:
        placed = offloaded_placement(over[0], moved, cluster)
        timeline = simulate(moved, cluster, placed)
        error = timeline.violations[0].message if timeline.violations else ""
        under = replace(
            way,
            placement=placed,
            timeline=timeline,
            error=error,
            command=f"bl.place({made}, cluster, {placed.placer!r})" if _computing(cluster) == 1 else made,
        )
    if under.fits or (_computing(cluster) > 1 and "100%" not in way.choice):
        return under
    again = _Tried(way).placed(moved, cluster, placing, made)
    return again if again.fits else under


def _moved_words(share: float, state: bool) -> str:
    outputs = f"{share:.0%} of the outputs that wait" if share else ""
    return " and ".join(x for x in (outputs, "optimizer state" if state else "") if x)


def _with_host(cluster: Cluster) -> Cluster:
    name = "host"
    while name in cluster.names:
        name += "'"
    room = min(4 * int(cluster.memory_bytes.sum()), (1 << 62) - int(cluster.memory_bytes.sum()))
    return (
        cluster.with_host(room, name=name)
        if room > 0
        else cluster.replace(devices=(*cluster.devices, Device(name, HOST, 0)))
    )
