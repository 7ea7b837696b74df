"""Export a placed PyTorch step: a folder whose `train.py` imports only torch.

The folder holds the model's own source, its initial parameters and one batch, the plan as JSON, and a copy of the
runtime that the distributed model uses here, so the exported training computes and waits exactly as it does here.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ... import errors
from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...torch import runtime
from ...torch.plan import make_plan, torch_devices
from ...torch.step import TorchStep
from ...torch.tracing import trace
from ..folder import write_folder
from .script import README, SCRIPT


def export(
    step: TorchStep, placement: Placement, folder: str | os.PathLike[str], *, cluster: Cluster | None = None,
    graph: OpGraph | None = None, reorder: str = "gpu", devices: list[str] | None = None,
) -> Path:  # fmt: skip
    """Write a folder with the placed step and a `train.py` that imports only torch; returns its path.

    Parameters as in `bl.torch.execute`; the folder may be new, empty, or hold exactly what an
    earlier export wrote, which is replaced.

    Raises:
        InvalidInput: a model, loss or optimizer whose source cannot be written out (it says which and why), a
            placement for another graph, a folder that holds something else. ExecutionError: it cannot be written.
    """
    if not isinstance(step, TorchStep):
        raise InvalidInput(f"step is a {type(step).__name__}; the PyTorch export takes a baechi_lab.torch.TorchStep")
    model = step.model()
    found = trace(model, step.inputs, atomic=step.atomic)
    placed = placement if graph is None else placement.on(graph)
    if graph is None and placement.group_of is not None:
        raise InvalidInput("the placement is of a coarse graph; give graph=, the graph that was optimized")
    where = cluster or Cluster.uniform(int(placed.device.max(initial=0)) + 1, kind="cpu")
    plan = make_plan(found, placed, torch_devices(where, devices), reorder=reorder)
    sources = Sources()
    values = {
        "NAME": json.dumps(step.name),
        "MODEL": sources.expression(step.build, "build"),
        "LOSS": sources.name(step.loss or _default_loss(), "loss"),
        "OPTIMIZER": "None" if step.optimizer is None else sources.optimizer(step.optimizer),
        "SEED": repr(step.seed),
    }
    for module in model.modules():
        sources.add(type(module), "a module of the model")
    script = SCRIPT.replace("# IMPORTS", "\n".join(sources.imports()))
    for key, text in values.items():
        script = script.replace(f"<{key}>", text)
    files: dict[str, Any] = {
        "train.py": script,
        "README.md": README.replace("<NAME>", step.name),
        "placed_plan.json": json.dumps(plan.to_json(), indent=1),
        "weights.pt": _saved(model.state_dict()),
        "batch.pt": _saved({"inputs": list(step.inputs), "targets": list(step.targets)}),
        **sources.files,
        **runtime_files(),
    }
    return write_folder(folder, files)


def runtime_files() -> dict[str, str]:
    """The runtime as flat files `placed_*.py` that import each other and torch."""
    home = Path(inspect.getfile(runtime)).parent
    files = {
        f"placed_{path.stem}.py": path.read_text() for path in sorted(home.glob("*.py")) if path.stem != "__init__"
    }
    files["placed_errors.py"] = Path(inspect.getfile(errors)).read_text()
    return {name: _flat(text) for name, text in files.items()}


def _flat(text: str) -> str:
    """Relative imports become imports of the flat files."""
    return re.sub(r"^(\s*)from \.+(\w+) import", r"\1from placed_\2 import", text, flags=re.MULTILINE)


def _default_loss() -> Callable[..., Any]:
    from ...torch.models.losses import mean_square

    return mean_square


def _saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class Sources:
    """The source files that a model needs, copied under names of their own."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.module_of: dict[str, str] = {}

    def add(self, thing: Any, what: str) -> str | None:
        """Take along the file that defines `thing`; None for what torch or Python defines."""
        name = getattr(thing, "__module__", "") or ""
        if name.partition(".")[0] in ("torch", "builtins"):
            return None
        if name not in self.module_of:
            try:
                path = inspect.getsourcefile(thing)
                text = Path(path or "").read_text()
            except (OSError, TypeError) as error:
                raise InvalidInput(
                    f"{what} {_label(thing)} has no source file to export; define it in a module"
                ) from error
            _check_imports(text, f"{what} {_label(thing)}, defined in {Path(path or '').name},")
            self.module_of[name] = f"model_{name.rpartition('.')[2].strip('_') or 'main'}"
            self.files[f"{self.module_of[name]}.py"] = text
        return self.module_of[name]

    def imports(self) -> list[str]:
        """One import line per file."""
        return [f"import {module}" for module in sorted(set(self.module_of.values()))]

    def name(self, thing: Callable[..., Any], what: str) -> str:
        """How the script names a class or function."""
        text = getattr(thing, "__qualname__", "")
        if not text or "<" in text:
            raise InvalidInput(
                f"{what} is {_label(thing)}; an export needs a class or function of a module, or functools.partial of one"
            )
        module = self.add(thing, what)
        if module is not None:
            return f"{module}.{text}"
        public = (
            home for home in (torch.optim, torch.nn, torch.nn.functional, torch) if getattr(home, text, None) is thing
        )
        home = next(public, None)
        if home is None:
            raise InvalidInput(
                f"{what} is {_label(thing)} of {thing.__module__}, which torch does not offer by a public name"
            )
        return f"{home.__name__}.{text}"

    def expression(self, thing: Callable[..., Any], what: str) -> str:
        """A call that makes the model."""
        called = thing if isinstance(thing, partial) else partial(thing)
        return f"{self.name(called.func, what)}({_arguments(called, what)})"

    def optimizer(self, thing: Callable[..., Any]) -> str:
        """A call that makes the optimizer from `model.parameters()`."""
        called = thing if isinstance(thing, partial) else partial(thing)
        rest = _arguments(called, "optimizer")
        return f"{self.name(called.func, 'optimizer')}(model.parameters(){', ' if rest else ''}{rest})"


def _arguments(called: partial[Any], what: str) -> str:
    texts = [repr(a) for a in called.args] + [f"{k}={v!r}" for k, v in called.keywords.items()]
    for text in texts:
        try:
            ast.literal_eval(text.partition("=")[2] if re.match(r"\w+=", text) else text)
        except (ValueError, SyntaxError) as error:
            raise InvalidInput(
                f"the argument {text} of {what} is not a literal, so it cannot be written into a script"
            ) from error
    return ", ".join(texts)


def _check_imports(text: str, what: str) -> None:
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            top = name.partition(".")[0]
            if name.startswith(".") or (top != "torch" and top not in sys.stdlib_module_names):
                raise InvalidInput(
                    f"{what} imports {name!r}; an exported model may import only torch and the standard library"
                )


def _label(thing: Any) -> str:
    return repr(getattr(thing, "__qualname__", None) or type(thing).__name__)
