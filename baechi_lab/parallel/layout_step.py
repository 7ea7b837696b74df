"""The graph of a layout: one micro-batch of one rank of every pipeline stage, with its collectives.

All ranks of a stage do the same, so a stage is one device with the memory of one rank. Blocks of a stage that share a bucket of
gradients are one op of the forward pass and one of the backward pass (two if the schedule separates gradients of weights).
Their times are those of their kernels and of the collectives in them (`kernel_times.part_times`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from ..errors import InvalidInput
from ..graph import CONTROL_BYTES, Cluster, Device, Link, OpGraph, Placement, Timeline
from ..graph.collectives import Collectives
from ..graph.hardware import Hardware
from ..graph.layout import Layout
from ..graph.tensors import TensorTable
from ..passes.data_parallel import Bucket, divide_data
from ..simulator.simulation import makespan_and_peak, simulate
from .kernel_times import Efficiency
from .rank_costs import PartCosts, RankCosts, hardware_of, make_parts, rank_layout
from .rank_ops import HALF, Part, Storage
from .transformer import Transformer

BUCKET_BYTES = 500_000_000
"""Bytes of gradients that are reduced together, if the reduction overlaps with the backward pass."""

MOST_BUCKETS = 8
"""Most buckets per pipeline stage, unless their size is given or parameters are gathered block by block."""

UPDATE_BYTES = 30
"""Bytes that Adam reads and writes per parameter, besides the gradient: the float32 copy and two moments, which are also
written, and the half-precision copy."""

UPDATE = "Update"


@dataclass(frozen=True)
class StepOptions:
    """Options of a step that are not part of its layout.

    Args:
        precision: storage of numbers, and kernels of attention and loss.
        overlap: whether gradients are reduced as soon as their backward ops have run, or after all backward ops.
        prefetch: with zero 3, the number of blocks that are gathered ahead.
        bucket_bytes: bytes of gradients that are reduced together, in whole blocks; None: `BUCKET_BYTES`, or more if a stage
            would otherwise have more than `MOST_BUCKETS` buckets.
        overhead_bytes: bytes that a device holds besides tensors: context of the framework, buffers of collectives.
        reserve_share: bytes that the allocator reserves in addition, as a share of the tensors' bytes.
        efficiency: shares that kernels, links and hosts reach; None: the constants of the hardware.
        hardware: hardware of all devices; None: that of their kinds.
    """

    precision: Storage = field(default_factory=Storage)
    overlap: bool = True
    prefetch: int = 1
    bucket_bytes: int | None = None
    overhead_bytes: int = 0
    reserve_share: float = 0.0
    efficiency: Efficiency | None = None
    hardware: Hardware | None = None


@dataclass(frozen=True)
class Segment:
    """`count` equal blocks of one pipeline stage, which run one after the other; or its embedding, or its output layer."""

    name: str
    costs: PartCosts
    count: int
    parameters: int
    expert_parameters: int


def stage_blocks(layout: Layout, layers: int) -> tuple[int, ...]:
    """Returns the number of blocks of every pipeline stage: `stage_layers`, or an even split with more in the middle.

    >>> stage_blocks(Layout(pp=4), 10)
    (2, 3, 3, 2)
    """
    if layout.stage_layers is not None:
        if sum(layout.stage_layers) != layers:
            raise InvalidInput(
                f"stage_layers is {layout.stage_layers}; they must add up to the model's {layers} layers"
            )
        if layout.stages != layout.pp:
            raise InvalidInput(
                f"stage_layers is given and schedule is {layout.schedule!r}; give it with one stage per device"
            )
        return layout.stage_layers
    stages = layout.stages
    if stages > layers:
        raise InvalidInput(
            f"pp is {layout.pp}; the schedule {layout.schedule!r} makes {stages} stages of {layers} layers"
        )
    counts = [layers // stages] * stages
    middle = sorted(range(stages), key=lambda k: abs(k - (stages - 1) / 2))
    for k in middle[: layers % stages]:
        counts[k] += 1
    return tuple(counts)


def stage_device(layout: Layout, stage: int) -> int:
    """Returns the pipeline's device of a stage: stages go around in rounds, or forth and back for zb-v."""
    if layout.schedule == "zb-v" and layout.pp > 1:
        return stage if stage < layout.pp else 2 * layout.pp - 1 - stage
    return stage % layout.pp


@dataclass(frozen=True, eq=False)
class LayoutStep:
    """The step of a layout: the `graph` of one micro-batch on `cluster`, which has one device per pipeline stage's ranks.

    `stage_us` float64[pp, 2]: forward and backward time of a micro-batch on every device.
    """

    model: Transformer
    layout: Layout
    graph: OpGraph
    cluster: Cluster
    placement: Placement
    micro_batches: int
    overhead_bytes: int
    reserve_share: float
    stage_us: np.ndarray
    compute_us: float
    tensor_us: float

    def simulate(self) -> Timeline:
        """Returns the timeline of the whole step."""
        return simulate(
            self.graph, self.cluster, self.placement, micro_batches=self.micro_batches, schedule=self.layout.schedule
        )

    @cached_property
    def lower_bound_us(self) -> float:
        """A lower bound under any schedule: the first micro-batch reaches a device, which computes all; the last one leaves."""
        total = self.stage_us.sum(axis=1)
        ahead = self.stage_us[:, 0] if self.layout.schedule.startswith("zb") else total  # gradients of weights can wait
        before = np.cumsum(ahead) - ahead
        if self.layout.stages > self.layout.pp:
            before = np.zeros_like(total)
        collective = self.graph.on_communication_lane
        lane = np.bincount(self.placement.device[collective], self.graph.duration_us[collective], self.cluster.n)
        lane *= self.micro_batches if self.layout.zero >= 2 else 1
        return float(max((before + self.micro_batches * total).max(), lane.max()))

    @cached_property
    def least_bytes(self) -> int:
        """A lower bound on the peak of the fullest device: its persistent bytes, and one micro-batch's activations.

        Under 1F1B and schedules that send equally early, stage `s` of `pp` holds the activations of `pp - s` micro-batches.
        """
        graph, device = self.graph, self.placement.device
        resident = np.bincount(device, graph.persistent_bytes, self.cluster.n)
        saved = np.array([name == "saved" for name in graph.tensor_names])
        owner = device[graph.tensor_producer]
        activations = np.bincount(owner[saved], graph.tensor_bytes[saved], self.cluster.n)
        in_flight = np.ones(self.cluster.n)
        if self.layout.schedule in ("1f1b", "zb-h1", "zb-h2"):
            in_flight = np.minimum(np.arange(self.cluster.n, 0, -1), self.micro_batches)
        elif self.layout.schedule == "gpipe":
            in_flight = np.full(self.cluster.n, self.micro_batches)
        return self._reserved(float((resident + in_flight * activations).max()))

    def _reserved(self, tensor_bytes: float) -> int:
        """Returns the bytes of a device whose tensors have `tensor_bytes`, with overhead and reserve."""
        return int(tensor_bytes * (1.0 + self.reserve_share)) + self.overhead_bytes

    @cached_property
    def makespan_and_peak(self) -> tuple[float, int]:
        """The step in microseconds, and the bytes of the fullest device with its overhead.

        Only some of many micro-batches are simulated. From twice the depth of the pipeline on, every further round of the
        pipeline takes as long as the last one, and adds as many bytes (0, except for schedules that hold all micro-batches).
        """
        depth = self.layout.stages
        first = 2 * depth + 1 if depth > 1 else 2
        step = self.layout.pp if depth > 1 else 1
        first = -(-first // step) * step if depth > self.layout.pp else first
        rounds = (self.micro_batches - first) // step
        if rounds <= 2:
            us, peak = self._run(self.micro_batches)
        else:
            extra_micro_batches = (self.micro_batches - first) % step
            first += extra_micro_batches
            one, peak = self._run(first)
            two, later = self._run(first + step)
            us, peak = one + (two - one) * rounds, np.maximum(peak, later + (later - peak) * (rounds - 1))
        return us, self._reserved(float(peak.max()))

    def _run(self, micro_batches: int) -> tuple[float, np.ndarray]:
        return makespan_and_peak(
            self.graph, self.cluster, self.placement, micro_batches=micro_batches, schedule=self.layout.schedule
        )


def make_layout_step(
    model: Transformer,
    layout: Layout,
    cluster: Cluster,
    global_batch: int,
    sequence_length: int,
    options: StepOptions,
    collectives: Collectives,
) -> LayoutStep:
    """Builds the step of a layout that is legal (`layouts.why_illegal`)."""
    micro_batches = global_batch // (layout.micro_batch * layout.dp)
    counts = stage_blocks(layout, model.layers)
    stages, hardwares = _stage_segments(model, layout, cluster, counts, sequence_length, options, collectives)
    size = next((segment.costs.part.output_bytes for segment in stages[0] if segment.costs.part.output_bytes), 0)
    border_us = 0.0 if layout.sequence_parallel else collectives.us("all_gather", size, layout.axis_devices("tp"))
    writer = _StepWriter(layout, options, border_us)
    for s, segments in enumerate(stages):
        writer.add_forward(s, segments, hardwares[stage_device(layout, s)])
    writer.add_backward()
    writer.add_updates(hardwares, model, collectives)
    graph, device = writer.graph(model.name)
    rank = [
        RankCosts(layout, hardware, _efficiency(options, hardware), collectives, _first_device(layout, d))
        for d, hardware in enumerate(hardwares)
    ]

    @cache
    def collective_us(kind: str, axis: str, size: float) -> float:
        return max(r.collective_us(kind, axis, size) for r in rank)

    gather_us = _efficiency(options, hardwares[0]).gather_us if layout.zero >= 2 else 0.0
    graph = divide_data(
        graph,
        writer.buckets,
        collective_us,
        zero=layout.zero,
        overlap=options.overlap,
        prefetch=options.prefetch,
        gather_us=gather_us,
    )
    device = np.concatenate([device, writer.devices_of_added(graph)])
    costs = [
        [segment for s, segments in enumerate(stages) if stage_device(layout, s) == d for segment in segments]
        for d in range(layout.pp)
    ]
    return LayoutStep(
        model=model,
        layout=layout,
        graph=graph,
        cluster=_group_cluster(layout, cluster, hardwares, options, collectives),
        placement=Placement(device=device.astype(np.int32)),
        micro_batches=micro_batches,
        overhead_bytes=options.overhead_bytes,
        reserve_share=options.reserve_share,
        stage_us=np.array([writer.device_us(d) for d in range(layout.pp)]),
        compute_us=max(
            sum(p.count * (p.costs.forward.compute_us + p.costs.backward.compute_us) for p in segments)
            for segments in costs
        ),
        tensor_us=max(
            sum(p.count * (t.device_us - t.compute_us) for p in segments for t in (p.costs.forward, p.costs.backward))
            for segments in costs
        ),
    )


def _efficiency(options: StepOptions, hardware: Hardware) -> Efficiency:
    return options.efficiency or Efficiency.of(hardware)


def _first_device(layout: Layout, device: int) -> int:
    return device * layout.tp * layout.cp * layout.dp


def _stage_segments(
    model: Transformer,
    layout: Layout,
    cluster: Cluster,
    counts: Sequence[int],
    sequence_length: int,
    options: StepOptions,
    collectives: Collectives,
) -> tuple[list[list[Segment]], list[Hardware]]:
    """Returns the segments of every stage, and the hardware of every device of the pipeline. Equal stages share costs."""
    width = layout.tp * layout.cp * layout.dp
    hardwares = [hardware_of(cluster, range(d * width, (d + 1) * width), options.hardware) for d in range(layout.pp)]
    shape = rank_layout(layout)
    dense, experts, embedding, head = make_parts(model, shape, sequence_length, options.precision)
    costed: dict[tuple[str, str, tuple[int, ...]], PartCosts] = {}
    first_groups = [layout.axis_devices(axis) for axis in ("tp", "cp", "ep")]
    stages: list[list[Segment]] = []
    first_block = 0
    for s, count in enumerate(counts):
        d = stage_device(layout, s)
        rank = RankCosts(
            layout, hardwares[d], _efficiency(options, hardwares[d]), collectives, _first_device(layout, d)
        )

        groups = [rank.devices_of(axis) for axis in ("tp", "cp", "ep")]
        same = all(map(collectives.same_links, groups, first_groups))

        def cost(
            model_part: Part, recompute: str = "none", rank: RankCosts = rank, d: int = d, same: bool = same
        ) -> PartCosts:
            key = (f"{model_part.name}/{model_part is experts}", hardwares[d].name, () if same else (d,))
            if key not in costed:
                costed[key] = rank.costs_of(model_part, recompute)
            return costed[key]

        segments: list[Segment] = []
        if s == 0:
            segments.append(_segment("embedding", cost(embedding), 1))
        for chunk in _chunks(layout, options, dense, count):
            kinds = [model.has_experts(first_block + k) for k in range(chunk)]
            for has_experts in (False, True):
                if has_experts in kinds:
                    block = experts if has_experts and experts is not None else dense
                    suffix = "" if len(set(kinds)) == 1 else ("/experts" if has_experts else "/dense")
                    costs, name = cost(block, layout.recompute), f"blocks{first_block}{suffix}"
                    segments.append(_segment(name, costs, kinds.count(has_experts)))
            first_block += chunk
        if s == len(counts) - 1:
            segments.append(_segment("head", cost(head), 1))
        stages.append(segments)
    if not model.tied or stage_device(layout, len(stages) - 1):  # a tied table has a copy on another device
        last = stages[-1][-1]
        table = model.vocabulary_share(layout.tp) * model.embedding_size
        stages[-1][-1] = replace(last, parameters=last.parameters + table)
    return stages, hardwares


def _segment(name: str, costs: PartCosts, count: int) -> Segment:
    return Segment(name, costs, count, count * costs.part.parameters, count * costs.part.expert_parameters)


def _chunks(layout: Layout, options: StepOptions, block: Part, count: int) -> list[int]:
    """Returns the numbers of blocks that form one op: 1 if parameters are gathered, else those of one bucket."""
    if count == 0:
        return []
    if layout.zero >= 2 and layout.dp * layout.cp > 1:
        return [1] * count
    if layout.dp * layout.cp == 1 or not options.overlap:
        return [count]
    bytes_of_block = options.precision.gradient_bytes * (block.parameters + block.expert_parameters)
    max_buckets = MOST_BUCKETS if options.bucket_bytes is None else count
    buckets = min(max(count * bytes_of_block // (options.bucket_bytes or BUCKET_BYTES), 1), max_buckets, count)
    return [count // buckets + (k < count % buckets) for k in range(buckets)]


def _group_cluster(
    layout: Layout, cluster: Cluster, hardwares: Sequence[Hardware], options: StepOptions, collectives: Collectives
) -> Cluster:
    """Makes a cluster with one device per pipeline stage, and the links between ranks of neighbouring stages."""
    width = layout.tp * layout.cp * layout.dp
    devices, names = [], cluster.names
    for d in range(layout.pp):
        group = range(d * width, (d + 1) * width)
        memory = min(int(cluster.memory_bytes[k]) for k in group) - options.overhead_bytes
        speed = min(float(cluster.speed[k]) for k in group)
        name = names[group[0]] if width == 1 else f"{names[group[0]]}..{names[group[-1]]}"
        devices.append(Device(name, hardwares[d].name, max(int(memory / (1.0 + options.reserve_share)), 0), speed))

    def link(a: int, b: int) -> Link:
        latency, per_byte = collectives.pair_cost(a * width, b * width)
        return Link(latency, per_byte)

    links = [[link(a, b) if a != b else Link(0.0, 0.0) for b in range(layout.pp)] for a in range(layout.pp)]
    return Cluster(tuple(devices), links, comm="duplex")


class _StepWriter:
    """Collects ops, tensors and buckets of a step.

    `border_us`: the time in which ranks with equal tensors gather the shares that they received from the previous stage.
    """

    def __init__(self, layout: Layout, options: StepOptions, border_us: float) -> None:
        self.layout, self.options, self.border_us = layout, options, border_us
        self.splits = layout.schedule.startswith("zb")
        self.names: list[str] = []
        self.types: list[str] = []
        self.us: list[float] = []
        self.temp: list[int] = []
        self.persistent: list[int] = []
        self.forward_of: list[int] = []
        self.device: list[int] = []
        self.table = TensorTable()
        self.segments: list[tuple[int, Segment, float]] = []  # stage, segment, microseconds of the host for the stage
        self.backward: list[tuple[int, ...]] = []
        self.buckets: list[Bucket] = []

    def _add(self, name: str, op_type: str, us: float, stage: int, temp: int = 0, forward_of: int = -1) -> int:
        self.names.append(name)
        self.types.append(op_type)
        self.us.append(us)
        self.temp.append(temp)
        self.persistent.append(0)
        self.forward_of.append(forward_of)
        self.device.append(stage_device(self.layout, stage))
        return len(self.names) - 1

    def add_forward(self, stage: int, segments: Sequence[Segment], hardware: Hardware) -> None:
        """Add the forward ops of a stage, after those of the previous stage."""
        host_us = _efficiency(self.options, hardware).stage_us
        for k, segment in enumerate(segments):
            costs = segment.costs
            us = segment.count * costs.forward.us + (host_us if k == 0 else 0.0)
            op = self._add(f"stage{stage}/{segment.name}", "Forward", us, stage, costs.part.transient_bytes)
            if op:
                before, border = self.segments[-1][1].costs.part, self.segments[-1][0] != stage
                self.us[op] += self.border_us if border else 0.0
                self.table.add(op - 1, "activation", self._sent_bytes(before.output_bytes, border), [op])
            self.segments.append((stage, segment, host_us))

    def _sent_bytes(self, size: int, border: bool) -> int:
        """Returns the bytes that each rank sends to the next stage: a share, if all ranks of a group have the same tensor."""
        is_divided = border and not self.layout.sequence_parallel
        return -(-size // self.layout.tp) if is_divided else size

    def add_backward(self) -> None:
        """Add the backward ops in reverse, with separate gradients of weights if the schedule requires them."""
        count = len(self.segments)
        self.backward = [()] * count
        after = -1
        for k in reversed(range(count)):
            stage, segment, host_us = self.segments[k]
            costs = segment.costs
            last = k == count - 1 or self.segments[k + 1][0] != stage
            us = segment.count * costs.backward.us + (host_us if last else 0.0)
            input_us = segment.count * costs.backward.input_us + (host_us if last else 0.0)
            input_us = min(input_us, us) if self.splits else us
            op = self._add(f"{self.names[k]}/backward", "Backward", input_us, stage, costs.transient_bytes, k)
            if after >= 0:
                self.us[op] += self.border_us if last else 0.0
                self.table.add(after, "gradient", self._sent_bytes(segment.costs.part.output_bytes, last), [op])
            else:
                self.table.add(k, "loss", CONTROL_BYTES, [op])
            readers = [op]
            if self.splits and us > input_us:
                weights = self._add(f"{self.names[k]}/weights", "BackwardWeights", us - input_us, stage, 0, k)
                self.table.add(op, "order", CONTROL_BYTES, [weights])
                readers.append(weights)
            # A stage keeps the tensor that it receives, so a segment's saved input is not counted twice.
            saved = segment.count * costs.saved_bytes
            self.table.add(k, "saved", max(saved, 0), readers)
            self.backward[k] = tuple(readers)
            after = op

    def add_updates(self, hardwares: Sequence[Hardware], model: Transformer, collectives: Collectives) -> None:
        """Add one update per stage and the bytes of its parameters; gradients of a shared table are added up."""
        precision, layout = self.options.precision, self.layout
        stages = sorted({stage for stage, _, _ in self.segments})
        updates: dict[int, int] = {}
        hold = layout.dp * layout.cp
        for stage in stages:
            hardware = hardwares[stage_device(layout, stage)]
            efficiency = _efficiency(self.options, hardware)
            own_segments = [k for k, (s, _, _) in enumerate(self.segments) if s == stage]
            bandwidth = hardware.bandwidth * efficiency.bandwidth_share
            rate = (UPDATE_BYTES + 2 * precision.gradient_bytes) / bandwidth * 1e6
            dense = sum(self.segments[k][1].parameters for k in own_segments)
            experts = sum(self.segments[k][1].expert_parameters for k in own_segments)
            us = rate * (dense + experts)  # `divide_data` leaves a share of it with ZeRO
            update = self._add(f"stage{stage}/update", UPDATE, us, stage)
            updates[stage] = update
            for k in own_segments:
                for op in self.backward[k]:
                    self.table.add(op, "order", CONTROL_BYTES, [update])
        for k, (stage, segment, _) in enumerate(self.segments):
            reduced = HALF if layout.zero >= 2 else precision.gradient_bytes
            for label, parameters, copies, axis in (
                ("", segment.parameters, hold, "dp+cp"),
                ("/experts", segment.expert_parameters, max(hold // layout.ep, 1), "edp"),
            ):
                if not parameters:
                    continue
                gradient_bytes = (precision.gradient_bytes + precision.extra_gradient_bytes) * parameters
                self.persistent[k] += parameters * (HALF + precision.state_bytes) + gradient_bytes
                bucket_ops = f"{self.names[k]}{label}", k, self.backward[k], updates[stage]
                reduced_bytes, state_bytes = reduced * parameters, precision.state_bytes * parameters
                sizes = HALF * parameters, reduced_bytes, gradient_bytes, state_bytes
                self.buckets.append(Bucket(*bucket_ops, *sizes, copies, axis))
        if model.tied and layout.pp > 1:
            self._reduce_table(model, collectives, updates, stages)

    def _reduce_table(
        self, model: Transformer, collectives: Collectives, updates: dict[int, int], stages: Sequence[int]
    ) -> None:
        """Add the all-reduce of the embedding table's gradients between the first and the last stage, which both have it."""
        layout = self.layout
        first, last = stages[0], stages[-1]
        size = self.options.precision.gradient_bytes * model.vocabulary_share(layout.tp) * model.embedding_size
        width = layout.tp * layout.cp * layout.dp
        end_devices = stage_device(layout, first), stage_device(layout, last)
        if end_devices[0] == end_devices[1]:
            return
        us = collectives.us("all_reduce", size, [end_devices[0] * width, end_devices[1] * width])
        for stage in (first, last):
            op = self._add(f"stage{stage}/tied_embedding/all_reduce", "all_reduce", us, stage)
            for end in (0, len(self.segments) - 1):
                self.table.add(self.backward[end][-1], "order", CONTROL_BYTES, [op])
            self.table.add(op, "order", CONTROL_BYTES, [updates[stage]])

    def device_us(self, device: int) -> tuple[float, float]:
        """Returns forward and backward microseconds of one micro-batch on a device of the pipeline."""
        ops = [(us, t) for us, t, d in zip(self.us, self.types, self.device, strict=True) if d == device]
        return sum(us for us, t in ops if t == "Forward"), sum(us for us, t in ops if t.startswith("Backward"))

    def graph(self, name: str) -> tuple[OpGraph, np.ndarray]:
        graph = OpGraph(
            names=tuple(self.names),
            op_types=tuple(self.types),
            duration_us=np.array(self.us),
            temp_bytes=np.array(self.temp, dtype=np.int64),
            persistent_bytes=np.array(self.persistent, dtype=np.int64),
            forward_of=np.array(self.forward_of, dtype=np.int32),
            name=f"{name}, {self.layout!r}",
            **self.table.columns(),
        )
        return graph, np.array(self.device, dtype=np.int32)

    def devices_of_added(self, graph: OpGraph) -> np.ndarray:
        """Returns the devices of the collectives that data parallelism added: those of their bucket's segments."""
        device_of = {name: self.device[k] for k, name in enumerate(self.names[: len(self.segments)])}
        devices = []
        for name in graph.names[len(self.names) :]:
            stem = name
            while stem not in device_of:
                stem = stem.rsplit("/", 1)[0]
            devices.append(device_of[stem])
        return np.array(devices, dtype=np.int32)
