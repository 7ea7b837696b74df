"""Part 5, Compare: placers as a table and charts; one becomes current, two can be held side by side."""

from __future__ import annotations

import html
from functools import partial
from typing import TYPE_CHECKING, Any

import ipywidgets

from ...comparison import DEFAULT_PLACERS
from ...graph.units import format_bytes, format_us
from ...step_summary import gap_in_words, note_on_bound
from ..charts import peaks_chart, times_chart
from ..comparing import CURRENT, best_first, difference
from ..compute import Outcome
from ..guard import Guard
from ..tasks import Tasks
from ..views.chart_view import ChartView
from .parts import WIDE, Fold, button, for_people, note, row, say, table

if TYPE_CHECKING:
    import pandas

HEAD = {
    "placer": "",
    "step": "simulated",
    "one device": "the step beside that of one device alone",
    "gap": "how far the step is above the largest lower bound",
    "peak memory": "the most that any device holds; ✗: more than it has",
    "moved": "bytes sent between devices in a step",
    "balance": "mean busy time of devices over that of the busiest; 1 is even",
    "took": "time of placing",
    "measured": "median of a real run of this placement",
    "": "",
    " ": "",
}
MOST_GROUPS = 60


class ComparePanel:
    """Choose placers, compare them, make one current, hold one to see what differs."""

    def __init__(self, tasks: Tasks):
        from ...placers import placer_names

        self.tasks, self.model = tasks, tasks.model
        self.boxes = {
            name: ipywidgets.Checkbox(
                value=name in DEFAULT_PLACERS,
                description=name,
                indent=False,
                layout={"width": "auto", "margin": "0 12px 0 0"},
            )
            for name in placer_names()
        }
        self.compare = button("Compare", "place with every ticked placer", self._compare, style="primary")
        self.hold = button("Hold current", "keep the current placement to compare others with it", self._hold)
        self.rows = ipywidgets.VBox([], layout=WIDE)
        self.grid: Any = None
        self.times, self.peaks = ChartView(height=190), ChartView(height=190)
        self.state = note("Each ticked placer places the graph under the current setting.")
        self.notes = note()
        self.pinned = ipywidgets.HTML(layout=WIDE)
        self.show_moved = button("Select the moved ops", "select what differs, in every view", self._select_moved)
        self.back = button("Make the held one current", "take over the held setting", self._take_held)
        self.release = button("Release", "hold nothing any more", tasks.release)
        self.held_buttons = row(self.show_moved, self.back, self.release)
        placer_row = row(*self.boxes.values())
        placer_row.add_class("bl-choices")
        self.placers = Fold("Placers", [placer_row])
        charts = ipywidgets.HBox([self.times, self.peaks], layout=WIDE)
        charts.add_class("bl-charts")
        self.widget = ipywidgets.VBox(
            [
                self.placers,
                row(self.compare, self.hold, self.state),
                self.rows,
                self.notes,
                charts,
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
            self.placers.fold()  # the table and the charts shall be whole on one screen
            self.tasks.compare([name for name, box in self.boxes.items() if box.value])

    def _hold(self, placer: str | None = None) -> None:
        with Guard(self.model.fail):
            self.tasks.hold(placer)

    def _use(self, placer: str) -> None:
        with Guard(self.model.fail):
            self.tasks.use(placer)

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

    def show(self, compared: pandas.DataFrame) -> None:
        """The table with its buttons, and the charts."""
        outcome = self.tasks.table_of
        if outcome is None:
            return
        compared, notes = best_first(compared), [for_people(text) for text in compared.attrs.get("notes", ())]
        if outcome.setting.profile == "measured":
            notes += note_on_bound(compared, outcome.graph)
        notes += [f"{row['placer']}: {row['error']}" for _, row in compared.iterrows() if row["error"]]
        say(self.notes, ". ".join(text[:1].upper() + text[1:] for text in notes), "bad")
        head = [name for name in HEAD if name != "measured" or compared["measured_us"].notna().any()]
        cells: list[Any] = [ipywidgets.HTML(f'<b title="{html.escape(HEAD[name])}">{name}</b>') for name in head]
        for k, values in compared.iterrows():
            cells += self._row(values, best=k == 0, count=len(head))
        layout = ipywidgets.Layout(
            grid_template_columns=" ".join(["max-content"] * len(head)), grid_gap="0 5px", align_items="center"
        )
        self.grid = ipywidgets.GridBox(cells, layout=layout)
        self.grid.add_class("bl-grid")
        self.rows.children = [self.grid]
        self.times.show(times_chart(compared))
        limits = outcome.setting.cluster.memory_bytes.tolist()
        self.peaks.show(peaks_chart(compared, outcome.setting.cluster.names, limits))
        self._refresh()

    def _row(self, values: Any, best: bool, count: int) -> list[Any]:
        """The cells of a row, its buttons last; `count` columns are shown."""
        name = str(values["placer"])
        has_step = values["makespan_us"] == values["makespan_us"]
        shown = row_texts(values) if has_step else [name, "no placement", *[""] * 7]
        current = name in (self.model.setting.placer, CURRENT)
        cells: list[Any] = [ipywidgets.HTML(text) for text in shown[: count - 2]]
        cells[0].value = (f"<b>{name}</b>" if current else name) + _winner(values["winner"])
        if best and values["feasible"]:
            cells[1].value = f'<span class="bl-good"><b>{shown[1]}</b> best</span>'
        if not has_step or name == CURRENT:
            return [*cells, ipywidgets.HTML(), ipywidgets.HTML()]
        use = button("Use", f"make {name} current", partial(self._use, name))
        return [*cells, use, button("Hold", f"hold {name} beside the current", partial(self._hold, name))]

    def _refresh(self) -> None:
        """Say whether the table still belongs to the setting."""
        outcome, of = self.model.outcome, self.tasks.table_of
        if outcome is None or of is None:
            return
        same = outcome.setting.replace(placer="", params={}, moves=()) == of.setting.replace(
            placer="", params={}, moves=()
        )
        say(self.state, "" if same else "This table was made under another setting; press Compare to renew it.", "bad")
        self._show_held()

    def _show_held(self) -> None:
        pinned, current = self.tasks.pinned, self.model.outcome
        self.held_buttons.layout.display = "none" if pinned is None else "flex"
        if pinned is None or current is None:
            self.pinned.value = ""
            return
        change = difference(pinned, current)
        if change is None:
            self.pinned.value = '<div class="bl-note">The held placement is of another graph or of other devices.</div>'
            return
        rows = [
            [n, f"{a} → {b}", format_us(float(d))]
            for n, a, b, d in zip(change.names, change.before, change.after, change.duration_us, strict=True)
        ]
        summary = table(("", "held", "current"), side_by_side(pinned, current))
        title = f"<b>{len(rows)} of {pinned.coarse.n} groups are elsewhere</b>"
        shown = table(("group", "moved", "time"), rows[:MOST_GROUPS], empty=same_in_words(pinned, current))
        self.pinned.value = f'{summary}<div class="bl-note">{title}</div>{shown}'


def _winner(text: str) -> str:
    """Whose answer `auto` took, behind its name."""
    who, on, device = text.partition(" on ")
    return (
        f' <span class="bl-note" title="took the answer of {html.escape(who + on + device)}">{who}</span>'
        if who
        else ""
    )


def same_in_words(pinned: Outcome, current: Outcome) -> str:
    """Two placements with every op on the same device, which need not take the same time."""
    if pinned.timeline.makespan_us == current.timeline.makespan_us:
        return "the two placements are the same"
    before, after = scheduled(pinned), scheduled(current)
    why = f"{before} against {after}" if before != after else "each has an order of its own"
    return (
        f"every op is on the same device; the steps differ by the order in which devices work ({why}): "
        f"{format_us(pinned.timeline.makespan_us)} and {format_us(current.timeline.makespan_us)}"
    )


def scheduled(outcome: Outcome) -> str:
    """What orders the ops of a device."""
    setting = outcome.setting
    if setting.schedule:
        return f"schedule {setting.schedule}"
    if setting.scheduler:
        return f"scheduler {setting.scheduler}"
    return "fifo" if outcome.placement.rank is None else f"the order that {setting.placer} planned"


def row_texts(values: Any) -> list[str]:
    """The numbers of a row as the table shows them."""
    measured = values["measured_us"]
    return [
        str(values["placer"]),
        format_us(values["makespan_us"]),
        _versus(values),
        gap_in_words(values["gap"]),
        format_bytes(values["peak_bytes"]) + ("" if values["feasible"] else " ✗"),
        format_bytes(values["moved_bytes"]),
        f"{values['balance']:.2f}",
        format_us(values["place_seconds"] * 1e6),
        format_us(measured) if measured == measured and measured is not None else "",
    ]


def _versus(values: Any) -> str:
    ratio = values["makespan_us"] / values["one_device_us"] if values["one_device_us"] else float("nan")
    return f"× {ratio:.2f}" if ratio == ratio else ""


def side_by_side(pinned: Outcome, current: Outcome) -> list[list[str]]:
    """The main numbers of two outcomes."""

    def column(o: Outcome) -> list[str]:
        line = o.timeline
        by = o.setting.placer + (f" + {len(o.setting.moves)} moves" if o.setting.moves else "")
        fits = "yes" if line.feasible else "no"
        return [
            by,
            scheduled(o),
            format_us(line.makespan_us),
            format_bytes(int(line.peak_bytes.max(initial=0))),
            format_bytes(line.moved_bytes),
            fits,
        ]

    labels = ["placed by", "devices work by", "step", "peak memory", "bytes moved", "fits"]
    return [list(r) for r in zip(labels, column(pinned), column(current), strict=True)]
