"""`load_trace`: reads a trace file of any format of this package as a `Recording`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....errors import FormatError, InvalidInput
from ....internal_warnings import outer_stacklevel
from ...opgraph import OpGraph
from ..reading import (
    PathLike,
    name_of,
    parse,
    read_bytes,
    refuse_model_config,
    refuse_saved_model,
    stem,
    text_of,
    with_file_name,
)
from .chakra import graph_of_ranks, looks_like_chakra, nodes_of, nodes_of_json
from .execution_trace import Access, accesses, looks_like_execution_trace
from .kineto import graph_from_kineto, looks_like_kineto
from .recording import Recording
from .run_metadata import graph_from_run_metadata
from .xplane import graph_from_xplane

PEEK = 65536  # bytes from which the kind of a file is recognised
_PROTOBUF_TEXT = re.compile(rb"\s*(step_stats|partition_graphs|cost_graph|node|versions|library)\s*\{")
"""The beginning of a RunMetadata or a GraphDef as text, which some programs save as `.pb`."""
_OBJECTS = re.compile(r'\ufeff?\s*\[?\s*\{\s*"')
"""The beginning of objects of JSON, in sequence or in a list; that of a binary trace may be a brace or a bracket, too."""
_LIST_OF_EVENTS = re.compile(r"\ufeff?\s*\[\s*\{")
"""The beginning of a Chrome trace that is the list of its events."""


class InferredDependencies(UserWarning):
    """A trace lacks information that its graph needs; the message says what was inferred and how."""


def load_trace(path: PathLike | Sequence[PathLike], *, execution_trace: PathLike | None = None) -> Recording:
    """Reads a step that was traced elsewhere: its ops, their devices and times, and their dependencies.

    Args:
        path: a Kineto trace (exported by `torch.profiler`; `.json`, `.json.gz`; an object or the list of its events), a Chakra
            execution trace (`.et`, or its JSON), TensorFlow's RunMetadata (`.pb`, `.pbtxt`) or XPlane (`.xplane.pb`). Several
            paths are the ranks of one Chakra trace.
        execution_trace: for a Kineto trace, the file that PyTorch's `ExecutionTraceObserver` wrote in the same run; its
            tensors give the dependencies.

    Returns:
        A `Recording`: graph, cluster, placement and timeline as measured, and notes on inferred dependencies.

    Raises:
        FormatError: the file is unreadable, cut off, or has another format; the message names file, field and place.
        InvalidInput: the file is well-formed, but does not describe a valid graph.

    >>> import json, tempfile
    >>> op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 0, "dur": 5}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/step.json", "w") as file:
    ...         json.dump({"traceEvents": [op, {**op, "ts": 6}]}, file)
    ...     load_trace(f"{folder}/step.json")
    <Recording 'step': 2 ops on 1 lanes, 11 us>
    """
    paths: list[PathLike] = list(path) if isinstance(path, (list, tuple)) else [path]  # type: ignore[list-item]
    if not paths:
        raise InvalidInput("path is an empty list; name at least one file")
    if execution_trace is not None and len(paths) > 1:
        raise InvalidInput("execution_trace goes with one Kineto trace; several paths are the ranks of a Chakra trace")
    if len(paths) > 1:
        ranks = [with_file_name(p, lambda p=p: _chakra_nodes(p, read_bytes(p))) for p in paths]  # type: ignore[misc]
        return with_file_name(paths[0], lambda: graph_of_ranks(ranks, stem(paths[0])))
    one = paths[0]
    data = read_bytes(one)
    tensors = None
    if execution_trace is not None:
        trace_bytes = read_bytes(execution_trace)
        tensors = with_file_name(execution_trace, lambda: accesses(parse(trace_bytes)))
    reader = trace_reader(one, data, tensors)
    if reader is None:
        refuse_model_config(one, data)
        refuse_saved_model(one, data)
        raise FormatError(f"{name_of(one)}: is no trace of a kind that is read: Kineto, Chakra, RunMetadata or XPlane")
    if tensors is not None and not _is_kineto(name_of(one).removesuffix(".gz"), _beginning(data)):
        raise InvalidInput(f"{name_of(one)}: is no Kineto trace, which execution_trace goes with")
    return with_file_name(one, reader)


def trace_reader(
    path: PathLike, data: bytes, tensors: dict[int, Access] | None = None
) -> Callable[[], Recording] | None:
    """Returns the reader of a file, by the name of a binary file and by the content of a text; None if it is no trace."""
    name, title = name_of(path).removesuffix(".gz"), stem(path)
    if name.endswith(".xplane.pb"):
        return lambda: graph_from_xplane(data, title)
    if name.endswith((".pb", ".pbtxt")):
        return lambda: graph_from_run_metadata(
            data, title, text=name.endswith(".pbtxt") or bool(_PROTOBUF_TEXT.match(data))
        )
    if name.endswith(".et") or looks_like_chakra(_beginning(data)):
        return lambda: graph_of_ranks([_chakra_nodes(path, data)], title)
    return (lambda: _of_json(data, tensors, title)) if _is_kineto(name, _beginning(data)) else None


def _beginning(data: bytes) -> str:
    return data[:PEEK].decode("utf-8", "replace")


def _is_kineto(name: str, beginning: str) -> bool:
    """Whether this is a Kineto trace, or an execution trace that was passed in its place."""
    if name.endswith((".pb", ".pbtxt", ".et")) or looks_like_chakra(beginning):
        return False
    if _LIST_OF_EVENTS.match(beginning):
        return '"ph"' in beginning
    head = beginning[:1000]
    return '"traceEvents"' in beginning or '"schemaVersion"' in head or ('"schema"' in head and '"chakra' not in name)


def _chakra_nodes(path: PathLike, data: bytes) -> Any:
    if _OBJECTS.match(_beginning(data)) and _is_kineto(name_of(path).removesuffix(".gz"), _beginning(data)):
        raise FormatError(
            "is a trace of PyTorch, and several paths are the ranks of a Chakra trace; give a Kineto trace alone, and the "
            "execution trace of the same run as execution_trace"
        )
    return nodes_of_json(text_of(data)) if _OBJECTS.match(_beginning(data)) else nodes_of(data)


def _of_json(data: bytes, tensors: dict[int, Access] | None, title: str) -> Recording:
    if _LIST_OF_EVENTS.match(_beginning(data)):
        events, notes = _list_of_events(data)
        recording = graph_from_kineto({"traceEvents": events}, tensors, title)
        return replace(recording, notes=(*notes, *recording.notes))
    document = parse(data)
    if looks_like_kineto(document):
        return graph_from_kineto(document, tensors, title)
    if looks_like_execution_trace(document):
        raise FormatError(
            "an execution trace has no times; give the Kineto trace of the run, and this one as execution_trace"
        )
    raise FormatError("not a trace: the field traceEvents is missing")


def _list_of_events(data: bytes) -> tuple[object, list[str]]:
    """Returns the events of a Chrome trace that is a list. Its end may be missing, as that of a program that was stopped."""
    open_list = data.rstrip().removesuffix(b",").rstrip()
    if not open_list.endswith(b"}"):
        return parse(data), []
    return parse(open_list + b"]"), ["the list of events has no end: events may be missing"]


def graph_of_trace(path: PathLike, reader: Callable[[], Recording]) -> OpGraph:
    """Returns only the graph, with a warning about inferred dependencies."""
    recording = with_file_name(path, reader)
    if recording.notes:
        warnings.warn(
            f"{name_of(path)}: {'; '.join(recording.notes)} (bl.load_trace has the times and lanes as well)",
            InferredDependencies,
            stacklevel=outer_stacklevel(),
        )
    return recording.graph
