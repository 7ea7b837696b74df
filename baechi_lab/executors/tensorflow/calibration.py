"""What a cluster's runtime costs besides kernels: per op, per message, per step. Measured with small made-up steps.

Idea (LogP's overhead `o`, Culler et al. 1993, doi:10.1145/155332.155333, with LogGP's per-byte part, Alexandrov et
al. 1995, doi:10.1145/215399.215427): on workers without transfer engines, sending and receiving take the devices' own
processors. That share is read from the operating system's CPU clock of each worker process while one sends many
tensors to the other; the clock does not run while other programs have the core. What is left of the time of a tensor
that goes to and fro is the wire.

Every figure is the slope between a short and a long step of the same kind, so that the fixed costs of a step cancel;
the fixed cost is what a step of one op takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...errors import ExecutionError, InvalidInput
from ...graph.cluster import Link
from ...graph.placement import Placement
from ...graph.step import Step
from ...workers.client import Worker
from .cluster import LocalCluster

SIZES = (4, 4096, 65536, 1 << 20)
"""Bytes of the tensors that are sent."""
FEW, MANY = 8, 72
"""Messages or hops of the short and the long step."""
SHORT, LONG = 100, 1100
"""Ops of the short and the long chain."""
TRIES = 3
"""How often the chains are measured when the long one took no longer than the short one."""


@dataclass(frozen=True)
class Calibration:
    """Microseconds that a cluster of workers takes beyond kernels.

    `op_us` of a device per op, on top of what a trace says its kernel took (negative where tracing itself takes longer
    than starting an op); `step_us` per step; `send` and `receive` of a device per message, `wire` between
    devices: each `latency_us + us_per_byte * bytes`. `busy_share` is the CPU time that a worker got while it worked, as
    a share of the time that passed: well below 1, other programs had its core and nothing here is to be trusted; 0 where
    they hid even the difference between a short and a long step.
    """

    op_us: float
    step_us: float
    send: Link
    receive: Link
    wire: Link
    busy_share: float


@dataclass(frozen=True)
class _Cost:
    """One step of a made-up kind: wall and per worker CPU microseconds, and the median kernel in its trace."""

    wall_us: float
    kernel_us: float
    cpu_us: tuple[float, ...]


def calibrate(local: LocalCluster, steps: int = 30) -> Calibration:
    """Measure the overheads of a running `bl.LocalCluster` of at least two workers; about a minute.

    Raises `InvalidInput` for one worker, `ExecutionError` when a made-up step does not run.
    """
    from ...profilers.links import fit_link

    if local.n < 2:
        raise InvalidInput("calibrate needs a cluster of at least 2 workers")
    with Worker() as worker:
        cost = partial(_cost, local, worker, steps)
        short, long = _chains(cost)
        tiny_us = max(long.wall_us - short.wall_us, 0.0) / (LONG - SHORT)
        tiny_cpu = max(long.cpu_us[0] - short.cpu_us[0], 0.0) / (LONG - SHORT)
        sends, receives, wires = [], [], []
        for size in SIZES:
            sent, received, hop = _message(cost, size)
            sends.append(max(sent - tiny_cpu, 0.1))
            receives.append(max(received - tiny_cpu, 0.1))
            wires.append(max(hop - tiny_us - sends[-1] - receives[-1], 0.1))
        fixed = max(short.wall_us - SHORT * tiny_us, 0.0)
    send, receive, wire = (fit_link(SIZES, times)[0] for times in (sends, receives, wires))
    share = min(1.0, tiny_cpu / tiny_us) if tiny_us > 0.0 else 0.0
    return Calibration(tiny_us - long.kernel_us, fixed, send, receive, wire, share)


def _chains(cost: Callable[[Step, int], _Cost]) -> tuple[_Cost, _Cost]:
    """The short and the long chain, measured again while other programs made the short one the slower of the two."""
    for _ in range(TRIES):
        short, long = cost(chain_step(SHORT), 1), cost(chain_step(LONG), 1)
        if long.wall_us > short.wall_us:
            break
    return short, long


def _message(cost: Callable[[Step, int], _Cost], size: int) -> tuple[float, float, float]:
    """CPU microseconds per message of sender and receiver, and wall microseconds per hop, ops included."""
    few, many = (cost(message_step(count, size), 2) for count in (FEW, MANY))
    near, far = (cost(hop_step(count, size), 2) for count in (FEW, MANY))
    return (
        (many.cpu_us[0] - few.cpu_us[0]) / (MANY - FEW),
        (many.cpu_us[1] - few.cpu_us[1]) / (MANY - FEW),
        (far.wall_us - near.wall_us) / (MANY - FEW),
    )


def _cost(local: LocalCluster, worker: Worker, steps: int, step: Step, devices: int) -> _Cost:
    """Median wall and mean CPU time of a step whose ops say in their names where they run: `d0_...`, `d1_...`."""
    from ..dispatch import execute
    from ..structure import graph_of

    graph = graph_of(step)
    placement = Placement(device=np.array([int(name[1]) for name in graph.names], dtype=np.int32))
    clocks: list[tuple[float, ...]] = []
    run = execute(
        step, placement, steps, warmup=5, traced=2, cluster=local, graph=graph, worker=worker,
        on_step=lambda result: clocks.append(tuple(map(process_seconds, local.pids))) if result.index >= 7 else None,
    )  # fmt: skip
    if run.status != "ok":
        raise ExecutionError(f"calibration step {step.name!r} ended with status {run.status!r}: {run.message}")
    spent = [(last - first) / (len(clocks) - 1) * 1e6 for first, last in zip(clocks[0], clocks[-1], strict=True)]
    timeline = run.timeline
    kernel_us = 0.0 if timeline is None else float(np.median(timeline.end_us - timeline.start_us))
    return _Cost(run.median_seconds * 1e6, kernel_us, tuple(spent[:devices]))


def process_seconds(pid: int) -> float:
    """CPU seconds that a process has used so far, all threads, to the nanosecond (Linux)."""
    # The clock id of another process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


# -- made-up steps ---------------------------------------------------------------------------------------


def chain_step(ops: int) -> Step:
    """`ops` additions one after the other on device 0."""
    return _step(f"chain of {ops}", partial(_chain, ops))


def message_step(messages: int, size: int) -> Step:
    """`messages` tensors of `size` bytes from device 0 to device 1, independent of each other."""
    return _step(f"{messages} messages of {size} bytes", partial(_messages, messages, size))


def hop_step(hops: int, size: int) -> Step:
    """One tensor of `size` bytes that goes to and fro between devices 0 and 1."""
    return _step(f"{hops} hops of {size} bytes", partial(_hops, hops, size))


def busy_step(messages: int, size: int) -> Step:
    """Products one after the other on device 0, after each of which a tensor of `size` bytes goes to device 1."""
    return _step(f"{messages} messages of {size} bytes between products", partial(_busy, messages, size))


def _chain(ops: int, raw: Any) -> Any:
    value = one = raw.Fill(dims=[1], value=np.float32(1), name="d0_one")
    for i in range(ops):
        value = raw.AddV2(x=value, y=one, name=f"d0_add{i}")
    return value


def _messages(messages: int, size: int, raw: Any) -> Any:
    source = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    sent = [raw.Identity(input=source, name=f"d0_send{i}") for i in range(messages)]
    received = [raw.Identity(input=tensor, name=f"d1_receive{i}") for i, tensor in enumerate(sent)]
    return raw.IdentityN(input=received, name="d1_all")[0]


def _busy(messages: int, size: int, raw: Any) -> Any:
    value = matrix = raw.Fill(dims=[384, 384], value=np.float32(1 / 384), name="d0_matrix")
    source = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    received = []
    for i in range(messages):
        value = raw.MatMul(a=value, b=matrix, name=f"d0_product{i}")
        with value.graph.control_dependencies([value.op]):
            sent = raw.Identity(input=source, name=f"d0_send{i}")
        received.append(raw.Identity(input=sent, name=f"d1_receive{i}"))
    last = raw.Slice(input=value, begin=raw.Fill(dims=[2], value=0, name="d0_begin"),
                     size=raw.Fill(dims=[2], value=1, name="d0_size"), name="d0_last")  # fmt: skip
    return raw.IdentityN(input=[*received, last], name="d1_all")[0]


def _hops(hops: int, size: int, raw: Any) -> Any:
    value = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    for i in range(hops):
        value = raw.Identity(input=value, name=f"d{(i + 1) % 2}_hop{i}")
    return value


def _step(name: str, build: Callable[[Any], Any]) -> Step:
    """A step without inputs, outputs and variables that runs the op that `build` returns."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        last = build(tf.raw_ops)
    definition = graph.as_graph_def()
    _name_constants(definition)
    return Step(name, definition.SerializeToString(deterministic=True), (), (), (), (), (), updates=(last.op.name,))


def _name_constants(definition: Any) -> None:
    """`d0_source/dims` is a constant of the op `d0_source`, made with it: it already has its device in its name."""
    strangers: Sequence[str] = [node.name for node in definition.node if node.name[:2] not in ("d0", "d1")]
    if strangers:
        raise ExecutionError(f"op {strangers[0]!r} of a calibration step does not say where it runs")
