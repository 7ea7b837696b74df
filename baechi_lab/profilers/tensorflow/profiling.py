"""`bl.profile` of a TensorFlow step: turns it into an `OpGraph` with op costs, measured here or estimated for named hardware."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph.hardware import PRECISIONS, Hardware, HardwareChoice, by_kind
from ...graph.opgraph import OWN, OpGraph
from ...graph.step import Step
from ..dispatch import MeasureSettings, Report, hardware_names
from ..estimate_record import estimate_record
from ..kernel_model import estimated_us
from ..machine_load import summarize_repeats, warn_if_disturbed
from ..precision import Precision
from ..work import Kernel
from .backward_pairing import forward_ops, is_backward
from .colocation import colocation_groups
from .float_types import FLOAT_NAMES
from .function_bodies import op_types
from .kernel_scratch import scratch_bytes
from .memory_reuse import reuse_of
from .op_work import count_work
from .structure import Structure, read_structure
from .tracing import trace
from .worker_measurement import measure

_LOG = logging.getLogger(__name__)


def profile_with_report(
    subject: object,
    inputs: tuple[object, ...],
    mode: str,
    hardware: HardwareChoice,
    precision: str | None,
    settings: MeasureSettings,
    **options: object,
) -> tuple[OpGraph, Report]:
    """Profiles a step, or a function or model that `bl.trace` takes; arguments and errors as of `bl.profile`."""
    start_seconds = time.perf_counter()
    if options:
        raise InvalidInput(f"profile takes {next(iter(options))!r} for PyTorch modules and steps only")
    if isinstance(subject, Step) and inputs:
        raise InvalidInput(f"profile was given a traced step and {len(inputs)} inputs; a traced step has its inputs")
    kinds = by_kind(hardware)
    step = subject if isinstance(subject, Step) else trace(subject, *inputs)
    step_precision = Precision.of(precision)
    if step_precision.is_mixed:  # gradients are tensors of the graph, like activations
        step_precision = Precision.of(step_precision.name, step_precision.dtype)
    structure = read_structure(step, step_precision.dtype)
    missing = 0
    if mode == "estimated":
        device_name = hardware_names(hardware)
        columns = _estimate(step, structure, kinds, step_precision)
    else:
        device_name, columns, missing = _measure(step, structure, settings)
    colocation, groups = colocation_groups(structure.nodes, step.slots)
    graph = OpGraph(
        names=tuple(node.name for node in structure.nodes),
        op_types=op_types(structure.graph_def, structure.nodes),
        tensor_producer=structure.tensor_producer,
        tensor_names=structure.tensor_names,
        consumer_ptr=structure.consumer_ptr,
        consumers=structure.consumers,
        colocation=colocation,
        colocation_names=groups,
        forward_of=forward_ops(structure.nodes),
        output_shapes=structure.output_shapes,
        name=step.name,
        **{
            "reuse": reuse_of(structure),
            "tensor_bytes": structure.tensor_bytes,
            "temp_bytes": structure.round_bytes,
            "persistent_bytes": _variable_bytes(step, structure),
            **columns,
        },
    )
    backward = np.array([is_backward(name) for name in graph.names], dtype=np.bool_)
    pair_count = int(np.count_nonzero(backward & (graph.forward_of >= 0)))
    seconds = time.perf_counter() - start_seconds
    report = Report(
        mode, device_name, graph.n, int(backward.sum()), pair_count, structure.open_shapes, missing, seconds
    )
    _LOG.info("%s: paired %.1f%% of %d backward ops", step.name, 100 * report.paired_share, report.backward_ops)
    return graph, report


def _estimate(step: Step, structure: Structure, kinds: dict[str, Hardware], precision: Precision) -> dict[str, Any]:
    work = precision.work(count_work(structure))
    matrix_products = (
        Kernel(flops=float(work.flops[row] * work.times[row]), precision=PRECISIONS[work.precision[row]], matrix=True)
        for row in np.flatnonzero(work.matrix).tolist()
    )
    duration_by_kind = {kind: estimated_us(work, kind_hardware) for kind, kind_hardware in kinds.items()}
    columns: dict[str, Any] = {
        "duration_us": next(iter(duration_by_kind.values())),
        "duration_by_kind": duration_by_kind,
        "persistent_bytes": _variable_bytes(step, structure, "fp32" if precision.is_mixed else precision.dtype),
        "temp_bytes": structure.round_bytes
        + scratch_bytes(structure, on_cpu=all(kind_hardware.kind == "cpu" for kind_hardware in kinds.values())),
        "info": {"estimate": estimate_record(kinds, precision, matrix_products)},
    }
    # A variable is the float32 master weight, and reading it makes the weight that is computed with.
    if precision.is_mixed:
        reads = np.array([node.op == "ReadVariableOp" for node in structure.nodes], dtype=np.bool_)
        columns["reuse"] = np.where(reads, OWN, reuse_of(structure))
    return columns


def _measure(step: Step, structure: Structure, settings: MeasureSettings) -> tuple[str, dict[str, Any], int]:
    """Returns the device, the graph's columns, and the number of ops that are not in the traces.

    Temporary bytes do not include what an op allocates for items of a list; the traces have no records of loops.
    """
    device_name, kind, measurement = measure(step, **asdict(settings))
    size = structure.tensor_bytes.copy()
    temp_bytes = measurement.temp_bytes + structure.round_bytes
    for pair, seen_bytes in measurement.output_bytes.items():
        tensor = structure.tensor_of.get(pair, -1)
        if tensor in structure.list_bytes:
            temp_bytes[pair[0]] -= min(measurement.temp_bytes[pair[0]], structure.list_bytes[tensor])
        elif tensor >= 0:
            size[tensor] = seen_bytes
    differences = summarize_repeats(
        [node.name for node in structure.nodes], measurement.run_us, measurement.others_share, cores_needed=1
    )
    warn_if_disturbed(step.name, differences)
    columns = {
        "duration_us": measurement.duration_us,
        "duration_by_kind": {kind: measurement.duration_us},
        "tensor_bytes": size,
        "temp_bytes": temp_bytes,
        "persistent_bytes": _variable_bytes(step, structure) + measurement.persistent_bytes,
        "info": {"measured": differences},
    }
    return device_name, columns, int(np.count_nonzero(~measurement.in_trace))


def _variable_bytes(step: Step, structure: Structure, dtype: str | None = None) -> NDArray[np.int64]:
    """Returns the bytes of each variable, on its handle op; `dtype` replaces floating-point types."""
    size = np.zeros(structure.n, dtype=np.int64)
    for variable, value in zip(step.variables, step.initial_values, strict=True):
        if variable.name in structure.index:
            is_replaced = dtype is not None and str(value.dtype) in FLOAT_NAMES
            width = (4 if dtype == "fp32" else 2) if is_replaced else value.itemsize
            size[structure.index[variable.name]] = value.size * width
    return size
