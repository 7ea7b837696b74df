"""The random generators that layers draw from: torch's, and on the host Python's and NumPy's."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, eq=False)
class HostStates:
    """States of Python's generator, and of NumPy's if NumPy is loaded."""

    python: Any
    numpy: Any = None

    def restore(self) -> None:
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


def host_states() -> HostStates:
    """Returns the current states of the generators on the host."""
    numpy = sys.modules.get("numpy")
    return HostStates(random.getstate(), None if numpy is None else numpy.random.get_state(legacy=False))


def same_host_states(a: HostStates, b: HostStates) -> bool:
    """Whether no random number was drawn between two states."""
    if a.python != b.python or (a.numpy is None) != (b.numpy is None):
        return False
    if a.numpy is None:
        return True
    x, y = a.numpy["state"], b.numpy["state"]
    return bool(x["pos"] == y["pos"] and (x["key"] == y["key"]).all()) if "key" in x else repr(x) == repr(y)


def seed_generators(seed: int) -> None:
    """Seeds the generators of torch, of Python, and of NumPy if it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)  # the seeds that it takes


@contextlib.contextmanager
def restored_generators() -> Iterator[None]:
    """Restores the generators of torch, Python and NumPy at the end, whatever is drawn or seeded meanwhile."""
    states, hosts = generator_states(), host_states()
    try:
        yield
    finally:
        states.restore()
        hosts.restore()
