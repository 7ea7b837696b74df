"""The `execute` request: build the placed step, run and trace it, and send the measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError
from ...workers.failures import first_line
from ...workers.messages import Message, Send
from ...workers.transport import read_step
from .devices import Selection, cpu_memory, select
from .kernels import original_name
from .session import PLACED_FREELY, PlacedGraph, PlacedSession, parse_graph, place_graph, session_config, time_call
from .trace import Trace, read_trace

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.config_pb2 import RunMetadata


def serve(request: Message, send: Send) -> None:
    """Runs the step of an `execute` request. Sends `ready`, one `step` per step, `timeline` and `done`."""
    import tensorflow as tf

    header = request.header
    device, *arrays = request.arrays
    step, batches = read_step(header, arrays)
    width = len(step.inputs)
    inputs = [tuple(batches[i : i + width]) for i in range(0, len(batches), width)] if width else [()]
    selection = select(header["devices"], header["options"], max(1, int(device.max(initial=0)) + 1))
    names: list[str] = header["op_names"]
    device_of = {name: selection.devices[d] for name, d in zip(names, device.tolist(), strict=True)}
    placed_graph = place_graph(step, device_of)
    selection.threads = selection.threads or max(1, sum("/device:CPU:" in name for name in set(device_of.values())))
    config = session_config(selection.cpus, soft=selection.soft, threads=selection.threads, workers=selection.workers)
    selection.apply(config)
    try:
        session = PlacedSession(placed_graph, config, selection.target)
    except (tf.errors.OpError, ValueError) as error:
        raise ExecutionError(f"the placed graph cannot be loaded: {first_line(error)}") from error
    try:
        # TensorFlow states 256 MiB for every CPU, and enforces no limit there.
        limits = {name: cpu_memory() if kind == "CPU" else limit for name, kind, limit in session.devices()}
        missing_devices = [name for name in selection.devices if name not in limits]
        if missing_devices:
            raise ExecutionError(
                f"the runtime has no device {missing_devices[0]!r}; it has {', '.join(sorted(limits))}"
            )
        try:
            session.start(step.initial_values)
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
            raise ExecutionError(f"TensorFlow refuses the placed step: {first_line(error)}") from error
        _run_steps(session, inputs, device, header, selection, limits, placed_graph, send)
    finally:
        session.close()


def _run_steps(
    session: PlacedSession,
    inputs: Sequence[tuple[NDArray[np.generic], ...]],
    device: NDArray[np.int32],
    header: dict[str, Any],
    selection: Selection,
    limits: dict[str, int],
    placed_graph: PlacedGraph,
    send: Send,
) -> None:
    """Warms up, traces, then measures. Traced steps come before measured ones, so an interrupted run still has a trace.

    The first warm-up step records how TensorFlow partitioned the graph. A traced step that records it would start differently.
    """
    devices = [*selection.devices, *(name for name in limits if name not in selection.devices and "XLA" not in name)]
    send(
        "ready",
        {
            "devices": devices,
            "memory_bytes": [limits[d] for d in devices],
            "moved": list(placed_graph.moved_ops),
            "notes": list(selection.notes),
        },
    )
    traces: list[tuple[Trace, dict[str, Any]]] = []
    warmup, traced_steps, steps = header["warmup"], header["traced"], header["steps"]
    for index in range(warmup + traced_steps + steps):
        batch = inputs[index % len(inputs)]
        phase = "warmup" if index < warmup else "traced" if index < warmup + traced_steps else "measured"
        if phase == "traced":
            (outputs, metadata), seconds = time_call(partial(session.trace, batch))
            nodes = parse_graph(placed_graph.graph_def).node
            differences = {"moved": moved_ops(metadata, nodes), "replaced": replaced_ops(metadata, nodes)}
            traces.append((read_trace(metadata, header["op_names"], device, devices), differences))
        else:
            call_step = session.run_and_record_partition if traced_steps and index == 0 else session.call
            outputs, seconds = time_call(partial(call_step, batch))
        send("step", {"index": index, "phase": phase, "seconds": seconds}, [np.asarray(x) for x in outputs])
        if len(traces) == traced_steps > 0 and phase == "traced":
            spans = [trace.span_us for trace, _ in traces]
            trace, differences = traces[spans.index(statistics.median_low(spans))]
            send("timeline", differences, trace.arrays())
    if header["return_variables"]:
        send("variables", {}, session.values())
    send("done")


def moved_ops(metadata: RunMetadata, nodes: Sequence[NodeDef]) -> list[str]:
    """Returns the ops that ran on another device than in the placed graph, except for ops that move no data."""
    planned_device = {node.name: node.device for node in nodes if node.op not in PLACED_FREELY}
    devices_by_op: dict[str, set[str]] = {}
    for partition in metadata.partition_graphs:
        for node in partition.node:
            devices_by_op.setdefault(original_name(node.name), set()).add(node.device)
    return sorted(
        name
        for name, devices in devices_by_op.items()
        if planned_device.get(name, "") and planned_device[name] not in devices
    )


def replaced_ops(metadata: RunMetadata, nodes: Sequence[NodeDef]) -> dict[str, str]:
    """Returns op -> type of the op that replaced it at run time, for example a oneDNN op."""
    types = {node.name: node.op for node in nodes}
    executed_nodes = (node for partition in metadata.partition_graphs for node in partition.node)
    return {node.name: node.op for node in executed_nodes if types.get(node.name, node.op) != node.op}
