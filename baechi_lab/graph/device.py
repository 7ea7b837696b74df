"""Device: one device of a cluster, the largest number of devices, and short names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..checks import check_whole, finite
from ..errors import InvalidInput, in_short
from .columns import text
from .hardware import FAMILIES, HARDWARE, Hardware, known_kind
from .units import MOST_US, parse_bytes

MOST_DEVICES = 4096
"""Most devices of a cluster: links are dense matrices with a number per ordered pair, here 16 million."""


def device_count(n: Any, field: str = "number of devices") -> int:
    """Returns `n`; raises `InvalidInput` if a cluster may not have so many devices."""
    check_whole(field, n)
    if n > MOST_DEVICES:
        raise InvalidInput(f"{field} is {in_short(n)}; at most {MOST_DEVICES} are possible")
    return int(n)


DEFAULT_MEMORY = 8 * 10**9
"""Default memory in bytes of a device whose kind is not in the hardware table; a GB is 10**9 bytes, as on data sheets."""


def default_memory(kind: str) -> int:
    """Returns the default memory in bytes of a device of this kind.

    >>> default_memory("A100"), default_memory("gpu")
    (80000000000, 8000000000)
    """
    hardware_name = known_kind(kind)
    return HARDWARE[hardware_name].memory_bytes if hardware_name else DEFAULT_MEMORY


@dataclass(frozen=True)
class Device:
    """One device of a cluster.

    Args:
        name: distinct within a cluster.
        kind: such as "gpu", "cpu" (in any case) or "a100"; an op may have a duration per kind.
        memory_bytes: capacity, as a number or a text such as "8GB".
        speed: relative to the reference device; durations are divided by it.

    Raises:
        InvalidInput: an empty name or kind, negative memory, a speed that is not between 1e-150 and 1e150.

    >>> Device("gpu:0", "gpu", 8 << 30).speed
    1.0
    """

    name: str
    kind: str
    memory_bytes: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        for key in ("name", "kind"):
            value = getattr(self, key)
            if not isinstance(value, str) or not value:
                raise InvalidInput(f"device {key} is {in_short(value)}; it must be a non-empty text")
            text(f"device {key}", value)
        if self.kind.lower() in FAMILIES:
            object.__setattr__(self, "kind", self.kind.lower())
        object.__setattr__(
            self, "memory_bytes", parse_bytes(self.memory_bytes, f"memory_bytes of device {self.name!r}")
        )
        if self.memory_bytes < 0:
            raise InvalidInput(f"memory_bytes of device {self.name!r} is {self.memory_bytes}; it must not be negative")
        speed = finite(self.speed)
        if speed is None or not 1 / MOST_US <= speed <= MOST_US:  # durations are divided by it, and must stay finite
            raise InvalidInput(
                f"speed of device {self.name!r} is {in_short(self.speed)}; it must be finite and above 0, "
                f"from {1 / MOST_US:g} to {MOST_US:g}"
            )
        object.__setattr__(self, "speed", speed)

    @property
    def family(self) -> str:
        """`gpu`, `cpu` or `tpu` for kinds in the hardware table, else the kind itself.

        >>> Device("a", "A100", 1).family, Device("b", "cpu-core", 1).family, Device("c", "fpga", 1).family
        ('gpu', 'cpu', 'fpga')
        """
        hardware_name = known_kind(self.kind)
        return HARDWARE[hardware_name].kind if hardware_name else self.kind


def device_of(hardware: Hardware, name: str | None = None) -> Device:
    """Returns a device of that hardware, with its memory, for a cluster; by default the first of its family.

    >>> device_of(Hardware.named("a100"))
    Device(name='gpu:0', kind='gpu', memory_bytes=80000000000, speed=1.0)
    """
    return Device(name or f"{hardware.kind}:0", hardware.kind, hardware.memory_bytes)


def short_device(name: str) -> str:
    """Shortens a TensorFlow device name to `cpu:0`, with the task for other machines; other names stay.

    >>> short_device("/device:GPU:1"), short_device("gpu:1"), short_device("/job:worker/replica:0/task:3/device:GPU:0")
    ('gpu:1', 'gpu:1', 'worker:3/gpu:0')
    """
    head, separator, tail = name.rpartition("device:")
    if not separator or not head.endswith("/"):
        return name
    task = re.search(r"/job:(?!localhost/)([^/]+)(?:/replica:\d+)?/task:(\d+)", head)
    return (f"{task[1]}:{task[2]}/" if task else "") + tail.lower()
