"""The training step that a command line names: a benchmark model, or a function in a Python file."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, InvalidInput, UnknownNameError, describe_error
from ..frameworks import require_framework
from ..graph import Step
from . import options

if TYPE_CHECKING:
    from ..torch_steps.step import TorchStep


def add_step(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, --batch-size and -p."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a benchmark model (inception_v3, gnmt, ...), or FILE.py:FUNCTION; the function, called without "
        "arguments, returns (train_step, *example_inputs), what bl.trace returned, a bl.torch.TorchStep, or "
        "(PyTorch module, *inputs)",
    )
    parser.add_argument("--batch-size", metavar="N", help="batch size of a benchmark model")
    options.add_parameters(parser, "model")


def step_from(arguments: argparse.Namespace) -> Step | TorchStep:
    """Builds a model or loads a file, and traces the step."""
    model_parameters = check_parameters(arguments)
    if ".py:" in arguments.model:
        return step_of_file(arguments.model)
    from .. import models

    return models.build(arguments.model, **model_parameters)


def check_parameters(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the model's parameters. Raises an error for unknown names and bad values."""
    model_parameters = options.parameters(arguments.param)
    if (size := options.batch_size_from(arguments)) is not None:
        if "batch_size" in model_parameters:
            raise InvalidInput("parameter batch_size is given more than once: by --batch-size and by -p")
        model_parameters["batch_size"] = size
    count = getattr(arguments, "micro_batches", None)
    if ".py:" in arguments.model:
        if model_parameters:
            raise InvalidInput(f"{arguments.model} takes no parameters; --batch-size and -p are for benchmark models")
        return {}
    from ..models.registry import make_model
    from ..passes.unroll import micro_batch_size

    model = make_model(arguments.model, **model_parameters)
    if count is not None:
        batch_size: int = model.batch_size  # type: ignore[attr-defined]
        batches = options.whole_number(count, "--micro-batches", lowest=1)
        model_parameters["batch_size"] = micro_batch_size(batch_size, batches)
    return model_parameters


def check_model(name: str) -> None:
    """Raises an error for an unknown model or missing file, before slow imports."""
    if ".py:" in name:
        path = name.rpartition(":")[0]
        if not os.path.isfile(path):
            raise FormatError(f"{path}: no such file")
        return
    from ..models.registry import model_class, model_names

    benchmark_models = ", ".join(model_names())
    if name not in model_names() and (os.path.exists(name) or name.endswith(".py")):
        raise InvalidInput(
            f"{name} names no training step; write FILE.py:FUNCTION, or a benchmark model ({benchmark_models})"
        )
    model_class(name)
    require_framework("tensorflow", f"benchmark model {name!r}")


def step_of_file(spec: str) -> Step | TorchStep:
    """Returns the traced step of FILE.py:FUNCTION. The file can import its neighbours, which come last on the path.

    Raises `FormatError` or `UnknownNameError` for a missing file or function, and `InvalidInput` for what the function raises.
    """
    path, _, function = spec.rpartition(":")
    module_spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if module_spec is None or module_spec.loader is None or not os.path.isfile(path):
        raise FormatError(f"{path}: no such Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # where classes look for the file that defines them
    # The file may import its neighbours, but they hide nobody's: TensorFlow would import a random.py among them.
    sys.path.append(str(Path(path).resolve().parent))
    _run_theirs(path, module_spec.loader.exec_module, module)
    if not callable(getattr(module, function, None)):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UnknownNameError.of(f"function in {path}:", function, functions)
    call = getattr(module, function)
    step = _run_theirs(spec, call)
    if isinstance(step, Step) or getattr(step, "framework", "") == "torch":
        return step  # type: ignore[no-any-return]
    first = step[0] if isinstance(step, tuple) and step else step
    torch = sys.modules.get("torch")  # who has a module has loaded it
    if torch is not None and isinstance(first, torch.nn.Module):
        from ..torch_steps.step import ReturnedModel, TorchStep

        inputs = step[1:] if isinstance(step, tuple) else ()
        if not inputs:
            raise InvalidInput(f"{spec} returned a PyTorch module without inputs; it must return (module, *inputs)")
        name = spec.rpartition(":")[2]
        return TorchStep(name, ReturnedModel(call), inputs[0] if len(inputs) == 1 else inputs)
    if not isinstance(step, tuple) or not step:
        raise InvalidInput(
            f"{spec} returned {type(step).__name__}; it must return (train_step, *example_inputs), a Step, a "
            "bl.torch.TorchStep or (PyTorch module, *inputs)"
        )
    from ..profilers import trace

    return trace(*step)


def _module_name(path: str) -> str:
    """Returns a module name for the file that no other module has, even if the file is a random.py."""
    name = Path(path).stem
    module = sys.modules.get(name)
    is_this_file = module is not None and os.path.basename(getattr(module, "__file__", None) or "") == os.path.basename(
        path
    )
    try:
        is_used = not is_this_file and (module is not None or importlib.util.find_spec(name) is not None)
    except (ImportError, ValueError):  # a name with a dot
        is_used = True
    return f"{name}_file".replace(".", "_") if is_used or name in sys.stdlib_module_names else name


def _run_theirs(spec: str, call: Any, *arguments: Any) -> Any:
    """Calls code of the user's file. Any exception becomes an `InvalidInput` with one sentence."""
    try:
        return call(*arguments)
    except (Exception, SystemExit) as error:  # their code may raise anything, and end without a word
        raise InvalidInput(f"{spec} raised {describe_error(error)}") from error
