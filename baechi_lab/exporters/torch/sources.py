"""The source files that an exported model needs, and the names by which a script refers to their definitions."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ... import errors
from ... import torch_runtime as runtime
from ...errors import InvalidInput, in_short
from ...torch_steps.default_loss import own_loss
from ...torch_steps.step import ReturnedModel, TorchStep


def saved_bytes(value: object) -> bytes:
    """Returns the bytes that `torch.save` writes."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def batch_bytes(step: TorchStep) -> bytes:
    """Returns the bytes of a step's batch, which a script loads without running code that the file names.

    Raises:
        InvalidInput: the inputs have objects that such a file cannot have, such as dataclasses.
    """
    content = saved_bytes({"inputs": step.inputs, "targets": list(step.targets)})
    unsafe_classes = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    if unsafe_classes:
        raise InvalidInput(
            f"inputs of step {step.name!r} have a {min(unsafe_classes)}, which an exported script cannot load from a file; they "
            "may have tensors, numbers, texts, tuples, lists and dicts"
        )
    return content


class Sources:
    """The source files that a model needs, copied under new names."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.module_of: dict[str, str] = {}
        self.packages: set[str] = set()  # installed ones, which are imported where they are

    def add(self, source: Any, role: str) -> str | None:
        """Adds the file that defines an object. Returns its module name in the script; None for torch and Python."""
        name = getattr(source, "__module__", "") or ""
        top = name.partition(".")[0]
        if top in ("torch", "builtins"):
            return None
        if is_installed(top):
            self.packages.add(top)
            self.module_of[name] = name  # the script imports it
        if name not in self.module_of:
            try:
                path = inspect.getsourcefile(source)
                text = Path(path or "").read_text()
            except (OSError, TypeError) as error:
                raise InvalidInput(
                    f"{role} {_label(source)} has no source file to export; write it to a .py file (in a notebook: %%writefile) "
                    "and import it"
                ) from error
            self.packages |= _imported_packages(text, f"{role} {_label(source)}, defined in {Path(path or '').name},")
            self.module_of[name] = f"model_{name.rpartition('.')[2].strip('_') or 'main'}"
            self.files[f"{self.module_of[name]}.py"] = text
        return self.module_of[name]

    def of_step(self, step: TorchStep, model: nn.Module) -> dict[str, str]:
        """Adds the sources of a step; returns the expressions that a script has in place of `<MODEL>`, `<LOSS>` and so on."""
        values = {
            "NAME": json.dumps(step.name),
            "MODEL": self.expression(step.build, "build") + (".train()" if step.mode == "training" else ""),
            "LOSS": self.name(step.loss or own_loss, "loss"),
            "OPTIMIZER": "None" if step.optimizer is None else self.optimizer(step.optimizer),
            "SEED": repr(step.seed),
        }
        for module in model.modules():
            self.add(type(module), "a module of the model")
        return values

    def imports(self) -> list[str]:
        """Returns one import line per file."""
        return [f"import {module}" for module in sorted(set(self.module_of.values()))]

    def needs(self) -> str:
        """Returns the packages that must be installed where the script runs."""
        return " and ".join(["torch", *sorted(self.packages)]) if self.packages else "torch alone"

    def name(self, function: Callable[..., object], role: str) -> str:
        """Returns the expression by which the script refers to a class or function."""
        owner = getattr(function, "__self__", None)
        if inspect.ismethod(function) and isinstance(owner, type):  # a class method, which subclasses inherit
            return f"{self.name(owner, role)}.{function.__name__}"
        text = getattr(function, "__qualname__", "")
        if not text or "<" in text or inspect.ismethod(function):
            raise InvalidInput(
                f"{role} is {_label(function)}; an export needs a class or function of a module, or functools.partial of one"
            )
        module = self.add(function, role)
        if module is not None:
            return f"{module}.{text}"
        namespaces = (torch.optim, torch.nn, torch.nn.functional, torch)
        namespace = next((n for n in namespaces if getattr(n, text, None) is function), None)
        if namespace is None:
            raise InvalidInput(
                f"{role} is {_label(function)} of {function.__module__}, which torch does not offer by a public name"
            )
        return f"{namespace.__name__}.{text}"

    def expression(self, function: Callable[..., object], role: str) -> str:
        """Returns the call that creates the model."""
        if isinstance(function, ReturnedModel):  # of a function that returns the inputs as well
            return f"{self.name(function.function, role)}()[0]"
        call = function if isinstance(function, partial) else partial(function)
        return f"{self.name(call.func, role)}({self._arguments(call, role)})"

    def optimizer(self, function: Callable[..., object]) -> str:
        """Returns the call that creates the optimizer from `model.parameters()`."""
        call = function if isinstance(function, partial) else partial(function)
        arguments = self._arguments(call, "optimizer")
        return f"{self.name(call.func, 'optimizer')}(model.parameters(){', ' if arguments else ''}{arguments})"

    def _arguments(self, call: partial[object], role: str) -> str:
        texts = [self._literal(a, role) for a in call.args]
        return ", ".join(texts + [f"{k}={self._literal(v, role)}" for k, v in call.keywords.items()])

    def _literal(self, value: object, role: str) -> str:
        """Returns a literal, or a configuration of Hugging Face that `from_dict` creates from a literal."""
        kind = type(value)
        if hasattr(value, "to_dict") and hasattr(kind, "from_dict"):
            return f"{self.name(kind, role)}.from_dict({self._literal(value.to_dict(), role)})"
        try:
            ast.literal_eval(repr(value))
        except (ValueError, SyntaxError) as error:
            raise InvalidInput(
                f"the argument {in_short(value, 200)} of {role} is not a literal, so it cannot be written into a script"
            ) from error
        return repr(value)


def is_installed(package: str) -> bool:
    """Whether this is an installed package of others, which a script can import where it is installed too."""
    if not package or package in sys.stdlib_module_names or package in ("baechi_lab", "__main__"):
        return False
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and bool({"site-packages", "dist-packages"} & set(Path(spec.origin or "").parts))


def _imported_packages(text: str, origin: str) -> set[str]:
    """Returns the packages that a file imports besides torch and the standard library.

    Raises `InvalidInput` for other imports.
    """
    packages = set()
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            top = name.partition(".")[0]
            if name.startswith(".") or not (top == "torch" or top in sys.stdlib_module_names or is_installed(top)):
                raise InvalidInput(
                    f"{origin} imports {name!r}; an exported model may import only torch, Python's own modules "
                    "and installed packages: define it in a file of its own"
                )
            if top != "torch" and top not in sys.stdlib_module_names:
                packages.add(top)
    return packages


def _label(source: object) -> str:
    return repr(getattr(source, "__qualname__", None) or type(source).__name__)


def runtime_files() -> dict[str, str]:
    """Returns the runtime as flat files `placed_*.py` that import each other and torch."""
    folder = Path(inspect.getfile(runtime)).parent
    files = {
        f"placed_{path.stem}.py": path.read_text() for path in sorted(folder.glob("*.py")) if path.stem != "__init__"
    }
    files["placed_errors.py"] = Path(inspect.getfile(errors)).read_text()
    return {name: flat(text) for name, text in files.items()}


def flat(text: str) -> str:
    """Replaces relative imports by imports of the flat files."""
    return re.sub(r"^(\s*)from \.+(?:\w+\.)*(\w+) import", r"\1from placed_\2 import", text, flags=re.MULTILINE)
