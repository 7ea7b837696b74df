"""`bl.profile` of a TensorFlow step: turns it into an `OpGraph` with op costs, measured here or estimated for named hardware."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph.groups import join_groups
from ...graph.hardware import PRECISIONS, Hardware, HardwareChoice, by_kind
from ...graph.opgraph import OVERWRITES, OWN, VIEW, OpGraph
from ...graph.step import Step
from ..dispatch import MeasureSettings, Report, hardware_names
from ..estimate_record import estimate_record
from ..kernel_model import estimated_us
from ..machine_load import summarize_repeats, warn_if_disturbed
from ..precision import Precision
from ..work import Kernel
from .backward_pairing import forward_ops, is_backward
from .float_types import FLOAT_NAMES
from .function_bodies import op_types
from .kernel_scratch import scratch_bytes
from .nodes import VIEWS, data_inputs
from .op_work import count_work
from .structure import Structure, read_structure
from .tracing import trace
from .worker_measurement import measure

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

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
            "temp_bytes": structure.iteration_bytes,
            "persistent_bytes": _variable_bytes(step, structure),
            **columns,
        },
    )
    backward = np.array([is_backward(name) for name in graph.names], dtype=np.bool_)
    pair_count = int(np.count_nonzero(backward & (graph.forward_of >= 0)))
    seconds = time.perf_counter() - start_seconds
    report = Report(
        mode,
        device_name,
        graph.n,
        int(backward.sum()),
        pair_count,
        len(structure.open_tensors + structure.bounded_tensors),
        missing,
        seconds,
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
        "temp_bytes": structure.iteration_bytes
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
    temp_bytes = measurement.temp_bytes + structure.iteration_bytes
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


def colocation_groups(nodes: tuple[NodeDef, ...], slots: dict[str, str]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Returns the group of every op (-1 for none), and the groups' names: that of the first variable.

    A group has the ops that TensorFlow can only run together on one device. Every op that takes a variable's handle joins the
    group of the variable; an op that takes several (a While over two variables) joins their groups. An optimizer slot joins its
    variable's group. A `_class` hint of the graph joins two ops.
    """
    index = {node.name: i for i, node in enumerate(nodes)}
    handles = {node.name for node in nodes if node.op == "VarHandleOp"}
    pairs = [(index[slot], index[variable]) for slot, variable in slots.items() if {slot, variable} <= index.keys()]
    for i, node in enumerate(nodes):
        pairs += [(i, index[producer]) for producer, _ in data_inputs(node) if producer in handles]
        if "_class" in node.attr:
            hints = [hint.decode() for hint in node.attr["_class"].list.s if hint.startswith(b"loc:@")]
            names_of_hints = (hint.removeprefix("loc:@") for hint in hints)
            pairs += [(i, index[name]) for name in names_of_hints if name in index]
    group_of_node = join_groups(len(nodes), pairs)
    alone = {index[name] for name in handles}.difference(*group_of_node)
    group = np.full(len(nodes), -1, dtype=np.int32)
    names: list[str] = []
    for ops in sorted([*group_of_node, *((i,) for i in alone)]):
        group[list(ops)] = len(names)
        variables = (nodes[i].name for i in ops if nodes[i].name in handles)
        names.append(next((v for v in variables if v not in slots), nodes[ops[0]].name))
    return group, tuple(names)


IN_PLACE = frozenset(
    """
        Abs Acos Acosh AccumulateNV2 Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BiasAdd BitwiseAnd BitwiseOr
        BitwiseXor Ceil ClipByValue Conj Cos Cosh Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1
        Floor FloorDiv FloorMod Inv InvGrad Invert LeakyRelu LeakyReluGrad Lgamma Log Log1p LogSoftmax LogicalAnd
        LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Neg NextAfter Pow RealDiv Reciprocal ReciprocalGrad Relu
        Relu6 Relu6Grad ReluGrad Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin
        Sinh SparseSoftmaxCrossEntropyWithLogits Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
        SoftsignGrad Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy
        Xlog1py Xlogy ZerosLike
    """.split()
)


ALIGNED = 64
"""Bytes to which TensorFlow's tensors are aligned (`EIGEN_MAX_ALIGN_BYTES`)."""


def reuse_of(structure: Structure) -> NDArray[np.int8]:
    """Returns int8[n], the `OpGraph.reuse` of a step's ops: the memory of their outputs, mostly by op type.

    Views pass on their input or parts of it, and `ReadVariableOp` passes on the variable itself. Most elementwise kernels
    overwrite an input that has no other reference (`forward_input_or_allocate_output` in their source). All other kernels and
    unknown types allocate. Cross entropy writes its gradient over the logits.
    """
    return np.array([_reuse(structure, op) for op in range(len(structure.nodes))], dtype=np.int8)


def _reuse(structure: Structure, op: int) -> int:
    kind = structure.nodes[op].op
    if kind in VIEWS or (kind == "Unpack" and _cuts(structure, op)):
        return VIEW
    is_list = structure.list_bytes.keys() & set(structure.output_tensors[op]) if kind == "ZerosLike" else False
    return OVERWRITES if kind in IN_PLACE and not is_list and not _reads_twice(structure, op) else OWN


def _reads_twice(structure: Structure, op: int) -> bool:
    """Whether each input of the output's size is read as two arguments, as in `x * x`: both are references to its memory."""
    inputs, outputs = structure.data_inputs[op], list(structure.output_tensors[op])
    sizes = {int(size) for size in structure.tensor_bytes[outputs]}
    fitting = [tensor for tensor in inputs if int(structure.tensor_bytes[tensor]) in sizes]
    return bool(fitting) and all(inputs.count(tensor) > 1 for tensor in fitting)


def _cuts(structure: Structure, op: int) -> bool:
    """Whether an `Unpack` passes on slices of its input: along the first axis, each aligned (`UnpackOp::Compute`)."""
    attributes, size = structure.nodes[op].attr, structure.tensor_bytes[list(structure.output_tensors[op])]
    axis = attributes["axis"].i if "axis" in attributes else 0  # reading an absent key would add it
    return bool(axis == 0 and len(size) and not (size % ALIGNED).any())
