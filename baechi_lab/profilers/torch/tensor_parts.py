"""Parts of one tensor: queries, keys and values of one product, the last step of a sequence.

PyTorch keeps a whole storage while any view of it is alive. So an op that reads a part reads it from an extra op,
`name/parts`, which is a `VIEW` on the device of the call that made the whole. A part that goes to another device is sent with
its own size, and the whole stays until the last part is no longer needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...graph.tensors import TensorTable
from ...torch_steps.records import Trace

CallStorage = tuple[int, int]
"""A call and a storage that it made."""


@dataclass(frozen=True)
class ValueTensors:
    """How values become tensors of a graph.

    `same` maps every value to the first value that is the same tensor. `whole_value` maps a storage that is read in parts to
    the value that covers it, and `op` maps it to the op that produces its parts.
    """

    trace: Trace
    same: list[int]
    whole_value: dict[CallStorage, int] = field(default_factory=dict)
    op: dict[CallStorage, int] = field(default_factory=dict)

    def add(self, table: TensorTable, k: int, readers: Iterable[int]) -> None:
        """Adds readers of value `k`."""
        value = self.trace.values[k]
        key, producer = (value.producer, value.storage), value.producer
        if key in self.op and value.size_bytes < self.trace.values[self.whole_value[key]].size_bytes:
            self._tensor(table, producer, self.whole_value[key], [self.op[key]])
            producer = self.op[key]
        self._tensor(table, producer, k, readers)

    def _tensor(self, table: TensorTable, producer: int, k: int, readers: Iterable[int]) -> None:
        table.add(producer, f"value:{self.same[k]}", self.trace.values[k].size_bytes, readers)

    def colocations(self) -> Iterable[tuple[int, int]]:
        """Yields `(call, op)` for every op of parts and the call on whose device it is."""
        return ((producer, op) for (producer, _), op in self.op.items())

    def names(self) -> list[str]:
        """Returns the names of the ops; a call has one op for each storage that is read in parts."""
        op_names: list[str] = []
        for producer, _ in self.op:
            name = f"{self.trace.calls[producer].key}/parts"
            while name in op_names:
                name += "'"
            op_names.append(name)
        return op_names


def value_tensors(trace: Trace, read: Iterable[int], first: int) -> ValueTensors:
    """Returns the tensors of a trace whose values `read` are read by ops; ops of parts are numbered from `first` on."""
    whole_value: dict[CallStorage, int] = {}
    for k, value in enumerate(trace.values):
        key = value.producer, value.storage
        if value.position >= 0 and value.size_bytes > (
            trace.values[whole_value[key]].size_bytes if key in whole_value else 0
        ):
            whole_value[key] = k
    cut = dict.fromkeys(
        key
        for value in (trace.values[k] for k in read)
        if (key := (value.producer, value.storage)) in whole_value
        and value.size_bytes < trace.values[whole_value[key]].size_bytes
    )
    return ValueTensors(trace, same_tensors(trace), whole_value, {key: first + k for k, key in enumerate(cut)})


def same_tensors(trace: Trace) -> list[int]:
    """Returns value -> the first value that is the same tensor: views of equal size of one tensor.

    Views with different offsets are different tensors (queries, keys and values of one product), unless together they exceed
    the whole, as overlapping windows do.
    """
    storage_bytes: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, int, int], set[int]] = {}
    for value in trace.values:
        key_of_storage = (value.producer, value.storage)
        storage_bytes[key_of_storage] = max(storage_bytes.get(key_of_storage, 0), value.size_bytes)
        places.setdefault((*key_of_storage, value.size_bytes), set()).add(value.offset)
    first: dict[tuple[int, int, int, int], int] = {}
    first_values = []
    for k, value in enumerate(trace.values):
        key = (value.producer, value.storage, value.size_bytes)
        is_separate = len(places[key]) * value.size_bytes <= storage_bytes[key[:2]]
        first_values.append(first.setdefault((*key, value.offset if is_separate else 0), k))
    return first_values
