"""The timeline view: what each device computes and moves, simulated above measured."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import traitlets

from ...graph import OpGraph, Timeline
from ...viz.colors import device_colors
from ..bars import Bars, bar_columns, build_bars
from ..causes import cause, neighbours
from ..columns import pack_texts
from ..pictures import page, timeline_picture
from ..schedule import Chain
from .base import CanvasView, source


class TimelineView(CanvasView):
    """Draws one simulated and perhaps one measured `Timeline`; `selected` holds ops of the graph.

    `window` is the visible stretch of time in microseconds, empty for all of it. Of `focus`, the op that was
    clicked, or else of a single selected one, `why` says what it waited for, and arrows come from `inputs` and go to
    `outputs`, ops of the graph.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> view = TimelineView()
    >>> view.show(g, [simulate(g, Cluster.uniform(2), Placement(device=[0, 1]))])
    """

    _esm = source("js", "time_axis", "timeline_data", "timeline_view")
    _css = source("css", "timeline_view")
    bars = traitlets.Dict().tag(sync=True)
    lanes: traitlets.List = traitlets.List().tag(sync=True)
    names = traitlets.Bytes(b"").tag(sync=True)
    span_us = traitlets.Float(0.0).tag(sync=True)
    makespans = traitlets.Dict().tag(sync=True)
    window = traitlets.List(traitlets.Float()).tag(sync=True)
    focus = traitlets.Int(-1).tag(sync=True)
    why = traitlets.Unicode("").tag(sync=True)
    inputs = traitlets.List(traitlets.Int()).tag(sync=True)
    outputs = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, **traits: Any):
        super().__init__(**traits)
        self.timelines: tuple[Timeline, ...] = ()
        self.drawn: Bars | None = None
        self.graph: OpGraph | None = None
        self.observe(lambda _: self._explain(), ["selected", "focus"])
        self.on_msg(self._received)

    def show(self, graph: OpGraph, timelines: Sequence[Timeline], chain: Chain | None = None) -> None:
        """Draw `timelines` of `graph`, the first on top; `chain` is the critical path of the first."""
        self.timelines, self.graph = tuple(timelines), graph
        self.drawn = bars = build_bars(graph, self.timelines, chain)
        with self.hold_sync():
            self.names = pack_texts(bars.names)
            self.devices = list(self.timelines[0].device_names) if self.timelines else []
            self.colors = device_colors(max((len(t.device_names) for t in self.timelines), default=0))
            if self.span_us != bars.span_us:
                self.window = []
            self.span_us = bars.span_us
            self.makespans = {t.origin: t.makespan_us for t in self.timelines}
            self.lanes = list(bars.lanes)
            self.bars = bar_columns(bars)
            self._explain()

    def _explain(self) -> None:
        """Why the clicked op, or the only selected one, started when it did, and its neighbours."""
        op = self.focus if self.focus in self.selected else self.selected[0] if len(self.selected) == 1 else -1
        known = self.graph is not None and self.timelines and 0 <= op < self.graph.n
        found = cause(self.graph, self.timelines[0], op) if known and self.graph is not None else None
        with self.hold_sync():
            self.why = "" if found is None else found.sentence
            self.inputs, self.outputs = neighbours(self.graph, op) if known and self.graph is not None else ([], [])

    def dim_all_but(self, ops: Any) -> None:
        """Draw bars of other ops than `ops` faintly; None draws everything."""
        if ops is None or self.drawn is None:
            self.dim = b""
            return
        dark = np.ones(len(self.drawn.names), dtype=np.uint8)
        dark[np.asarray(ops, dtype=np.int64)] = 0
        self.dim = dark.tobytes()

    def chrome_trace(self) -> bytes:
        """The first timeline as a Chrome trace, in bytes."""
        if not self.timelines:
            return b""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self.timelines[-1].to_chrome_trace(os.fspath(path))
            return path.read_bytes()

    def _received(self, _: Any, content: dict[str, Any], __: Any) -> None:
        if content["type"] == "trace" and self.timelines:
            named = {"type": "download", "name": f"{self.timelines[-1].origin}.trace.json", "mime": "application/json"}
            self.send(named, [self.chrome_trace()])
            self.status = (
                f"trace of the {self.timelines[-1].origin} timeline written; open it in Perfetto or chrome://tracing"
            )

    def picture(self) -> str:
        return "" if self.drawn is None else page([("Timeline", *timeline_picture(self.drawn, self.devices))])
