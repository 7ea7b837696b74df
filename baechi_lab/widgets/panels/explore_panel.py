"""Part 7, Explore: sweeps over batch size, devices, memory and placer, as curves, with the best setting that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets

from ...errors import InfeasiblePlacement, InvalidInput
from ...graph import Step
from ...graph.units import format_bytes, format_us
from ...sweeps import best
from ..charts import AXES, MEASURES, sweep_figure
from ..guard import Guard
from ..setting import resized
from ..tasks import Tasks
from .chart import Chart
from .parts import WIDE, button, note, row, say, table

if TYPE_CHECKING:
    import pandas

STYLE = {"description_width": "80px"}


class ExplorePanel:
    """Lists of values to combine, a chart that fills row by row, and a button that takes over the best."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.batches = self._text("batch sizes", "32, 64, 128")
        self.devices = self._text("devices", "1, 2, 4")
        self.memory = self._text("memory", "4GB, 8GB")
        self.placers = self._text("placers", "m-etf, m-topo")
        self.file = self._text("file", "", "optional: sweep.sqlite, to resume later")
        self.start = button("Sweep", "compute every combination", self._start, style="primary")
        self.stop = button("Stop", "end early; finished rows are kept", tasks.cancel)
        self.axis = ipywidgets.Dropdown(description="along", options=list(AXES), style=STYLE)
        self.measure = ipywidgets.Dropdown(
            description="show", options=list(MEASURES), value="samples per second", style=STYLE
        )
        self.chart, self.rows = Chart(), ipywidgets.HTML(layout=WIDE)
        self.state, self.verdict = note("Every combination of these values is placed and simulated."), note()
        self.take = button("Use the best", "take over its devices, memory, placer and batch size", self._take)
        self.take.layout.display = "none"
        self.table: pandas.DataFrame | None = None
        for control in (self.axis, self.measure):
            control.observe(lambda _: self._draw(), "value")
        self.widget = ipywidgets.VBox(
            [
                row(self.batches, self.devices, self.memory, self.placers), row(self.file, self.start, self.stop),
                self.state, row(self.axis, self.measure), self.chart.widget, row(self.verdict, self.take, wrap=False),
                self.rows,
            ],
            layout=WIDE,
        )  # fmt: skip
        self.model.on("sweep", self.show)
        self.model.on("task", lambda said: say(self.state, said[0]) if said[0] else None)
        self.model.on("setting", lambda _: self._ready())
        self._ready()

    @staticmethod
    def _text(label: str, value: str, hint: str = "") -> ipywidgets.Text:
        made = ipywidgets.Text(value=value, description=label, placeholder=hint, style=STYLE)
        made.layout.width = "270px"
        return made

    def _ready(self) -> None:
        """Batch sizes can only be swept where there is a model to build."""
        setting, subject = self.model.setting, self.model.subject
        step = setting.source == "given" and isinstance(subject, Step) and "model" in subject.info
        self.batches.disabled = not (setting.model or step)
        if self.batches.disabled:
            self.axis.value = "devices" if self.axis.value == "batch size" else self.axis.value
            self.measure.value = "step time (ms)" if self.measure.value == "samples per second" else self.measure.value

    def grid(self) -> dict[str, Any]:
        """What the texts say, as arguments of `bl.sweep`."""
        made: dict[str, Any] = {
            "devices": _whole("devices", self.devices.value), "memory_bytes": _words("memory", self.memory.value),
            "placer": _words("placers", self.placers.value),
        }  # fmt: skip
        if not self.batches.disabled:
            made["batch_size"] = _whole("batch sizes", self.batches.value)
        return made

    def _start(self) -> None:
        with Guard(self.model.fail):
            self.tasks.sweep(self.grid(), self.file.value.strip() or None)

    def show(self, rows: pandas.DataFrame) -> None:
        """Rows so far."""
        self.table = rows
        self._draw()
        say(self.state, f"{len(rows)} combinations computed, {int(rows['feasible'].astype(bool).sum())} of them fit.")
        try:
            say(self.verdict, "Best that fits: " + described(best(rows)), "good")
            self.take.layout.display = "inline-flex"
        except InfeasiblePlacement as error:
            say(self.verdict, str(error), "bad")
            self.take.layout.display = "none"

    def _draw(self) -> None:
        if self.table is None or len(self.table) == 0:
            return
        self.chart.show(sweep_figure(self.table, self.axis.value, self.measure.value))
        head = ("batch", "devices", "memory", "placer", "step", "samples/s", "peak", "fits", "")
        self.rows.value = table(head, [_cells(r) for _, r in self.table.iterrows()])

    def _take(self) -> None:
        with Guard(self.model.fail):
            if self.table is None:
                raise InvalidInput("sweep first")
            chosen = best(self.table)
            cluster = resized(self.model.setting.cluster, int(chosen["devices"]))
            changes: dict[str, Any] = {
                "cluster": cluster.with_memory(int(chosen["memory_bytes"])), "placer": str(chosen["placer"]),
            }  # fmt: skip
            if chosen["placer"] != self.model.setting.placer:
                changes["params"] = {}
            if chosen["batch_size"] == chosen["batch_size"] and chosen["batch_size"] is not None:
                changes["batch_size"] = int(chosen["batch_size"])
            self.model.change(**changes)


def described(values: Any) -> str:
    """A row of a sweep in a sentence."""
    size = values["batch_size"]
    batch = f"batch size {int(size)}, " if size == size and size is not None else ""
    rate = values["samples_per_second"]
    speed = f", {format_rate(rate)} samples per second" if rate == rate and rate is not None else ""
    count = int(values["devices"])
    where = f"{count} device{'s' if count > 1 else ''} of {format_bytes(values['memory_bytes'])}"
    return f"{batch}{where}, {values['placer']}: step {format_us(values['makespan_us'])}{speed}"


def _cells(values: Any) -> list[str]:
    def shown(value: Any, text: Any) -> str:
        return text(value) if value == value and value is not None else ""

    return [
        shown(values["batch_size"], lambda v: str(int(v))), str(values["devices"]),
        format_bytes(values["memory_bytes"]), str(values["placer"]),
        shown(values.get("makespan_us"), format_us),
        shown(values.get("samples_per_second"), format_rate), shown(values.get("peak_bytes"), format_bytes),
        "yes" if values["feasible"] else "no", str(values["error"] or ""),
    ]  # fmt: skip


def _words(what: str, text: str) -> list[str]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts:
        raise InvalidInput(f"{what} is empty; give at least one value")
    return parts


def _whole(what: str, text: str) -> list[int]:
    try:
        return [int(p) for p in _words(what, text)]
    except ValueError as error:
        raise InvalidInput(f"{what}: {text!r} is not a list of whole numbers; write for example 1, 2, 4") from error


def format_rate(rate: float) -> str:
    """Samples per second as people write them.

    >>> format_rate(1_326_912.7), format_rate(913.44), format_rate(0.5)
    ('1,326,913', '913.4', '0.5')
    """
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"
