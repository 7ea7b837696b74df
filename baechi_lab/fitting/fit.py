"""`fit`: checks whether a step fits into memory, and simulates options that make it fit.

Where no option fits alone, pairs follow: recomputation with a smaller batch, with micro-batches or with offloading. One
option is applied to the graph of the other: the graph of a smaller batch or of one micro-batch is recomputed, and the
recomputed graph is offloaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ..checks import check_callback, check_flag, check_whole, is_list
from ..errors import BaechiLabError, InvalidInput, in_short
from ..graph import Cluster, OpGraph, Placement, Step
from ..graph.arguments import check_records
from ..graph.costs import check_kinds
from ..graph.units import plural
from ..placers.memory_trades.best_of_placers import BestOfPlacers, missing_bytes, placement_code
from ..placers.memory_trades.memory_ladder import FAST_PLACERS
from ..placers.memory_trades.recomputation import format_arguments, recompute_variants
from .options import (
    count_computing,
    has_only_hosts,
    micro_batch_counts,
    place_option,
    try_micro_batch_count,
    try_micro_batches,
    try_offloading,
    try_recomputation,
    try_smaller_batches,
)
from .proof import Proof, proof_of
from .record import Fit, FitOption, fullest_device_bytes
from .subject import Subject, subject_of

SMALLER_BATCH = "smaller batch + recomputation"
MICRO_BATCHES = "micro-batches + recomputation"
OFFLOADING = "recomputation + offloading"


def try_combinations(
    subject: Subject,
    cluster: Cluster,
    placing: BestOfPlacers,
    alone: Sequence[FitOption],
    tell: Callable[[str], object],
    proof: Proof,
    allowed: Collection[str],
) -> Iterator[FitOption]:
    """Tries pairs of `allowed` kinds of which neither fits alone, without those that cannot fit by `proof`.

    `alone` are the options that were tried before, `tell` is called with the name of each pair.
    """
    fitting_kinds = {option.kind for option in alone if option.fits}
    for name, try_pair in (
        (SMALLER_BATCH, _recompute_smaller_batches),
        (MICRO_BATCHES, _recompute_micro_batches),
        (OFFLOADING, _recompute_and_offload),
    ):
        pair_kinds = set(name.split(" + "))
        if (
            pair_kinds <= set(allowed)
            and not fitting_kinds & pair_kinds
            and not (name == OFFLOADING and proof.whatever)
        ):
            tell(name)
            yield from try_pair(subject, cluster, placing)


def _recompute_smaller_batches(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Tries recomputation with half the batch, a quarter and so on, until one fits."""
    size = subject.batch_size or 0
    while subject.rebuild is not None and (size := size // 2) >= 1:  # without `rebuild` the batch cannot be changed
        try:
            small = subject.at(size)
        except BaechiLabError:
            continue
        if proof_of(small, cluster).whatever:
            continue
        reduced_batch = f"a batch of {subject.batch_size}"
        options = list(try_recomputation(Subject(small, size, None, subject.code_at(size)), cluster, placing))
        yield from (
            replace(
                option,
                kind=SMALLER_BATCH,
                choice=f"batch {size}, {option.choice}",
                gives_up=", ".join(loss for loss in (reduced_batch, option.gives_up) if loss),
            )
            for option in options
        )
        if any(option.fits for option in options):
            return


def _recompute_micro_batches(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Tries recomputation with 2, 4, ... micro-batches until one fits; yields the fastest choice of each count."""
    counts = micro_batch_counts(subject.batch_size) if subject.rebuild is not None and subject.batch_size else []
    for count in counts:
        size = subject.batch_size // count  # type: ignore[operator]
        options: list[FitOption] = []
        try:
            for keyword, small in recompute_variants(subject.at(size), cluster, count_computing(cluster)):
                code = f"bl.recompute({subject.code_at(size)}, {format_arguments(keyword)})"
                option = try_micro_batch_count(subject, cluster, placing, count, small, code)
                choice = f"{option.choice}, {format_arguments(keyword)}"
                options.append(replace(option, kind=MICRO_BATCHES, choice=choice, recomputation=keyword))
        except BaechiLabError:
            continue
        if options:
            yield min(options, key=lambda option: (not option.fits, *option.preference))
        if any(option.fits for option in options):
            return


def _recompute_and_offload(subject: Subject, cluster: Cluster, placing: BestOfPlacers) -> Iterator[FitOption]:
    """Tries recomputation and then offloading; yields the fastest choice that fits, else the one with the lowest peak."""
    options: list[FitOption] = []
    if has_only_hosts(cluster):
        return
    try:
        for keyword, recomputed_graph in recompute_variants(subject.graph, cluster, count_computing(cluster)):
            code = f"bl.recompute({subject.original}, {format_arguments(keyword)})"
            for option in try_offloading(Subject(recomputed_graph, subject.batch_size, None, code), cluster, placing):
                choice = f"{format_arguments(keyword)}, {option.choice}"
                options.append(replace(option, kind=OFFLOADING, choice=choice, recomputation=keyword))
    except BaechiLabError as error:
        yield FitOption(OFFLOADING, "any", error=str(error))
        return
    if options:
        yield min(
            options,
            key=lambda option: (
                not option.fits,
                option.time_per_sample_us if option.fits else max(option.peak_bytes, default=0),
            ),
        )


GIVE_UP = {
    "devices": "more devices",
    "batch": "smaller batch",
    "micro-batches": "micro-batches",
    "recompute": "recomputation",
    "offload": "offloading",
}
"""Values of `give_up`, and the kind of option that each allows."""
LEAST_TIME, LEAST_MEMORY = 0.0005, 0.005
"""A step that is longer by a smaller share takes the same time in a table, and a peak that is lower by one the same memory."""
NO_GAIN = "gains nothing"


def fit(
    graph: OpGraph | Step | Subject | str | Callable[[int], OpGraph],
    cluster: Cluster,
    *,
    batch_size: int | None = None,
    hardware: str | Mapping[str, str] = "rtx2080",
    placers: Sequence[str] = FAST_PLACERS,
    time_limit: float = 0.0,
    seed: int = 0,
    every_option: bool = False,
    give_up: Sequence[str] = tuple(GIVE_UP),
    placement: Placement | None = None,
    callback: Callable[[str], object] | None = None,
    every_way: bool | None = None,
) -> Fit:
    """Checks whether a training step fits into the devices' memory; if not, simulates options that make it fit.

    The options are more devices, a smaller batch, micro-batches, recomputation (jointly with the placement,
    `placers.memory_trades`), offloading to a host, and two of them together where neither fits alone. For offloading, a cluster
    without a device of kind "host" gets one behind the cluster's link, with four times the memory of all devices.

    Args:
        graph: the profile of a step; or a model's name, a step of `bl.models.build`, or a function that takes a batch size
            and returns a graph: with these the batch can be changed.
        cluster: the devices there are.
        batch_size: samples of a step, for samples per second; a function is called with it first.
        hardware: for models and steps, as in `bl.profile` with mode="estimated".
        placers: names of placers; each places the optimized graph, and the fastest placement that fits is used. For the step as
            it is, their placements for other memory limits are compared too, so that more memory hardly ever gives a slower step.
        time_limit: seconds for which `search` then improves the placement of the step as it is and of every option that fits.
        seed: seed of the search.
        every_option: try all options even if the step fits as it is, with the margin of its peaks.
        give_up: the kinds of options to try, by default all: "devices" (more of them are used), "batch", "micro-batches",
            "recompute" and "offload".
        placement: a known placement of the graph on the cluster; the step as it is never takes longer than under it.
        callback: a function that is called with the name of every option before it is tried.
        every_way: deprecated name of `every_option`.

    A framework may hold more memory than the schedule (`Timeline.peak_margin`). Placements and options that fit with this margin
    come first. If the step as it is fits only without the margin, the options are tried as well, and the answer says so.

    Returns:
        A `Fit` with `fits`, `best`, `missing_bytes`, `proof`, `options` and `to_pandas()`. It prints as a table, with the
        code of the cheapest options.

    Raises:
        InvalidInput, UnknownNameError: an argument has another type or value than described above.
        CostError: the graph was estimated for other hardware than that of a device.

    >>> from baechi_lab.graph.generators import chain, with_backward
    >>> step = with_backward(chain(8, seed=0))
    >>> answer = fit(step, Cluster.uniform(1, memory_bytes="5MB"), batch_size=32, give_up=["recompute"])
    >>> answer.fits, answer.best.fits
    (False, True)
    """
    check_records(cluster=cluster)
    if placement is not None:
        check_records(placement=placement)
    names = list(give_up) if is_list(give_up) and not isinstance(give_up, str) else None
    if names is None or not all(isinstance(name, str) and name in GIVE_UP for name in names):
        raise InvalidInput(
            f"give_up is {in_short(give_up)}; it must be a list of names among {', '.join(map(repr, GIVE_UP))}"
        )
    allowed = {GIVE_UP[name] for name in names}
    if not is_list(placers) or not all(isinstance(name, str) for name in placers):
        raise InvalidInput(f"placers is {in_short(placers)}; it must be a list of names, for example ['m-etf']")
    check_callback("callback", callback, "name")
    if every_way is not None:
        warnings.warn("every_way= is deprecated; use every_option=", DeprecationWarning, stacklevel=2)
        every_option = every_way
    every_option = check_flag("every_option", every_option)
    check_whole("seed", seed, low=0)
    placing = BestOfPlacers(tuple(placers) if not isinstance(placers, str) else placers, time_limit, seed)
    subject = subject_of(graph, batch_size, hardware)
    check_kinds(subject.graph, cluster)
    tell = callback or (lambda _: None)
    tell("as it is")
    first, missing = _try_as_it_is(subject, cluster, placing, placement)
    if first.fits_with_margin and not every_option:
        return Fit((first,), missing, cluster)
    proof, options = proof_of(subject.graph, cluster), [first]
    if "more devices" in allowed:
        tell("more devices")
        options += try_more_devices(subject, cluster, placing, proof, first)
    for name, try_kind in (("smaller batch", try_smaller_batches), ("micro-batches", try_micro_batches)):
        if name in allowed:
            tell(name)
            options += try_kind(subject, cluster, placing)
    for name, try_kind in (("recomputation", try_recomputation), ("offloading", try_offloading)):
        if name in allowed:
            tell(name)
            options += (
                [FitOption(name, "any", error=proof.whatever)]
                if proof.whatever
                else try_kind(subject, cluster, placing)
            )
    options += try_combinations(subject, cluster, placing, options, tell, proof, allowed)
    options = [first, *(beside_as_it_is(option, first) for option in options[1:])]
    return Fit(tuple(options), missing, cluster, None if first.fits else proof)


def beside_as_it_is(option: FitOption, first: FitOption) -> FitOption:
    """Adds to `gives_up` the share by which the option's time per sample exceeds that of the step as it is.

    Where the step fits as it is, an option that neither shortens it nor lowers the peak of the fullest device is said to gain
    nothing.
    """
    if option.timeline is None or first.timeline is None:
        return option
    other_losses = "" if option.gives_up in ("nothing", "nothing but time") else option.gives_up
    longer = (
        option.time_per_sample_us / first.time_per_sample_us - 1.0 if first.time_per_sample_us > 0 else float("nan")
    )
    per_sample = "" if option.batch_size == first.batch_size else " per sample"
    losses = [other_losses, f"{longer:.1%} more time{per_sample}" if longer > LEAST_TIME else ""]
    peak_bytes, first_peak_bytes = fullest_device_bytes(option), fullest_device_bytes(first)
    saves_memory = option.cluster is None or peak_bytes < (1.0 - LEAST_MEMORY) * first_peak_bytes
    if first.fits_with_margin and not longer < -LEAST_TIME and not saves_memory:
        losses.insert(0, NO_GAIN)
    return replace(option, gives_up=", ".join(filter(None, losses)) or option.gives_up)


def _try_as_it_is(
    subject: Subject, cluster: Cluster, placing: BestOfPlacers, placement: Placement | None
) -> tuple[FitOption, int]:
    """Returns the option "as it is", and the bytes that its fullest device lacks."""
    count = count_computing(cluster)
    choice = f"{count} devices" if count > 1 else "1 device"
    fastest, why = placing.fastest(subject.graph, cluster, placement, other_limits=True)
    option = FitOption(
        "as it is", choice, "nothing", batch_size=subject.batch_size, graph=subject.graph, cluster=cluster
    )
    if fastest is not None:
        code = "placement"
        if fastest.placement is not placement:
            code = placement_code(subject.original, "cluster", fastest, count)
        return replace(option, command=code, placement=fastest.placement, timeline=fastest.timeline), 0
    least_overflowing = placing.least_overflowing(subject.graph, cluster)
    if least_overflowing is None:
        return replace(option, error=why), 0
    overfull_placement, timeline = least_overflowing.placement, least_overflowing.timeline
    return replace(option, placement=overfull_placement, timeline=timeline, error=why), missing_bytes(timeline, cluster)


MAX_DEVICES = 64
"""Most devices that are tried."""


def try_more_devices(
    subject: Subject, cluster: Cluster, placing: BestOfPlacers, proof: Proof, first: FitOption | None = None
) -> Iterator[FitOption]:
    """Tries the smallest number of devices that is enough: doubles the number, then bisects, from the proven minimum on.

    Where the step fits as it is (`first`), its placement is compared too: it is valid on more devices.
    """
    earlier = first if first is not None and first.fits else None
    available, template = count_computing(cluster), FitOption("more devices", "any")
    if not proof.least_devices:
        yield replace(template, error=f"no number of devices is enough, which is proven: {proof.as_it_is}")
        return
    if available >= MAX_DEVICES:
        yield replace(template, error=f"{available} devices are there already; up to {MAX_DEVICES} are tried")
        return
    if proof.least_devices > MAX_DEVICES:
        least = f"{proof.least_devices} devices at least"
        yield replace(template, choice=least, error=f"{least}, which is proven; up to {MAX_DEVICES} are tried")
        return
    enough: FitOption | None = None
    low = max(available, proof.least_devices - 1)
    high = max(2 * available, proof.least_devices)
    while enough is None and low < MAX_DEVICES:
        high = min(high, max(MAX_DEVICES, available + 1))
        option = _try_devices(subject, cluster, placing, high, earlier)
        low, high, enough = (low, high, option) if option.fits else (high, 2 * high, None)
    if enough is None:
        yield replace(
            template, choice=f"up to {low} devices", error=f"no placement on {low} devices was found that fits"
        )
        return
    while high - low > 1:
        middle = (low + high) // 2
        option = _try_devices(subject, cluster, placing, middle, earlier)
        low, high, enough = (low, middle, option) if option.fits else (middle, high, enough)
    yield enough


def _try_devices(
    subject: Subject, cluster: Cluster, placing: BestOfPlacers, count: int, earlier: FitOption | None
) -> FitOption:
    added_count = count - count_computing(cluster)
    option = FitOption(
        "more devices",
        f"{count} devices",
        f"{added_count} more {plural('device', added_count)}",
        batch_size=subject.batch_size,
    )
    larger, code = cluster.with_devices(count), f"cluster.with_devices({count})"
    return place_option(option, subject.graph, larger, placing, subject.original, code, earlier)
