"""`bl.profile`: one front for the frameworks and programs whose steps become an `OpGraph` with op costs."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from ..errors import InvalidInput
from ..frameworks import framework_of, framework_part
from ..graph.hardware import DEFAULT_HARDWARE, HardwareChoice, by_kind
from ..graph.opgraph import OpGraph
from .precision import profile_mode
from .programs.detection import is_program


@dataclass(frozen=True)
class Report:
    """Facts about a profile beside its graph.

    Args:
        mode: "measured" or "estimated".
        device: the measured device, or the assumed hardware.
        ops: their number.
        backward_ops, paired_ops: the number of backward ops, and of those with a forward op.
        open_shapes: the tensors whose size the graph leaves open; a measured profile takes sizes from the trace.
        unmeasured_ops: the ops that are not in the trace.
        seconds: the time of profiling.
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

    @classmethod
    def of_pairs(cls, graph: OpGraph, mode: str, device: str, start_seconds: float) -> Report:
        """Returns the report on a graph whose backward ops are all paired; `start_seconds` is by `time.perf_counter`."""
        backward = int(np.count_nonzero(graph.forward_of >= 0))
        return cls(mode, device, graph.n, backward, backward, 0, 0, time.perf_counter() - start_seconds)


@dataclass(frozen=True)
class MeasureSettings:
    """The arguments of `bl.profile` for measured profiles, with their defaults."""

    device: str | None = None
    warmup: int = 5
    runs: int = 5
    timeout: float | None = None
    progress: bool = True


class Profiler(Protocol):
    """Protocol of a framework that profiles steps: the function of `profilers/FRAMEWORK/framework.py`."""

    def profile_with_report(
        self,
        subject: object,
        inputs: tuple[object, ...],
        mode: str,
        hardware: HardwareChoice,
        precision: str | None,
        settings: MeasureSettings,
        **options: object,
    ) -> tuple[OpGraph, Report]:
        """Profiles a step, or what the framework traces as one; the arguments of `bl.profile`."""


def profile(
    step_or_fn: object,
    *inputs: object,
    mode: str | None = None,
    hardware: HardwareChoice | None = None,
    precision: str | None = None,
    device: str | None = None,
    warmup: int = 5,
    runs: int = 5,
    timeout: float | None = None,
    progress: bool = True,
    **options: object,
) -> OpGraph:
    """Returns the operators of a training step, in topological order, with their costs.

    Args:
        step_or_fn: a `Step`, or whatever `bl.trace` takes. A `bl.torch.TorchStep`, or a PyTorch module with one sample
            input, is given to `bl.torch.profile`: measured where it is, or estimated. A program (`.onnx`, `.pt2`, or in
            memory) is estimated by `bl.profile_program`, whose options it takes (`batch_size`, `sizes`, ...).
        inputs: where it is a function or a model: one value per input, as in `bl.trace`.
        mode: `measured` runs `warmup` steps, then averages `runs` traced ones, op after op on one `device`
            (default the first GPU, else the CPU), in a process of its own. `estimated` asks a model of kernels and runs nothing.
            By default `estimated` if `hardware` or `precision` is given, or the step is a program, else `measured`.
        hardware: for `estimated`, by default `rtx2080`. A name in any case (`a100`, `h100`, `mi300x`, `cpu-core`, ...: the keys
            of `baechi_lab.graph.hardware.HARDWARE`) or a `Hardware`: its durations are recorded under that name and under
            `gpu`, `cpu` or `tpu`. Several names: durations of each under its name as device kind; the first is the reference.
            A mapping says which device kind is which hardware: `{"gpu": "a100", "cpu": "cpu-core"}`.
        precision: for `estimated`: "fp32", "tf32", "bf16", "fp16", "mixed-bf16" or "mixed-fp16"; by default the types of the
            step, with float32 products in full float32 (`baechi_lab.profilers.precision`).
        device, warmup, runs: for `measured`, see there.
        timeout: seconds for measuring, starting the process included; None for no limit.
        progress: True shows a progress bar while measuring.
        options: for PyTorch, further options of `bl.torch.profile` (`optimizer`, `dtype`, ...); for programs, those of
            `bl.profile_program`.

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
    step_or_fn: object,
    *inputs: object,
    mode: str | None = None,
    hardware: HardwareChoice | None = None,
    precision: str | None = None,
    **options: Any,
) -> tuple[OpGraph, Report]:
    """Returns the graph of `profile`, whose arguments it takes, and a `Report` on it."""
    mode = profile_mode(mode, hardware, precision, is_program=is_program(step_or_fn))
    hardware = DEFAULT_HARDWARE if hardware is None else hardware
    settings = MeasureSettings(
        **{field.name: options.pop(field.name) for field in fields(MeasureSettings) if field.name in options}
    )
    if not is_program(step_or_fn):
        profiler: Profiler = framework_part("profilers", framework_of(step_or_fn))
        return profiler.profile_with_report(step_or_fn, inputs, mode, hardware, precision, settings, **options)
    from .programs.estimation import profile_program

    start_seconds = time.perf_counter()
    if mode != "estimated" or inputs:
        raise InvalidInput(
            f"mode is {mode!r} and {len(inputs)} inputs are given; an exported program is profiled with mode='estimated' alone"
        )
    graph = profile_program(step_or_fn, hardware=hardware, precision=precision, **options)
    return graph, Report.of_pairs(graph, mode, hardware_names(hardware), start_seconds)


def hardware_names(hardware: HardwareChoice) -> str:
    """Returns the names of the hardware of an estimate, as a report has them.

    >>> hardware_names({"gpu": "a100", "cpu": "cpu-core"})
    'a100, cpu-core'
    """
    return ", ".join(dict.fromkeys(kind_hardware.name for kind_hardware in by_kind(hardware).values()))
