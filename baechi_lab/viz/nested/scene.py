"""The scene of a picture of nested boxes: boxes, frames around open boxes, and one arrow per connected pair in a frame."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph, Timeline
from ...graph.kernels.csr import Integers
from ...graph.units import format_us, shorten
from .arrange import Arrangement, Boxes, arrange
from .scopes import timed_ops
from .tree import OP, ROOT, Tree

PAGE, INSIDE = 2.3, 1.9
"""Wanted width per height of the whole picture, and of the contents of a frame."""
TITLE, MARGIN = 20.0, 12.0
"""Pixels above and around the contents of a frame."""
LABEL, NOTE = 11.0, 9.0
"""Font sizes of a box."""
MOST_CHARACTERS = 40
"""Characters of a label: boxes as wide as the longest names would leave no label large enough to be read."""
_IDEOGRAPHS = 0x2E80
"""From this character on, those of a sans-serif font are about as wide as high."""
_WIDE = {**dict.fromkeys("mwMW@%∇", 0.9), **dict.fromkeys("ijlt.,:|'!fr/ ()", 0.36), **dict.fromkeys("_-", 0.56)}


@dataclass(frozen=True, eq=False)
class Arrows:
    """Arrows: each shows all tensors from one box or frame to another, the tree nodes `source` and `target`.

    `edge_of` is the arrow of every (tensor, consumer) pair of the graph, -1 for pairs inside one box. The points of arrow `k`
    are rows `pointer[k]:pointer[k+1]` of `points`; `upright` arrows leave a box vertically.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    bytes: NDArray[np.int64]
    tensors: NDArray[np.int64]
    pointer: NDArray[np.int64]
    points: NDArray[np.float64]
    upright: NDArray[np.bool_]
    edge_of: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class Scene:
    """Boxes (`nodes`, ids in the tree) and `frames`, each with its middle and size in pixels, sums, and the arrows.

    `owner` is int32[ops], the position in `nodes` of the box that shows each op.
    """

    tree: Tree
    nodes: NDArray[np.int32]
    frames: NDArray[np.int32]
    owner: NDArray[np.int32]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    width: NDArray[np.float64]
    height: NDArray[np.float64]
    frame_box: NDArray[np.float64]
    duration_us: NDArray[np.float64]
    persistent_bytes: NDArray[np.int64]
    made_bytes: NDArray[np.int64]
    notes: tuple[str, ...]
    arrows: Arrows
    size: tuple[float, float]

    def __len__(self) -> int:
        return len(self.nodes)

    def label(self, node: int) -> str:
        return label(self.tree, node)


def label(tree: Tree, node: int) -> str:
    """Returns the label of a node, marked as backward for outermost boxes of the backward pass; a long one without its middle."""
    outermost = tree.backward[node] and tree.parent[node] == ROOT
    text = shorten(tree.labels[node], MOST_CHARACTERS)
    return f"∇ {text}" if outermost else text


def box_note(tree: Tree, node: int, duration_us: float) -> str:
    """Returns the second line of a box: the number of its ops and their time; empty for the box of an op."""
    return "" if tree.kind[node] == OP else f"{tree.high[node] - tree.low[node]:,} ops · {format_us(duration_us)}"


def text_width(text: str, size: float) -> float:
    """Returns the width of a text in pixels in a usual sans-serif font, as an upper estimate."""
    return size * sum(_WIDE.get(c, 1.0 if ord(c) >= _IDEOGRAPHS else 0.72 if c.isupper() else 0.59) for c in text)


def build_scene(graph: OpGraph, tree: Tree, expanded: Collection[int]) -> Scene:
    """Builds the scene of `graph` with the nodes in `expanded` open. O(edges x depth of the frames + layout of each frame)."""
    return _Builder(graph, tree, frozenset(expanded)).scene()


class _Builder:
    """Collects the visible boxes and arrows, and arranges frames from the innermost outwards."""

    def __init__(self, graph: OpGraph, tree: Tree, expanded: frozenset[int]):
        self.graph, self.tree = graph, tree
        self.nodes, self.frames = tree.visible(expanded), tree.frames(expanded)
        self.opened = {ROOT, *self.frames.tolist()}
        self.duration = np.concatenate([[0.0], np.cumsum(graph.duration_us[tree.ops])])
        # Variables and updates tell little about when a box has its turn.
        op_weight = np.where(timed_ops(graph), 1.0, 1e-6)[tree.ops]
        self.timed = np.concatenate([[0.0], np.cumsum(op_weight)])
        self.position = np.concatenate([[0.0], np.cumsum(op_weight * graph.position[tree.ops])])
        self.item_of = np.full(graph.n, -1, dtype=np.int64)
        self.edge_of = np.full(len(graph.consumers), -1, dtype=np.int32)
        self.inside: dict[int, Arrangement] = {}
        self.arrows: dict[int, tuple[Any, ...]] = {}
        self.count = 0

    def scene(self) -> Scene:
        edges = np.arange(len(self.graph.consumers))
        self._make_arrows(ROOT, edges)
        self._sizes(ROOT, PAGE)
        corner = {ROOT: (0.0, 0.0)}
        middle: dict[int, tuple[float, float]] = {}
        for node in (ROOT, *self.frames.tolist()):
            inner_frame, (frame_left, frame_top) = self.inside[node], corner[node]
            for k, child in enumerate(self.tree.children[node]):
                x, y = frame_left + float(inner_frame.x[k]), frame_top + float(inner_frame.y[k])
                middle[child] = (x, y)
                if child in self.opened:
                    inner = self.inside[child]
                    corner[child] = (x - inner.width / 2, y - inner.height / 2 + TITLE / 2)
        owner = self.tree.owner(self.nodes)
        persistent_bytes, made_bytes = (
            np.bincount(owner, column, minlength=len(self.nodes)).astype(np.int64)
            for column in (self.graph.persistent_bytes, made_per_op(self.graph))
        )
        size = np.array([self._size(n) for n in self.nodes.tolist()]).reshape(-1, 2)
        at = np.array([middle[n] for n in self.nodes.tolist()]).reshape(-1, 2)
        frames = np.array([(*middle[n], *self._size(n)) for n in self.frames.tolist()]).reshape(-1, 4)
        return Scene(
            tree=self.tree,
            nodes=self.nodes,
            frames=self.frames,
            owner=owner,
            x=at[:, 0],
            y=at[:, 1],
            width=size[:, 0],
            height=size[:, 1],
            frame_box=frames,
            duration_us=self._duration(self.nodes),
            persistent_bytes=persistent_bytes,
            made_bytes=made_bytes,
            notes=tuple(self._note(n) for n in self.nodes.tolist()),
            arrows=self._all_arrows(corner),
            size=(self.inside[ROOT].width, self.inside[ROOT].height),
        )

    # -- sums --------------------------------------------------------------------------------------------

    def _duration(self, nodes: Any) -> NDArray[np.float64]:
        return np.asarray(self.duration[self.tree.high[nodes]] - self.duration[self.tree.low[nodes]])

    def _note(self, node: int) -> str:
        return box_note(self.tree, node, float(self._duration(node)))

    def _make_arrows(self, node: int, edges: NDArray[np.int64]) -> None:
        """Makes the arrows between the children of an open node from the edges of its ops, and then those inside them."""
        tree, graph = self.tree, self.graph
        children = tree.children[node]
        for k, child in enumerate(children):
            self.item_of[tree.members(child)] = k
        source, target = self.item_of[graph.edge_source[edges]], self.item_of[graph.consumers[edges]]
        across = source != target
        key = source[across] * len(children) + target[across]
        pairs, pair_index = np.unique(key, return_inverse=True)
        pair_index = pair_index.reshape(-1)
        self.edge_of[edges[across]] = self.count + pair_index
        tensor = graph.edge_tensor[edges[across]].astype(np.int64)
        once = np.unique(pair_index * max(graph.tensor_count, 1) + tensor)
        of = once // max(graph.tensor_count, 1)
        size = np.bincount(of, graph.tensor_bytes[once % max(graph.tensor_count, 1)], minlength=len(pairs))
        self.arrows[node] = (pairs // len(children), pairs % len(children), size, np.bincount(of, minlength=len(pairs)))
        self.count += len(pairs)
        inner = edges[~across]
        source_child = source[~across]
        for k, child in enumerate(children):
            if child in self.opened:
                self._make_arrows(child, inner[source_child == k])

    # -- places ------------------------------------------------------------------------------------------

    def _sizes(self, node: int, aspect: float) -> None:
        """Arranges the contents of an open node, the innermost frames first."""
        children = np.array(self.tree.children[node], dtype=np.int64)
        inside = self._aspect_of_frames(children) if node == ROOT else INSIDE
        for child in children.tolist():
            if child in self.opened:
                self._sizes(child, inside)
        sizes = np.array([self._size(c) for c in children.tolist()]).reshape(-1, 2)
        closed_sizes = np.array([self._closed_size(c) for c in children.tolist()]).reshape(-1, 2)
        low, high = self.tree.low[children], self.tree.high[children]
        order = (self.position[high] - self.position[low]) / (self.timed[high] - self.timed[low])
        is_backward, twin = self.tree.backward[children], self.tree.twin[children]
        index = {int(c): k for k, c in enumerate(children)}
        boxes = Boxes(
            width=sizes[:, 0],
            height=sizes[:, 1],
            closed_width=closed_sizes[:, 0],
            closed_height=closed_sizes[:, 1],
            order=order,
            backward=is_backward,
            twin=np.array([index.get(int(t), -1) for t in twin], dtype=np.int64),
        )
        source, target, size, _ = self.arrows[node]
        is_mirrored = bool(self.tree.backward[node]) if node != ROOT else False
        self.inside[node] = arrange(boxes, source, target, np.log2(size + 2.0), aspect, is_mirrored)

    def _aspect_of_frames(self, children: NDArray[np.int64]) -> float:
        """Returns the width per height of the outermost frames, which are wide if few are in a row, or if there are two rows."""
        is_backward = self.tree.backward[children]
        rows = 2 if is_backward.any() and not is_backward.all() else 1
        ahead = children[~is_backward] if rows == 2 else children
        open_count = sum(c in self.opened for c in ahead.tolist())
        return float(np.clip(rows * PAGE / max(open_count + (len(ahead) - open_count) / 2, 1.0), INSIDE, 5.0))

    def _size(self, node: int) -> tuple[float, float]:
        if node not in self.opened:
            return self._closed_size(node)
        inner_frame = self.inside[node]
        title = text_width(label(self.tree, node), LABEL) + 20
        return max(inner_frame.width, title) + 2 * MARGIN, inner_frame.height + TITLE + 2 * MARGIN

    def _closed_size(self, node: int) -> tuple[float, float]:
        name = text_width(label(self.tree, node), LABEL)
        if self.tree.kind[node] == OP:
            return max(name + 14, 34.0), 24.0
        return max(name, text_width(self._note(node), NOTE)) + 18, 40.0

    def _all_arrows(self, corner: dict[int, tuple[float, float]]) -> Arrows:
        """Returns the arrows of all frames, in the order of the numbers in `edge_of`."""
        columns: list[list[Any]] = [[], [], [], [], [], []]
        points: list[tuple[float, float]] = []
        pointer = [0]
        for node, (source, target, size, tensors) in self.arrows.items():
            children = np.array(self.tree.children[node], dtype=np.int32)
            left, top = corner[node]
            for path in self.inside[node].paths:
                points.extend((left + x, top + y) for x, y in path)
                pointer.append(len(points))
            for column, values in zip(
                columns, (children[source], children[target], size, tensors, self.inside[node].upright), strict=False
            ):
                column.append(values)
        flat = [np.concatenate(c) if c else np.zeros(0) for c in columns]
        return Arrows(
            source=flat[0].astype(np.int32),
            target=flat[1].astype(np.int32),
            bytes=flat[2].astype(np.int64),
            tensors=flat[3].astype(np.int64),
            pointer=np.array(pointer),
            points=np.array(points).reshape(-1, 2),
            upright=flat[4].astype(np.bool_),
            edge_of=self.edge_of,
        )


def made_per_op(graph: OpGraph) -> NDArray[np.int64]:
    """Returns the temporary and output bytes of each op, which it allocates when it starts; never all are live at once."""
    return graph.temp_bytes + graph.output_bytes


@dataclass(frozen=True, eq=False)
class Paint:
    """The colours of a scene by device.

    Per box: its main device, the share of its ops' time (or count) on each device, that time and its note, bytes sent and
    received, and whether it is on the critical path. Per arrow: bytes that go to another device (-1: all stay), and whether it
    has an edge of the critical path.
    """

    main: NDArray[np.int64]
    share: NDArray[np.float64]
    time_us: NDArray[np.float64]
    notes: tuple[str, ...]
    sent_bytes: NDArray[np.float64]
    received_bytes: NDArray[np.float64]
    critical: NDArray[np.bool_]
    crossing_bytes: NDArray[np.float64]
    critical_arrow: NDArray[np.bool_]


def placed_us(graph: OpGraph, timeline: Timeline | None) -> NDArray[np.float64]:
    """Returns float64[n]: the time of each op in a timeline of these ops, on its device; without one, that of the profile."""
    duration_us = graph.duration_us.copy()
    if timeline is not None and timeline.op_names == graph.names:
        duration_us[timeline.op] = timeline.end_us - timeline.start_us
    return duration_us


def device_shares(duration_us: NDArray[np.float64], scene: Scene, device: Integers, count: int) -> NDArray[np.float64]:
    """Returns float64[boxes, devices]: the share of each device in the time of a box's ops (in their number if it is 0)."""
    # Ops of 0 us also have a device, so every op counts a little.
    weight = duration_us + max(float(duration_us.mean()) if len(duration_us) else 0.0, 1e-9) * 1e-6
    cell = scene.owner.astype(np.int64) * count + device
    share: NDArray[Any] = np.bincount(cell, weight, minlength=len(scene) * count).reshape(len(scene), count)
    return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300))


def build_paint(
    graph: OpGraph, scene: Scene, timeline: Timeline, critical_ops: NDArray[np.int64] | None = None
) -> Paint:
    """Returns the colours of the scene under `timeline` of `graph`; `critical_ops` is a chain of ops in order of time."""
    device = np.zeros(graph.n, dtype=np.int64)
    device[timeline.op] = timeline.device
    duration_us = placed_us(graph, timeline)
    time_us = np.bincount(scene.owner, duration_us, minlength=len(scene)).astype(np.float64)
    share = device_shares(duration_us, scene, device, len(timeline.device_names))
    transfers, count = timeline.transfers, len(scene)
    size = graph.tensor_bytes[transfers.tensor]
    sent_bytes: NDArray[Any] = np.bincount(scene.owner[graph.tensor_producer[transfers.tensor]], size, minlength=count)
    across = device[graph.edge_source] != device[graph.consumers]
    tensors = max(graph.tensor_count, 1)
    key = np.unique(scene.owner[graph.consumers[across]].astype(np.int64) * tensors + graph.edge_tensor[across])
    received_bytes: NDArray[Any] = np.bincount(key // tensors, graph.tensor_bytes[key % tensors], minlength=count)
    chain = np.zeros(0, np.int64) if critical_ops is None else np.asarray(critical_ops, dtype=np.int64)
    critical = np.zeros(len(scene), dtype=np.bool_)
    critical[scene.owner[chain]] = True
    # Arrows with an edge from one op of the chain to the next; an op that waited for its device has none.
    on_chain = np.zeros(len(scene.arrows), dtype=np.bool_)
    follows = np.full(graph.n, -1, dtype=np.int64)
    follows[chain[:-1]] = chain[1:]
    on = (follows[graph.edge_source] == graph.consumers) & (scene.arrows.edge_of >= 0)
    on_chain[scene.arrows.edge_of[on]] = True
    return Paint(
        main=share.argmax(axis=1),
        share=share,
        time_us=time_us,
        notes=tuple(box_note(scene.tree, n, us) for n, us in zip(scene.nodes.tolist(), time_us.tolist(), strict=True)),
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        critical=critical,
        crossing_bytes=crossing_bytes(graph, scene.arrows, device),
        critical_arrow=on_chain,
    )


def crossing_bytes(graph: OpGraph, arrows: Arrows, device: Integers) -> NDArray[np.float64]:
    """Returns the bytes of each arrow's tensors that are read on another device than their producer's; -1 if all are read on it.

    Tensors to another device may have 0 bytes, as in task graphs whose messages have no size.
    """
    across = (device[graph.edge_source] != device[graph.consumers]) & (arrows.edge_of >= 0)
    tensors = max(graph.tensor_count, 1)
    key = np.unique(arrows.edge_of[across].astype(np.int64) * tensors + graph.edge_tensor[across])
    total = np.bincount(key // tensors, graph.tensor_bytes[key % tensors], minlength=len(arrows)).astype(np.float64)
    crosses = np.zeros(len(arrows), dtype=np.bool_)
    crosses[key // tensors] = True
    return np.where(crosses, total, -1.0)


def covering(scene: Scene, ops: Collection[int]) -> list[int]:
    """Returns the tree ids, ascending, of the boxes that hold any of `ops`."""
    if not len(ops):
        return []
    return np.unique(scene.nodes[scene.owner[np.fromiter(ops, dtype=np.int64)]]).tolist()
