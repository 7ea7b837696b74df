"""`scotch`: static mapping onto unequal devices, a baseline of Mirhoseini et al. 2018 (section 3).

Idea: a vertex per colocation group is weighted by its work, an edge by what it costs to cut. The work is divided in proportion
to the devices' capacities, with little communication. Like Scotch's mapper, this does not know the order of the ops.

Scotch (Pellegrini and Roman 1996, doi:10.1007/3-540-61142-8_588; program `gmap`, Debian package `scotch`) is used where it is
installed, with a complete target graph of weighted devices; otherwise METIS with target weights. Single moves then lower the sum
over cut edges of bytes times the cost of that pair's link, which neither program knows. They keep to the tolerance on every
device's load. O(edges x devices) per sweep.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import ExecutionError, InvalidInput
from ..graph import Cluster, OpGraph, Placement, durations
from ..graph.kernels.csr import grouped_sum
from ..workers.isolated import isolated_command
from .base import Placer
from .memory.feasible import within_memory
from .metis import SMALLEST_SHARE, fair_shares, metis_partitions, scaled_integers
from .problem import allowed_group_devices, both_directions, groups_of

PROGRAMS = ("gmap", "scotch_gmap")
SWEEPS = 8  # most passes of refinement
_TOP = 1 << 16  # largest integer weight


@dataclass(frozen=True)
class Scotch(Placer):
    """Static mapping: work in proportion to capacity, least communication (Scotch where installed, else pymetis).

    `imbalance`: the excess over its fair share that a device may have. `program`: "auto", "metis", or a path to gmap.
    """

    name: ClassVar[str] = "scotch"
    imbalance: float = 0.05
    seed: int = 0
    program: str = "auto"

    def validate(self) -> None:
        if not 0 < self.imbalance < np.inf:
            raise InvalidInput(f"imbalance is {self.imbalance}; it must be a number above 0")
        check_whole("seed", self.seed, 0)
        if self.program not in ("auto", "metis") and shutil.which(self.program) is None:
            raise InvalidInput(f"program is {self.program!r}; it must be 'auto', 'metis' or an executable file")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32))
        return within_memory(graph, cluster, lambda limits, careful: self._plan(graph, limits, careful))

    def _plan(self, graph: OpGraph, cluster: Cluster, careful: bool) -> Placement:
        vertices = make_vertices(graph, cluster, by_bytes=careful)
        program = next(filter(None, map(shutil.which, PROGRAMS)), None) if self.program == "auto" else self.program
        if cluster.n == 1 or program in (None, "metis"):
            used, vertex_device = "metis", self._map_with_metis(graph, cluster, vertices, careful)
        else:
            used, vertex_device = "scotch", _map_with_scotch(str(program), vertices, self.imbalance)
        is_allowed = vertices.allowed[np.arange(len(vertex_device)), vertex_device]
        vertex_device = np.where(is_allowed, vertex_device, vertices.load.argmin(axis=1))
        moves = refine(vertices, vertex_device, self.imbalance)
        return Placement(device=vertex_device[vertices.of].astype(np.int32), info={"mapper": used, "moves": moves})

    def _map_with_metis(self, graph: OpGraph, cluster: Cluster, vertices: Vertices, careful: bool) -> NDArray[np.int64]:
        if cluster.n == 1:
            return np.zeros(len(vertices.load), dtype=np.int64)
        speeds = vertices.share / vertices.share.max()
        smallest_memory = max(int(cluster.memory_bytes.max()) // 1000, 1)  # METIS refuses a target weight of 0
        scaled_devices = tuple(
            replace(d, kind="any", speed=float(s), memory_bytes=max(d.memory_bytes, smallest_memory))
            for d, s in zip(cluster.devices, speeds, strict=True)
        )
        # The shares contain what differs between kinds of devices.
        unrestricted_graph = graph.replace(allowed=None, allowed_sets=(), duration_by_kind={}, info={})
        scaled_cluster = cluster.replace(devices=scaled_devices)
        partitions = metis_partitions(
            unrestricted_graph, scaled_cluster, (self.imbalance,), self.seed, by_bytes=careful
        )
        _, device = next(partitions)
        vertex_device = np.zeros(len(vertices.load), dtype=np.int64)
        vertex_device[vertices.of] = device
        return vertex_device


@dataclass(frozen=True)
class Vertices:
    """The mapping problem: V colocation groups (vertices), D devices, and what the edges between vertices carry.

    Args:
        of: int32[n], the vertex of every op.
        load: float64[V, D], the share of a device's capacity that a vertex takes; infinite where it is not allowed.
        allowed: bool[V, D].
        share: float64[D], the fair part of the work for each device.
        work: float64[V], of each vertex.
        pointer, neighbour: edges in CSR form; each is listed at both of its ends.
        sends, bytes: float64[edges], the messages and bytes that an edge carries.
        latency, per_byte: float64[D, D], cost of a message and of a byte, the mean of both directions.
    """

    of: NDArray[np.int32]
    load: NDArray[np.float64]
    allowed: NDArray[np.bool_]
    share: NDArray[np.float64]
    work: NDArray[np.float64]
    pointer: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    sends: NDArray[np.float64]
    bytes: NDArray[np.float64]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]


def make_vertices(graph: OpGraph, cluster: Cluster, *, by_bytes: bool = False) -> Vertices:
    """Returns the mapping problem; `by_bytes` balances persistent bytes against memory in place of work against speed."""
    of = groups_of(graph)
    count = int(of.max()) + 1
    allowed, cost = allowed_group_devices(graph, cluster, of), grouped_sum(durations(graph, cluster), of, count)
    if by_bytes:
        persistent_bytes = np.bincount(of, graph.persistent_bytes, count)
        cost = persistent_bytes[:, None] / np.maximum(cluster.memory_bytes, 1)
    total = cost.sum(axis=0)
    # A device that takes no time for all of it still leaves others a share.
    total = np.maximum(total, SMALLEST_SHARE * total.max()) if total.any() else np.ones(cluster.n)
    share = fair_shares(total.max() / total)  # all devices done at once: capacity is the inverse of the time for all
    a, b = of[graph.edge_source], of[graph.consumers]
    # Sent once per device, not per reader.
    reader_share = 1.0 / np.maximum(np.diff(graph.consumer_ptr), 1)[graph.edge_tensor]
    size = reader_share * graph.tensor_bytes[graph.edge_tensor]
    crossing = a != b
    weights = [reader_share[crossing], size[crossing]]
    pointer, neighbour, (sends, sizes) = both_directions(a[crossing], b[crossing], weights, count)
    latency, per_byte = ((x + x.T) / 2 for x in (cluster.latency_us, cluster.us_per_byte))
    load = np.where(allowed, cost / total / share, np.inf)
    return Vertices(of, load, allowed, share, cost.min(axis=1), pointer, neighbour, sends, sizes, latency, per_byte)


def refine(v: Vertices, vertex_device: NDArray[np.int64], imbalance: float) -> int:
    """Moves vertices of `vertex_device` int[V] in place while that lowers communication; returns the number of moves.

    No device goes above its share; from a device above it, a move may lower its load at no cost. Ties by device index.
    """
    count, devices = v.load.shape
    used = grouped_sum(v.load[np.arange(count), vertex_device], vertex_device, devices)
    # bool[V]: whether communication costs a vertex anything. Where all its neighbours are on its device it stays.
    vertex = np.repeat(np.arange(len(vertex_device)), np.diff(v.pointer))
    a, b = vertex_device[vertex], vertex_device[v.neighbour]
    costs = v.latency[a, b] * v.sends + v.per_byte[a, b] * v.bytes
    may_move: NDArray[np.bool_] = np.bincount(vertex, costs > 0.0, len(vertex_device)) > 0
    moves = 0
    for _ in range(SWEEPS):
        before = moves
        for i in range(count):
            if not may_move[i]:
                continue
            current_device, near = vertex_device[i], slice(v.pointer[i], v.pointer[i + 1])
            neighbour_devices = vertex_device[v.neighbour[near]]
            cost = v.latency[:, neighbour_devices] @ v.sends[near] + v.per_byte[:, neighbour_devices] @ v.bytes[near]
            within_share = used + v.load[i] <= 1.0 + imbalance
            within_share[current_device] = True
            best = int(np.argmin(np.where(within_share, cost, np.inf)))
            if cost[best] < cost[current_device] * (1 - 1e-9):
                used[current_device] -= v.load[i, current_device]
                used[best] += v.load[i, best]
                vertex_device[i] = best
                may_move[i] = True
                may_move[v.neighbour[near]] = True
                moves += 1
        if moves == before:
            break
    return moves


def _map_with_scotch(program: str, v: Vertices, imbalance: float) -> NDArray[np.int64]:
    """Returns a device per vertex by Scotch's `gmap` on files in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        source, target, mapping = (Path(folder) / name for name in ("graph.grf", "devices.tgt", "mapping.map"))
        source.write_text(source_graph(v))
        weights = scaled_integers(v.share, 1000, lowest=1)
        target.write_text(f"cmpltw {len(weights)} {' '.join(map(str, weights))}\n")
        files = map(str, (source, target, mapping))
        command = isolated_command("baechi_lab.workers.child_program", program, f"-b{imbalance:g}", *files)
        process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if process.returncode != 0 or not mapping.exists():
            raise ExecutionError(f"{program} ended with code {process.returncode}: {process.stderr.strip()[-300:]}")
        rows = np.array(mapping.read_text().split()[1:], dtype=np.int64).reshape(-1, 2)
    vertex_device = np.zeros(len(v.load), dtype=np.int64)
    vertex_device[rows[:, 0]] = rows[:, 1]
    return vertex_device


def source_graph(v: Vertices) -> str:
    """Returns a graph in Scotch's format: version, sizes, base 0 with edge and vertex weights, then a row per vertex."""
    off = ~np.eye(len(v.share), dtype=bool)
    latency, per_byte = (float(x[off].mean()) if off.any() else 0.0 for x in (v.latency, v.per_byte))
    transfer_us = latency * v.sends + per_byte * v.bytes
    work, cut = (scaled_integers(value, _TOP, lowest=1) for value in (v.work, transfer_us))
    rows = ["0", f"{len(work)} {len(cut)}", "0 011"]
    for i in range(len(work)):
        near = range(int(v.pointer[i]), int(v.pointer[i + 1]))
        rows.append(" ".join(map(str, [work[i], len(near), *(x for e in near for x in (cut[e], int(v.neighbour[e])))])))
    return "\n".join(rows) + "\n"
