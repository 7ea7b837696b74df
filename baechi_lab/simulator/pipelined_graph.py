"""A step of several micro-batches: the unrolled graph, and the order of each device's units under a schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import CONTROL_BYTES, Cluster, OpGraph, Placement
from ..graph.costs import placed_durations
from ..graph.kernels.csr import Integers, distinct, grouped_sum, inverse, offsets
from ..graph.tensors import NAMED
from ..passes.all_reduce import ALL_REDUCE
from ..passes.unroll import ACCUMULATE, check_micro_batches, unroll
from . import kernel
from .kernel_run import simulated_peak
from .pipeline_stages import END, START, B, F, PipelineStages, W, find_pipeline_stages
from .schedulers.base import NO_COLUMN, NO_DEVICES, NO_POINTERS
from .schedules import (
    KINDS,
    Schedule,
    ScheduleOption,
    ScheduleRule,
    Setting,
    Unit,
    ZbAuto,
    is_schedule_text,
    make_rule,
    make_schedule,
)


def without_name_waits(graph: OpGraph) -> OpGraph:
    """Returns the graph without the control dependencies of `Named` ops; the given graph if it has none.

    A `Named` op keeps a tensor alive: it reads it and waits for the last call before a variable of the forward code ends. In a
    pipeline every stage is a separate forward, and no variable lives longer than its stage: such a wait would order the stages.

    >>> types = ["Linear", "Linear", "Named"]
    >>> graph = OpGraph.from_edges([1, 1, 0], [(0, 1, 8), (0, 2, 8), (1, 2, 4)], op_types=types)
    >>> without_name_waits(graph).edge_count
    2
    """
    is_name = np.array([kind == NAMED for kind in graph.op_types], dtype=np.bool_)
    if not is_name.any():
        return graph
    remaining = ~is_name[graph.consumers] | (graph.tensor_bytes[graph.edge_tensor] > CONTROL_BYTES)
    return graph.replace(
        consumer_ptr=offsets(graph.edge_tensor[remaining], graph.tensor_count), consumers=graph.consumers[remaining]
    )


_RETRIES = 5
"""Orders that are tried within the memory limit."""


_WITHOUT_WAITS: WeakKeyDictionary[OpGraph, OpGraph | None] = WeakKeyDictionary()
"""Graphs without the waits of `Named` ops, by the graph as it was given; None where that has none."""


@dataclass(frozen=True, eq=False)
class PipelinedGraph:
    """An unrolled graph with its placement and, under a schedule, the unit of every op.

    `unit` int32[n]: position of the op's unit in the order of its device; 0 for ops that run before all micro-batches.
    `line_device`: the cluster's device of every line of the schedule.
    """

    graph: OpGraph
    placement: Placement
    schedule: Schedule | None = None
    stages: PipelineStages | None = None
    unit: NDArray[np.int32] | None = None
    line_device: tuple[int, ...] = ()

    @property
    def info(self) -> dict[str, Any]:
        """Entries for `Timeline.info`."""
        entries: dict[str, Any] = {"micro_batch": np.maximum(np.asarray(self.graph.micro_batch), -1)}
        if self.schedule is None or self.stages is None:
            return entries
        return entries | {
            "schedule": str(self.schedule),
            "unit": self.unit,
            "phase": self.stages.phase[np.asarray(self.graph.copy_of)],
            "stage_device": self.stages.device,
            "line_device": np.array(self.line_device, dtype=np.int32),
        }


def make_pipelined_graph(
    graph: OpGraph, cluster: Cluster, placement: Placement, micro_batches: int, schedule: ScheduleOption | None = None
) -> PipelinedGraph:
    """Unrolls `graph`. With a schedule, also finds the pipeline stages of the placement and the unit of every op.

    `schedule` is a name, a rule, a `Schedule` or its text. None means that devices choose as they do without micro-batches.

    Raises `InvalidInput` as `bl.simulate` does.
    """
    check_micro_batches(micro_batches)
    op_placement = placement.checked(graph, cluster.n)
    if schedule is None:
        step_graph = _unroll_once(graph, micro_batches, op_placement)
        return PipelinedGraph(step_graph, op_placement.on(step_graph))
    # `Named` ops wait for no later pipeline stage.
    if graph not in _WITHOUT_WAITS:
        stripped_graph = without_name_waits(graph)
        _WITHOUT_WAITS[graph] = None if stripped_graph is graph else stripped_graph
    without_waits = _WITHOUT_WAITS[graph]
    if without_waits is not None:
        graph, op_placement = without_waits, op_placement.replace(graph_key=without_waits.key)
    step_graph = _unroll_once(graph, micro_batches, op_placement)
    order_or_rule = _schedule_or_rule(schedule)
    stages = find_pipeline_stages(graph, cluster, op_placement.device, schedule_shape(order_or_rule))
    if isinstance(order_or_rule, Schedule):
        order = order_or_rule
        order.check(stages.line.tolist(), micro_batches, stages.training, _replicas(op_placement, stages))
    else:
        within_memory = isinstance(order_or_rule, ZbAuto)
        setting = make_setting(graph, cluster, op_placement, stages, micro_batches, with_memory=within_memory)
        order = make_schedule(order_or_rule, setting)
        if within_memory:
            order = _fit_into_memory(order_or_rule, setting, order, graph, cluster, op_placement, stages)
    check_units(graph, stages, order)
    groups = {group[0]: group for group in op_placement.replicas}
    lines = tuple(d for first in _pipeline_devices(stages) for d in groups.get(first, (first,)))
    return PipelinedGraph(
        step_graph, op_placement.on(step_graph), order, stages, _number_units(step_graph, stages, order), lines
    )


_LAST_UNROLLED: WeakKeyDictionary[OpGraph, tuple[int, OpGraph]] = WeakKeyDictionary()
"""Graph -> its last unrolled step. A search simulates the same step thousands of times."""


def _unroll_once(graph: OpGraph, micro_batches: int, placement: Placement) -> OpGraph:
    """Unrolls a graph, unless its last unrolled step has as many micro-batches."""
    if placement.replicas:
        return unroll(graph, micro_batches, placement)
    count, step_graph = _LAST_UNROLLED.get(graph, (0, graph))
    if count != micro_batches:
        step_graph = unroll(graph, micro_batches)
        _LAST_UNROLLED[graph] = int(micro_batches), step_graph
    return step_graph


def pipeline_options(micro_batches: int | None, schedule: ScheduleOption | None) -> dict[str, Any]:
    """Returns those of both arguments that are not None, checked. Raises for a count below 1 or an unknown schedule.

    >>> pipeline_options(8, None)
    {'micro_batches': 8}
    """
    options: dict[str, Any] = {}
    if micro_batches is not None:
        check_micro_batches(micro_batches)
        options["micro_batches"] = micro_batches
    if schedule is not None:
        options["schedule"] = schedule
        if not is_schedule_text(schedule) and not isinstance(schedule, Schedule):
            make_rule(schedule)
    return options


def _pipeline_devices(stages: PipelineStages) -> list[int]:
    """Returns the devices of the pipeline, in its order; the first device of each group of replicas."""
    return list(dict.fromkeys(stages.device.tolist()))


def _replicas(placement: Placement, stages: PipelineStages) -> tuple[int, ...]:
    """Returns the number of replicas of each device of the pipeline."""
    width = {group[0]: len(group) for group in placement.replicas}
    return tuple(width.get(d, 1) for d in _pipeline_devices(stages))


def _schedule_or_rule(schedule: ScheduleOption) -> Schedule | ScheduleRule:
    """Returns a `Schedule`, from the record or its text, or the rule of that name."""
    if is_schedule_text(schedule):
        return Schedule.parse(schedule)
    return schedule if isinstance(schedule, Schedule) else make_rule(schedule)


def schedule_shape(schedule: ScheduleOption) -> str:
    """Returns how a schedule assigns stages to devices, one of `SHAPES`, from its rule or from a given order.

    Lines with the same stages are replicas. Raises `InvalidInput` for anything that is not a schedule.

    >>> schedule_shape("1f1b"), schedule_shape("zb-v")
    ('chain', 'v')
    """
    order_or_rule = _schedule_or_rule(schedule)
    if not isinstance(order_or_rule, Schedule):
        return order_or_rule.shape
    lines = list(dict.fromkeys(frozenset(unit.stage for unit in order) for order in order_or_rule.orders))
    line_of_stage = {stage: d for d, line in enumerate(lines) for stage in line}
    has_several_stages = len(line_of_stage) > len(lines)
    if has_several_stages and line_of_stage.get(len(lines)) == len(lines) - 1:
        return "v"
    return "loop" if has_several_stages else "chain"


def _fit_into_memory(
    rule: ScheduleRule,
    setting: Setting,
    order: Schedule,
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    stages: PipelineStages,
) -> Schedule:
    """Retries with less room while the simulated step exceeds memory, because `Setting.room_bytes` ignores copies in flight.

    After `_RETRIES` attempts, returns the order that exceeds memory least.
    """
    group_of = {group[0]: list(group) for group in placement.replicas}
    attempts: list[tuple[int, int, Schedule]] = []
    for attempt in range(_RETRIES):
        pipelined_graph = make_pipelined_graph(graph, cluster, placement, setting.micro_batches, order)
        peak = simulated_peak(pipelined_graph.graph, cluster, pipelined_graph.placement, InUnits(pipelined_graph))
        excess_bytes = np.zeros(setting.devices)
        overflow_bytes = peak - cluster.memory_bytes
        excess_bytes[stages.line] = [overflow_bytes[group_of.get(d, [d])].max() for d in stages.device.tolist()]
        attempts.append((int(np.maximum(excess_bytes, 0).sum()), attempt, order))
        if not np.any(excess_bytes > 0):
            break
        setting = replace(setting, room_bytes=np.maximum(setting.room_bytes - np.maximum(excess_bytes, 0), 0))
        order = make_schedule(rule, setting)
    return min(attempts)[2]


# -- costs of the stages, for schedule rules ---------------------------------------------------------------------------


def make_setting(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    stages: PipelineStages,
    micro_batches: int,
    with_memory: bool = True,
) -> Setting:
    """Returns the costs of the stages. `with_memory=False` sets unlimited memory, for schedules that ignore it."""
    device, stage_count = placement.device, stages.count
    duration_us = placed_durations(graph, cluster, device)
    phase, stage = stages.phase, stages.stage

    def total(kind: int) -> NDArray[np.float64]:
        in_phase = phase == kind
        return grouped_sum(duration_us[in_phase], stage[in_phase], stage_count)

    # Microseconds of transfers to the next stage and back: of the slowest tensor, or the sum in a queue.
    send_us, return_us = np.zeros(max(stages.count - 1, 0)), np.zeros(max(stages.count - 1, 0))
    source_stage = stages.stage[graph.edge_source].astype(np.int64)
    reader_stage = stages.stage[graph.consumers].astype(np.int64)
    edges = np.flatnonzero((source_stage >= 0) & (reader_stage >= 0) & (np.abs(source_stage - reader_stage) == 1))
    source_device, reader_device = device[graph.edge_source[edges]], device[graph.consumers[edges]]
    cost = (
        cluster.latency_us[source_device, reader_device]
        + cluster.us_per_byte[source_device, reader_device] * graph.tensor_bytes[graph.edge_tensor[edges]]
    )
    _, first = np.unique(np.stack([graph.edge_tensor[edges], reader_stage[edges]], axis=1), axis=0, return_index=True)
    join = np.maximum if cluster.comm == "parallel" else np.add
    for times, leads_on in ((send_us, True), (return_us, False)):
        rows = first[(source_stage[edges[first]] < reader_stage[edges[first]]) == leads_on]
        join.at(times, np.minimum(source_stage, reader_stage)[edges[rows]], cost[rows])
    held_bytes, kept_bytes = _activation_bytes(graph, device, stages)
    if with_memory:
        room_bytes = _activation_room(graph, cluster, placement, stages, held_bytes)
    else:
        room_bytes = np.full(len(set(stages.line.tolist())), np.inf)
    return Setting(
        stage_device=tuple(stages.line.tolist()),
        micro_batches=int(micro_batches),
        forward_us=total(F),
        input_us=total(B),
        weight_us=total(W),
        send_us=send_us,
        return_us=return_us,
        held_bytes=held_bytes,
        kept_bytes=kept_bytes,
        room_bytes=room_bytes,
        training=stages.training,
        replicas=_replicas(placement, stages),
    )


def _activation_bytes(
    graph: OpGraph, device: Integers, stages: PipelineStages
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns float64[S] each: live bytes of one micro-batch after the F of a stage, and between its B and its W."""
    held_bytes, kept_bytes = np.zeros(stages.count), np.zeros(stages.count)
    phase, stage = stages.phase, stages.stage
    # A tensor is on its producer's device from that unit on, and on a reader's device from the reader's first unit on.
    producer = graph.tensor_producer
    outputs = np.stack([np.arange(graph.tensor_count), device[producer], phase[producer], stage[producer]], axis=1)
    reads = np.stack(
        [graph.edge_tensor, device[graph.consumers], phase[graph.consumers], stage[graph.consumers]], axis=1
    )
    reads = reads[(phase[graph.edge_source] == F) | (phase[graph.edge_source] == B)]
    uses = np.concatenate([outputs[(phase[producer] == F) | (phase[producer] == B)], reads]).astype(np.int64)
    if not len(uses):
        return held_bytes, kept_bytes
    uses = uses[uses[:, 3] >= 0]
    key = (uses[:, 0] * (int(device.max()) + 1) + uses[:, 1]) * stages.count + uses[:, 3]
    groups, inverse = np.unique(key, return_inverse=True)
    low, high = np.full(len(groups), W), np.full(len(groups), F)
    np.minimum.at(low, inverse, uses[:, 2])
    np.maximum.at(high, inverse, uses[:, 2])
    size, s = graph.tensor_bytes[groups // stages.count // (int(device.max()) + 1)], groups % stages.count
    np.add.at(held_bytes, s, np.where((low == F) & (high > F), size, 0))
    np.add.at(kept_bytes, s, np.where((low <= B) & (high == W), size, 0))
    return held_bytes, kept_bytes


def _activation_room(
    graph: OpGraph, cluster: Cluster, placement: Placement, stages: PipelineStages, held_bytes: Any
) -> NDArray[np.float64]:
    """Returns float64[p]: bytes for activations: the memory limit minus the peak of one micro-batch without its activations."""
    peak = simulated_peak(graph, cluster, placement.replace(order=None, priority=None, replicas=()))
    line = stages.line
    room_bytes = np.zeros(int(line.max(initial=-1)) + 1)
    stage_bytes = np.bincount(line, held_bytes, len(room_bytes))
    for d, cluster_device in zip(line.tolist(), stages.device.tolist(), strict=True):
        room_bytes[d] = float(cluster.memory_bytes[cluster_device] - peak[cluster_device]) + stage_bytes[d]
    return np.maximum(room_bytes, 0.0)


# -- the units of ops ---------------------------------------------------------------------------------------------------


def _unit_kind(phase: int, has_weight_units: bool) -> str:
    """Returns the kind of unit for a phase. Without W units, the whole backward pass is B."""
    if phase == F:
        return "F"
    return "W" if phase == W and has_weight_units else "B"


def check_units(graph: OpGraph, stages: PipelineStages, schedule: Schedule) -> None:
    """Runs the schedule dry with the real dependencies of the ops, which may exceed those of a chain of stages.

    Raises `InvalidInput` if the schedule blocks itself.
    """
    source_op, reader_op = graph.edge_source, graph.consumers
    between_stages = (stages.stage[source_op] >= 0) & (stages.stage[reader_op] >= 0)
    pairs = np.stack(
        [stages.stage[source_op], stages.phase[source_op], stages.stage[reader_op], stages.phase[reader_op]], axis=1
    )[between_stages]
    needs: dict[tuple[int, str], set[tuple[int, str]]] = {}
    for s, phase, t, reader in np.unique(pairs, axis=0).tolist():
        source, target = (s, _unit_kind(phase, schedule.splits)), (t, _unit_kind(reader, schedule.splits))
        if source != target:
            needs.setdefault(target, set()).add(source)
    units = {(u.stage, u.kind) for order in schedule.orders for u in order}
    for target, sources in needs.items():
        if target in units and not sources <= units:
            raise InvalidInput(f"the schedule has no unit for {sorted(sources - units)[0]}, which {target} waits for")
    schedule.check_deadlock(
        lambda unit: [Unit(s, k, unit.micro_batch) for s, k in sorted(needs.get((unit.stage, unit.kind), ()))]
    )


def _number_units(step_graph: OpGraph, stages: PipelineStages, schedule: Schedule) -> NDArray[np.int32]:
    """Returns int32[n]: position of every op's unit on its device: 0 for START, then the schedule's units, then END."""
    origin, batch = np.asarray(step_graph.copy_of), np.asarray(step_graph.micro_batch)
    count = int(batch.max(initial=-1)) + 1
    splits = schedule.splits
    position = np.zeros((stages.count, 5, max(count, 1)), dtype=np.int64)
    for order in schedule.orders:
        for k, unit in enumerate(order, 1):
            position[unit.stage, 1 + KINDS.index(unit.kind), unit.micro_batch] = k
    if not splits:
        position[:, W] = position[:, B]
    phase, stage = stages.phase[origin].astype(np.int64), stages.stage[origin]
    is_addition = np.array([t == ACCUMULATE for t in step_graph.op_types], dtype=np.bool_)
    phase[np.array([t == ALL_REDUCE for t in step_graph.op_types], dtype=np.bool_)] = END
    phase[is_addition & (phase == B)] = W
    if stages.training:
        phase[is_addition & (phase == F)] = W
    end_position = 1 + max((len(order) for order in schedule.orders), default=0)
    unit_position = np.where(phase == END, end_position, 0)
    is_in_unit = (phase != START) & (phase != END)
    unit_position[is_in_unit] = position[stage[is_in_unit], phase[is_in_unit], batch[is_in_unit]]
    return unit_position.astype(np.int32)


@dataclass(frozen=True)
class InUnits:
    """A scheduler: every lane works through its units in order; ops of a unit run by planned rank, then by index.

    If the schedule does not split the backward pass, gradients of weights run before gradients of inputs, as far as the
    graph allows. So the tensors for the previous stage leave at the end of the unit, as if the backward pass of a stage
    were one call.
    """

    pipeline: PipelinedGraph

    def prepare(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> kernel.Scheduler:
        """Returns the arrays by which the kernel chooses ops."""
        unit, device = np.asarray(self.pipeline.unit, dtype=np.int64), kernel.lanes(graph, cluster, placement.device)
        schedule, stages = self.pipeline.schedule, self.pipeline.stages
        urgent = np.zeros(graph.n, dtype=np.int64)
        if schedule is not None and stages is not None and not schedule.splits:
            urgent = (stages.phase[np.asarray(graph.copy_of)] == B).astype(np.int64)
        planned_rank = np.zeros(graph.n) if placement.rank is None else placement.rank
        order = np.lexsort((np.arange(graph.n), planned_rank, urgent, unit))
        rank = inverse(order).astype(np.float64)
        width = int(unit.max(initial=0)) + 1
        used = distinct(device * width + unit)  # units without ops are left out
        number = np.searchsorted(used, device * width + unit)
        first = offsets(used // width, kernel.lane_count(graph, cluster))
        return kernel.Scheduler(
            kernel.BY_UNIT,
            rank,
            NO_COLUMN,
            NO_POINTERS,
            NO_DEVICES,
            0.0,
            (number - first[device]).astype(np.int32),
            first,
            np.bincount(number, minlength=len(used)),
        )
