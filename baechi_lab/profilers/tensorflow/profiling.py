"""`bl.profile`: turns a traced step into an `OpGraph` with op costs, measured here or estimated for named hardware."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph.hardware import DEFAULT_HARDWARE, PRECISIONS, Hardware, HardwareChoice, by_kind
from ...graph.opgraph import OWN, OpGraph
from ...graph.step import Step
from ..estimate_record import estimate_record
from ..machine_load import summarize_repeats, warn_if_disturbed
from ..precision import Precision, profile_mode
from ..programs.detection import is_program
from ..roofline import Kernel, Work, estimated_us
from .backward_pairing import forward_ops, is_backward
from .colocation import colocation_groups
from .float_types import FLOAT_NAMES
from .function_bodies import op_types
from .memory_reuse import reuse_of
from .op_work import count_work
from .structure import Structure, read_structure
from .tracing import trace
from .worker_measurement import measure

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """Facts about a profile beside its graph.

    `mode`; `device`, the measured device or the assumed hardware; `backward_ops`, and `paired_ops` of them with a forward op;
    `open_shapes`, tensors whose size the graph leaves open (a measured profile takes sizes from the trace);
    `unmeasured_ops`, ops that are not in the trace; `seconds`, the time of profiling.
    """

    mode: str
    device: str
    ops: int
    backward_ops: int
    paired_ops: int
    open_shapes: int
    unmeasured_ops: int
    seconds: float

    @property
    def paired_share(self) -> float:
        """Share of backward ops that have a forward op; 1.0 if there are no backward ops."""
        return self.paired_ops / self.backward_ops if self.backward_ops else 1.0


def profile(
    step_or_fn: Any,
    *inputs: Any,
    mode: str | None = None,
    hardware: HardwareChoice | None = None,
    precision: str | None = None,
    device: str | None = None,
    warmup: int = 5,
    runs: int = 5,
    timeout: float | None = None,
    progress: bool = True,
    **options: Any,
) -> OpGraph:
    """Returns the operators of a training step, in topological order, with their costs.

    Args:
        step_or_fn: a `Step`, or whatever `bl.trace` takes. A `bl.torch.TorchStep`, or a PyTorch module with one sample
            input, is given to `bl.torch.profile`: measured where it is, or estimated. A program (`.onnx`, `.pt2`, or in
            memory) is estimated by `bl.profile_program`, which has sizes for open dimensions.
        inputs: where it is a function or a model: one value per input, as in `bl.trace`.
        mode: `measured` runs `warmup` steps, then averages `runs` traced ones, op after op on one `device`
            (default the first GPU, else the CPU), in a process of its own. `estimated` computes a roofline and runs nothing.
            By default `estimated` if `hardware` or `precision` is given, or the step is a program, else `measured`.
        hardware: for `estimated` (by default `rtx2080`), a name in any case (`a100`, `h100`, `mi300x`, `cpu-core`, ...:
            the keys of `baechi_lab.graph.hardware.HARDWARE`) or a `Hardware`, whose durations are recorded under that
            name and under `gpu`, `cpu` or `tpu`; several names give each its own duration under that name as device
            kind; a mapping says which device kind is which hardware, as in `{"gpu": "a100", "cpu": "cpu-core"}`. The
            first is the reference.
        precision: for `estimated`: "fp32", "tf32", "bf16", "fp16", "mixed-bf16" or "mixed-fp16"; by default the types of the
            step, with float32 products in full float32 (`baechi_lab.profilers.precision`).
        device, warmup, runs: for `measured`, see there.
        timeout: seconds for measuring, starting the process included; None for no limit.
        progress: True shows a progress bar while measuring.
        options: for PyTorch, further options of `bl.torch.profile` (`optimizer`, `dtype`, ...).

    Returns:
        an OpGraph: microseconds, bytes of every tensor (a control dependency is 4, a handle 8), colocation groups
        of ops that share a variable, `forward_of`, persistent bytes of each variable on its handle op. `graph.info` says
        under "estimate" what an estimate was made for, and how far off it may be. The share of paired backward ops is logged;
        `profile_with_report` returns it.

    Raises:
        InvalidInput, UnknownNameError: options; `hardware` or `precision` with `mode="measured"`; whatever `bl.trace` raises.
        ExecutionError: the step cannot run, or
            the process that measures it died or took longer than `timeout`.

    >>> import numpy as np, tensorflow as tf
    >>> w = tf.Variable(np.ones((8, 4), np.float32), name="w")
    >>> graph = profile(lambda x: x @ w, np.ones((2, 8), np.float32), mode="estimated", hardware="v100")
    >>> int(graph.persistent_bytes.sum())
    128
    """
    return profile_with_report(
        step_or_fn,
        *inputs,
        mode=mode,
        hardware=hardware,
        precision=precision,
        device=device,
        warmup=warmup,
        runs=runs,
        timeout=timeout,
        progress=progress,
        **options,
    )[0]


def profile_with_report(
    step_or_fn: Any,
    *inputs: Any,
    mode: str | None = None,
    hardware: HardwareChoice | None = None,
    precision: str | None = None,
    device: str | None = None,
    warmup: int = 5,
    runs: int = 5,
    timeout: float | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[OpGraph, Report]:
    """Returns the graph of `profile` and a `Report` on it."""
    started = time.perf_counter()
    mode = profile_mode(mode, hardware, precision, is_program=is_program(step_or_fn))
    hardware = DEFAULT_HARDWARE if hardware is None else hardware
    if is_program(step_or_fn):
        return _profile_program(step_or_fn, inputs, mode, {"hardware": hardware, "precision": precision}, started)
    if _is_torch_step(step_or_fn):
        estimate = {"hardware": hardware, "precision": precision}
        options |= estimate if mode == "estimated" else {"device": device, "warmup": warmup, "runs": runs}
        return _profile_torch(step_or_fn, inputs, mode, options, started)
    if options:
        raise InvalidInput(f"profile takes {next(iter(options))!r} for PyTorch modules and steps only")
    if isinstance(step_or_fn, Step) and inputs:
        raise InvalidInput(f"profile was given a traced step and {len(inputs)} inputs; a traced step has its inputs")
    kinds = by_kind(hardware)
    step = step_or_fn if isinstance(step_or_fn, Step) else trace(step_or_fn, *inputs)
    chosen = Precision.of(precision)
    if chosen.is_mixed:  # gradients are tensors of the graph, like activations
        chosen = Precision.of(chosen.name, chosen.dtype)
    structure = read_structure(step, chosen.dtype)
    missing = 0
    if mode == "estimated":
        device_name = ", ".join(dict.fromkeys(h.name for h in kinds.values()))
        columns = _estimate(step, structure, kinds, chosen)
    else:
        device_name, columns, missing = _measure(step, structure, device, (warmup, runs, timeout, progress))
    graph = _graph(step, structure, columns)
    backward = np.array([is_backward(name) for name in graph.names], dtype=np.bool_)
    paired = int(np.count_nonzero(backward & (graph.forward_of >= 0)))
    seconds = time.perf_counter() - started
    report = Report(mode, device_name, graph.n, int(backward.sum()), paired, structure.open_shapes, missing, seconds)
    _LOG.info("%s: paired %.1f%% of %d backward ops", step.name, 100 * report.paired_share, report.backward_ops)
    return graph, report


def _is_torch_step(step_or_fn: Any) -> bool:
    torch = sys.modules.get("torch")  # a module or step of it exists only if it is loaded
    return torch is not None and (
        getattr(step_or_fn, "framework", "") == "torch" or isinstance(step_or_fn, torch.nn.Module)
    )


def _profile_torch(
    step: Any, inputs: tuple[Any, ...], mode: str, options: dict[str, Any], started: float
) -> tuple[OpGraph, Report]:
    from ..torch.profile import profile as profile_layers

    if len(inputs) > 1:
        raise InvalidInput(f"{len(inputs)} inputs were given with a PyTorch module; give one tensor, tuple or dict")
    device_name = options.get("device") or "where the model is"
    if mode == "estimated":
        device_name = ", ".join(dict.fromkeys(h.name for h in by_kind(options["hardware"]).values()))
    graph = profile_layers(step, *inputs, **options)
    backward = int(np.count_nonzero(graph.forward_of >= 0))
    seconds = time.perf_counter() - started
    return graph, Report(mode, device_name, graph.n, backward, backward, 0, 0, seconds)


def _profile_program(
    program: Any, inputs: tuple[Any, ...], mode: str, options: dict[str, Any], started: float
) -> tuple[OpGraph, Report]:
    from ..programs.estimation import profile_program

    if mode != "estimated" or inputs:
        raise InvalidInput(
            f"mode is {mode!r} and {len(inputs)} inputs are given; an exported program is profiled with mode='estimated' alone"
        )
    graph = profile_program(program, **options)
    device_name = ", ".join(dict.fromkeys(h.name for h in by_kind(options["hardware"]).values()))
    backward = int(np.count_nonzero(graph.forward_of >= 0))
    return graph, Report(mode, device_name, graph.n, backward, backward, 0, 0, time.perf_counter() - started)


def _estimate(step: Step, structure: Structure, kinds: dict[str, Hardware], precision: Precision) -> dict[str, Any]:
    work = precision.work(count_work(structure))
    duration_by_kind = {kind: estimated_us(work, kind_hardware) for kind, kind_hardware in kinds.items()}
    columns: dict[str, Any] = {
        "duration_us": next(iter(duration_by_kind.values())),
        "duration_by_kind": duration_by_kind,
        "persistent_bytes": _variable_bytes(step, structure, "fp32" if precision.is_mixed else precision.dtype),
        "info": {"estimate": estimate_record(kinds, precision, _kernels(work))},
    }
    if (
        precision.is_mixed
    ):  # a variable is the float32 master weight, and reading it makes the weight that is computed with
        reads = np.array([node.op == "ReadVariableOp" for node in structure.nodes], dtype=np.bool_)
        columns["reuse"] = np.where(reads, OWN, reuse_of(structure))
    return columns


def _kernels(work: Work) -> Iterator[Kernel]:
    """Yields the matrix products of a step."""
    for row in np.flatnonzero(work.matrix).tolist():
        flops = float(work.flops[row] * work.times[row])
        yield Kernel(flops=flops, precision=PRECISIONS[work.precision[row]], matrix=True)


def _measure(
    step: Step, structure: Structure, device: str | None, settings: tuple[int, int, float | None, bool]
) -> tuple[str, dict[str, Any], int]:
    """Returns the device, the graph's columns, and the number of ops that are not in the traces."""
    device_name, kind, measured = measure(step, device, *settings)
    size = structure.tensor_bytes.copy()
    for pair, seen_bytes in measured.output_bytes.items():
        if pair in structure.tensor_of:
            size[structure.tensor_of[pair]] = seen_bytes
    differences = summarize_repeats(
        [node.name for node in structure.nodes], measured.run_us, measured.others_share, cores_needed=1
    )
    warn_if_disturbed(step.name, differences)
    columns = {
        "duration_us": measured.duration_us,
        "duration_by_kind": {kind: measured.duration_us},
        "tensor_bytes": size,
        "temp_bytes": measured.temp_bytes,
        "persistent_bytes": _variable_bytes(step, structure) + measured.persistent_bytes,
        "info": {"measured": differences},
    }
    return device_name, columns, int(np.count_nonzero(~measured.in_trace))


def _graph(step: Step, structure: Structure, columns: dict[str, Any]) -> OpGraph:
    colocation, groups = colocation_groups(structure.nodes, step.slots)
    return OpGraph(
        names=tuple(node.name for node in structure.nodes),
        op_types=op_types(structure.graph_def, structure.nodes),
        tensor_producer=structure.tensor_producer,
        tensor_names=structure.tensor_names,
        consumer_ptr=structure.consumer_ptr,
        consumers=structure.consumers,
        colocation=colocation,
        colocation_names=groups,
        forward_of=forward_ops(structure.nodes),
        name=step.name,
        **{
            "reuse": reuse_of(structure),
            "tensor_bytes": structure.tensor_bytes,
            "persistent_bytes": _variable_bytes(step, structure),
            **columns,
        },
    )


def _variable_bytes(step: Step, structure: Structure, dtype: str | None = None) -> NDArray[np.int64]:
    """Returns the bytes of each variable, on its handle op; `dtype` replaces floating-point types."""
    size = np.zeros(structure.n, dtype=np.int64)
    for variable, value in zip(step.variables, step.initial_values, strict=True):
        if variable.name in structure.index:
            is_replaced = dtype is not None and str(value.dtype) in FLOAT_NAMES
            width = (4 if dtype == "fp32" else 2) if is_replaced else value.itemsize
            size[structure.index[variable.name]] = value.size * width
    return size
