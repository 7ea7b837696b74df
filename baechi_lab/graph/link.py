"""Link: the cost of moving bytes from one device to another."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import finite
from ..errors import InvalidInput, in_short
from .units import MOST_US


@dataclass(frozen=True, repr=False)
class Link:
    """The linear cost of one ordered device pair: `latency_us + us_per_byte * size_bytes`.

    Args:
        latency_us: microseconds per message.
        us_per_byte: microseconds per byte; 0.001 is 1 GB/s.
        overhead_us: LogGP's `o` (Alexandrov et al. 1995, doi:10.1145/215399.215427): processor time that each message
            takes from the sending device and again from the receiving one, which compute nothing meanwhile. Devices
            with transfer engines have none; workers without, such as those of `bl.LocalCluster`, do. The simulator adds
            it to the duration of the op that made the tensor, and of the first op that reads it on the other device.

    Raises:
        InvalidInput: a number that is negative, not finite or above 1e150.

    >>> Link(134.0, 0.0001754).cost_us(1 << 20)
    317.9202...
    """

    latency_us: float
    us_per_byte: float
    overhead_us: float = 0.0

    def __post_init__(self) -> None:
        for key in ("latency_us", "us_per_byte", "overhead_us"):
            value = finite(getattr(self, key))
            if value is None or value < 0:
                raise InvalidInput(
                    f"link {key} is {in_short(getattr(self, key))}; it must be finite and not negative "
                    "(a bandwidth of 0 has no link)"
                )
            if value > MOST_US:
                raise InvalidInput(f"link {key} is {value:g}; it must be at most {MOST_US:g}")
            object.__setattr__(self, key, value)  # 0 and 0.0 are one cost, and must have one hash
        if (message_us := self.latency_us + 2 * self.overhead_us) > MOST_US:
            raise InvalidInput(f"link latency_us + 2 * overhead_us is {message_us:g}; it must be at most {MOST_US:g}")

    @classmethod
    def from_bandwidth(cls, bytes_per_us: float, latency_us: float = 0.0) -> Link:
        """Returns a link of a given bandwidth in bytes per microsecond (1000 = 1 GB/s)."""
        if not finite(bytes_per_us) or bytes_per_us <= 0:
            raise InvalidInput(
                f"link bandwidth is {in_short(bytes_per_us)}; it must be finite and above 0 bytes per microsecond"
            )
        return cls(latency_us, 1.0 / bytes_per_us)

    def cost_us(self, size_bytes: int) -> float:
        """Returns the microseconds to move `size_bytes`, without `overhead_us`.

        Raises `InvalidInput` if `size_bytes` is negative or no finite number.
        """
        size = finite(size_bytes)
        if size is None or size < 0:
            raise InvalidInput(f"size_bytes is {in_short(size_bytes)}; it must be finite and not negative")
        return self.latency_us + self.us_per_byte * size

    def __repr__(self) -> str:
        overhead_text = f", overhead_us={self.overhead_us!r}" if self.overhead_us else ""
        return f"Link(latency_us={self.latency_us!r}, us_per_byte={self.us_per_byte!r}{overhead_text})"


PCIE = Link(134.0, 0.0001754)
"""PCIe 3.0 through host memory (Jeon et al. 2020, section 5.1)."""

FREE = Link(0.0, 0.0)
"""Moves bytes at no cost."""
