"""The base class of schedule rules, and the record of the pipeline that they schedule."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ...errors import InvalidInput
from ...graph.kernels.csr import Floats
from ...params import Params

Orders = list[list[tuple[int, str, int]]]

SHAPES = {
    "chain": "one stage on each device",
    "loop": "stages that go round the devices in turn, equally many on each",
    "v": "two stages on each device, going through the devices and back",
}


@dataclass(frozen=True)
class Setting:
    """A pipeline of `S` stages on `p` devices, both counted along it, and what its stages cost per micro-batch.

    - `stage_device` int[S]: the device of each stage.
    - `forward_us`, `input_us`, `weight_us` float64[S]: durations of F, B and W of each stage.
    - `send_us`, `return_us` float64[S - 1]: transfers from each stage to the next, and back.
    - `held_bytes` float64[S]: live bytes of a micro-batch after its F; `kept_bytes`: those between its B and its W.
    - `room_bytes` float64[p]: memory of each device for these bytes.
    - `training`: whether there is a backward pass.
    - `replicas`: number of devices that share the work of each of the `p` devices (default: one each). Orders are those of all
      replicas together; each replica processes every r-th micro-batch.
    """

    stage_device: tuple[int, ...]
    micro_batches: int
    forward_us: Floats
    input_us: Floats
    weight_us: Floats
    send_us: Floats
    return_us: Floats
    held_bytes: Floats
    kept_bytes: Floats
    room_bytes: Floats
    training: bool = True
    replicas: tuple[int, ...] = ()

    def warm_up(self, stage: int) -> int:
        """Returns the number of forwards before the first backward of a stage of a chain, enough to keep every device busy.

        Without replicas it is p - 1 - s for stage s of p. With r replicas it is a multiple of r that exceeds the warm-up of
        the next stage by the replicas of that stage: then a micro-batch spends no longer in the two stages than the other
        micro-batches keep them busy. PipeDream (doi:10.1145/3341301.3359646, section 3.2) divides the devices from the stage
        on by r, rounded up. If a stage in the middle has replicas, this may be one micro-batch too few.
        """
        width = self.replicas or (1,) * self.stages
        forwards = 0
        for s in reversed(range(stage, self.stages - 1)):
            forwards = -(-(forwards + width[s + 1]) // width[s]) * width[s]
        return forwards

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.stage_device)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return max(self.stage_device, default=-1) + 1


class ScheduleRule(Params):
    """Subclass as a frozen dataclass; the docstring's first line is the listing. `shape` is one of `SHAPES`.

    `splits`: whether gradients of weights are units of their own (W).
    """

    name: ClassVar[str]
    shape: ClassVar[str] = "chain"
    splits: ClassVar[bool] = False

    @abstractmethod
    def orders(self, setting: Setting) -> Orders:
        """Returns the units of training in order, per device. For inference, B and W are removed afterwards."""

    def check_shape(self, stage_device: tuple[int, ...]) -> None:
        """Raises `InvalidInput` if the stages do not lie on the devices as this schedule requires."""
        stages, devices = len(stage_device), max(stage_device, default=-1) + 1
        if not fits(self.shape, stage_device):
            raise InvalidInput(
                f"schedule {self.name!r} needs {SHAPES[self.shape]}; the placement has {stages} stages on {devices} devices"
            )


def fits(shape: str, stage_device: tuple[int, ...]) -> bool:
    """Whether the stages lie on the devices in this shape."""
    stages, devices = len(stage_device), max(stage_device, default=-1) + 1
    round_trip = [*range(devices), *reversed(range(devices))]
    requirements = {
        "chain": list(range(stages)),
        "loop": [s % max(devices, 1) for s in range(stages)],
        "v": round_trip,
    }[shape]
    return list(stage_device) == requirements and (shape != "loop" or stages % max(devices, 1) == 0)


def one_forward_one_backward(warm_up: int, forwards: list[int], stage: int) -> list[tuple[int, str, int]]:
    """Returns `warm_up` forwards, then a forward and a backward in turns, then the remaining backwards."""
    order = [(stage, "F", m) for m in forwards[:warm_up]]
    for k, m in enumerate(forwards[warm_up:]):
        order += [(stage, "F", m), (stage, "B", forwards[k])]
    return order + [(stage, "B", m) for m in forwards[max(len(forwards) - warm_up, 0) :]]


def with_lagging_weights(order: list[tuple[int, str, int]], lag: int) -> list[tuple[int, str, int]]:
    """Inserts gradients of weights, `lag` micro-batches after those of inputs; the remaining ones come at the end."""
    lagged_order: list[tuple[int, str, int]] = []
    pending_weights: list[tuple[int, str, int]] = []
    for unit in order:
        lagged_order.append(unit)
        if unit[1] == "B":
            pending_weights.append((unit[0], "W", unit[2]))
            if len(pending_weights) > lag:
                lagged_order.append(pending_weights.pop(0))
    return lagged_order + pending_weights
