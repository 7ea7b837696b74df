"""The workbench without widgets: a setting with undo and redo, the newest outcome, a selection, and the running work.

Views subscribe with `on(event, call)`; `call` gets the event's argument:

| event | argument |
|---|---|
| `setting` | the new Setting |
| `outcome` | the new Outcome |
| `previews` | the effect of moving the selection, MovePreview by device name |
| `advice` | improvements of the outcome that comes next, a tuple of Advice |
| `fitted` | the change that made the first outcome fit, in words; empty when it is undone |
| `stale` | True while the shown outcome is older than the setting |
| `progress` | `(text, share)`; an empty text if nothing runs |
| `waiting` | the reason why an anytime placer has not started yet |
| `problem` | a Problem, or None when it is over |
| `notes` | what this package warned of for the graph of the setting, a tuple of texts |
| `selection` | the selected ops of the graph, ascending |
| `history` | `(can undo, can redo)` |
| `announced` | what a screen reader says of a result that is no outcome |
| `task`, `table`, `held`, `live`, `run`, `log`, `sweep`, `script`, `written` | see `tasks.py` |
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from ..errors import InfeasiblePlacement, InvalidInput
from ..graph import Cluster, OpGraph, Step
from ..internal_warnings import collected_notes
from ..memo import Memo
from ..placers.auto import Auto
from ..placers.memory_trades.memory_ladder import FAST_PLACERS
from ..placers.registry import make_placer, placer_class
from ..placers.second_compiler import compile_for_advice
from .advice import STAGES, Advice, FittingChange, all_advice, find_fitting_change, fitting_recomputation, quick_advice
from .background import Background, DelayedCall, Ticket
from .codegen import Built, from_code, to_code
from .compute import (
    Outcome,
    Report,
    Subject,
    check_micro_batches,
    compute,
    is_step,
    is_torch_step,
    silent,
    source,
    time_limit,
)
from .guard import Guard, Problem
from .history import History
from .move_previews import preview_moves
from .moves import move, named_ops, shortest_names
from .setting import GIVEN_SUBJECT, OWN, Setting, named_hardware

DELAY = 0.25
"""Seconds that a change waits for the next one, so that a dragged slider computes once."""
ADVICE_DELAY = 1.0
"""Seconds that advice waits for better advice before it is shown, so that it does not change several times a second."""
FIRST_PLACER, LARGE_GRAPH = "m-etf", 5_000
"""The placer whose placement is shown first, and the ops of a graph from which placers that are not fast take seconds."""


class WorkbenchModel:
    """State and commands of the workbench, without widgets.

    Args:
        subject: a Step, a TorchStep, an OpGraph, or None to start from a model or file.
        setting: the first setting.
        inline: compute at once instead of in the background, for tests and scripts.

    While `is_drawn` is False, nobody sees the first picture yet, and no advice delays it.

    >>> model = WorkbenchModel(OpGraph.from_edges([5, 10], [(0, 1, 8)]), Setting(Cluster.uniform(2)), inline=True)
    >>> model.compute_now().timeline.makespan_us
    15.0
    """

    def __init__(self, subject: Subject | None, setting: Setting, *, inline: bool = False):
        if not (is_step(subject) or isinstance(subject, (OpGraph, type(None)))):
            hint = "bl.torch.TorchStep makes the step of a PyTorch model, bl.trace that of a TensorFlow function"
            if isinstance(getattr(subject, "graph", None), OpGraph):  # a recording, or the result of a pipeline
                hint = "give its graph"
            elif isinstance(subject, (str, PurePath)):
                hint = "source='file:PATH' names a file, source='model:NAME' a benchmark model"
            raise InvalidInput(f"a workbench opens on a step or an OpGraph, not on {type(subject).__name__}; {hint}")
        if subject is None and setting.source == GIVEN_SUBJECT:
            raise InvalidInput("a workbench needs a graph, a step, or a setting that names a model or a file")
        self.subject, self.inline = subject, inline
        self.memo = Memo(64)
        self.history = History(setting)
        self.outcome: Outcome | None = None
        self.first: Outcome | None = None
        self.before: Outcome | None = None
        self.advice: tuple[Advice, ...] = ()
        self.fitted: Setting | None = None
        self.stale = False
        self.is_drawn = True
        self.problem: Problem | None = None
        self._rejection: Problem | None = None
        self.selection: tuple[int, ...] = ()
        self._opening_setting = setting
        self._confirmed = (setting.placer, setting.params)
        self._computed: deque[Setting] = deque(maxlen=self.memo.size)
        self._listeners: dict[str, list[Callable[[Any], None]]] = defaultdict(list)
        self._noted: list[tuple[Setting, str]] = []
        self.worker = Background(self.fail, self._progress, DELAY, self.take_notes)
        self.previewer = Background(lambda _: self.emit("previews", {}), lambda *_: None, DELAY, self.take_notes)

    # -- events ----------------------------------------------------------------------------------------

    def on(self, event: str, call: Callable[[Any], None]) -> None:
        """Calls `call(argument)` whenever `event` happens."""
        self._listeners[event].append(call)

    def emit(self, event: str, argument: object = None) -> None:
        """Calls the listeners of `event`; an error in one is shown, and the others are still called."""
        for call in list(self._listeners[event]):
            with Guard(self.fail if event != "problem" else lambda problem: None):
                call(argument)

    def fail(self, problem: Problem) -> None:
        """Shows a problem."""
        self.problem = problem
        self.emit("problem", problem)
        if problem.asks_fit and problem.remedy is None:
            self._search_remedy(problem)

    def _search_remedy(self, problem: Problem) -> None:
        """Searches for a recomputation with which the setting fits, and adds it to the problem if that is still shown."""
        setting, subject, memo = self.setting, self.subject, self.memo

        def show(advice: Advice | None) -> None:
            if advice is not None and self.problem is problem:
                self.fail(replace(problem, remedy=advice))

        if self.inline:
            show(fitting_recomputation(setting, subject, memo))
        else:
            self.worker.submit(
                lambda ticket: fitting_recomputation(setting, subject, memo, lambda *_: ticket.check()), show
            )

    def reject(self, problem: Problem) -> None:
        """Shows why a value was rejected. The message belongs to no result: `forget_rejection` removes it."""
        self._rejection = problem
        self.fail(problem)

    def forget_rejection(self) -> None:
        """Removes the message on a rejected value, if it is still shown."""
        if self.problem is not None and self.problem is self._rejection:
            self.clear_problem()

    @property
    def notes(self) -> tuple[str, ...]:
        """What this package warned of for the graph of the setting, in order, each text once."""
        return tuple(
            dict.fromkeys(
                text
                for setting, text in self._noted
                if setting.same_graph(self.setting)
                and (not setting.pipeline or setting.pipeline == self.setting.pipeline)
            )
        )

    def take_notes(self, notes: Iterable[str]) -> None:
        """Keeps warnings of an action for as long as its graph is shown: what is cached does not warn again."""
        self._noted += [(self.setting, text) for text in notes]
        self.emit("notes", self.notes)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Takes the notes of what is done within this context, in this thread."""
        with collected_notes() as notes:
            try:
                yield
            finally:
                if notes:
                    self.take_notes(notes)

    def apply(self, advice: Advice) -> None:
        """Changes the setting as the advice says. Its notes are taken: what was computed for the advice does not warn again."""
        self.change(**advice.changes)
        self.take_notes(advice.notes)

    def clear_notes(self) -> None:
        """Removes the shown notes."""
        self._noted = [(setting, text) for setting, text in self._noted if not setting.same_graph(self.setting)]
        self.emit("notes", ())

    def clear_problem(self) -> None:
        """Removes the shown problem."""
        if self.problem is not None:
            self.problem = None
            self.emit("problem", None)

    def _progress(self, text: str, share: float) -> None:
        preliminary_note = f"; {FIRST_PLACER} is shown until then" if text and self.preliminary else ""
        self.emit("progress", (f"{text}{preliminary_note}", share))

    # -- setting ---------------------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        """The present setting; the first outcome for it may still be computed."""
        return self.history.current

    def change(self, **changes: object) -> None:
        """Changes fields of the setting; stages that depend on them are computed again, the others are cached.

        A placer that can start from a placement starts from the shown one.
        """
        setting = self.setting.replace(**changes)
        if setting.placer != self.setting.placer and self._can_start(setting):
            other_changes = {key: value for key, value in changes.items() if key not in OWN}
            setting = setting.replace(start=self.setting.replace(**other_changes))
        self.enter(setting)

    def _can_start(self, setting: Setting) -> bool:
        """Whether the placer can start from the shown placement, and its parameters name no other start."""
        shown_outcome = self.outcome
        fits = shown_outcome is not None and shown_outcome.setting == self.setting and shown_outcome.timeline.feasible
        return fits and "start" in placer_class(setting.placer).__dataclass_fields__ and "start" not in setting.params

    def enter(self, setting: Setting) -> None:
        """Replaces the whole setting. If it raises, the previous setting stays.

        Raises:
            BaechiLabError: the file of the setting cannot be read, a parameter of the placer is invalid, or there are too
                many micro-batches.
        """
        if setting == self.setting:
            self.clear_problem()  # it belongs to an earlier change
            return
        make_placer(setting.placer, **setting.placer_params)
        if setting.source == GIVEN_SUBJECT and setting.micro_batches is not None and is_torch_step(self.subject):
            self.subject.micro_batches(setting.micro_batches)  # raises if its batch cannot be cut so
        with collected_notes() as notes:
            if setting.path and setting.path != self.setting.path:
                source(setting, self.subject, self.memo)
        shown_outcome = self.outcome
        if shown_outcome is not None and setting.same_graph(shown_outcome.setting):
            check_micro_batches(setting, shown_outcome.graph)
            for op_name, device in setting.moves:
                named_ops(shown_outcome.graph, op_name)
                setting.share.index(device)
        self.history.push(setting)
        self._noted += [(setting, text) for text in notes]
        self._announce_and_compute()

    def undo(self) -> bool:
        """Goes back to the previous setting; returns False if there is none."""
        return self._step(self.history.undo())

    def redo(self) -> bool:
        """Goes forward to the undone setting; returns False if there is none."""
        return self._step(self.history.redo())

    def _step(self, has_moved: bool) -> bool:
        """Announces the setting after a step in the history; returns whether there was one."""
        if has_moved:
            self._announce_and_compute()
        return has_moved

    def _announce_and_compute(self) -> None:
        """Announces a new setting and computes it, unless a search with new limits waits for the user."""
        self.clear_problem()
        if self.fitted is not None and self.setting != self.fitted:
            self.fitted = None
            self.emit("fitted", "")
        self.emit("setting", self.setting)
        self.emit("notes", self.notes)
        self.emit("history", (self.history.can_undo, self.history.can_redo))
        setting = self.setting
        # The result of a search that was computed earlier is cached.
        is_confirmed = (setting.placer, setting.params) == self._confirmed or setting in self._computed
        if not (self.inline or is_confirmed) and placer_class(setting.placer).anytime:
            self.worker.cancel()
            self._set_stale(self.outcome is not None)
            self._progress("", -1.0)
            seconds = time_limit(self.setting.placer, self.setting.params)
            duration_text = "until it is stopped" if seconds is None else f"up to {seconds:g} s, or until it is stopped"
            self.emit(
                "waiting",
                f"{self.setting.placer} works {duration_text}: set its limits under Advanced, then press Compute",
            )
        else:
            self.refresh()

    def enough(self) -> None:
        """Ends the running placer with its best placement so far."""
        self.worker.enough()

    # -- computing -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Computes the outcome of the setting; until it arrives, the last outcome stays and is stale."""
        self._confirmed = (self.setting.placer, self.setting.params)
        self._set_stale(self.outcome is not None)
        if self.inline:
            with Guard(self.fail):
                self.compute_now()
            return
        setting, first = self.setting, self.first if self.preliminary else None
        self.worker.submit(lambda ticket: self._compute_or_fit(setting, first, ticket), self._take_computed, self._idle)

    def compute_now(self) -> Outcome:
        """Computes the outcome in this thread and returns it; errors of the stages are raised."""
        computed = self._compute_or_fit(self.setting, self.first if self.preliminary else None, None)
        self._take_computed(computed)
        return computed.outcome if isinstance(computed, FittingChange) else computed[0]

    def _compute_or_fit(
        self, setting: Setting, first: Outcome | None, ticket: Ticket | None
    ) -> tuple[Outcome, tuple[Advice, ...]] | FittingChange:
        """Computes the outcome of a setting; if it does not fit, returns `first`, the fitting one of `FIRST_PLACER`."""
        try:
            outcome, advice = self._compute(setting, ticket)
        except InfeasiblePlacement:
            if first is None:
                raise
        else:
            if first is None or outcome.timeline.feasible:
                return outcome, advice
        return FittingChange(first, f"placer ({setting.placer} to {FIRST_PLACER})")

    def _take_computed(self, computed: tuple[Outcome, tuple[Advice, ...]] | FittingChange) -> None:
        """Makes what was computed the shown outcome, and its setting, if it was changed so that it fits, the present one."""
        if isinstance(computed, FittingChange):
            self._take_fitting(computed)
        else:
            self.take_outcome(computed)

    def _take_fitting(self, fitting: FittingChange) -> None:
        """Replaces the setting by one that fits and shows its outcome; one undo takes it back."""
        self.history.push(fitting.outcome.setting)
        self._confirmed = (self.setting.placer, self.setting.params)
        self.emit("setting", self.setting)
        self.emit("history", (self.history.can_undo, self.history.can_redo))
        self.take_outcome((fitting.outcome, quick_advice(fitting.outcome, self.subject, self.memo)))
        self.fitted = self.setting
        self.emit("fitted", f"{fitting.changed} changed so that it fits")

    def open(self) -> Outcome:
        """Computes the first outcome; if it does not fit, makes the smallest change that fits, and emits it as `fitted`.

        If the placer may take seconds, the first outcome is that of `FIRST_PLACER`, and the placer continues in the background;
        if its placement does not fit, the change is to `FIRST_PLACER`.

        Raises:
            InfeasiblePlacement: no change that was tried fits.
            BaechiLabError: as the stages raise it.
        """
        if self.worker.on_loop and not self.inline:
            compile_for_advice(source(self.setting, self.subject, self.memo)[1].n)
        self.first = self._first_outcome()
        if self.first is not None:
            self.outcome = self.first
            self.emit("outcome", self.first)
            self._set_stale(True)
            # `auto` starts once the cell has ended and its picture is sent, so that it does not compete with them.
            self.worker.deliver(lambda: self.refresh() if self.preliminary else None)
            return self.first
        refusal: InfeasiblePlacement | None = None
        try:
            outcome, advice = self._compute(self.setting, None)
            if outcome.timeline.feasible:
                self.take_outcome((outcome, advice))
                return outcome
        except InfeasiblePlacement as error:
            refusal = error
        fitting = find_fitting_change(self.setting, self.subject, self.memo)
        if fitting is None:
            if refusal is not None:
                raise refusal
            self.take_outcome((outcome, advice))
            return outcome
        self._take_fitting(fitting)
        return fitting.outcome

    def _first_outcome(self) -> Outcome | None:
        """Returns the outcome of `FIRST_PLACER` under the setting if its placer may take seconds on a large graph, else None.

        It is None for a fast placer, if the setting is simulated in another order than that of its placer, if `auto` has another
        goal, if the placement does not fit in the groups of the setting, and if there is no loop on which the outcome of the
        setting could arrive.
        """
        setting = self.setting
        first_setting = setting.replace(placer=FIRST_PLACER, params={})
        has_defaults = (
            setting.scheduler is None and not setting.pipeline and setting.start is None and not setting.moves
        )
        is_slow = not setting.params if setting.placer == Auto.name else setting.placer not in FAST_PLACERS
        if self.inline or not self.worker.on_loop or not has_defaults or not is_slow:
            return None
        make_placer(setting.placer, **setting.placer_params)  # an unknown placer or parameter ends the cell
        if source(setting, self.subject, self.memo)[1].n < LARGE_GRAPH:
            return None
        try:
            outcome = compute(first_setting, self.subject, self.memo)
        except InfeasiblePlacement:
            return None
        return outcome if outcome.timeline.feasible and not outcome.base.finer_groups else None

    @property
    def preliminary(self) -> bool:
        """Whether the shown outcome is that of `FIRST_PLACER`, because the setting has none yet."""
        return self.outcome is not None and self.outcome is self.first and self.setting == self._opening_setting

    def final_outcome(self) -> Outcome | None:
        """Returns the newest outcome, and computes it before if a preliminary one is shown."""
        if self.preliminary:
            self.cancel()
            self.compute_now()
        return self.outcome

    def _compute(self, setting: Setting, ticket: Ticket | None) -> tuple[Outcome, tuple[Advice, ...]]:
        """Returns the outcome of a setting and advice, quick advice only if the rest can follow in the background."""
        report: Report = silent if ticket is None else ticket.report
        try:
            outcome = compute(setting, self.subject, self.memo, report)
        except InfeasiblePlacement as error:
            message = f"{error}; Fit shows what would make it fit"
            refusal = InfeasiblePlacement(message, error.needed_bytes, error.available_bytes, is_proof=error.is_proof)
            refusal.asks_fit = True  # type: ignore[attr-defined]
            raise refusal from error
        except InvalidInput as error:
            if setting.schedule and setting != setting.replace(**STAGES.changes):
                error.remedy = STAGES  # type: ignore[attr-defined]
            raise
        if not self.is_drawn and outcome.timeline.feasible:
            return outcome, ()
        if self.inline:
            return outcome, all_advice(outcome, self.subject, self.memo, report)
        return outcome, quick_advice(outcome, self.subject, self.memo, report)

    def take_outcome(self, outcome_and_advice: tuple[Outcome, tuple[Advice, ...]]) -> None:
        """Makes a computed outcome the shown one."""
        outcome, self.advice = outcome_and_advice
        has_new_graph = self.outcome is None or self.outcome.graph is not outcome.graph
        if self.outcome is not None and self.outcome is not self.first and self.outcome.setting != outcome.setting:
            self.before = self.outcome
        self.first = None
        self.outcome = outcome
        self._computed.append(outcome.setting)
        self.clear_problem()
        if has_new_graph:
            self.selection = ()
        self._set_stale(False)
        self.emit("advice", self.advice)
        self.emit("outcome", outcome)
        self.search_advice()

    def search_advice(self) -> None:
        """Searches for the slower advice on the shown outcome in the background; a change of the setting ends the search.

        What is known after `ADVICE_DELAY` seconds is shown at once, and replaced if there is better.
        """
        outcome, subject, memo = self.outcome, self.subject, self.memo
        if outcome is None or not outcome.timeline.feasible or self.stale or self.inline or not self.is_drawn:
            return
        first_advice, is_searching = DelayedCall(ADVICE_DELAY), True

        def show(advice: tuple[Advice, ...]) -> None:
            if advice != self.advice and self.outcome is outcome and not self.stale:
                self.advice = advice
                self.emit("advice", advice)

        def show_first(advice: tuple[Advice, ...]) -> None:
            if is_searching:
                first_advice.call(lambda: show(advice) if is_searching else None)

        def show_all(advice: tuple[Advice, ...]) -> None:
            nonlocal is_searching
            is_searching = False
            show(advice)

        def work(ticket: Ticket) -> tuple[Advice, ...]:
            def on_advice(advice: tuple[Advice, ...]) -> None:
                self.worker.deliver(lambda: show_first(advice))

            return all_advice(outcome, subject, memo, lambda *_: ticket.check(), on_advice)

        self.worker.submit(work, show_all)

    def _idle(self) -> None:
        self._progress("", -1.0)

    def _set_stale(self, stale: bool) -> None:
        if stale != self.stale:
            self.stale = stale
            self.emit("stale", stale)

    def cancel(self) -> None:
        """Cancels the computation; the last outcome stays and is stale."""
        if self.worker.cancel():
            self._idle()

    # -- selection and moves ---------------------------------------------------------------------------

    def select(self, ops: Iterable[int]) -> None:
        """Selects ops of the graph."""
        selected_ops = tuple(sorted({int(i) for i in ops}))
        if selected_ops != self.selection:
            self.selection = selected_ops
            self.emit("selection", selected_ops)

    def preview_moves(self, ops: Sequence[int]) -> None:
        """Emits `previews`, the effect of moving `ops` by device name: first none, then those that were simulated."""
        outcome, memo = self.outcome, self.memo
        self.previewer.cancel()
        self.emit("previews", {})
        if outcome is None or self.stale or not ops:
            return
        if self.inline:
            self.emit("previews", preview_moves(outcome, ops, memo))
        else:
            self.previewer.submit(
                lambda ticket: preview_moves(outcome, ops, memo, ticket.check),
                lambda previews: self.emit("previews", previews),
            )

    def move(self, ops: Iterable[int], device: int, scope: str = "") -> None:
        """Moves ops, with those of their colocation groups, to a device; `scope` is a name for exactly these ops.

        Raises:
            InvalidInput: there is no outcome yet, or no op is selected.
            InfeasiblePlacement: the ops may not run on the device.
        """
        outcome, indices = self.outcome, [int(i) for i in ops]
        if outcome is None or not indices:
            raise InvalidInput("no ops are selected: select those to move first")
        share, count = self.setting.share, self.setting.cluster.n
        if device >= count:  # the result on the screen is one of an earlier setting
            raise InvalidInput(
                f"{outcome.setting.cluster.names[device]} is no device of the setting, which has {count}; compute it first"
            )
        if device >= share.n:
            raise InvalidInput(
                f"{self.setting.cluster.names[device]} holds a replica: move what is on the first {share.n} devices"
            )
        target = share.names[device]
        names = shortest_names(outcome.graph, indices, scope, outcome.base.group_of)
        other_moves = tuple(m for m in self.setting.moves if m[0] not in names)
        moves = (*other_moves, *((name, target) for name in names))
        # An invalid move must not enter the history, so it is tried first.
        move(outcome.base, outcome.graph, share, moves)
        self.change(moves=moves)

    # -- code ------------------------------------------------------------------------------------------

    @property
    def subject_variable(self) -> str:
        """The variable that code uses for the subject of the workbench: "graph" or "step"."""
        return "step" if is_step(self.subject) else "graph"

    @cached_property
    def built(self) -> Built | None:
        """The model and parameters from which a given step was built; None for a traced step and for a graph."""
        built_from = self.subject.built_from if isinstance(self.subject, Step) else None
        if built_from is None:
            return None
        from ..models.registry import make_model

        name, defaults = built_from.model, make_model(built_from.model).get_params()
        return name, {
            key: value for key, value in built_from.params.items() if key not in defaults or defaults[key] != value
        }

    def code(self, export: str = "") -> str:
        """Returns the setting as library code; if its groups did not fit, with the passes of the placed groups."""
        setting, outcome = self.setting, self.outcome
        if outcome is not None and outcome.setting == setting and outcome.base.finer_groups:
            setting = setting.replace(passes=outcome.base.passes, forward_only=False)
        is_torch = is_torch_step(self.subject)
        return to_code(setting, variable=self.subject_variable, built=self.built, is_torch=is_torch, export=export)

    def load_code(self, text: str) -> None:
        """Replaces the setting by that of the code; the model from which the given step was built means that step."""
        loaded_setting = from_code(text)
        name, params = self.built or ("", {})
        model_params = {key: value for key, value in params.items() if key != "batch_size"}
        if (
            self.setting.source == GIVEN_SUBJECT
            and loaded_setting.model == name
            and name
            and dict(loaded_setting.model_params) == model_params
        ):
            loaded_setting = replace(loaded_setting, source=GIVEN_SUBJECT, model_params={})
        self.enter(loaded_setting)


def first_setting(subject: Subject | None, cluster: Cluster | None, fields: dict[str, Any]) -> Setting:
    """Returns the first setting: placer `auto` and the hardware of the cluster's first device, unless `fields` name others."""
    cluster = Cluster.uniform(4) if cluster is None else cluster
    fields = {"placer": "auto", "hardware": named_hardware(cluster), **fields}
    if isinstance(subject, Step) and subject.built_from is not None:
        fields.setdefault("batch_size", subject.built_from.batch_size)
    field_names = Setting.__dataclass_fields__
    for key in fields:
        if key not in field_names:
            raise InvalidInput(f"unknown setting {key!r}; known: {', '.join(k for k in field_names if k != 'cluster')}")
    return Setting(cluster, **fields)
