"""The rules of a valid graph; each error names the field, the place and what is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ColocationError, CostError, DuplicateNameError, InvalidInput, UnknownOpError, in_short
from .columns import require_entries
from .device import MOST_DEVICES
from .kernels.csr import Integers
from .units import MOST_US

if TYPE_CHECKING:
    from .opgraph import OpGraph

MOST_BYTES = 2**61 - 1
"""All bytes of a graph may add up to this, so that sums stay exact integers; all of its durations to `MOST_US`."""


def check_ids(meaning: str, ids: Integers, n: int, lowest: int = 0) -> None:
    """Rejects an index that names no op; `lowest` is -1 where that means none."""
    bad = np.flatnonzero((ids < lowest) | (ids >= n))
    if len(bad):
        raise UnknownOpError(f"{meaning} {int(bad[0])} names op {int(ids[bad[0]])}; the graph has ops 0..{n - 1}")


def _check_length(field_name: str, value: Sequence[str] | NDArray[np.generic], n: int, unit: str) -> None:
    if getattr(value, "ndim", 1) != 1 or len(value) != n:
        raise InvalidInput(f"{field_name} has shape {np.shape(value)}; it must have one entry per {unit}, ({n},)")


def _check_cost(
    field_name: str, values: NDArray[np.float64] | NDArray[np.int64], name_of: Callable[[int], str]
) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        index = int(bad[0])
        raise CostError(f"{field_name} of {name_of(index)} is {values[index]}; it must be finite and not negative")


def _check_distinct(meaning: str, names: Iterable[object], count: int) -> None:
    name_list = list(names)
    if len(set(name_list)) != count:
        repeated_name = next(name for name, times in Counter(name_list).items() if times > 1)
        raise DuplicateNameError(f"{meaning} {repeated_name!r} appears more than once; names must be distinct")


def validate(graph: OpGraph) -> None:
    """Checks every rule of the record; called once, on construction."""
    n, tensors = graph.n, len(graph.tensor_producer)
    # One entry per op or tensor, no negative costs, distinct names.
    for key in ("duration_us", "temp_bytes", "persistent_bytes", "op_types", "colocation", "allowed", "forward_of"):
        _check_length(key, getattr(graph, key), n, "op")
    for key in ("tensor_bytes", "tensor_names"):
        _check_length(key, getattr(graph, key), tensors, "tensor")
    for kind, column in graph.duration_by_kind.items():
        _check_length(f"duration_by_kind[{kind!r}]", column, n, "op")
        _check_cost(f"duration_by_kind[{kind!r}]", column, lambda i: f"op {graph.names[i]!r}")
    bad = [x for x in graph.names if not isinstance(x, str) or not x]
    if bad:
        raise InvalidInput(f"op name {bad[0]!r} is not a text; every op needs a non-empty name")
    _check_distinct("op name", graph.names, n)
    for key in ("duration_us", "temp_bytes", "persistent_bytes"):
        _check_cost(key, getattr(graph, key), lambda i: f"op {graph.names[i]!r}")
    # The tensors: sorted by producer, each with its consumers in compressed sparse rows.
    check_ids("producer of tensor", graph.tensor_producer, n)
    check_ids("consumer entry", graph.consumers, n)
    _check_cost("size_bytes", graph.tensor_bytes, lambda t: f"tensor {graph.tensor_label(t)!r}")
    ascending = np.diff(graph.tensor_producer, prepend=0) >= 0
    rule = "at least the entry before it: list the tensors of op 0 first, then those of op 1, ..."
    require_entries("tensor_producer", graph.tensor_producer, ascending, rule)
    pointer = graph.consumer_ptr
    if (
        len(pointer) != tensors + 1
        or pointer[0] != 0
        or pointer[-1] != len(graph.consumers)
        or np.any(np.diff(pointer) < 0)
    ):
        raise InvalidInput(f"consumer_ptr must rise from 0 to {len(graph.consumers)} in {tensors + 1} entries")
    row = np.repeat(np.arange(tensors), np.diff(pointer))
    repeated_edges = np.flatnonzero((np.diff(row) == 0) & (np.diff(graph.consumers) <= 0))
    if len(repeated_edges):
        tensor = int(row[repeated_edges[0]])
        raise InvalidInput(
            f"consumers of tensor {graph.tensor_label(tensor)!r} are {in_short(graph.consumers[row == tensor].tolist())}; they "
            "must be ascending, each named once"
        )
    # Only the tensors of a producer with several can share a name.
    same = graph.tensor_producer[1:] == graph.tensor_producer[:-1]
    several = np.flatnonzero(np.append(same, False) | np.append(False, same)).tolist() if tensors else []
    producer = graph.tensor_producer.tolist()
    if len({(producer[t], graph.tensor_names[t]) for t in several}) != len(several):
        _check_distinct("tensor name", (graph.tensor_label(t) for t in range(tensors)), tensors)
    # Rejects sums that overflow: times beyond floating point, bytes beyond 64 bits.
    with np.errstate(over="ignore"):
        for kind, column in {"": graph.duration_us, **graph.duration_by_kind}.items():
            if not (total := float(column.sum())) <= MOST_US:
                label = f"duration_by_kind[{kind!r}]" if kind else "duration_us"
                raise CostError(f"{label} adds up to {total:g} us over all ops; at most {MOST_US:g} can be added up")
    # As float64, which is near enough to decide and cannot wrap around.
    totals = [float(x.sum(dtype=np.float64)) for x in (graph.persistent_bytes, graph.temp_bytes, graph.tensor_bytes)]
    if sum(totals) > MOST_BYTES:
        raise CostError(
            f"persistent_bytes, temp_bytes and size_bytes add up to {sum(totals):g}; at most {MOST_BYTES} can be added up"
        )
    _validate_relations(graph)
    _ = graph.order  # raises CycleError


def _validate_relations(graph: OpGraph) -> None:
    """Checks what relates ops to others and to devices: forward ops, groups, allowed devices, copies, reuse of memory."""
    n = graph.n
    check_ids("forward_of entry", graph.forward_of, n, lowest=-1)
    self_forward = np.flatnonzero(graph.forward_of == np.arange(n))
    if len(self_forward):
        raise InvalidInput(
            f"forward_of of op {graph.names[self_forward[0]]!r} names the op itself; it must name another op, or be -1"
        )
    for key, table in (("colocation", graph.colocation_names), ("allowed", graph.allowed_sets)):
        column = getattr(graph, key)
        bad = np.flatnonzero((column < -1) | (column >= len(table)))
        if len(bad):
            raise InvalidInput(
                f"{key} of op {graph.names[bad[0]]!r} is {column[bad[0]]}; there are {len(table)} entries"
            )
    _check_distinct("colocation group", graph.colocation_names, len(graph.colocation_names))
    for codes in graph.allowed_sets:
        if not codes or not all(isinstance(x, str) and x for x in codes):
            raise InvalidInput(f"allowed {codes!r} must name at least one device or kind")
    if graph.group_of is not None:
        check_ids("group_of entry", graph.group_of, n)
        # Only a copy (`passes.replicate`) stands for no original op: the first copy does.
        empty = np.setdiff1d(np.arange(n), graph.group_of)
        without = [graph.names[i] for i in empty.tolist() if "/replicate/_" not in graph.names[i]]
        if without:
            raise InvalidInput(
                f"group_of leaves op {without[0]!r} without members; each op of a coarse graph must have some"
            )
    present = [getattr(graph, key) is not None for key in ("copy_of", "copied_key", "micro_batch")]
    if any(present) and not all(present):
        raise InvalidInput("copy_of, copied_key and micro_batch belong together: give all three or none")
    for key, lowest in (("copy_of", 0), ("micro_batch", -MOST_DEVICES)):
        column = getattr(graph, key)
        if column is None:
            continue
        _check_length(key, column, graph.n, "op")
        if column.min(initial=lowest) < lowest:
            op = int(column.argmin())
            raise InvalidInput(f"{key} of op {graph.names[op]!r} is {column[op]}; it must be at least {lowest}")
    if graph.reuse is not None:
        _check_length("reuse", graph.reuse, n, "op")
        unknown = np.flatnonzero((graph.reuse < 0) | (graph.reuse > 3))
        if len(unknown):
            op = int(unknown[0])
            raise InvalidInput(f"reuse of op {graph.names[op]!r} is {graph.reuse[op]}; it must be 0, 1, 2 or 3")
    if graph.output_shapes:
        _check_length("output_shapes", graph.output_shapes, n, "op")
    # Two ops of one group whose lists of devices have nothing in common can never share a device.
    restricted_ops = np.flatnonzero((graph.colocation >= 0) & (graph.allowed >= 0))
    first_of_group: dict[int, tuple[int, set[str]]] = {}
    for i in restricted_ops.tolist():
        group, names = int(graph.colocation[i]), set(graph.allowed_sets[graph.allowed[i]])
        first, common = first_of_group.setdefault(group, (i, names))
        if not common & names and not _may_agree(common | names):
            raise ColocationError(
                f"ops {graph.names[first]!r} and {graph.names[i]!r} share colocation group "
                f"{graph.colocation_names[group]!r} but allow different devices: {sorted(common)} and {sorted(names)}"
            )
        first_of_group[group] = (first, common & names or common)


def _may_agree(names: set[str]) -> bool:
    """Whether a device name (`/gpu:0`, `gpu:0`) may be of a kind in the other list, which depends on the cluster."""
    return any(":" in x or "/" in x for x in names) and not all(":" in x or "/" in x for x in names)
