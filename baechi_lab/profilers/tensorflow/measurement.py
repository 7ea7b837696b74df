"""`mode="measured"`: runs the step under TensorFlow's full trace and reads the cost of every op.

`step_session` runs a Step on one device in this process (`worker_measurement` calls it in a worker process). `read_traces`
turns RunMetadata, from this or any other session with the same op names, into costs per op. One thread runs the ops one after
the other, so that times do not overlap. TensorFlow's graph rewriters are off, so that the ops are those of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_whole
from ...errors import ExecutionError, UnknownNameError
from ...graph.kernels.csr import Ints
from ...graph.step import Step
from ...workers.failures import first_line
from .nodes import HANDLE_BYTES, bytes_per_element
from .prevent_fusion import prevent_fusion
from .structure import Structure

if TYPE_CHECKING:
    from tensorflow.core.framework.step_stats_pb2 import NodeExecStats
    from tensorflow.core.protobuf.config_pb2 import RunMetadata

PROBE = "baechi_lab_probe"
"""Scope of ops that are added for measuring only."""

FEED_BYTES = 256 << 20
"""Largest number of bytes of variables that are fed in one run."""

Runner = Callable[[bool], "RunMetadata | None"]
"""Runs one step. With True it runs under a full trace and returns the RunMetadata, else None."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Costs per op, averaged over the traced steps.

    They are microseconds, temporary bytes, bytes that stay allocated after the step, and the bytes of each (op, output).
    `in_trace` marks ops that appear in the trace; the others took no measurable time. `run_us` float64[runs, ops] are the
    microseconds of each traced step, `others_share` is the load by other programs.
    """

    duration_us: NDArray[np.float64]
    temp_bytes: Ints
    persistent_bytes: Ints
    output_bytes: dict[tuple[int, int], int]
    in_trace: NDArray[np.bool_]
    run_us: NDArray[np.float64]
    others_share: float = 0.0


def default_device() -> str:
    """Returns the first GPU that TensorFlow sees, else the CPU."""
    import tensorflow as tf

    return "/device:GPU:0" if tf.config.list_physical_devices("GPU") else "/device:CPU:0"


def device_kind(device: str) -> str:
    """Returns the kind of a device: `gpu` for `/device:GPU:0`.

    Raises:
        UnknownNameError: TensorFlow does not have the device.
    """
    import tensorflow as tf

    device_names = [
        f"/device:{d.device_type}:{k}"
        for t in ("CPU", "GPU", "TPU")
        for k, d in enumerate(tf.config.list_physical_devices(t))
    ]
    short = {name.replace("/device:", "/") for name in device_names}
    if device not in device_names and device.upper() not in short:
        raise UnknownNameError.of("device", device, device_names)
    return device.rsplit(":", 2)[-2].rsplit("/", 1)[-1].lower()


@contextmanager
def step_session(step: Step, device: str) -> Iterator[Runner]:
    """Opens a session with the whole step on one device and its variables set to the step's values.

    Raises:
        ExecutionError: TensorFlow cannot run the step on the device (out of memory, no kernel).
    """
    import tensorflow as tf

    graph_def = tf.compat.v1.GraphDef.FromString(step.graph_def)
    for node in graph_def.node:
        node.device = device
        if "_class" in node.attr:
            del node.attr["_class"]
    prevent_fusion(graph_def, PROBE)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    try:
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=True, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
        )
        config.graph_options.optimizer_options.opt_level = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.gpu_options.allow_growth = True
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            # A few runs of limited size: every run prunes the whole graph, every fed value is a copy.
            pending: list[tuple[Any, Any, NDArray[Any]]] = []
            with graph.as_default():
                for variable, value in zip(step.variables, step.initial_values, strict=True):
                    placeholder = tf.compat.v1.placeholder(variable.dtype, variable.shape)
                    assign = tf.raw_ops.AssignVariableOp(
                        resource=graph.get_tensor_by_name(variable.name + ":0"), value=placeholder
                    )
                    pending.append((assign, placeholder, value))
            while pending:
                count, fed_bytes = 0, 0
                while count < len(pending) and (count == 0 or fed_bytes + pending[count][2].nbytes <= FEED_BYTES):
                    fed_bytes += pending[count][2].nbytes
                    count += 1
                session.run([p[0] for p in pending[:count]], {p[1]: p[2] for p in pending[:count]})
                pending = pending[count:]
            feeds = {spec.name: value for spec, value in zip(step.inputs, step.example_inputs, strict=True)}
            fetches = [[spec.name for spec in step.outputs], list(step.updates)]

            def run(with_trace: bool) -> RunMetadata | None:
                if not with_trace:
                    session.run(fetches, feeds)
                    return None
                metadata = tf.compat.v1.RunMetadata()
                options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
                session.run(fetches, feeds, options, metadata)
                return metadata

            yield run
    except tf.errors.OpError as error:
        raise ExecutionError(f"step {step.name!r} cannot run on {device}: {first_line(error)}") from error


def collect_traces(run: Runner, warmup: int, runs: int) -> list[RunMetadata]:
    """Returns the RunMetadata of `runs` traced steps after `warmup` steps; a first trace, which loads the tracer, is dropped."""
    check_counts(warmup, runs)
    traces = []
    for k in range(warmup + 1 + runs):
        metadata = run(k >= warmup)
        if k > warmup:
            traces.append(metadata)
    return traces


def check_counts(warmup: int, runs: int) -> None:
    """Raises `InvalidInput` unless `warmup` is a whole number of at least 0 and `runs` one of at least 1."""
    check_whole("warmup", warmup, low=0)
    check_whole("runs", runs)


def read_traces(structure: Structure, traces: Sequence[RunMetadata], on_gpu: bool = False) -> Measurement:
    """Averages the traces of several steps into costs per op; the kernels of one op are summed.

    Raises:
        ExecutionError: `on_gpu` is True and the traces show no kernels; the time to launch them is not their cost.
    """
    n = structure.n
    run_us, temp, persistent = np.zeros((len(traces), n)), np.zeros(n), np.zeros(n)
    sizes: dict[tuple[int, int], int] = {}
    in_trace = np.zeros(n, dtype=np.bool_)
    has_kernels = False
    for k, metadata in enumerate(traces):
        host: dict[int, float] = defaultdict(float)
        kernels: dict[int, float] = defaultdict(float)
        for device in metadata.step_stats.dev_stats:
            on_stream = "/stream:" in device.device
            if on_stream and not device.device.endswith("/stream:all"):
                continue  # each kernel is listed under its own stream and again under `all`
            if not on_stream and ("memcpy" in device.device or "/host:" in device.device):
                continue
            for stats in device.node_stats:
                i = structure.index.get(stats.node_name.split(":")[0].split("@@")[0])
                if i is None:
                    continue
                if on_stream:
                    kernels[i] += _microseconds(stats)
                    continue
                host[i] += _microseconds(stats)
                temp[i] += max(stats.memory_stats.temp_memory_size, 0)
                persistent[i] += max(stats.memory_stats.persistent_memory_size, 0)
                for output in stats.output:
                    width = bytes_per_element().get(output.tensor_description.dtype)
                    elements = prod(d.size for d in output.tensor_description.shape.dim)
                    sizes[i, output.slot] = HANDLE_BYTES if width is None else width * elements
        for i in host.keys() | kernels.keys():
            run_us[k, i] = kernels.get(i, host.get(i, 0.0))
            in_trace[i] = True
        has_kernels = has_kernels or bool(kernels)
    if on_gpu and not has_kernels:
        raise ExecutionError(
            "the trace shows no GPU kernel (is CUPTI installed, and are its counters open to this user?), so op times on "
            'the GPU are unknown; use mode="estimated"'
        )
    trace_count = max(len(traces), 1)
    mean_bytes = lambda column: np.rint(column / trace_count).astype(np.int64)  # noqa: E731
    us = run_us.sum(axis=0) / trace_count
    return Measurement(us, mean_bytes(temp), mean_bytes(persistent), sizes, in_trace, run_us)


def _microseconds(stats: NodeExecStats) -> float:
    """Returns how long an entry ran; GPU entries may have whole microseconds only."""
    nanos = stats.op_end_rel_nanos - stats.op_start_rel_nanos
    return nanos / 1e3 if nanos > 0 else float(stats.op_end_rel_micros - stats.op_start_rel_micros)
