"""PyTorch's execution traces (`torch.profiler.ExecutionTraceObserver`): which tensors each op read and wrote.

A tensor is `[tensor, storage, offset, elements, bytes each, device]`. An op depends on the last one before it that wrote a
storage that it reads. It writes the storages of its outputs, but not those that it was given and only looks at in another
shape; and those of inputs that its schema marks as changed (`Tensor(a!)`), for which it also waits until those before it
have read. What nobody wrote before is there from before the step, and counts as persistent on the op that reads it first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import FormatError
from .recording import MOST_BYTES, Event

_VERSION = re.compile(r"^1\.\d+\.\d+")


@dataclass(frozen=True)
class Access:
    """Storages that an op of this name reads, writes anew and changes in place, each with its bytes."""

    reads: dict[int, int]
    makes: dict[int, int]
    changes: dict[int, int]
    name: str = ""

    def is_of(self, op: str) -> bool:
        """Whether it may be what an op of this name did; overloads may stand behind a dot."""
        return not self.name or self.name.partition(".")[0] == op.partition(".")[0]


def looks_like_execution_trace(document: Any) -> bool:
    """Is this parsed JSON an execution trace?"""
    return isinstance(document, Mapping) and "schema" in document and "nodes" in document


def accesses(document: Any) -> dict[int, Access]:
    """Record function id -> what the op did.

    Raises:
        FormatError: another format or version, or a field of the wrong type.
    """
    if not looks_like_execution_trace(document):
        raise FormatError("not an execution trace: it has no fields schema and nodes")
    if not isinstance(document["schema"], str) or not _VERSION.match(document["schema"]):
        raise FormatError(f"field schema is {document['schema']!r:.60}; versions 1.x.x are read")
    if not isinstance(document["nodes"], list):
        raise FormatError(f"field nodes is {type(document['nodes']).__name__}; it must be a list")
    found: dict[int, Access] = {}
    for k, node in enumerate(document["nodes"]):
        if not isinstance(node, Mapping):
            raise FormatError(f"nodes[{k}] is {node!r:.60}; it must be an object")
        attributes = node.get("attrs") or []
        if not isinstance(attributes, list):
            raise FormatError(f"nodes[{k}].attrs is {attributes!r:.60}; it must be a list")
        said = {str(a.get("name")): a.get("value") for a in attributes if isinstance(a, Mapping)}
        number = said.get("rf_id")
        if isinstance(number, int):
            schema = said.get("op_schema")
            found[number] = _access(node, schema if isinstance(schema, str) else "")
    return found


def _access(node: Mapping[str, Any], schema: str) -> Access:
    inputs = _values(node, "inputs")
    changed = _changed(schema)
    reads = dict(s for value in inputs for s in _storages(value))
    changes = dict(s for k, value in enumerate(inputs) if k in changed for s in _storages(value))
    made = dict(s for value in _values(node, "outputs") for s in _storages(value))
    return Access(reads, {s: size for s, size in made.items() if s not in reads}, changes, str(node.get("name", "")))


def _values(node: Mapping[str, Any], key: str) -> list[Any]:
    found = node.get(key)
    values = found.get("values") if isinstance(found, Mapping) else None
    return values if isinstance(values, list) else []


def _storages(value: Any) -> Iterator[tuple[int, int]]:
    """(storage, bytes) of a tensor, or of every tensor in a list."""
    if not isinstance(value, list):
        return
    if len(value) == 6 and all(type(x) is int for x in value[:5]) and isinstance(value[5], str):
        if value[1] > 0 and 0 <= value[3] * value[4] <= MOST_BYTES:
            yield value[1], value[3] * value[4]
        return
    for part in value:
        if isinstance(part, list) and len(part) == 6:
            yield from _storages(part)


def _changed(schema: str) -> set[int]:
    """Positions of the arguments that a schema marks as changed.

    >>> _changed("aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")
    {0}
    """
    inner, depth, argument, found = schema.partition("(")[2], 0, 0, set()
    position = 0
    for k, letter in enumerate(inner):
        depth += (letter in "([") - (letter in ")]")
        if depth < 0 or (letter == "," and depth == 0):
            text = inner[argument:k].strip()
            if text != "*":
                if "!" in text:
                    found.add(position)
                position += 1
            argument = k + 1
        if depth < 0:
            break
    return found


def storage_dependencies(events: Sequence[Event], does: Mapping[int, Access]) -> list[str]:
    """Give events what they read; a sentence on what was there before the step."""
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
        if len(homes := {outside[s] for s in access.changes if s in outside and outside[s] != i}) == 1:
            home = events[homes.pop()]
            home.group = home.group or f"storage of {home.name} at {home.start_us:.3f}"
            event.group = event.group or home.group
        for storage in (*access.makes, *access.changes):
            writer[storage], readers[storage] = i, []
    total = sum(e.persistent_bytes for e in events)
    return [
        f"{total} bytes were there before the step (parameters, states, inputs); each counts with the op that reads it first"
    ]
