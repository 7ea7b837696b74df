"""The random generators that layers draw from."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class States:
    """Generator states of the CPU and of every CUDA device in use."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] = ()

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for index, state in enumerate(self.cuda):
            torch.cuda.set_rng_state(state, index)


def generator_states() -> States:
    """Returns the current states. CUDA is queried only if it is in use."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    return States(torch.get_rng_state(), tuple(torch.cuda.get_rng_state(i) for i in cuda))


def same_states(a: States, b: States) -> bool:
    """Whether no random number was drawn between two states."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]  # states are real where tensors are fake
        return torch.equal(a.cpu, b.cpu) and len(a.cuda) == len(b.cuda) and all(map(torch.equal, a.cuda, b.cuda))
