"""Data flow between the calls of a forward: which call computed each tensor, and which calls have read it since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ..torch_runtime.storage import offset_bytes, storage_key, tensor_bytes
from .records import Value


class Flow:
    """The tensors of a running forward, by identity. `values` and `groups` become those of the `Trace`."""

    def __init__(self, model: nn.Module) -> None:
        self.values: list[Value] = []
        self.groups: list[tuple[int, ...]] = []
        # id -> the tensor, which keeps it alive, and its value; -1 for an input of the model
        self.value_of: dict[int, tuple[torch.Tensor, int]] = {}
        # id -> a parameter, or a view of one, and its name
        self.parameter_of = {id(p): (p, name) for name, p in model.named_parameters()}
        self.writer: dict[int, int] = {}  # storage -> call that wrote it last
        self.readers: dict[int, list[int]] = {}  # storage -> calls that read it since
        self.storages: dict[int, int] = {}

    def tracked_tensors(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors that are parameters or were computed from the model's inputs."""
        return [t for t in tensors if id(t) in self.value_of or id(t) in self.parameter_of]

    def producer(self, tensor: torch.Tensor) -> int:
        """Returns the call that computed or wrote the data of a known tensor last; -1 for an input."""
        value = self.value_of[id(tensor)][1]
        first_producer = self.values[value].producer if value >= 0 else -1
        return max(first_producer, self.writer.get(storage_key(tensor), -1))

    def behind(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Returns the call that computed a tensor, and the call that wrote its data last."""
        if id(tensor) not in self.value_of:
            return ()
        value = self.value_of[id(tensor)][1]
        return (self.values[value].producer if value >= 0 else -1, self.producer(tensor))

    def add_value(self, tensor: torch.Tensor, producer: int, position: int = -1) -> int:
        """Records a tensor that a call has computed. Returns the index of its value."""
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        storage = self.storages.setdefault(storage_key(tensor), len(self.storages))
        size, grad = tensor_bytes(tensor), tensor.requires_grad
        self.values.append(Value(producer, size, dtype, shape, grad, position, storage, offset_bytes(tensor)))
        self.value_of[id(tensor)] = (tensor, len(self.values) - 1)
        return len(self.values) - 1

    def add_carried(self, tensor: torch.Tensor, producer: int) -> None:
        """Records a tensor whose data a call computed earlier; -1 for none, as for an input."""
        if producer >= 0:
            self.add_value(tensor, producer)
        else:
            self.value_of[id(tensor)] = (tensor, -1)

    def shunt(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Records tensors that share memory with inputs. A view has the producer of its base; a constant has none."""
        for tensor in outputs:
            same = [t for t in inputs if storage_key(t) == storage_key(tensor)]
            base = next((t for t in same if id(t) in self.value_of), None)
            if base is not None and tensor is not base:
                self.add_carried(tensor, self.producer(base))
            source = next((t for t in same if id(t) in self.parameter_of), None)
            if source is not None and id(tensor) not in self.parameter_of:
                self.parameter_of[id(tensor)] = (tensor, self.parameter_of[id(source)][1])

    def read(self, inputs: list[torch.Tensor], index: int) -> dict[int, int]:
        """Records that call `index` reads tensors. Returns value -> its first position among them."""
        reads: dict[int, int] = {}
        for position, tensor in enumerate(inputs):
            if id(tensor) not in self.value_of:
                continue
            value, producer = self.value_of[id(tensor)][1], self.producer(tensor)
            if producer >= 0 and (value < 0 or self.values[value].producer != producer):
                value = self.add_value(tensor, producer)  # written in place since: a new value of the same tensor
            if value >= 0:
                reads.setdefault(value, position)
            self.readers.setdefault(storage_key(tensor), []).append(index)
        return reads

    def write(self, written_storages: set[int], index: int) -> set[int]:
        """Records in-place writes of call `index`, which share a group with the producers. Returns the calls that must come
        before.
        """
        after: set[int] = set()
        for storage in written_storages:
            after |= {r for r in self.readers.get(storage, []) if r != index}
            values = [v for t, v in self.value_of.values() if v >= 0 and storage_key(t) == storage]
            producers = {self.values[v].producer for v in values}
            producers |= {self.writer[storage]} if storage in self.writer else set()
            if producers:
                self.groups.append(tuple(sorted({*producers, index})))
            self.writer[storage] = index
            self.readers[storage] = [index]
        return after

    def release_tensors(self) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
        """Yields the last references to the tensors of the forward, with the calls that computed them."""
        self.parameter_of.clear()
        behind = {key: self.behind(tensor) for key, (tensor, value) in self.value_of.items() if value >= 0}
        while self.value_of:
            key, (tensor, _) = self.value_of.popitem()
            if key in behind:
                yield tensor, behind[key]
