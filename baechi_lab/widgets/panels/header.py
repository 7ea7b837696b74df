"""The header of the workbench: the numbers of the current placement, advice, progress, undo and redo, and the last problem."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import ipywidgets

from ...graph import OpGraph
from ...graph.units import format_bytes, format_us, plain_number, plural, times_in_one_unit
from ...profilers.estimate_record import main_error_in_words
from ...profilers.machine_load import describe_repeats
from ...step_summary import SLOWER, against_one_device, change_in_words, gap_in_words
from ..advice import MOST_ADVICE, Advice
from ..comparing import name_of, order_name
from ..compute import Outcome
from ..controls import HTML, shared
from ..glossary import name_with_tooltip, with_term_tooltips
from ..guard import Guard, Problem
from ..model import FIRST_PLACER, WorkbenchModel
from ..setting import Setting
from ..tasks import Tasks
from ..views.verdict_view import VerdictView
from .parts import WIDE, button, row, say, set_class


class AdviceRow:
    """One advice in a neutral colour: the first click applies it, the next one undoes it."""

    def __init__(self, apply: Callable[[Advice], None], undo: Callable[[], object]):
        self.sentence = HTML(layout=shared(ipywidgets.Layout))
        self.apply = button("", "change the setting so", self._apply_or_undo, style="")
        self.widget = row(self.sentence, self.apply, classes=["bl-advice", "bl-one-advice"], hidden=True)
        self.advice: Advice | None = None
        self.applied = False
        self._apply, self._undo = apply, undo

    def _apply_or_undo(self) -> None:
        if self.applied:
            self._undo()
        elif self.advice is not None:
            self._apply(self.advice)

    def show(self, advice: Advice | None, is_applied: bool = False) -> None:
        """Shows an advice, or none; `is_applied` says whether it is in force."""
        self.advice, self.applied = advice, is_applied
        self.widget.layout.display = "none" if advice is None else "flex"
        self.sentence.value = "" if advice is None else advice_as_html(advice, is_applied)
        self.apply.description = "" if advice is None else "Undo this" if is_applied else advice.button


def advice_as_html(advice: Advice, is_applied: bool) -> str:
    """Returns an advice as HTML, in which only the cause is shortened where there is little room."""
    cause = f"Applied: {advice.cause}" if is_applied else advice.cause[:1].upper() + advice.cause[1:]
    colon = ":" if advice.change else ""
    change = f'<span class="bl-advice-change"> {html.escape(advice.change)}</span>' if advice.change else ""
    hint = f"{cause} ({advice.details})" if advice.details else cause
    words = f'<span class="bl-advice-cause" title="{html.escape(hint)}">{with_term_tooltips(cause)}{colon}</span>'
    return f'<div class="bl-note bl-advice-text">{words}{change}</div>'


GOALS = ("makespan_us", "step_us", "period_us")
"""The column of `auto`'s table that its objective fills."""


class Header:
    """Facts of the outcome, and problems that unfold. The workbench places `buttons` (history) and `progress` elsewhere.

    `on_fit` is called to ask what would make a setting fit of which no placement does.
    """

    def __init__(self, model: WorkbenchModel, tasks: Tasks):
        self.model, self.tasks = model, tasks
        self.facts = HTML(layout=WIDE)
        self.undo = button("Undo", "take back the last change (Ctrl+Z in the graph)", model.undo)
        self.redo = button("Redo", "do it again (Ctrl+Y in the graph)", model.redo)
        self.bar = ipywidgets.FloatProgress(min=0.0, max=1.0, layout=ipywidgets.Layout(width="auto", height="5px"))
        self.doing = HTML(layout=shared(ipywidgets.Layout))
        self.cancel = button("Cancel", "stop; the last result stays", self._cancel)
        self.keep = button("Keep the best", "end the search here with the best placement it has found", model.enough)
        self.again = button("Compute", "compute the result of the present setting", model.refresh, style="warning")
        self.mark = HTML()  # beside the buttons: a line of its own would push the views down at every change
        # Two lines at most, as high as the buttons: nothing below moves while something is under way.
        progress_box = ipywidgets.VBox(
            [self.bar, self.doing], layout=shared(ipywidgets.Layout), _dom_classes=["bl-told"]
        )
        self.progress = row(progress_box, self.keep, self.cancel, wrap=False)
        self.progress.layout.flex = "1 1 0"
        self.problem = HTML(layout=WIDE)
        self.dismiss = button("Dismiss", "hide this message", model.clear_problem)
        self.on_fit: Callable[[], None] = lambda: None
        fit_hint = "open Fit, which tries more devices, recomputation and offloading, and simulates each"
        self.ask_fit = button("What would make it fit?", fit_hint, lambda: self.on_fit(), style="")
        self.problem_row = row(
            self.problem, self.ask_fit, self.dismiss, wrap=False, classes=["bl-problem-row"], hidden=True
        )
        self.buttons = row(self.undo, self.redo, self.again, self.mark, self.progress)
        # Where that width is not left beside the tabs, the buttons have a line of their own.
        self.buttons.layout = ipywidgets.Layout(
            flex="1 1 260px", align_items="center", margin="0 0 0 14px", width="auto"
        )
        self.verdict = VerdictView()
        self.advice_rows = [AdviceRow(self._apply, model.undo) for _ in range(MOST_ADVICE)]
        self.chip = HTML(layout=shared(ipywidgets.Layout))
        self.undo_chip = button("Undo that", "back to the setting as it was", model.undo)
        self.chip_row = row(self.chip, self.undo_chip, wrap=False, classes=["bl-advice"], hidden=True)
        self.notes = HTML(layout=shared(ipywidgets.Layout))
        self.dismiss_notes = button("Dismiss", "hide these notes", model.clear_notes)
        notes_classes = ["bl-advice", "bl-notes-row"]
        self.notes_row = row(self.notes, self.dismiss_notes, wrap=False, classes=notes_classes, hidden=True)
        self._applied: tuple[Advice, Setting] | None = None
        rows = [advice_row.widget for advice_row in self.advice_rows]
        # As high as two rows also where it is empty: advice comes after the picture, and must not push it away.
        rows = [self.chip_row, *rows, self.problem_row, self.notes_row]
        self.messages = ipywidgets.VBox(rows, layout=WIDE, _dom_classes=["bl-messages"])
        self.widget = ipywidgets.VBox(
            [self.facts, self.verdict, self.messages], layout=WIDE, _dom_classes=["bl-header"]
        )
        for event, call in (
            ("outcome", self.show),
            ("stale", self._dim_while_stale),
            ("progress", self._progress),
            ("problem", self._problem),
            ("notes", self._note),
            ("history", self._history),
            ("task", self._progress),
            ("advice", self._advise),
            ("fitted", self._show_fit_note),
            ("announced", self._announce),
            ("setting", lambda _: self._advise(())),
            ("waiting", lambda text: say(self.mark, text)),
        ):
            model.on(event, call)
        self._history((False, False))
        self._progress(("", -1.0))
        self._problem(None)
        self._note(())
        self._advise(())
        self._show_fit_note("")

    def _cancel(self) -> None:
        """Ends the computation of the setting and the task; the search for advice on a shown result goes on."""
        if self.model.stale:
            self.model.cancel()
        self.tasks.cancel()

    def show(self, outcome: Outcome) -> None:
        """Shows the numbers of an outcome; an error leaves none, as the previous ones would be wrong.

        They are replaced and not removed before: what is below them would move up for a moment, away from a click.
        """
        try:
            self.text = self._facts_as_html(outcome)
            self.verdict.show(outcome)
        except Exception:
            self.text = self.facts.value = ""
            self.verdict.clear()
            raise
        fitting = "fits" if outcome.timeline.feasible else "does not fit"
        self.verdict.announcement = (
            f"step time {format_us(outcome.timeline.makespan_us)}, {fitting}, placed by {outcome.setting.placer}"
        )
        self._dim_while_stale(self.model.stale)

    def _facts_as_html(self, outcome: Outcome) -> str:
        line, fits = outcome.timeline, outcome.timeline.feasible
        facts = facts_of(outcome, self.model.before)
        spans = [f"<span>{name_with_tooltip(k)} <b>{with_term_tooltips(v)}</b></span>" for k, v in facts]
        spans.insert(1, f'<span class="bl-{mood(outcome)}">{"fits" if fits else "does not fit"}</span>')
        spans += [] if fits else [f'<span class="bl-bad">{html.escape(line.violations[0].message)}</span>']
        reason = why_won(outcome) or why_other(outcome)
        spans += [f'<span class="bl-note">{with_term_tooltips(reason)}</span>'] if reason else []
        measurement = outcome.graph.info.get("measured", {})
        if measurement.get("busy"):
            load = f"busy machine: others used {measurement['others_share']:.2g} of {measurement['cores']} cores"
            hint = html.escape(f"while the profile was measured: {describe_repeats(measurement)}")
            spans.append(f'<span class="bl-bad" title="{hint}">{load}</span>')
        return f'<div class="bl-facts">{"".join(spans)}</div>'

    def show_nothing(self) -> None:
        """Says that no placement fits; the reason is a problem, which can be dismissed."""
        self.facts.value = '<div class="bl-facts"><span class="bl-bad">no placement of this setting fits</span></div>'
        self.verdict.announcement = "no placement fits"

    def _advise(self, advice: Sequence[Advice]) -> None:
        """Shows one row per advice; an applied advice stays, so that it can be undone, while its setting is in force."""
        applied_advice = self._applied
        advices: list[tuple[Advice, bool]] = []
        if applied_advice is not None and applied_advice[1] == self.model.setting:
            advices.append((applied_advice[0], True))
        advices += [(one, False) for one in advice]
        for k, advice_row in enumerate(self.advice_rows):
            advice_row.show(*(advices[k] if k < len(advices) else (None, False)))

    def _apply(self, advice: Advice) -> None:
        with Guard(self.model.fail):
            self._applied = advice, self.model.setting.replace(**advice.changes)
            self.model.apply(advice)

    def _show_fit_note(self, sentence: str) -> None:
        self.chip_row.layout.display = "flex" if sentence else "none"
        if sentence:
            self.advice_rows[-1].show(None)  # two rows have room
        say(self.chip, sentence)

    def _announce(self, sentence: str) -> None:
        """Has screen readers say a sentence."""
        self.verdict.announcement = sentence

    def _dim_while_stale(self, stale: bool) -> None:
        text = getattr(self, "text", "")
        self.facts.value = f'<div class="bl-stale">{text}</div>' if stale else text
        text = "out of date: the numbers are those of an earlier setting"
        if self.model.preliminary:
            text = f"the numbers are those of {FIRST_PLACER}; {self.model.setting.placer} has no answer yet"
        say(self.mark, text if stale else "")
        self.again.layout.display = "none"

    def _progress(self, progress: tuple[str, float]) -> None:
        text, share = progress
        if text:
            self._dim_while_stale(self.model.stale)  # the text from before the start is removed
        self.progress.layout.visibility = "visible" if text else "hidden"
        self.bar.value = max(share, 0.0)
        self.keep.layout.display = "inline-flex" if text and self.model.worker.points else "none"
        self.mark.layout.display = "none" if text else ""  # the facts are dim, and there is little room
        self.doing.value = f'<span class="bl-note" title="{html.escape(text)}">{html.escape(text)}</span>'
        # After a cancelled computation nothing but a change would ever bring the result up to date.
        self.again.layout.display = "none" if text or not self.model.stale else "inline-flex"

    def _problem(self, problem: Problem | None) -> None:
        self.problem_row.layout.display = "flex" if problem else "none"
        set_class(self.messages, "bl-with-problem", problem is not None)
        self.ask_fit.layout.display = "inline-flex" if problem is not None and problem.asks_fit else "none"
        set_class(self.messages, "bl-with-remedy", problem is not None and problem.remedy is not None)
        if problem is not None:
            if problem.remedy is not None:
                self._advise((problem.remedy,))
            details = f"<details><summary>details</summary><pre>{html.escape(problem.details)}</pre></details>"
            text = html.escape(problem.sentence)
            self.problem.value = (
                f'<div class="bl-problem" role="alert"><span title="{text}">{text}</span>{details}</div>'
            )

    def _note(self, notes: Sequence[str]) -> None:
        """Shows what was warned of, as the command line prints it; the whole text unfolds."""
        self.notes_row.layout.display = "flex" if notes else "none"
        set_class(self.messages, "bl-with-notes", bool(notes))
        texts = [html.escape(f"note: {text}") for text in notes]
        lines = "".join(f"<div>{text}</div>" for text in texts[1:])
        count = f'<b class="bl-more">{len(texts) - 1} more</b>' if lines else ""
        first = f'<summary title="{texts[0]}"><span>{texts[0]}</span>{count}</summary>' if texts else ""
        self.notes.value = f'<details class="bl-notes" role="status">{first}{lines}</details>'

    def _history(self, can: tuple[bool, bool]) -> None:
        # What becomes possible comes first: in the page, the focus of the other goes there.
        for possible, one in sorted(zip(can, (self.undo, self.redo), strict=True), key=lambda pair: not pair[0]):
            one.disabled = not possible


def facts_of(outcome: Outcome, before: Outcome | None = None) -> list[tuple[str, str]]:
    """Returns the facts of an outcome as names and texts; `before` is the previous outcome, with which it is compared."""
    line, setting = outcome.timeline, outcome.setting
    count, transfer_count = outcome.coarse.n, len(line.transfers)
    groups = f" in {count:,} {plural('group', count)}" if outcome.coarse is not outcome.graph else ""
    step = line.makespan_us
    same = before is not None and same_work(before, outcome)
    text = against_one_device(step, outcome.one_device_us)
    step_text, bound_text = times_in_one_unit([step, outcome.lower_bound_us])
    fits = outcome.one_device is None or outcome.one_device.feasible
    facts = [
        ("step time", step_text),
        ("", text if fits or not text else f"{text}, on which it does not fit"),
        ("against the setting before", change_in_words(step, before.timeline.makespan_us) if same and before else ""),
        ("", f"{plain_number(outcome.samples * 1e6 / step)} samples/s" if outcome.samples and step > 0 else ""),
        ("bubble", f"{outcome.bubble:.0%}" if setting.pipeline and step > 0 else ""),
        ("lower bound", bound_text if outcome.bounds else "none"),
        ("gap", gap_in_words(outcome.gap)),
        ("peak memory", format_bytes(int(line.peak_bytes.max(initial=0)))),
        (
            "moved",
            f"{format_bytes(line.moved_bytes)} in {transfer_count:,} {plural('transfer', transfer_count)}",
        ),
        ("placed by", f"{name_of(outcome)} in {format_us(outcome.base.seconds * 1e6)}"),
        ("order", order_name(setting, outcome.base)),
        ("graph", f"{outcome.graph.n:,} {plural('op', outcome.graph.n)}{groups}"),
        ("costs", costs_in_words(outcome.graph)),
        ("", outcome.base.finer_groups),
    ]
    return [(name, value) for name, value in facts if value]


def same_work(first: Outcome, second: Outcome) -> bool:
    """Whether the steps of two outcomes do the same work: one model or graph, as many samples, both estimated or both measured.

    Where samples are unknown, a micro-batch is one run of the graph: steps of as many micro-batches do the same work.
    """
    a, b = first.setting, second.setting
    if first.samples is None and (a.micro_batches or 1) != (b.micro_batches or 1):
        return False
    return (
        (first.graph.name == second.graph.name or a.recompute != b.recompute)
        and (a.source, a.model_params, a.profile) == (b.source, b.model_params, b.profile)
        and first.samples == second.samples
    )


def costs_in_words(graph: OpGraph) -> str:
    """Says whether the durations are measured or estimated, for which hardware, and the expected error of whole models there.

    It is empty if the graph does not say.

    >>> costs_in_words(OpGraph.from_edges([1.0])), costs_in_words(OpGraph.from_edges([1.0], info={"measured": {}}))
    ('', 'measured here')
    """
    if "measured" in graph.info:
        repeats = graph.info["measured"].get("step_us", ())
        if not repeats:
            return "measured here"
        return (
            f"measured here, {len(repeats)} repeats of {' to '.join(times_in_one_unit([min(repeats), max(repeats)]))}"
        )
    estimate = graph.info.get("estimate", {})
    errors = estimate.get("expected_error", {})
    names = dict.fromkeys(estimate.get("hardware", {}).values())
    costs = [f"{name} ({main_error_in_words(errors.get(name, {}))})" for name in names]
    return f"estimated for {', '.join(costs)}" if costs else ""


def mood(outcome: Outcome) -> str:
    """Returns the kind of the note: `bad` if the step does not fit, `note` if one device alone is faster, else `good`."""
    if not outcome.timeline.feasible:
        return "bad"
    alone = outcome.one_device
    slower = alone is not None and alone.feasible and outcome.timeline.makespan_us > SLOWER * alone.makespan_us
    return "note" if slower else "good"


def why_other(outcome: Outcome) -> str:
    """Says why the step differs from the best that an anytime placer reported; empty if it hardly does."""
    groups_us, step = outcome.as_groups_us, outcome.timeline.makespan_us
    if outcome.setting.moves or not abs(step - groups_us) > 0.005 * groups_us:
        return ""
    groups_text, step_text = times_in_one_unit([groups_us, step])
    return (
        f"{outcome.setting.placer} found {groups_text} with each group as one op; their ops run one by one, and so "
        f"the step takes {step_text}"
    )


def why_won(outcome: Outcome) -> str:
    """Names the placer whose placement `auto` took, and the distance of the next one; empty for other placers."""
    winner, table = outcome.base.info.get("winner", ""), outcome.base.info.get("table", ())
    if not winner:
        return ""
    winner = winner.replace(" on the given groups", "")  # nothing else was placed
    if not any(row["feasible"] for row in table):
        return f"auto took the answer of {winner}: no placer's answer fits"
    goal = next(key for key in GOALS if key in table[0])
    fits = sorted((row for row in table if row["feasible"]), key=lambda row: row[goal])
    # A step on the screen that does not fit is one of ops, in micro-batches.
    alone = "" if outcome.timeline.feasible else " with each group as one op"
    sentence = f"auto took the answer of {winner}, the fastest of {len(fits)} that fit{alone}"
    best = fits[0]
    runner_up = next((r for r in fits if r["placer"] != best["placer"]), None)
    if runner_up is None:
        return sentence
    behind = change_in_words(runner_up[goal], best[goal]) or format_us(runner_up[goal])
    return f"{sentence}; next: {runner_up['placer']} ({'the same' if behind == 'no change' else behind})"
