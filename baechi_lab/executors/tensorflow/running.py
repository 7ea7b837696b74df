"""The `execute` request: build the placed step, run it step by step, trace it, and stream what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError
from ...graph.step import Step
from ...workers.failures import first_line
from ...workers.messages import Message, Send
from ...workers.transport import read_step
from .devices import Selection, select
from .kernels import original_name
from .session import PLACED_FREELY, PlacedGraph, PlacedSession, parse_graph, place_graph, session_config, timed
from .trace import Trace, read_trace


def serve(request: Message, send: Send) -> None:
    """Run the step of an `execute` request; sends `ready`, a `step` per step, `timeline` and `done`."""
    header = request.header
    device, *arrays = request.arrays
    step, batches = read_step(header, arrays)
    width = len(step.inputs)
    inputs = [tuple(batches[i : i + width]) for i in range(0, len(batches), width)] if width else [()]
    chosen = select(header["devices"], header["options"], max(1, int(device.max(initial=0)) + 1))
    names: list[str] = header["op_names"]
    device_of = {name: chosen.devices[d] for name, d in zip(names, device.tolist(), strict=True)}
    placed = place_graph(step, device_of)
    session = _open(placed, chosen)
    try:
        available = session.devices()
        _check_devices(chosen.devices, [name for name, _, _ in available])
        limits = {name: limit for name, _, limit in available}
        _first(session, step, inputs)
        _steps(session, inputs, device, header, chosen, limits, placed, send)
    finally:
        session.close()


def _open(placed: PlacedGraph, chosen: Selection) -> PlacedSession:
    import tensorflow as tf

    config = session_config(chosen.cpus, soft=chosen.soft, threads=chosen.threads, workers=chosen.workers)
    chosen.apply(config)
    try:
        return PlacedSession(placed, config, chosen.target)
    except (tf.errors.OpError, ValueError) as error:
        raise ExecutionError(f"the placed graph cannot be loaded: {first_line(error)}") from error


def _check_devices(wanted: Sequence[str], available: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in available]
    if missing:
        raise ExecutionError(f"the runtime has no device {missing[0]!r}; it has {', '.join(sorted(available))}")


def _first(session: PlacedSession, step: Step, inputs: Sequence[tuple[Any, ...]]) -> None:
    """Set the variables; a placed graph that TensorFlow refuses is an error before anything has run."""
    import tensorflow as tf

    try:
        session.start(step.initial_values)
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
        raise ExecutionError(f"TensorFlow refuses the placed step: {first_line(error)}") from error


def _steps(
    session: PlacedSession,
    inputs: Sequence[tuple[Any, ...]],
    device: NDArray[np.int32],
    header: dict[str, Any],
    chosen: Selection,
    limits: dict[str, int],
    placed: PlacedGraph,
    send: Send,
) -> None:
    """Warm up, trace, then measure; the trace comes first so that a run cut short still has one.

    The first step to warm up tells how the graph was divided: a trace that had to would not begin as other steps do.
    """
    devices = [*chosen.devices, *(name for name in limits if name not in chosen.devices and "XLA" not in name)]
    send("ready", {"devices": devices, "memory_bytes": [limits[d] for d in devices], "moved": list(placed.moved),
                   "notes": list(chosen.notes)})  # fmt: skip
    traces: list[tuple[Trace, dict[str, Any]]] = []
    warmup, traced, steps = header["warmup"], header["traced"], header["steps"]
    for index in range(warmup + traced + steps):
        batch = inputs[index % len(inputs)]
        phase = "warmup" if index < warmup else "traced" if index < warmup + traced else "measured"
        if phase == "traced":
            (outputs, metadata), seconds = timed(partial(session.trace, batch))
            nodes = parse_graph(placed.graph_def).node
            found = {"moved": _moved(metadata, nodes), "replaced": _replaced(metadata, nodes)}
            traces.append((read_trace(metadata, header["op_names"], device, devices), found))
        else:
            run = session.divided if traced and index == 0 else session.call
            outputs, seconds = timed(partial(run, batch))
        send("step", {"index": index, "phase": phase, "seconds": seconds}, [np.asarray(x) for x in outputs])
        if len(traces) == traced > 0 and phase == "traced":
            middle = _middle([trace for trace, _ in traces])
            send("timeline", traces[middle][1], traces[middle][0].arrays())
    if header["return_variables"]:
        send("variables", {}, session.values())
    send("done")


def _middle(traces: Sequence[Trace]) -> int:
    """The traced step of median length."""
    spans = [trace.span_us for trace in traces]
    return spans.index(statistics.median_low(spans))


def _moved(metadata: Any, nodes: Sequence[Any]) -> list[str]:
    """Ops that the runtime put on another device than the placed graph says, but for those that move no data."""
    wanted = {node.name: node.device for node in nodes if node.op not in PLACED_FREELY}
    found: dict[str, set[str]] = {}
    for part in metadata.partition_graphs:
        for node in part.node:
            found.setdefault(original_name(node.name), set()).add(node.device)
    return sorted(name for name, there in found.items() if wanted.get(name, "") and wanted[name] not in there)


def _replaced(metadata: Any, nodes: Sequence[Any]) -> dict[str, str]:
    """Ops that the runtime replaced by others, as it does where oneDNN has them, and the types of those."""
    types = {node.name: node.op for node in nodes}
    ran = (node for part in metadata.partition_graphs for node in part.node)
    return {node.name: node.op for node in ran if types.get(node.name, node.op) != node.op}
