"""In which order the calls of a forward use the model's parameters and buffers, and which uses the trace cannot see."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ..torch_runtime.storage import storage_key
from .pinned_calls import PinnedCalls


class State:
    """The users of every parameter and buffer in a running forward. What cannot be ordered is pinned (`pinned_calls`)."""

    def __init__(self, model: nn.Module, pinned_calls: PinnedCalls):
        self.model, self.pinned_calls = model, pinned_calls
        # storage of a parameter or buffer -> the calls that used it since its last write, and the writer
        self.latest: dict[int, tuple[list[int], int]] = {
            storage_key(t): ([], -1) for t in (*model.parameters(), *model.buffers())
        }
        self.users: dict[int, set[int]] = {}  # storage -> all calls that used it; -1 for code between calls
        self.seen_writes: set[int] = set()  # storages of state and inputs that calls have written
        self.calls_of: dict[str, list[int]] = {}

    def touch(self, index: int, used: set[int], written_storages: set[int]) -> set[int]:
        """Records what call `index` uses and writes. Returns the calls that must come before because they use the same state."""
        after: set[int] = set()
        for storage in (used | written_storages) & self.latest.keys():
            users, writer = self.latest[storage]
            self.users.setdefault(storage, set()).add(index)
            if storage in written_storages:
                after.update(users, (writer,))
                self.latest[storage] = ([], index)
            else:
                after.add(writer)
                users.append(index)
        return after - {-1, index}

    def touched_between(self, inputs: list[torch.Tensor], written_storages: set[int]) -> None:
        """Records state used by code between operators. Such code runs at once, so state that calls write must be up to date."""
        for storage in {storage_key(t) for t in inputs} & self.latest.keys():
            users, writer = self.latest[storage]
            self.users.setdefault(storage, set()).add(-1)
            self.pinned_calls.pin(
                [writer, *(users if storage in written_storages else ())], "state that is read between calls"
            )
        self.seen_writes |= written_storages & self.latest.keys()

    def called_again(self, module: nn.Module | None, name: str, index: int) -> set[int]:
        """Returns the previous call of a module with buffers. They keep code order, because state passes between them."""
        if module is None or next(module.buffers(), None) is None:
            return set()
        earlier = self.calls_of.setdefault(name, [])
        earlier.append(index)
        return set(earlier[-2:-1])

    def pin_unseen_writes(self, written_tensors: Iterable[torch.Tensor], modules: list[str | None]) -> None:
        """Pins calls because of writes that no call was seen to make; `modules` has the layer of every call."""
        for storage in (s for s in map(storage_key, written_tensors) if s not in self.seen_writes):
            # some kernels do not raise the version, for example for running statistics of a batch norm
            if storage not in self.latest:
                self.pinned_calls.pin(range(len(modules)), "the forward changes a tensor of the model or of its inputs")
            elif not self._are_ordered(self.users.get(storage, set()), modules):
                self.pinned_calls.pin(self.users[storage], "state that the forward changes")

    def _are_ordered(self, users: set[int], modules: list[str | None]) -> bool:
        """Whether the users of one piece of state are ordered already; see `called_again`."""
        if len(users) <= 1:
            return True
        owners = {modules[i] if i >= 0 else None for i in users}
        name = owners.pop()
        return not owners and name is not None and next(self.model.get_submodule(name).buffers(), None) is not None
