"""`simulate`: a placement becomes a timeline, by the rules of docs/simulated-time.md."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownNameError
from ..graph import Cluster, MemoryLog, OpGraph, Placement, Timeline, Transfers, Violation
from ..graph.arguments import check_records, refuse_replicas
from ..graph.units import format_bytes, format_us
from .buffer_reuse import apply_buffer_reuse
from .kernel_run import run_kernel
from .memory_rules import MEMORY_RULES, edge_memory
from .pipelined_graph import InUnits, PipelinedGraph, make_pipelined_graph
from .runtime_peaks import runtime_peaks
from .schedulers import SchedulerOption
from .schedules import ScheduleOption


def simulate(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    scheduler: SchedulerOption | None = None,
    *,
    memory_rule: str = "tensors",
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
) -> Timeline:
    """Simulates one step of `graph` under `placement`.

    What a simulated microsecond means is defined in docs/simulated-time.md.

    Args:
        graph: what the placement was made for; for a placement of a coarse graph, that or the original one.
        cluster: devices, links and communication mode.
        placement: a device per op, and perhaps an order.
        scheduler: "fifo", "planned", "pct", "msr" or a scheduler object; by default "planned" where the placement has
            an order or priorities, else "fifo".
        memory_rule: "tensors", or "edges" for equation 2 of Mayer et al. 2017; see `baechi_lab.simulator.memory_rules`.
        micro_batches: the number of micro-batches of the step, each of which is one run of `graph`. The timeline has the ops of
            `bl.unroll(graph, micro_batches)`. Without a schedule, devices choose ops as without micro-batches.
        schedule: the order in which devices work on (pipeline stage, micro-batch, F | B | W) units: "gpipe", "1f1b",
            "interleaved-1f1b", "zb-h1", "zb-h2", "zb-auto", "zb-v", or an order as text or `Schedule`. Each device of the
            placement is a pipeline stage, or several where the schedule has several. `micro_batches` is 1 if not given.

    Returns:
        A simulated Timeline. Memory above a device's limit is a `Violation` in it, never an error. With micro-batches,
        `micro_batch` has the micro-batch of every op (-1 for ops that run once) and, with a schedule, `schedule_lines` is its
        text, `unit` has the position of every op's unit on its device and `phase` its phase. If ops take no time, `turn` has
        the order of those that start at one instant. `runtime_peak_bytes` has the peaks that the framework may reach.
        `on_communication_lane` marks collectives. `info` holds the same columns under these names (`schedule` for the text).

    Raises:
        InvalidInput: the placement was made for another graph or names a device that the cluster lacks; its pipeline stages
            form no pipeline, or none that the schedule can work on; the schedule blocks itself; it has replicas
            and no `micro_batches` are given, or fewer than the replicas of a pipeline stage.
        UnknownNameError: no such scheduler, schedule or memory rule.

    >>> from baechi_lab import Cluster, Link, OpGraph, Placement
    >>> g = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 2)])
    >>> c = Cluster.uniform(2, memory_bytes=100, link=Link(4.0, 0.0), comm="parallel")
    >>> simulate(g, c, Placement(device=[0, 0, 1, 0])).makespan_us
    28.0
    >>> chain = OpGraph.from_edges([2, 3], [(0, 1, 1)])
    >>> simulate(chain, c, Placement(device=[0, 1]), micro_batches=4).makespan_us    # 2 + 4 + 4 * 3
    18.0
    """
    if memory_rule not in MEMORY_RULES:
        raise UnknownNameError.of("memory rule", memory_rule, MEMORY_RULES)
    check_records(graph=graph, cluster=cluster, placement=placement)
    if micro_batches is None and schedule is None:
        refuse_replicas(placement, "bl.simulate without micro_batches")
        op_placement, info = placement.checked(graph, cluster.n), {}
    else:
        pipelined_graph = _make_pipelined(graph, cluster, placement, scheduler, micro_batches, schedule)
        graph, op_placement, info = pipelined_graph.graph, pipelined_graph.placement, pipelined_graph.info
        scheduler = scheduler if schedule is None else InUnits(pipelined_graph)
    if graph.on_communication_lane.any():
        info = {**info, "on_communication_lane": graph.on_communication_lane}
    timeline = _run(graph, cluster, op_placement, scheduler, info)
    if memory_rule == "edges":
        return edge_memory(graph, cluster, timeline)
    if graph.reuse is None:
        return timeline
    timeline = apply_buffer_reuse(graph, cluster, timeline)

    def simulate_order(other_cluster: Cluster, order_scheduler: str, order: NDArray[np.int64] | None) -> Timeline:
        return _run(graph, other_cluster, op_placement.replace(order=order, priority=None), order_scheduler, {})

    peaks = runtime_peaks(graph, cluster, timeline, simulate_order if schedule is None else None)
    if np.any(peaks > timeline.peak_bytes):
        timeline = replace(timeline, info={**timeline.info, "runtime_peak_bytes": peaks.tolist()})
    return timeline


def simulate_step(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: SchedulerOption | None = None
) -> Timeline:
    """Returns the timeline of one step as `simulate` does, without the peaks of the framework's own orders.

    Those (`Timeline.runtime_peak_bytes`) take most of the time of `simulate`, and no placer decides by them.
    """
    timeline = _run(graph, cluster, placement.checked(graph, cluster.n), scheduler, {})
    return timeline if graph.reuse is None else apply_buffer_reuse(graph, cluster, timeline)


def _make_pipelined(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    scheduler: SchedulerOption | None,
    micro_batches: int | None,
    schedule: ScheduleOption | None,
) -> PipelinedGraph:
    """Returns the graph and placement of a step of several micro-batches; rejects a scheduler beside a schedule."""
    if schedule is not None and scheduler is not None:
        raise InvalidInput(
            f"scheduler is {scheduler!r} and schedule is {schedule!r}; a schedule leaves devices nothing to choose: give one"
        )
    return make_pipelined_graph(graph, cluster, placement, 1 if micro_batches is None else micro_batches, schedule)


def makespan_and_peak(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    scheduler: SchedulerOption | None = None,
    *,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
) -> tuple[float, NDArray[np.int64]]:
    """Returns only the makespan in microseconds and the peak bytes int64[devices], as a search needs them."""
    op_placement = placement
    if micro_batches is None and schedule is None:
        refuse_replicas(placement, "bl.simulate without micro_batches")
        op_placement = placement.checked(graph, cluster.n)
    else:
        pipelined_graph = _make_pipelined(graph, cluster, placement, scheduler, micro_batches, schedule)
        graph = pipelined_graph.graph
        op_placement = pipelined_graph.placement
        scheduler = scheduler if schedule is None else InUnits(pipelined_graph)
    state = run_kernel(graph, cluster, op_placement, scheduler, keep_log=False).state
    return float(state.ops["end"].max(initial=0.0)), state.devices["peak"].copy()


def _run(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: SchedulerOption | None, info: dict[str, object]
) -> Timeline:
    """Runs the event loop; every output has bytes of its own, whatever `OpGraph.reuse` says."""
    from .validity import constraint_violations

    state, sends, log = run_kernel(graph, cluster, placement, scheduler, keep_log=True)
    ops = state.ops[:-1]
    if np.any(ops["end"] == ops["start"]):
        info = {**info, "turn": ops["turn"].copy()}
    devices = state.devices
    violations = list(constraint_violations(graph, cluster, placement.device))
    for d in np.flatnonzero(devices["violation_op"] >= 0).tolist():
        op, time = int(devices["violation_op"][d]), float(devices["violation_us"][d])
        message = (
            f"device {cluster.names[d]} exceeds its {format_bytes(int(cluster.memory_bytes[d]))} at {format_us(time)} "
            f"when op {graph.names[op]!r} takes memory; its peak is {format_bytes(int(devices['peak'][d]))}"
        )
        violations.append(Violation("memory", message, d, time, op))
    return Timeline(
        op=np.arange(graph.n, dtype=np.int32),
        device=placement.device,
        start_us=ops["start"],
        end_us=ops["end"],
        transfers=Transfers(
            tensor=sends["tensor"],
            source=placement.device[graph.tensor_producer[sends["tensor"]]],
            target=sends["target"],
            start_us=sends["start"],
            receive_us=sends["receive"],
            end_us=sends["end"],
        ),
        memory=MemoryLog(log["device"], log["time"], log["category"], log["delta"], log["op"]),
        peak_bytes=devices["peak"],
        makespan_us=float(ops["end"].max(initial=0.0)),
        origin="simulated",
        op_names=graph.names,
        device_names=cluster.names,
        memory_bytes=cluster.memory_bytes,
        tensor_producer=graph.tensor_producer,
        tensor_bytes=graph.tensor_bytes,
        violations=tuple(violations),
        info=info,
    )
