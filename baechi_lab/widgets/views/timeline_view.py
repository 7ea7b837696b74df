"""The timeline view: the ops and transfers of each device over time, simulated above measured."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import traitlets

from ...graph import OpGraph, Timeline
from ...graph.device import short_device
from ...viz.colors import OTHER_COLOR, device_colors
from ...viz.shades import phase_shades, pipeline_phases
from ..bars import Bars, bar_columns, build_bars
from ..causes import cause, neighbours
from ..coloring import DEVICE, batches, choices, coloring, device_legend, phase_legend
from ..columns import pack, pack_texts
from ..pictures import page, timeline_picture
from ..schedule import Chain
from ..waiting import Waits, lane_columns, statistics, waits
from .base import CanvasView, Message, source


class TimelineView(CanvasView):
    """Draws a simulated `Timeline`, and others below it: measured, or of another placement; `selected` holds ops.

    `window` is the visible interval in microseconds, empty for the whole step; `range` is a marked interval. `focus` is the
    clicked op, or else a single selected one: `why` says for what it waited, `blamed` is the op for which it waited, and arrows
    come from `inputs` and go to `outputs`, ops of the graph. `color_by` is one of `colorings`, and `legend` names its classes.
    While `measuring`, `statistics` has a row per device for the range, or else for the window. With `fold_idle`, idle
    neighbours are one line. `lane_scale` scales the height of lanes; at 0 it depends on their number. `against` is one of the
    keys of `choices`, which are pairs of key and text.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> view = TimelineView()
    >>> view.show(g, [simulate(g, Cluster.uniform(2), Placement(device=[0, 1]))])
    """

    _esm = source(
        "js", "time_axis", "timeline_data", "timeline_strip", "timeline_parts", "timeline_draw", "timeline_view"
    )
    _css = source("css", "timeline_view")
    bars = traitlets.Dict().tag(sync=True)
    waits = traitlets.Dict().tag(sync=True)
    lanes: traitlets.List = traitlets.List().tag(sync=True)
    names = traitlets.Bytes(b"").tag(sync=True)
    span_us = traitlets.Float(0.0).tag(sync=True)
    makespans = traitlets.Dict().tag(sync=True)
    window = traitlets.List(traitlets.Float()).tag(sync=True)
    range = traitlets.List(traitlets.Float()).tag(sync=True)
    focus = traitlets.Int(-1).tag(sync=True)
    why = traitlets.Unicode("").tag(sync=True)
    blamed = traitlets.Int(-1).tag(sync=True)
    inputs = traitlets.List(traitlets.Int()).tag(sync=True)
    outputs = traitlets.List(traitlets.Int()).tag(sync=True)
    color_by = traitlets.Unicode(DEVICE).tag(sync=True)
    fold_idle = traitlets.Bool(True).tag(sync=True)
    lane_scale = traitlets.Float(0.0).tag(sync=True)
    colorings = traitlets.List(traitlets.Unicode(), [DEVICE]).tag(sync=True)
    kinds = traitlets.Bytes(b"").tag(sync=True)
    batches = traitlets.Bytes(b"").tag(sync=True)
    phases = traitlets.Bytes(b"").tag(sync=True)
    phase_colors = traitlets.List(traitlets.Unicode()).tag(sync=True)
    legend: traitlets.List = traitlets.List().tag(sync=True)
    measuring = traitlets.Bool(False).tag(sync=True)
    statistics: traitlets.List = traitlets.List().tag(sync=True)
    choices: traitlets.List = traitlets.List().tag(sync=True)
    against = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **traits: object):
        super().__init__(**traits)
        self.timelines: tuple[Timeline, ...] = ()
        self.titles: tuple[str, ...] = ()
        self.drawn_bars: Bars | None = None
        self.graph: OpGraph | None = None
        self._waits: tuple[Waits, ...] = ()
        self._chain: Chain | None = None
        self.observe(lambda _: self._explain(), ["selected", "focus"])
        self.observe(lambda _: self._color(), "color_by")
        self.observe(lambda _: self._measure(), ["measuring", "range", "window"])
        self.on_msg(self._send_trace)

    def show(
        self,
        graph: OpGraph,
        timelines: Sequence[Timeline],
        chain: Chain | None = None,
        titles: Sequence[str] = (),
        against: int = -1,
        groups: Sequence[str] = (),
    ) -> None:
        """Draws `timelines` of `graph`, the first on top; `chain` is the critical path of the first.

        `titles` name them, by default by their origin; number `against` is of another placement, and what moved is marked.
        `groups` name the machine or replica of each device.
        """
        self.timelines, self.graph, self._chain = tuple(timelines), graph, chain
        self.drawn_bars = bars = build_bars(graph, self.timelines, chain, titles, against, groups)
        self.titles = tuple(titles) or tuple(t.origin for t in self.timelines)
        self._waits = tuple(waits(graph, t) for t in self.timelines)
        with self.hold_sync():
            self.names = pack_texts(bars.names)
            self.devices = list(self.timelines[0].device_names) if self.timelines else []
            self.colors = device_colors(max((len(t.device_names) for t in self.timelines), default=0))
            if self.span_us != bars.span_us:
                self.window, self.range = [], []
            self.span_us = bars.span_us
            self.makespans = dict(zip(self.titles, (t.makespan_us for t in self.timelines), strict=True))
            self.lanes = list(bars.lanes)
            self.bars = bar_columns(bars)
            self.waits = lane_columns(self._waits, self.timelines, [lane["kind"] for lane in bars.lanes])
            if self.graph is not None:
                first = self.timelines[0] if self.timelines else None
                self.colorings = list(choices(self.graph, first))
                batch_coloring = batches(self.graph, first)
                self.batches = pack(b=("i4", batch_coloring))["b"] if (batch_coloring >= 0).any() else b""
                phases = pipeline_phases(first) if first is not None and first.op_names == self.graph.names else None
                self.phase_colors = [] if phases is None else [shade for c in self.colors for shade in phase_shades(c)]
                self.phases = b"" if phases is None else phases.tobytes()
                if self.color_by not in self.colorings:
                    self.color_by = DEVICE
            self._color()
            self._explain()
            self._measure()

    def _explain(self) -> None:
        """Sets the cause of the start of the clicked op, or of the only selected one, and its neighbours."""
        op = self.focus if self.focus in self.selected else self.selected[0] if len(self.selected) == 1 else -1
        in_graph = self.graph is not None and self.timelines and 0 <= op < self.graph.n
        start_cause = cause(self.graph, self.timelines[0], op) if in_graph and self.graph is not None else None
        with self.hold_sync():
            self.why = "" if start_cause is None else start_cause.sentence
            self.blamed = -1 if start_cause is None else start_cause.op
            self.inputs, self.outputs = neighbours(self.graph, op) if in_graph and self.graph is not None else ([], [])

    def _color(self) -> None:
        """Sets the classes of ops, and the legend."""
        if self.graph is None or self.drawn_bars is None:
            return
        with self.hold_sync():
            if self.color_by not in self.colorings or self.color_by == DEVICE:
                phase_keys = phase_legend(self.timelines[0]) if self.phases else []
                self.kinds, self.legend = b"", device_legend(self.timelines, self.colors) + phase_keys
                return
            on_path = self._chain.ops if self._chain is not None else ()
            op_coloring = coloring(self.graph, self.color_by, on_path, self.timelines[0] if self.timelines else None)
            unknown = len(self.drawn_bars.names) - self.graph.n  # measured ops that the graph does not have
            self.kinds = op_coloring.kind.tobytes() + bytes([len(op_coloring.labels)]) * unknown
            rest_entries = [("not in the graph", OTHER_COLOR, float("nan"))] if unknown else []
            rows = [*zip(op_coloring.labels, op_coloring.colors, op_coloring.time_us, strict=True), *rest_entries]
            self.legend = [{"label": a, "color": b, "time": c if c == c else 0.0} for a, b, c in rows]

    def _measure(self) -> None:
        """Sets the statistics of the marked range, or else of the visible interval."""
        if not self.measuring or self.graph is None:
            self.statistics = []
            return
        first, last = self.range or self.window or [0.0, self.span_us]
        rows = []
        for title, timeline, lane_waits in zip(self.titles, self.timelines, self._waits, strict=True):
            range_statistics = statistics(self.graph, timeline, lane_waits, first, last)
            for name, one in zip(timeline.device_names, range_statistics, strict=True):
                rows.append({"title": title, "device": short_device(name), **asdict(one)})
        self.statistics = rows

    def dim_all_but(self, ops: object) -> None:
        """Draws bars of other ops than `ops` faintly; None draws everything."""
        if ops is None or self.drawn_bars is None:
            self.dim = b""
            return
        dark = np.ones(len(self.drawn_bars.names), dtype=np.uint8)
        dark[np.asarray(ops, dtype=np.int64)] = 0
        self.dim = dark.tobytes()

    def chrome_trace(self) -> bytes:
        """Returns the first timeline as a Chrome trace, in bytes."""
        if not self.timelines:
            return b""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self.timelines[-1].to_chrome_trace(os.fspath(path))
            return path.read_bytes()

    def _send_trace(self, _: object, content: Message, __: object) -> None:
        if content["type"] == "trace" and self.timelines:
            download = {
                "type": "download",
                "name": f"{self.timelines[-1].origin}.trace.json",
                "mime": "application/json",
            }
            self.send(download, [self.chrome_trace()])
            self.status = (
                f"trace of the {self.timelines[-1].origin} timeline written; open it in Perfetto or chrome://tracing"
            )

    def picture(self) -> str:
        return "" if self.drawn_bars is None else page([("Timeline", *timeline_picture(self.drawn_bars, self.devices))])
