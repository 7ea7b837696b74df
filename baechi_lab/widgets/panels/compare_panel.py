"""Part 5, Compare: placers as a table and charts. One can become current, and two can be compared side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import ipywidgets
import numpy as np
from numpy.typing import NDArray

from ...comparison import DEFAULT_PLACERS
from ...graph.units import format_bytes, format_us
from ...step_summary import note_on_bound
from ...viz.colors import device_colors
from ...viz.layout import BYTES, UNITS
from ..charts import MOST_BARS, peaks_chart, times_chart
from ..comparing import CURRENT, best_first, difference, name_of, order_name
from ..compute import Outcome, placed_parts
from ..controls import HTML, Checkbox
from ..glossary import tip
from ..guard import Guard
from ..tasks import Tasks, alike
from ..views.chart_view import ChartView
from ..views.table_view import PERCENT, RATIO_DECIMALS, Column, TableView, busy_lanes, names, quantity
from .parts import WIDE, Fold, add_hint, button, for_people, note, row, say, set_class, table

if TYPE_CHECKING:
    import pandas

USE, HOLD = "Use", "Hold"
MOST_GROUPS = 60
ORDER_HINT = "the order in which devices work: a schedule, a scheduler, or planned by the placer"


class ComparePanel:
    """Chooses placers, compares them, makes one current, and keeps one for comparison."""

    def __init__(self, tasks: Tasks):
        from ...placers import placer_names

        self.tasks, self.model = tasks, tasks.model
        self.boxes = {
            name: add_hint(
                Checkbox(
                    value=name in DEFAULT_PLACERS,
                    description=name,
                    indent=False,
                    layout={"width": "auto", "margin": "0 12px 0 0"},
                ),
                tip(name),
            )
            for name in placer_names()
        }
        self.compare = button("Compare", "place with every ticked placer", self._compare, style="primary")
        hold = Guard(self.model.fail)(tasks.hold)
        self.hold = button("Hold current", "keep the current placement to compare others with it", hold)
        self.rows = TableView("placers compared", self._use_or_hold)
        self.names: list[str] = []
        self.times, self.peaks = ChartView(height=184), ChartView(height=184)
        self.state = note("Each ticked placer places the graph under the current setting.")
        self.notes, self.errors = note(), note()
        self.pinned = HTML(layout=WIDE)
        self.show_moved = button("Select the moved ops", "select what differs, in every view", self._select_moved)
        self.back = button("Make the held one current", "take over the held setting", self._take_held)
        self.release = button("Release", "hold nothing any more", tasks.release)
        self.held_buttons = row(self.show_moved, self.back, self.release)
        placer_row = row(*self.boxes.values())
        placer_row.add_class("bl-choices")
        self.placers = Fold("Placers", [placer_row])
        charts = ipywidgets.HBox([self.times, self.peaks], layout=WIDE)
        charts.add_class("bl-charts")
        self.compared = ipywidgets.VBox([self.rows, self.notes, self.errors, charts], layout=WIDE)
        self.widget = ipywidgets.VBox(
            [
                self.placers,
                row(self.compare, self.hold, self.state),
                self.compared,
                self.pinned,
                self.held_buttons,
            ],
            layout=WIDE,
        )
        self.model.on("table", self.show)
        self.model.on("outcome", lambda _: self._refresh())
        self.model.on("held", lambda _: self._show_held())
        self._show_held()

    # -- actions ---------------------------------------------------------------------------------------

    def _compare(self) -> None:
        with Guard(self.model.fail):
            self.placers.fold()  # so that the table and the charts fit on one screen
            self.tasks.compare([name for name, box in self.boxes.items() if box.value])

    def _use_or_hold(self, row: int, action: str) -> None:
        with Guard(self.model.fail):
            (self.tasks.use if action == USE else self.tasks.hold)(self.names[row])

    def _take_held(self) -> None:
        with Guard(self.model.fail):
            if self.tasks.pinned is not None:
                self.model.enter(self.tasks.pinned.setting)

    def _select_moved(self) -> None:
        with Guard(self.model.fail):
            if self.tasks.pinned is not None and self.model.outcome is not None:
                change = difference(self.tasks.pinned, self.model.outcome)
                self.model.select([] if change is None else change.ops.tolist())

    # -- showing ---------------------------------------------------------------------------------------

    def show(self, table: pandas.DataFrame) -> None:
        outcome = self.tasks.table_of
        if outcome is None:
            return
        table, notes = best_first(table), [for_people(text) for text in table.attrs.get("notes", ())]
        if outcome.setting.profile == "measured":
            notes += note_on_bound(table, outcome.graph)
        say(self.notes, ". ".join(text[:1].upper() + text[1:] for text in notes))
        errors = [f"{row['placer']}: {row['error']}" for _, row in table.iterrows() if row["error"]]
        say(self.errors, ". ".join(errors), "bad")
        self.names = [str(name) for name in table["placer"]]
        names, longest = outcome.setting.cluster.names, float(table["makespan_us"].max())
        colors, extras = device_colors(names), []
        for k, values in table.iterrows():
            placer, shares, step = str(values["placer"]), values["busy_shares"], float(values["makespan_us"])
            has_chart = shares is not None and step > 0
            used = np.flatnonzero(shares.any(axis=1)) if has_chart and len(names) > MOST_BARS else slice(None)
            pill_notes: list[dict[str, object]] = []
            if values["winner"]:
                winner = str(values["winner"])
                pill_notes.append(
                    {"text": winner.partition(" on ")[0], "hint": f"took the answer of {winner}", "good": False}
                )
            if values.get("order"):
                pill_notes.append({"text": str(values["order"]), "hint": ORDER_HINT, "good": False})
            if k == 0 and values["feasible"]:
                pill_notes.append({"text": "best", "hint": "the shortest step time of those that fit", "good": True})
            if values["makespan_us"] != values["makespan_us"]:
                pill_notes.append({"text": "no placement", "hint": str(values["error"] or ""), "good": False})
            extras.append(
                {
                    "id": placer,
                    "marked": placer in (self.model.setting.placer, CURRENT),
                    "notes": pill_notes,
                    "actions": []
                    if placer == CURRENT or step != step
                    else [
                        {"name": USE, "hint": f"make {placer} current"},
                        {"name": HOLD, "hint": f"hold {placer} beside the current"},
                    ],
                    "lanes": busy_lanes(shares[used], np.array(colors)[used].tolist()) if has_chart else [],
                    "span": step / longest if has_chart else 0.0,
                    "label": busy_in_words(shares, names) if has_chart else "",
                }
            )
        self.rows.show(compared_columns(table), extras)
        self.times.show(times_chart(table))
        limits = outcome.setting.cluster.memory_bytes.tolist()
        self.peaks.show(peaks_chart(table, outcome.setting.cluster.names, limits))
        self._refresh()

    def _refresh(self) -> None:
        """Shows whether the table still belongs to the setting."""
        outcome, of = self.model.outcome, self.tasks.table_of
        if outcome is None or of is None:
            return
        same = alike(outcome, of)
        say(self.state, "" if same else "This table was made under another setting; press Compare to renew it.")
        set_class(self.compared, "bl-outdated", not same)
        self._show_held()

    def _show_held(self) -> None:
        pinned_outcome, current = self.tasks.pinned, self.model.outcome
        self.held_buttons.layout.display = "none" if pinned_outcome is None else "flex"
        if pinned_outcome is None or current is None:
            self.pinned.value = ""
            return
        change = difference(pinned_outcome, current)
        if change is None:
            self.pinned.value = '<div class="bl-note">The held placement is of another graph or of other devices.</div>'
            return
        rows = [
            [n, f"{a} → {b}", format_us(float(d))]
            for n, a, b, d in zip(change.names, change.before, change.after, change.duration_us, strict=True)
        ]
        summary = table(("", "held", "current"), side_by_side(pinned_outcome, current))
        title = f"<b>{len(rows):,} of {placed_parts(pinned_outcome.coarse)} are elsewhere</b>"
        rows_html = table(
            ("op" if pinned_outcome.coarse.group_of is None else "group", "moved", "time"),
            rows[:MOST_GROUPS],
            empty=same_in_words(pinned_outcome, current),
        )
        self.pinned.value = f'{summary}<div class="bl-note">{title}</div>{rows_html}'


def compared_columns(table: pandas.DataFrame) -> list[Column]:
    """Returns the columns of the table, each with one unit."""
    peaks = quantity("peak", table["peak_bytes"].tolist(), BYTES, "the most that any device holds; ✗: more than it has")
    fits = table["feasible"].astype(bool)
    peak_texts = [t if ok or not t else f"✗ {t}" for t, ok in zip(peaks.texts, fits, strict=True)]
    measured_hint = "median of a real run of this placement"
    columns = [
        names("placer", table["placer"].astype(str).tolist()),
        quantity("step time", table["makespan_us"].tolist(), UNITS, "simulated"),
        quantity(
            "speedup",
            table["speedup"].tolist(),
            hint="the step time of one device alone over this one; above 1 is faster",
            decimals=RATIO_DECIMALS,
        ),
        quantity(
            "gap",
            table["gap"].clip(lower=0.0).round(3).tolist(),
            PERCENT,
            "how far the step time is above the largest lower bound",
            decimals=1,
        ),
        replace(peaks, texts=peak_texts),
        quantity("moved", table["moved_bytes"].tolist(), BYTES, "bytes sent between devices in a step"),
        quantity(
            "balance",
            table["balance"].tolist(),
            hint="mean busy time of devices over that of the busiest; 1 is even",
            decimals=RATIO_DECIMALS,
        ),
        quantity("took", (table["place_seconds"] * 1e6).tolist(), ((1e3, "ms"),), "time of placing", most_decimals=1),
    ]
    has_runs = table["measured_us"].notna().any()
    return (
        [*columns, quantity("measured", table["measured_us"].tolist(), UNITS, measured_hint)] if has_runs else columns
    )


def busy_in_words(shares: NDArray[np.float64], names: Sequence[str]) -> str:
    """Describes how busy each device is, for screen readers.

    >>> busy_in_words(np.array([[1.0, 0.5], [0.0, 0.0]]), ["gpu:0", "gpu:1"])
    'busy: gpu:0 75%, gpu:1 0%'
    """
    return "busy: " + ", ".join(f"{name} {share:.0%}" for name, share in zip(names, shares.mean(axis=1), strict=True))


def same_in_words(pinned_outcome: Outcome, current: Outcome) -> str:
    """Describes two placements with every op on the same device, whose steps may still differ."""
    if pinned_outcome.timeline.makespan_us == current.timeline.makespan_us:
        return "the two placements are the same"
    before, after = (order_name(o.setting, o.base) for o in (pinned_outcome, current))
    why = f"{before} against {after}" if before != after else "each has an order of its own"
    return (
        f"every op is on the same device; the step times differ by the order in which devices work ({why}): "
        f"{format_us(pinned_outcome.timeline.makespan_us)} and {format_us(current.timeline.makespan_us)}"
    )


def side_by_side(pinned_outcome: Outcome, current: Outcome) -> list[list[str]]:
    """Returns a table of the main numbers of two outcomes."""

    def column(o: Outcome) -> list[str]:
        line = o.timeline
        fits = "yes" if line.feasible else "no"
        return [
            name_of(o),
            order_name(o.setting, o.base),
            format_us(line.makespan_us),
            format_bytes(int(line.peak_bytes.max(initial=0))),
            format_bytes(line.moved_bytes),
            fits,
        ]

    labels = ["placed by", "order", "step time", "peak memory", "bytes moved", "fits"]
    return [list(r) for r in zip(labels, column(pinned_outcome), column(current), strict=True)]
