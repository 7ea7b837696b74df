"""Parts and views of one tensor, such as queries, keys and values of one product.

PyTorch keeps a whole storage while any view of it is alive. So an op that reads a part reads it from an extra op,
`name/parts`, which is a `VIEW` on the device of the call that made the whole tensor. A part that goes to another device is
sent with its own size, and the whole stays until the last part is no longer needed. A view of the whole is such a part if
another value of the whole is read too: each tensor that another device reads is sent, views of one memory included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ...graph.tensors import TensorTable
from ...torch_steps.records import Trace

CallStorage = tuple[int, int]
"""A call and a storage that it made."""


@dataclass(frozen=True)
class ValueTensors:
    """Converts values of a trace to tensors of a graph.

    `same` maps every value to the first value that is the same tensor. `whole_value` maps a storage that is read in parts or by
    several views to the value that covers it, and `op` maps it to the op that produces them.
    """

    trace: Trace
    same: list[int]
    whole_value: dict[CallStorage, int] = field(default_factory=dict)
    op: dict[CallStorage, int] = field(default_factory=dict)

    def add(self, table: TensorTable, k: int, readers: Iterable[int]) -> None:
        """Adds readers of value `k`."""
        value = self.trace.values[k]
        key, producer = (value.producer, value.storage), value.producer
        if key in self.op and self.same[k] != self.same[self.whole_value[key]]:
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


def value_tensors(trace: Trace, read: Iterable[int], first_op: int) -> ValueTensors:
    """Returns the tensors of a trace whose values `read` are read by ops; ops of parts are numbered from `first_op` on."""
    whole_value: dict[CallStorage, int] = {}
    for k, value in enumerate(trace.values):
        key = value.producer, value.storage
        if value.position >= 0 and value.size_bytes > (
            trace.values[whole_value[key]].size_bytes if key in whole_value else 0
        ):
            whole_value[key] = k
    read_values = sorted(read)
    same = same_tensors(trace, read_values)
    tensors_read: dict[CallStorage, set[int]] = {}
    for k in read_values:
        tensors_read.setdefault((trace.values[k].producer, trace.values[k].storage), set()).add(same[k])
    for key, covering_value in whole_value.items():  # a view that is read alone stands for the whole
        views = tensors_read.get(key, set())
        if len(views) == 1 and (view := next(iter(views))) != same[covering_value]:
            if trace.values[view].size_bytes == trace.values[covering_value].size_bytes:
                same[covering_value] = view
    storages_in_parts = [
        key for key, views in tensors_read.items() if key in whole_value and views - {same[whole_value[key]]}
    ]
    return ValueTensors(trace, same, whole_value, {key: first_op + k for k, key in enumerate(storages_in_parts)})


def same_tensors(trace: Trace, read: Collection[int] = ()) -> list[int]:
    """Returns value -> the first value that is the same tensor: views of equal size of one tensor, except those that are `read`.

    Views with different offsets are different tensors (queries, keys and values of one product), unless together they exceed
    the whole, as overlapping windows do.
    """
    storage_bytes: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, int, int], set[int]] = {}
    for value in trace.values:
        storage_key = (value.producer, value.storage)
        storage_bytes[storage_key] = max(storage_bytes.get(storage_key, 0), value.size_bytes)
        places.setdefault((*storage_key, value.size_bytes), set()).add(value.offset)
    first_by_place: dict[tuple[int, int, int, int, int], int] = {}
    first_values, is_read = [], set(read)
    for k, value in enumerate(trace.values):
        key = (value.producer, value.storage, value.size_bytes)
        is_separate = len(places[key]) * value.size_bytes <= storage_bytes[key[:2]]
        separate_view = k if k in is_read and is_separate else -1
        first_values.append(first_by_place.setdefault((*key, value.offset if is_separate else 0, separate_view), k))
    return first_values
