"""The memory view: the live bytes of each device over time, with its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import traitlets

from ...graph import Timeline
from ...graph.device import short_device
from ...viz.colors import device_colors
from ...viz.shades import LEGEND, shades
from ..levels import Row, empty_devices_in_words, level_columns, live_bytes, memory_rows, peaks
from ..pictures import memory_picture, page
from .base import CanvasView, Message, source

MOST_LIVE = 12
"""Most live tensors that are listed at a time."""
LIMIT_IN_VIEW = 3.0
"""A limit is on the scale up to this multiple of the largest peak; a larger one would make the chart a flat line."""


class MemoryView(CanvasView):
    """Draws the memory logs of a simulated and perhaps a measured `Timeline`; a click on a peak selects its op.

    A click elsewhere lists the live tensors at that time (`live`). There is a row per device and timeline, but none of a device
    that holds nothing, which `empty_devices` names. All other traits that are lists have one item per row. A simulated row has
    a dotted line at its device's measured peak.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> view = MemoryView()
    >>> view.show(simulate(g, Cluster.uniform(2), Placement(device=[0, 1])))
    >>> view.peaks[0]["bytes"]
    8
    """

    _esm = source("js", "time_axis", "memory_view")
    _css = source("css", "memory_view")
    levels = traitlets.Dict().tag(sync=True)
    peaks: traitlets.List = traitlets.List().tag(sync=True)
    limit_bytes: traitlets.List = traitlets.List().tag(sync=True)
    largest_bytes = traitlets.Float(1.0).tag(sync=True)
    shades: traitlets.List = traitlets.List().tag(sync=True)
    legend = traitlets.List(traitlets.Unicode(), LEGEND).tag(sync=True)
    span_us = traitlets.Float(0.0).tag(sync=True)
    makespan_us: traitlets.List = traitlets.List().tag(sync=True)
    origins: traitlets.List = traitlets.List().tag(sync=True)
    window = traitlets.List(traitlets.Float()).tag(sync=True)
    live = traitlets.Dict().tag(sync=True)
    empty_devices = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **traits: object):
        super().__init__(**traits)
        self.timelines: tuple[Timeline, ...] = ()
        self.rows: tuple[Row, ...] = ()
        self.on_msg(self._list_live_tensors)

    def show(self, timelines: Timeline | Sequence[Timeline], span_us: float | None = None) -> None:
        """Draws `timelines`, the first above the second; `span_us` is the length of the time axis (by default the longest)."""
        self.timelines = (timelines,) if isinstance(timelines, Timeline) else tuple(timelines)
        self.rows = rows = memory_rows(self.timelines)
        peak_list = peaks(rows)
        limits, peak = [row.limit_bytes for row in rows], float(max((entry.bytes for entry in peak_list), default=0))
        colors = device_colors(max((row.device + 1 for row in rows), default=0))
        limits_in_view = [limit for limit in limits if limit <= LIMIT_IN_VIEW * peak]
        # A limit above the scale is a line at the upper edge, which must not touch the peak of a device that has room.
        headroom = 1.12 if len(limits_in_view) == len(limits) else 1.25
        with self.hold_sync():
            self.devices = [short_device(row.timeline.device_names[row.device]) for row in rows]
            self.origins = [row.timeline.origin for row in rows]
            self.colors = [colors[row.device] for row in rows]
            self.shades = [shades(color) for color in self.colors]
            self.limit_bytes = limits
            self.largest_bytes = max(peak * headroom, max(limits_in_view, default=0) * 1.05, 1.0)
            self.makespan_us = [row.timeline.makespan_us for row in rows]
            span = (
                max((timeline.makespan_us for timeline in self.timelines), default=0.0) if span_us is None else span_us
            )
            if self.span_us != span:
                self.window = []
            self.span_us = span
            self.empty_devices = empty_devices_in_words(rows)
            self.peaks = [asdict(entry) for entry in peak_list]
            self.levels = level_columns(rows)
            self.live = {}

    def show_live(self, row: int, time_us: float) -> None:
        """Lists the largest live tensors of a row's device at a time: op, name, category, bytes."""
        if not 0 <= row < len(self.rows):
            self.live = {}
            return
        visible_row = self.rows[row]
        live = live_bytes(visible_row.timeline, visible_row.device, time_us)
        index = {name: op for op, name in enumerate(self.timelines[0].op_names)}
        self.live = {
            "row": row,
            "time_us": time_us,
            "bytes": sum(tensor.bytes for tensor in live),
            "count": len(live),
            "rows": [
                [index.get(tensor.name, -1), tensor.name, tensor.category, tensor.bytes] for tensor in live[:MOST_LIVE]
            ],
        }

    def _list_live_tensors(self, _: object, content: Message, __: object) -> None:
        if content.get("type") == "live":
            self.show_live(int(content["row"]), float(content["time_us"]))

    def picture(self) -> str:
        return page([("Memory", *memory_picture(self.timelines))]) if self.timelines else ""
