"""What a cluster's runtime costs besides kernels: per op, per message, per step. Measured with small made-up steps.

Idea (LogP's overhead `o`, Culler et al. 1993, doi:10.1145/155332.155333, with LogGP's per-byte part, Alexandrov et
al. 1995, doi:10.1145/215399.215427): on workers without transfer engines, sending and receiving take the devices' own
processors. That is read from the operating system's CPU clocks of the worker processes while a tensor goes to and fro; the
clocks do not run while other programs have the core. What is left of its time is the wire; where its time is less than that
of both ends, they worked beside each other so long. Tensors that all leave at once take half as much, because threads that
are awake need not be woken; in a training step they come one by one. They only tell how sender and receiver share the cost.

Every figure is the difference of two steps, one with and one without what is measured, so that the fixed costs of a step
cancel. Between the ops that are counted a kernel goes through megabytes, as kernels of a training step do: what the runtime
keeps for each op is then no longer in the caches, and starting it takes some times as long. Messages, whose way leads
through far more code, are measured with kernels of several lengths between them, and without any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...errors import ExecutionError, InvalidInput
from ...graph.link import Link
from ...graph.placement import Placement
from ...graph.step import Step
from ...workers.client import Worker
from .cluster import LocalCluster

SIZES = (4, 4096, 65536, 1 << 20)
"""Bytes of the tensors that are sent."""
FEW, MANY = 8, 72
"""Messages of the short and the long step; hops are `MANY`."""
RUNGS, WIDTH = 256, 15
"""A ladder has `RUNGS` times `WIDTH` ops that are ready at a time: the runtime's queues, which a chain does not need, take
time as well."""
STREAM = 4 << 20
"""Bytes that the product on each rung makes, more than a core's own caches hold. Products are in both ladders, so that what
they take cancels; of traces, whose kernels are some per cent off, only the small ones are used."""
STREAMS = (1 << 18, 1 << 20, 1 << 22)
"""Bytes that the products between messages make: from what stays in a core's own caches to what leaves nothing in them."""
SIDE = 256
"""Rows and columns of the matrices whose products lie between messages of a busy worker: about a millisecond each."""
TRIES = 3
"""How often ladders are measured when the one with ops took no longer than the one without."""

_FREE = Link(0.0, 0.0)


@dataclass(frozen=True)
class Calibration:
    """Microseconds that a cluster of workers takes beyond kernels.

    `op_us` of a device per op, on top of what a trace says its kernel took (negative where tracing itself takes longer
    than starting an op); `step_us` per step; `send` and `receive` of a device per message, `wire` between
    devices: each `latency_us + us_per_byte * bytes`. `busy_share` is the CPU time that a worker got while it worked, as
    a share of the time that passed: well below 1, other programs had its core and nothing here is to be trusted; 0 where
    they hid even the difference between a short and a long step. `cooled`: what a message takes of both ends together
    beyond `send` and `receive`, as rows (microseconds of kernels that a device has run since it last sent, for a message
    that it sends, or last received; microseconds). `overlap`: how long both ends of a message work beside each other; there is
    no wire then.
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
        """What an end of a message takes beyond `send` or `receive` when its device has run kernels for so long.

        >>> free = Link(0.0, 0.0)
        >>> Calibration(1.0, 0.0, free, free, free, 1.0, cooled=((0.0, 0.0), (100.0, 80.0))).cold_us(50.0)
        20.0
        """
        if not self.cooled:
            return 0.0
        us, more = zip(*self.cooled, strict=True)
        return float(np.interp(between_us, us, more)) / 2


def mean_calibration(found: Sequence[Calibration]) -> Calibration:
    """What calibrations of one cluster say on average; of `busy_share` the least. `InvalidInput` for none.

    >>> free, one = Link(0.0, 0.0), Link(5.0, 0.5)
    >>> a, b = (Calibration(us, 100.0, one, free, free, 1.0, cooled=((0.0, 0.0), (us, 80.0))) for us in (1.0, 2.0))
    >>> mean_calibration([a, b]).op_us, mean_calibration([a, b]).cooled
    (1.5, ((0.0, 0.0), (1.5, 80.0)))
    """
    if not found:
        raise InvalidInput("mean_calibration needs at least 1 calibration")

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    def link(of: Callable[[Calibration], Link]) -> Link:
        return Link(mean(of(c).latency_us for c in found), mean(of(c).us_per_byte for c in found))

    rungs = zip(*(c.cooled for c in found), strict=True)
    cooled = tuple((mean(us for us, _ in rows), mean(more for _, more in rows)) for rows in rungs)
    return Calibration(
        mean(c.op_us for c in found), mean(c.step_us for c in found), link(lambda c: c.send), link(lambda c: c.receive),
        link(lambda c: c.wire), min(c.busy_share for c in found), cooled, link(lambda c: c.overlap),
    )  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """One step of a made-up kind: wall and per worker CPU microseconds, and those of kernels in its trace but for products.

    `product_us`: the median product.
    """

    wall_us: float
    kernels_us: float
    cpu_us: tuple[float, ...]
    product_us: float = 0.0


def calibrate(local: LocalCluster, steps: int = 30) -> Calibration:
    """Measure the overheads of a running `bl.LocalCluster` of at least two workers; about a minute.

    Raises `InvalidInput` for one worker, `ExecutionError` when a made-up step does not run.
    """
    from ...profilers.links import fit_link

    if local.n < 2:
        raise InvalidInput("calibrate needs a cluster of at least 2 workers")
    with Worker() as worker:
        cost = partial(cost_of, local, worker, steps)
        bare = cost(ladder_step(FEW, 0, 4), 1)
        without, ladder = _ladders(cost)
        found = np.array([_message(cost, size) for size in SIZES])
        cooled = _cooled(cost, found[0, 0] + found[0, 1])
    ops = RUNGS * (WIDTH + 1)
    tiny_us, tiny_cpu = ladder.wall_us - without.wall_us, ladder.cpu_us[0] - without.cpu_us[0]
    op_us = (max(tiny_us, 0.0) - (ladder.kernels_us - without.kernels_us)) / ops
    send, receive, hop = (fit_link(SIZES, times)[0] for times in found.T)
    left = (
        hop.latency_us - send.latency_us - receive.latency_us,
        hop.us_per_byte - send.us_per_byte - receive.us_per_byte,
    )
    wire, overlap = (Link(*(max(sign * part, 0.0) for part in left)) for sign in (1.0, -1.0))
    share = min(1.0, max(tiny_cpu, 0.0) / tiny_us) if tiny_us > 0.0 else 0.0
    return Calibration(op_us, max(bare.wall_us - bare.kernels_us, 0.0), send, receive, wire, share, cooled, overlap)


def _ladders(cost: Callable[[Step, int], Cost]) -> tuple[Cost, Cost]:
    """A ladder without and with ops on its rungs, again while other programs made the first the slower of the two."""
    for _ in range(TRIES):
        without, ladder = (cost(ladder_step(RUNGS, width, STREAM), 1) for width in (0, WIDTH))
        if ladder.wall_us > without.wall_us:
            break
    return without, ladder


def _message(cost: Callable[[Step, int], Cost], size: int) -> tuple[float, float, float]:
    """CPU microseconds that a message takes of sender and receiver, and wall microseconds from end to end."""
    few, many = (cost(message_step(count, size), 2) for count in (FEW, MANY))
    stays, goes = (cost(hop_step(MANY, size, goes), 2) for goes in (False, True))
    sent, received = (max(b - a, 1.0) for a, b in zip(few.cpu_us, many.cpu_us, strict=True))
    both = max((sum(goes.cpu_us) - sum(stays.cpu_us)) / MANY, 0.2)
    hop = max((goes.wall_us - stays.wall_us) / MANY, 0.1)
    return both * sent / (sent + received), both * received / (sent + received), hop


def _cooled(cost: Callable[[Step, int], Cost], warm_us: float) -> tuple[tuple[float, float], ...]:
    """`Calibration.cooled` where a message takes `warm_us` of both processors with nothing in between."""
    found = [(0.0, 0.0)]
    for stream in STREAMS:
        stays, goes = (cost(hop_step(MANY, SIZES[0], goes, stream), 2) for goes in (False, True))
        more = (sum(goes.cpu_us) - sum(stays.cpu_us)) / MANY - warm_us
        found.append((max(goes.product_us, found[-1][0]), max(more, found[-1][1])))
    return tuple((float(us), float(more)) for us, more in found)


def cost_of(local: LocalCluster, worker: Worker, steps: int, step: Step, devices: int) -> Cost:
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
    if timeline is None:
        raise ExecutionError(f"calibration step {step.name!r} gave no trace")
    product = np.array(["_product" in graph.names[op] for op in timeline.op.tolist()], dtype=np.bool_)
    took = timeline.end_us - timeline.start_us
    product_us = float(np.median(took[product])) if product.any() else 0.0
    return Cost(run.median_seconds * 1e6, float(took[~product].sum()), tuple(spent[:devices]), product_us)


def process_seconds(pid: int) -> float:
    """CPU seconds that a process has used so far, all threads, to the nanosecond (Linux)."""
    # The clock id of another process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


# -- made-up steps ---------------------------------------------------------------------------------------


def ladder_step(rungs: int, width: int, size: int) -> Step:
    """Products of `size` bytes one after the other on device 0; after each `width` additions, ready at a time, and their sum."""
    return _step(f"ladder of {rungs} x {width}", partial(_ladder, rungs, width, size))


def message_step(messages: int, size: int) -> Step:
    """`messages` tensors of `size` bytes from device 0 to device 1, independent of each other."""
    return _step(f"{messages} messages of {size} bytes", partial(_messages, messages, size))


def hop_step(hops: int, size: int, goes: bool = True, stream: int = 0) -> Step:
    """One tensor of `size` bytes that goes to and fro between devices 0 and 1, read and made again on each; or stays on 0.

    Between two hops a product of `stream` bytes is made, unless that is 0.
    """
    name = f"{hops} hops of {size} bytes that {'go' if goes else 'stay'}, {stream} bytes between"
    return _step(name, partial(_hops, hops, size, goes, stream))


def stream_step(messages: int, size: int, goes: bool = True, both: bool = False) -> Step:
    """Products one after the other on device 0, after each of which a tensor of `size` bytes goes to device 1, or stays.

    With `both`, device 1 makes products of its own meanwhile.
    """
    name = f"{messages} messages of {size} bytes that {'go' if goes else 'stay'}, between products"
    return _step(name, partial(_stream, messages, size, goes, both))


def _ladder(rungs: int, width: int, size: int, raw: Any) -> Any:
    value = one = raw.Fill(dims=[1], value=np.float32(1), name="d0_one")
    many = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_many")
    for rung in range(rungs):
        with value.graph.control_dependencies([value.op]):
            product = raw.Mul(x=many, y=many, name=f"d0_product{rung}")
        with value.graph.control_dependencies([product.op]):
            value = raw.Identity(input=value, name=f"d0_rung{rung}")
        if width:
            parts = [raw.AddV2(x=value, y=one, name=f"d0_add{rung}_{i}") for i in range(width)]
            value = raw.AddN(inputs=parts, name=f"d0_sum{rung}")
    return value


def _messages(messages: int, size: int, raw: Any) -> Any:
    source = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    sent = [raw.Identity(input=source, name=f"d0_send{i}") for i in range(messages)]
    received = [raw.Identity(input=tensor, name=f"d1_receive{i}") for i, tensor in enumerate(sent)]
    return raw.IdentityN(input=received, name="d1_all")[0]


def _stream(messages: int, size: int, goes: bool, both: bool, raw: Any) -> Any:
    value = [raw.Fill(dims=[SIDE, SIDE], value=np.float32(1 / SIDE), name=f"d{d}_matrix") for d in range(1 + both)]
    matrix = list(value)
    source = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    received = []
    for i in range(messages):
        value = [
            raw.MatMul(a=a, b=b, name=f"d{d}_product{i}") for d, (a, b) in enumerate(zip(value, matrix, strict=True))
        ]
        with source.graph.control_dependencies([value[0].op]):
            sent = raw.Identity(input=source, name=f"d0_send{i}")
        received.append(raw.Identity(input=sent, name=f"d{int(goes)}_receive{i}"))
    for d, last in enumerate(value):
        received.append(raw.Slice(
            input=last, begin=raw.Fill(dims=[2], value=0, name=f"d{d}_begin"),
            size=raw.Fill(dims=[2], value=1, name=f"d{d}_size"), name=f"d{d}_last",
        ))  # fmt: skip
    return raw.IdentityN(input=received, name=f"d{int(goes)}_all")[0]


def _hops(hops: int, size: int, goes: bool, stream: int, raw: Any) -> Any:
    value = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    many = [raw.Fill(dims=[stream // 4], value=np.float32(1), name=f"d{d}_many") for d in range(1 + goes) if stream]
    for i in range(hops):
        device = (i + 1) % 2 if goes else 0
        value = raw.Identity(input=value, name=f"d{device}_arrived{i}")
        after = [value.op]
        if stream:
            with value.graph.control_dependencies(after):
                after = [raw.Mul(x=many[device], y=many[device], name=f"d{device}_product{i}").op]
        with value.graph.control_dependencies(after):
            value = raw.Identity(input=value, name=f"d{device}_hop{i}")
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
