"""Part 7, Explore: sweeps over batch size, micro-batches, devices, memory, placer and schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np

from ...errors import InfeasiblePlacement, InvalidInput
from ...graph import Step
from ...graph.units import exact_bytes, format_limit, format_us, plain_number, plural
from ...placers.auto import Auto
from ...placers.registry import placer_class
from ...sweeps import best
from ...viz.layout import BYTES, UNITS
from ..charts import AXES, MEASURES, heat_map, is_known, pareto_chart, pareto_front, varied_axes
from ..compute import Outcome
from ..controls import Dropdown, Text
from ..glossary import tip
from ..guard import Guard
from ..setting import Setting
from ..sweep_reasons import surprises
from ..tasks import SWEEP, Tasks
from ..views.chart_view import ChartView
from ..views.table_view import PERCENT, Column, TableView, names, quantity
from .parts import MOST_DEVICES, WIDE, Quiet, add_hint, button, count_up_to, note, row, say, set_class

if TYPE_CHECKING:
    import pandas

STYLE, NARROW = {"description_width": "94px"}, {"description_width": "68px"}
RATE, TIME = "samples per second", "step time"
HEAT_HEIGHTS = (130, 216)
"""The least and the largest height of the heat map in pixels."""
HINT = "Every combination of these values is placed and simulated."


MEASURED_ANEW = (
    " Ops are measured anew for each batch size, so that step times differ from those above by what a machine does."
)


class ExplorePanel:
    """Lists of values to combine, and a heat map and a table that fill row by row; a click on a row opens its setting."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.batches = _text("batch sizes", "32, 64, 128", hint="samples of a step")
        self.micro = _text("micro-batches", "", "4, 8, 16", "empty: the batch whole")
        self.schedules = _text(
            "schedules", "", "gpipe, 1f1b", "gpipe, 1f1b, zb-h1, ...; empty: devices take what is ready"
        )
        self.replicas = _text("replicas", "1", hint="copies of the placement side by side")
        self.devices = _text("devices", "1, 2, 4", hint="how many of them; further ones are like the last")
        self.memory = _text("memory", "", hint="of each device")
        self.placers = _text("placers", "", hint="names as in the setting")
        following = (self.devices, self.memory, self.micro, self.schedules, self.replicas, self.placers)
        self.offered = {control: control.value for control in following}
        self.file = _text("file", "", "sweep.sqlite", "optional: where rows are kept, to go on later")
        self.start = button("Sweep", "compute every combination", self._start, style="primary")
        self.stop = button("Stop", "end early; finished rows are kept", tasks.cancel)
        self.stop.disabled = True
        self.axis = add_hint(
            Dropdown(description="along", options=list(AXES), style=NARROW), "what differs between columns of the map"
        )
        by = Dropdown(
            description="rows for",
            options=[("nothing", ""), *((name, name) for name in AXES)],
            value="",
            style=NARROW,
        )
        self.by = add_hint(by, "what differs between rows of the map")
        self.measure = add_hint(
            Dropdown(description="show", options=list(MEASURES), style=NARROW), "the number in the cells of the map"
        )
        for control in (self.axis, self.by, self.measure):
            control.layout.width = "250px"
        self.chart, self.front, self.reading = ChartView(), ChartView(height=HEAT_HEIGHTS[1]), note()
        for chart in (self.chart, self.front):
            chart.observe(self._open_clicked_row, "clicked")
        self.rows = TableView("settings of the sweep", lambda number, _: self.open_row(number))
        self.state, self.verdict = note(HINT), note()
        self.reasons = note()
        self.take = button("Use the best", "take over its devices, memory, placer, batch and micro-batches", self._take)
        self.take.layout.display = "none"
        self.table: pandas.DataFrame | None = None
        self.labels: dict[str, int] = {}
        self.fresh, self.progress_shown, self.quiet = True, False, Quiet()
        for control in (self.axis, self.by, self.measure):
            control.observe(lambda _: self._keep_question(), "value")
        lists = [
            self.batches,
            self.micro,
            self.schedules,
            self.replicas,
            self.devices,
            self.memory,
            self.placers,
            self.file,
        ]
        charts = ipywidgets.HBox([self.chart, self.front], layout=WIDE)
        charts.add_class("bl-charts")
        self.results = ipywidgets.VBox([charts, self.reading, self.reasons, self.rows], layout=WIDE)
        self.widget = ipywidgets.VBox(
            [
                row(*lists),
                row(self.start, self.stop, self.verdict, self.take, wrap=False),
                self.state,
                row(self.axis, self.by, self.measure),
                self.results,
            ],
            layout=WIDE,
        )
        self.model.on("sweep", self.show)
        self.model.on("task", self._show_progress)
        self.model.on("setting", lambda _: self._ready())
        self.model.on("outcome", lambda _: self._refresh())
        self._ready()

    def _ready(self) -> None:
        """Enables batch sizes if there is a graph for each, and fills in values of the setting: devices, memory and half of it,
        its micro-batches, schedule and replicas, and its placer before two others.
        """
        from ...simulator.schedules import RULES

        setting, subject = self.model.setting, self.model.subject
        if self.table is None and not self.sweeping:
            say(self.state, f"{HINT}{MEASURED_ANEW}" if setting.profile == "measured" else HINT)
        largest_memory = int(setting.cluster.memory_bytes.max())
        values_of_setting = {
            self.devices: offered_counts(setting.cluster.n),
            self.memory: f"{exact_bytes(largest_memory // 2)}, {exact_bytes(largest_memory)}",
            self.micro: str(setting.micro_batches or ""),
            self.schedules: setting.schedule if setting.schedule in RULES else "",
            self.replicas: str(setting.replicas),
            self.placers: ", ".join(offered_placers(setting)),
        }
        for control, value in values_of_setting.items():
            if control.value == self.offered[control]:  # otherwise the user has typed it
                control.value = self.offered[control] = value
        step = setting.source == "given" and isinstance(subject, Step) and subject.built_from is not None
        self.batches.disabled = not (setting.takes_batches or step)
        if self.batches.disabled and self.measure.value == RATE:
            with self.quiet:
                self.measure.value = TIME

    def grid(self) -> dict[str, Any]:
        """Returns the typed values as arguments of `bl.sweep`."""
        arguments: dict[str, Any] = {
            "devices": [
                count_up_to("devices", count, max(MOST_DEVICES, self.model.setting.cluster.n))
                for count in _whole_numbers("devices", self.devices.value)
            ],
            "memory_bytes": _words("memory", self.memory.value),
            "placer": _words("placers", self.placers.value),
        }
        if not self.batches.disabled:
            arguments["batch_size"] = _whole_numbers("batch sizes", self.batches.value)
        if self.micro.value.strip():
            arguments["micro_batches"] = _whole_numbers("micro-batches", self.micro.value)
        if self.schedules.value.strip():
            arguments["schedule"] = _words("schedules", self.schedules.value)
        if self.replicas.value.strip() not in ("", "1"):
            arguments["replicas"] = _whole_numbers("replicas", self.replicas.value)
        return arguments

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is in progress."""
        return self.tasks.worker.busy and self.tasks.job == SWEEP

    def _start(self) -> None:
        guard = Guard(self.model.reject)
        with guard:
            self.tasks.sweep(self.grid(), self.file.value.strip() or None)
            self.fresh = True
        if guard.failed:
            say(self.state, " ".join(["No sweep was started: see the message above.", self._table_in_words()]))

    def _show_progress(self, progress: tuple[str, float]) -> None:
        """Shows the progress of the sweep, or that it ended without a row."""
        self.stop.disabled = not self.sweeping
        if self.tasks.job == SWEEP and (progress[0] or self.progress_shown):
            say(self.state, progress[0] or self._table_in_words() or HINT)
            self.progress_shown = bool(progress[0])

    def show(self, rows: pandas.DataFrame) -> None:
        """Shows the rows of a sweep. A row keeps its label, which clicks name, also where further rows come before it."""
        combinations = map(combination, rows.to_dict("records"))
        self.table = rows.set_axis([self.labels.setdefault(name, len(self.labels)) for name in combinations])
        # The axes of the heat map, unless the user chose them: the first axis that varies, and the last one as rows.
        varied = varied_axes(rows)
        if self.fresh and varied:
            with self.quiet:
                self.axis.value = varied[0]
                self.by.value = varied[-1] if len(varied) > 1 else ""
        self._draw()
        say(self.reasons, " ".join(surprises(rows)))
        self._refresh()

    @property
    def outdated(self) -> bool:
        """Whether the table belongs to another model, graph, link or other value that the sweep did not vary."""
        swept, table = self.tasks.swept_setting, self.table
        if swept is None or table is None:
            return False
        setting = self.model.setting
        scheduler_changed = swept.scheduler != setting.scheduler and not table["schedule"].notna().any()
        count = setting.cluster.n
        return scheduler_changed or without_varied_fields(swept, count) != without_varied_fields(setting, count)

    def _table_in_words(self) -> str:
        """Describes the rows of the table; empty without one."""
        if self.table is None:
            return ""
        count, fitting = len(self.table), int(self.table["feasible"].astype(bool).sum())
        words = f"{count} {plural('combination', count)} computed, {fitting} of them fit."
        return f"{words} They belong to another setting; press Sweep to renew them." if self.outdated else words

    def _refresh(self) -> None:
        """Says whether the table still belongs to the setting, and which row is the best."""
        if self.table is not None:
            if not self.sweeping:  # then the progress is shown
                say(self.state, self._table_in_words())
            for widget in (self.verdict, self.results):
                set_class(widget, "bl-outdated", self.outdated)
        self._judge()

    def _judge(self) -> None:
        """Says which row is the best, and whether the result on the screen is better still."""
        if self.table is None:
            return
        try:
            best_row, current = best(self.table), self.model.outcome
            slower = "" if current is None or self.outdated else against_current(best_row, current)
            say(
                self.verdict,
                f"Best that fits: {describe_row(best_row)}{slower}",
                "note" if slower else "good",
            )
            self.take.layout.display = "inline-flex"
        except InfeasiblePlacement as error:
            message = str(error).replace("no setting fits", "nothing fits so far", 1) if self.sweeping else str(error)
            say(self.verdict, message, "note" if self.sweeping else "bad")
            self.take.layout.display = "none"

    def _keep_question(self) -> None:
        """Keeps the axes that the user chose for further rows."""
        if not self.quiet.active:
            self.fresh = False
            self._draw()

    def _draw(self) -> None:
        if self.table is None or len(self.table) == 0:
            return
        by = "" if self.by.value == self.axis.value else self.by.value
        spec, note_text = heat_map(self.table, self.axis.value, by, self.measure.value)
        self.chart.height = int(np.clip(40 + 30 * len(spec["rows"]), *HEAT_HEIGHTS))
        self.chart.show(spec)
        self.front.show(pareto_chart(self.table))
        say(self.reading, note_text)
        front = set(pareto_front(self.table))
        open_action = [{"name": "Open", "hint": "make this the setting"}]
        extras: list[dict[str, object]] = [
            {"id": str(label), "actions": open_action, "notes": [FRONT_NOTE] if k in front else []}
            for k, label in enumerate(self.table.index)
        ]
        self.rows.show(sweep_columns(self.table), extras)

    def _open_clicked_row(self, change: Any) -> None:
        label = change["new"]
        if label >= 0:
            change["owner"].clicked = -1  # so that the same setting can be opened again
            if self.table is not None and label in self.table.index:
                self._enter(self.table.loc[label])

    def open_row(self, number: int) -> None:
        """Makes a row of the sweep the setting."""
        if self.table is not None:
            self._enter(self.table.iloc[number])

    def _take(self) -> None:
        with Guard(self.model.fail):
            if self.table is None:
                raise InvalidInput("there is no sweep to take a row from: press Sweep first")
            self._enter(best(self.table))

    def _enter(self, row: Any) -> None:
        """Makes a row the setting, with the values that the sweep did not vary as they were when it started."""
        with Guard(self.model.fail):
            swept = self.tasks.swept_setting or self.model.setting
            self.model.enter(swept.replace(**setting_changes(row, swept)))


UNVARIED: dict[str, Any] = {
    "batch_size": None,
    "micro_batches": None,
    "schedule": None,
    "scheduler": None,
    "replicas": 1,
    "placer": "",
    "params": {},
    "moves": (),
    "start": None,
}


def offered_counts(count: int) -> str:
    """Returns the numbers of devices that a sweep is offered: 1, 2 and 4, or of more devices their number, half and a quarter.

    >>> offered_counts(2), offered_counts(8), offered_counts(6)
    ('1, 2, 4', '2, 4, 8', '1, 3, 6')
    """
    return "1, 2, 4" if count <= 4 else f"{count // 4}, {count // 2}, {count}"


def offered_placers(setting: Setting) -> list[str]:
    """Returns the placers that a sweep is offered: that of the setting, unless it searches to a time limit, and two rules."""
    own_placer = [] if placer_class(setting.placer).anytime else [setting.placer]
    return list(dict.fromkeys([*own_placer, "m-etf", "contiguous"]))


def without_varied_fields(setting: Setting, count: int) -> Setting:
    """Returns the setting without what a sweep varies or leaves out: `count` devices of 1 byte, no placer, no batch."""
    return setting.replace(cluster=setting.cluster.resized(count).with_memory(1), **UNVARIED)


def setting_changes(row: Any, setting: Setting) -> dict[str, Any]:
    """Returns the changes that turn the setting at the start of a sweep into that of its row."""
    cluster = setting.cluster.resized(int(row["devices"]))
    changes: dict[str, Any] = {
        "cluster": cluster.with_memory(int(row["memory_bytes"])),
        "placer": str(row["placer"]),
        "micro_batches": int(row["micro_batches"]) if is_known(row["micro_batches"]) else None,
        "schedule": str(row["schedule"]) if is_known(row["schedule"]) else None,
        "replicas": int(row["replicas"]) if is_known(row["replicas"]) else 1,
        "moves": (),
        "start": None,
    }
    if changes["schedule"]:
        changes["scheduler"] = None
    if row["placer"] != setting.placer:
        changes["params"] = {}
    if setting.batch_size is not None and is_known(row["batch_size"]):
        changes["batch_size"] = int(row["batch_size"])
    return changes


def describe_row(values: Any) -> str:
    """Describes a row of a sweep in a sentence."""
    size, rate, count = values["batch_size"], values["samples_per_second"], int(values["devices"])
    batch = f"batch size {int(size)}, " if is_known(size) else ""
    micro, order, copies = values.get("micro_batches"), values.get("schedule"), values.get("replicas")
    batch += (
        f"{int(micro)} micro-batch{'es' if micro > 1 else ''}{f' under {order}' if is_known(order) else ''}, "
        if is_known(micro)
        else ""
    )
    batch += f"{int(copies)} replicas, " if is_known(copies) and copies > 1 else ""
    speed = f", {plain_number(rate)} samples per second" if is_known(rate) else ""
    own_order = values.get("op_order")
    by = f" in the order {own_order}" if is_known(own_order) and not is_known(order) else ""
    devices_text = f"{count} {plural('device', count)} of {format_limit(values['memory_bytes'])}"
    return f"{batch}{devices_text}, {values['placer']}{by}: step time {format_us(values['makespan_us'])}{speed}"


def against_current(values: Any, current: Outcome) -> str:
    """Says that the result on the screen is faster than a row of a sweep; empty if it is not, or does other work.

    Compares rates where batch sizes are known, else steps of as many micro-batches.
    """
    step, rate, micro = current.timeline.makespan_us, values["samples_per_second"], values.get("micro_batches")
    if not current.timeline.feasible or step <= 0:
        return ""
    if is_known(rate) and current.samples is not None:
        current_rate = current.samples * 1e6 / step
        speed = f"makes {plain_number(current_rate)} samples per second" if current_rate > 1.0005 * rate else ""
    else:
        same_work = (int(micro) if is_known(micro) else 1) == (current.setting.micro_batches or 1)
        speed = f"takes {format_us(step)}" if same_work and values["makespan_us"] > 1.0005 * step else ""
    # A row has the order of its own placer, where `auto` took the fastest order as well.
    order = current.base.info.get("winner_scheduler")
    why = f": {Auto.name} gave its placement the order {order}" if order else ""
    return f"; the setting on the screen is faster, it {speed}{why}" if speed else ""


def combination(row: Mapping[str, Any]) -> str:
    """Names what a row of a sweep varied; while the sweep goes on, rows have another order than at its end.

    >>> combination({"placer": "m-etf", "devices": 2, "memory_bytes": 8e9, "batch_size": 32, "schedule": None})
    'm-etf 2 8000000000 32'
    """
    keys = ("placer", "devices", "memory_bytes", "batch_size", "micro_batches", "schedule", "replicas")
    values = [row.get(key) for key in keys]
    return " ".join(value if isinstance(value, str) else f"{value:.17g}" for value in values if is_known(value))


FRONT_NOTE = {"text": "◆", "hint": "on the Pareto front: nothing is both faster and smaller in memory", "good": True}


ORDER_HINT = (
    "order in which devices work: a schedule, a scheduler, or the placement's own, fifo if its placer planned none"
)
PLACED_HINT = (
    "what was placed: single ops, or the groups that the passes made of them; auto places both by every fast placer, tries "
    "every order, and takes the fastest: so it may be faster than the row of the placer whose answer it took"
)


def placed_in_words(row: Mapping[str, Any]) -> str:
    """Says what the placer of a sweep's row placed, and for `auto` whose answer it took.

    >>> placed_in_words({"winner": "contiguous on the ops, scheduler pct", "groups": 5, "ops": 9})
    'contiguous on the ops'
    >>> placed_in_words({"winner": "", "groups": 5, "ops": 9}), placed_in_words({"groups": 9, "ops": 9})
    ('5 groups', 'ops')
    """
    if winner := row.get("winner"):
        return str(winner).partition(", scheduler ")[0].replace(" given ", " ")
    count, ops = row.get("groups"), row.get("ops")
    return "" if not is_known(count) else "ops" if count == ops else f"{int(count):,} {plural('group', count)}"  # type: ignore[arg-type]


def sweep_columns(table: pandas.DataFrame) -> list[Column]:
    """Returns the columns of a sweep's table that are not empty, each in one unit."""

    def numbers(name: str, key: str, units: Any = ((1.0, ""),)) -> Column:
        return quantity(name, table[key].tolist() if key in table else [None] * len(table), units, tip(name))

    columns = [
        names("placer", table["placer"].astype(str).tolist()),
        numbers("batch", "batch_size"),
        numbers("micro-batches", "micro_batches"),
        Column("placed", [placed_in_words(row) for row in table.to_dict("records")], hint=PLACED_HINT),
        names("order", [str(v) if is_known(v) else "" for v in table.get("op_order", [None] * len(table))], ORDER_HINT),
        numbers("replicas", "replicas"),
        numbers("devices", "devices"),
        numbers("memory", "memory_bytes", BYTES),
        numbers("step time", "makespan_us", UNITS),
        numbers("samples/s", "samples_per_second"),
        numbers("bubble", "bubble", PERCENT),
        numbers("peak", "peak_bytes", BYTES),
        names("fits", ["yes" if ok else "no" for ok in table["feasible"].astype(bool)]),
        Column("why not", [str(text or "") for text in table["error"]], hint="why there is no placement that fits"),
    ]
    return [column for column in columns if any(column.texts)]


def _text(label: str, value: str, example: str = "", hint: str = "") -> Text:
    widget = Text(value=value, description=label, placeholder=example, style=STYLE)
    widget.layout.width = "268px"
    return add_hint(widget, hint)


def _words(label: str, text: str) -> list[str]:
    words = [p.strip() for p in text.split(",") if p.strip()]
    if not words:
        raise InvalidInput(f"{label} is empty; give at least one value")
    return words


def _whole_numbers(label: str, text: str) -> list[int]:
    try:
        return [int(p) for p in _words(label, text)]
    except ValueError as error:
        raise InvalidInput(f"{label}: {text!r} is not a list of whole numbers; write for example 1, 2, 4") from error
