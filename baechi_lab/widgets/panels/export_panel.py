"""Part 9, Export: the training script, plans for other runtimes, and the library code of the setting, which can be edited."""

from __future__ import annotations

from pathlib import Path

import ipywidgets

from ..controls import HTML, Text, Textarea
from ..guard import Guard, guard_change
from ..running import copies_nothing
from ..tasks import Tasks
from ..views.copy_button import CopyButton
from .parts import WIDE, add_hint, button, code_block, note, row, say
from .plan_form import PlanForm

STEPLESS = "A graph has no training script: open the workbench with a training step, or choose a model in Setting."


class ExportPanel:
    """The editable code of the setting, a preview of the training script, and a button that writes the script."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.code = Textarea(layout=ipywidgets.Layout(width="100%", height="170px", margin="0"))
        self.read = button(
            "Read this code",
            "set the workbench to what the code says",
            guard_change(self.model.reject)(lambda: self.model.load_code(self.code.value)),
        )
        self.copy = CopyButton(label="Copy the code")
        ipywidgets.jslink((self.code, "value"), (self.copy, "text"))
        self.folder = add_hint(Text(value="placed_training", description="folder"), "where the script is written")
        write = Guard(self.model.fail)(lambda: tasks.export(self.folder.value))
        self.write = button("Write the script", "write placed graph, weights and train.py", write, style="primary")
        preview = Guard(self.model.fail)(tasks.preview_script)
        self.preview = button("Preview", "show train.py as it would be written", preview)
        self.script = HTML(layout=WIDE)
        self.state, self.says_stepless = note(), False
        self.plans = PlanForm(self.model)
        title = note("This code does the same without the workbench. Copy it; or change it and read it back.")
        self.widget = ipywidgets.VBox(
            [
                title,
                self.code,
                row(self.copy, self.read),
                row(self.folder, self.preview, self.write),
                self.state,
                self.script,
                self.plans.widget,
            ],
            layout=WIDE,
        )
        self.model.on("setting", lambda _: self.refresh())
        self.model.on("outcome", lambda _: self.refresh())
        self.model.on("outcome", lambda _: self._show_script(""))
        self.model.on("written", self._written)
        self.model.on("script", self._show_script)
        self.folder.observe(lambda _: self.refresh(), "value")
        self.refresh()

    def refresh(self) -> None:
        """Shows the code of the setting, and whether its step can be exported."""
        outcome = self.model.outcome
        runnable = outcome is not None and outcome.step is not None
        self.code.value = self.model.code(self.folder.value if runnable else "")
        self.write.disabled = self.preview.disabled = not runnable
        if not runnable:
            say(self.state, STEPLESS)
        elif self.says_stepless:
            say(self.state, "")
        self.says_stepless = not runnable

    def _show_script(self, text: str) -> None:
        """Shows the script of the current placement; an empty text removes that of another placement."""
        self.script.value = text and code_block(text, len(text))

    def _written(self, path: Path) -> None:
        command, outcome = f"python {self.folder.value}/train.py", self.model.outcome
        if (path / "placed_pipeline.py").is_file():
            command = "torchrun, as its README.md says"
        elif outcome is not None and copies_nothing(outcome):
            command += f" --devices{' cpu' * outcome.setting.cluster.n}"
        sentence = f"Written: {path}. Train with: {command}"
        say(self.state, sentence, "good")
        self.model.emit("announced", sentence)
