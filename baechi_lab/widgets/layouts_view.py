"""The rows of `bl.layouts` as a table; the chosen row shows its timeline below."""

from __future__ import annotations

from dataclasses import replace

from ..graph.units import format_bytes, format_us
from ..parallel.layouts import LayoutRow, Layouts
from ..passes.unroll import unroll
from ..viz.layout import BYTES, UNITS
from .panels.layout_form import LayoutForm
from .panels.parts import WIDE, note, say
from .views import TimelineView
from .views.base import PicturedBox
from .views.table_view import PERCENT, Column, TableView, quantity

MOST_ROWS = 200
"""Most rows of the table; the record has all rows."""
SHOW = "Show"


class LayoutsView(PicturedBox):
    """A table of layouts with step, memory, exposed communication and bubbles, and the timeline of one, at first the best.

    `row` is the chosen row. Each group of equal ranks has lanes for its computation, its collectives and its transfers
    between pipeline stages. Idle time that waits for a collective is exposed communication. `form` writes the layout of the row
    for the program that trains.

    Args:
        answer: the record that `bl.layouts` returned.

    >>> from baechi_lab import Cluster, layouts
    >>> gpt = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 50257, "n_positions": 1024}
    >>> cluster = Cluster.uniform(8, kind="a100", link="nvlink")
    >>> view = LayoutsView(layouts(gpt, cluster, global_batch=64, sequence_length=1024))
    >>> view.row is view.answer.best
    True
    """

    def __init__(self, answer: Layouts):
        self.answer = answer
        self.row: LayoutRow | None = None
        left_out = len(answer) - MOST_ROWS
        self.table = TableView("Layouts", on_action=lambda number, _: self.show(number))
        self.words, self.timeline, self.form = note(), TimelineView(), LayoutForm(answer)
        left_out_note = [note(f"{left_out:,} more rows are in to_pandas()")] if left_out > 0 else []
        self._above_timeline = [self.table, *left_out_note, note(answer.accuracy), self.words]
        super().__init__(self._above_timeline, layout=WIDE)
        self.add_class("bl-panel")
        fits = [k for k, row in enumerate(answer.rows) if row.fits and row.step_us is not None]
        if fits:
            self.show(fits[0])
        else:
            self._show_rows()
            say(self.words, "No layout fits; the column of reasons says what is missing.", "bad")

    def show(self, number: int) -> None:
        """Shows the timeline of `answer.rows[number]`."""
        row = self.answer.rows[number]
        self.row = row
        self.form.show_layout(row.layout)
        step = row.step()
        timeline = step.simulate()
        micro_batches = 1 if timeline.micro_batch is None else int(timeline.micro_batch.max()) + 1
        self.timeline.show(unroll(step.graph, micro_batches), [timeline])
        self._show_rows()
        lanes = [lane for lane in self.timeline.lanes if lane["kind"] == "ops"]
        exposed_us, idle_shares = max(lane["exposed_us"] for lane in lanes), [lane["idle_share"] for lane in lanes]
        name = "simulated here" if row.step_us is None else "simulated"
        say(
            self.words,
            f"{row.layout!r}: {name} {format_us(timeline.makespan_us)}, at least {format_us(row.lower_bound_us)}; "
            f"{format_bytes(row.peak_bytes)} on the fullest device. Gradients and parameters: up to {format_us(exposed_us)} of a "
            f"device's collectives are exposed; the passes of the busiest device hold {format_us(row.exposed_us)} more of "
            f"collectives inside blocks and of waiting for the host. Devices compute nothing for up to {max(idle_shares):.0%} of "
            f"the step, the busiest one for {min(idle_shares):.0%}."
            + (f" {row.reason[:1].upper()}{row.reason[1:]}." if row.reason else ""),
            "note" if row.fits else "bad",
        )
        self.renew_picture()
        self.children = [*self._above_timeline, self.timeline, self.form.widget]

    def picture(self) -> str:
        return self.timeline.picture()

    def in_words(self) -> str:
        return f"<LayoutsView: {self.answer!r}>"

    def _show_rows(self) -> None:
        rows = self.answer.rows[:MOST_ROWS]
        best = {"text": "best", "hint": "the fastest that fits", "good": True}
        best_note = [best] if rows[0].fits else []  # rows are sorted
        extras = [
            {
                "marked": row is self.row,
                "notes": best_note if row is rows[0] else [],
                "actions": [{"name": SHOW, "hint": f"show the timeline of {row.layout!r}"}],
            }
            for row in rows
        ]
        self.table.show(layout_columns(rows), extras)


def layout_columns(rows: tuple[LayoutRow, ...]) -> list[Column]:
    """Returns the columns of the table, each with one unit."""
    peaks = quantity("memory", [row.peak_bytes for row in rows], BYTES, "of the fullest device; ✗: more than it has")
    marked_texts = [text if row.fits else f"✗ {text}" for text, row in zip(peaks.texts, rows, strict=True)]
    shares = [None if row.waiting_us is None or not row.step_us else row.waiting_us / row.step_us for row in rows]
    # Without the class's name, the repr has the fields of the layout that differ from the defaults.
    names = [repr(row.layout).removeprefix("Layout(").removesuffix(")") or "one device" for row in rows]
    return [
        Column("layout", names, hint="degrees above 1, and what differs from the defaults"),
        quantity(
            "step time", [row.step_us for row in rows], UNITS, "simulated; empty where the bound made it unnecessary"
        ),
        quantity("bound", [row.lower_bound_us for row in rows], UNITS, "no step time of this layout is shorter"),
        replace(peaks, texts=marked_texts),
        Column("fits", ["yes" if row.fits else "no" for row in rows]),
        quantity(
            "exposed",
            [row.exposed_us for row in rows],
            UNITS,
            "of the busiest device's passes: collectives inside blocks, and waiting for the host",
        ),
        quantity(
            "bubble",
            shares,
            PERCENT,
            "share of the step without a pass on the busiest device: bubbles, gradients, update",
        ),
        Column("why", [row.reason for row in rows], hint="why the layout does not fit, or was not simulated"),
    ]
