"""Durations of a rank's kernels in half precision by the kernel model, and of the host that launches them.

Matrix products follow `profilers.kernel_model` with the constants of the hardware generation. Attention, as one kernel or as
separate products, reaches its own share of the peak, and other kernels reach a share of the bandwidth. A part, such as a block,
takes as long as its launches by the host, or as its kernels and `WAIT_SHARE` of the launches, whichever is longer.

These shares and times are constants per kind of hardware (`efficiency.csv`). `python -m studies.layouts.study --fit` fits them to
24 measured steps; its stored result (`studies/results/layouts.json`) names these steps and the errors of all others. Hardware
that is not in the table has the constants of the named hardware with the nearest peak.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

from ..errors import InvalidInput
from ..graph.hardware import HARDWARE, Hardware
from ..params import Params
from ..profilers.generations import generation_named
from ..profilers.kernel_model import estimated_us
from ..profilers.work import Kernel, work_of
from .rank_ops import FORWARD, WEIGHT, RankOp

WAIT_SHARE = 0.3
"""Share of the host's launches for which the device waits even where its kernels take longer: the queue of launched kernels is
empty at first, and again whenever the host has waited for the device. Chosen on vTrain's steps of one machine."""


@dataclass(frozen=True)
class Efficiency(Params):
    """Shares of the peaks that training reaches on one kind of hardware, and times of the host.

    Args:
        product_share: of the peak in linear layers whose tiles fill the device.
        misaligned_share: factor on the shares of products whose rows are no multiple of 16 bytes.
        attention_share: share of the peak in half precision, for attention as one kernel.
        score_share: share of the peak, for products of attention as separate kernels.
        bandwidth_share: share of the memory bandwidth.
        collective_share, network_share: shares of the bandwidth of links within a machine and between machines.
        host_us, backward_host_us: time of the host per kernel of the forward and of the backward pass.
        collective_host_us: time of the host per collective; for as long, devices wait in a collective that other ops await,
            until the last one has launched it.
        drift_us: time of the host per other device in a collective, since hosts drift apart.
        stage_us: time of the host per pipeline stage, micro-batch and direction.
        gather_us: time of the host per block and direction that gathers its parameters (ZeRO-3).
    """

    product_share: float = 0.75
    misaligned_share: float = 0.4
    attention_share: float = 0.35
    score_share: float = 0.5
    bandwidth_share: float = 0.85
    collective_share: float = 0.7
    network_share: float = 0.5
    host_us: float = 30.0
    backward_host_us: float = 60.0
    collective_host_us: float = 40.0
    drift_us: float = 10.0
    stage_us: float = 300.0
    gather_us: float = 500.0

    def validate(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            share = field.name.endswith("_share")
            if not (0 < value <= 1 if share else value >= 0):
                raise InvalidInput(
                    f"{field.name} is {value}; it must be {'above 0 and at most 1' if share else 'not negative'}"
                )

    @classmethod
    def of(cls, hardware: Hardware) -> Efficiency:
        """Returns the constants of `hardware`, or of the hardware with the nearest peak in the table.

        >>> Efficiency.of(Hardware.named("a100-40gb")) == Efficiency.of(Hardware.named("a100"))
        True
        """
        if hardware.name in EFFICIENCIES:
            return EFFICIENCIES[hardware.name]
        nearest_name = min(EFFICIENCIES, key=lambda name: abs(HARDWARE[name].half_flops / hardware.half_flops - 1))
        nearest = EFFICIENCIES[nearest_name]
        if HARDWARE[nearest_name].generation == hardware.generation:
            return nearest
        return replace(nearest, product_share=generation_named(hardware.generation).matrix_unit_share)


def _read_table() -> dict[str, Efficiency]:
    lines = Path(__file__).with_name("efficiency.csv").read_text(encoding="utf-8").splitlines()
    names = [field.name for field in fields(Efficiency)]
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["hardware"]: Efficiency(**{name: float(row[name]) for name in names}) for row in rows}


EFFICIENCIES = _read_table()
"""Hardware -> constants."""


def rank_kernel_us(op: RankOp, hardware: Hardware, efficiency: Efficiency) -> float:
    """Returns the microseconds of one kernel of a rank on the device, without its launch."""
    share = efficiency.product_share
    if op.kernel.matrix and op.op_type != "matmul":
        share = efficiency.attention_share
    elif op.kernel.batched and "experts" not in op.name:
        share = efficiency.score_share
    # Rows of the product's matrices whose length is no multiple of 8 half-precision numbers take longer.
    if any(
        (product.columns | (product.rows if op.phase == WEIGHT else product.inner)) % 8
        for product in op.kernel.products
    ):
        share *= efficiency.misaligned_share
    return _kernel_us(op.kernel, hardware, share, efficiency.bandwidth_share)


@lru_cache(maxsize=65536)
def _kernel_us(kernel: Kernel, hardware: Hardware, matrix_unit_share: float, bandwidth_share: float) -> float:
    generation = generation_named(hardware.generation)
    constants = replace(generation, bandwidth_share=bandwidth_share, matrix_unit_share=matrix_unit_share)
    if kernel.precision != "fp32":  # the shares were fitted with the overhead of float32's tiles
        rate = hardware.product_flops(kernel.precision) * matrix_unit_share
        float32_rate = hardware.product_flops("fp32") * generation.product_share
        constants = replace(constants, tile_us=generation.tile_us * rate / float32_rate)
    without_launches = replace(hardware, launch_us=0.0)
    return float(estimated_us(work_of(1, [(0, kernel)]), without_launches, generation=constants, follows=True)[0])


@dataclass(frozen=True)
class PartTimes:
    """Times of a part's ops in one direction, in microseconds.

    `us` in total, `device_us` without waiting for the host, `compute_us` of kernels, `collective_us` of collectives, `input_us`
    without gradients of weights, and `host_us` of the host.
    """

    us: float
    device_us: float
    compute_us: float
    collective_us: float
    input_us: float
    host_us: float

    def after(self, earlier: PartTimes) -> PartTimes:
        """Returns the times of both parts in one pass of the host, such as recomputation and backward pass, which share slack."""
        device, host = earlier.device_us + self.device_us, earlier.host_us + self.host_us
        us = _join(device, host)
        compute_us, collective_us = earlier.compute_us + self.compute_us, earlier.collective_us + self.collective_us
        return PartTimes(us, device, compute_us, collective_us, max(us - (self.us - self.input_us), 0.0), host)

    def with_wait(self, wait_us: float) -> PartTimes:
        """Returns the times of the same work with `wait_us` of waiting for the host."""
        us = self.device_us + wait_us
        return replace(self, us=us, input_us=max(us - (self.us - self.input_us), 0.0))


def share_host(forward: PartTimes, backward: PartTimes) -> tuple[PartTimes, PartTimes]:
    """Returns the times of two passes between which the host does not wait for the device.

    While one pass runs long on the device, the host launches kernels of the other ahead.
    """
    waits = forward.us - forward.device_us, backward.us - backward.device_us
    both_passes = backward.after(forward)
    share = (both_passes.us - both_passes.device_us) / (sum(waits) or 1.0)
    return forward.with_wait(share * waits[0]), backward.with_wait(share * waits[1])


def part_times(
    ops: Sequence[RankOp],
    hardware: Hardware,
    efficiency: Efficiency,
    collective_us: Callable[[RankOp], float],
    width: Callable[[RankOp], int],
    overlap_tensor: bool = False,
    overlap_products: bool = False,
    speed: float = 1.0,
) -> PartTimes:
    """Computes the times of ops on two lanes, on which kernels overlap with collectives that no op waits for.

    Awaited ops form a chain: each starts when the previous one has ended and its lane is free. Gradients of weights and
    collectives that are not awaited delay only the end of the part. Gradients of weights wait for the chain, too; with
    `overlap_tensor` they do not wait for collectives of tensor parallelism, as in Megatron-LM. A ring of `n` devices
    (`send_recv`) belongs to the next kernel, which has `n` rounds; while a round computes, the keys and values of the next
    round arrive. With `overlap_products`, the gathering of a sequence before a product is such a ring, too. After a product of
    the forward pass, the piece of each device is reduced while the next piece is computed. Pieces together take as long as the
    whole product. In the backward pass, reductions run beside gradients of weights. (S. Wang et al., "Overlap Communication
    with Dependent Computation via Decomposition", ASPLOS 2023, doi:10.1145/3567955.3567959.)

    Args:
        ops: the ops in their order.
        hardware, efficiency: of the device.
        collective_us: a function that returns the microseconds of a collective.
        width: a function that returns the number of devices in a collective.
        overlap_tensor: whether gradients of weights run beside collectives of tensor parallelism.
        overlap_products: whether products run in pieces beside collectives of sequence parallelism.
        speed: of the device, relative to others of its hardware.
    """
    compute_free = lane_free = chain = weights_ready = host = 0.0
    compute = collectives = weights = 0.0
    ring_us, rounds = 0.0, 1
    product_us = 0.0  # of the product before, if the op follows a product
    for op, next_op in zip(ops, [*ops[1:], None], strict=True):
        host_us = efficiency.host_us if op.phase == FORWARD else efficiency.backward_host_us
        if op.axis:
            lasts = collective_us(op)
            collectives += lasts
            in_pieces = overlap_products and op.axis == "tp" and op.is_awaited
            gathers = in_pieces and op.op_type == "all_gather" and next_op is not None and next_op.op_type == "matmul"
            if op.op_type == "send_recv" or gathers:
                ring_us, rounds = lasts, width(op)
                host += efficiency.collective_host_us + efficiency.drift_us * (rounds - 1)
                continue
            if in_pieces and op.op_type == "reduce_scatter" and op.phase == FORWARD:
                lasts -= min(lasts, product_us * (width(op) - 1) / width(op))
            lane_free = max(lane_free, chain) + lasts
            if op.is_awaited:
                lane_free += efficiency.collective_host_us
                chain = lane_free
                weights_ready = weights_ready if overlap_tensor and op.axis == "tp" else chain
            host += efficiency.collective_host_us + efficiency.drift_us * (width(op) - 1)
            product_us = 0.0
            continue
        lasts = rank_kernel_us(op, hardware, efficiency) / speed
        compute += lasts
        start = max(compute_free, weights_ready if op.phase == WEIGHT else chain)
        compute_free = start + lasts + max(ring_us - lasts * (rounds - 1) / rounds, 0.0)
        host += host_us * rounds
        ring_us, rounds = 0.0, 1
        product_us = lasts if op.op_type == "matmul" else 0.0
        if op.phase == WEIGHT:
            weights += lasts
        else:
            chain = weights_ready = compute_free
    device = max(compute_free, lane_free, chain)
    timeline = _join(device, host)
    return PartTimes(timeline, device, compute, collectives, max(timeline - weights, compute - weights), host)


def _join(device_us: float, host_us: float) -> float:
    """Returns the time of kernels that the host launches."""
    return max(host_us, device_us + WAIT_SHARE * host_us)
