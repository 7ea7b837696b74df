"""The verdict: one bar from 0 to the end of the step with the parts of its critical path, and the lower bound as a tick."""

from __future__ import annotations

from collections.abc import Callable

import traitlets

from ...graph.device import short_device
from ...graph.units import format_us
from ...step_summary import step_parts
from ...viz.colors import device_colors, text_on
from ..compute import Outcome
from .base import Message, View, source

WORDS = {"transfer": "transfers", "queue": "queueing", "idle": "idle"}
MEANINGS = {
    "compute": "ops of the critical path run on this device",
    "transfer": "the critical path waits for a tensor that is under way",
    "queue": "the critical path waits for a tensor that stands in the queue of a link",
    "idle": "nothing of the critical path runs or is under way: a planned order, or what a runtime does besides",
}


class VerdictView(View):
    """One stacked bar; `on_zoom(start_us, end_us)` is called with the longest interval of a clicked part.

    `parts` are the parts of the bar: `label`, `color` (empty for parts without a device), `ink`, `share` of the step, `text`,
    `kind`. Screen readers announce `said` when it changes.
    """

    _esm = source("js", "verdict_view")
    _css = source("css", "verdict_view")
    parts: traitlets.List = traitlets.List().tag(sync=True)
    bound = traitlets.Float(-1.0).tag(sync=True)
    bound_text = traitlets.Unicode("").tag(sync=True)
    said = traitlets.Unicode("").tag(sync=True)

    def __init__(self, on_zoom: Callable[[float, float], None] = lambda start_us, end_us: None):
        super().__init__()
        self.on_zoom = on_zoom
        self._windows: list[tuple[float, float]] = []
        self.on_msg(self._clicked)

    def show(self, outcome: Outcome) -> None:
        timeline = outcome.timeline
        names, span = timeline.device_names, timeline.makespan_us
        colors = device_colors(len(names))
        step_sections = step_parts(timeline, outcome.chain.ops.tolist(), outcome.chain.transfers.tolist())
        self._windows = [section.window_us for section in step_sections]
        segments = []
        for section in step_sections:
            device = section.kind == "compute"
            label = short_device(names[section.device]) if device else WORDS[section.kind]
            share = section.us / span
            segments.append(
                {
                    "label": label,
                    "kind": section.kind,
                    "color": colors[section.device] if device else "",
                    "ink": text_on(colors[section.device]) if device else "",
                    "share": share,
                    "text": f"{label}: {format_us(section.us)}, {share:.0%} of the step; {MEANINGS[section.kind]}",
                }
            )
        bound = outcome.lower_bound_us
        with self.hold_sync():
            self.parts = segments
            self.bound = bound / span if span > 0 and bound == bound else -1.0
            self.bound_text = f"lower bound {format_us(bound)}" if bound == bound else ""

    def clear(self) -> None:
        self.parts, self._windows = [], []

    def _clicked(self, _: object, content: Message, __: object) -> None:
        if content.get("type") == "zoom" and 0 <= int(content["part"]) < len(self._windows):
            self.on_zoom(*self._windows[int(content["part"])])
