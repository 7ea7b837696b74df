"""The JSON format: records to documents and back.

A document is an object with `format` ("baechi_lab"), `version` (1) and `kind` (graph, cluster, placement or timeline). Ops,
tensors, transfers are stored by column, one list per field, because a list of 80,000 numbers is read and checked at array speed
and a list of 80,000 objects is not. `baechi_lab.schema.json` beside this module is the published JSON Schema. A reader checks
the document against it with every list cut to its first entries (the schema says the same of each entry), and then checks whole
columns as arrays, so that an error names the field and the entry, wherever it is. Columns that hold only defaults are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import FormatError, in_short
from ..cluster import Cluster
from ..device import Device
from ..link import Link
from ..opgraph import OpGraph, default_tensor_names
from ..placement import Placement
from ..timeline import MEMORY_CATEGORIES, MemoryLog, Timeline, Transfers, Violation
from .conformance import mismatches
from .json_columns import codes, column, floats, integers, plain, rows, text_rows, texts

FORMAT, VERSION = "baechi_lab", 1
SCHEMA_FILE = "baechi_lab.schema.json"
_SAMPLE = 3
"""Entries of each list that are shown to the schema; the rest is checked as arrays."""

Record = OpGraph | Cluster | Placement | Timeline

Document = dict[str, Any]
"""A JSON object."""


def to_document(record: Record) -> dict[str, object]:
    """Returns the document of a graph, cluster, placement or timeline."""
    for kind, (cls, write, _) in KINDS.items():
        if isinstance(record, cls):
            return {"format": FORMAT, "version": VERSION, "kind": kind, **write(record)}
    raise FormatError(f"a {type(record).__name__} has no file format; graphs, clusters, placements, timelines have")


def from_document(document: Any) -> Record:
    """Returns the record of a document; raises `FormatError`, which names field and place."""
    check_schema(document)
    return KINDS[document["kind"]][2](document)  # type: ignore[no-any-return]


@cache
def schema() -> Document:
    """Returns the published JSON Schema."""
    text = files("baechi_lab.graph.formats").joinpath(SCHEMA_FILE).read_text("utf-8")
    return dict(json.loads(text))


def check_schema(document: object) -> None:
    """Checks the document's structure, every list cut to its first entries; `FormatError` names the first bad field."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'not a {FORMAT} document: field format must be "{FORMAT}"')
    if document.get("version") != VERSION:
        raise FormatError(f"field version is {in_short(document.get('version'))}; this reader knows version {VERSION}")
    if not isinstance(document.get("kind"), str) or document["kind"] not in KINDS:
        raise FormatError(f"field kind is {in_short(document.get('kind'))}; it must be one of {', '.join(KINDS)}")
    definitions = schema()["$defs"]
    failures = mismatches(_sample_lists(document), definitions[document["kind"]], definitions)
    # The outermost one, which may be the cause of others.
    path, value, allowed = min(failures, key=lambda failure: (len(failure[0]), str(failure[0])), default=((), None, ""))
    if allowed:
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".") or "the document"
        raise FormatError(f"{place} is {in_short(value)}; it must be {allowed}")


def _sample_lists(value: object) -> Any:
    if isinstance(value, list):
        return [_sample_lists(x) for x in value[:_SAMPLE]]
    if isinstance(value, dict):
        return {k: _sample_lists(v) for k, v in value.items()}
    return value


# -- graphs ------------------------------------------------------------------------------------------------------


def _write_graph(graph: OpGraph) -> Document:
    """Returns the columns of a graph, without those that hold only defaults."""
    types = {name: k for k, name in enumerate(dict.fromkeys(graph.op_types))}
    ops: Document = {"name": list(graph.names), "duration_us": column(graph.duration_us)}
    if set(types) - {"op"}:
        ops["type"] = [types[x] for x in graph.op_types]
    if graph.duration_by_kind:
        ops["duration_us_by_kind"] = {k: column(v) for k, v in graph.duration_by_kind.items()}
    for key, default in (
        ("temp_bytes", 0),
        ("persistent_bytes", 0),
        ("colocation", -1),
        ("allowed", -1),
        ("forward_of", -1),
    ):
        if np.any(getattr(graph, key) != default):
            ops[key] = column(getattr(graph, key))
    flat, ptr = graph.consumers.tolist(), graph.consumer_ptr.tolist()
    tensors: Document = {
        "producer": column(graph.tensor_producer),
        "size_bytes": column(graph.tensor_bytes),
        "consumers": [flat[a:b] for a, b in pairwise(ptr)],
    }
    if graph.tensor_names != default_tensor_names(graph.tensor_producer):
        tensors["name"] = list(graph.tensor_names)
    out: Document = {"name": graph.name, "ops": ops, "tensors": tensors}
    if "type" in ops:
        out["op_types"] = list(types)
    if graph.colocation_names:
        out["colocation_groups"] = list(graph.colocation_names)
    if graph.allowed_sets:
        out["allowed_sets"] = [list(x) for x in graph.allowed_sets]
    if graph.copy_of is not None and graph.micro_batch is not None:
        ops["copy_of"], ops["micro_batch"] = column(graph.copy_of), column(graph.micro_batch)
        out["copied_key"] = graph.copied_key
    if graph.reuse is not None:
        ops["reuse"] = column(graph.reuse)
    if any(graph.output_shapes):
        shapes = {text: k for k, text in enumerate(dict.fromkeys(graph.output_shapes))}
        ops["output_shapes"], out["output_shapes"] = [shapes[text] for text in graph.output_shapes], list(shapes)
    if graph.batch_readers:
        out["batch_readers"] = list(graph.batch_readers)
    if graph.info:
        out["info"] = plain(graph.info)
    return {**out, **_write_groups(graph)}


def _write_groups(record: OpGraph | Placement) -> dict[str, object]:
    out: Document = {} if record.group_of is None else {"group_of": column(record.group_of)}
    return out if record.source_key is None else {**out, "source_key": record.source_key}


def _read_graph(document: Document) -> OpGraph:
    """Returns the graph of a checked document."""
    ops, tensors = document["ops"], document["tensors"]
    names = texts(ops, "name", "ops")
    n = len(names)
    groups = texts(document, "colocation_groups") if "colocation_groups" in document else ()
    sets = text_rows(document, "allowed_sets") if "allowed_sets" in document else ()
    optional: Document = {}
    for key in ("temp_bytes", "persistent_bytes"):
        if key in ops:
            optional[key] = integers(ops, key, "ops")
    for key, table in (("colocation", len(groups)), ("allowed", len(sets)), ("forward_of", n)):
        if key in ops:
            optional[key] = codes(ops, key, table, "ops", lowest=-1)
    if "reuse" in ops:
        optional["reuse"] = integers(ops, "reuse", "ops")
    if "copied_key" in document:
        optional |= {key: integers(ops, key, "ops") for key in ("copy_of", "micro_batch") if key in ops}
        optional["copied_key"] = document["copied_key"]
    if "type" in ops:
        types = texts(document, "op_types") if "op_types" in document else ()
        optional["op_types"] = tuple(types[k] for k in codes(ops, "type", len(types), "ops").tolist())
    if "output_shapes" in ops:
        shapes = texts(document, "output_shapes") if "output_shapes" in document else ()
        codes_of_ops = codes(ops, "output_shapes", len(shapes), "ops").tolist()
        optional["output_shapes"] = tuple(shapes[k] for k in codes_of_ops)
    if "batch_readers" in document:
        optional["batch_readers"] = texts(document, "batch_readers")
    by_kind = ops.get("duration_us_by_kind", {})
    pointer, consumers = rows(tensors, "consumers", "tensors")
    producer = codes(tensors, "producer", n, "tensors")
    _check_length(
        len(producer), {"tensors.size_bytes": len(tensors["size_bytes"]), "tensors.consumers": len(pointer) - 1}
    )
    if len(consumers) and (consumers.min() < 0 or consumers.max() >= n):
        bad = int(np.flatnonzero((consumers < 0) | (consumers >= n))[0])
        row = int(np.searchsorted(pointer, bad, side="right")) - 1
        raise FormatError(f"tensors.consumers[{row}] names op {consumers[bad]}; the graph has ops 0..{n - 1}")
    return OpGraph(
        names=names,
        duration_us=floats(ops, "duration_us", "ops"),
        tensor_producer=producer.astype(np.int32),
        tensor_bytes=integers(tensors, "size_bytes", "tensors"),
        consumer_ptr=pointer,
        consumers=consumers.astype(np.int32),
        tensor_names=texts(tensors, "name", "tensors") if "name" in tensors else (),
        duration_by_kind={k: floats(by_kind, k, "ops.duration_us_by_kind") for k in by_kind},
        colocation_names=groups,
        allowed_sets=sets,
        name=document["name"],
        info=document.get("info", {}),
        **_read_groups(document, n),
        **optional,
    )


def _read_groups(document: Mapping[str, object], n: int) -> Document:
    group = codes(document, "group_of", n).astype(np.int32) if "group_of" in document else None
    return {"group_of": group, "source_key": document.get("source_key")}


def _check_length(length: int, columns: Mapping[str, int]) -> None:
    for label, column_length in columns.items():
        if column_length != length:
            raise FormatError(f"{label} has {column_length} entries; its neighbours have {length}")


# -- clusters ----------------------------------------------------------------------------------------------------


def _write_cluster(cluster: Cluster) -> Document:
    devices = [
        {"name": d.name, "kind": d.kind, "memory_bytes": d.memory_bytes, "speed": d.speed} for d in cluster.devices
    ]
    if isinstance(cluster.link, Link):
        return {"devices": devices, "link": _write_link(cluster.link), "comm": cluster.comm}
    links = [[_write_link(x) for x in row] for row in cluster.link]
    return {"devices": devices, "link": links, "comm": cluster.comm}


def _write_link(link: Link) -> dict[str, float]:
    optional_fields = {"overhead_us": float(link.overhead_us)} if link.overhead_us else {}
    return {"latency_us": float(link.latency_us), "us_per_byte": float(link.us_per_byte), **optional_fields}


def _read_cluster(document: Document) -> Cluster:
    devices = tuple(_read_object(d, Device, f"devices[{i}]") for i, d in enumerate(document["devices"]))
    link_fields = document["link"]
    if isinstance(link_fields, dict):
        return Cluster(devices, _read_object(link_fields, Link, "link"), document["comm"])
    links = [
        [_read_object(x, Link, f"link[{i}][{j}]") for j, x in enumerate(row)] if isinstance(row, list) else row
        for i, row in enumerate(link_fields)
    ]
    return Cluster(devices, links, document["comm"])


def _read_object(fields: Any, cls: Callable[..., Any], path: str) -> Any:
    try:
        return cls(**fields)
    except TypeError:
        raise FormatError(f"{path} is {json.dumps(fields)[:100]}; it has missing, unknown or mistyped fields") from None


# -- placements --------------------------------------------------------------------------------------------------

_ORDERS = ("order", "priority", "member_order")


def _write_placement(placement: Placement) -> Document:
    out: Document = {"device": column(placement.device), "placer": placement.placer}
    for key in _ORDERS:
        if getattr(placement, key) is not None:
            out[key] = column(getattr(placement, key))
    out |= {"params": plain(placement.params), "seconds": placement.seconds, "info": plain(placement.info)}
    if placement.finer_groups:
        out["finer_groups"] = placement.finer_groups
    if placement.replicas:
        out["replicas"] = [list(group) for group in placement.replicas]
    if placement.graph_key is not None:
        out["graph_key"] = placement.graph_key
    return {**out, **_write_groups(placement)}


def _read_placement(document: Document) -> Placement:
    """Returns the placement of a checked document."""
    order_fields: Document = {key: floats(document, key) for key in _ORDERS if key in document}
    device = integers(document, "device")
    if len(device) and device.max() > 2**31 - 1:
        raise FormatError(f"device[{int(device.argmax())}] is {device.max()}; it must fit into 32 bits")
    return Placement(
        device=device.astype(np.int32),
        placer=document["placer"],
        params=document.get("params", {}),
        seconds=document.get("seconds", 0.0),
        info=document.get("info", {}),
        graph_key=document.get("graph_key"),
        finer_groups=document.get("finer_groups", ""),
        replicas=tuple(tuple(group) for group in document.get("replicas", ())),
        **order_fields,
        **_read_groups(document, len(device)),
    )


# -- timelines ---------------------------------------------------------------------------------------------------

_OPS = ("op", "device", "start_us", "end_us")
_TRANSFERS = ("tensor", "source", "target", "start_us", "receive_us", "end_us")
_MEMORY = ("device", "time_us", "category", "delta", "op")
_VIOLATION = ("kind", "message", "device", "time_us", "op")


def _write_timeline(timeline: Timeline) -> Document:
    """Returns the columns of a timeline."""
    return {
        "origin": timeline.origin,
        "makespan_us": plain(float(timeline.makespan_us)),
        "op_names": list(timeline.op_names),
        "devices": {
            "name": list(timeline.device_names),
            "memory_bytes": column(timeline.memory_bytes),
            "peak_bytes": column(timeline.peak_bytes),
        },
        "ops": {k: column(getattr(timeline, k)) for k in _OPS},
        "tensors": {"producer": column(timeline.tensor_producer), "size_bytes": column(timeline.tensor_bytes)},
        "transfers": {k: column(getattr(timeline.transfers, k)) for k in _TRANSFERS},
        "memory": {k: column(getattr(timeline.memory, k)) for k in _MEMORY},
        "violations": [{k: plain(getattr(v, k)) for k in _VIOLATION} for v in timeline.violations],
        "info": plain(timeline.info),
    }


def _read_timeline(document: Document) -> Timeline:
    """Returns the timeline of a checked document."""
    ops, tensors, devices = document["ops"], document["tensors"], document["devices"]
    op_names, device_names = texts(document, "op_names"), texts(devices, "name", "devices")
    n, tensor_count, device_count = len(op_names), len(tensors["producer"]), len(device_names)
    transfer_columns = _table(
        document["transfers"], _TRANSFERS, "transfers", tensor=tensor_count, source=device_count, target=device_count
    )
    log = _table(document["memory"], _MEMORY, "memory", device=device_count, category=len(MEMORY_CATEGORIES))
    return Timeline(
        **_table(ops, _OPS, "ops", op=n, device=device_count),
        transfers=Transfers(**transfer_columns),
        memory=MemoryLog(**log),
        peak_bytes=integers(devices, "peak_bytes", "devices"),
        makespan_us=float(_times({"makespan_us": [document["makespan_us"]]}, "makespan_us")[0]),
        origin=document["origin"],
        op_names=op_names,
        device_names=device_names,
        memory_bytes=integers(devices, "memory_bytes", "devices"),
        tensor_producer=codes(tensors, "producer", n, "tensors"),  # type: ignore[arg-type]  # converted by the record
        tensor_bytes=integers(tensors, "size_bytes", "tensors"),
        violations=tuple(_read_violation(v, k) for k, v in enumerate(document["violations"])),
        info=dict(document.get("info", {})),
    )


def _table(section: Mapping[str, object], fields: tuple[str, ...], path: str, **limits: int) -> Document:
    """Returns columns of equal length; those in `limits` are indices into a table of that size."""
    out: Document = {}
    for key in fields:
        if key in limits:
            out[key] = codes(section, key, limits[key], path)
        else:
            out[key] = _times(section, key, path) if key.endswith("_us") else integers(section, key, path)
    _check_length(len(out[fields[0]]), {f"{path}.{k}": len(v) for k, v in out.items()})
    return out


def _times(section: Mapping[str, Any], key: str, path: str = "") -> Any:
    times_us = floats(section, key, path)
    if not np.all(np.isfinite(times_us)):
        bad = int(np.flatnonzero(~np.isfinite(times_us))[0])
        raise FormatError(f"{path}.{key}[{bad}] is {in_short(section[key][bad])}; it must be finite".lstrip("."))
    return times_us


def _read_violation(fields: Mapping[str, object], k: int) -> Violation:
    time = floats({"time_us": [fields.get("time_us")]}, "time_us", f"violations[{k}]")[0]
    violation: Violation = _read_object({**fields, "time_us": float(time)}, Violation, f"violations[{k}]")
    return violation


KINDS: dict[str, tuple[type, Callable[[Any], Document], Callable[[Document], Any]]] = {
    "graph": (OpGraph, _write_graph, _read_graph),
    "cluster": (Cluster, _write_cluster, _read_cluster),
    "placement": (Placement, _write_placement, _read_placement),
    "timeline": (Timeline, _write_timeline, _read_timeline),
}
"""Document kind -> record class, writer, reader."""
