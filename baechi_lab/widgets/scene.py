"""What the graph view draws: the visible nodes and edges with their positions and costs, and how devices paint them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from .columns import Columns, pack, pack_texts
from .hierarchy import OP, Tree
from .layout import layered

CELL_WIDTH, CELL_HEIGHT = 64.0, 36.0
SMALLEST, LARGEST = 10.0, 46.0
"""Width in world pixels of a node that takes no time, and of the one that takes longest."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Visible nodes (ids in the tree), their boxes and sums, and the edges between them (positions in `nodes`)."""

    tree: Tree
    nodes: NDArray[np.int32]
    owner: NDArray[np.int32]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    width: NDArray[np.float64]
    height: NDArray[np.float64]
    duration_us: NDArray[np.float64]
    memory_bytes: NDArray[np.int64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    edge_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)

    def sums(self, per_op: Any) -> Any:
        """float64[nodes]: a column of the original ops, summed per visible node."""
        return np.bincount(self.owner, per_op, minlength=len(self.nodes))


def build_scene(graph: OpGraph, tree: Tree, expanded: Collection[int]) -> Scene:
    """The scene of `graph` with the nodes in `expanded` open. O((ops + edges) log edges)."""
    nodes = tree.visible(expanded)
    owner = tree.owner(nodes)
    source, target, size = _edges_between(graph, owner, len(nodes))
    x, y = layered(_mean_position(graph, owner, len(nodes)), source, target)
    duration: Any = np.bincount(owner, graph.duration_us, minlength=len(nodes))
    memory = np.bincount(owner, _memory_per_op(graph), minlength=len(nodes)).astype(np.int64)
    width = SMALLEST + (LARGEST - SMALLEST) * np.sqrt(duration / max(duration.max(initial=0.0), 1e-12))
    height = np.where(tree.kind[nodes] == OP, 14.0, 20.0)
    return Scene(
        tree, nodes, owner, x * CELL_WIDTH, y * CELL_HEIGHT, width, height, duration, memory, source, target, size
    )


def _memory_per_op(graph: OpGraph) -> NDArray[np.int64]:
    """Persistent, temporary and output bytes of each op."""
    outputs = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n).astype(np.int64)
    return graph.persistent_bytes + graph.temp_bytes + outputs


def _mean_position(graph: OpGraph, owner: NDArray[np.int32], count: int) -> Any:
    return np.bincount(owner, graph.position, minlength=count) / np.maximum(np.bincount(owner, minlength=count), 1)


def _edges_between(graph: OpGraph, owner: NDArray[np.int32], count: int) -> tuple[Any, Any, Any]:
    """Distinct visible edges; a tensor read by several ops of one node counts once."""
    source, target = owner[graph.edge_source].astype(np.int64), owner[graph.consumers].astype(np.int64)
    crossing = source != target
    pair, tensor = (source * count + target)[crossing], graph.edge_tensor[crossing].astype(np.int64)
    once = np.unique(np.stack([pair, tensor], axis=1), axis=0) if len(pair) else np.zeros((0, 2), np.int64)
    unique, which = np.unique(once[:, 0], return_inverse=True)
    size = np.bincount(which.reshape(-1), graph.tensor_bytes[once[:, 1]], minlength=len(unique))
    width = max(count, 1)
    return (unique // width).astype(np.int32), (unique % width).astype(np.int32), size.astype(np.int64)


def scene_columns(graph: OpGraph, scene: Scene) -> Columns:
    """Geometry, costs and labels of a scene as bytes for the view."""
    tree, nodes = scene.tree, scene.nodes
    single = np.where(tree.kind[nodes] == OP, tree.ops[tree.low[nodes]], -1)
    forward = np.where(single >= 0, graph.forward_of[single], -1)
    kinds = ["" if op < 0 else graph.op_types[op] for op in single.tolist()]
    columns = pack(
        id=("i4", nodes), kind=("u1", tree.kind[nodes]), x=("f4", scene.x), y=("f4", scene.y),
        width=("f4", scene.width), height=("f4", scene.height), time=("f8", scene.duration_us),
        memory=("f8", scene.memory_bytes), size=("i4", tree.high[nodes] - tree.low[nodes]),
        source=("i4", scene.source), target=("i4", scene.target), bytes=("f8", scene.edge_bytes),
    )  # fmt: skip
    columns["names"] = pack_texts(tree.names[i] for i in nodes.tolist())
    columns["types"] = pack_texts(kinds)
    columns["forward"] = pack_texts("" if op < 0 else graph.names[op] for op in forward.tolist())
    return columns


@dataclass(frozen=True, eq=False)
class Paint:
    """Per visible node: its main device, the share of its ops' time (or count) on each device, bytes sent and
    received, and whether the critical path runs through it."""

    main: NDArray[np.int64]
    share: NDArray[np.float64]
    sent_bytes: NDArray[np.float64]
    received_bytes: NDArray[np.float64]
    critical: NDArray[np.bool_]


def build_paint(
    graph: OpGraph, scene: Scene, timeline: Timeline, critical_ops: NDArray[np.int64] | None = None
) -> Paint:
    """How `timeline` (of `graph`) colours the scene."""
    device = np.zeros(graph.n, dtype=np.int64)
    device[timeline.op] = timeline.device
    devices, count = len(timeline.device_names), len(scene)
    # Ops that take no time still have a device: every op counts a little.
    weight = graph.duration_us + max(float(graph.duration_us.mean()) if graph.n else 0.0, 1e-9) * 1e-6
    cell = scene.owner.astype(np.int64) * devices + device
    share: Any = np.bincount(cell, weight, minlength=count * devices).reshape(count, devices)
    share = share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
    sent, received = _moved(graph, scene, timeline, device)
    critical = np.zeros(count, dtype=bool)
    if critical_ops is not None:
        critical[scene.owner[critical_ops]] = True
    return Paint(share.argmax(axis=1), share, sent, received, critical)


def _moved(graph: OpGraph, scene: Scene, timeline: Timeline, device: NDArray[np.int64]) -> tuple[Any, Any]:
    """Bytes that each node's tensors send to other devices, and that other devices' tensors bring to its ops."""
    moved, count = timeline.transfers, len(scene)
    size = graph.tensor_bytes[moved.tensor]
    sent = np.bincount(scene.owner[graph.tensor_producer[moved.tensor]], size, minlength=count)
    across = device[graph.edge_source] != device[graph.consumers]
    reader = scene.owner[graph.consumers[across]].astype(np.int64)
    key = np.unique(reader * max(graph.tensor_count, 1) + graph.edge_tensor[across])
    tensors = max(graph.tensor_count, 1)
    received = np.bincount(key // tensors, graph.tensor_bytes[key % tensors], minlength=count)
    return sent, received


def paint_columns(paint: Paint) -> Columns:
    """Paint as bytes; nodes on several devices also carry their shares."""
    mixed = np.flatnonzero(paint.share.max(axis=1, initial=0.0) < 0.999)
    return pack(
        device=("u1", paint.main), critical=("u1", paint.critical), sent=("f8", paint.sent_bytes),
        received=("f8", paint.received_bytes), mixed=("i4", mixed), share=("f4", paint.share[mixed]),
    )  # fmt: skip


def covering(scene: Scene, ops: Collection[int]) -> list[int]:
    """Tree ids of the visible nodes that hold any of `ops`, ascending."""
    if not len(ops):
        return []
    return sorted({int(scene.nodes[i]) for i in scene.owner[np.fromiter(ops, dtype=np.int64)].tolist()})
