"""PyTorch's execution traces (`torch.profiler.ExecutionTraceObserver`): which tensors each op read and wrote.

A tensor is `[tensor, storage, offset, elements, bytes each, device]`. An op depends on the last earlier op that wrote a
storage that it reads. It writes the storages of its outputs, except views of its inputs, and those of inputs that its schema
marks as changed (`Tensor(a!)`), for which it also waits for earlier readers. What ops within it write, it writes. A storage that
no op has written exists before the step, and counts as persistent bytes of the first op that reads it.

A node and the op of a Kineto trace are one by their record function id (`rf_id`), which traces have since PyTorch 2.3 where the
profiler was given the observer. Before, and where the observer ran by itself, they are one by `External id`, or by their order
on a thread, where names agree.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....errors import FormatError, in_short
from .kineto_rows import Row
from .recording import MOST_BYTES, Event

_AGREEMENT = 0.9
"""Least share of ops with equal names among those whose number is in both traces; below, the numbers do not correspond.

Two traces of one run agree in all. Two models of a few layers, each traced in a fresh process, agree in two thirds."""
_FEWEST_IN_ORDER = 8
"""Least number of consecutive ops that identify a program; shorter sequences occur in many programs."""
_VERSION = re.compile(r"^1\.\d+\.\d+")


@dataclass(frozen=True)
class Access:
    """The storages that an op of this name reads, writes and changes in place, each with its bytes."""

    reads: dict[int, int]
    makes: dict[int, int]
    changes: dict[int, int]
    name: str = ""
    thread: str = ""

    def is_of(self, op: str) -> bool:
        """Whether it may belong to an op of this name; overloads may follow a dot."""
        return not self.name or self.name.partition(".")[0] == op.partition(".")[0]


def looks_like_execution_trace(document: object) -> bool:
    """Whether this parsed JSON is an execution trace."""
    return isinstance(document, Mapping) and "schema" in document and "nodes" in document


def accesses(document: Any) -> dict[int, Access]:
    """Returns the storage accesses of each op by its record function id.

    Raises:
        FormatError: the document has another format or version, or a field of the wrong type.
    """
    if not looks_like_execution_trace(document):
        raise FormatError("not an execution trace: it has no fields schema and nodes")
    if not isinstance(document["schema"], str) or not _VERSION.match(document["schema"]):
        raise FormatError(f"field schema is {in_short(document['schema'])}; versions 1.x.x are read")
    if not isinstance(document["nodes"], list):
        raise FormatError(f"field nodes is {type(document['nodes']).__name__}; it must be a list")
    access_of: dict[int, Access] = {}
    for k, node in enumerate(document["nodes"]):
        if not isinstance(node, Mapping):
            raise FormatError(f"nodes[{k}] is {in_short(node)}; it must be an object")
        attributes = node.get("attrs") or []
        if not isinstance(attributes, list):
            raise FormatError(f"nodes[{k}].attrs is {in_short(attributes)}; it must be a list")
        # Schema 1.0.1 (up to PyTorch 2.1) has as fields of a node what later ones list as attributes.
        fields = {**node, **{str(a.get("name")): a.get("value") for a in attributes if isinstance(a, Mapping)}}
        number = fields.get("rf_id")
        if isinstance(number, int):
            schema = fields.get("op_schema")
            inputs = _values(node, "inputs")
            changed_arguments = _changed_arguments(schema if isinstance(schema, str) else "")
            reads = dict(s for value in inputs for s in _storages(value))
            changes = dict(s for k, value in enumerate(inputs) if k in changed_arguments for s in _storages(value))
            output_storages = dict(s for value in _values(node, "outputs") for s in _storages(value))
            makes = {s: size for s, size in output_storages.items() if s not in reads}
            access_of[number] = Access(reads, makes, changes, str(node.get("name", "")), str(fields.get("tid")))
    return access_of


def _values(node: Mapping[str, object], key: str) -> list[object]:
    values = node.get(key)
    values = values.get("values") if isinstance(values, Mapping) else values
    return values if isinstance(values, list) else []


def _storages(value: object) -> Iterator[tuple[int, int]]:
    """Yields (storage, bytes) of a tensor, or of every tensor in a list."""
    if not isinstance(value, list):
        return
    if len(value) == 6 and all(type(x) is int for x in value[:5]) and isinstance(value[5], str):
        if value[1] > 0 and 0 <= value[3] * value[4] <= MOST_BYTES:
            yield value[1], value[3] * value[4]
        return
    for element in value:
        if isinstance(element, list) and len(element) == 6:
            yield from _storages(element)


def _changed_arguments(schema: str) -> set[int]:
    """Returns the positions of the arguments that a schema marks as changed.

    >>> _changed_arguments("aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")
    {0}
    """
    inner, depth, argument, written_positions = schema.partition("(")[2], 0, 0, set()
    position = 0
    for k, letter in enumerate(inner):
        depth += (letter in "([") - (letter in ")]")
        if depth < 0 or (letter == "," and depth == 0):
            text = inner[argument:k].strip()
            if text != "*":
                if "!" in text:
                    written_positions.add(position)
                position += 1
            argument = k + 1
        if depth < 0:
            break
    return written_positions


def join(
    rows: Sequence[Row], required_rows: Sequence[Row], accesses: Mapping[int, Access]
) -> tuple[dict[int, Access], list[str]]:
    """Returns the storage accesses of rows of a Kineto trace, by `id` of the row, and a sentence if they are inferred.

    Args:
        rows: all ops of the trace, including those within others.
        required_rows: the ops of the step that is read.
        accesses: the accesses of the execution trace.

    Raises:
        FormatError: the execution trace has none of `required_rows`.
    """
    by_record = _by_number(rows, "Record function id", accesses)
    by_external = _by_number(rows, "External id", accesses)
    candidates = [
        (by_record, ""),
        (by_external, "External id"),
        (_by_order(rows, required_rows, accesses), "their order on threads"),
    ]
    access_of_row, how = max(candidates, key=lambda one: sum(id(row) in one[0] for row in required_rows))
    if not any(id(row) in access_of_row for row in required_rows):
        raise FormatError(
            "the execution trace has none of the trace's ops (by record function id, External id or order, and name): it is "
            "of another run; give the profiler execution_trace_observer="
        )
    return access_of_row, [f"ops are found in the execution trace by {how} and by name"] if how else []


def _by_number(rows: Sequence[Row], key: str, accesses: Mapping[int, Access]) -> dict[int, Access]:
    """Joins by a number of both traces; empty if too many names differ."""
    times = Counter(row.args.get(key) for row in rows if isinstance(row.args.get(key), (int, str)))
    numbered_rows = [row for row in rows if times.get(row.args.get(key)) == 1 and row.args[key] in accesses]
    agreeing = [row for row in numbered_rows if accesses[row.args[key]].is_of(row.name)]
    is_trusted = len(agreeing) >= _AGREEMENT * len(numbered_rows)
    return {id(row): accesses[row.args[key]] for row in agreeing} if is_trusted else {}


def _by_order(rows: Sequence[Row], required_rows: Sequence[Row], accesses: Mapping[int, Access]) -> dict[int, Access]:
    """Joins by the order of ops on each thread, if the names of one trace's thread occur in this order in the other's."""
    threads: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.start_us, -row.end_us)):
        if "::" in row.name:
            threads.setdefault(row.thread, []).append(row)
    nodes: dict[str, list[Access]] = {}
    for _, access in sorted(accesses.items()):
        if "::" in access.name:
            nodes.setdefault(access.thread, []).append(access)
    needed_ids = set(map(id, required_rows))
    access_of_row: dict[int, Access] = {}
    for thread_nodes in threads.values():
        best: list[tuple[Row, Access]] = []
        for theirs in nodes.values():
            for pairs in _aligned_pairs(thread_nodes, theirs):
                if sum(id(row) in needed_ids for row, _ in pairs) >= sum(id(row) in needed_ids for row, _ in best):
                    best = pairs
        access_of_row |= {id(row): access for row, access in best}
    return access_of_row


def _aligned_pairs(rows: Sequence[Row], nodes: Sequence[Access]) -> Iterator[list[tuple[Row, Access]]]:
    """Yields the pairs of every position at which the names of the shorter list match the longer one."""
    shorter, shift = sorted((len(rows), len(nodes)))
    if shorter < _FEWEST_IN_ORDER and len(rows) != len(nodes):
        return
    for at in range(shift - shorter + 1):
        if len(rows) > len(nodes):
            pairs = list(zip(rows[at:], nodes, strict=False))
        else:
            pairs = list(zip(rows, nodes[at:], strict=False))
        if all(access.is_of(row.name) for row, access in pairs):
            yield pairs


def with_inner_accesses(
    ops: Sequence[Row], rows: Sequence[Row], access_of_row: Mapping[int, Access]
) -> dict[int, Access]:
    """Returns the accesses of ops, by `id` of their rows, with what the rows within them make, or change of their inputs.

    Ops of the backward pass read what no output names: masks of dropout, statistics of norms, shares of attention.
    """
    rows_of_thread: dict[str, list[Row]] = {}
    for row in sorted((row for row in rows if id(row) in access_of_row), key=lambda row: row.start_us):
        rows_of_thread.setdefault(row.thread, []).append(row)
    starts = {thread: [row.start_us for row in inner] for thread, inner in rows_of_thread.items()}
    access_of_op: dict[int, Access] = {}
    for op in ops:
        access = access_of_row.get(id(op))
        if access is None:
            continue
        row_starts = starts[op.thread]
        first, behind_last = bisect_left(row_starts, op.start_us), bisect_right(row_starts, op.end_us)
        candidates = rows_of_thread[op.thread][first:behind_last]
        inner = [access_of_row[id(row)] for row in candidates if row.end_us <= op.end_us]
        makes = {s: size for one in inner for s, size in one.makes.items() if s not in access.reads}
        changes = {s: size for one in inner for s, size in one.changes.items() if s in access.reads}
        access_of_op[id(op)] = replace(access, makes=access.makes | makes, changes=access.changes | changes)
    return access_of_op


def storage_dependencies(events: Sequence[Event], does: Mapping[int, Access]) -> list[str]:
    """Sets the tensors that events read; returns a sentence on those that existed before the step."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    outside: dict[int, int] = {}
    for i in sorted(does, key=lambda k: (events[k].start_us, events[k].end_us, k)):
        access, event = does[i], events[i]
        for storage, size in access.reads.items():
            if storage in writer:
                if writer[storage] != i:
                    event.reads[writer[storage], f"storage {storage}"] = size
            elif storage not in outside:
                outside[storage] = i
                event.persistent_bytes += size
            readers.setdefault(storage, []).append(i)
        for storage in access.changes:
            event.after |= {
                j for j in readers.get(storage, ()) if j != i and not any(key[0] == j for key in event.reads)
            }
        if len(owners := {outside[s] for s in access.changes if s in outside and outside[s] != i}) == 1:
            owner = events[owners.pop()]
            owner.group = owner.group or f"storage of {owner.name} at {owner.start_us:.3f}"
            event.group = event.group or owner.group
        for storage in (*access.makes, *access.changes):
            writer[storage], readers[storage] = i, []
    total = sum(e.persistent_bytes for e in events)
    return [
        f"{total} bytes were there before the step (parameters, states, inputs); each counts with the op that reads it first"
    ]
