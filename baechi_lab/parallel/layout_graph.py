"""The graph of a layout's step: one micro-batch of one rank of every pipeline stage.

Blocks of a stage that share a bucket of gradients are one op of the forward pass and one of the backward pass (two if the
schedule separates gradients of weights). Their durations are those of their kernels and of the collectives in them
(`kernel_times.part_times`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.hardware import Hardware
from ..graph.layout import Layout
from ..graph.tensors import TensorTable
from ..passes.data_parallel import Bucket
from .layout_stages import Segment, StepOptions, segment_buckets, stage_device
from .rank_costs import StageDevice

UPDATE_BYTES = 30
"""Bytes that Adam reads and writes per parameter, besides the gradient: the float32 copy and two moments, which are also
written, and the half-precision copy."""

UPDATE = "Update"


class StageSegment(NamedTuple):
    """A segment, the pipeline stage that it belongs to, and the microseconds of the host per pass of that stage."""

    stage: int
    segment: Segment
    host_us: float


class StepWriter:
    """Collects ops, tensors and buckets of a step.

    `border_us`: the time in which ranks with equal tensors gather the shares that they received from the previous stage.
    """

    def __init__(self, layout: Layout, options: StepOptions, border_us: float) -> None:
        self.layout, self.options, self.border_us = layout, options, border_us
        self.separates_weights = layout.schedule.startswith("zb")
        self.names: list[str] = []
        self.types: list[str] = []
        self.duration_us: list[float] = []
        self.temp_bytes: list[int] = []
        self.persistent_bytes: list[int] = []
        self.forward_of: list[int] = []
        self.device: list[int] = []
        self.table = TensorTable()
        self.segments: list[StageSegment] = []
        self.backward: list[tuple[int, ...]] = []
        self.buckets: list[Bucket] = []

    def _add(self, name: str, op_type: str, us: float, stage: int, temp: int = 0, forward_of: int = -1) -> int:
        """Adds an op of `us` microseconds and `temp` temporary bytes; returns its index."""
        self.names.append(name)
        self.types.append(op_type)
        self.duration_us.append(us)
        self.temp_bytes.append(temp)
        self.persistent_bytes.append(0)
        self.forward_of.append(forward_of)
        self.device.append(stage_device(self.layout, stage))
        return len(self.names) - 1

    def add_forward(self, stage: int, segments: Sequence[Segment], hardware: Hardware) -> None:
        """Adds the forward ops of a stage, after those of the previous stage."""
        host_us = self.options.efficiency_of(hardware).stage_us
        for index, segment in enumerate(segments):
            costs = segment.costs
            us = segment.count * costs.forward.us + (host_us if index == 0 else 0.0)
            op = self._add(f"stage{stage}/{segment.name}", "Forward", us, stage, segment.forward_temp_bytes)
            if op:
                previous = self.segments[-1]
                crosses_border = previous.stage != stage
                self.duration_us[op] += self.border_us if crosses_border else 0.0
                self.table.add(
                    op - 1,
                    "activation",
                    self._sent_bytes(previous.segment.costs.part.output_bytes, crosses_border),
                    [op],
                )
            self.segments.append(StageSegment(stage, segment, host_us))

    def _sent_bytes(self, size: int, crosses_border: bool) -> int:
        """Returns the bytes that each rank sends to the next stage: a share, if all ranks of a group have the same tensor."""
        is_divided = crosses_border and not self.layout.sequence_parallel
        return -(-size // self.layout.tp) if is_divided else size

    def add_backward(self) -> None:
        """Adds the backward ops in reverse, with separate gradients of weights if the schedule requires them."""
        count = len(self.segments)
        self.backward = [()] * count
        previous_op = -1
        for index in reversed(range(count)):
            stage, segment, host_us = self.segments[index]
            costs = segment.costs
            is_last_of_stage = index == count - 1 or self.segments[index + 1].stage != stage
            us = segment.count * costs.backward.us + (host_us if is_last_of_stage else 0.0)
            input_us = segment.count * costs.backward.input_us + (host_us if is_last_of_stage else 0.0)
            input_us = min(input_us, us) if self.separates_weights else us
            op = self._add(
                f"{self.names[index]}/backward", "Backward", input_us, stage, segment.backward_temp_bytes, index
            )
            if previous_op >= 0:
                self.duration_us[op] += self.border_us if is_last_of_stage else 0.0
                self.table.add(
                    previous_op, "gradient", self._sent_bytes(segment.costs.part.output_bytes, is_last_of_stage), [op]
                )
            else:
                self.table.add(index, "loss", CONTROL_BYTES, [op])
            readers = [op]
            if self.separates_weights and us > input_us:
                weight_op = self._add(f"{self.names[index]}/weights", "BackwardWeights", us - input_us, stage, 0, index)
                self.table.add(op, "order", CONTROL_BYTES, [weight_op])
                readers.append(weight_op)
            # A stage keeps the tensor that it receives, so a segment's saved input is not counted twice.
            saved_bytes = segment.count * costs.saved_bytes
            self.table.add(index, "saved", max(saved_bytes, 0), readers)
            self.backward[index] = tuple(readers)
            previous_op = op

    def add_updates(self, devices: Sequence[StageDevice], table_us: float) -> None:
        """Adds one update per stage and the bytes of its parameters.

        `table_us`: time in which the first and the last stage add up gradients of a table that both have; 0 without one.
        """
        precision, layout = self.options.precision, self.layout
        stages = sorted({entry.stage for entry in self.segments})
        updates: dict[int, int] = {}
        for stage in stages:
            hardware, speed = devices[stage_device(layout, stage)]
            efficiency = self.options.efficiency_of(hardware)
            stage_segments = [index for index, entry in enumerate(self.segments) if entry.stage == stage]
            bandwidth = hardware.bandwidth * efficiency.bandwidth_share * speed
            us_per_parameter = (UPDATE_BYTES + 2 * precision.gradient_bytes) / bandwidth * 1e6
            dense = sum(self.segments[index].segment.parameters for index in stage_segments)
            experts = sum(self.segments[index].segment.expert_parameters for index in stage_segments)
            us = us_per_parameter * (dense + experts)  # `divide_data` leaves a share of it with ZeRO
            update = self._add(f"stage{stage}/update", UPDATE, us, stage)
            updates[stage] = update
            for index in stage_segments:
                for op in self.backward[index]:
                    self.table.add(op, "order", CONTROL_BYTES, [update])
        for index, (stage, segment, _) in enumerate(self.segments):
            counts = segment.parameters, segment.expert_parameters
            buckets = segment_buckets(
                *counts,
                layout,
                precision,
                self.names[index],
                forward=index,
                backward=self.backward[index],
                update=updates[stage],
                rank=stage_device(layout, stage),
            )
            self.persistent_bytes[index] += sum(bucket.resident_bytes(zero=0) for bucket in buckets)
            self.buckets += buckets
        if table_us:
            for stage in (0, self.layout.stages - 1):
                op = self._add(f"stage{stage}/tied_embedding/all_reduce", "all_reduce", table_us, stage)
                for border_segment in (0, len(self.segments) - 1):
                    self.table.add(self.backward[border_segment][-1], "order", CONTROL_BYTES, [op])
                self.table.add(op, "order", CONTROL_BYTES, [updates[stage]])

    def graph(self, name: str) -> tuple[OpGraph, np.ndarray]:
        """Returns the graph of all ops added so far, and the device of each op, int32[n]."""
        graph = OpGraph(
            names=tuple(self.names),
            op_types=tuple(self.types),
            duration_us=np.array(self.duration_us),
            temp_bytes=np.array(self.temp_bytes, dtype=np.int64),
            persistent_bytes=np.array(self.persistent_bytes, dtype=np.int64),
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
