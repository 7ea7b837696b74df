"""Chakra execution traces of MLCommons (S. Sridharan et al. 2023, arXiv:2305.14516): `.et`, or the JSON of its jsonizer.

An `.et` file is a GlobalMetadata message and then one Node per operator, each behind its length. What becomes what:

    node                one op; nodes that hold no work (metadata, invalid) are passed through to what they depended on
    duration_micros     duration_us
    lane                of the host thread (`is_cpu_op`, `tid`), the stream (`stream`), else one each for computing, memory
                        and communication; of rank r, `rank r/...`, where several files are read
    data_deps           tensors of the size of the producer's outputs (`outputs`), else of its `comm_size` or `tensor_size`
    ctrl_deps           control dependencies
    send and receive    of two ranks with one `comm_tag`: the receive waits for the send

Where no node has a start time, all start as early as the lanes and dependencies allow.

ASTRA-sim's feeder reads a JSON form of its own, the list `workload_graph`, with `Id`, `Name`, `NodeType`, `runtime` (in
microseconds) and attributes as fields of a node.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ....errors import CycleError, DuplicateNameError, FormatError, UnknownOpError, in_short
from ...kernels.csr import topological_order
from .protobuf import delimited_messages, messages, parse_message
from .recording import MOST_BYTES, Event, Recording, recording

SCHEMA = """
Longs: repeated int64 values = 1
Attribute: string name = 1; oneof double double_val = 3; oneof float float_val = 5; oneof int32 int32_val = 7; oneof
    int64 int64_val = 9; oneof uint32 uint32_val = 11; oneof uint64 uint64_val = 13; oneof sint32 sint32_val = 15;
    oneof sint64 sint64_val = 17; oneof fixed32 fixed32_val = 19; oneof fixed64 fixed64_val = 21; oneof bool bool_val
    = 27; oneof string string_val = 29
GlobalMetadata: string version = 1; repeated Attribute attr = 2
Values: string values = 1; string shapes = 2; string types = 3
Node: uint64 id = 1; string name = 2; int32 type = 3; repeated uint64 ctrl_deps = 4; repeated uint64 data_deps = 5;
    uint64 start_time_micros = 6; uint64 duration_micros = 7; Values inputs = 8; Values outputs = 9; repeated
    Attribute attr = 10
"""
"""The fields that are read or written here, of the published schema (`schema/protobuf/et_def.proto` of mlcommons/chakra)."""

TYPES = tuple(
    "INVALID_NODE METADATA_NODE MEM_LOAD_NODE MEM_STORE_NODE COMP_NODE COMM_SEND_NODE COMM_RECV_NODE COMM_COLL_NODE "
    "STORAGE_NODE BATCH_NODE CHECKPOINT_NODE".split()
)
_FEEDER_ATTRIBUTES = "is_cpu_op num_ops tensor_size comm_type comm_size comm_src comm_dst comm_tag".split()
"""Fields of a node of `workload_graph` that are attributes in the other forms."""
_UNITS = {"MEM": "memory", "STORAGE": "memory", "CHECKPOINT": "memory", "COMM": "communication"}


@dataclass
class Node:
    """The fields of a node that are read, from either form of the file."""

    id: int
    name: str
    type: str
    start_us: int
    duration_us: int
    data: list[int]
    control: list[int]
    outputs: str = ""
    attributes: dict[str, object] = field(default_factory=dict)
    rank: int = 0

    @property
    def works(self) -> bool:
        """Whether the node is an op, and not metadata."""
        return self.type not in ("INVALID_NODE", "METADATA_NODE")


def nodes_of(data: bytes) -> list[Node]:
    """Reads the nodes of an `.et` file.

    Raises:
        FormatError: the file is cut off, has another format or version, or a node type that the schema does not have.
    """
    message_types = messages(SCHEMA)
    nodes: list[Node] = []
    for k, message in enumerate(delimited_messages(data)):
        if k == 0:
            version = parse_message(message_types["GlobalMetadata"], message, "a Chakra trace").version
            if not version.isprintable() or len(version) > 80:
                raise FormatError("not a Chakra trace: it does not begin with a GlobalMetadata message")
            _check_version(version)
            continue
        read = parse_message(message_types["Node"], message, f"node {k} of a Chakra trace")
        attributes = {a.name: getattr(a, kind) for a in read.attr if (kind := a.WhichOneof("value"))}
        nodes.append(
            Node(
                id=read.id,
                name=read.name,
                type=_type(read.type, k),
                start_us=read.start_time_micros,
                duration_us=read.duration_micros,
                data=list(read.data_deps),
                control=list(read.ctrl_deps),
                outputs=read.outputs.values,
                attributes=attributes,
            )
        )
    return nodes


def nodes_of_json(text: str) -> list[Node]:
    """Reads the nodes of the JSON form: objects in sequence or in a list, or the list `nodes` or `workload_graph` of an object.

    Raises:
        FormatError: the text is cut off, or a field has the wrong type.
    """
    documents = list(_objects(text))
    nodes = _first(documents[0], ("nodes", "workload_graph"), None) if documents else None
    for document in documents[:1]:
        _check_version(document.get("version", ""))
    if nodes is None:
        nodes = [x for x in documents if "id" in x or "type" in x]
    if not isinstance(nodes, list):
        raise FormatError(f"field nodes is {type(nodes).__name__}; it must be a list")
    return [_of_json(x, k) for k, x in enumerate(nodes)]


def looks_like_chakra(beginning: str) -> bool:
    """Whether a text with this beginning holds nodes in the JSON form."""
    words = (*TYPES[1:8], "workload_graph")
    return any(f'"{word}"' in beginning for word in words) and '"format"' not in beginning[:200]


def graph_of_ranks(ranks: Sequence[list[Node]], name: str) -> Recording:
    """Makes the recording of one step from the nodes of one file, or of one file per rank.

    Raises:
        FormatError, DuplicateNameError, UnknownOpError, CycleError: the nodes are no valid graph.

    >>> node = Node(1, "matmul", "COMP_NODE", 0, 5, [], [])
    >>> graph_of_ranks([[node, Node(2, "relu", "COMP_NODE", 0, 2, [1], [])]], "two").timeline.makespan_us
    7.0
    """
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            node.rank = rank
    every = [node for nodes in ranks for node in nodes]
    index = {(n.rank, n.id): k for k, n in enumerate(every)}
    if len(index) != len(every):
        twice = next(n for k, n in enumerate(every) if index[n.rank, n.id] != k)
        raise DuplicateNameError(f"node {twice.id} is there twice")
    # PyTorch's converter leaves out parents of ops, and the control dependencies on these.
    control = [[d for d in n.control if (n.rank, d) in index] for n in every]
    left_out = sum(len(n.control) for n in every) - sum(map(len, control))
    reads = [
        [_resolve_dependency(index, n, d) for d in (*n.data, *controls)]
        for n, controls in zip(every, control, strict=True)
    ]
    number = {k: e for e, k in enumerate(k for k, n in enumerate(every) if n.works)}
    data = _through_notes(every, [[_resolve_dependency(index, n, d) for d in n.data] for n in every])
    notes: list[str] = []
    try:
        sources = _through_notes(every, reads)
    except (
        CycleError
    ):  # PyTorch's converter calls the caller of an op a control dependency; Chakra's feeder reads none of these
        sources = data
        notes.append("control dependencies contradict data dependencies: only data dependencies are counted")
    events = [_event(every[k], len(ranks) > 1) for k in number]
    for k, e in number.items():
        for source in sources[k]:
            size = _bytes(every[source]) if source in data[k] else 0
            if size:
                events[e].reads[number[source], "output"] = size
            else:
                events[e].after.add(number[source])
    # Each receive waits for the send of its peer with the same tag; of several, in their order.
    sends: defaultdict[tuple[object, object, object], deque[int]] = defaultdict(deque)
    for k, node in enumerate(every):
        if node.type == "COMM_SEND_NODE":
            sends[node.rank, node.attributes.get("comm_dst"), node.attributes.get("comm_tag")].append(k)
    alone = 0
    for k, node in enumerate(every):
        if node.type != "COMM_RECV_NODE":
            continue
        waiting = sends[node.attributes.get("comm_src"), node.rank, node.attributes.get("comm_tag")]
        if waiting and every[waiting[0]].rank != node.rank:
            sender = waiting.popleft()
            events[number[k]].reads[number[sender], "output"] = _bytes(every[sender]) or _bytes(node)
        else:
            alone += 1
    if alone:
        notes.append(
            f"{alone} receives have no send in what was given, and wait for nothing; give the traces of all ranks, in order"
        )
    if left_out:
        notes.append(f"control dependencies on nodes that the trace leaves out order nothing: {left_out}")
    return recording(events, name, [*notes, *_start(events, [every[k] for k in number])])


def _resolve_dependency(index: Mapping[tuple[int, int], int], node: Node, dependency: int) -> int:
    if (node.rank, dependency) not in index:
        raise UnknownOpError(f"node {node.id} depends on node {dependency}, which is not there: is the file cut off?")
    return index[node.rank, dependency]


def _through_notes(nodes: Sequence[Node], reads: Sequence[list[int]]) -> list[list[int]]:
    """Returns the dependencies of each node; nodes without work are replaced by their own dependencies."""
    import numpy as np

    pairs = [(d, k) for k, sources in enumerate(reads) for d in set(sources) if d != k]
    columns = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    order = topological_order(len(nodes), columns[:, 0], columns[:, 1])
    if order is None:
        raise CycleError("the nodes depend on each other in a cycle")
    sources_of_work: list[list[int]] = [[] for _ in nodes]
    for k in order.tolist():
        for d in dict.fromkeys(reads[k]):
            sources_of_work[k] += [d] if nodes[d].works else sources_of_work[d]
        sources_of_work[k] = [d for d in dict.fromkeys(sources_of_work[k]) if d != k]
    return sources_of_work


def _event(node: Node, several: bool) -> Event:
    """Returns the event of a node. Its lane is that of a CPU thread, a GPU stream, or a unit for its type."""
    if node.attributes.get("is_cpu_op") is True:
        unit, kind = f"cpu/thread {node.attributes.get('tid', 0)!s:.40}", "cpu"
    elif "stream" in node.attributes:
        unit, kind = f"gpu/stream {node.attributes['stream']!s:.40}", "gpu"
    else:
        unit = _UNITS.get(node.type.partition("_")[0], "compute")
        kind = "gpu" if unit == "compute" else unit
    lane = f"rank {node.rank}/{unit}" if several else unit
    return Event(
        name=node.name or f"node {node.id}",
        op_type=node.type.removesuffix("_NODE").lower(),
        lane=lane,
        start_us=float(node.start_us),
        end_us=float(node.start_us + node.duration_us),
        kind=kind,
    )


def _bytes(node: Node) -> int:
    """Returns bytes of a node's outputs: of its tensors `[id, storage, offset, elements, bytes each, device]`, or as given."""
    total = 0
    if node.outputs:
        try:
            tensors = json.loads(node.outputs.replace("'", '"'))
        except (ValueError, RecursionError):
            tensors = []
        for tensor in tensors if isinstance(tensors, list) else []:
            if isinstance(tensor, list) and len(tensor) >= 5 and all(type(x) is int for x in tensor[3:5]):
                total += max(0, tensor[3] * tensor[4])
    if not total:
        size = next((node.attributes[k] for k in ("comm_size", "tensor_size") if node.attributes.get(k)), 0)
        total = int(size) if isinstance(size, (int, float)) and 0 <= size <= MOST_BYTES else 0
    return min(total, MOST_BYTES)


def _start(events: Sequence[Event], nodes: Sequence[Node]) -> list[str]:
    """Sets missing start times to the earliest that lanes and dependencies allow; ready events start in file order.

    A lane runs any ready event: a receive that is not ready does not delay later sends.
    """
    if any(n.start_us for n in nodes) or not any(n.duration_us for n in nodes):
        return [] if any(n.duration_us for n in nodes) else ["the trace has no durations; every op takes 0 us"]
    length = [e.end_us for e in events]
    waits = [{*e.after, *(k for k, _ in e.reads)} for e in events]
    readers: list[list[int]] = [[] for _ in events]
    for i, before in enumerate(waits):
        for j in before:
            readers[j].append(i)
    missing, ready, start_count = [len(before) for before in waits], defaultdict[str, list[int]](list), 0
    for i in (i for i, count in enumerate(missing) if not count):
        ready[events[i].lane].append(i)  # in rising order: a heap
    running = _start_ready(events, length, ready, set(), 0.0)
    while running:
        time_us, ended_nodes = running[0][0], []
        while running and running[0][0] == time_us:
            ended_nodes.append(heappop(running)[1])
            events[ended_nodes[-1]].tie_order = start_count = start_count + 1
        for i in (i for j in ended_nodes for i in readers[j]):
            missing[i] -= 1
            if not missing[i]:
                heappush(ready[events[i].lane], i)
        for entry in _start_ready(events, length, ready, {events[i].lane for _, i in running}, time_us):
            heappush(running, entry)
    if start_count < len(events):
        raise CycleError("the nodes of several ranks wait for each other in a cycle")
    return ["the trace has no start times; ops start as early as lanes and dependencies allow"]


def _start_ready(
    events: Sequence[Event], length: Sequence[float], ready: Mapping[str, list[int]], busy: set[str], time_us: float
) -> list[tuple[float, int]]:
    """Starts, at `time_us`, the first ready event in file order of each idle lane; returns a heap of (end, event)."""
    begun = [heappop(waiting) for lane, waiting in ready.items() if waiting and lane not in busy]
    for i in begun:
        events[i].start_us, events[i].end_us = time_us, time_us + length[i]
    return sorted((events[i].end_us, i) for i in begun)


def _check_version(version: object) -> None:
    """Raises `FormatError` for another version than 0.x; a file without a version counts as 0.0.4, the schema read here."""
    if version and not str(version).startswith("0."):
        raise FormatError(f"version is {in_short(version)}; versions 0.x of Chakra traces are read")


def _type(number: int, k: int) -> str:
    if not 0 <= number < len(TYPES):
        raise FormatError(f"node {k} is of type {number}; the schema has types 0..{len(TYPES) - 1}")
    return TYPES[number]


def _objects(text: str) -> Iterable[dict[str, object]]:
    decoder, at = json.JSONDecoder(), 0
    text = text.strip()
    if text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1].strip()
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = getattr(error, "msg", "lists are nested too deeply")
            raise FormatError(f"not the JSON of a Chakra trace, or cut off: {reason} at character {at}") from error
        if not isinstance(document, dict):
            raise FormatError(f"a Chakra trace holds objects; at character {at} it has {in_short(document)}")
        yield document
        while at < len(text) and text[at] in " \n\r\t,":
            at += 1


def _of_json(fields: object, k: int) -> Node:
    """Returns node `k` of the JSON form of a trace, whose versions name fields differently."""
    if not isinstance(fields, dict):
        raise FormatError(f"node {k} is {in_short(fields)}; it must be an object")
    name, kind = _first(fields, ("name", "Name"), ""), _first(fields, ("type", "NodeType"), 0)
    if isinstance(kind, int):
        kind = _type(kind, k)
    if not isinstance(name, str) or kind not in TYPES:
        raise FormatError(
            f"node {k}: name is {in_short(name)} and type is {in_short(kind)}; they must be texts, type one of {', '.join(TYPES)}"
        )

    def integer(*keys: str) -> int:
        return _as_integer(_first(fields, keys, 0), f"node {k}: {keys[0]}")

    def integers(*keys: str) -> list[int]:
        return [_as_integer(x, f"node {k}: {keys[0]}") for x in _list_of(_first(fields, keys, []), k, keys[0])]

    outputs = fields.get("outputs", {})
    values = outputs.get("values", "") if isinstance(outputs, dict) else ""
    attributes = {key: fields[key] for key in _FEEDER_ATTRIBUTES if key in fields}
    for entry in _list_of(_first(fields, ("attr", "attrs"), []), k, "attr"):
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            value = next((v for key, v in entry.items() if key.endswith(("Val", "_val")) or key == "value"), None)
            number = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20
            attributes[entry["name"]] = int(value) if number else value  # type: ignore[arg-type]
    return Node(
        id=integer("id", "Id"),
        name=name,
        type=kind,
        start_us=integer("startTimeMicros", "start_time_micros"),
        duration_us=integer("durationMicros", "duration_micros", "runtime"),
        data=integers("dataDeps", "data_deps"),
        control=integers("ctrlDeps", "ctrl_deps"),
        outputs=values if isinstance(values, str) else "",
        attributes=attributes,
    )


def _first(fields: Mapping[str, object], keys: Sequence[str], default: object) -> Any:
    return next((fields[key] for key in keys if key in fields), default)


def _list_of(value: object, k: int, key: str) -> list[object]:
    if not isinstance(value, list):
        raise FormatError(f"node {k}: {key} is {in_short(value)}; it must be a list")
    return value


def _as_integer(value: object, field: str) -> int:
    """Reads a whole number; JSON of protocol buffers has 64-bit numbers as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**64:
        raise FormatError(f"{field} is {in_short(value)}; it must be a whole number below 2**64")
    return value
