"""Parts of one tensor: queries, keys and values of one product, the last step of a sequence.

PyTorch keeps a whole storage while any view of it is alive, wherever its readers are. So what reads a part reads it of an op
of its own, `name/parts`: a `VIEW` beside the call that made the whole. A part that goes to another device is sent as what it
is, and the whole stays until the last part is not needed any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...graph.tensors import TensorTable
from ...torch.records import Trace

Made = tuple[int, int]
"""A call and a storage that it made."""


@dataclass(frozen=True)
class Values:
    """How values become tensors of a graph.

    `same` says of every value which is the first that is the same tensor, `whole` which is all of a storage that is read in
    parts, and `op` what hands out its parts.
    """

    trace: Trace
    same: list[int]
    whole: dict[Made, int] = field(default_factory=dict)
    op: dict[Made, int] = field(default_factory=dict)

    def add(self, table: TensorTable, k: int, readers: Iterable[int]) -> None:
        """Value `k` is read by some ops."""
        value = self.trace.values[k]
        made, producer = (value.producer, value.storage), value.producer
        if made in self.op and value.size_bytes < self.trace.values[self.whole[made]].size_bytes:
            self._tensor(table, producer, self.whole[made], [self.op[made]])
            producer = self.op[made]
        self._tensor(table, producer, k, readers)

    def _tensor(self, table: TensorTable, producer: int, k: int, readers: Iterable[int]) -> None:
        table.add(producer, f"value:{self.same[k]}", self.trace.values[k].size_bytes, readers)

    def beside(self) -> Iterable[tuple[int, int]]:
        """Of every op the call that it lies beside, as `(call, op)`."""
        return ((producer, op) for (producer, _), op in self.op.items())

    def names(self) -> list[str]:
        """Of the ops; a call that makes several storages has one for each that is read in parts."""
        found: list[str] = []
        for producer, _ in self.op:
            name = f"{self.trace.calls[producer].key}/parts"
            while name in found:
                name += "'"
            found.append(name)
        return found


def values_of(trace: Trace, read: Iterable[int], first: int) -> Values:
    """The tensors of a trace whose values `read` are read by ops; the ops of parts are numbered from `first` on."""
    whole: dict[Made, int] = {}
    for k, value in enumerate(trace.values):
        made = value.producer, value.storage
        if value.position >= 0 and value.size_bytes > (trace.values[whole[made]].size_bytes if made in whole else 0):
            whole[made] = k
    cut = dict.fromkeys(
        made
        for value in (trace.values[k] for k in read)
        if (made := (value.producer, value.storage)) in whole
        and value.size_bytes < trace.values[whole[made]].size_bytes
    )
    return Values(trace, same_tensors(trace), whole, {made: first + k for k, made in enumerate(cut)})


def same_tensors(trace: Trace) -> list[int]:
    """Value -> the first value that is the same tensor: views of one size of one tensor.

    Those that begin at different places are tensors of their own (queries, keys and values of one product), unless they
    are more than the whole, as windows that overlap are.
    """
    whole: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, int, int], set[int]] = {}
    for value in trace.values:
        made = (value.producer, value.storage)
        whole[made] = max(whole.get(made, 0), value.size_bytes)
        places.setdefault((*made, value.size_bytes), set()).add(value.offset)
    first: dict[tuple[int, int, int, int], int] = {}
    found = []
    for k, value in enumerate(trace.values):
        key = (value.producer, value.storage, value.size_bytes)
        apart = len(places[key]) * value.size_bytes <= whole[key[:2]]
        found.append(first.setdefault((*key, value.offset if apart else 0), k))
    return found
