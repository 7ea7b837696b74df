"""How long a rank's kernels last in half precision: a roofline with the shape of products, and the host that launches them.

A product is cut into tiles, one per multiprocessor at a time; a last wave that is not full costs as much as a full one. Attention
in one kernel and element-wise kernels reach shares of their own. A part (a block, say) lasts as long as its kernels or as the
host needs to launch them, whichever is longer, rounded where both are near.

Shares are constants per kind of hardware (`efficiency.csv`), fitted to 24 measured steps by `python -m
studies.layouts.study --fit`, whose
stored result (`studies/results/layouts.json`) names these rows and the errors of all others. Hardware that is not in the
table takes those of the named hardware with the nearest peak.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..graph.hardware import HARDWARE, Hardware
from ..params import Params
from .rank_ops import FORWARD, WEIGHT, RankOp

TILES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.93),
    (64, 256, 0.85),
    (256, 64, 0.85),
    (128, 64, 0.75),
    (64, 128, 0.75),
    (64, 64, 0.6),
)
"""Rows and columns of a tile of the result, and what a multiprocessor reaches on it relative to the largest."""

SPLIT_DEPTH = 512
"""Depth from which a product of few tiles is split along its depth."""

FP8_SHARE = 0.6
"""What products of 8-bit floats reach, relative to the share of half-precision products of their twice as high peak."""

SMOOTHNESS = 6.0
"""Exponent by which the times of device and host are joined: infinity would be their maximum."""


@dataclass(frozen=True)
class Efficiency(Params):
    """What training reaches on one kind of hardware.

    Args:
        product_share, attention_share: of the peak in half precision: matrix products, and attention in one kernel.
        score_share: of the peak, in products of attention as separate kernels.
        bandwidth_share: of memory bandwidth.
        wave_exponent: how much a wave that is not full counts: 0 not at all, 1 fully.
        multiprocessors: of the device.
        collective_share, network_share: of the bandwidth of links within a machine and between machines.
        host_us, backward_host_us: for which the host is busy per kernel of the forward and of the backward pass.
        collective_host_us, drift_us: likewise per collective, and per other device that takes part, since hosts drift apart.
        stage_us: per pipeline stage, micro-batch and direction.
        gather_us: per block and direction that gathers its parameters (ZeRO-3).
        step_us: per step.
    """

    product_share: float = 0.75
    attention_share: float = 0.35
    score_share: float = 0.5
    bandwidth_share: float = 0.85
    wave_exponent: float = 0.4
    multiprocessors: int = 108
    collective_share: float = 0.7
    network_share: float = 0.5
    host_us: float = 30.0
    backward_host_us: float = 60.0
    collective_host_us: float = 40.0
    drift_us: float = 10.0
    stage_us: float = 300.0
    gather_us: float = 500.0
    step_us: float = 0.0

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
        """The constants of that hardware, or of the nearest one that has some.

        >>> Efficiency.of(Hardware.named("a100")).multiprocessors
        108
        """
        if hardware.name in EFFICIENCIES:
            return EFFICIENCIES[hardware.name]
        known = min(EFFICIENCIES, key=lambda name: abs(HARDWARE[name].half_flops / hardware.half_flops - 1))
        return EFFICIENCIES[known]


def _read_table() -> dict[str, Efficiency]:
    lines = Path(__file__).with_name("efficiency.csv").read_text(encoding="utf-8").splitlines()
    names = [field.name for field in fields(Efficiency)]
    table: dict[str, Efficiency] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        constants: dict[str, Any] = {name: float(row[name]) for name in names}
        table[row["hardware"]] = Efficiency(**constants | {"multiprocessors": int(row["multiprocessors"])})
    return table


EFFICIENCIES = _read_table()
"""Hardware -> constants."""


@lru_cache(maxsize=65536)
def wave_share(shape: tuple[int, int, int, int], multiprocessors: int) -> float:
    """Share of the multiprocessors' time that a product of (batch, rows, columns, depth) uses, with its best tile.

    >>> wave_share((1, 256 * 108, 128, 4096), 108)    # one full wave
    1.0
    """
    batch, rows, columns, depth = shape
    best = 0.0
    for height, width, reached in TILES:
        tiles = batch * ceil(rows / height) * ceil(columns / width)
        useful = batch * rows * columns / (tiles * height * width) * reached
        share = useful * tiles / (ceil(tiles / multiprocessors) * multiprocessors)
        if tiles < multiprocessors:
            split = min(multiprocessors // tiles, max(depth // SPLIT_DEPTH, 1))
            share = max(share, 0.9 * useful * tiles * split / multiprocessors)
        best = max(best, share)
    return best


def kernel_us(op: RankOp, hardware: Hardware, efficiency: Efficiency) -> float:
    """Microseconds of one kernel of a rank on the device."""
    kernel = op.kernel
    if kernel.matrix:
        share = efficiency.product_share
        if op.op_type != "matmul":
            share = efficiency.attention_share
        elif kernel.batched and "experts" not in op.name:
            share = efficiency.score_share
        if op.shape is not None:
            share *= wave_share(op.shape, efficiency.multiprocessors) ** efficiency.wave_exponent
        if kernel.precision == "fp8" and hardware.fp8_flops:
            share *= FP8_SHARE
        peak = hardware.product_flops(kernel.precision) * share
    else:
        peak = hardware.peak_flops
    bandwidth = hardware.bandwidth * efficiency.bandwidth_share
    return 1e6 * max(kernel.flops / peak, kernel.moved_bytes / bandwidth)


@dataclass(frozen=True)
class PartTimes:
    """Microseconds of a part's ops in one direction: `us` in all, `device_us` without waiting for the host, `compute_us` of
    kernels alone, `collective_us` of collectives alone, and `input_us` without gradients of weights.
    """

    us: float
    device_us: float
    compute_us: float
    collective_us: float
    input_us: float


def part_times(
    ops: Sequence[RankOp],
    hardware: Hardware,
    efficiency: Efficiency,
    collective_us: Callable[[RankOp], float],
    width: Callable[[RankOp], int],
) -> PartTimes:
    """How long a chain of ops lasts on two lanes, where kernels overlap with collectives that nobody waits for.

    An op starts when the op of the chain before it has ended, and its lane is free. Gradients of weights and collectives that
    are not awaited are in no chain: what follows does not wait for them, the end of the part does.

    Args:
        ops: in order.
        collective_us: microseconds of a collective.
        width: number of devices that take part in a collective.
    """
    compute_free = lane_free = chain = host = 0.0
    compute = collectives = weights = 0.0
    for op in ops:
        if op.axis:
            lasts = collective_us(op)
            collectives += lasts
            lane_free = max(lane_free, chain) + lasts
            if op.awaited:
                chain = lane_free
            host += efficiency.collective_host_us + efficiency.drift_us * (width(op) - 1)
            continue
        lasts = kernel_us(op, hardware, efficiency)
        compute += lasts
        compute_free = max(compute_free, chain) + lasts
        if op.phase == WEIGHT:
            weights += lasts
        else:
            chain = compute_free
        host += efficiency.host_us if op.phase == FORWARD else efficiency.backward_host_us
    device = max(compute_free, lane_free, chain)
    joined = _join(device, host)
    return PartTimes(joined, device, compute, collectives, max(joined - weights, compute - weights))


def _join(device_us: float, host_us: float) -> float:
    """A maximum that is rounded where both are near."""
    top = max(device_us, host_us)
    if top == 0.0:
        return 0.0
    return top * ((device_us / top) ** SMOOTHNESS + (host_us / top) ** SMOOTHNESS) ** (1 / SMOOTHNESS)
