"""Writes a layout for the program that trains, and says what that program cannot be told: `bl.write_layout` with buttons."""

from __future__ import annotations

from pathlib import Path

import ipywidgets

from ...errors import BaechiLabError
from ...exporters.layouts import LAYOUT_FORMATS, write_layout
from ...exporters.plans.records import WrittenPlan
from ...graph.layout import Layout
from ...parallel.layouts import Layouts
from ..bars import lane_groups
from ..controls import HTML, Dropdown, Text
from ..views.copy_button import CopyButton
from .parts import WIDE, add_hint, bullets, button, code_block, heading, note, row, say

PROGRAMS = {
    "accelerate": "accelerate launch: YAML file for FSDP 2",
    "deepspeed": "DeepSpeed: JSON file",
    "megatron": "Megatron-LM: arguments",
    "torchrun": "torchrun: a script that trains, with its files",
    "torchtitan": "torchtitan: TOML file",
}


class LayoutForm:
    """Chooses a program, and shows, copies and writes its files for the layout of `show_layout`."""

    def __init__(self, answer: Layouts):
        self.answer = answer
        self.layout: Layout | None = None
        self.format = add_hint(
            Dropdown(
                options=[(PROGRAMS.get(name, name), name) for name in LAYOUT_FORMATS],
                value="torchrun",
                description="for",
                layout={"width": "430px", "max_width": "100%"},
            ),
            "the program that trains the model",
        )
        self.show = button("Show the files", "the layout as this program takes it", self._show)
        self.copy = CopyButton(label="Copy")
        self.folder = add_hint(Text(value="layout", description="folder"), "where the files are written")
        self.write = button(
            "Write the files", "write what the program reads into the folder", self._write, style="primary"
        )
        self.state, self.unsupported, self.text = note(), HTML(layout=WIDE), HTML(layout=WIDE)
        self.widget = ipywidgets.VBox(
            [
                heading("Launch script", "the shown layout for the program that trains, with what it cannot express"),
                row(self.format, self.show, self.copy, self.folder, self.write),
                self.state,
                self.unsupported,
                self.text,
            ],
            layout=WIDE,
        )
        self.format.observe(lambda _: self._clear(), "value")

    def show_layout(self, layout: Layout) -> None:
        """Takes the layout of another row."""
        if layout != self.layout:
            self.layout = layout
            self._clear()

    def _clear(self) -> None:
        """Removes what was shown of another layout or program."""
        self.copy.text = self.text.value = self.unsupported.value = ""
        say(self.state, "")

    def _plan(self, folder: str | None = None) -> WrittenPlan | None:
        """Returns the chosen program's files, written into `folder`; None, with the reason shown, if there are none."""
        self._clear()
        answer, program = self.answer, self.format.value
        machines = lane_groups(answer.cluster)
        try:
            if self.layout is None:
                say(self.state, "Press Show in a row first.", "bad")
                return None
            plan = write_layout(
                self.layout,
                program,
                model=answer.configuration or answer.model,
                global_batch=answer.global_batch,
                sequence_length=answer.sequence_length,
                per_machine=machines.count(machines[0]) if machines else answer.cluster.n,
                precision=answer.precision,
                reduce_precision=answer.reduce_precision,
                overlap_products=answer.overlap_products,
                folder=folder,
            )
        except BaechiLabError as error:
            say(self.state, f"No files for {program}: {error}", "bad")
            return None
        self.copy.text = plan.text
        self.text.value = code_block(plan.text)
        self.unsupported.value = bullets(plan.unsupported)
        return plan

    def _show(self) -> None:
        plan = self._plan()
        if plan is not None and plan.unsupported:
            say(self.state, f"{plan.format} cannot be told:")
        elif plan is not None:
            say(self.state, f"{plan.format} can be told the whole layout.", "good")

    def _write(self) -> None:
        folder = self.folder.value.strip()
        if not folder:
            say(self.state, "folder is empty; it must be the name of a folder, such as layout", "bad")
            return
        plan = self._plan(folder)
        if plan is not None:
            missing = f" {plan.format} cannot be told:" if plan.unsupported else ""
            say(self.state, f"Written: {', '.join(str(Path(folder) / name) for name in plan.files)}.{missing}", "good")
