"""The graph view: the op tree's visible nodes in layers, coloured by device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import traitlets

from ...graph import OpGraph, Timeline
from ...viz.colors import device_colors
from ..hierarchy import OP, ROOT, build_tree
from ..pictures import graph_picture, page
from ..scene import Paint, Scene, build_paint, build_scene, covering, paint_columns, scene_columns
from .base import CanvasView, source

FIRST_NODES, MOST_NODES = 260, 5000
"""Visible nodes in the first picture, and after "Open all"."""


class GraphView(CanvasView):
    """Draws an `OpGraph` under a `Timeline`; groups of the coarse graph and name scopes open and close.

    `selected` holds tree nodes; `selected_ops` the ops of the original graph below them. Moves and history commands
    arrive as messages and are passed to `on_command(name, content)`.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> view = GraphView()
    >>> view.show_graph(g)
    >>> view.show_timeline(simulate(g, Cluster.uniform(2), Placement(device=[0, 1])))
    """

    _esm = source("js", "graph_data", "graph_view")
    _css = source("css", "graph_view")
    nodes = traitlets.Dict().tag(sync=True)
    paint = traitlets.Dict().tag(sync=True)
    focus = traitlets.List(traitlets.Int()).tag(sync=True)
    editable = traitlets.Bool(True).tag(sync=True)
    height = traitlets.Int(340).tag(sync=True)

    def __init__(self, **traits: Any):
        super().__init__(**traits)
        self.graph: OpGraph | None = None
        self.scene: Scene | None = None
        self.expanded: frozenset[int] = frozenset()
        self._timeline: Timeline | None = None
        self._critical: Any = None
        self._paint: Paint | None = None
        self._found: tuple[str, int] = ("", -1)
        self.on_command: Any = None
        self.on_msg(self._received)

    # -- records in ----------------------------------------------------------------------------------

    def show_graph(self, graph: OpGraph, coarse: OpGraph | None = None) -> None:
        """Draw another graph: its overview, nothing selected."""
        self.graph, self.tree = graph, build_tree(graph, coarse)
        self._timeline = self._paint = None
        self.selected = []
        self._lit = None
        self.open_nodes(self.tree.open_until(FIRST_NODES))

    def show_timeline(self, timeline: Timeline, critical_ops: Any = None) -> None:
        """Colour the graph by the devices of `timeline`."""
        self._timeline, self._critical = timeline, critical_ops
        with self.hold_sync():
            self.devices = list(timeline.device_names)
            self.colors = device_colors(len(timeline.device_names))
            self._repaint()

    def open_nodes(self, expanded: Iterable[int]) -> None:
        """Draw with exactly these tree nodes open."""
        if self.graph is None:
            return
        chosen = self.selected_ops if self.scene is not None and self.selected else []
        self.expanded = frozenset(expanded)
        self.scene = build_scene(self.graph, self.tree, self.expanded)
        with self.hold_sync():
            self.nodes = scene_columns(self.graph, self.scene)
            self._repaint()
            self.selected = covering(self.scene, chosen)
            self.dim_all_but(self._lit)

    def dim_all_but(self, ops: Any) -> None:
        """Draw nodes that hold none of `ops` faintly; None draws everything."""
        self._lit = ops
        if ops is None or self.scene is None:
            self.dim = b""
            return
        lit = np.zeros(len(self.scene), dtype=bool)
        lit[self.scene.owner[np.asarray(ops, dtype=np.int64)]] = True
        self.dim = (~lit).astype(np.uint8).tobytes()

    _lit: Any = None

    def _repaint(self) -> None:
        if self.graph is None or self.scene is None or self._timeline is None:
            return
        self._paint = build_paint(self.graph, self.scene, self._timeline, self._critical)
        self.paint = paint_columns(self._paint)

    # -- selection -----------------------------------------------------------------------------------

    @property
    def selected_ops(self) -> list[int]:
        """The original ops below the selected nodes, ascending."""
        inside = [self.tree.members(node) for node in self.selected] if self.graph is not None else []
        return np.unique(np.concatenate(inside)).tolist() if inside else []

    def select_ops(self, ops: Iterable[int]) -> None:
        """Select the visible nodes that hold `ops`."""
        if self.scene is not None:
            self.selected = covering(self.scene, list(ops))

    def reveal(self, ops: Iterable[int]) -> None:
        """Select `ops` and bring them into the picture."""
        self.select_ops(ops)
        self.focus = list(self.selected)

    def search(self, text: str, following: bool = False) -> list[int]:
        """Ops whose name contains `text` (case does not matter); selects them, or each in turn if `following`."""
        if self.graph is None or not text:
            self.selected = []
            return []
        wanted = text.lower()
        found = [i for i, name in enumerate(self.graph.names) if wanted in name.lower()]
        turn = (self._found[1] + 1) % max(len(found), 1) if following and self._found[0] == wanted else 0
        self._found = (wanted, turn if following else -1)
        self.reveal([found[turn]] if following and found else found)
        shown = (
            f"op {turn + 1} of {len(found)}: {self.graph.names[found[turn]]}"
            if following and found
            else f"{len(found)} ops"
        )
        self.status = f"{shown} match {text!r}" if found else f"no op's name contains {text!r}"
        return found

    # -- commands from the browser -------------------------------------------------------------------

    def _received(self, _: Any, content: dict[str, Any], __: Any) -> None:
        if self.on_command is not None and content["type"] in ("move", "undo", "redo"):
            self.on_command(content["type"], content)
        else:
            self.command(content)

    def command(self, content: dict[str, Any]) -> None:
        """Carry out one message of the view."""
        kind = content["type"]
        if kind == "search":
            self.search(str(content["text"]), bool(content.get("next")))
        elif kind == "open":
            self.open_inside([int(n) for n in content["nodes"]])
        elif kind == "close":
            self.fold([int(n) for n in content["nodes"]])
        elif kind == "open_all":
            self.open_nodes(self.tree.open_all(MOST_NODES))
        elif kind == "overview":
            self.open_nodes(self.tree.open_until(FIRST_NODES))

    def open_inside(self, nodes: list[int]) -> None:
        """Open scopes and groups; more than `MOST_NODES` visible nodes are refused."""
        opened = self.expanded | {n for n in nodes if len(self.tree.children[n])}
        count = len(self.tree.visible(opened))
        if count > MOST_NODES:
            self.status = f"opening would show {count} nodes; at most {MOST_NODES} are drawn, open a smaller part"
        elif opened != self.expanded:
            self.open_nodes(opened)

    def fold(self, nodes: list[int]) -> None:
        """Close the scope or group around each node."""
        around = {int(self.tree.parent[n]) for n in nodes} - {ROOT, -1}
        inside = {e for e in self.expanded for a in around if a in (e, *self.tree.path(e))}
        if around:
            self.open_nodes(self.expanded - inside)
            self.status = f"{len(self.nodes_shown)} nodes shown"

    @property
    def nodes_shown(self) -> list[int]:
        """Tree ids of the visible nodes."""
        return [] if self.scene is None else self.scene.nodes.tolist()

    @property
    def ops_shown(self) -> int:
        """How many single ops are visible."""
        return int((self.tree.kind[self.scene.nodes] == OP).sum()) if self.scene is not None else 0

    def picture(self) -> str:
        if self.scene is None or self._paint is None:
            return ""
        return page([("Graph", *graph_picture(self.scene, self._paint, self.devices))])
