"""Costs of the parts of a layout on its devices: times of kernels and collectives, bytes of parameters and activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..errors import InvalidInput, in_short
from ..graph import Cluster
from ..graph.collectives import Collectives
from ..graph.hardware import HARDWARE, Hardware, known_kind
from ..graph.layout import Layout
from .kernel_times import Efficiency, PartTimes, part_times, share_host
from .rank_ops import Part, RankOp, Storage, make_block, make_embedding, make_head
from .transformer import Transformer

_ATTENTION = frozenset(["attention", "scores", "softmax", "dropout", "context"])


@dataclass(frozen=True)
class PartCosts:
    """A part on one rank with the times of its passes; `backward` includes recomputation."""

    part: Part
    forward: PartTimes
    backward: PartTimes
    saved_bytes: int
    transient_bytes: int


class StageDevice(NamedTuple):
    """The slowest device of a group: its hardware, and its speed relative to other devices of that hardware."""

    hardware: Hardware
    speed: float


def slowest_device(cluster: Cluster, devices: range, hardware: Hardware | None = None) -> StageDevice:
    """Returns the slowest of some devices of a cluster; `hardware` is that of all of them.

    Raises `InvalidInput` if `hardware` is None and the kind of a device names no hardware.
    """
    if hardware is not None:
        return StageDevice(hardware, min(cluster.devices[d].speed for d in devices))
    kinds = {(cluster.devices[d].kind, cluster.devices[d].speed) for d in devices}
    hardware_by_kind = {kind: known_kind(kind) for kind, _ in kinds}
    unknown = next((kind for kind, name in hardware_by_kind.items() if name is None), None)
    if unknown is not None:
        raise InvalidInput(
            f"devices of the cluster are of kind {in_short(unknown)}; give them a kind of the hardware table such "
            f"as 'h100', or hardware="
        )
    stage_devices = (StageDevice(HARDWARE[str(hardware_by_kind[kind])], speed) for kind, speed in kinds)
    return min(stage_devices, key=lambda device: device.hardware.half_flops * device.speed)


def make_part(name: str, model: Transformer, layout: Layout, sequence_length: int, precision: Storage) -> Part:
    """Makes a part of one rank: "dense" (a block without experts), "experts" (one with them), "embedding" or "head"."""
    if name == "embedding":
        return make_embedding(model, layout, sequence_length)
    if name == "head":
        return make_head(model, layout, sequence_length, precision)
    return make_block(model, layout, sequence_length, precision, experts=name == "experts")


def rank_layout(layout: Layout) -> Layout:
    """Returns the fields of the layout that shape the ops of one rank; layouts with equal fields share their parts."""
    return Layout(
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        dp=layout.ep,
        micro_batch=layout.micro_batch,
        sequence_parallel=layout.sequence_parallel,
    )


@dataclass(frozen=True, eq=False)
class RankCosts:
    """Costs of a layout's parts on the devices of one pipeline stage, which begin at `first`.

    Times of kernels are divided by `speed`, those of collectives and of the host are not.
    `overlap_tensor`, `overlap_products`: see `kernel_times.part_times`.
    """

    layout: Layout
    hardware: Hardware
    efficiency: Efficiency
    collectives: Collectives
    first: int = 0
    overlap_tensor: bool = False
    overlap_products: bool = False
    speed: float = 1.0

    def devices_of(self, axis: str) -> range:
        """Returns the devices of the group of `axis` with the stage's first device."""
        return self.layout.axis_range(axis, self.first)

    def collective_us(self, kind: str, axis: str, size_bytes: float) -> float:
        """Returns the microseconds of one collective on the slowest links of the stage's groups."""
        return max((self.collectives.us(kind, size_bytes, group) for group in self.groups_of(axis)), default=0.0)

    def groups_of(self, axis: str) -> list[range]:
        """Returns the stage's groups of `axis` that differ in their links; none if a group is one device."""
        width = self.layout.tp * self.layout.cp * self.layout.dp
        return self.collectives.different_groups(self.layout, axis, self.first, width)

    def pass_times(self, part: Part) -> tuple[PartTimes, PartTimes]:
        """Returns the times of a part's forward and backward pass, without recomputation."""
        return self._times(part.forward), self._times(part.backward)

    def costs_of(self, part: Part, recompute: str, pass_times: tuple[PartTimes, PartTimes] | None = None) -> PartCosts:
        """Returns the times of a part's passes and its bytes.

        Args:
            part: of the layout's model.
            recompute: "none", "selective" or "full".
            pass_times: the part's `pass_times`, if they are known.
        """
        forward, backward = pass_times or self.pass_times(part)
        saved_bytes, transient_bytes = part.saved_bytes, part.transient_bytes
        if recompute == "full":
            recomputed_times = forward
            if self.layout.zero >= 2:  # PyTorch's checkpoints stop at the last product: no backward op reads its output
                last_product = max(k for k, op in enumerate(part.forward) if op.op_type == "matmul")
                recomputed_times = self._times(part.forward[:last_product])
            backward = backward.after(recomputed_times)
            saved_bytes, transient_bytes = part.input_bytes, transient_bytes + part.saved_bytes
        elif recompute == "selective":
            attention_ops = [op for op in part.forward if not _ATTENTION.isdisjoint(op.name.split("/"))]
            backward = backward.after(self._times(attention_ops))
            saved_bytes, transient_bytes = saved_bytes - part.attention_bytes, transient_bytes + part.attention_bytes
        return PartCosts(part, *share_host(forward, backward), saved_bytes, transient_bytes)

    def _times(self, ops: tuple[RankOp, ...] | list[RankOp]) -> PartTimes:
        return part_times(
            ops,
            self.hardware,
            self.efficiency,
            lambda op: self.collective_us(op.op_type, op.axis, op.message_bytes),
            lambda op: len(self.devices_of(op.axis)),
            self.overlap_tensor,
            self.overlap_products,
            self.speed,
        )
