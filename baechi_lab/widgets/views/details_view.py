"""The details pane: the selected op with its neighbours as links, or several selected ops with the longest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import traitlets

from ...graph.device import short_device
from ...graph.units import format_bytes, format_bytes_beside, format_us_beside
from ..compute import Outcome
from ..details import OpDetails, TensorEnd, op_details, selection_details
from .base import Message, View, source

HINT = "Select an op in the graph or on the timeline: its tensors, times, reason to start and costs stand here."


class DetailsView(View):
    """Draws `OpDetails` or `SelectionDetails`; `on_go(op)` is called with the op of a link that was clicked.

    Links of one op are ops of the executed graph, links of a selection ops of the graph; `executed` says which.
    `facts` are pairs of name and value. `sections` have a `title`, `rows` (`op`, -1 for no link, `name`, `text`, `marked`)
    and `more`, the number of rows that are left out.

    >>> DetailsView().heading
    ''
    """

    _esm = source("js", "details_view")
    _css = source("css", "details_view")
    heading = traitlets.Unicode("").tag(sync=True)
    hint = traitlets.Unicode(HINT).tag(sync=True)
    facts: traitlets.List = traitlets.List().tag(sync=True)
    sections: traitlets.List = traitlets.List().tag(sync=True)

    def __init__(self, on_go: Callable[[int], None] = lambda op: None):
        super().__init__()
        self.on_go, self.executed = on_go, True
        self.on_msg(self._follow_link)

    def show_op(self, outcome: Outcome, op: int) -> None:
        details = op_details(outcome, op)
        time, size = in_one_unit(details)
        with self.hold_sync():
            self.executed, self.heading, self.hint = True, details.name, ""
            output_rows = [
                {"op": -1, "name": f"tensor {name}", "text": size(byte_count), "marked": False}
                for name, byte_count in details.output_sizes
            ]
            costs = [
                {
                    "op": -1,
                    "name": short_device(cost.device),
                    "text": time(cost.duration_us) if cost.duration_us == cost.duration_us else "may not run here",
                    "marked": cost.chosen,
                }
                for cost in details.costs
            ]
            self.facts = op_facts(details)
            self.sections = [
                {"title": "Reads", "rows": [_link(end, size) for end in details.inputs], "more": details.more_inputs},
                {"title": "Makes", "rows": output_rows, "more": 0},
                {
                    "title": "Read by",
                    "rows": [_link(end, size) for end in details.outputs],
                    "more": details.more_outputs,
                },
                {"title": "Time on each device", "rows": costs, "more": 0},
            ]

    def show_selection(self, outcome: Outcome, ops: Iterable[int]) -> None:
        details = selection_details(outcome, ops)
        with self.hold_sync():
            self.executed, self.heading, self.hint = False, f"{details.count:,} ops", ""
            time = partial(format_us_beside, largest=outcome.timeline.makespan_us)
            facts = [("time together", time(details.duration_us))]
            if details.persistent_bytes:
                facts.append(("keep", format_bytes(details.persistent_bytes)))
            self.facts = [list(fact) for fact in facts]
            rows = [{"op": op, "name": name, "text": time(us), "marked": False} for op, name, us in details.longest]
            self.sections = [{"title": "The longest", "rows": rows, "more": details.count - len(rows)}]

    def clear(self) -> None:
        """Shows a text that says what the pane is for."""
        with self.hold_sync():
            self.heading, self.hint, self.facts, self.sections = "", HINT, [], []

    def _follow_link(self, _: object, content: Message, __: object) -> None:
        if content.get("type") == "go":
            self.on_go(int(content["op"]))


Format = Callable[[float], str]
"""Formats a number of a view, all of which have one unit."""


def in_one_unit(details: OpDetails) -> tuple[Format, Format]:
    """Returns the formats of times and of bytes: the unit of the whole step, as in the timeline, and that of the largest size."""
    sizes = [size for _, size in details.output_sizes]
    sizes += [end.size_bytes for end in (*details.inputs, *details.outputs)]
    sizes += [details.persistent_bytes, details.temp_bytes]
    return partial(format_us_beside, largest=details.step_us), partial(format_bytes_beside, largest=max(sizes))


def op_facts(details: OpDetails) -> list[list[str]]:
    """Returns names and values of the facts of one op, without empty values."""
    time, size = in_one_unit(details)
    has_times = details.start_us == details.start_us
    facts = [
        ("type", details.op_type),
        ("makes", details.shapes),
        ("device", short_device(details.device)),
        ("runs", f"{time(details.start_us)} to {time(details.end_us)}" if has_times else "not in this timeline"),
        ("takes", time(details.end_us - details.start_us) if has_times else ""),
        ("copies", f"{details.copies}, one per micro-batch or replica" if details.copies > 1 else ""),
        ("critical path", "yes" if details.critical else "no"),
        ("keeps", size(details.persistent_bytes) if details.persistent_bytes else ""),
        ("while it runs", f"{size(details.temp_bytes)} temporary" if details.temp_bytes else ""),
        ("why then", details.why),
    ]
    return [[name, value] for name, value in facts if value]


def _link(end: TensorEnd, size: Format) -> dict[str, object]:
    place = f", {short_device(end.device)}" if end.device else ""
    return {"op": end.op, "name": end.name, "text": f"{size(end.size_bytes)}{place}", "marked": False}
