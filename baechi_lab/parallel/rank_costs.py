"""Costs of the parts of a layout on its devices: times of kernels and collectives, bytes of parameters and activations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..errors import InvalidInput
from ..graph import Cluster
from ..graph.collectives import Collectives
from ..graph.hardware import HARDWARE, Hardware, known_kind
from ..graph.layout import Layout
from .kernel_times import Efficiency, PartTimes, part_times, share_host
from .rank_ops import Part, RankOp, Storage, make_block, make_embedding, make_head
from .transformer import Transformer


@dataclass(frozen=True)
class PartCosts:
    """A part on one rank with the times of its passes; `backward` includes recomputation."""

    part: Part
    forward: PartTimes
    backward: PartTimes
    saved_bytes: int
    transient_bytes: int


def hardware_of(cluster: Cluster, devices: range, hardware: Hardware | None = None) -> Hardware:
    """Returns the slowest hardware among devices of a cluster.

    Raises `InvalidInput` if `hardware` is None and the kind of a device names no hardware.
    """
    if hardware is not None:
        return hardware
    kinds = {cluster.devices[d].kind for d in devices}
    hardware_by_kind = {kind: known_kind(kind) for kind in kinds}
    unknown = next((kind for kind, name in hardware_by_kind.items() if name is None), None)
    if unknown is not None:
        raise InvalidInput(
            f"devices of the cluster are of kind {unknown!r:.60}; give them a kind of the hardware table such "
            f"as 'h100', or hardware="
        )
    return min((HARDWARE[str(name)] for name in hardware_by_kind.values()), key=lambda row: row.half_flops)


@lru_cache(maxsize=4096)
def make_parts(
    model: Transformer, layout: Layout, sequence_length: int, precision: Storage
) -> tuple[Part, Part | None, Part, Part]:
    """Makes the parts of one rank: a block without experts, a block with experts, the embedding and the output layer."""
    dense = make_block(model, layout, sequence_length, precision, experts=False)
    experts = make_block(model, layout, sequence_length, precision, experts=True) if model.experts else None
    head = make_head(model, layout, sequence_length, precision)
    return dense, experts, make_embedding(model, layout, sequence_length), head


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
    """Costs of a layout's parts on the devices of one pipeline stage, which begin at `first`."""

    layout: Layout
    hardware: Hardware
    efficiency: Efficiency
    collectives: Collectives
    first: int = 0

    def devices_of(self, axis: str) -> tuple[int, ...]:
        """Returns the devices of the group of `axis` with the stage's first device."""
        return self.layout.axis_devices(axis, self.first)

    def collective_us(self, kind: str, axis: str, size_bytes: float) -> float:
        """Returns the microseconds of one collective of the first rank."""
        return self.collectives.us(kind, size_bytes, self.devices_of(axis))

    def costs_of(self, part: Part, recompute: str) -> PartCosts:
        """Returns the times of a part's passes and its bytes, with recomputation "none", "selective" or "full"."""
        forward, backward = self._times(part.forward), self._times(part.backward)
        saved, transient = part.saved_bytes, part.transient_bytes
        if recompute == "full":
            recomputed_ops = part.forward
            if self.layout.zero >= 2:  # PyTorch's checkpoints stop at the last product: no backward op reads its output
                last_product = max(k for k, op in enumerate(recomputed_ops) if op.op_type == "matmul")
                recomputed_ops = recomputed_ops[:last_product]
            backward = backward.after(self._times(recomputed_ops))
            saved, transient = part.input_bytes, transient + part.saved_bytes
        elif recompute == "selective":
            attention_ops = [op for op in part.forward if not _ATTENTION.isdisjoint(op.name.split("/"))]
            backward = backward.after(self._times(attention_ops))
            saved, transient = saved - part.attention_bytes, transient + part.attention_bytes
        return PartCosts(part, *share_host(forward, backward), saved, transient)

    def _times(self, ops: tuple[RankOp, ...] | list[RankOp]) -> PartTimes:
        return part_times(
            ops,
            self.hardware,
            self.efficiency,
            lambda op: self.collective_us(op.op_type, op.axis, op.message_bytes),
            lambda op: len(self.devices_of(op.axis)),
        )


_ATTENTION = frozenset(["attention", "scores", "softmax", "dropout", "context"])
