"""The verdict: one bar from 0 to the end of the step with the parts of its critical path, and the lower bound as a tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import traitlets

from ...graph.device import short_device
from ...graph.units import format_us, times_in_one_unit
from ...step_summary import StepPart, step_parts
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
NARROW, MOST_NARROW = 0.03, 8
"""Share of the step below which a part has no room for its name, and most devices of such a share with a part each."""


class VerdictView(View):
    """One stacked bar; `on_zoom(start_us, end_us)` is called with the longest interval of a clicked part.

    `parts` are the parts of the bar: `label`, `color` (empty for parts without a device), `ink`, `share` of the step, `text`,
    `kind`. Screen readers read `announcement` out when it changes.
    """

    _esm = source("js", "verdict_view")
    _css = source("css", "verdict_view")
    parts: traitlets.List = traitlets.List().tag(sync=True)
    bound = traitlets.Float(-1.0).tag(sync=True)
    bound_text = traitlets.Unicode("").tag(sync=True)
    announcement = traitlets.Unicode("").tag(sync=True)

    def __init__(self, on_zoom: Callable[[float, float], None] = lambda start_us, end_us: None):
        super().__init__()
        self.on_zoom = on_zoom
        self._windows: list[tuple[float, float]] = []
        self.on_msg(self._zoom_to_part)

    def show(self, outcome: Outcome) -> None:
        timeline = outcome.timeline
        names, span = timeline.device_names, timeline.makespan_us
        colors = device_colors(len(names))
        every_section = step_parts(timeline, outcome.chain.ops.tolist(), outcome.chain.transfers.tolist())
        step_sections, together_count = with_narrow_devices_together(every_section, span)
        self._windows = [section.window_us for section in step_sections]
        segments = []
        for section in step_sections:
            device = section.device >= 0
            together = section.kind == "compute" and not device
            label = (
                short_device(names[section.device]) if device else WORDS.get(section.kind, f"{together_count} devices")
            )
            meaning = MEANINGS[section.kind] if not together else f"each of them has less than {NARROW:.0%}"
            share = section.us / span
            segments.append(
                {
                    "label": label,
                    "kind": section.kind,
                    "color": colors[section.device] if device else "",
                    "ink": text_on(colors[section.device]) if device else "",
                    "share": share,
                    "text": f"{label}: {format_us(section.us)}, {share:.0%} of the step; {meaning}",
                }
            )
        bound = outcome.lower_bound_us
        with self.hold_sync():
            self.parts = segments
            self.bound = bound / span if span > 0 and bound == bound else -1.0
            self.bound_text = f"lower bound {times_in_one_unit([bound, span])[0]}" if bound == bound else ""

    def clear(self) -> None:
        self.parts, self._windows = [], []

    def _zoom_to_part(self, _: object, content: Message, __: object) -> None:
        if content.get("type") == "zoom" and 0 <= int(content["part"]) < len(self._windows):
            self.on_zoom(*self._windows[int(content["part"])])


def with_narrow_devices_together(sections: Sequence[StepPart], span_us: float) -> tuple[list[StepPart], int]:
    """Returns the sections with those of many devices with little of the step as one, of device -1, and their number."""
    narrow = [s for s in sections if s.kind == "compute" and s.us < NARROW * span_us]
    if len(narrow) <= MOST_NARROW:
        return list(sections), 0
    longest = max(narrow, key=lambda s: s.window_us[1] - s.window_us[0])
    together = StepPart("compute", -1, sum(s.us for s in narrow), longest.window_us)
    wide = [s for s in sections if s not in narrow]
    return sorted([*wide, together], key=lambda s: s.kind != "compute"), len(narrow)
