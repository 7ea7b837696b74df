"""The pipeline stages of a layout: their blocks, with the times and bytes of one rank, and their buckets of gradients.

Layouts of one model on one cluster have many parts in common. `StageCosts` computes the costs of equal parts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import InvalidInput
from ..graph import Cluster
from ..graph.collectives import Collectives
from ..graph.hardware import Hardware
from ..graph.layout import Layout
from ..passes.data_parallel import Bucket
from .kernel_times import Efficiency, PartTimes
from .rank_costs import PartCosts, RankCosts, StageDevice, make_part, rank_layout, slowest_device
from .rank_ops import HALF, Part, Storage
from .transformer import Transformer

BUCKET_BYTES = 500_000_000
"""Bytes of gradients that are reduced together, if the reduction overlaps with the backward pass."""

MOST_BUCKETS = 8
"""Most buckets per pipeline stage, unless their size is given or parameters are gathered block by block."""


@dataclass(frozen=True)
class StepOptions:
    """Options of a step that are not part of its layout.

    Args:
        precision: storage of numbers, and kernels of attention and loss.
        overlap: whether gradients are reduced as soon as their backward ops have run, or after all backward ops.
        overlap_gather: with zero 1, whether updated parameters are gathered beside the next step's forward ops, or before the
            step ends.
        overlap_tensor: whether collectives of tensor parallelism run beside gradients of weights, unless the schedule computes
            these separately.
        overlap_products: whether collectives of sequence parallelism are divided into pieces that run beside the pieces of the
            products that read or write their tensors.
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
    overlap_gather: bool = False
    overlap_tensor: bool = False
    overlap_products: bool = False
    prefetch: int = 1
    bucket_bytes: int | None = None
    overhead_bytes: int = 0
    reserve_share: float = 0.0
    efficiency: Efficiency | None = None
    hardware: Hardware | None = None

    def efficiency_of(self, hardware: Hardware) -> Efficiency:
        """Returns the shares and times of devices with that hardware."""
        return self.efficiency or Efficiency.of(hardware)


@dataclass(frozen=True)
class Segment:
    """`count` equal blocks of one pipeline stage, which run one after the other; or its embedding, or its output layer.

    A stage without blocks has a segment whose `count` is 0.
    """

    name: str
    costs: PartCosts
    count: int
    parameters: int
    expert_parameters: int

    @property
    def forward_temp_bytes(self) -> int:
        """Temporary bytes of the forward pass."""
        return self.costs.part.transient_bytes if self.count else 0

    @property
    def backward_temp_bytes(self) -> int:
        """Temporary bytes of the backward pass with recomputation."""
        return self.costs.transient_bytes if self.count else 0


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


def segment_buckets(
    parameters: int,
    expert_parameters: int,
    layout: Layout,
    precision: Storage,
    name: str,
    forward: int,
    backward: tuple[int, ...],
    update: int,
    rank: int = 0,
) -> list[Bucket]:
    """Returns the buckets of a segment: of the parameters that all copies hold, and of experts."""
    copies = layout.dp * layout.cp
    buckets = []
    for label, count, holders, axis in (
        ("", parameters, copies, "dp+cp"),
        ("/experts", expert_parameters, max(copies // layout.ep, 1), "edp"),
    ):
        if count:
            reduced_bytes = (precision.reduced_bytes or precision.gradient_bytes) * count
            gradient_bytes = (precision.gradient_bytes + precision.extra_gradient_bytes) * count
            sizes = HALF * count, reduced_bytes, gradient_bytes, precision.state_bytes * count
            buckets.append(Bucket(f"{name}{label}", forward, backward, update, *sizes, holders, axis, rank))
    return buckets


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Makes the stages of layouts of one model on one cluster.

    Args:
        model, cluster: what is divided, and over which devices.
        sequence_length: number of tokens of a sequence.
        options: options of the step that all layouts share.
        collectives: costs of collectives on `cluster`.
    """

    model: Transformer
    cluster: Cluster
    sequence_length: int
    options: StepOptions
    collectives: Collectives
    _devices: dict[range, StageDevice] = field(default_factory=dict, repr=False)
    _parts: dict[tuple[object, ...], tuple[Part, tuple[PartTimes, PartTimes]]] = field(default_factory=dict, repr=False)
    _costs: dict[tuple[object, ...], PartCosts] = field(default_factory=dict, repr=False)

    def devices(self, layout: Layout) -> list[StageDevice]:
        """Returns the slowest of the devices that are one device of the pipeline, for each of them."""
        width = layout.tp * layout.cp * layout.dp
        groups = [range(d * width, (d + 1) * width) for d in range(layout.pp)]
        for group in groups:
            if group not in self._devices:
                self._devices[group] = slowest_device(self.cluster, group, self.options.hardware)
        return [self._devices[group] for group in groups]

    def different_groups(self, layout: Layout, axis: str) -> list[range]:
        """Returns the groups of `axis` that differ in their links; none if a group is one device."""
        return self.collectives.different_groups(layout, axis, 0, layout.devices)

    def collective_us(self, layout: Layout, kind: str, axis: str, size_bytes: float) -> float:
        """Returns the microseconds of a collective on the slowest devices of the pipeline."""
        groups = self.different_groups(layout, axis)
        return max((self.collectives.us(kind, size_bytes, group) for group in groups), default=0.0)

    def stages(self, layout: Layout, devices: Sequence[StageDevice]) -> list[list[Segment]]:
        """Returns the segments of every stage."""
        model = self.model
        counts = stage_blocks(layout, model.layers)
        costs_of_device = [self._part_costs(layout, d, devices[d]) for d in range(layout.pp)]
        stages: list[list[Segment]] = []
        first_block = 0
        for s, count in enumerate(counts):
            costs = costs_of_device[stage_device(layout, s)]
            segments = [_segment("embedding", costs["embedding"], 1)] if s == 0 else []
            block = costs["dense"].part
            for chunk in _chunks(layout, self.options, block.parameters + block.expert_parameters, count):
                dense = min(max(model.dense_layers - first_block, 0), chunk) if model.experts else chunk
                is_mixed = 0 < dense < chunk
                if dense:
                    suffix = "/dense" if is_mixed else ""
                    segments.append(_segment(f"blocks{first_block}{suffix}", costs["dense"], dense))
                if dense < chunk:
                    suffix = "/experts" if is_mixed else ""
                    segments.append(_segment(f"blocks{first_block}{suffix}", costs["experts"], chunk - dense))
                first_block += chunk
            if s == len(counts) - 1:
                segments.append(_segment("head", costs["head"], 1))
            if not segments:  # a stage without blocks passes on what it receives
                segments.append(_segment(f"blocks{first_block}", costs["dense"], 0))
            stages.append(segments)
        if not model.tied or stage_device(layout, len(stages) - 1):  # a tied table has a copy on another device
            last = stages[-1][-1]
            table = model.vocabulary_share(layout.tp) * model.embedding_size
            stages[-1][-1] = replace(last, parameters=last.parameters + table)
        return stages

    def _part_costs(self, layout: Layout, index: int, device: StageDevice) -> dict[str, PartCosts]:
        """Returns the costs of every part by its name, on device `index` of the pipeline. Equal parts share them."""
        rank = RankCosts(
            layout,
            device.hardware,
            self.options.efficiency_of(device.hardware),
            self.collectives,
            first_device(layout, index),
            self.options.overlap_tensor and not layout.schedule.startswith("zb"),
            self.options.overlap_products,
            device.speed,
        )
        tensor_links, context_links, expert_links = (
            frozenset(map(self.collectives.levels, rank.groups_of(axis))) for axis in ("tp", "cp", "ep")
        )
        sizes = layout.tp, layout.cp, layout.micro_batch, layout.sequence_parallel
        common = (
            *sizes,
            device.hardware.name,
            device.speed,
            rank.overlap_tensor,
            rank.overlap_products,
            tensor_links,
            context_links,
        )
        keys: dict[str, tuple[object, ...]] = {name: (name, *common) for name in ("embedding", "dense", "head")}
        if self.model.experts:
            keys["experts"] = "experts", *common, layout.ep, expert_links
        costs = {}
        for name, key in keys.items():
            recompute = layout.recompute if name in ("dense", "experts") else "none"
            costs_key = *key, recompute, layout.zero >= 2
            if key not in self._parts:
                part = make_part(name, self.model, rank_layout(layout), self.sequence_length, self.options.precision)
                self._parts[key] = part, rank.pass_times(part)
            if costs_key not in self._costs:
                part, pass_times = self._parts[key]
                self._costs[costs_key] = rank.costs_of(part, recompute, pass_times)
            costs[name] = self._costs[costs_key]
        return costs


def first_device(layout: Layout, device: int) -> int:
    """Returns the first device of the cluster that is one device of the pipeline."""
    return device * layout.tp * layout.cp * layout.dp


def _segment(name: str, costs: PartCosts, count: int) -> Segment:
    return Segment(name, costs, count, count * costs.part.parameters, count * costs.part.expert_parameters)


def _chunks(layout: Layout, options: StepOptions, block_parameters: int, count: int) -> list[int]:
    """Returns the numbers of blocks that form one op: 1 if parameters are gathered, else those of one bucket."""
    if count == 0:
        return []
    if layout.zero >= 2 and layout.dp * layout.cp > 1:
        return [1] * count
    if layout.dp * layout.cp == 1 or not (options.overlap or (options.overlap_gather and layout.zero == 1)):
        return [count]
    bytes_of_block = options.precision.gradient_bytes * block_parameters
    max_buckets = MOST_BUCKETS if options.bucket_bytes is None else count
    buckets = min(max(count * bytes_of_block // (options.bucket_bytes or BUCKET_BYTES), 1), max_buckets, count)
    return [count // buckets + (k < count % buckets) for k in range(buckets)]
