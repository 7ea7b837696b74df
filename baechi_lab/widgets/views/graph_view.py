"""The graph view: nested boxes by name scope, opened in place, coloured by device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import traitlets

from ...graph import OpGraph, Timeline
from ...viz.colors import device_colors
from ...viz.nested.scene import Paint, Scene, build_paint, build_scene, covering, placed_us
from ...viz.nested.tree import ROOT, Tree, build_tree
from ..columns import pack, pack_texts
from ..heat import HEATS, MEANINGS, HeatSource, format_heat
from ..move_previews import MovePreview
from ..moves import all_moving_ops, in_words, with_colocated_ops
from ..pictures import graph_picture, page
from ..scene_columns import paint_columns, scene_columns
from .base import CanvasView, Message, source

FIRST_NODES, MOST_NODES = 24, 300
"""Most boxes of the first picture, and of any picture."""
MOST_HITS = 200
"""Most names that a search lists."""


class GraphView(CanvasView):
    """Draws an `OpGraph` coloured by the devices of a `Timeline`. A box opens as a frame with the boxes in it.

    `selected` holds the boxes with selected ops, `selected_ops` these ops of the original graph: the clicked ones
    (`clicked_ops`), and those that move with them (groups of the coarse graph, colocation groups). `selection_text` describes in
    words the ops that a move would move, and `chosen_us` is the time of the selected ops where they are placed. `heat_by` is the
    one of `heats` by which boxes are coloured; `heat` is each box's share of the hottest one. Moves and history commands arrive
    as messages and are passed to `on_command(name, content)`; `on_drawn()` is called when a page has drawn its first picture.
    At most `MOST_NODES` boxes are drawn.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> view = GraphView()
    >>> view.show_graph(g)
    >>> view.show_timeline(simulate(g, Cluster.uniform(2), Placement(device=[0, 1])))
    >>> view.select_ops([1])
    >>> view.selection_text
    'op1'
    """

    _esm = source("js", "graph_data", "graph_draw", "graph_view")
    _css = source("css", "graph_view")
    nodes = traitlets.Dict().tag(sync=True)
    paint = traitlets.Dict().tag(sync=True)
    marks = traitlets.Dict().tag(sync=True)
    focus = traitlets.List(traitlets.Int()).tag(sync=True)
    selection_text = traitlets.Unicode("").tag(sync=True)
    chosen_us = traitlets.Float(0.0).tag(sync=True)
    heat_by = traitlets.Unicode("").tag(sync=True)
    heats = traitlets.List(traitlets.Unicode()).tag(sync=True)
    heat = traitlets.Dict().tag(sync=True)
    found: traitlets.Dict = traitlets.Dict().tag(sync=True)
    previews: traitlets.Dict = traitlets.Dict().tag(sync=True)
    height = traitlets.Int(380).tag(sync=True)

    def __init__(self, **traits: object):
        super().__init__(**traits)
        self.graph: OpGraph | None = None
        self.group_of: Any = None
        self.tree: Tree
        self.scene: Scene | None = None
        self.expanded: tuple[int, ...] = ()
        self._timeline: Timeline | None = None
        self._critical: Any = None
        self._paint: Paint | None = None
        self._heat_source: HeatSource | None = None
        self._op_heat: Any = None
        self._lit: object = None
        self._ops: Any = np.zeros(0, dtype=np.int64)
        self.clicked_ops: list[int] = []
        self._hits: list[int] = []
        self._hit_index = -1
        self.on_command: Any = None
        self.on_drawn: Callable[[], None] = lambda: None
        self.on_msg(self._execute_message)
        self.observe(self._select_boxes, "selected")
        self.observe(lambda _: self._heat(anew=True), "heat_by")

    # -- records in ----------------------------------------------------------------------------------

    def show_graph(self, graph: OpGraph, coarse: OpGraph | None = None) -> None:
        """Draws the first picture of another graph, without a selection. Groups of `coarse` are selected and moved as one."""
        self.graph, self.tree = graph, build_tree(graph)
        self.group_of = None if coarse is None else coarse.group_of
        self._timeline = self._paint = self._lit = self.scene = self._heat_source = self._op_heat = None
        self._set_ops([])
        self._hits, self.found = [], {}
        self.open_nodes(self.tree.open_until(FIRST_NODES))

    def show_groups(self, coarse: OpGraph | None) -> None:
        self.group_of = None if coarse is None else coarse.group_of

    def show_timeline(self, timeline: Timeline, critical_ops: object = None) -> None:
        """Colours the graph by the devices of `timeline`."""
        self._timeline, self._critical = timeline, critical_ops
        with self.hold_sync():
            self.devices = list(timeline.device_names)
            self.colors = device_colors(len(timeline.device_names))
            self._repaint()
            self._mark()

    def show_heat(self, heat_source: HeatSource) -> None:
        """Sets the source of heats; the chosen heat (`heat_by`) is summed over boxes and drawn."""
        self._heat_source, self.heats = heat_source, list(HEATS)
        self._heat(anew=True)

    def show_previews(self, previews: Mapping[str, MovePreview]) -> None:
        """Shows on the button of each device the effect of moving the selection there."""
        self.previews = {name: [preview.change, preview.sentence] for name, preview in previews.items()}

    def _heat(self, anew: bool = False) -> None:
        """Sets the heat of each box as a share of the hottest; none if no heat is chosen."""
        if self.scene is None or self._heat_source is None or self.heat_by not in HEATS:
            self.heat, self._op_heat = {}, None
            return
        if anew or self._op_heat is None:
            self._op_heat = self._heat_source(self.heat_by)
        heat = np.bincount(self.scene.owner, self._op_heat, minlength=len(self.scene))
        largest_heat = float(heat.max(initial=0.0))
        self.heat = {
            **pack(share=("f4", heat / largest_heat if largest_heat > 0 else heat)),
            "texts": pack_texts(format_heat(self.heat_by, value) for value in heat.tolist()),
            "by": self.heat_by,
            "most": format_heat(self.heat_by, largest_heat),
            "meaning": MEANINGS[self.heat_by],
        }

    def open_nodes(self, expanded: Iterable[int]) -> None:
        """Draws with these tree nodes open, the newest last; the oldest are closed if there would be too many boxes."""
        if self.graph is None:
            return
        asked_nodes = tuple(dict.fromkeys(int(n) for n in expanded))
        newest = {asked_nodes[-1], *self.tree.path(asked_nodes[-1])} if asked_nodes else set()
        within = list(asked_nodes)
        while len(self.tree.visible(set(within))) > MOST_NODES and len(within) > len(newest & set(within)):
            within.remove(next(n for n in within if n not in newest))
        self.expanded = tuple(within)
        self.scene = build_scene(self.graph, self.tree, self.expanded)
        with self.hold_sync():
            self.nodes = scene_columns(self.graph, self.scene)
            self._repaint()
            self._heat()
            self._set_ops(self._ops)
            self.dim_all_but(self._lit)

    def dim_all_but(self, ops: object) -> None:
        """Draws boxes that hold none of `ops` faintly; None draws everything."""
        self._lit = ops
        if ops is None or self.scene is None:
            self.dim = b""
            return
        lit = np.zeros(len(self.scene), dtype=bool)
        lit[self.scene.owner[np.asarray(ops, dtype=np.int64)]] = True
        self.dim = (~lit).astype(np.uint8).tobytes()

    def _repaint(self) -> None:
        if self.graph is None or self.scene is None or self._timeline is None:
            return
        self._paint = build_paint(self.graph, self.scene, self._timeline, self._critical)
        self.paint = paint_columns(self._paint)

    # -- selection -----------------------------------------------------------------------------------

    @property
    def selected_ops(self) -> list[int]:
        """The selected ops of the original graph, ascending."""
        return self._ops.tolist()  # type: ignore[no-any-return]

    @property
    def moved_ops(self) -> list[int]:
        """The ops that a move of the selection moves: the selected ones and those of their colocation groups, ascending."""
        return self.selected_ops if self.graph is None else with_colocated_ops(self.graph, self._ops).tolist()

    def _select_boxes(self, change: Any) -> None:
        """Selects the ops of boxes that were selected in the browser, and the ops that move with them.

        If boxes are added or removed, the other boxes keep their selected ops.
        """
        if self.graph is None or self.scene is None:
            return
        before, clicked_boxes = set(covering(self.scene, self.selected_ops)), set(change.new)
        if clicked_boxes != before:
            if len(clicked_boxes) > 1 and (clicked_boxes > before or clicked_boxes < before):
                kept_boxes = clicked_boxes & before
            else:
                kept_boxes = set()
            kept_ops = self._ops[np.isin(self.scene.nodes[self.scene.owner[self._ops]], list(kept_boxes))]
            self.choose(np.concatenate([kept_ops, *(self.tree.members(node) for node in clicked_boxes - kept_boxes)]))

    def choose(self, ops: Iterable[int]) -> None:
        """Selects ops and those that move with them, and describes these."""
        if self.graph is not None:
            self._set_ops(all_moving_ops(self.graph, ops, self.group_of), ops)

    def select_ops(self, ops: Iterable[int]) -> None:
        """Selects exactly these ops."""
        self._set_ops(ops)

    def _set_ops(self, ops: Iterable[int], clicked: Iterable[int] | None = None) -> None:
        self._ops = np.unique(np.fromiter(ops, dtype=np.int64))
        if self.graph is None or self.scene is None:
            return
        asked_ops = self._ops if clicked is None else np.unique(np.fromiter(clicked, dtype=np.int64))
        self.clicked_ops = asked_ops.tolist()
        with self.hold_sync():
            moved_ops = with_colocated_ops(self.graph, self._ops)
            self.selection_text = in_words(self.graph, self.tree, asked_ops, moved_ops, self.group_of)
            self.selected = covering(self.scene, self._ops.tolist())
            self._mark()

    def _mark(self) -> None:
        """Counts the selected ops and the found ops of each box, and adds up the time of the selected ops."""
        if self.scene is None:
            return
        count, owner = len(self.scene), self.scene.owner
        selected_counts = np.bincount(owner[self._ops], minlength=count)
        hits = np.bincount(owner[np.array(self._hits, dtype=np.int64)], minlength=count)
        self.marks = pack(chosen=("i4", selected_counts), hits=("i4", hits))
        if self.graph is not None:
            self.chosen_us = float(placed_us(self.graph, self._timeline)[self._ops].sum())

    def reveal(self, ops: Iterable[int]) -> None:
        """Selects ops, with those that move with them, and opens the boxes around the first, so that it is visible."""
        op_list = list(ops)
        if self.graph is None or not op_list:
            return
        leaf = int(self.tree.leaf_of[op_list[0]])
        self.open_nodes((*self.expanded, *self.tree.path(leaf)[1:]))
        self.choose(op_list)
        self.focus = []  # so that the same op can be revealed again
        self.focus = covering(self.scene, op_list) if self.scene is not None else []

    def search(self, text: str, following: bool = False) -> list[int]:
        """Lists and marks the ops whose name contains `text`, in any case, an equal name first; they are not selected.

        With `following`, each call reveals the next of them.
        """
        if self.graph is None:
            return []
        lowercase = text.lower()
        names = self.graph.names
        hits = [i for i, name in enumerate(names) if lowercase and lowercase in name.lower()]
        hits.sort(key=lambda i: names[i].lower() != lowercase)
        self._hit_index = (
            (self._hit_index + 1) % max(len(hits), 1) if following and hits == self._hits else 0 if following else -1
        )
        self._hits = hits
        along = len(all_moving_ops(self.graph, hits, self.group_of))
        matches = [[i, self.graph.names[i]] for i in hits[:MOST_HITS]]
        hit_index = self._hit_index if following and hits else -1
        self.found = (
            {"text": text, "total": len(hits), "moving": along, "rows": matches, "at": hit_index} if text else {}
        )
        self._mark()
        if following and hits:
            self.reveal([hits[self._hit_index]])
        return hits

    # -- commands from the browser -------------------------------------------------------------------

    def _execute_message(self, _: object, content: dict[str, object], __: object) -> None:
        if content["type"] == "drawn":
            self.on_drawn()
        elif self.on_command is not None and content["type"] in ("move", "undo", "redo"):
            self.on_command(content["type"], content)
        else:
            self.command(content)

    def command(self, content: Message) -> None:
        """Executes one message of the view."""
        kind = content["type"]
        if kind == "search":
            self.search(str(content["text"]), bool(content.get("next")))
        elif kind == "go":
            self._hit_index = self._hits.index(int(content["op"])) if int(content["op"]) in self._hits else -1
            self.found = {**self.found, "at": self._hit_index}
            self.reveal([int(content["op"])])
        elif kind == "select_found":
            self.choose(self._hits)
        elif kind == "open":
            self.open_inside([int(n) for n in content["nodes"]])
        elif kind == "close":
            self.fold([int(n) for n in content["nodes"]])
        elif kind == "open_all":
            visible_nodes = self.tree.visible(set(self.expanded))
            count, open_nodes = len(visible_nodes), []
            for node in visible_nodes[
                np.argsort(self.tree.low[visible_nodes] - self.tree.high[visible_nodes], kind="stable")
            ].tolist():
                added_count = len(self.tree.children[node]) - 1
                if added_count >= 0 and count + added_count <= MOST_NODES:
                    open_nodes.append(node)
                    count += added_count
            self.open_inside(open_nodes)
        elif kind == "overview":
            self.open_nodes(self.tree.open_until(FIRST_NODES))

    def open_inside(self, nodes: list[int]) -> None:
        """Opens boxes in place."""
        fresh = [n for n in nodes if self.tree.children[n] and n not in self.expanded]
        if not fresh:
            return
        before = set(self.expanded)
        self.open_nodes((*self.expanded, *fresh))
        closed_count = len(before - set(self.expanded))
        if closed_count:
            boxes = "box was" if closed_count == 1 else "boxes were"
            self.status = f"at most {MOST_NODES} boxes are drawn: {closed_count} {boxes} closed"

    def fold(self, nodes: list[int]) -> None:
        """Closes each frame, or the frame around each box."""
        around = {n if n in self.expanded else int(self.tree.parent[n]) for n in nodes} - {ROOT, -1}
        inside = {e for e in self.expanded for a in around if a in (e, *self.tree.path(e))}
        if around:
            self.open_nodes(e for e in self.expanded if e not in inside)

    def picture(self) -> str:
        if self.scene is None or self._paint is None:
            return ""
        return page([("Graph", *graph_picture(self.scene, self._paint, self.devices))])
