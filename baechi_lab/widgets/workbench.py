"""`bl.Workbench`: combines the views and panels, and keeps one selection in all of them."""

from __future__ import annotations

import sys
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ipywidgets

from ..errors import InfeasiblePlacement
from ..graph import Cluster
from ..graph.units import format_us
from ..importing import without_garbage_collection
from .background import DelayedCall
from .bars import lane_groups
from .comparing import name_of
from .compute import Outcome, Subject, source
from .controls import HTML, shared, sharing_models
from .explaining import Log
from .guard import Guard, Problem
from .heat import op_heat
from .model import WorkbenchModel, first_setting
from .panels.compare_panel import ComparePanel
from .panels.explain_panel import ExplainPanel
from .panels.explore_panel import ExplorePanel
from .panels.export_panel import ExportPanel
from .panels.fit_panel import FitPanel
from .panels.header import Header, facts_of
from .panels.parts import WIDE, heading, row, set_class
from .panels.run_panel import RunPanel
from .panels.setting_panel import SettingPanel
from .panels.tabs import Tabs
from .pictures import graph_picture, memory_picture, page, text_picture, timeline_picture
from .tasks import Tasks
from .views import GraphView, MemoryView, TimelineView
from .views.base import PicturedBox
from .views.controls_view import ControlsView
from .views.details_view import DetailsView
from .views.folder import Folder
from .views.splitter import Splitter

TABS = {
    "Graph": "the graph; on a high screen timeline and memory below it",
    "Timeline": "timeline and memory",
    "Compare": "placers side by side",
    "Run": "the placement on real devices, beside the timeline",
    "Explore": "sweeps: batch, micro-batches, devices, memory, placer, schedule",
    "Explain": "the placer's decisions, beside the graph",
    "Fit": "will it fit, and the ways to make it fit",
    "Export": "the training script, and this state as code",
}
PICTURE_SECONDS = 1.0
"""Seconds after the last change until the picture for a saved notebook is drawn again."""
STYLE = (Path(__file__).parent / "panels" / "style.css").read_text(encoding="utf-8")


class Workbench(PicturedBox):
    """A widget that shows a placement as graph, timeline and memory, and simulates every change of its controls.

    Args:
        subject: a `Step` (bl.trace, bl.models.build), a `bl.torch.TorchStep`, an `OpGraph`, or None with
            `source="model:gnmt"` or `source="file:PATH"`. A `TorchStep` keeps its batch; micro-batches cut it.
        cluster: the devices to start with, by default four of 8 GB behind PCIe.
        setting: any other field of `baechi_lab.widgets.Setting`: `placer="m-sct"`, `passes=()`, `batch_size=64`, ...

    The first result is computed before the constructor returns; later ones in the background. Of a graph of 5,000 ops or
    more, placers that may take seconds first show the placement of m-etf in a notebook, and their own when that is there.
    `model` is the state without widgets, `outcome` the newest result, `code` the library code of the current state.

    Raises:
        InvalidInput: there is no graph, or a setting is unknown.
        BaechiLabError: as the stages raise it for the first result; but if no placement fits, the workbench opens and shows
            the reason.

    >>> from baechi_lab import OpGraph
    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> Workbench(graph, Cluster.uniform(2)).outcome.timeline.makespan_us
    15.0
    """

    def __init__(self, subject: Subject | None = None, cluster: Cluster | None = None, **setting: object):
        # The tree of a large graph has an object per op, and none is garbage yet.
        with without_garbage_collection(), sharing_models():
            self._open(WorkbenchModel(subject, first_setting(subject, cluster, setting)))

    def _open(self, model: WorkbenchModel) -> None:
        """Makes the views, shows the first outcome of `model` in them, and arranges them."""
        self.model = model
        model.is_drawn = not model.worker.on_loop
        # The graph has a fixed height because the timeline is shown below it.
        self.graph = GraphView(_dom_classes=["bl-sized-graph"])
        self.timeline, self.memory = TimelineView(), MemoryView()
        self.details = DetailsView(self._go_to_op)
        self.tasks = Tasks(self.model)
        self.header = Header(self.model, self.tasks)
        self._listening, self._delayed_picture = True, DelayedCall(PICTURE_SECONDS)
        self._connect_parts()
        with self.model.noting():
            try:
                self.model.open()
            except InfeasiblePlacement as error:
                _, graph = source(self.model.setting, self.model.subject, self.model.memo)
                self.graph.show_graph(graph)
                self.header.show_nothing()
                self.model.fail(Problem.of(error))
        super().__init__(self._arrange_parts(), layout=WIDE, _dom_classes=["bl-workbench"])
        # The first picture needs no setting, no hidden tab and no advice: they are made when the page has drawn the graph.
        if model.is_drawn:
            self._complete()
        else:
            self.graph.on_drawn = self._complete

    def _complete(self) -> None:
        """Puts the controls into the panes that are empty in the first picture, and starts the search for advice."""
        self.graph.on_drawn = lambda: None
        with sharing_models():
            _ = self.setting  # its constructor fills its pane
            self._fill_panes()
        self.model.is_drawn = True
        if not self.model.worker.busy:
            self.model.search_advice()

    @cached_property
    def setting(self) -> SettingPanel:
        """The controls at the left."""
        return SettingPanel(self.model, self.tasks, self._setting_pane)

    @cached_property
    def compare(self) -> ComparePanel:
        """The tab Compare."""
        return ComparePanel(self.tasks)

    @cached_property
    def run(self) -> RunPanel:
        """The tab Run."""
        return RunPanel(self.tasks)

    @cached_property
    def explore(self) -> ExplorePanel:
        """The tab Explore."""
        return ExplorePanel(self.tasks)

    @cached_property
    def explain(self) -> ExplainPanel:
        """The tab Explain."""
        return ExplainPanel(self.tasks, self._show_decision, self._end_decisions)

    @cached_property
    def fit(self) -> FitPanel:
        """The tab Fit."""
        return FitPanel(self.tasks)

    @cached_property
    def export(self) -> ExportPanel:
        """The tab Export."""
        return ExportPanel(self.tasks)

    def _fill_panes(self) -> None:
        """Puts the controls into the panes of the tabs that are hidden at first."""
        widgets = [self.compare.widget, self.run.widget, self.explore.widget]
        widgets += [self.explain.widget, self.fit.widget, self.export.widget]
        for pane, widget in zip(self._hidden_panes, widgets, strict=True):
            pane.children = (widget,)

    def _arrange_parts(self) -> list[ipywidgets.Widget]:
        """Returns the style, the header, the strip of tabs, and the panes between setting and details."""
        graph = [
            heading("Graph", "double-click opens a box in place; ∇ is the backward pass"),
            self.graph,
            Splitter("graph", "height of the graph", limits=(220, 1600), vertical=False),
        ]
        memory = [heading("Memory", "bytes held on each device; the triangle marks the peak and its op"), self.memory]
        panes = {
            "graph": graph,
            "timeline": [heading("Timeline", "what each device computes, sends and receives"), self.timeline],
            "memory": memory,
            **{name: [] for name in ("compare", "run", "explore", "explain", "fit", "export")},
        }
        plain = shared(ipywidgets.Layout)
        boxes = [
            ipywidgets.VBox(inside, layout=plain, _dom_classes=["bl-pane", f"bl-pane-{name}"])
            for name, inside in panes.items()
        ]
        self.panes, self._hidden_panes = ipywidgets.HBox(boxes, layout=plain, _dom_classes=["bl-panes"]), boxes[3:]
        self.tabs = Tabs(TABS, self.panes, self._attend, self.tasks.worker.deliver)
        # The setting is on the left, but the Tab key reaches it after the views.
        pane = ipywidgets.VBox([self.details], layout=plain, _dom_classes=["bl-details-pane", "bl-sized-details"])
        setting_classes = ["bl-setting", "bl-sized-setting"]
        self._setting_pane = ipywidgets.VBox(layout={"min_width": "0"}, _dom_classes=setting_classes)
        setting_edge = Splitter("setting", "width of the setting", limits=(220, 560))
        details_edge = Splitter(
            "details", "width of the details", limits=(140, 640), growth=-1, _dom_classes=["bl-details-edge"]
        )
        inside = [self.panes, details_edge, pane, self._setting_pane, setting_edge]
        body = ipywidgets.HBox(inside, layout=plain, _dom_classes=["bl-body"])
        self.details_fold = Folder(
            "Details",
            hint="fold the details of the selection away, or show them",
            in_strip=True,
            layout=ipywidgets.Layout(),  # its own, because tabs without details hide it
            _dom_classes=["bl-details-fold"],
        )
        self.details_fold.observe(lambda change: set_class(body, "bl-without-details", not change.new), "unfolded")
        self.tabs.observe(lambda change: self._offer_details(change.new), "chosen")
        self.fold = Folder("Setting", hint="fold the setting away, or show it", in_strip=True)
        self.fold.observe(lambda change: set_class(body, "bl-folded", not change.new), "unfolded")
        style = HTML(f"<style>{STYLE}</style>", layout=plain, _dom_classes=["bl-style"])
        strip = row(self.fold, self.tabs, self.header.buttons, self.details_fold, classes=["bl-strip"])
        return [style, self.header.widget, strip, body]

    def _offer_details(self, tab: str) -> None:
        """Offers to fold details on the tabs that have them."""
        self.details_fold.layout.visibility = "visible" if tab in ("Graph", "Timeline") else "hidden"

    # -- wiring ----------------------------------------------------------------------------------------

    def _connect_parts(self) -> None:
        """Makes views and panels follow the model, and the model follow what the user selects."""
        self.model.on("outcome", self._show)
        self.model.on("selection", self._show_selection)
        self.model.on("previews", self.graph.show_previews)
        self.model.on("run", lambda _: self._show(self.model.outcome) if self.model.outcome else None)
        self.graph.on_command = self._command
        self.graph.observe(lambda _: self._select(self.graph, lambda: self.graph.selected_ops), "selected")
        self.timeline.observe(lambda _: self._select(self.timeline, lambda: self.timeline.selected), "selected")
        self.memory.observe(lambda _: self._select(self.memory, lambda: self.memory.selected), "selected")
        self.timeline.observe(lambda change: self._set_against(change.new), "against")
        for event in ("table", "held"):
            self.model.on(event, lambda _: self._offer())
        self.model.on("beside", lambda _: self._show(self.model.outcome) if self.model.outcome else None)
        self.header.verdict.on_zoom, self.header.on_fit = self._zoom, self._ask_fit
        ipywidgets.jslink((self.timeline, "window"), (self.memory, "window"))
        ipywidgets.link((self.graph, "critical"), (self.timeline, "critical"))

    def _zoom(self, start_us: float, end_us: float) -> None:
        """Zooms the timeline to an interval, with the critical path marked."""
        margin = 0.15 * (end_us - start_us)
        self.tabs.choose("Timeline")
        self.timeline.critical = True
        self.timeline.window = [max(start_us - margin, 0.0), min(end_us + margin, self.timeline.span_us)]

    def _ask_fit(self) -> None:
        """Opens Fit and asks it what would make the setting fit."""
        self.tabs.choose("Fit")
        self.fit.ask.click()

    def _show(self, outcome: Outcome) -> None:
        timelines = self.timelines()
        self._listening = False
        coarse = outcome.coarse if outcome.coarse is not outcome.graph else None
        if self.graph.graph is not outcome.graph:
            self.graph.show_graph(outcome.graph, coarse)
        self.graph.show_groups(coarse)
        self.graph.show_timeline(outcome.once, outcome.critical)
        self.graph.show_heat(partial(op_heat, outcome))
        if not outcome.setting.moves:
            self.graph.status = ""  # its text on an earlier move is outdated
        self._offer()
        other_outcome = self.tasks.comparable_outcome(self.timeline.against)
        if other_outcome is None:
            self.timeline.against = ""
        titles = [name_of(outcome), *(f"{name_of(outcome)}, {t.origin}" for t in timelines[1:])]
        other_timelines = [] if other_outcome is None else [other_outcome.timeline]
        self.timeline.show(
            outcome.executed_graph,
            [*timelines, *other_timelines],
            outcome.chain,
            () if other_outcome is None else [*titles, self.tasks.comparable_outcomes()[self.timeline.against].label],
            -1 if other_outcome is None else len(timelines),
            lane_groups(outcome.setting.cluster, outcome.setting.replicas),
        )
        self.memory.show(timelines, self.timeline.span_us)
        self._listening = True
        self._show_selection(self.model.selection)
        self._delayed_picture.call(self.renew_picture)

    def timelines(self) -> list[Any]:
        """The timelines of the view: the simulated one, and the measured one below it."""
        outcome = self.model.outcome
        run = self.tasks.run_of(outcome)
        measured_timelines = [run.timeline] if run is not None and run.timeline is not None else []
        return [] if outcome is None else [outcome.timeline, *measured_timelines]

    def _offer(self) -> None:
        """Updates the placements with which the timeline can be compared, and drops a choice that no longer exists."""
        outcomes = self.tasks.comparable_outcomes()
        self.timeline.choices = [
            [key, f"{choice.label}, {format_us(choice.step_us)}"] for key, choice in outcomes.items()
        ]
        if self.timeline.against not in outcomes:
            self.timeline.against = ""

    def _set_against(self, key: str) -> None:
        """Shows the timeline of the chosen placement below the current one."""
        if self._listening:
            with Guard(self.model.fail):
                self.tasks.bring(key)

    def _go_to_op(self, op: int) -> None:
        """Selects the op of a link in the details in every view, and makes it visible in the graph."""
        outcome = self.model.outcome
        if outcome is not None:
            with Guard(self.model.fail):
                executed_op = op if self.details.executed else int(outcome.copies([op])[0])
                self.graph.reveal(outcome.originals([executed_op]).tolist())
                self.timeline.focus = executed_op
                self._describe()

    def _describe(self) -> None:
        """Shows the details of the clicked op, or else of the selection."""
        outcome, ops = self.model.outcome, self.model.selection
        if outcome is None or not ops:
            self.details.clear()
            return
        copies = outcome.copies(ops)
        if self.timeline.focus in copies:
            self.details.show_op(outcome, self.timeline.focus)
        elif len(ops) == 1:
            self.details.show_op(outcome, int(copies[0]))
        else:
            self.details.show_selection(outcome, ops)

    def _select(self, origin: object, ops: Any) -> None:
        """Selects, in all views, the ops that were selected in view `origin` and those that move with them."""
        if self._listening and self.graph.graph is not None:
            with Guard(self.model.fail):
                indices = [int(op) for op in ops()]
                if origin is not self.graph and self.model.outcome is not None:
                    indices = self.model.outcome.originals(indices).tolist()
                if origin is not self.graph:
                    self.graph.choose(indices)
                self._origin = origin if len(indices) == len(self.graph.selected_ops) else None
                if origin is self.graph and self.model.outcome is not None:
                    clicked_ops = self.graph.clicked_ops
                    copies = self.model.outcome.copies(clicked_ops).tolist() if len(clicked_ops) == 1 else [-1]
                    if self.timeline.focus not in copies:
                        self.timeline.focus = copies[0]
                before = self.model.selection
                self.model.select(self.graph.selected_ops)
                self._origin = None
                if self.model.selection == before:  # another op of the same group
                    self._show_selection(before)

    _origin: object = None

    def _show_selection(self, ops: tuple[int, ...]) -> None:
        """Shows the selection in all views except the one where it was made."""
        self._listening = False
        if self.graph.selected_ops != list(ops):
            self.graph.select_ops(ops)
        outcome = self.model.outcome
        copies = list(ops) if outcome is None else outcome.copies(ops).tolist()
        for view in (self.timeline, self.memory):
            if self._origin is not view:
                view.selected = copies
        self._describe()
        self._listening = True
        self.model.preview_moves(ops)

    def _command(self, name: str, content: dict[str, Any]) -> None:
        """Executes a command of the graph view: move, undo, redo."""
        with Guard(self.model.fail):
            if name == "undo":
                self.model.undo()
            elif name == "redo":
                self.model.redo()
            else:
                nodes = [int(n) for n in content["nodes"]]
                device = int(content["device"])
                if nodes != self.graph.selected:
                    self.graph.selected = nodes
                ops, description = self.graph.moved_ops, self.graph.selection_text
                scope = self.graph.tree.names[nodes[0]] if len(nodes) == 1 else ""
                self.model.move(ops, device, scope)
                device_name = self.model.setting.cluster.names[device]
                count = "1 op" if len(ops) == 1 else f"{len(ops):,} ops"
                self.graph.status = f"{count} moved to {device_name}: {description}. Undo takes it back."

    def _attend(self, name: str) -> None:
        """Ends the message on a value that was rejected in another tab, and marks decisions while Explain is shown."""
        self.model.forget_rejection()
        if "explain" in vars(self):
            self.explain.attend(name == "Explain")

    def _show_decision(self, log: Log, step: int) -> None:
        """Shows a step of the decision log: ops that are not placed yet are faint, the ops of this step are selected."""
        decided_placement = log.placed_until(step)
        self.graph.dim_all_but(decided_placement)
        outcome = self.model.outcome
        self.timeline.dim_all_but(decided_placement if outcome is None else outcome.copies(decided_placement))
        self.model.select(log.ops(step).tolist())

    def _end_decisions(self) -> None:
        self.graph.dim_all_but(None)
        self.timeline.dim_all_but(None)
        self.model.select(())

    def _display_(self) -> object:
        """Returns what marimo displays, which shows no containers of ipywidgets: header, setting and views."""
        marimo: Any = sys.modules["marimo"]
        header, buttons, setting = map(ControlsView, (self.header.widget, self.header.buttons, self.setting.widget))
        sentence = "marimo shows the setting and the views of the workbench; its other tabs need JupyterLab."
        views = marimo.vstack([buttons, self.graph, self.details, self.timeline, self.memory])
        return marimo.vstack(
            [marimo.md(sentence), header, self.header.verdict, marimo.hstack([setting, views], widths=[1, 3])]
        )

    # -- for code --------------------------------------------------------------------------------------

    @property
    def outcome(self) -> Outcome | None:
        """The newest outcome; that of a slow placer is waited for."""
        return self.model.final_outcome()

    @property
    def code(self) -> str:
        """The library code of the current setting."""
        return self.model.code()

    def load_code(self, text: str) -> None:
        """Replaces the setting by that of the code."""
        self.model.load_code(text)

    def picture(self) -> str:
        """Returns graph, timeline and memory as one SVG text."""
        outcome = self.model.outcome
        if outcome is None:  # nothing fits: the reason is shown in place of a broken widget
            problem = self.model.problem
            sentence = problem.sentence if problem else "no result yet"
            return page([("", *text_picture(sentence))], sentence)
        if self.graph.scene is None or self.graph._paint is None or self.timeline.drawn_bars is None:
            return ""
        names = outcome.timeline.device_names
        return page(
            [
                ("", *text_picture(", ".join(f"{name} {value}" for name, value in facts_of(outcome)))),
                ("Graph", *graph_picture(self.graph.scene, self.graph._paint, names)),
                ("Timeline", *timeline_picture(self.timeline.drawn_bars, names)),
                ("Memory", *memory_picture(self.memory.timelines)),
            ],
            self.in_words().strip("<>"),
        )

    def in_words(self) -> str:
        """Describes the graph and its placement in one line."""
        outcome = self.model.outcome
        if outcome is None:
            return "<Workbench: no placement fits>"
        setting, step = outcome.setting, format_us(outcome.timeline.makespan_us)
        return f"<Workbench: {outcome.graph.name!r} placed by {setting.placer} on {setting.cluster.n} devices, {step}>"
