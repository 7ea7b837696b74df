"""Options that make a step fit on the same devices: a smaller batch, micro-batches, recomputation, offloading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import BaechiLabError
from ..graph import HOST, Cluster, OpGraph
from ..graph.device import Device
from ..graph.units import format_bytes
from ..internal_warnings import collected_warnings
from ..memory_saving.offload import extended_placement, host_of
from ..passes.roles import roles
from ..passes.unroll import op_with_batch_statistics
from ..placers.memory_trades.best_of_placers import BestOfPlacers, PlacedTimeline, placement_code
from ..placers.memory_trades.offloading import offload_variants
from ..placers.memory_trades.recomputation import format_arguments, recompute_and_place
from ..simulator import simulate
from .record import FitOption
from .subject import NO_OTHER_BATCH, Subject


def place_option(
    option: FitOption,
    graph: OpGraph,
    cluster: Cluster,
    placing: BestOfPlacers,
    code: str,
    cluster_code: str = "cluster",
    earlier: FitOption | None = None,
) -> FitOption:
    """Returns `option` with the fastest placement and its timeline, or with the reason why none fits.

    `code` and `cluster_code` are the code of graph and cluster; the placement of `earlier` is one of those compared.
    """
    earlier_placement = None if earlier is None else earlier.placement
    fastest, why = placing.fastest(graph, cluster, earlier_placement)
    if fastest is None:
        return replace(option, graph=graph, cluster=cluster, error=why)
    if earlier is not None and fastest.placement is earlier_placement:
        command = earlier.command
    else:
        command = placement_code(code, cluster_code, fastest, count_computing(cluster))
    return replace(
        option, graph=graph, cluster=cluster, placement=fastest.placement, timeline=fastest.timeline, command=command
    )


def count_computing(cluster: Cluster) -> int:
    """Returns the number of devices that compute: all but hosts, unless all are hosts."""
    hosts = sum(device.kind == HOST for device in cluster.devices)
    return cluster.n - hosts or cluster.n


def has_only_hosts(cluster: Cluster) -> bool:
    """Whether all devices are hosts; then hosts compute."""
    return all(device.kind == HOST for device in cluster.devices)


MAX_MICRO_BATCHES = 16
"""Most micro-batches that are tried."""


def try_smaller_batches(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Tries half the batch, a quarter and so on, until one fits."""
    if subject.rebuild is None or subject.batch_size is None:
        yield FitOption("smaller batch", "any", error=NO_OTHER_BATCH, applicable=False)
        return
    size = subject.batch_size // 2
    while size >= 1:
        template = FitOption("smaller batch", f"batch {size}", f"a batch of {subject.batch_size}", batch_size=size)
        try:
            option = place_option(template, subject.at(size), cluster, placing, subject.code_at(size))
        except BaechiLabError as error:
            option = replace(template, error=str(error))
        yield option
        if option.fits_with_margin:
            return
        size //= 2


def try_micro_batches(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Tries 2, 4, ... micro-batches until the step fits."""
    if subject.rebuild is None or subject.batch_size is None:
        yield FitOption("micro-batches", "any", error=NO_OTHER_BATCH, applicable=False)
        return
    for count in micro_batch_counts(subject.batch_size):
        option = try_micro_batch_count(subject, cluster, placing, count)
        yield option
        if option.fits_with_margin:
            return


def micro_batch_counts(batch_size: int) -> list[int]:
    """Powers of two that divide the batch, up to `MAX_MICRO_BATCHES`."""
    return [1 << k for k in range(1, MAX_MICRO_BATCHES.bit_length()) if batch_size % (1 << k) == 0]


def try_micro_batch_count(
    subject: Subject,
    cluster: Cluster,
    placing: BestOfPlacers,
    count: int,
    small: OpGraph | None = None,
    code_of_small: str = "",
) -> FitOption:
    """Simulates the step in `count` micro-batches; `small` and `code_of_small` are the graph of one and its code."""
    size = subject.batch_size // count  # type: ignore[operator]
    option = FitOption(
        "micro-batches", f"{count} of {size}", "nothing but time", batch_size=subject.batch_size, cluster=cluster
    )
    try:
        small, code_of_small = (
            (small, code_of_small) if small is not None else (subject.at(size), subject.code_at(size))
        )
        fastest, why = placing.fastest(small, cluster)
        if fastest is None:
            return replace(option, graph=small, error=why)
        with collected_warnings():  # of what `gives_up` says
            timeline = simulate(small, cluster, fastest.placement, micro_batches=count, schedule="1f1b")
    except BaechiLabError as error:
        return replace(option, error=str(error))
    if op_with_batch_statistics(small, roles(small)) is not None:
        option = replace(option, gives_up="statistics of the whole batch")
    code_of_placement = placement_code("small", "cluster", fastest, count_computing(cluster))
    code = (
        f"bl.simulate(small := {code_of_small}, cluster, {code_of_placement}, micro_batches={count}, schedule='1f1b')"
    )
    violation = timeline.violations[0].message if timeline.violations else ""
    return replace(option, graph=small, placement=fastest.placement, timeline=timeline, command=code, error=violation)


def try_recomputation(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Yields the choices of ops to recompute that fit, the fastest first."""
    template = FitOption("recomputation", "any", batch_size=subject.batch_size, cluster=cluster)
    try:
        variants = recompute_and_place(subject.graph, cluster, placing, count_computing(cluster))
    except BaechiLabError as error:
        yield replace(template, error=str(error))
        return
    if not variants:
        why = "no choice of ops to compute again fits, in any placement that was found"
        if not (subject.graph.forward_of >= 0).any():
            why = "the graph has no backward pass, before which outputs could be computed again"
        yield replace(template, error=why)
        return
    seen_keys: set[object] = set()
    least = float("inf")
    # The fastest first: a larger budget that is slower is no choice, nor is the same step once more.
    for variant in variants:
        budget = variant.arguments.get("budget", 0)
        costs = (variant.timeline.makespan_us, *variant.timeline.peak_bytes.tolist())
        if not {variant.description, costs} & seen_keys and budget <= least:
            seen_keys |= {variant.description, costs}
            least = min(least, budget or least)
            before = float(subject.graph.duration_us.sum())
            added_share = (float(variant.graph.duration_us.sum()) - before) / max(before, 1e-9)
            keyword = format_arguments(variant.arguments)
            short = keyword if len(keyword) < 200 else "drop=names  # names: the forward_of of the copies"
            code = f"bl.recompute({subject.original}, {short})"

            yield replace(
                template,
                choice=variant.description,
                recomputation=variant.selection,
                gives_up=_added_computation_text(added_share),
                command=placement_code(code, "cluster", variant.placed_timeline, count_computing(cluster)),
                graph=variant.graph,
                placement=variant.placement,
                timeline=variant.timeline,
            )


def _added_computation_text(share: float) -> str:
    """Describes the additional computation as a share of the step.

    >>> _added_computation_text(0.212), _added_computation_text(0.0001), _added_computation_text(0.0)
    ('21.2% more computation', 'less than 0.1% more computation', 'nothing')
    """
    if share <= 0.0:
        return "nothing"
    return f"{share:.1%} more computation" if share >= 0.001 else "less than 0.1% more computation"


def try_offloading(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Tries offloading a growing share of outputs, optimizer state, or both, until the step fits."""
    if has_only_hosts(cluster):
        yield _no_offloading("all devices are of kind 'host', which then compute: none is beside them")
        return
    if subject.graph.group_of is not None:
        yield _no_offloading("the graph is coarse; the graph that it was made from can offload")
        return
    assumes_host = not any(device.kind == HOST for device in cluster.devices)
    # The assumed host has four times the memory of all devices, limited to 62 bits.
    device_bytes = int(cluster.memory_bytes.sum())
    capacity_bytes = min(4 * device_bytes, (1 << 62) - device_bytes)
    if assumes_host:
        name = "host"
        while name in cluster.names:
            name += "'"
        if capacity_bytes > 0:
            cluster = cluster.with_host(capacity_bytes, name=name)
        else:
            cluster = cluster.replace(devices=(*cluster.devices, Device(name, HOST, 0)))
    host = cluster.names[host_of(cluster)] if sum(d.kind == HOST for d in cluster.devices) == 1 else None
    host = host or next(d.name for d in cluster.devices if d.kind == HOST)
    at = f"cluster.with_host({capacity_bytes}, name={host!r})" if assumes_host else "cluster"
    least_overflowing, placing = placing.least_overflowing(subject.graph, cluster), replace(placing, repairs=False)
    last: FitOption | None = None
    for keyword, offloaded_graph in offload_variants(subject.graph, cluster, host):
        share = keyword["share"]
        outputs = f"{share:.0%} of the outputs that wait" if share else ""
        words = " and ".join(x for x in (outputs, "optimizer state" if keyword["state"] else "") if x)
        template = FitOption("offloading", words, batch_size=subject.batch_size, graph=offloaded_graph, cluster=cluster)
        code = f"bl.offload({subject.original}, {at}, {format_arguments(keyword)})"
        last = _offloading_option(
            template, share, offloaded_graph, cluster, placing, least_overflowing, (subject.original, at, code)
        )
        if last.timeline is not None:
            needs = int(last.timeline.peak_bytes[cluster.index(host)])
            assumes = ", assumed behind the devices' link" if assumes_host else ""
            last = replace(last, gives_up=f"{format_bytes(needs)} of a host{assumes}")
        if last.fits:
            break
    yield last or _no_offloading("no output waits longer than two transfers, and no optimizer state is known")


def _no_offloading(why: str) -> FitOption:
    return FitOption("offloading", "any", error=f"cannot: {why}", applicable=False)


def _offloading_option(
    template: FitOption,
    share: float,
    offloaded_graph: OpGraph,
    cluster: Cluster,
    placing: BestOfPlacers,
    least_overflowing: PlacedTimeline | None,
    code: tuple[str, str, str],
) -> FitOption:
    """Returns the option under the placement of the original step; where that does not fit, placed again.

    On several devices, only the largest `share` of the outputs is placed again.
    """
    original, at, offload_code = code
    option = replace(template, error="no placement of the step as it is was found")
    if least_overflowing is not None:
        placement = extended_placement(least_overflowing.placement, offloaded_graph, cluster)
        timeline = simulate(offloaded_graph, cluster, placement)
        error = timeline.violations[0].message if timeline.violations else ""
        placer = least_overflowing.placement.placer
        placed_code = f"bl.place(bl.optimize(g := {original}, {at}), {at}.with_memory(1 << 50), {placer!r}).on(g)"
        command = f"bl.offloaded_placement({placed_code}, {offload_code}, {at})"
        option = replace(template, placement=placement, timeline=timeline, error=error, command=command)
    if option.fits or (count_computing(cluster) > 1 and share < 1.0):
        return option
    placed_again = place_option(template, offloaded_graph, cluster, placing, offload_code, at)
    return placed_again if placed_again.fits else option
