"""A scene of nested boxes and its colours by device, as bytes for the canvas."""

from __future__ import annotations

import numpy as np

from ..graph import OpGraph
from ..viz.nested.scene import Paint, Scene
from ..viz.nested.svg import arrow_opacity, arrow_widths
from ..viz.nested.tree import OP
from .columns import Columns, pack, pack_texts


def scene_columns(graph: OpGraph, scene: Scene) -> Columns:
    """Returns the columns of boxes, frames and arrows as bytes; nodes are ids in the tree."""
    tree, nodes, frames, arrows = scene.tree, scene.nodes, scene.frames, scene.arrows
    single = np.where(tree.kind[nodes] == OP, tree.ops[np.minimum(tree.low[nodes], len(tree.ops) - 1)], -1)
    forward = np.where(single >= 0, graph.forward_of[single], -1)
    columns = pack(
        id=("i4", nodes),
        kind=("u1", tree.kind[nodes]),
        x=("f4", scene.x),
        y=("f4", scene.y),
        width=("f4", scene.width),
        height=("f4", scene.height),
        time=("f8", scene.duration_us),
        persistent=("f8", scene.persistent_bytes),
        made=("f8", scene.made_bytes),
        size=("i4", tree.high[nodes] - tree.low[nodes]),
        parent=("i4", tree.parent[nodes]),
        frame=("i4", frames),
        frame_box=("f4", scene.frame_box),
        frame_parent=("i4", tree.parent[frames]),
        frame_size=("i4", tree.high[frames] - tree.low[frames]),
        source=("i4", arrows.source),
        target=("i4", arrows.target),
        bytes=("f8", arrows.bytes),
        tensors=("i4", arrows.tensors),
        pointer=("i4", arrows.pointer),
        points=("f4", arrows.points),
        upright=("u1", arrows.upright),
        stroke=("f4", arrow_widths(arrows)),
        faint=("f4", [arrow_opacity(arrows)]),
    )
    columns["names"] = pack_texts(tree.names[i] for i in nodes.tolist())
    columns["labels"] = pack_texts(scene.label(i) for i in nodes.tolist())
    columns["notes"] = pack_texts(scene.notes)
    columns["frame_names"] = pack_texts(tree.names[i] for i in frames.tolist())
    columns["frame_labels"] = pack_texts(scene.label(i) for i in frames.tolist())
    columns["types"] = pack_texts("" if op < 0 else graph.op_types[op] for op in single.tolist())
    columns["forward"] = pack_texts("" if op < 0 else graph.names[op] for op in forward.tolist())
    return columns


def paint_columns(paint: Paint) -> Columns:
    """Returns the colours of boxes as bytes, with the shares of devices for boxes on several devices."""
    mixed_boxes = np.flatnonzero(paint.share.max(axis=1, initial=0.0) < 0.995)
    columns = pack(
        device=("u1", paint.main),
        time=("f8", paint.time_us),
        critical=("u1", paint.critical),
        sent=("f8", paint.sent_bytes),
        received=("f8", paint.received_bytes),
        mixed=("i4", mixed_boxes),
        share=("f4", paint.share[mixed_boxes]),
        crossing=("f8", paint.crossing_bytes),
        critical_arrow=("u1", paint.critical_arrow),
    )
    columns["notes"] = pack_texts(paint.notes)
    return columns
