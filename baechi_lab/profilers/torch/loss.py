"""The costs of the loss of a step, and where its targets lie in memory.

Targets are part of the batch, which the device of the first call holds for the whole step. So an op `targets` on that device
hands them out as views, which take no memory there. A loss on another device receives a copy, and keeps what it has saved of
it until its backward pass.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .memory import CallMemory

LEAST_SHARE = 0.01
"""Least share of the largest output that targets must have to get an op. Smaller ones count as saved by the loss."""


@dataclass(frozen=True, eq=False)
class Loss:
    """Times of the loss, forward and backward, in microseconds, and its memory.

    `call` is the call next to which the loss is computed, `outputs` are the positions of model outputs that get gradients.
    `target_bytes` are those of all targets.
    """

    call: int
    forward_us: float
    backward_us: float
    memory: CallMemory
    outputs: tuple[int, ...]
    target_bytes: int = 0

    @property
    def saved_target_bytes(self) -> int:
        """Bytes of the batch that the loss saves for its backward pass."""
        return self.memory.saved_batch_bytes

    @property
    def other_target_bytes(self) -> int:
        """Bytes of the targets that the loss reads without saving them."""
        return max(self.target_bytes - self.saved_target_bytes, 0)

    def has_target_op(self, largest_output: int) -> bool:
        """Whether the targets are large enough for an op of their own."""
        return self.saved_target_bytes + self.other_target_bytes > LEAST_SHARE * largest_output


def unused_name(name: str, names: Collection[str]) -> str:
    """Returns `name`, with primes if `names` has it already.

    >>> unused_name("loss", ["loss", "loss'"])
    "loss''"
    """
    while name in names:
        name += "'"
    return name
