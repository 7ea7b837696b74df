"""`bl.profile_program`: an exported program -> `OpGraph` with estimated costs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from ...checks import check_whole
from ...errors import InvalidInput, in_short
from ...graph import OpGraph
from ...graph.formats.reading import name_of
from ...graph.hardware import DEFAULT_HARDWARE, Hardware, HardwareChoice, by_kind
from ...internal_warnings import outer_stacklevel
from ..precision import Precision
from .backward import add_backward_and_updates
from .detection import is_instance
from .records import UNKNOWN_ITERATIONS, UNKNOWN_SHAPES, Program, ProgramOp


class GuessedCosts(UserWarning):
    """Warns of operators for which at most the bytes are known; the message names them and their share of the work."""


def profile_program(
    program: object,
    *,
    hardware: HardwareChoice = DEFAULT_HARDWARE,
    training: bool = True,
    batch_size: int | None = None,
    sizes: Mapping[str, int] | None = None,
    optimizer_states: int = 0,
    precision: str | Precision | None = None,
    gradients: str | None = None,
) -> OpGraph:
    """Estimates the costs of an exported program's operators without running it or reading its weights.

    Args:
        program: a file `.onnx` or `.pt2`, an `onnx.ModelProto`, or an `ExportedProgram` of `torch.export`. Of a `.pt2` file only
            the JSON of the program is read: its weights and sample inputs may be pickles, which could run any code.
        hardware: as in `bl.profile`.
        training: True adds a backward pass and updates (see `baechi_lab.profilers.programs.backward`).
        batch_size: size of the first dimension of inputs, which the program leaves open, or which has that size.
        sizes: other open dimensions by name.
        optimizer_states: tensors of a parameter's size that the optimizer keeps (SGD 0, momentum 1, Adam 2).
        precision, gradients: as in `bl.torch.profile`; by default the types of the program.

    Returns:
        one op per operator, and its backward ops; parameters are persistent bytes of the first op that reads them.

    Warns:
        GuessedCosts: an operator is unknown and estimated by its bytes, a shape is unknown, the operators' version is older
            than ONNX Runtime's oldest, or parameters cannot be trained because they are quantized.

    Raises:
        FormatError: the file is unreadable, cut off or of an unsupported version, or its file of weights is missing.
        InvalidInput: an open dimension has no size, or a size names a dimension that is not open.
        MissingPackage: `onnx` or `torch` is not installed.

    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 8]) for n in "xy")
    >>> w = helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [0.0] * 64)
    >>> graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], "one", [x], [y], [w])
    >>> profile_program(helper.make_model(graph), hardware="a100", batch_size=4).names
    ('mm', 'mm/backward/weight', 'mm/update')
    """
    kinds = by_kind(hardware)
    if batch_size is not None:
        check_whole("batch_size", batch_size)
    check_whole("optimizer_states", optimizer_states, 0)
    if sizes is not None and not isinstance(sizes, Mapping):
        raise InvalidInput(f"sizes is {in_short(sizes)}; it must map names of dimensions to sizes")
    checked_sizes = {
        label: check_whole(f"sizes[{in_short(label, 80)}]", size) for label, size in dict(sizes or {}).items()
    }
    precision = Precision.of(precision, gradients)
    on_cpu = all(kind_hardware.kind == "cpu" for kind_hardware in kinds.values())
    forward_program = _read_program(program, batch_size, checked_sizes, precision, on_cpu).in_precision(precision)
    for message in (*forward_program.notes, *_describe_guesses(forward_program, next(iter(kinds.values())))):
        warnings.warn(f"{forward_program.name}: {message}", GuessedCosts, stacklevel=outer_stacklevel())
    if not training:
        return forward_program.graph(kinds, precision)
    step_program = add_backward_and_updates(forward_program, optimizer_states, precision)
    for message in _describe_untrained(step_program):
        warnings.warn(f"{forward_program.name}: {message}", GuessedCosts, stacklevel=outer_stacklevel())
    return step_program.graph(kinds, precision)


def _read_program(
    program: Any, batch_size: int | None, sizes: dict[str, int], precision: Precision, on_cpu: bool
) -> Program:
    path = isinstance(program, (str, bytes, os.PathLike))
    if (path and name_of(program).endswith(".pt2")) or is_instance(program, "torch.export", "ExportedProgram"):
        from ..torch.exported_program import program_of

        return program_of(program, batch_size, sizes, precision, on_cpu)
    if (path and name_of(program).endswith(".onnx")) or is_instance(program, "onnx", "ModelProto"):
        from .onnx_model import program_of as program_of_onnx

        return program_of_onnx(program, batch_size, sizes, precision)
    raise InvalidInput(
        f"program is {in_short(program, 80)}; give a file .onnx or .pt2, an onnx.ModelProto, or a torch.export.ExportedProgram"
    )


def _describe_untrained(step_program: Program) -> Iterator[str]:
    """Describes why a step has no backward pass, or one without some of its products."""
    quantized_types = sorted(
        {op.op_type for op in step_program.ops if op.forward_of < 0 and _reads_integer_weights(op)}
    )
    if not any(op.forward_of >= 0 for op in step_program.ops):
        yield (
            "no parameter of it can be trained, so that the step is the forward pass alone; training=False (--inference) says "
            "that this is meant"
        )
    elif quantized_types:
        yield (
            f"quantized weights are not trained: behind {', '.join(quantized_types[:8])} the step has no gradients of them; "
            "training=False (--inference) estimates the model as it is used"
        )


def _reads_integer_weights(op: ProgramOp) -> bool:
    return op.op_type in ("DequantizeLinear", "MatMulNBits") or any(kernel.precision == "int8" for kernel in op.kernels)


def _describe_guesses(program: Program, hardware: Hardware) -> Iterator[str]:
    """Describes what is unknown about the program, with its share of the time."""
    us = program.microseconds(hardware) if program.reasons_of_guesses else []
    for reason in ("", UNKNOWN_ITERATIONS, UNKNOWN_SHAPES):
        ops = [
            i
            for i, why in program.reasons_of_guesses.items()
            if (why if why in (UNKNOWN_ITERATIONS, UNKNOWN_SHAPES) else "") == reason
        ]
        if not ops:
            continue
        kinds = sorted({program.ops[i].op_type for i in ops})
        examples = ", ".join(kinds[:8]) + (f" and {len(kinds) - 8} more" if len(kinds) > 8 else "")
        share = f"{sum(us[i] for i in ops) / max(sum(us), 1e-300):.0%} of the estimated forward time"
        if reason == UNKNOWN_SHAPES:
            yield (
                f"the shapes of {len(ops)} of {len(us)} operators are not known ({examples}); their work is taken from what is "
                f"known of their inputs, {share}, and may be far more"
            )
        elif reason == UNKNOWN_ITERATIONS:
            yield (
                f"how often the bodies of {len(ops)} operators run is not known ({examples}); one iteration of each is counted, "
                f"{share}, and may be far less than there are"
            )
        else:
            yield f"of {len(ops)} operators only the bytes are counted ({examples}); they are {share}"
