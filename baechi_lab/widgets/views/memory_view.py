"""The memory view: what each device holds over time, against its limit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import traitlets

from ...graph import Timeline
from ...viz.colors import device_colors
from ..levels import level_columns, peaks
from ..pictures import memory_picture, page
from ..shades import LEGEND, shades
from .base import CanvasView, source

LIMIT_IN_VIEW = 3.0
"""A limit up to this many times the largest peak is on the scale; beyond, the chart would be a flat line."""


class MemoryView(CanvasView):
    """Draws the memory log of a `Timeline`; a click on a peak selects the op that caused it.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> view = MemoryView()
    >>> view.show(simulate(g, Cluster.uniform(2), Placement(device=[0, 1])))
    >>> view.peaks[0]["bytes"]
    8
    """

    _esm = source("js", "memory_view")
    _css = source("css", "memory_view")
    levels = traitlets.Dict().tag(sync=True)
    peaks: traitlets.List = traitlets.List().tag(sync=True)
    limit_bytes: traitlets.List = traitlets.List().tag(sync=True)
    largest_bytes = traitlets.Float(1.0).tag(sync=True)
    shades: traitlets.List = traitlets.List().tag(sync=True)
    legend = traitlets.List(traitlets.Unicode(), LEGEND).tag(sync=True)
    span_us = traitlets.Float(0.0).tag(sync=True)
    makespan_us = traitlets.Float(0.0).tag(sync=True)
    window = traitlets.List(traitlets.Float()).tag(sync=True)

    def __init__(self, **traits: Any):
        super().__init__(**traits)
        self.timeline: Timeline | None = None

    def show(self, timeline: Timeline, span_us: float | None = None) -> None:
        """Draw `timeline`; `span_us` is the length of the time axis (the makespan by default)."""
        self.timeline = timeline
        limits, peak = timeline.memory_bytes.tolist(), float(timeline.peak_bytes.max(initial=0))
        near = [x for x in limits if x <= LIMIT_IN_VIEW * peak]
        with self.hold_sync():
            self.devices = list(timeline.device_names)
            self.colors = device_colors(len(timeline.device_names))
            self.shades = [shades(color) for color in self.colors]
            self.limit_bytes = limits
            self.largest_bytes = max(peak * 1.12, max(near, default=0) * 1.05, 1.0)
            self.makespan_us = timeline.makespan_us
            span = timeline.makespan_us if span_us is None else span_us
            if self.span_us != span:
                self.window = []
            self.span_us = span
            self.peaks = [asdict(p) for p in peaks(timeline)]
            self.levels = level_columns(timeline)

    def picture(self) -> str:
        return "" if self.timeline is None else page([("Memory", *memory_picture(self.timeline))])
