"""Pairs of options where neither fits alone: recomputation with a smaller batch, with micro-batches or with offloading.

One option is applied to the graph of the other: the graph of a smaller batch or of one micro-batch is recomputed, and the
recomputed graph is offloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from ..errors import BaechiLabError
from ..graph import Cluster
from ..placers.memory_trades.best_of_placers import BestOfPlacers
from ..placers.memory_trades.recomputation import format_arguments, recompute_variants
from .attempt import count_computing, has_only_hosts
from .options import micro_batch_counts, try_micro_batch_count, try_offloading, try_recomputation
from .proof import Proof, proof_of
from .record import FitOption
from .subject import Subject

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
                options.append(
                    replace(option, kind=MICRO_BATCHES, choice=f"{option.choice}, {format_arguments(keyword)}")
                )
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
                options.append(replace(option, kind=OFFLOADING, choice=f"{format_arguments(keyword)}, {option.choice}"))
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
