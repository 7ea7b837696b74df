"""Two ways together, where neither of them fits alone: recomputation with a smaller batch, with micro-batches, with offloading.

Each pair is the same as its parts with one of them made first: what is recomputed is the graph of a smaller batch or of one
micro-batch, and what is offloaded is the graph that recomputes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from ..errors import BaechiLabError
from ..graph import Cluster
from ..placers.giving_up.placing import Placing
from ..placers.giving_up.recomputing import choices, words_of
from .attempt import all_hosts, computing
from .proof import Proof, proof_of
from .record import Way
from .subject import Subject
from .ways import in_micro_batches, micro_batch_counts, offloading, recomputation

SMALLER = "smaller batch + recomputation"
MICRO = "micro-batches + recomputation"
MOVED = "recomputation + offloading"


def combinations(
    subject: Subject,
    cluster: Cluster,
    placing: Placing,
    alone: Sequence[Way],
    tell: Callable[[str], object],
    proof: Proof,
    allowed: Collection[str],
) -> Iterator[Way]:
    """The pairs of `allowed` ways of which neither fits alone, but for what `proof` says is in vain."""
    able = {way.way for way in alone if way.fits}
    for name, pair in ((SMALLER, _smaller), (MICRO, _micro), (MOVED, _moved)):
        parts = set(name.split(" + "))
        if parts <= set(allowed) and not able & parts and not (name == MOVED and proof.whatever):
            tell(name)
            yield from pair(subject, cluster, placing)


def _smaller(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Half the batch, a quarter, ... recomputed, until one fits."""
    size = subject.batch_size or 0
    while subject.rebuild is not None and (size := size // 2) >= 1:
        try:
            small = subject.at(size)
        except BaechiLabError:
            continue
        if proof_of(small, cluster).whatever:
            continue
        given = f"a batch of {subject.batch_size}"
        ways = list(recomputation(Subject(small, size, None, subject.code_at(size)), cluster, placing))
        yield from (
            replace(
                w,
                way=SMALLER,
                choice=f"batch {size}, {w.choice}",
                gives_up=", ".join(x for x in (given, w.gives_up) if x),
            )
            for w in ways
        )
        if any(way.fits for way in ways):
            return


def _micro(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """Twice as many micro-batches, each recomputed, until one fits; the fastest choice of what is recomputed."""
    counts = micro_batch_counts(subject.batch_size) if subject.rebuild is not None and subject.batch_size else []
    for count in counts:
        size = subject.batch_size // count  # type: ignore[operator]
        found: list[Way] = []
        try:
            for keyword, small in choices(subject.at(size), cluster, computing(cluster)):
                made = f"bl.recompute({subject.code_at(size)}, {words_of(keyword)})"
                way = in_micro_batches(subject, cluster, placing, count, small, made)
                found.append(replace(way, way=MICRO, choice=f"{way.choice}, {words_of(keyword)}"))
        except BaechiLabError:
            continue
        if found:
            yield min(found, key=lambda way: (not way.fits, way.time_per_sample_us))
        if any(way.fits for way in found):
            return


def _moved(subject: Subject, cluster: Cluster, placing: Placing) -> Iterator[Way]:
    """What recomputes, and then offloads; the fastest of all choices, else the one that needs least."""
    found: list[Way] = []
    if all_hosts(cluster):
        return
    try:
        for keyword, again in choices(subject.graph, cluster, computing(cluster)):
            made = f"bl.recompute({subject.original}, {words_of(keyword)})"
            for way in offloading(Subject(again, subject.batch_size, None, made), cluster, placing):
                found.append(replace(way, way=MOVED, choice=f"{words_of(keyword)}, {way.choice}"))
    except BaechiLabError as error:
        yield Way(MOVED, "any", error=str(error))
        return
    if found:
        yield min(
            found,
            key=lambda way: (not way.fits, way.time_per_sample_us if way.fits else max(way.peak_bytes, default=0)),
        )
