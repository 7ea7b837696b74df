"""Measures a cluster's overheads besides kernels, per op, per message and per step, with small synthetic steps.

Idea (LogP's overhead `o`, Culler et al. 1993, doi:10.1145/155332.155333, with LogGP's per-byte part, Alexandrov et
al. 1995, doi:10.1145/215399.215427): on workers without transfer engines, sending and receiving take CPU time of the devices.
The operating system's CPU clocks of the worker processes give that time while a tensor goes back and forth. These clocks stop
while other programs have the core. The rest of the elapsed time is the wire. If the elapsed time is less than the CPU time of
both ends, the ends overlapped for the difference. Tensors that all leave at once take half as much CPU time, because running
threads need no wake-up. In a training step tensors leave one by one, so the simultaneous ones only determine how sender and
receiver share the cost.

Every figure is the difference of two steps, with and without what is measured, so the fixed costs of a step cancel. Between
the counted ops a kernel streams through megabytes, as kernels of a training step do. This evicts the runtime's data for each
op from the caches, and starting an op then takes several times as long. Messages run through far more code; they are measured
without kernels between them and with kernels of several lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ExecutionError, InvalidInput
from ...graph import Link, Placement, Step
from ...workers.client import Worker
from ...workers.tensorflow_import import load_tensorflow
from .cluster import LocalCluster

if TYPE_CHECKING:
    from types import ModuleType

    from tensorflow import Tensor

SIZES = (4, 4096, 65536, 1 << 20)
"""Bytes of the tensors that are sent."""
FEW, MANY = 8, 72
"""Messages of the short and the long step. Hop steps have `MANY` hops."""
RUNGS, WIDTH = 256, 15
"""A ladder has `RUNGS` groups of `WIDTH` ops that are ready at the same time, and their sum: 4096 ops besides the products.
Unlike a chain, it uses the runtime's queues, which take time as well. The number is chosen by hand: so many ops take
milliseconds, while a step with a product on each rung stays short enough for calibrating in about a minute."""
STREAM = 4 << 20
"""Output bytes of the product on each rung: more than a core's own caches hold. Both ladders have the products, so their
time cancels. Kernel times in traces are off by some per cent; only small kernels are read from them."""
STREAMS = (1 << 18, 1 << 20, 1 << 22)
"""Output bytes of the products between messages: from what fits a core's own caches to what evicts everything else."""
TRIES = 3
"""Attempts to measure ladders, while the ladder with ops is not slower than the one without."""

_FREE = Link(0.0, 0.0)


@dataclass(frozen=True)
class Calibration:
    """Overheads of a cluster of workers besides kernels, in microseconds.

    Args:
        op_us: per op on its device, beyond the kernel's time in a trace. Negative if tracing takes longer than starting an op.
        step_us: per step.
        send, receive: device time per message, `latency_us + us_per_byte * bytes`.
        wire: time per message between the devices, likewise.
        busy_share: CPU time of a worker per elapsed time while it worked. Well below 1, other programs had its core and no
            figure is reliable. 0 if they hid even the difference between a short and a long step.
        cooled: extra time per message of both ends together, beyond `send` and `receive`. Rows are (microseconds of kernels
            that the device ran since it last sent or received, extra microseconds).
        overlap: how long both ends of a message work at the same time. There is no wire then.
    """

    op_us: float
    step_us: float
    send: Link
    receive: Link
    wire: Link
    busy_share: float
    cooled: tuple[tuple[float, float], ...] = ()
    overlap: Link = _FREE

    def cold_us(self, between_us: float) -> float:
        """Returns the extra time of one end of a message, in microseconds, after its device ran kernels for `between_us`."""
        if not self.cooled:
            return 0.0
        kernel_us, extra_us = zip(*self.cooled, strict=True)
        return float(np.interp(between_us, kernel_us, extra_us)) / 2


def mean_calibration(calibrations: Sequence[Calibration]) -> Calibration:
    """Returns the mean of several calibrations of one cluster, with the smallest `busy_share`.

    Raises `InvalidInput` if there are none.
    """
    if not calibrations:
        raise InvalidInput("mean_calibration needs at least 1 calibration")

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    def link(of: Callable[[Calibration], Link]) -> Link:
        return Link(mean(of(c).latency_us for c in calibrations), mean(of(c).us_per_byte for c in calibrations))

    # The rows of all calibrations for one of `STREAMS`.
    same_stream = zip(*(c.cooled for c in calibrations), strict=True)
    cooling_rows = tuple(
        (mean(kernel_us for kernel_us, _ in rows), mean(extra_us for _, extra_us in rows)) for rows in same_stream
    )
    return Calibration(
        op_us=mean(c.op_us for c in calibrations),
        step_us=mean(c.step_us for c in calibrations),
        send=link(lambda c: c.send),
        receive=link(lambda c: c.receive),
        wire=link(lambda c: c.wire),
        busy_share=min(c.busy_share for c in calibrations),
        cooled=cooling_rows,
        overlap=link(lambda c: c.overlap),
    )


@dataclass(frozen=True)
class Cost:
    """Cost of one synthetic step, in microseconds.

    Args:
        wall_us: elapsed time.
        kernels_us: kernels in its trace, without products.
        cpu_us: CPU time of each worker.
        product_us: the median product.
    """

    wall_us: float
    kernels_us: float
    cpu_us: tuple[float, ...]
    product_us: float = 0.0


def calibrate(local: LocalCluster, steps: int = 30) -> Calibration:
    """Measures the overheads of a running `bl.LocalCluster` of at least two workers. Takes about a minute.

    Raises `InvalidInput` for one worker, `ExecutionError` if a synthetic step does not run.
    """
    from ...profilers.links import fit_link

    if local.n < 2:
        raise InvalidInput(f"the cluster has {local.n} worker; calibrate needs at least 2")
    with Worker() as worker:
        cost = partial(cost_of, local, worker, steps)
        empty_step = cost(ladder_step(FEW, 0, 4), 1)
        # A ladder without and with ops on its rungs, again while other programs made the first the slower one.
        for _ in range(TRIES):
            bare_ladder, ladder = (cost(ladder_step(RUNGS, width, STREAM), 1) for width in (0, WIDTH))
            if ladder.wall_us > bare_ladder.wall_us:
                break
        messages = np.array([_message(cost, size) for size in SIZES])
        warm_us = messages[0, 0] + messages[0, 1]  # of both ends of a message with no kernel in between
        cooling_rows = [(0.0, 0.0)]
        for stream in STREAMS:
            staying, moving = (cost(hop_step(MANY, SIZES[0], crosses, stream), 2) for crosses in (False, True))
            extra_us = (sum(moving.cpu_us) - sum(staying.cpu_us)) / MANY - warm_us
            cooling_rows.append(
                (float(max(moving.product_us, cooling_rows[-1][0])), float(max(extra_us, cooling_rows[-1][1])))
            )
    ops = RUNGS * (WIDTH + 1)
    ops_us, ops_cpu = ladder.wall_us - bare_ladder.wall_us, ladder.cpu_us[0] - bare_ladder.cpu_us[0]
    op_us = (max(ops_us, 0.0) - (ladder.kernels_us - bare_ladder.kernels_us)) / ops
    send, receive, hop = (fit_link(SIZES, times)[0] for times in messages.T)
    remainder = (
        hop.latency_us - send.latency_us - receive.latency_us,
        hop.us_per_byte - send.us_per_byte - receive.us_per_byte,
    )
    wire, overlap = (Link(*(max(sign * term, 0.0) for term in remainder)) for sign in (1.0, -1.0))
    busy_share = min(1.0, max(ops_cpu, 0.0) / ops_us) if ops_us > 0.0 else 0.0
    step_us = max(empty_step.wall_us - empty_step.kernels_us, 0.0)
    return Calibration(op_us, step_us, send, receive, wire, busy_share, tuple(cooling_rows), overlap)


def _message(cost: Callable[[Step, int], Cost], size: int) -> tuple[float, float, float]:
    """Returns the CPU microseconds of sender and receiver per message, and its elapsed microseconds."""
    short_step, long_step = (cost(message_step(count, size), 2) for count in (FEW, MANY))
    staying, moving = (cost(hop_step(MANY, size, crosses), 2) for crosses in (False, True))
    send_us, receive_us = (
        max(long - short, 1.0) for short, long in zip(short_step.cpu_us, long_step.cpu_us, strict=True)
    )
    both_us = max((sum(moving.cpu_us) - sum(staying.cpu_us)) / MANY, 0.2)
    hop_us = max((moving.wall_us - staying.wall_us) / MANY, 0.1)
    return both_us * send_us / (send_us + receive_us), both_us * receive_us / (send_us + receive_us), hop_us


def cost_of(local: LocalCluster, worker: Worker, steps: int, step: Step, devices: int) -> Cost:
    """Returns median wall and mean CPU time of a step whose op names begin with their device: `d0_...`, `d1_...`."""
    from ..dispatch import execute
    from ..structure import graph_of

    graph = graph_of(step)
    placement = Placement(device=np.array([int(name[1]) for name in graph.names], dtype=np.int32))
    clocks: list[tuple[float, ...]] = []
    run = execute(
        step,
        placement,
        steps,
        warmup=5,
        traced=2,
        cluster=local,
        graph=graph,
        worker=worker,
        on_step=lambda result: clocks.append(tuple(map(process_seconds, local.pids))) if result.index >= 7 else None,
    )
    if run.status != "ok":
        raise ExecutionError(f"calibration step {step.name!r} ended with status {run.status!r}: {run.message}")
    cpu_us = [(last - first) / (len(clocks) - 1) * 1e6 for first, last in zip(clocks[0], clocks[-1], strict=True)]
    timeline = run.timeline
    if timeline is None:
        raise ExecutionError(f"calibration step {step.name!r} gave no trace")
    is_product = np.array(["_product" in graph.names[op] for op in timeline.op.tolist()], dtype=np.bool_)
    duration_us = timeline.end_us - timeline.start_us
    product_us = float(np.median(duration_us[is_product])) if is_product.any() else 0.0
    return Cost(run.median_seconds * 1e6, float(duration_us[~is_product].sum()), tuple(cpu_us[:devices]), product_us)


def process_seconds(pid: int) -> float:
    """Returns the CPU seconds that all threads of a process have used so far (Linux)."""
    # The clock id of another process, computed as in clock_getcpuclockid(3).
    return time.clock_gettime((~pid << 3) | 2)


# -- synthetic steps -------------------------------------------------------------------------------------


def ladder_step(rungs: int, width: int, size: int) -> Step:
    """Returns a step with a chain of products of `size` bytes on device 0.

    Each is followed by `width` independent additions and their sum.
    """
    return two_device_step(f"ladder of {rungs} x {width}", partial(_ladder, rungs, width, size))


def message_step(messages: int, size: int) -> Step:
    """Returns a step that sends `messages` independent tensors of `size` bytes from device 0 to device 1."""
    return two_device_step(f"{messages} messages of {size} bytes", partial(_messages, messages, size))


def hop_step(hops: int, size: int, crosses: bool = True, stream: int = 0) -> Step:
    """Returns a step that copies a tensor of `size` bytes on device 0 and 1 in turns, or only on device 0 if not `crosses`.

    Between two hops a product of `stream` bytes is computed, unless `stream` is 0.
    """
    name = f"{hops} hops of {size} bytes that {'go' if crosses else 'stay'}, {stream} bytes between"
    return two_device_step(name, partial(_hops, hops, size, crosses, stream))


def _ladder(rungs: int, width: int, size: int, raw: ModuleType) -> Tensor:
    value = one = raw.Fill(dims=[1], value=np.float32(1), name="d0_one")
    many = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_many")
    for rung in range(rungs):
        with value.graph.control_dependencies([value.op]):
            product = raw.Mul(x=many, y=many, name=f"d0_product{rung}")
        with value.graph.control_dependencies([product.op]):
            value = raw.Identity(input=value, name=f"d0_rung{rung}")
        if width:
            additions = [raw.AddV2(x=value, y=one, name=f"d0_add{rung}_{i}") for i in range(width)]
            value = raw.AddN(inputs=additions, name=f"d0_sum{rung}")
    return value


def _messages(messages: int, size: int, raw: ModuleType) -> Tensor:
    source = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    sent_tensors = [raw.Identity(input=source, name=f"d0_send{i}") for i in range(messages)]
    receives = [raw.Identity(input=tensor, name=f"d1_receive{i}") for i, tensor in enumerate(sent_tensors)]
    return raw.IdentityN(input=receives, name="d1_all")[0]


def _hops(hops: int, size: int, crosses: bool, stream: int, raw: ModuleType) -> Tensor:
    value = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    many = [raw.Fill(dims=[stream // 4], value=np.float32(1), name=f"d{d}_many") for d in range(1 + crosses) if stream]
    for i in range(hops):
        device = (i + 1) % 2 if crosses else 0
        value = raw.Identity(input=value, name=f"d{device}_arrived{i}")
        after = [value.op]
        if stream:
            with value.graph.control_dependencies(after):
                after = [raw.Mul(x=many[device], y=many[device], name=f"d{device}_product{i}").op]
        with value.graph.control_dependencies(after):
            value = raw.Identity(input=value, name=f"d{device}_hop{i}")
    return value


def two_device_step(name: str, build: Callable[[ModuleType], Tensor]) -> Step:
    """Returns a step without inputs and variables that runs the op that `build` makes; names of ops begin with d0 or d1."""
    tf = load_tensorflow()
    graph = tf.Graph()
    with graph.as_default():
        last = build(tf.raw_ops)
    definition = graph.as_graph_def()
    # A constant such as `d0_source/dims` has the name of its op as a prefix.
    other_nodes: Sequence[str] = [node.name for node in definition.node if node.name[:2] not in ("d0", "d1")]
    if other_nodes:
        raise ExecutionError(f"op {other_nodes[0]!r} of a calibration step does not say where it runs")
    return Step(name, definition.SerializeToString(deterministic=True), (), (), (), (), (), updates=(last.op.name,))
