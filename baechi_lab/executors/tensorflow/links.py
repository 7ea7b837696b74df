"""`bl.measure_link` and `bl.measure_cluster`: time transfers between devices and fit the simulator's link costs.

The transfers run in a worker process (see `links_request`), so the caller's TensorFlow is not used. Between workers of a cluster
they go through TensorFlow's own rendezvous. `baechi_lab.profilers.links` fits a `Link` and a communication mode to the times.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_whole
from ...errors import ExecutionError, InvalidInput, UnknownNameError
from ...graph import Cluster, Link
from ...profilers.links import SIZES, LinkFit, comm_mode, fit_link, vote, waiting_shares
from ...workers.client import Worker, WorkerEnded, refusal
from ...workers.messages import Message
from .cluster import LocalCluster
from .devices import device_options
from .peers import Peers

PROBE_BYTES = 16 << 20
"""Size of the tensors that probe for concurrency: large enough that the bytes dominate the time."""

_NAME = re.compile(r"/?(?:job:\w+/(?:replica:0/)?task:\d+)?/?(?:device:)?(?:cpu|gpu):\d+", re.I)


@dataclass(frozen=True, eq=False)
class Probe:
    """Two simultaneous transfers between devices `source` and `target`: how long the second waits for the first.

    `same_direction` and `opposite` are shares of one transfer's time: 0 if they run in parallel, 1 if one after the other.
    """

    source: str
    target: str
    same_direction: float
    opposite: float

    @property
    def comm(self) -> str:
        """Returns the nearest communication mode."""
        return comm_mode(self.same_direction, self.opposite)


@dataclass(frozen=True, eq=False)
class ClusterFit:
    """The links and probes of all ordered pairs, and the resulting `cluster`."""

    cluster: Cluster
    links: tuple[LinkFit, ...]
    probes: tuple[Probe, ...]


def measure_link(
    source: str | int = "/device:CPU:0",
    target: str | int = "/device:CPU:1",
    *,
    cluster: Cluster | LocalCluster | None = None,
    workers: Sequence[str] = (),
    secret: str | os.PathLike[str] | None = None,
    sizes: Sequence[int] = SIZES,
    repeats: int = 11,
    timeout: float | None = None,
    progress: bool = True,
) -> LinkFit:
    """Times transfers from one device to another.

    Args:
        source, target: names or indices of devices of `cluster`; without one, TensorFlow device names of this machine
            (`/device:GPU:0`, `cpu:1`). CPU devices beyond the first are logical devices, so that `cpu:1` exists on every
            machine. A transfer between two of them costs a message, not a copy.
        cluster: a `bl.LocalCluster`, or the record of any cluster that `bl.execute` runs on.
        workers, secret: addresses of TensorFlow servers and what they ask for, as in `bl.execute`.
        sizes: bytes of the tensors, at least two different, multiples of 4.
        repeats: timed transfers per size, after one that is not counted.
        timeout: seconds for everything; None for no limit.
        progress: show a progress bar.

    Returns:
        a LinkFit. A sample is the time from the end of the op on `source` that has the tensor to the start of the op on
        `target` that reads it, in TensorFlow's traces; between tasks, whose clocks differ, it is measured there and back.

    Raises:
        UnknownNameError: no such device.
        InvalidInput: sizes or repeats.
        ExecutionError: a device that is not attached or out of memory, a worker that does not answer or dies, `timeout`.
    """
    _check_sizes(sizes, repeats)
    if cluster is None:
        names = [str(source), str(target)]
        for name in names:
            if _NAME.fullmatch(name) is None:
                raise UnknownNameError.of("device", name, ["/device:CPU:0", "/device:GPU:0", "cpu:1", "gpu:1"])
        devices, addresses, pair = [(name, 0) for name in names], tuple(workers), (0, 1)
        same = names[0].lower() == names[1].lower()
    else:
        record, addresses = _record_and_addresses(cluster, workers)
        devices = [(d.name, d.memory_bytes) for d in record.devices]
        pair = record.index(source), record.index(target)
        same = pair[0] == pair[1]
    if same:
        raise InvalidInput(f"source and target are both {source!r}; a tensor that stays on one device costs nothing")
    options = device_options(workers=addresses, secret=secret)
    ((seconds, _),) = _measure(devices, [pair], options, sizes, repeats, 0, timeout, progress, cluster)
    return _fit(devices[pair[0]][0], devices[pair[1]][0], sizes, seconds)


def measure_links(
    cluster: Cluster | LocalCluster,
    *,
    workers: Sequence[str] = (),
    secret: str | os.PathLike[str] | None = None,
    sizes: Sequence[int] = SIZES,
    repeats: int = 11,
    timeout: float | None = None,
    progress: bool = True,
) -> ClusterFit:
    """Measures and probes every ordered pair of a cluster's devices; see `measure_cluster`."""
    _check_sizes(sizes, repeats)
    record, addresses = _record_and_addresses(cluster, workers)
    if record.n < 2:
        return ClusterFit(record, (), ())
    devices = [(d.name, d.memory_bytes) for d in record.devices]
    pairs = list(permutations(range(record.n), 2))
    options = device_options(workers=addresses, secret=secret)
    round_trips = _measure(devices, pairs, options, sizes, repeats, PROBE_BYTES, timeout, progress, cluster)
    links, probes = [], []
    for (a, b), (seconds, waits) in zip(pairs, round_trips, strict=True):
        links.append(_fit(record.names[a], record.names[b], sizes, seconds))
        probes.append(Probe(record.names[a], record.names[b], *waiting_shares(waits)))
    table = [[Link(0.0, 0.0)] * record.n for _ in range(record.n)]
    for (a, b), fit in zip(pairs, links, strict=True):
        table[a][b] = fit.link
    measured_cluster = record.replace(link=table, comm=vote([probe.comm for probe in probes]))
    return ClusterFit(measured_cluster, tuple(links), tuple(probes))


def measure_cluster(
    cluster: Cluster | LocalCluster,
    *,
    workers: Sequence[str] = (),
    secret: str | os.PathLike[str] | None = None,
    sizes: Sequence[int] = SIZES,
    repeats: int = 11,
    overhead: bool = True,
    timeout: float | None = None,
    progress: bool = True,
) -> Cluster:
    """Returns the cluster with measured links and communication mode, to be simulated, saved (`bl.save_cluster`) and loaded.

    Args:
        cluster: a running `bl.LocalCluster`, or the record of devices that `bl.execute` runs on (with `workers`, the
            addresses of TensorFlow servers). Names, kinds and memory stay.
        workers, secret, sizes, repeats, timeout, progress: as in `bl.measure_link`.
        overhead: for a LocalCluster, measure as well what a message takes of the devices' own processors
            (`Link.overhead_us`) and take it off the latency; about half a minute more.

    Every ordered pair gets a link of its own. The mode is the one that most pairs show when two large transfers are
    timed at once, in the same and in opposite directions, against one.

    Raises:
        UnknownNameError, InvalidInput, ExecutionError: as `bl.measure_link`.

    >>> with bl.LocalCluster(2) as local:  # doctest: +SKIP
    ...     bl.save_cluster(bl.measure_cluster(local), "two-workers.json")
    """
    measured_cluster = measure_links(
        cluster, workers=workers, secret=secret, sizes=sizes, repeats=repeats, timeout=timeout, progress=progress
    ).cluster
    if not overhead or not isinstance(cluster, LocalCluster) or measured_cluster.n < 2:
        return measured_cluster
    from .calibration import calibrate

    costs = calibrate(cluster)
    each = (costs.send.latency_us + costs.receive.latency_us) / 2
    rows = [
        [with_overhead(measured_cluster.link_between(a, b), each) for b in range(measured_cluster.n)]
        for a in range(measured_cluster.n)
    ]
    return measured_cluster.replace(link=rows)


def with_overhead(link: Link, overhead_us: float) -> Link:
    """Returns a link of the same total cost, of which sender and receiver each take `overhead_us` processor time.

    >>> with_overhead(Link(100.0, 0.5), 30.0), with_overhead(Link(20.0, 0.5), 30.0)
    (Link(latency_us=40.0, us_per_byte=0.5, overhead_us=30.0), Link(latency_us=0.0, us_per_byte=0.5, overhead_us=10.0))
    """
    share = min(overhead_us, link.latency_us / 2)
    return replace(link, latency_us=link.latency_us - 2 * share, overhead_us=share)


def _fit(source: str, target: str, sizes: Sequence[int], seconds: NDArray[np.float64]) -> LinkFit:
    link, residual = fit_link(sizes, 1e6 * np.median(seconds, axis=1))
    return LinkFit(source, target, link, residual, np.array(sizes, dtype=np.int64), seconds)


def _measure(
    devices: Sequence[tuple[str, int]],
    pairs: Sequence[tuple[int, int]],
    options: dict[str, Any],
    sizes: Sequence[int],
    repeats: int,
    probe_bytes: int,
    timeout: float | None,
    progress: bool,
    cluster: Cluster | LocalCluster | None,
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Returns (seconds, probes) per pair, as the worker sends them. `devices` are names with bytes of memory."""
    from tqdm.auto import tqdm

    header = {
        "devices": [list(device) for device in devices],
        "options": options,
        "pairs": [list(pair) for pair in pairs],
        "sizes": [int(s) for s in sizes],
        "repeats": int(repeats),
        "probe_bytes": int(probe_bytes),
    }
    measurements: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    bar = tqdm(total=len(pairs), desc="links", unit="pair", disable=None if progress else True, leave=False)
    local = cluster if isinstance(cluster, LocalCluster) else None
    peer_context = Peers(options["workers"], secret=options["secret"], local=local)
    with peer_context as peers, bar, Worker(network=None if local is None else local.network) as worker:
        try:
            exchange = worker.exchange(
                Message("links", header), {"done", "failed"}, timeout, find_lost_peer=peers.ended_server
            )
            with closing(exchange) as answers:
                for answer in answers:
                    if answer.kind == "failed":
                        raise refusal(answer)
                    if answer.kind == "link":
                        measurements.append((answer.arrays[0], answer.arrays[1]))
                        bar.update()
        except WorkerEnded as ended:
            raise ExecutionError(f"links were not measured: {ended.message}") from ended
    return measurements


def _record_and_addresses(cluster: Cluster | LocalCluster, workers: Sequence[str]) -> tuple[Cluster, tuple[str, ...]]:
    if isinstance(cluster, LocalCluster):
        cluster.require_alive()
        return cluster.cluster, cluster.addresses
    if not isinstance(cluster, Cluster):
        raise InvalidInput(f"cluster is a {type(cluster).__name__}; give a bl.Cluster or a running bl.LocalCluster")
    return cluster, tuple(workers)


def _check_sizes(sizes: Sequence[int], repeats: int) -> None:
    bad = [s for s in sizes if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 4 or s % 4]
    if bad or len(set(sizes)) < 2:
        raise InvalidInput(f"sizes is {list(sizes)!r}; give at least two different multiples of 4 bytes")
    check_whole("repeats", repeats)
