"""Reads TensorFlow's RunMetadata, which a session or `tf.profiler` of version 1 writes: binary, or text (`.pbtxt`).

    node stats          one op, on the device where the executor ran it; kernels of `/stream:N` are ops of their own, on
                        that stream, after the op that launched them
    op_start, op_end    when; of a GPU's kernel its own
    timeline_label      `name = Type(input, ^control)`: what depends on what; where labels name no inputs, `cost_graph` does
    output              bytes as allocated, else of the tensor's shape and type

Without either, ops depend on the ops that ran before them, and a note says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import gcd, prod
from typing import Any

from ....errors import FormatError
from .inference import infer_dependencies
from .protobuf import messages, parse_message, parsed_text
from .recording import MOST_BYTES, Event, Recording, recording

SCHEMA = """
Dim: int64 size = 1
Shape: repeated Dim dim = 2
Allocation: int64 requested_bytes = 1; int64 allocated_bytes = 2
Tensor: int32 dtype = 1; Shape shape = 2; Allocation allocation_description = 4
Output: int32 slot = 1; Tensor tensor_description = 3
MemoryStats: int64 temp_memory_size = 1; int64 persistent_memory_size = 3
NodeStats: string node_name = 1; int64 all_start_micros = 2; int64 op_start_rel_micros = 3; int64 op_end_rel_micros =
    4; repeated Output output = 7; string timeline_label = 8; uint32 thread_id = 10; MemoryStats memory_stats = 12;
    int64 all_start_nanos = 13; int64 op_start_rel_nanos = 14; int64 op_end_rel_nanos = 15
DeviceStats: string device = 1; repeated NodeStats node_stats = 2
StepStats: repeated DeviceStats dev_stats = 1
InputInfo: int32 preceding_node = 1; int32 preceding_port = 2
CostNode: string name = 1; string device = 2; int32 id = 3; repeated InputInfo input_info = 4; repeated int32
    control_input = 8
CostGraph: repeated CostNode node = 1
RunMetadata: StepStats step_stats = 1; CostGraph cost_graph = 2
"""
"""`tensorflow/core/framework/step_stats.proto`, `cost_graph.proto` and `protobuf/config.proto`, as far as read here."""

_TYPES = (
    "- FLOAT:4 DOUBLE:8 INT32:4 UINT8:1 INT16:2 INT8:1 STRING:0 COMPLEX64:8 INT64:8 BOOL:1 QINT8:1 QUINT8:1 QINT32:4 "
    "BFLOAT16:2 QINT16:2 QUINT16:2 UINT16:2 COMPLEX128:16 HALF:2 RESOURCE:0 VARIANT:0 UINT32:4 UINT64:8 FLOAT8_E5M2:1 "
    "FLOAT8_E4M3FN:1 FLOAT8_E4M3FNUZ:1 FLOAT8_E4M3B11FNUZ:1 FLOAT8_E5M2FNUZ:1 INT4:1 UINT4:1 INT2:1 UINT2:1 FLOAT4_E2M1FN:1"
).split()
"""`tensorflow/core/framework/types.proto`: each type at the position that is its number, with the bytes of an element."""
_NUMBERS = {f"DT_{entry.partition(':')[0]}": number for number, entry in enumerate(_TYPES)}
_WIDTH = {number: int(entry.partition(":")[2]) for number, entry in enumerate(_TYPES) if number}
_REFERENCE = 100
"""The type of a reference to a variable has the type's number and this."""
_DTYPE = re.compile(r"\bdtype: (DT_\w+)")
_LABEL = re.compile(r"^(?P<name>\S+) = (?P<type>[\w>.:-]+)\((?P<inputs>.*)\)", re.DOTALL)


def graph_from_run_metadata(data: bytes, name: str, text: bool = False) -> Recording:
    """Makes the recording of a RunMetadata, binary or as text.

    Raises:
        FormatError: the file is cut off, has another format, no ops, or several steps.
    """
    cls = messages(SCHEMA)["RunMetadata"]
    if text:
        # Types are numbers in the schema here, and names in the text.
        text_with_numbers = _DTYPE.sub(
            lambda m: f"dtype: {_NUMBERS.get(m[1].removesuffix('_REF'), 0)}", data.decode("utf-8", "replace")
        )
        metadata = parsed_text(cls, text_with_numbers, "a RunMetadata")
    else:
        try:
            metadata = parse_message(cls, data, "a RunMetadata")
        except FormatError as error:
            raise FormatError(f"{error} (a GraphDef and a SavedModel are none, and have no times)") from error
    _refuse_several_steps(metadata.step_stats.dev_stats)
    rows = list(_rows(metadata.step_stats.dev_stats))
    if not rows:
        raise FormatError(
            "there are no step_stats: a RunMetadata has them if the session runs with trace_level=FULL_TRACE; a GraphDef "
            "and a SavedModel have no times"
        )
    events = [event for event, _ in rows]
    # A kernel waits for the op of its name that launched it, if that began before.
    host = {event.name: k for k, (event, _) in enumerate(rows) if event.keeps_device}
    for event, _ in rows:
        if event.kind != "cpu" and (launcher := host.get(op_name(event.name))) is not None:
            if rows[launcher][0].end_us <= event.start_us:
                event.after.add(launcher)
    # A variable and the ops that read or assign it share a device, with the bytes that were read.
    handles = {op_name(e.name): e for e, _ in rows if e.op_type in ("VarHandleOp", "VariableV2")}
    for event, stats in rows:
        label = _LABEL.match(stats.timeline_label)
        read = [
            handles[x]
            for reference_text in (label["inputs"].split(",") if label else ())
            if (x := op_name(reference_text.strip())) in handles
        ]
        if len({h.name for h in read}) == 1:
            event.group = read[0].group = read[0].name
        if len(read) == 1 and event.op_type == "ReadVariableOp":
            read[0].persistent_bytes = _output_bytes(stats, 0)
    notes = [] if _by_label(rows) or _by_cost_graph(rows, metadata.cost_graph) else [infer_dependencies(events)]
    return recording(events, name, notes)


_LOCAL = "/job:localhost/"
"""Begins the devices of a session without servers."""
_TRANSFER = "RecvTensor"
"""Entries of transfers between servers, which a session lists apart from the ops of a device."""


def _refuse_several_steps(devices: Any) -> None:
    """Raises `FormatError` for a file that holds the ops of several calls of `Session.run`.

    One call lists an op of a device in one of the device's entries, and in loops more often than the ops outside.
    Written behind one another, files merge: that is how protocol buffers are defined.
    """
    entries_of: dict[tuple[str, str], int] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for k, device in enumerate(devices):
        if "/stream:" in device.device or "memcpy" in device.device.lower():
            continue
        ops = [(device.device, stats.node_name) for stats in device.node_stats if stats.node_name != _TRANSFER]
        counts.update(ops)
        for op in ops:
            if entries_of.setdefault(op, k) != k:
                raise _several_steps(f"op {op[1]:.80} is in two entries of {op[0]:.80}")
    jobs = {device.device.startswith(_LOCAL) for device in devices if device.device.startswith("/job:")}
    if len(jobs) == 2:
        raise _several_steps(f"some devices are of a session without servers ({_LOCAL}), and others are not")
    if len(counts) > 1 and (times := gcd(*counts.values())) > 1:
        raise _several_steps(f"every op ran {times} times or a multiple of it")


def _several_steps(reason: str) -> FormatError:
    return FormatError(
        f"step_stats holds several steps ({reason}); write the RunMetadata of each Session.run to a file of its own"
    )


_Row = tuple[Event, Any]


def _rows(devices: Any) -> Iterator[_Row]:
    """Makes an event for each entry of each device, except `stream:all` and entries without a device."""
    # Nanoseconds since 1970 are whole numbers of more digits than a float has.
    origin = min((n.all_start_nanos or 1000 * n.all_start_micros for d in devices for n in d.node_stats), default=0)
    launching_devices = {
        d.device.partition("/stream:")[0].rpartition("/device:")[2] for d in devices if "/stream:" in d.device
    }
    tasks = {_task(d.device) for d in devices}
    for device in devices:
        device_name = device.device.rpartition("/device:")[2]
        if device_name.endswith("/stream:all") or ("memcpy" in device_name.lower() and "/stream:" not in device_name):
            continue
        host = "/stream:" not in device_name and device_name in launching_devices
        lane = f"{device_name} launches" if host else device_name
        lane = lane if len(tasks) == 1 else f"{_task(device.device)}/{lane}"
        kind = "cpu" if host or not device_name.upper().startswith(("GPU", "TPU")) else device_name[:3].lower()
        for stats in device.node_stats:
            base = ((stats.all_start_nanos or 1000 * stats.all_start_micros) - origin) / 1e3
            start = stats.op_start_rel_nanos / 1e3 or float(stats.op_start_rel_micros)
            end = stats.op_end_rel_nanos / 1e3 or float(stats.op_end_rel_micros)
            label = _LABEL.match(stats.timeline_label)
            event = Event(
                name=stats.node_name or "op",
                op_type=label["type"] if label else "op",
                lane=lane or "cpu",
                start_us=base + start,
                end_us=base + max(end, start),
                kind=kind,
                persistent_bytes=max(0, min(stats.memory_stats.persistent_memory_size, MOST_BYTES)),
                keeps_device=host,
            )
            yield event, stats


def _task(device: str) -> str:
    return device.rpartition("/device:")[0].strip("/")


def op_name(name: str) -> str:
    """Returns the op of an entry: `a/MatMul` for `a/MatMul:MatMul` and for `a/MatMul@@kernel`."""
    return name.split(":")[0].split("@@")[0]


def _latest(rows: list[_Row]) -> dict[str, list[int]]:
    """Returns the entries of each name by end; if an op has kernels, these represent it."""
    kernels = {op_name(e.name) for e, _ in rows if e.kind != "cpu"}
    rows_of: dict[str, list[int]] = {}
    for k in sorted(range(len(rows)), key=lambda k: rows[k][0].end_us):
        event = rows[k][0]
        if not (event.keeps_device and op_name(event.name) in kernels):
            rows_of.setdefault(op_name(event.name), []).append(k)
    return rows_of


def _add_input(rows: list[_Row], entries: dict[str, list[int]], k: int, name: str, slot: int) -> bool:
    """Makes entry `k` read an output (-1: wait) of the last entry of that name that had ended."""
    event = rows[k][0]
    before = [j for j in entries.get(name, ()) if j != k and rows[j][0].end_us <= event.start_us]
    if not before:
        return False
    size = _output_bytes(rows[before[-1]][1], slot) if slot >= 0 else 0
    if size:
        event.reads[before[-1], str(slot)] = size
    else:
        event.after.add(before[-1])
    return True


def _by_label(rows: list[_Row]) -> bool:
    """Sets dependencies from the labels; returns False if there are none."""
    entries, any_label = _latest(rows), False
    labels = {op_name(stats.node_name): m for _, stats in rows if (m := _LABEL.match(stats.timeline_label))}
    for k, (event, _) in enumerate(rows):
        label = labels.get(op_name(event.name))
        if label is None or event.keeps_device:
            continue
        for reference in filter(None, (reference_text.strip() for reference_text in label["inputs"].split(","))):
            name, _, slot = reference.lstrip("^").partition(":")
            number = -1 if reference.startswith("^") else int(slot) if slot.isascii() and slot.isdecimal() else 0
            any_label |= _add_input(rows, entries, k, name, number)
    return any_label


def _by_cost_graph(rows: list[_Row], graph: Any) -> bool:
    """Sets dependencies from the cost graph; returns False if there are none."""
    entries, any_cost = _latest(rows), False
    nodes = {node.id: node for node in graph.node}
    by_name = {node.name: node for node in graph.node}
    for k, (event, _) in enumerate(rows):
        node = by_name.get(op_name(event.name))
        if node is None or event.keeps_device:
            continue
        pairs = [(i.preceding_node, i.preceding_port) for i in node.input_info] + [(c, -1) for c in node.control_input]
        for source, port in pairs:
            if source in nodes:
                any_cost |= _add_input(rows, entries, k, nodes[source].name, port)
    return any_cost


def _output_bytes(stats: Any, slot: int) -> int:
    for output in stats.output:
        if output.slot == slot:
            tensor = output.tensor_description
            size = tensor.allocation_description.requested_bytes or _WIDTH.get(tensor.dtype % _REFERENCE, 0) * prod(
                d.size for d in tensor.shape.dim
            )
            return int(max(0, min(size, MOST_BYTES)))
    return 0
