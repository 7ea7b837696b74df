"""The step of a layout: its bounds, which need no graph, and its simulation.

All ranks of a stage do the same, so a stage is one device with the memory of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise

import numpy as np

from ..graph import Cluster, Device, Link, OpGraph, Placement, Timeline
from ..graph.layout import Layout
from ..passes.data_parallel import divide_data
from ..simulator.simulation import makespan_and_peak, simulate
from .layout_graph import StepWriter
from .layout_stages import Segment, StageCosts, StepOptions, first_device, segment_buckets, stage_device
from .rank_costs import StageDevice
from .transformer import Transformer


@dataclass(frozen=True, eq=False)
class LayoutStep:
    """The step of a layout.

    Args:
        costs: the model, the cluster and its collectives.
        stages: the segments of every pipeline stage.
        devices: the slowest device of every group that is one device of the pipeline.
        micro_batches: the number of micro-batches of a step.
    """

    costs: StageCosts
    layout: Layout
    stages: Sequence[Sequence[Segment]]
    devices: Sequence[StageDevice]
    micro_batches: int

    @property
    def model(self) -> Transformer:
        return self.costs.model

    @property
    def options(self) -> StepOptions:
        return self.costs.options

    def simulate(self) -> Timeline:
        """Returns the timeline of the whole step."""
        return simulate(
            self.graph, self.cluster, self.placement, micro_batches=self.micro_batches, schedule=self.layout.schedule
        )

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster of the pipeline: one device per stage's ranks, and the links between ranks of neighbouring stages.

        Times of ops contain the speed of devices, which divides kernels alone; here it is 1.
        """
        layout, options, collectives = self.layout, self.options, self.costs.collectives
        width = layout.tp * layout.cp * layout.dp
        cluster = collectives.cluster
        devices, names = [], cluster.names
        for d in range(layout.pp):
            group = range(d * width, (d + 1) * width)
            memory = min(int(cluster.memory_bytes[k]) for k in group) - options.overhead_bytes
            name = names[group[0]] if width == 1 else f"{names[group[0]]}..{names[group[-1]]}"
            devices.append(
                Device(name, self.devices[d].hardware.name, max(int(memory / (1.0 + options.reserve_share)), 0))
            )

        def link(a: int, b: int) -> Link:
            latency, per_byte = collectives.pair_cost(a * width, b * width)
            return Link(latency, per_byte)

        links = [[link(a, b) if a != b else Link(0.0, 0.0) for b in range(layout.pp)] for a in range(layout.pp)]
        return Cluster(tuple(devices), links, comm="duplex")

    @cached_property
    def graph(self) -> OpGraph:
        """The graph of one micro-batch."""
        return self._graph_and_placement[0]

    @cached_property
    def placement(self) -> Placement:
        """The devices of the graph's ops in `cluster`."""
        return self._graph_and_placement[1]

    @cached_property
    def _graph_and_placement(self) -> tuple[OpGraph, Placement]:
        layout, options = self.layout, self.options
        writer = StepWriter(layout, options, self._border_us)
        for s, segments in enumerate(self.stages):
            writer.add_forward(s, segments, self.devices[stage_device(layout, s)].hardware)
        writer.add_backward()
        writer.add_updates(self.devices, self._table_us)
        graph, device = writer.graph(self.model.name)
        graph = divide_data(
            graph,
            writer.buckets,
            self._collective_us,
            zero=layout.zero,
            overlap=options.overlap,
            overlap_gather=options.overlap_gather,
            prefetch=options.prefetch,
            gather_us=self._gather_us,
        )
        device = np.concatenate([device, writer.devices_of_added(graph)])
        return graph, Placement(device=device.astype(np.int32))

    @cached_property
    def _collective_us(self) -> Callable[[str, str, float], float]:
        return cache(partial(self.costs.collective_us, self.layout))

    @property
    def _gather_us(self) -> float:
        return self.options.efficiency_of(self.devices[0].hardware).gather_us if self.layout.zero >= 2 else 0.0

    @cached_property
    def _border_us(self) -> float:
        """Time in which ranks with equal tensors gather the shares that they received from the previous stage."""
        layout, sizes = self.layout, [segment.costs.part.output_bytes for segment in self.stages[0]]
        size = next((size for size in sizes if size), 0)
        if layout.sequence_parallel:
            return 0.0
        return self.costs.collectives.us("all_gather", size, layout.axis_range("tp"))

    @cached_property
    def _table_us(self) -> float:
        """Time of the all-reduce of a tied table's gradients, if the first and the last stage are on different devices."""
        layout, model = self.layout, self.model
        last = stage_device(layout, layout.stages - 1)
        if not model.tied or not last:
            return 0.0
        size = self.options.precision.gradient_bytes * model.vocabulary_share(layout.tp) * model.embedding_size
        return self.costs.collectives.us("all_reduce", size, (0, first_device(layout, last)))

    @cached_property
    def stage_us(self) -> np.ndarray:
        """Forward and backward microseconds of one micro-batch on every device of the pipeline, float64[pp, 2]."""
        times = np.zeros((self.layout.pp, 2))
        last = len(self.stages) - 1
        for s, segments in enumerate(self.stages):
            d = stage_device(self.layout, s)
            host_us = self.options.efficiency_of(self.devices[d].hardware).stage_us
            forward_us, backward_us = host_us + self._border_us * (s > 0), host_us + self._border_us * (s < last)
            for segment in segments:
                forward_us += segment.count * segment.costs.forward.us
                backward_us += segment.count * segment.costs.backward.us
            times[d] += forward_us, backward_us
        return times

    @cached_property
    def compute_us(self) -> float:
        """Time of the busiest device's kernels in one micro-batch."""
        times = [0.0] * self.layout.pp
        for s, segments in enumerate(self.stages):
            times[stage_device(self.layout, s)] += sum(
                segment.count * (segment.costs.forward.compute_us + segment.costs.backward.compute_us)
                for segment in segments
            )
        return max(times)

    @cached_property
    def device_totals(self) -> np.ndarray:
        """Sums of every device of the pipeline, float64[3, pp].

        They are bytes that are resident during the step, bytes of one micro-batch's activations (and, with zero 2, of the
        parameters that are gathered for it), and microseconds of the collectives that run beside the passes.
        """
        layout, precision = self.layout, self.options.precision

        @cache
        def bucket_totals(parameters: int, expert_parameters: int) -> tuple[int, int, float]:
            buckets = segment_buckets(
                parameters, expert_parameters, layout, precision, name="", forward=0, backward=(), update=0
            )
            lane_us = sum(
                self._collective_us(kind, bucket.axis, size) + (self._gather_us if kind == "all_gather" else 0.0)
                for bucket in buckets
                for kind, size in bucket.collectives(layout.zero)
            )
            gathered_bytes = sum(bucket.parameter_bytes for bucket in buckets if layout.zero == 2 and bucket.copies > 1)
            return sum(bucket.resident_bytes(layout.zero) for bucket in buckets), gathered_bytes, lane_us

        totals = np.zeros((3, layout.pp))
        for s, segments in enumerate(self.stages):
            resident_bytes, saved_bytes, lane_us = 0, 0, self._table_us if s in (0, len(self.stages) - 1) else 0.0
            for segment in segments:
                own_bytes, gathered_bytes, own_us = bucket_totals(segment.parameters, segment.expert_parameters)
                resident_bytes += own_bytes
                lane_us += own_us
                saved_bytes += max(segment.count * segment.costs.saved_bytes, 0) + gathered_bytes
            totals[:, stage_device(layout, s)] += resident_bytes, saved_bytes, lane_us
        return totals

    @cached_property
    def lower_bound_us(self) -> float:
        """A lower bound under any schedule: the first micro-batch reaches a device, which computes all; the last one leaves."""
        total = self.stage_us.sum(axis=1)
        ahead = self.stage_us[:, 0] if self.layout.schedule.startswith("zb") else total  # gradients of weights can wait
        before = np.cumsum(ahead) - ahead
        if self.layout.stages > self.layout.pp:
            before = np.zeros_like(total)
        lane_us = self.device_totals[2] * (self.micro_batches if self.layout.zero >= 2 else 1)
        return float(max((before + self.micro_batches * total).max(), lane_us.max()))

    @cached_property
    def least_bytes(self) -> np.ndarray:
        """Lower bounds on the peaks of the pipeline's devices, int64[pp]: persistent bytes, and one micro-batch's activations.

        Under 1F1B and schedules that send equally early, stage `s` of `pp` holds the activations of `pp - s` micro-batches.
        """
        resident_bytes, activation_bytes, _ = self.device_totals
        in_flight = np.ones(self.layout.pp)
        if self.layout.schedule in ("1f1b", "zb-h1", "zb-h2"):
            in_flight = np.minimum(np.arange(self.layout.pp, 0, -1), self.micro_batches)
        elif self.layout.schedule == "gpipe":
            in_flight = np.full(self.layout.pp, self.micro_batches)
        return self._with_reserve(resident_bytes + in_flight * activation_bytes)

    def _with_reserve(self, tensor_bytes: np.ndarray) -> np.ndarray:
        """Returns the bytes of devices whose tensors have `tensor_bytes`, with overhead and reserve."""
        return (tensor_bytes * (1.0 + self.options.reserve_share)).astype(np.int64) + self.options.overhead_bytes

    def check_links(self) -> None:
        """Raises `MissingLink` if devices that send to each other have no link: of neighbouring stages, of one collective."""
        first_devices = [first_device(self.layout, stage_device(self.layout, s)) for s in range(self.layout.stages)]
        for source, target in pairwise(first_devices):
            self.costs.collectives.check_neighbours(source, target)
        for axis in ("dp+cp", "edp"):
            self.costs.different_groups(self.layout, axis)

    @cached_property
    def memory_bytes(self) -> np.ndarray:
        """Memory of the pipeline's devices, int64[pp]: the smallest of a group, as all of its devices hold as much."""
        return self.costs.cluster.memory_bytes.reshape(self.layout.pp, -1).min(axis=1)

    @cached_property
    def makespan_and_peaks(self) -> tuple[float, np.ndarray]:
        """The step in microseconds, and the peaks of the pipeline's devices with their overhead, int64[pp].

        Only some of many micro-batches are simulated. From twice the depth of the pipeline on, every further round of the
        pipeline takes as long as the last one, and adds at most bytes of control. Other schedules are simulated in full: GPipe's
        peak moves to other ops, and gradients of weights fill the gaps of zero-bubble schedules in another way every round.
        """
        depth = self.layout.stages
        first = 2 * depth + 1 if depth > 1 else 2
        step = self.layout.pp if depth > 1 else 1
        first = -(-first // step) * step if depth > self.layout.pp else first
        rounds = (self.micro_batches - first) // step
        if rounds <= 2 or (depth > 1 and not self.layout.schedule.endswith("1f1b")):
            us, peaks = self._run(self.micro_batches)
        else:
            extra_micro_batches = (self.micro_batches - first) % step
            first += extra_micro_batches
            first_us, first_peaks = self._run(first)
            second_us, second_peaks = self._run(first + step)
            us = first_us + (second_us - first_us) * rounds
            peaks = np.maximum(first_peaks, second_peaks + (second_peaks - first_peaks) * (rounds - 1))
        return us, self._with_reserve(np.asarray(peaks))

    def _run(self, micro_batches: int) -> tuple[float, np.ndarray]:
        return makespan_and_peak(
            self.graph, self.cluster, self.placement, micro_batches=micro_batches, schedule=self.layout.schedule
        )


def make_layout_step(costs: StageCosts, layout: Layout, global_batch: int) -> LayoutStep:
    """Returns the step of a layout that is legal (`layouts.why_illegal`)."""
    devices = costs.devices(layout)
    micro_batches = global_batch // (layout.micro_batch * layout.dp)
    return LayoutStep(costs, layout, costs.stages(layout, devices), devices, micro_batches)
