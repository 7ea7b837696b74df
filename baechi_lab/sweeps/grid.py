"""The settings of a sweep, and the keys by which a file knows which of them it already answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph import Cluster, Device, OpGraph, Step
from ..graph.units import parse_bytes

Subject = str | Step | OpGraph | Callable[[int], OpGraph]


@dataclass(frozen=True)
class Profiling:
    """How a batch size becomes a graph with costs: see `bl.models.build` and `bl.profile`."""

    mode: str = "estimated"
    hardware: str = "rtx2080"
    model_params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Placing:
    """What is the same in every row: see `bl.optimize`, `bl.place` and `bl.simulate`."""

    passes: tuple[str, ...]
    forward_only: bool | str
    scheduler: str | None
    params: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    micro_batches: int | None = None
    schedule: str | None = None

    @property
    def pipeline(self) -> dict[str, Any]:
        """What is given of `micro_batches` and `schedule`."""
        both = {"micro_batches": self.micro_batches, "schedule": self.schedule}
        return {key: value for key, value in both.items() if value is not None}

    def of_step(self, batch_size: int | None) -> int | None:
        """Samples of a step whose micro-batches have `batch_size`."""
        return None if batch_size is None else batch_size * (self.micro_batches or 1)

    def of(self, placer: str) -> dict[str, Any]:
        """The parameters given for a placer."""
        return dict(dict(self.params).get(placer, ()))


@dataclass(frozen=True, eq=False)
class Cell:
    """One row to be: the batch size of its graph (None: the graph's own), a cluster and a placer."""

    batch_size: int | None
    cluster: Cluster
    placer: str

    def key(self, graph_key: str, placing: Placing) -> str:
        """What identifies the row in a file."""
        own = sorted(placing.of(self.placer).items())
        what = (graph_key, self.cluster.content_key, self.placer, own, placing.passes, placing.forward_only)
        return digest(*what, placing.scheduler, *([placing.pipeline] if placing.pipeline else []))


def digest(*parts: Any) -> str:
    """A short hash of the text of `parts`."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def graph_key(subject: Subject, batch_size: int | None, profiling: Profiling) -> str:
    """What identifies the graph of a batch size in a file.

    A function is known by its module and name: change its name, or the file, when it makes other graphs.
    """
    if isinstance(subject, OpGraph):
        return digest("graph", subject.content_key)
    if isinstance(subject, Step):
        return digest("step", subject.key, batch_size, profiling)
    if isinstance(subject, str):
        return digest("model", subject, batch_size, profiling)
    module, name = getattr(subject, "__module__", ""), getattr(subject, "__qualname__", repr(subject))
    return digest("function", module, name, batch_size)


def cells(
    batch_size: Iterable[int] | None,
    devices: Iterable[int],
    memory_bytes: Iterable[int | str],
    placer: Iterable[str],
    template: Cluster,
) -> Iterator[Cell]:
    """All combinations, batch sizes outermost, so that each graph is made once and used at once."""
    sizes = [None] if batch_size is None else [check_whole("batch_size", b) for b in batch_size]
    counts = [check_whole("devices", d) for d in devices]
    memory = [parse_bytes(m) for m in memory_bytes]
    names = list(placer)
    for what, listed in (("batch_size", sizes), ("devices", counts), ("memory_bytes", memory), ("placer", names)):
        if not listed:
            raise InvalidInput(f"{what} is empty; give at least one value to sweep over")
    for b, d, m, p in product(sizes, counts, memory, names):
        yield Cell(b, equal_devices(template, d, m), p)


def equal_devices(template: Cluster, count: int, memory_bytes: int) -> Cluster:
    """`count` devices like the template's first, with its link (that of the first pair, where it has a matrix)."""
    first = template.devices[0]
    made = tuple(Device(f"{first.kind}:{i}", first.kind, memory_bytes, first.speed) for i in range(count))
    return Cluster(made, template.link_between(0, min(1, template.n - 1)), template.comm)


def listed(what: str, values: Any) -> list[Any]:
    """One value or several, as a list."""
    if isinstance(values, (str, int)):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        raise InvalidInput(f"{what} is {values!r}; give one value or a list of them")
    return list(values)
