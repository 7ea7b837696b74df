"""The panel beside the memory view: whether the step fits, and the options to make it fit.

It asks `bl.fit` for the graph and the devices of the current setting, which may have no outcome if nothing fits. The placement
of an outcome is one of those that are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice

import ipywidgets
import numpy as np

from ...errors import BaechiLabError
from ...fitting.fit import LEAST_MEMORY, fit
from ...fitting.record import Fit, FitOption, counted, fullest_device_bytes
from ...fitting.subject import NO_OTHER_BATCH, Subject, model_code
from ...graph import OpGraph, Step
from ...graph.units import format_us, plural
from ...internal_warnings import collected_notes
from ...memo import Memo
from ...passes.optimize import PASSES
from ...placers.memory_trades.memory_ladder import FAST_PLACERS
from ...step_summary import change_in_words
from ...viz.layout import BYTES, UNITS, scale
from ..advice import placed_timeline
from ..background import Ticket
from ..compute import Outcome, Report, TrainingStep, is_torch_step, silent, source
from ..compute import Subject as BenchSubject
from ..fit_view import FitView
from ..glossary import tip
from ..guard import Guard
from ..setting import Setting
from ..tasks import Tasks
from ..views.table_view import Column, TableView, quantity
from .compare_panel import USE
from .parts import WIDE, button, for_people, note, row, say, set_class

GRAPH_ALONE = "a graph has the times of one batch: choose a model in Setting"
OWN_BATCH = "a given training step has its own batch: choose a model in Setting for others"
MEASURED_BATCH = "the times of one batch were measured: estimated times are known for others"
"""What the workbench says instead of `NO_OTHER_BATCH`, which speaks to people who write code."""


AGAINST = ", against as it is"
"""Part of the heads of columns that compare an option with the first row."""
MOST_ON_A_LINE = 8
"""Peaks of so many devices stand on one line of a cell."""


class FitPanel:
    """A button, the answer in one sentence, and a point and a row per option."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.ask = button("Will it fit?", "try more devices, recomputation and offloading, each simulated", self._ask)
        self.state, self.rows = note(), TableView("options to make the step fit", lambda row, _: self._use(row))
        say(self.state, "Says whether the graph fits these devices, and what each option to make it fit costs.")
        self.answer: Fit | None = None
        self.answered_setting: Setting | None = None
        self.settings: Sequence[Setting | None] = ()
        self.outdated, self.points = note(), ipywidgets.VBox([], layout=WIDE)
        self.results = ipywidgets.VBox([self.state, self.points, self.rows], layout=WIDE)
        self.widget = ipywidgets.VBox([row(self.ask, self.outdated, wrap=False), self.results], layout=WIDE)
        self.model.on("setting", lambda _: self._refresh())

    def _ask(self) -> None:
        with Guard(self.model.fail):
            setting, model = self.model.setting, self.model
            shown_outcome = None if model.stale else model.outcome
            plain = (
                shown_outcome is not None
                and shown_outcome.executed_graph is shown_outcome.graph
                and not shown_outcome.placement.replicas
                and not setting.recompute
            )
            placement = shown_outcome.placement if shown_outcome is not None and plain else None

            def work(ticket: Ticket) -> tuple[Fit, list[Column], list[Setting | None]]:
                subject = fit_subject(setting, lambda at: source(at, model.subject, model.memo, ticket.report))
                tell = lambda option: ticket.report(f"will it fit: {option}")  # noqa: E731
                answer = fit(subject, setting.cluster, every_option=True, placement=placement, callback=tell)
                step, _ = source(setting, model.subject, model.memo)
                check: Report = lambda *_: ticket.check()  # noqa: E731
                settings = [
                    option_setting(option, setting, model.subject, model.memo, check) for option in answer.options
                ]
                return answer, option_columns(answer.options, why_no_other_batch(setting, step)), settings

            def show(result: tuple[Fit, list[Column], list[Setting | None]]) -> None:
                self.answered_setting, self.settings = setting, result[2]
                self.show(result[0], result[1], shown_outcome)

            self.tasks.start("the search for options that fit", work, show)

    def _use(self, row: int) -> None:
        with Guard(self.model.fail):
            if (setting := self.settings[row]) is not None:
                self.model.enter(setting)

    def _refresh(self) -> None:
        """Shows whether the answer still belongs to the setting."""
        is_outdated = self.answered_setting is not None and self.model.setting != self.answered_setting
        say(
            self.outdated,
            "These options belong to another setting; press the button to renew them." if is_outdated else "",
        )
        set_class(self.results, "bl-outdated", is_outdated)

    def show(self, answer: Fit, columns: Sequence[Column], shown_outcome: Outcome | None = None) -> None:
        """Shows the answer, its options as points and as a table with `columns`.

        The header showed `shown_outcome` at the question.
        """
        self.answer = answer
        say(
            self.state,
            " ".join(filter(None, (answer.answer, unlike(answer, shown_outcome), for_people(answer.caveat)))),
            "good" if answer.fits else "bad",
        )
        self.model.emit("announced", answer.answer)
        self.points.children = [FitView(answer)]
        extras: list[dict[str, object]] = [
            {
                "marked": option is answer.best,
                "actions": [{"name": USE, "hint": "change the setting so: its step and peaks are those of this row"}]
                if setting is not None and setting != self.answered_setting
                else [],
            }
            for option, setting in zip(answer.options, self.settings, strict=True)
        ]
        self.rows.show(columns, extras)
        self._refresh()


def why_no_other_batch(setting: Setting, step: TrainingStep | None) -> str:
    """Says why `bl.fit` was not asked for other batches, for which `fit_subject` has no function."""
    if step is None:
        return GRAPH_ALONE
    is_built = isinstance(step, Step) and step.built_from is not None
    return MEASURED_BATCH if is_built and setting.profile == "measured" else OWN_BATCH


def option_columns(options: Sequence[FitOption], no_other_batch: str = GRAPH_ALONE) -> list[Column]:
    """Returns the columns of a table of options that are not empty, each in one unit.

    `no_other_batch` says why other batches were not tried.
    """
    peaks = [option.peaks_of_devices_and_hosts for option in options]
    # The step as it is stands in the header: its unit is that of the column.
    step_units = (scale(options[0].step_us, UNITS),) if options[0].timeline else UNITS
    # Why an option could not be simulated stands where others say what they give up.
    disadvantages = [option.gives_up if option.timeline else option.error for option in options]
    columns = [
        Column("option", [option.kind for option in options], hint="a change that may make the step fit"),
        Column("choice", [option.choice_in_words for option in options], hint="how much of the change"),
        Column(
            "fits",
            [option.fits_in_words for option in options],
            hint="in doubt: it fits in the simulation, but the framework may hold more",
        ),
        quantity("step time", [option.step_us for option in options], step_units, tip("step time")),
        quantity("samples/s", [option.samples_per_second for option in options], hint=tip("samples/s")),
        _fullest_column(options),
        _peaks_column("peak of each device", [devices for devices, _ in peaks], tip("peak")),
        _peaks_column("host", [hosts for _, hosts in peaks], tip("host")),
        Column(
            f"gives up{AGAINST}",
            [no_other_batch if text == NO_OTHER_BATCH else text for text in disadvantages],
            hint="what is worse than in the step as it is, the first row, or why it was not simulated; an option gains nothing "
            f"if its step is not shorter and its fullest device holds at most {LEAST_MEMORY:.1%} less",
        ),
    ]
    return [column for column in columns if any(column.texts)]


def _fullest_column(options: Sequence[FitOption]) -> Column:
    """Returns a column of the fullest device's peak, with its change against that of the step as it is."""
    values = [fullest_device_bytes(option) if option.timeline else None for option in options]
    hint = "peak of the fullest device, with its change against that of the step as it is, the first row"
    peaks = quantity("fullest device", values, BYTES, hint, most_decimals=2)
    changes = [f"\xa0({change_in_words(v, values[0])})" if v is not None and values[0] else "" for v in values]
    texts = [f"{text}{change}" for text, change in zip(peaks.texts, ["", *changes[1:]], strict=True)]
    return replace(peaks, name=f"{peaks.name}{AGAINST}", texts=texts)


def _peaks_column(name: str, peaks: Sequence[Sequence[int]], hint: str) -> Column:
    """Returns a column of several peaks per row, all in one unit, which sorts by the largest; equal neighbours are counted."""
    all_peaks = quantity(name, list(chain.from_iterable(peaks)), BYTES, hint, most_decimals=2)
    remaining_texts = iter(all_peaks.texts)
    rows = [list(islice(remaining_texts, len(row))) for row in peaks]
    return replace(
        all_peaks,
        texts=[(", " if len(row) > MOST_ON_A_LINE else ",\xa0").join(counted(row)) for row in rows],
        values=[max(row, default=None) for row in peaks],
    )


def option_setting(
    option: FitOption, setting: Setting, subject: BenchSubject | None, memo: Memo, report: Report = silent
) -> Setting | None:
    """Returns the setting whose step and peaks are those of the option; None if no setting has them.

    There is none for what is offloaded, for the recomputation of some ops only, and for a placement that no fast placer makes.
    """
    placement, timeline, cluster = option.placement, option.timeline, option.cluster
    if (
        placement is None
        or timeline is None
        or cluster is None
        or not option.fits
        or placement.placer not in FAST_PLACERS
    ):
        return None
    micro_batch = timeline.micro_batch
    changes: dict[str, object] = {
        "cluster": cluster,
        "recompute": "".join(str(value) for value in option.recomputation.values()),
        "placer": placement.placer,
        "params": {},
        "scheduler": None,
        "micro_batches": None if micro_batch is None else int(np.max(micro_batch)) + 1,
        "schedule": None if micro_batch is None else "1f1b",
        "replicas": 1,
        "moves": (),
        "start": None,
    }
    if "batch" in option.kind:
        changes["batch_size"] = option.batch_size
    for passes in (PASSES, ()):
        with suppress(BaechiLabError), collected_notes():  # the answer says what an option gives up
            changed_setting = setting.replace(**changes, passes=passes, forward_only="auto")
            changed = placed_timeline(changed_setting, source(changed_setting, subject, memo)[1], memo, report)
            if changed.makespan_us == option.step_us and changed.peak_bytes.tolist() == option.peak_bytes:
                return changed_setting
    return None


def fit_subject(setting: Setting, build: Callable[[Setting], tuple[TrainingStep | None, OpGraph]]) -> Subject:
    """Returns the argument of `bl.fit`: the graph of the whole batch, or a function of the batch for what is estimated."""
    setting = replace(setting, recompute="")
    undivided_setting = replace(setting, micro_batches=None, schedule=None, replicas=1)
    step, graph = build(setting)
    if is_torch_step(step):
        return Subject(graph if setting.micro_batches is None else build(undivided_setting)[1], step.batch_size, None)
    rebuild = lambda batch: build(replace(undivided_setting, batch_size=batch))[1]  # noqa: E731
    if setting.is_program and setting.batch_size is not None:
        code = f"bl.profile_program({setting.path!r}, hardware={setting.hardware!r}, batch_size=BATCH)"
        return Subject(rebuild(setting.batch_size), setting.batch_size, rebuild, code)
    if not isinstance(step, Step) or step.built_from is None or setting.profile != "estimated":
        return Subject(graph, None, None)
    built_from = step.built_from
    size = setting.batch_size or built_from.batch_size
    code = model_code(built_from.model, built_from.other_params, setting.hardware)
    return Subject(rebuild(size), size, rebuild, code)


def unlike(answer: Fit, shown_outcome: Outcome | None) -> str:
    """Says why the step as it is differs from the header's; empty if it does not, or if there is none."""
    first = answer.options[0]
    if shown_outcome is None or first.timeline is None:
        return ""
    if first.placement is shown_outcome.placement:
        step_us = shown_outcome.timeline.makespan_us
        change_text = f"{change_in_words(first.step_us, step_us)} against the {format_us(step_us)} above"
        order = f", in the order of the placement itself ({change_text})" if first.step_us != step_us else ""
        return (
            f"The first row has the placement above{order}. The others have the fastest of {', '.join(FAST_PLACERS)}; those with "
            "more devices keep the placement above where it is faster."
        )
    change = change_in_words(first.step_us, shown_outcome.timeline.makespan_us)
    if change == "no change":
        return ""
    if shown_outcome.executed_graph is not shown_outcome.graph:
        count, above = shown_outcome.setting.micro_batches or 1, format_us(shown_outcome.timeline.makespan_us)
        # A graph without a training step is the one of a micro-batch, which is all that is known of it.
        as_it_is = "As it is, in one batch" if shown_outcome.step is not None else "As it is, the graph runs once"
        return f"{as_it_is}; the {above} above are of {count:,} {plural('micro-batch', count)}."
    by = first.placement.placer if first.placement is not None else ""
    kept_outputs = " with nothing computed again," if shown_outcome.setting.recompute else ""
    above = format_us(shown_outcome.timeline.makespan_us)
    return f"As it is,{kept_outputs} placed by {by} here ({change} against the {above} above)."
