"""`bl.Layout`: how a model is divided over devices, and which device belongs to which group of an axis.

Axes are mapped to devices from the innermost: tp, cp, dp, pp. Neighbours share tensors, so that tensor parallelism stays
within a machine. `ep` divides `dp * cp`: experts are spread over neighbours of these axes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..checks import check_flag, check_text, check_whole
from ..errors import InvalidInput, in_short
from ..params import Params

DEGREES = ("tp", "pp", "dp", "ep", "cp")
"""Fields that are degrees: into how many parts something is divided."""

RECOMPUTE = ("none", "selective", "full")
"""What is computed again in the backward pass: nothing, attention without its projections, whole blocks."""

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")
"""Schedules of pipelines that a layout may name."""

_CHUNKS = {"interleaved-1f1b": 2, "zb-v": 2}
"""Pipeline stages per device where a schedule has several."""


@dataclass(frozen=True)
class Layout(Params):
    """How a training step is divided over `tp * cp * dp * pp` devices.

    Args:
        tp: tensor parallelism: devices that share every operator of a block (attention heads, columns of the feed-forward part,
            the vocabulary).
        pp: pipeline parallelism: groups of layers, one behind the other.
        dp: data parallelism: copies of the model, each with its share of the batch.
        ep: expert parallelism: devices of `dp * cp` over which the experts of a layer are spread.
        cp: context parallelism: devices that share a sequence.
        zero: 0 (all copies hold everything), 1 (optimizer states are divided over data parallelism), 2 (gradients too)
            or 3 (parameters too, as FSDP does).
        micro_batch: sequences in one micro-batch of one copy.
        schedule: of the pipeline, one of `SCHEDULES`.
        recompute: "none", "selective" (attention without its projections) or "full" (every block from its input).
        sequence_parallel: divide over `tp` what tensor parallelism leaves whole (normalisation, dropout), along the
            sequence; all-reduces become pairs of all-gathers and reduce-scatters.
        stage_layers: blocks of every pipeline stage, where they are not divided evenly.

    Raises:
        InvalidInput: on `check`, a degree below 1, `ep` that does not divide `dp * cp`, an unknown schedule, sequence
            parallelism without tensor parallelism, ZeRO above 1 with a pipeline.

    >>> layout = Layout(tp=4, pp=2, dp=8, zero=1, micro_batch=2)
    >>> layout.devices, layout.axis_devices("tp"), layout.axis_devices("pp")
    (64, (0, 1, 2, 3), (0, 32))
    >>> layout
    Layout(tp=4, pp=2, dp=8, zero=1, micro_batch=2)
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    zero: int = 0
    micro_batch: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    sequence_parallel: bool = False
    stage_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for field in (*DEGREES, "micro_batch"):
            object.__setattr__(self, field, check_whole(field, getattr(self, field)))
        if isinstance(self.zero, np.integer):
            object.__setattr__(self, "zero", int(self.zero))
        if isinstance(self.stage_layers, list | tuple):
            counts = tuple(check_whole("stage_layers", count, 0) for count in self.stage_layers)
            object.__setattr__(self, "stage_layers", counts)
        self.check()

    def validate(self) -> None:
        if isinstance(self.zero, bool) or self.zero not in (0, 1, 2, 3):
            raise InvalidInput(f"zero is {in_short(self.zero)}; it must be 0, 1, 2 or 3")
        check_text("schedule", self.schedule, SCHEDULES)
        check_text("recompute", self.recompute, RECOMPUTE)
        check_flag("sequence_parallel", self.sequence_parallel)
        if (self.dp * self.cp) % self.ep:
            raise InvalidInput(f"ep is {self.ep}; it must divide dp * cp, which is {self.dp} * {self.cp}")
        if self.sequence_parallel and self.tp == 1:
            raise InvalidInput("sequence_parallel is True and tp is 1; it divides over tp, which must be above 1")
        if self.zero >= 2 and self.pp > 1:
            raise InvalidInput(
                f"zero is {self.zero} and pp is {self.pp}; with a pipeline zero must be 0 or 1, since every micro-batch "
                "would reduce or gather whole stages"
            )
        if self.stage_layers is not None:
            if not isinstance(self.stage_layers, tuple) or len(self.stage_layers) != self.pp:
                raise InvalidInput(
                    f"stage_layers is {in_short(self.stage_layers)}; it must be {self.pp} numbers, one per stage"
                )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def stages(self) -> int:
        """Number of pipeline stages: several per device where the schedule has several."""
        return self.pp * (_CHUNKS.get(self.schedule, 1) if self.pp > 1 else 1)

    def axis_devices(self, axis: str, first: int = 0) -> tuple[int, ...]:
        """Returns the devices of the group of `axis` that device `first` belongs to, in ascending order.

        `axis` is "tp", "cp", "dp", "pp", "ep", "dp+cp" (the devices that hold the same parameters) or "edp" (the devices that
        hold the same experts).

        >>> Layout(tp=2, cp=2, dp=2).axis_devices("dp+cp", first=1)
        (1, 3, 5, 7)
        """
        return tuple(self.axis_range(axis, first))

    def axis_range(self, axis: str, first: int = 0) -> range:
        """Returns the devices of `axis_devices`, which are equally far apart.

        >>> Layout(tp=2, cp=2, dp=2).axis_range("dp", first=1)
        range(1, 9, 4)
        """
        width = self.tp * self.cp
        spans = {  # distance of neighbours, and number of devices
            "tp": (1, self.tp),
            "cp": (self.tp, self.cp),
            "dp": (width, self.dp),
            "pp": (width * self.dp, self.pp),
            "ep": (self.tp, self.ep),
            "dp+cp": (self.tp, self.cp * self.dp),
            "edp": (self.tp * self.ep, self.cp * self.dp // self.ep),
        }
        check_text("axis", axis, spans)
        distance, count = spans[axis]
        start = first - first // distance % count * distance
        return range(start, start + count * distance, distance)

    def axis_groups(self, axis: str, first: int, count: int) -> list[range]:
        """Returns the groups of `axis` among the devices from `first` on, `count` of them; none if a group is one device.

        >>> Layout(tp=2, dp=2).axis_groups("tp", 0, 4)
        [range(0, 2), range(2, 4)]
        """
        if len(self.axis_range(axis)) == 1:
            return []
        return list(dict.fromkeys(self.axis_range(axis, device) for device in range(first, first + count)))

    def __repr__(self) -> str:
        fields_text = [
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default
        ]
        return f"Layout({', '.join(fields_text)})"
