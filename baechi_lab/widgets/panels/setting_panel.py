"""Part 1, Setting: model or graph, batch size, cluster, passes, placer with its parameters, scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets

from ...errors import InvalidInput, OpenBatchSize
from ...graph import COMMUNICATION_MODES, Cluster, Link, Step
from ...graph.formats.reading import program_kind
from ...graph.units import exact_bytes, format_us, plain_number, shorten
from ...passes.optimize import PASSES
from ..charts import progress_chart
from ..compute import is_step, is_torch_step, source, time_limit
from ..controls import Dropdown, IntSlider, SelectionSlider, Text
from ..glossary import tip
from ..guard import Guard, guard_change
from ..model import WorkbenchModel
from ..setting import (
    FILE,
    GIVEN_SUBJECT,
    HARDWARE_PRESETS,
    LINKS,
    MODEL,
    Setting,
    link_name,
    preset_name,
    stored_graphs,
    with_hardware,
    with_speeds,
)
from ..tasks import Tasks
from ..views.chart_view import ChartView
from .params_form import ParamsForm
from .parts import MOST_DEVICES, WIDE, Fold, Quiet, add_hint, button, count_up_to, note, row, say, switch

STYLE = {"description_width": "96px"}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
FIRST_BATCH = 32
"""First batch size of a program that leaves it open."""
SLIDER_DEVICES = 16
"""Most devices of the slider; more can be typed beside it."""
OWN_CLUSTER = "as given below"
PLANNED, FREE = "as planned", "what is ready first"
SCHEDULER_HINT = "the order in which a device takes ops that are ready; as planned: the placer's own order"
SCHEDULE_HINT = "the order in which devices work on micro-batches, forward and backward"
PASS_HINTS = {
    "colocation": "ops that TensorFlow requires on one device become one group",
    "coplacement": "an op whose output has one reader goes where that is",
    "fusion": "neighbours are merged where that saves a transfer and makes no cycle",
}


class SettingPanel:
    """Controls whose values are the fields of the model's `Setting`, in the box `pane`."""

    def __init__(self, model: WorkbenchModel, tasks: Tasks, pane: ipywidgets.Box):
        self.model, self.tasks, self.quiet, self.widget = model, tasks, Quiet(), pane
        self._make_controls()
        self.params = ParamsForm(lambda: self._change_setting(lambda: {"params": self.params.values()}))
        self.source_note = note()
        passes = ipywidgets.HBox(list(self.passes.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        pane.children = [
            Fold("Model", [self.source, self.batch, self.source_note]),
            Fold("Hardware", [self.preset, row(self.devices, self.count, wrap=False), self.memory]),
            Fold("Placer", [self.placer, self.placer_note, self.curve, self.micro]),
            Fold(
                "Advanced",
                [
                    self.file,
                    self.hardware,
                    self.speeds,
                    self.link,
                    self.measure,
                    self.comm,
                    passes,
                    self.forward,
                    self.recompute,
                    self.params.widget,
                    self.scheduler,
                    self.schedule,
                    self.replicas,
                ],
                unfolded=False,
            ),
        ]
        self._bind()
        model.on("setting", self.show)
        model.on("progress", lambda _: self._show_progress())
        self.show(model.setting)

    # -- controls --------------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self._make_subject_controls()
        self._make_cluster_controls()
        self._make_placement_controls()
        for control in (self.source, self.preset, self.file, self.link):  # their texts are long
            control.add_class("bl-stacked")

    def _make_subject_controls(self) -> None:
        from ...graph.hardware import HARDWARE
        from ...models.registry import model_names

        subject = self.model.subject
        first = [] if subject is None else [(f"{shorten(subject.name, 30)} (given)", GIVEN_SUBJECT)]
        stored_choices = [(shorten(p.rsplit("/", 1)[-1]), f"{FILE}{p}") for p in stored_graphs()]
        self.source = _drop(
            "model / graph",
            [*first, *((f"{m} (build with TensorFlow)", f"{MODEL}{m}") for m in model_names()), *stored_choices],
            "the graph that is placed: the given one, one of a model that is built, or a stored one",
        )
        self.file = _text(
            "or open file",
            "path: .json, .json.gz, .onnx, .stg, ...",
            "a graph of this package, of dnn-partitioning or of PipeDream, a task graph (.stg), a trace of a profiler, or a "
            "program (.onnx, .pt2), whose operators are estimated",
        )
        self.batch = _slider(SelectionSlider, "batch size", "samples of a step", options=BATCHES)
        self.hardware = _drop(
            "costs for",
            [*((f"estimated: {h}", h) for h in HARDWARE), ("measured here", "measured")],
            "whose times the ops have: estimated for that hardware, or measured on this machine",
        )

    def _make_cluster_controls(self) -> None:
        self.preset = _drop(
            "hardware",
            [OWN_CLUSTER, *HARDWARE_PRESETS],
            "devices, memory and links that many have; a training step that is estimated gets their times, a stored "
            "graph keeps its own",
        )
        hint = "how many; further ones are like the last"
        self.devices = _slider(IntSlider, "devices", hint, min=1, max=SLIDER_DEVICES, readout=False)
        # The slider's own readout changes a number that is out of range without a message.
        self.count = Text(layout={"width": "52px", "flex": "0 0 auto"})
        self.count.tooltip = "number of devices"
        self.memory = _text(
            "memory each",
            "8GB, or one per device: 8GB, 4GB",
            "one size for all devices, or one for each; a GB is 10⁹ bytes, and GiB may be typed too",
        )
        self.speeds = _text(
            "speeds",
            "1, or one per device: 1, 0.5",
            "1: as fast as the profile says; one for all devices, or one for each",
        )
        self.link = _drop("link", [*LINKS], "what a transfer takes: a latency, and a time per byte")
        measure_link = Guard(self.model.fail)(self.tasks.measure_link)
        self.measure = button(
            "Measure the link here", "time transfers between two devices of this machine", measure_link
        )
        self.comm = _drop(
            "transfers",
            list(COMMUNICATION_MODES),
            "sequential: a device sends or receives one tensor at a time; duplex: it sends one and receives one; parallel: any "
            "number at once",
        )

    def _make_placement_controls(self) -> None:
        from ...placers import placer_names
        from ...simulator.schedulers import SCHEDULERS
        from ...simulator.schedules import RULES

        self.passes = {name: switch(name, PASS_HINTS[name]) for name in PASSES}
        self.forward = _drop(
            "forward only",
            [("auto", "auto"), ("yes", True), ("no", False)],
            "only ops of the forward pass are placed by choice, each backward op goes to the device of its forward op: fewer "
            "decisions, fewer transfers; auto: where the model fits one device",
        )
        self.recompute = _text(
            "recompute",
            "e.g. sqrt, or 3GB",
            "outputs of the forward pass that are dropped and computed again in the backward pass: less memory, more time; sqrt: "
            "all but those between about √n segments; boundaries: all but those that another layer reads; a size: as few as one "
            "device of that memory needs; empty: none",
        )
        self.placer = _drop(
            "placer",
            placer_names(),
            "the algorithm that chooses a device for every op; auto asks several and takes the fastest answer",
        )
        self.placer_note, self.curve = note(), ChartView(height=130)
        self.scheduler = _drop(
            "scheduler",
            [(PLANNED, ""), *((s, s) for s in SCHEDULERS.names() if s != "planned")],
            SCHEDULER_HINT,
        )
        self.micro = _text(
            "micro-batches",
            "whole batch",
            "the batch is cut into so many parts that follow each other through the devices",
        )
        self.schedule = _drop(
            "schedule",
            [(FREE, ""), *((s, s) for s in RULES)],
            SCHEDULE_HINT,
        )
        self.replicas = _text(
            "replicas", "1", "copies of the placement side by side, each on its share of the devices and micro-batches"
        )

    def _bind(self) -> None:
        def cluster() -> Cluster:
            return self.model.setting.cluster

        def changes(widget: Any, make: Any) -> None:
            widget.observe(lambda event: self._change_setting(lambda: make(event["new"])), "value")

        changes(self.source, lambda v: {"source": v, "batch_size": self._batch_for(v), "model_params": {}})
        changes(self.file, self._changes_for_file)
        changes(self.batch, lambda v: {"batch_size": v})
        changes(self.hardware, self._changes_for_hardware)
        changes(self.preset, self._changes_for_preset)
        changes(self.devices, lambda v: {"cluster": cluster().resized(v)})
        changes(self.count, lambda v: {"cluster": cluster().resized(self._device_count(v))})
        changes(self.memory, lambda v: {"cluster": cluster().with_memory(_each(v))})
        changes(self.speeds, lambda v: {"cluster": with_speeds(cluster(), _numbers(v))})
        changes(
            self.link,
            lambda v: {} if v not in LINKS else {"cluster": self.model.setting.cluster.replace(link=LINKS[v])},
        )
        changes(self.comm, lambda v: {"cluster": cluster().replace(comm=v)})
        for box in self.passes.values():
            changes(box, lambda _: {"passes": tuple(n for n, b in self.passes.items() if b.value)})
        changes(self.forward, lambda v: {"forward_only": v})
        changes(self.recompute, lambda v: {"recompute": v.strip()})
        changes(self.placer, lambda v: {"placer": v, "params": {}})
        changes(self.scheduler, lambda v: {"scheduler": v or None, **({"schedule": None} if v else {})})
        changes(self.micro, lambda v: {"micro_batches": _count("micro-batches", v)})
        changes(self.schedule, lambda v: {"schedule": v or None, **({"scheduler": None} if v else {})})
        changes(self.replicas, lambda v: {"replicas": _count("replicas", v or "1")})
        for text in (self.count, self.memory, self.speeds, self.recompute, self.micro, self.replicas):
            text.on_msg(self._clear_rejection)

    def _changes_for_hardware(self, hardware: str) -> dict[str, object]:
        if hardware == "measured":
            return {"profile": "measured"}
        setting = self.model.setting
        cluster = with_hardware(setting.cluster, setting.hardware, hardware)
        return {"profile": "estimated", "hardware": hardware, "cluster": cluster}

    def _change_setting(self, make: Any) -> None:
        if self.quiet.active:
            return
        before = self.model.setting
        with guard_change(self.model.reject):
            self.model.change(**make())
        if self.model.setting is before:  # rejected, or equal: the control shows the setting that is in force
            self.show(before)

    def _clear_rejection(self, _: object, content: dict[str, object], __: object) -> None:
        """Removes the message on a rejected value when Enter confirms the one in force, which is no change."""
        if content.get("event") == "submit":
            self.model.forget_rejection()

    def _device_count(self, text: str) -> int:
        return count_up_to("devices", text, max(MOST_DEVICES, self.model.setting.cluster.n))

    def _changes_for_file(self, path: str) -> dict[str, object]:
        if not path.strip():
            return {}
        if not Path(path.strip()).is_file():
            raise InvalidInput(f"there is no file {path.strip()!r} here")
        changes: dict[str, Any] = {"source": f"{FILE}{path.strip()}", "batch_size": None, "model_params": {}}
        if program_kind(path.strip()):
            changes["profile"] = "estimated"
            try:
                source(self.model.setting.replace(**changes), None, self.model.memo)
            except OpenBatchSize:
                changes["batch_size"] = FIRST_BATCH
        return changes

    def _changes_for_preset(self, name: str) -> dict[str, object]:
        if name == OWN_CLUSTER:
            return {}
        preset = HARDWARE_PRESETS[name]
        costs = {} if self._stepless(self.model.setting) else {"profile": "estimated", "hardware": preset.hardware}
        return {"cluster": preset.cluster, **costs}

    def _stepless(self, setting: Setting) -> bool:
        """Whether the setting has a stored graph, whose ops have stored durations, and no step."""
        has_step = setting.source == GIVEN_SUBJECT and is_step(self.model.subject)
        return not (setting.model or setting.is_program or has_step)

    def _fixed_values(self, setting: Setting) -> str:
        """Says which batch size and times no control can change; empty if all can be changed."""
        if self._stepless(setting):
            return f"batch size and times of ops are those in {setting.path or 'the given graph'}"
        if setting.is_program:
            return "" if setting.takes_batches else f"batch size is that in {setting.path}"
        subject = self.model.subject
        if setting.batch_size is not None or subject is None or setting.model:
            return ""
        batch = subject.batch_size if is_torch_step(subject) else None
        return f"the training step {subject.name} has its own batch" + (f" of {batch}" if batch else "")

    def _batch_for(self, source: str) -> int | None:
        """Returns the first batch size of a newly chosen model."""
        if source.startswith(MODEL):
            from ...models.registry import make_model

            return int(make_model(source.removeprefix(MODEL)).get_params()["batch_size"])
        subject = self.model.subject
        if source == GIVEN_SUBJECT and isinstance(subject, Step) and subject.built_from is not None:
            return subject.built_from.batch_size
        return None

    # -- model -> controls -----------------------------------------------------------------------------

    def show(self, setting: Setting) -> None:
        from ...placers.registry import placer_class

        with self.quiet:
            if setting.source not in [value for _, value in self.source.options]:
                label = shorten(setting.model or setting.path)
                self.source.options = [*self.source.options, (label, setting.source)]
            self.source.value = setting.source
            size = setting.batch_size
            self.batch.disabled = size is None
            self.batch.layout.display = "none" if size is None else "flex"
            if size is not None and size not in self.batch.options:
                self.batch.options = sorted({*self.batch.options, size})
            if size is not None:
                self.batch.value = size
            say(self.source_note, self._fixed_values(setting))
            self.hardware.value = "measured" if setting.profile == "measured" else setting.hardware
            self.hardware.layout.display = "none" if self._stepless(setting) else "flex"
            cluster = setting.cluster
            self.preset.value = preset_name(cluster) or OWN_CLUSTER
            self.devices.max = max(SLIDER_DEVICES, cluster.n)
            self.devices.value = cluster.n
            self.count.value = str(cluster.n)
            self.memory.value = _join_unless_equal([exact_bytes(d.memory_bytes) for d in cluster.devices])
            self.speeds.value = _join_unless_equal([f"{d.speed:g}" for d in cluster.devices])
            name = link_name(cluster)
            link = cluster.link
            link_text = link_in_words(link) if isinstance(link, Link) else "one per pair, as given"
            self.link.options = [*LINKS] if name else [link_text, *LINKS]
            self.link.value = name or link_text
            self.comm.value = cluster.comm
            for key, box in self.passes.items():
                box.value = key in setting.passes
            self.forward.value = setting.forward_only
            self.recompute.value = setting.recompute
            if setting.placer not in self.placer.options:
                raise InvalidInput(f"placer {setting.placer!r} is not registered here")
            self.placer.value = setting.placer
            cls = placer_class(setting.placer)
            limit = time_limit(setting.placer, setting.params)
            limits = "" if limit is None else f" It ends after {limit:g} s."
            say(self.placer_note, (cls.__doc__ or "").strip().splitlines()[0] + limits)
            self.params.show(cls, setting.params)
            self.scheduler.value = "" if setting.scheduler in (None, "planned") else setting.scheduler
            self.micro.value = "" if setting.micro_batches is None else str(setting.micro_batches)
            if setting.schedule and setting.schedule not in [value for _, value in self.schedule.options]:
                self.schedule.options = [*self.schedule.options, (shorten(setting.schedule, 24), setting.schedule)]
            self.schedule.value = setting.schedule or ""
            self.replicas.value = str(setting.replicas)
            for control, hint in ((self.scheduler, SCHEDULER_HINT), (self.schedule, SCHEDULE_HINT)):
                chosen_hint = tip(control.value)
                add_hint(control, f"{hint}; {control.value}: {chosen_hint}" if chosen_hint else hint)

    def _show_progress(self) -> None:
        """Shows the curve of the best step so far, which stays until the next computation."""
        setting, points = self.model.setting, self.model.worker.points
        if points:
            self.curve.show(progress_chart(points, time_limit(setting.placer, setting.params)))
        elif self.model.worker.busy:
            self.curve.show(None)


def link_in_words(link: Link) -> str:
    """Describes a link by its latency and its bandwidth.

    >>> link_in_words(Link(2.354, 1.04e-06)), link_in_words(Link(5.0, 0.0))
    ('2.35 us and 961.5 GB/s', '5.00 us and no time per byte')
    """
    rate = f"{plain_number(1e-3 / link.us_per_byte)} GB/s" if link.us_per_byte else "no time per byte"
    return f"{format_us(link.latency_us)} and {rate}"


def _drop(label: str, options: object, hint: str) -> Dropdown:
    return add_hint(Dropdown(description=label, options=options, layout=WIDE, style=STYLE), hint)


def _text(label: str, example: str, hint: str) -> Text:
    widget = Text(description=label, placeholder=example, layout=WIDE, style=STYLE)
    return add_hint(widget, hint)


def _slider(cls: type, label: str, hint: str, **options: object) -> Any:
    return add_hint(cls(description=label, continuous_update=False, layout=WIDE, style=STYLE, **options), hint)


def _each(value: str) -> str | list[str]:
    values = [p.strip() for p in value.split(",") if p.strip()]
    if not values:
        raise InvalidInput("memory is empty; write for example 8GB, or one size per device")
    return values[0] if len(values) == 1 else values


def _numbers(value: str) -> list[float]:
    try:
        return [float(p) for p in value.split(",") if p.strip()] or [1.0]
    except ValueError as error:
        raise InvalidInput(f"speeds: {value!r} is not a list of numbers; write for example 1, 1, 0.5") from error


def _count(label: str, value: str) -> int | None:
    """Reads a whole number; None for an empty text."""
    if not value.strip():
        return None
    try:
        return int(value)
    except ValueError as error:
        raise InvalidInput(f"{label} is {value!r}; it must be a whole number of at least 1") from error


def _join_unless_equal(texts: list[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
