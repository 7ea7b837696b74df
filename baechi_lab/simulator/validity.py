"""`check` tests a timeline against the rules of docs/simulated-time.md, without any code of the event loop.

It takes starts and transfers from the timeline and tests every rule on them. It replays transfer queues from the production
times and rebuilds memory as intervals (`memory_validity`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..graph import HOST, Cluster, OpGraph, Placement, Timeline, Violation, allowed_devices, durations
from ..graph.arguments import check_records
from ..graph.kernels.csr import Floats, Integers
from ..passes.all_reduce import ALL_REDUCE
from ..passes.unroll import ACCUMULATE
from .memory_validity import TimedStep, memory_violations
from .pipeline_stages import END, START, B, F, W
from .schedules.schedule import Schedule, Unit

_MISSING = -2
"""Marks an edge whose tensor must be sent and is not."""


_BEFORE, _AFTER = "before", "after"


def check(graph: OpGraph, cluster: Cluster, placement: Placement, timeline: Timeline) -> tuple[Violation, ...]:
    """Returns every rule that `timeline` breaks for `placement` of `graph`; an empty tuple means that it is valid.

    The rules: each op runs once, on its device, for its duration; inputs come first; a device runs one op at a time and
    does not idle while an op is ready; transfers follow the cluster's communication mode; memory limits; colocation;
    allowed devices. A timeline of several micro-batches is checked on the unrolled graph,
    `bl.unroll(graph, micro_batches)`. If it followed a schedule, an op is ready only after all earlier units of its
    device have ended, and the units are those of the schedule's text. If ops take no time, memory depends on which of
    them started first within an instant: `Timeline.turn` is that order, by default the topological order.

    The other columns of the timeline are checked as well: names and bytes are those of the graph and the cluster; if no
    rule is broken, `peak_bytes` and the log of memory are those of the rows. A timeline of `memory_rule="edges"` counts
    memory in another way, and one without a log has only its peaks: what it lacks is not checked.

    Args:
        graph, cluster, placement: what was simulated.
        timeline: from `bl.simulate` or any other program.

    Returns:
        One `Violation` per broken rule, with device, time and op.

    Raises:
        InvalidInput: the placement was made for another graph.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g, c = OpGraph.from_edges([1, 1], [(0, 1, 4)]), Cluster.uniform(2)
    >>> check(g, c, Placement(device=[0, 1]), simulate(g, c, Placement(device=[0, 1])))
    ()
    """
    check_records(graph=graph, cluster=cluster, placement=placement, timeline=timeline)
    op_placement = placement.checked(graph, cluster.n)
    violations = list(constraint_violations(graph, cluster, op_placement.device))
    step = TimedStep(graph, cluster, op_placement, timeline)
    unusable = [*_label_violations(step), *_not_finite_violations(step)]
    if unusable:
        return (*violations, *unusable)  # the other rules need indices and times that mean something
    violations += _op_violations(step)
    if any(v.kind == "rows" for v in violations):
        return tuple(violations)  # the other rules need one row per op
    transfer = _transfer_of_edge(step)
    violations += _overlap_violations(step)
    violations += _transfer_violations(step)
    violations += _precedence_violations(step, transfer)
    violations += _queue_violations(step)
    if not np.any(transfer == _MISSING):  # copies that never arrive hold no memory
        violations += memory_violations(step, transfer, has_valid_rows=not violations)
    return tuple(violations)


def _transfer_of_edge(step: TimedStep) -> NDArray[np.int64]:
    """Returns int64[E]: the transfer of each edge's tensor to its consumer; -1 on one device, or `_MISSING`."""
    graph, device, transfers = step.graph, step.placement.device, step.timeline.transfers
    width = int(max(device.max(initial=0), transfers.target.max(initial=0))) + 1
    remote = device[graph.edge_source] != device[graph.consumers]
    required_key = graph.edge_tensor.astype(np.int64) * width + device[graph.consumers]
    existing = transfers.tensor.astype(np.int64) * width + transfers.target
    order = np.argsort(existing, kind="stable")
    place = np.minimum(np.searchsorted(existing[order], required_key), max(len(existing) - 1, 0))
    transfer = np.full(graph.edge_count, -1, dtype=np.int64)
    transfer[remote] = _MISSING
    if len(existing):
        transfer[remote] = np.where(existing[order][place] == required_key, order[place], _MISSING)[remote]
    return transfer


def constraint_violations(graph: OpGraph, cluster: Cluster, device: Integers) -> Iterator[Violation]:
    """Yields violations of colocation and of allowed devices, the rules that need no timeline."""
    colocated_ops = np.flatnonzero(graph.colocation >= 0)
    group_device = np.full(len(graph.colocation_names), -1, dtype=np.int64)
    group_device[graph.colocation[colocated_ops][::-1]] = device[colocated_ops][::-1]  # the first member decides
    for i in colocated_ops[device[colocated_ops] != group_device[graph.colocation[colocated_ops]]].tolist():
        group = graph.colocation_names[graph.colocation[i]]
        device_name, group_device_name = cluster.names[device[i]], cluster.names[group_device[graph.colocation[i]]]
        message = (
            f"op {graph.names[i]!r} is on {device_name} but its colocation group {group!r} is on {group_device_name}"
        )
        yield Violation("colocation", message, int(device[i]), op=i)
    if graph.allowed_sets or any(d.kind == HOST for d in cluster.devices):
        mask = allowed_devices(graph, cluster)
        for i in np.flatnonzero(~mask[np.arange(graph.n), device]).tolist():
            allowed_names = [name for name, ok in zip(cluster.names, mask[i], strict=True) if ok]
            message = (
                f"op {graph.names[i]!r} is on {cluster.names[device[i]]}; it may run on {', '.join(allowed_names)}"
            )
            yield Violation("allowed", message, int(device[i]), op=i)


def _processor_time(graph: OpGraph, cluster: Cluster, placement: Placement) -> NDArray[np.float64]:
    """Returns float64[n]: processor time of messages (`Link.overhead_us`).

    Each message is charged to the producer and to the tensor's first reader on the receiving device.
    """
    processor_us = np.zeros(graph.n)
    if not cluster.overhead_us.any():
        return processor_us
    position = {int(op): k for k, op in enumerate(graph.order)}
    for t in range(graph.tensor_count):
        producer = int(graph.tensor_producer[t])
        producer_device = int(placement.device[producer])
        readers = graph.tensor_consumers(t).tolist()
        for target in {int(placement.device[i]) for i in readers} - {producer_device}:
            first_reader = min((i for i in readers if placement.device[i] == target), key=position.__getitem__)
            processor_us[producer] += cluster.overhead_us[producer_device, target]
            processor_us[first_reader] += cluster.overhead_us[producer_device, target]
    return processor_us


def _label_violations(step: TimedStep) -> Iterator[Violation]:
    """Yields columns of the timeline, which say what its indices mean, that differ from the graph or the cluster."""
    graph, timeline = step.graph, step.timeline
    columns = (
        ("ops", timeline.op_names, graph.names),
        ("devices", timeline.device_names, step.cluster.names),
        ("producers of the tensors", timeline.tensor_producer.tolist(), graph.tensor_producer.tolist()),
        ("bytes of the tensors", timeline.tensor_bytes.tolist(), graph.tensor_bytes.tolist()),
    )
    for label, labels, expected in columns:
        if len(labels) != len(expected):
            yield Violation("rows", f"the timeline has {len(labels)} {label}; expected are {len(expected)}")
        elif (k := _first_difference(labels, expected)) is not None:
            yield Violation("rows", f"the {label} differ at {k}: {labels[k]!r} in the timeline, not {expected[k]!r}")
    micro_batch = timeline.micro_batch
    if micro_batch is not None and graph.micro_batch is not None and len(micro_batch) == graph.n:
        for i in np.flatnonzero(micro_batch != np.maximum(graph.micro_batch, -1)).tolist():
            message = (
                f"op {graph.names[i]!r} is of micro-batch {graph.micro_batch[i]}; the timeline says {micro_batch[i]}"
            )
            yield Violation("rows", message, op=i)
    if timeline.on_communication_lane.tolist() != graph.on_communication_lane.tolist():
        yield Violation("rows", "the ops on the communication lane are not the collectives of the graph")


def _first_difference(values: Sequence[object], expected: Sequence[object]) -> int | None:
    """Returns the first position at which two sequences of one length differ, or None."""
    return next((k for k, (a, b) in enumerate(zip(values, expected, strict=True)) if a != b), None)


def _not_finite_violations(step: TimedStep) -> Iterator[Violation]:
    """Yields times that are no finite numbers, since comparisons with NaN never report them."""
    timeline, transfers = step.timeline, step.timeline.transfers
    for k in np.flatnonzero(~np.isfinite(timeline.start_us + timeline.end_us)).tolist():
        i = int(timeline.op[k])
        message = f"op {step.graph.names[i]!r} runs {timeline.start_us[k]}..{timeline.end_us[k]} us"
        yield Violation("duration", message, int(timeline.device[k]), op=i)
    for k in np.flatnonzero(~np.isfinite(transfers.start_us + transfers.receive_us + transfers.end_us)).tolist():
        label = step.graph.tensor_label(int(transfers.tensor[k]))
        times = f"{transfers.start_us[k]}, {transfers.receive_us[k]} and {transfers.end_us[k]}"
        message = f"tensor {label!r} is sent, received and there at {times} us"
        yield Violation("transfer", message, int(transfers.target[k]))
    if not np.isfinite(timeline.makespan_us):
        yield Violation("makespan", f"makespan is {timeline.makespan_us} us")


def _op_violations(step: TimedStep) -> Iterator[Violation]:
    """Yields ops that do not run exactly once, on their device and for their duration; a wrong makespan."""
    graph, cluster, placement = step.graph, step.cluster, step.placement
    timeline, slack = step.timeline, step.slack
    rows = np.bincount(timeline.op, minlength=graph.n)
    for i in np.flatnonzero(rows != 1).tolist():
        yield Violation("rows", f"op {graph.names[i]!r} has {rows[i]} rows in the timeline, not one", op=i)
    if len(timeline.op) != graph.n or np.any(rows != 1):
        return
    expected = (durations(graph, cluster) + _processor_time(graph, cluster, placement)[:, None])[
        timeline.op, timeline.device
    ]
    for k in np.flatnonzero(timeline.device != placement.device[timeline.op]).tolist():
        i = int(timeline.op[k])
        message = f"op {graph.names[i]!r} ran on device {timeline.device[k]}, placed on {placement.device[i]}"
        yield Violation("rows", message, int(timeline.device[k]), float(timeline.start_us[k]), i)
    wrong = np.abs(timeline.end_us - timeline.start_us - expected) > slack
    for k in np.flatnonzero(wrong | (timeline.start_us < 0)).tolist():
        i = int(timeline.op[k])
        message = (
            f"op {graph.names[i]!r} runs {timeline.start_us[k]}..{timeline.end_us[k]} us; it takes {expected[k]} us"
        )
        yield Violation("duration", message, int(timeline.device[k]), float(timeline.start_us[k]), i)
    if abs(timeline.end_us.max(initial=0.0) - timeline.makespan_us) > slack:
        yield Violation(
            "makespan", f"makespan is {timeline.makespan_us} us; the last op ends at {timeline.end_us.max(initial=0.0)}"
        )


def _overlap_violations(step: TimedStep) -> Iterator[Violation]:
    """Yields pairs of ops that overlap on one lane of a device."""
    graph, cluster, placement = step.graph, step.cluster, step.placement
    start, end, slack = step.start, step.end, step.slack
    order = np.lexsort((end, start, step.lane))
    first, second = order[:-1], order[1:]
    overlap = (step.lane[first] == step.lane[second]) & (start[second] < end[first] - slack)
    for a, b in zip(first[overlap].tolist(), second[overlap].tolist(), strict=True):
        d = int(placement.device[b])
        message = f"ops {graph.names[a]!r} and {graph.names[b]!r} overlap on {cluster.names[d]}"
        yield Violation("overlap", message, d, float(start[b]), b)


def _transfer_violations(step: TimedStep) -> Iterator[Violation]:
    """Yields transfers that break a rule whatever the other transfers do."""
    graph, cluster, placement = step.graph, step.cluster, step.placement
    timeline, end, slack = step.timeline, step.end, step.slack
    transfers = timeline.transfers
    cost = cluster.latency_us[transfers.source, transfers.target]
    cost = cost + cluster.us_per_byte[transfers.source, transfers.target] * graph.tensor_bytes[transfers.tensor]
    pair = transfers.tensor.astype(np.int64) * cluster.n + transfers.target
    _, first = np.unique(pair, return_index=True)
    is_repeated = np.ones(len(transfers), dtype=bool)
    is_repeated[first] = False
    used = np.isin(pair, graph.edge_tensor.astype(np.int64) * cluster.n + placement.device[graph.consumers])
    rules = (
        (is_repeated, "is sent there twice; the receiver caches it"),
        (
            transfers.source != placement.device[graph.tensor_producer[transfers.tensor]],
            "does not start where it was produced",
        ),
        (transfers.source == transfers.target, "is sent to its own device"),
        (~used, "is sent to a device where nobody reads it"),
        (transfers.start_us < end[graph.tensor_producer[transfers.tensor]] - slack, "is sent before it is produced"),
        (transfers.receive_us < transfers.start_us - slack, "is received before it is sent"),
        (np.abs(transfers.end_us - transfers.receive_us - cost) > slack, "does not take the time that the link costs"),
    )
    for is_broken, reason in rules:
        for k in np.flatnonzero(is_broken).tolist():
            label = graph.tensor_label(int(transfers.tensor[k]))
            message = f"tensor {label!r} to {cluster.names[transfers.target[k]]} {reason}"
            yield Violation("transfer", message, int(transfers.target[k]), float(transfers.start_us[k]))


def _precedence_violations(step: TimedStep, transfer: NDArray[np.int64]) -> Iterator[Violation]:
    """Yields ops that start before their inputs arrive, and the rules that depend on when an op is ready."""
    graph, placement, timeline = step.graph, step.placement, step.timeline
    start, end, slack = step.start, step.end, step.slack
    arrival = end[graph.edge_source].copy()
    remote = transfer >= 0
    arrival[remote] = timeline.transfers.end_us[transfer[remote]]
    for e in np.flatnonzero(transfer == _MISSING).tolist():
        label, i = graph.tensor_label(int(graph.edge_tensor[e])), int(graph.consumers[e])
        yield Violation(
            "transfer", f"tensor {label!r} never reaches op {graph.names[i]!r}", int(placement.device[i]), op=i
        )
    for e in np.flatnonzero((start[graph.consumers] < arrival - slack) & (transfer != _MISSING)).tolist():
        label, i = graph.tensor_label(int(graph.edge_tensor[e])), int(graph.consumers[e])
        message = f"op {graph.names[i]!r} starts at {start[i]} us; its input {label!r} is there at {arrival[e]} us"
        yield Violation("precedence", message, int(placement.device[i]), float(start[i]), i)
    ready = np.zeros(graph.n)
    np.maximum.at(ready, graph.consumers, arrival)
    if timeline.unit is not None:
        yield from _unit_violations(step, timeline.unit, ready)
    yield from _idling_violations(step, ready)


def _unit_violations(step: TimedStep, unit: NDArray[np.int64], ready: Floats) -> Iterator[Violation]:
    """Yields ops that do not follow the order of the schedule's units. Raises `ready` to the end of all earlier units."""
    graph, cluster, timeline = step.graph, step.cluster, step.timeline
    start, end, slack = step.start, step.end, step.slack
    if unit.shape != (graph.n,) or graph.micro_batch is None:
        yield Violation("order", f"the timeline has units for {len(unit)} ops; the graph has {graph.n} and is no step")
        return
    lines, pipeline_devices = Schedule.parse(timeline.schedule_lines).orders, timeline.pipeline_devices
    if len(lines) != len(pipeline_devices):
        yield Violation(
            "order", f"the schedule has {len(lines)} lines; the pipeline has {len(pipeline_devices)} devices"
        )
        return
    for lane in range(2 * cluster.n):
        d = lane % cluster.n
        device_ops = np.flatnonzero(step.lane == lane)
        device_ops = device_ops[np.argsort(unit[device_ops], kind="stable")]
        latest_end = np.maximum.accumulate(np.r_[0.0, end[device_ops]])
        earlier_end = latest_end[np.searchsorted(unit[device_ops], unit[device_ops], side="left")]
        for k in np.flatnonzero(start[device_ops] < earlier_end - slack).tolist():
            i = int(device_ops[k])
            message = f"op {graph.names[i]!r} starts at {start[i]} us; an earlier unit of its device ends at {earlier_end[k]} us"
            yield Violation("order", message, d, float(start[i]), i)
        ready[device_ops] = np.maximum(ready[device_ops], earlier_end)
    yield from _unit_label_violations(step, unit, dict(zip(pipeline_devices, lines, strict=True)))


def _unit_label_violations(
    step: TimedStep, unit: NDArray[np.int64], line_of_device: dict[int, tuple[Unit, ...]]
) -> Iterator[Violation]:
    """Yields ops in a unit of another micro-batch, phase, stage or device than theirs, or whose copies have another phase."""
    graph, timeline, device = step.graph, step.timeline, step.placement.device.tolist()
    phase, micro_batch, original = timeline.phase, np.asarray(graph.micro_batch), np.asarray(graph.copy_of)
    if phase is None or phase.shape != (graph.n,):
        yield Violation("order", f"the timeline has units, but not the phase of each of the {graph.n} ops")
        return
    has_weight_units = any(planned_unit.kind == "W" for line in line_of_device.values() for planned_unit in line)
    stage_devices = _devices_of_stages(timeline)
    stage_of_original: dict[int, int] = {}  # of a backward op: that of its forward op on the same device
    phase_of_original: dict[int, int] = {}  # which tells B from W where one unit has both
    stage_of_op = np.full(graph.n, -1, dtype=np.int64)
    for i in range(graph.n):
        line, position = line_of_device.get(device[i], ()), int(unit[i])
        first_phase = phase_of_original.setdefault(int(original[i]), int(phase[i]))
        if first_phase != phase[i] and graph.op_types[i] != ACCUMULATE:
            message = f"op {graph.names[i]!r} has phase {phase[i]}; its copy in another micro-batch has {first_phase}"
            yield Violation("order", message, device[i], float(step.start[i]), i)
        kinds = _unit_kinds(graph, i, int(phase[i]), has_weight_units)
        if 0 < position <= len(line):
            planned_unit = line[position - 1]
            stage_of_op[i] = planned_unit.stage
            forward_op = int(graph.forward_of[i])
            stage_op = (
                forward_op if forward_op >= 0 and device[forward_op] == device[i] and phase[forward_op] == F else i
            )
            stage = stage_of_original.setdefault(int(original[stage_op]), planned_unit.stage)
            differences = {
                "micro-batch": planned_unit.micro_batch != micro_batch[i],
                "phase": planned_unit.kind not in kinds,
                "pipeline stage": planned_unit.stage != stage,
                "device": planned_unit.stage >= len(stage_devices)
                or device[i] not in stage_devices[planned_unit.stage],
            }
            unit_text = f"unit {planned_unit}"
        else:
            differences = {"phase": (_BEFORE if position == 0 else _AFTER if position > 0 else "") not in kinds}
            unit_text = f"unit number {position}"
        for property_name in [name for name, differs in differences.items() if differs]:
            message = f"op {graph.names[i]!r} runs in {unit_text} of another {property_name}"
            yield Violation("order", message, device[i], float(step.start[i]), i)
    yield from _gradient_violations(step, phase, stage_of_op)


def _gradient_violations(step: TimedStep, phase: NDArray[np.int64], stage: NDArray[np.int64]) -> Iterator[Violation]:
    """Yields backward ops whose phase contradicts the ops that wait for them.

    An op is in phase B if and only if another stage waits for it, directly or not. A stage for which no other waits chooses its B
    ops, but these read no W ops, and what feeds only updates is no B op.
    """
    graph, device = step.graph, step.placement.device
    is_backward = (phase == B) | (phase == W)
    is_sum = np.array([kind in (ACCUMULATE, ALL_REDUCE) for kind in graph.op_types], dtype=np.bool_)
    pointer, successors = (column.tolist() for column in graph.successors)
    own_readers: list[list[int]] = [[] for _ in range(graph.n)]  # that are backward ops of the model
    is_awaited, feeds_update = np.zeros(graph.n, dtype=np.bool_), np.zeros(graph.n, dtype=np.bool_)
    for i in graph.order[::-1].tolist():
        readers = successors[pointer[i] : pointer[i + 1]]
        own_readers[i] = [k for k in readers if is_backward[k] and not is_sum[k]]
        is_awaited[i] = is_backward[i] and any(is_awaited[k] or stage[k] != stage[i] for k in own_readers[i])
        feeds_update[i] = any(feeds_update[k] if is_sum[k] else phase[k] == END for k in readers)
    awaited_stages = set(stage[is_awaited].tolist())
    split_stages = set(stage[(phase == W) & ~is_sum].tolist())
    for i in np.flatnonzero(is_backward & ~is_sum).tolist():
        if stage[i] in awaited_stages:
            expected = B if is_awaited[i] else W
        elif any(phase[k] == B for k in own_readers[i]):
            expected = B
        elif feeds_update[i] and not own_readers[i] and stage[i] in split_stages:
            expected = W
        else:
            continue
        if phase[i] != expected:
            waits = "a" if expected == B else "no"
            message = f"op {graph.names[i]!r} is in phase {'BW'[phase[i] - B]}, although {waits} gradient of inputs waits for it"
            yield Violation("order", message, int(device[i]), float(step.start[i]), i)


def _unit_kinds(graph: OpGraph, op: int, phase: int, has_weight_units: bool) -> tuple[str, ...]:
    """Returns the kinds of units in which an op of `phase` may run; `_BEFORE` and `_AFTER` are those of no micro-batch.

    Sums of gradients run with the gradients of weights, and rings of replicas after all micro-batches.
    """
    weights = "W" if has_weight_units else "B"
    if graph.op_types[op] == ALL_REDUCE:
        return (_AFTER,)
    if graph.op_types[op] == ACCUMULATE and phase in (F, B, W):
        return (weights, "F") if phase == F else (weights,)
    if phase == F and graph.forward_of[op] >= 0:
        return ()
    return {START: (_BEFORE,), F: ("F",), B: ("B",), W: (weights,), END: (_AFTER,)}.get(phase, ())


def _devices_of_stages(timeline: Timeline) -> list[list[int]]:
    """Returns the devices of each pipeline stage: its replicas follow its first device in the lines of the schedule."""
    stage_device, groups = timeline.stage_device.tolist(), list[list[int]]()
    for device in timeline.pipeline_devices:
        if device in stage_device or not groups:
            groups.append([])
        groups[-1].append(device)
    devices_of_first = {group[0]: group for group in groups}
    return [devices_of_first.get(device, []) for device in stage_device]


def _idling_violations(step: TimedStep, ready: Floats) -> Iterator[Violation]:
    """Yields devices that idle between the time an op is ready and its start."""
    graph, cluster = step.graph, step.cluster
    start, end, slack = step.start, step.end, step.slack
    for lane in range(2 * cluster.n):
        d = lane % cluster.n
        device_ops = np.flatnonzero(step.lane == lane)
        device_ops = device_ops[np.lexsort((end[device_ops], start[device_ops]))]
        busy_until = np.r_[0.0, np.maximum.accumulate(end[device_ops])]
        gap = np.maximum(np.r_[start[device_ops], np.inf] - busy_until, 0.0)[:-1]  # idle time just before each op
        idle_before = np.r_[0.0, np.cumsum(gap)]
        # The number of ops that start before each op is ready.
        position = np.searchsorted(start[device_ops], ready[device_ops], side="left")
        until_ready = idle_before[position] + np.clip(ready[device_ops] - busy_until[position], 0.0, None)
        idle_us = idle_before[1:] - until_ready
        for k in np.flatnonzero(idle_us > slack * max(len(device_ops), 1)).tolist():
            i = int(device_ops[k])
            message = f"device {cluster.names[d]} idles {idle_us[k]:.6g} us although op {graph.names[i]!r} is ready"
            yield Violation("idling", message, d, float(ready[i]), i)


def _queue_violations(step: TimedStep) -> Iterator[Violation]:
    """Yields transfers that start at other times than the queues allow, by replaying the requests in order of service."""
    graph, cluster, placement = step.graph, step.cluster, step.placement
    timeline, end, slack = step.timeline, step.end, step.slack
    transfers = timeline.transfers
    producer = graph.tensor_producer[transfers.tensor]
    duration_us = (
        durations(graph, cluster)[producer, transfers.source] + _processor_time(graph, cluster, placement)[producer]
    )
    order = _service_order(graph, cluster, timeline, end[producer], duration_us == 0)
    out_free = [0.0] * cluster.n
    in_free = out_free if cluster.comm == "sequential" else [0.0] * cluster.n
    size = graph.tensor_bytes
    for k in order:
        source, target, tensor = int(transfers.source[k]), int(transfers.target[k]), int(transfers.tensor[k])
        start = receive = float(end[producer[k]])
        if cluster.comm != "parallel":
            cost = float(cluster.latency_us[source, target] + cluster.us_per_byte[source, target] * size[tensor])
            start = max(start, out_free[source])
            out_free[source] = start + cost
            receive = max(start, in_free[target])
            in_free[target] = receive + cost
        if abs(transfers.start_us[k] - start) > slack or abs(transfers.receive_us[k] - receive) > slack:
            message = (
                f"tensor {graph.tensor_label(tensor)!r} to {cluster.names[target]} is sent at {transfers.start_us[k]} and "
                f"received from {transfers.receive_us[k]} us; with {cluster.comm} transfers that is {start} and {receive}"
            )
            yield Violation("transfer", message, target, float(transfers.start_us[k]))


def _service_order(
    graph: OpGraph, cluster: Cluster, timeline: Timeline, produced_us: Floats, no_time: NDArray[np.bool_]
) -> list[int]:
    """Returns transfer rows in the order in which their requests were served: by production time, producer, tensor and target.

    Ops without duration may start each other within one instant. Their requests are served in the order in which the ops
    ran, which depends on the scheduler. For them the order is read from the queues themselves.
    """
    transfers = timeline.transfers
    order = np.lexsort(
        (transfers.target, transfers.tensor, graph.tensor_producer[transfers.tensor], no_time, produced_us)
    )
    if cluster.comm == "parallel":
        return [int(k) for k in order]
    change = np.flatnonzero((np.diff(produced_us[order]) != 0) | (np.diff(no_time[order]) != 0)) + 1
    service_order: list[int] = []
    for rows in np.split(order, change):
        service_order += (
            _sort_by_queues(rows, cluster, timeline) if len(rows) > 1 and no_time[rows[0]] else rows.tolist()
        )
    return service_order


def _sort_by_queues(rows: NDArray[np.intp], cluster: Cluster, timeline: Timeline) -> list[int]:
    """Sorts `rows` so that each comes after those before it in a queue; returns them unchanged if no such order exists."""
    transfers = timeline.transfers
    queue_entries: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    receiving = "out" if cluster.comm == "sequential" else "in"
    for k in rows.tolist():
        cost = float(transfers.end_us[k] - transfers.receive_us[k])
        queue_entries["out", int(transfers.source[k])].append((float(transfers.start_us[k]), cost, k))
        queue_entries[receiving, int(transfers.target[k])].append((float(transfers.receive_us[k]), cost, k))
    predecessors: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(rows.tolist(), ()))
    for queue in queue_entries.values():
        for (_, _, first), (_, _, second) in pairwise(sorted(queue)):
            predecessors.add(second, first)
    try:
        return list(predecessors.static_order())
    except CycleError:
        return [int(k) for k in rows]
