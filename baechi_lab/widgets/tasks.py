"""Tasks of the workbench that run in the background: compare placers, run on devices, explain, sweep, export."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidInput
from ..frameworks import framework_of, framework_part
from ..graph import OpGraph, Run
from ..placers.memory_trades.memory_ladder import FAST_PLACERS
from .background import Background, Ticket
from .codegen import torch_names
from .comparing import CURRENT, compare_placers, comparison_in_words, name_of
from .compute import Outcome, TrainingStep, compute, is_torch_step, placed_parts, source
from .explaining import Log, explain
from .guard import Problem
from .model import WorkbenchModel
from .running import LiveRun, Runner
from .setting import GIVEN_SUBJECT, Setting

if TYPE_CHECKING:
    from pathlib import Path

    import pandas


RUN, SWEEP, COMPARISON = "the run", "the sweep", "the comparison"
MOST_OPS_HERE = 50_000
"""Most ops in the graphs of all rows of a sweep that starts no processes: its rows take less time than their start does."""


class ComparableOutcome(NamedTuple):
    """An outcome whose timeline can be shown below the current one; `placer` is that of a row of Compare, else empty."""

    label: str
    step_us: float
    placer: str = ""


class Tasks:
    """Runs one task at a time. The model emits its events: `table`, `held`, `live`, `run`, `log`, `sweep`, `script`, `written`,
    `task`.

    The argument of `task` is the `(text, share)` of the running task; an empty text if none runs.
    """

    def __init__(self, model: WorkbenchModel):
        self.model = model
        self.worker = Background(
            model.fail, lambda text, share: model.emit("task", (text, share)), take_notes=model.take_notes
        )
        self.runner = Runner(self.worker, self._came_on)
        self.table: pandas.DataFrame | None = None
        self.table_of: Outcome | None = None
        self.pinned: Outcome | None = None
        self._row: tuple[str, Outcome | None] = ("", None)
        self.log: Log | None = None
        self.rows: pandas.DataFrame | None = None
        self.swept_setting: Setting | None = None
        self.measured_runs: list[tuple[Outcome, Run]] = []
        self._stop_sweep = threading.Event()
        self.job = self._refusal = ""

    def _begin_job(self, job: str) -> None:
        """Records the running task; raises while another task runs, so that none is replaced without a message."""
        if self.worker.busy:
            self._refusal = f"{self.job} is still under way: wait for it, or cancel it"
            raise InvalidInput(self._refusal)
        self.job = job
        self.model.clear_problem()

    def start(self, job: str, work: Callable[..., Any], on_result: Callable[[Any], None]) -> None:
        """Runs `work(ticket)` in the background and calls `on_result` with its result; raises while another task runs."""
        self._begin_job(job)
        if self.model.inline:
            on_result(work(Ticket(lambda text, share: None)))
        else:
            self.worker.submit(work, on_result, self._end_job)

    def cancel(self) -> None:
        """Ends the running task; runs and sweeps keep their results so far."""
        self.runner.stop()
        self._stop_sweep.set()
        # Runs and sweeps end by themselves with their results so far; any other task is dropped.
        if self.job not in (RUN, SWEEP) and self.worker.cancel():
            self._end_job()

    def _end_job(self) -> None:
        """Records that no task runs, and removes the problem that a task was rejected meanwhile."""
        self.model.emit("task", ("", -1.0))
        problem = self.model.problem
        if problem is not None and problem.sentence == self._refusal:
            self.model.clear_problem()

    @property
    def running(self) -> bool:
        """Whether a run on devices is in progress."""
        return self.worker.busy and self.job == RUN

    def outcome(self) -> Outcome:
        """The current outcome; raises while the outcome of the setting is not computed, or where it has none.

        While a remedy is searched for a setting that does not fit, its outcome is known: it has none.
        """
        outcome, stale, problem = self.model.outcome, self.model.stale, self.model.problem
        is_infeasible = problem is not None and problem.asks_fit
        if (outcome is None or stale) and self.model.worker.busy and not is_infeasible:
            raise InvalidInput("the result is not there yet: wait until it is computed")
        if outcome is None:
            raise InvalidInput("no placement of this setting fits: Fit shows what would make it fit")
        if stale:
            raise InvalidInput("this setting has no result: change it, or press Compute")
        return outcome

    # -- comparing -------------------------------------------------------------------------------------

    def compare(self, placers: Iterable[str]) -> None:
        """Places with each placer; `table` is emitted with the finished rows after each placer, and at the end."""
        outcome, names = self.outcome(), list(placers)
        if not names:
            raise InvalidInput("choose at least one placer to compare")
        memo = self.model.memo

        def on_rows(table: pandas.DataFrame) -> None:
            self.worker.deliver(lambda: self.take_comparison(outcome, table))

        def compared(table: pandas.DataFrame) -> None:
            self._set_comparison(outcome, table)
            self.model.emit("announced", comparison_in_words(table))

        self.start(
            COMPARISON,
            lambda ticket: compare_placers(outcome, memo, names, ticket.report, on_rows),
            compared,
        )

    def take_comparison(self, outcome: Outcome, table: pandas.DataFrame) -> None:
        """Shows the rows of a comparison that goes on, unless it was cancelled."""
        if self.worker.busy and self.job == COMPARISON:
            self._set_comparison(outcome, table)

    def _set_comparison(self, outcome: Outcome, table: pandas.DataFrame) -> None:
        for measured, run in self.measured_runs:
            if alike(measured, outcome) and not measured.setting.moves:
                table.loc[table["placer"] == measured.setting.placer, "measured_us"] = run.median_seconds * 1e6
        self.table, self.table_of = table, outcome
        self.model.emit("table", table)

    def use(self, placer: str) -> None:
        """Makes the placer of a row of the table the current one."""
        if placer != self.model.setting.placer:
            self.model.change(placer=placer, params={})
            if not self.model.worker.busy and self.model.stale:
                self.model.refresh()  # the placement of an anytime placer is cached
        elif self.model.setting.moves:
            self.model.change(moves=())

    def hold(self, placer: str | None = None) -> None:
        """Keeps an outcome for comparison: the current one, or that of another placer under the same setting."""
        outcome = self.outcome()
        if placer is None or (placer == outcome.setting.placer and not outcome.setting.moves):
            return self._hold(outcome)
        return self._placed_by(placer, outcome, self._hold)

    def _placed_by(self, placer: str, outcome: Outcome, on_result: Callable[[Outcome], None]) -> None:
        """Calls `on_result` with the outcome of another placer under the same setting; at once if it is cached."""
        setting = outcome.setting.replace(placer=placer, params={}, moves=())
        subject, memo = self.model.subject, self.model.memo

        return self.start("placing", lambda ticket: compute(setting, subject, memo, ticket.report), on_result)

    # -- beside the current placement ------------------------------------------------------------------

    def comparable_outcomes(self) -> dict[str, ComparableOutcome]:
        """Returns, by key, the outcomes of the previous setting, of the kept outcome, and of the rows of Compare."""
        current = self.model.outcome
        if current is None:
            return {}
        choices: dict[str, ComparableOutcome] = {}
        for key, label, outcome in (("before", "before", self.model.before), ("held", "held", self.pinned)):
            if (
                outcome is not None
                and outcome is not current
                and outcome.executed_graph.names == current.executed_graph.names
            ):
                choices[key] = ComparableOutcome(f"{label}: {name_of(outcome)}", outcome.timeline.makespan_us)
        if self.table is not None and self.table_of is not None and alike(self.table_of, current):
            rows = self.table[self.table["makespan_us"].notna() & (self.table["placer"] != CURRENT)]
            for placer, step in zip(rows["placer"], rows["makespan_us"], strict=True):
                if placer != current.setting.placer or current.setting.moves:
                    choices[f"row:{placer}"] = ComparableOutcome(placer, float(step), placer)
        return choices

    def bring(self, key: str) -> None:
        """Computes the outcome of a key of `comparable_outcomes`, and then emits `beside`."""
        choice = self.comparable_outcomes().get(key)
        if choice is None or not choice.placer or self.comparable_outcome(key) is not None:
            return self.model.emit("beside", key)

        def show(outcome: Outcome) -> None:
            self._row = (key, outcome)
            self.model.emit("beside", key)

        return self._placed_by(choice.placer, self.outcome(), show)

    def comparable_outcome(self, key: str) -> Outcome | None:
        """Returns the outcome of a key of `comparable_outcomes`; None if it is not computed."""
        if key in ("before", "held"):
            return self.model.before if key == "before" else self.pinned
        current, (had, row_outcome) = self.model.outcome, self._row
        if current is not None and row_outcome is not None and key == had and alike(row_outcome, current):
            return row_outcome
        return None

    def _hold(self, outcome: Outcome) -> None:
        self.pinned = outcome
        self.model.emit("held", outcome)

    def release(self) -> None:
        self.pinned = None
        self.model.emit("held", None)

    # -- running ---------------------------------------------------------------------------------------

    def run(self, steps: int, warmup: int = 3, kind: str = "auto", native: bool = False) -> None:
        """Runs the current placement on devices and, with `native`, the undivided step.

        `live` is emitted after steps, `run` at the end.
        """
        outcome = self.outcome()
        setting = outcome.setting
        if setting.micro_batches is None and setting.schedule:
            raise InvalidInput("a schedule without micro-batches cannot be run: say how many")
        self._begin_job(RUN)
        options: dict[str, Any] = {**({} if kind == "auto" else {"kind": kind}), **setting.pipeline}
        # torch.compile may take minutes, in which it does not stop
        options |= {"native": "eager" if is_torch_step(outcome.step) else True} if native else {}
        self.runner.start(outcome, steps, warmup, lambda run: self._keep_run(outcome, run), **options)

    def _came_on(self, live: LiveRun) -> None:
        self.model.emit("live", live)
        count = len(live.seconds)
        if live.run is None and live.phase != "starting":
            progress_text = f"step {count} of {live.planned}" if count else f"{live.phase} steps"
            self.model.emit("task", (progress_text, count / live.planned))

    def _keep_run(self, outcome: Outcome, run: Run) -> None:
        if len(run.step_seconds):
            self.measured_runs = [r for r in self.measured_runs if not same_placement(r[0], outcome)] + [(outcome, run)]
        if run.status not in ("ok", "cancelled"):
            self.model.fail(Problem(f"the run ended with status {run.status!r}: {run.message}", run.message))
        self.model.emit("run", (outcome, run))
        self._end_job()

    def run_of(self, outcome: Outcome | None) -> Run | None:
        """Returns the newest run of this placement, also if the setting has changed in between."""
        if outcome is None:
            return None
        return next(
            (
                run
                for measured_outcome, run in reversed(self.measured_runs)
                if same_placement(measured_outcome, outcome)
            ),
            None,
        )

    def measure_link(self) -> None:
        """Measures transfers between two TensorFlow devices of this machine, and sets the fitted link."""

        def work(ticket: Ticket) -> Any:
            from ..executors import measure_link

            ticket.report("timing transfers between two devices (TensorFlow)")
            return measure_link(progress=False).link

        self.start(
            "timing the link",
            work,
            lambda link: self.model.change(cluster=self.model.setting.cluster.replace(link=link)),
        )

    # -- explaining ------------------------------------------------------------------------------------

    def explain(self) -> None:
        """Makes the decision log of the current placement, and emits `log`."""
        outcome = self.outcome()

        def work(ticket: Ticket) -> Log:
            ticket.report(f"the decisions about {placed_parts(outcome.coarse)}")
            return explain(outcome)

        def show_log(log: Log) -> None:
            self.log = log
            self.model.emit("log", log)

        self.start("the decision log", work, show_log)

    # -- exporting -------------------------------------------------------------------------------------

    def export(self, folder: str) -> None:
        """Writes the training script of the current placement; `written` is emitted with the folder."""
        from ..exporters import export

        def write(step: TrainingStep, outcome: Outcome, options: dict[str, Any]) -> Path:
            return export(step, outcome.placement, folder, **options)

        self._with_step(f"writing {folder}", write, lambda path: self.model.emit("written", path))

    def preview_script(self) -> None:
        """Makes the training script of the current placement; `script` is emitted with its text."""

        def text(step: TrainingStep, outcome: Outcome, options: dict[str, Any]) -> str:
            exporter = framework_part("exporters", framework_of(step))
            return str(exporter.script(step, outcome.placement, **options))

        self._with_step("the training script", text, lambda text: self.model.emit("script", text))

    def _with_step(self, job: str, call: Callable[..., object], on_result: Callable[[Any], None]) -> None:
        """Starts `call(step, outcome, options)` with the arguments of `bl.export` for the setting."""
        outcome = self.outcome()
        step, setting = outcome.step, outcome.setting
        if step is None:
            raise InvalidInput(
                "a graph has no training script: open the workbench with a training step, or choose a model"
            )
        options: dict[str, Any] = {"graph": outcome.graph, **setting.pipeline}
        if is_torch_step(step):
            options |= {"cluster": setting.cluster, "devices": torch_names(setting.cluster)}

        def work(ticket: Ticket) -> Any:
            ticket.report(job)
            return call(step, outcome, options)

        self.start(job, work, on_result)

    # -- sweeping --------------------------------------------------------------------------------------

    def sweep(self, grid: dict[str, Any], path: str | None = None) -> None:
        """Runs `bl.sweep` of the current source with the current passes; `sweep` is emitted with every row."""
        from ..sweeps import sweep

        setting, subject, memo = self.model.setting, self.model.subject, self.model.memo
        target: Any = setting.model or subject
        if not setting.model and setting.batch_size is None:
            # Where no placement fits, a sweep finds the devices and memory for which one does.
            target = self.outcome().graph if self.model.outcome is not None else source(setting, subject, memo)[1]
        undivided_setting = setting.replace(micro_batches=None, schedule=None, replicas=1)
        if setting.batch_size is not None and (setting.is_program or setting.recompute):
            target = lambda size: source(undivided_setting.replace(batch_size=size), subject, memo)[1]  # noqa: E731
        if setting.source == GIVEN_SUBJECT and is_torch_step(subject):
            batch = subject.batch_size
            if batch is None:
                subject.micro_batches(max(grid.get("micro_batches", [1])))  # raises if the batch cannot be cut
            else:
                grid = {**grid, "batch_size": [batch]}

                def micro_batch_graph(size: int) -> OpGraph:
                    """Returns the graph of a micro-batch of `size`; that of the whole batch is the profile on the screen."""
                    count = None if size == batch else batch // size
                    return source(undivided_setting.replace(micro_batches=count), subject, memo)[1]

                target = micro_batch_graph
        if target is None:
            raise InvalidInput("choose a model or a graph to sweep over")
        self._begin_job(SWEEP)
        self.swept_setting = setting
        self._stop_sweep = stop = threading.Event()
        rows: list[dict[str, Any]] = []
        count = math.prod(len(values) for values in grid.values())
        options: dict[str, Any] = {
            "cluster": setting.cluster,
            "passes": setting.passes,
            "forward_only": setting.forward_only,
            "scheduler": None if grid.get("schedule") else setting.scheduler,
            "params": {setting.placer: dict(setting.params)} if setting.placer in grid["placer"] else {},
            "profile": setting.profile,
            "hardware": setting.hardware if setting.profile == "estimated" else None,
            "model_params": dict(setting.model_params),
            "path": path,
            "cancel": stop,
            "progress": False,
        }

        def work(ticket: Ticket) -> Any:
            ticket.report("starting the sweep", 0.0)

            def on_row(row: dict[str, Any]) -> None:
                rows.append(row)
                ticket.report(f"{len(rows)} of {count} combinations", len(rows) / count)
                copy = list(rows)
                self.worker.deliver(lambda: self._sweep_row(copy))

            return sweep(target, on_row=on_row, **options, **grid)

        outcome = self.model.outcome
        ops = math.inf if outcome is None or isinstance(target, str) else count * outcome.graph.n
        if self.model.inline or (ops <= MOST_OPS_HERE and set(grid["placer"]) <= set(FAST_PLACERS)):
            options["executor"] = "here"
        if self.model.inline:
            self._swept(work(Ticket(lambda text, share: None)))
        else:
            self.worker.submit(work, self._swept, self._end_job)

    def _sweep_row(self, rows: list[dict[str, Any]]) -> None:
        import pandas as pd

        from ..sweeps.store import COLUMNS

        if self.worker.busy and self.job == SWEEP:
            # The first rows may be errors, which have no numbers.
            self.model.emit("sweep", pd.DataFrame(rows).reindex(columns=list(COLUMNS)))

    def _swept(self, table: pandas.DataFrame) -> None:
        self.rows = table
        self.model.emit("sweep", table)
        self.model.emit("announced", f"{len(table):,} combinations computed")


def alike(first: Outcome, second: Outcome) -> bool:
    """Whether two settings differ only in the placer, its start and the moves by hand."""
    a, b = (o.setting.replace(placer="", params={}, moves=()) for o in (first, second))
    return a == b and first.graph is second.graph


def same_placement(first: Outcome, second: Outcome) -> bool:
    """Whether two outcomes have the same graph, devices of ops, planned order and micro-batches."""
    if first is second:
        return True
    if first.setting.pipeline != second.setting.pipeline:
        return False
    a, b = first.placement, second.placement
    if first.setting.cluster.names != second.setting.cluster.names or first.graph.key != second.graph.key:
        return False
    same_rank = a.rank is b.rank or (a.rank is not None and b.rank is not None and np.array_equal(a.rank, b.rank))
    return np.array_equal(a.device, b.device) and same_rank
