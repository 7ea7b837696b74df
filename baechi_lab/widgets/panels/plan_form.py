"""Export, second part: the placement in the format of another runtime, and the properties that the format cannot express."""

from __future__ import annotations

from pathlib import Path

import ipywidgets

from ...errors import BaechiLabError, FormatError, InvalidInput
from ...exporters.plans import FORMATS, WrittenPlan, write_plan
from ...graph.formats.files import write_atomically
from ..compute import is_torch_step
from ..controls import HTML, Dropdown, Text
from ..guard import Guard
from ..model import WorkbenchModel
from ..views.copy_button import CopyButton
from .parts import WIDE, add_hint, bullets, button, code_block, note, row, say

RUNTIMES = {
    "chakra": "an execution trace per device (MLCommons Chakra)",
    "deepspeed": "DeepSpeed pipeline modules",
    "device_map": "accelerate, transformers; needs the PyTorch model",
    "dot": "Graphviz",
    "llama_cpp": "llama.cpp: --tensor-split, -ot",
    "megatron": "Megatron-LM pipeline layout",
    "onnx": "device configurations of an ONNX model; needs its file",
    "pipelining": "torch.distributed.pipelining",
    "vllm": "VLLM_PP_LAYER_PARTITION",
}


class PlanForm:
    """Chooses a runtime, and shows, copies and saves its plan, or shows why there is none."""

    def __init__(self, model: WorkbenchModel):
        self.model = model
        options = [(f"{name}: {RUNTIMES.get(name, name)}", name) for name in FORMATS]
        self.format = add_hint(
            Dropdown(
                options=options, value="dot", description="plan for", layout={"width": "530px", "max_width": "100%"}
            ),
            "the program that shall run the placement",
        )
        self.show = button("Show the plan", "the placement as this runtime takes it", self._show)
        self.copy = CopyButton(label="Copy the plan")
        self.onnx_file = add_hint(
            Text(description="ONNX file", placeholder="model.onnx"), "path to the model whose nodes are placed"
        )
        self.folder = add_hint(Text(value="placed_plan", description="folder"), "where the plan is written")
        self.save = button("Save the plan", "write the plan, and its binary files, into the folder", self._save)
        self.state, self.unsupported = note(), HTML(layout=WIDE)
        self.text = HTML(layout=WIDE)
        title = note("Other runtimes take the placement in their own formats; each says what it cannot express.")
        self.widget = ipywidgets.VBox(
            [
                title,
                row(self.format, self.onnx_file, self.show, self.copy),
                row(self.folder, self.save),
                self.state,
                self.unsupported,
                self.text,
            ],
            layout=WIDE,
        )
        self.plan: WrittenPlan | None = None
        self.format.observe(lambda _: self._clear(), "value")
        model.on("outcome", lambda _: self._clear())
        self._clear()

    def _clear(self) -> None:
        """Removes the plan of another placement or format."""
        self.plan = None
        self.onnx_file.layout.display = "" if self.format.value == "onnx" else "none"
        self.copy.text = self.text.value = self.unsupported.value = ""
        self.save.disabled = True
        say(self.state, "")

    def _show(self) -> None:
        self._clear()
        with Guard(self.model.fail):
            outcome = self.model.outcome
            if outcome is None or self.model.stale:
                raise InvalidInput("there is no placement of the setting yet")
            try:
                name = self.format.value
                timeline = outcome.once if name == "chakra" else None
                model = outcome.step.model() if name == "device_map" and is_torch_step(outcome.step) else None
                model = self.onnx_file.value.strip() or None if name == "onnx" else model
                plan = write_plan(
                    outcome.graph,
                    outcome.placement,
                    name,
                    model=model,
                    cluster=outcome.setting.cluster,
                    timeline=timeline,
                )
            except BaechiLabError as error:
                say(self.state, f"No plan for {self.format.value}: {error}", "bad")
                return
            self.plan, self.copy.text, self.save.disabled = plan, plan.text, False
            self.text.value, self.unsupported.value = code_block(plan.text), bullets(plan.unsupported)
            if plan.unsupported:
                say(self.state, "This format cannot express:")
            else:
                say(self.state, "This format expresses the whole placement.", "good")

    def _save(self) -> None:
        with Guard(self.model.fail):
            if self.plan is None:
                return
            say(self.state, "")
            folder = Path(self.folder.value)
            names = [
                f"{self.plan.format}.txt",
                *(f"{self.plan.format}{ending or '.onnx'}" for ending in self.plan.files),
            ]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                existing = [name for name in names if (folder / name).exists()]
            except (OSError, ValueError) as error:
                raise FormatError(
                    f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}"
                ) from error
            if existing:
                raise InvalidInput(f"{folder / existing[0]} exists; choose another folder")
            for name, content in zip(names, [self.plan.text.encode(), *self.plan.files.values()], strict=True):
                write_atomically(folder / name, content)
            sentence = f"Written: {', '.join(str(folder / name) for name in names)}"
            say(self.state, sentence, "good")
            self.model.emit("announced", sentence)
