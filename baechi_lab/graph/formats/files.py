"""Reading and writing records: `.json`, `.json.gz`; and graphs in the dnn-partitioning and STG formats.

A write goes to a temporary file beside the target and is renamed, so that a reader never sees half a file and a
failed write leaves the old one. The same record gives the same bytes. No pickle anywhere.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from ...errors import FormatError, InvalidInput
from ..cluster import Cluster
from ..opgraph import OpGraph
from ..placement import Placement
from ..timeline import Timeline
from .dnn_partitioning import graph_from_partitioning, looks_like_partitioning
from .json_format import FORMAT, KINDS, Record, from_document, to_document
from .leftovers import RANDOM, clear, lock
from .pipedream import PEEK, graph_from_pipedream, looks_like_pipedream
from .reading import (
    PathLike,
    name_of,
    parse,
    program_kind,
    read_bytes,
    refuse_model_config,
    refuse_saved_model,
    stem,
    text_of,
    with_file_name,
)
from .stg import graph_from_stg
from .traces.loading import graph_of_trace, trace_reader

_T = TypeVar("_T", OpGraph, Cluster, Placement, Timeline)
_DOT = re.compile(rb"(?s:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*(strict\s+)?(di)?graph\b[^{]*\{", re.IGNORECASE)
"""The beginning of a graph in the language of Graphviz."""


def load_graph(path: PathLike) -> OpGraph:
    """Reads a graph: ours (`.json`, `.json.gz`), dnn-partitioning JSON, PipeDream's `graph.txt`, a Standard Task Graph, a trace.

    The content decides, not the name, except that `.stg` and `.stg.gz` are always read as task graphs, and binary traces go
    by their names. Units and meaning of the foreign formats: see `dnn_partitioning`, `pipedream` and `stg` in
    `baechi_lab.graph.formats`; of traces, where they ran and when: see `bl.load_trace`.

    Args:
        path: of the file.

    Raises:
        FormatError: unreadable, truncated or foreign file; the message names file, field and place.
        InvalidInput: the file is well-formed, but what it describes is no valid graph (`CycleError`, `CostError`, ...).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_graph(OpGraph.from_edges([1.0, 2.0], [(0, 1, 8)]), f"{folder}/two.json.gz")
    ...     load_graph(f"{folder}/two.json.gz").n
    2
    """
    data = read_bytes(path)
    if (program := program_kind(path)) is not None:
        raise FormatError(
            f"{name_of(path)}: is {program}, whose operators have no times; bl.profile_program or `baechi-lab profile` "
            "estimates them for named hardware"
        )
    if (trace := trace_reader(path, data)) is not None:
        return graph_of_trace(path, trace)
    if name_of(path).removesuffix(".gz").endswith(".stg"):
        return with_file_name(path, lambda: graph_from_stg(text_of(data), stem(path)))
    if _DOT.match(data[:PEEK]):
        raise FormatError(
            f"{name_of(path)}: is in Graphviz's language, which has no fields for costs: read it with networkx, set "
            "duration_us of nodes and size_bytes of edges, and give that to bl.OpGraph.from_networkx"
        )
    if looks_like_pipedream(data[:PEEK].decode("utf-8", "replace")):
        return with_file_name(path, lambda: graph_from_pipedream(text_of(data), stem(path)))
    refuse_saved_model(path, data)
    document = with_file_name(path, lambda: parse(data))
    if looks_like_partitioning(document):
        return with_file_name(path, lambda: graph_from_partitioning(document, stem(path)))
    if not isinstance(document, dict) or "format" not in document:
        refuse_model_config(path, data)
    return _expect(path, document, OpGraph)


def save_graph(graph: OpGraph, path: PathLike) -> None:
    """Writes a graph to a `.json` or `.json.gz` file (see `baechi_lab.graph.formats.json_format`).

    Raises:
        InvalidInput: not an OpGraph.
        FormatError: the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_graph(OpGraph.from_edges([1.0, 2.0], [(0, 1, 8)]), f"{folder}/two.json")
    ...     load_graph(f"{folder}/two.json").names
    ('op0', 'op1')
    """
    if not isinstance(graph, OpGraph):
        raise InvalidInput(f"graph is a {type(graph).__name__}; save_graph writes an OpGraph")
    save(graph, path)


def save_cluster(cluster: Cluster, path: PathLike) -> None:
    """Writes a cluster to a `.json` or `.json.gz` file, such as one that `bl.measure_cluster` has measured.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_cluster(Cluster.uniform(2), f"{folder}/two.json")
    ...     load_cluster(f"{folder}/two.json") == Cluster.uniform(2)
    True
    """
    if not isinstance(cluster, Cluster):
        raise InvalidInput(f"cluster is a {type(cluster).__name__}; save_cluster writes a Cluster")
    save(cluster, path)


def load_cluster(path: PathLike) -> Cluster:
    """Reads a cluster that `bl.save_cluster` wrote.

    Raises:
        FormatError: an unreadable or foreign file; the message names file, field and place.
    """
    return _expect(path, with_file_name(path, lambda: parse(read_bytes(path))), Cluster)


def load_placement(path: PathLike) -> Placement:
    """Reads a placement that `save` wrote."""
    return _expect(path, with_file_name(path, lambda: parse(read_bytes(path))), Placement)


def load_timeline(path: PathLike) -> Timeline:
    """Reads a timeline that `save` wrote."""
    return _expect(path, with_file_name(path, lambda: parse(read_bytes(path))), Timeline)


def save(record: Record, path: PathLike) -> None:
    """Writes a graph, cluster, placement or timeline to a `.json` or `.json.gz` file."""
    name = name_of(path)
    if not name.endswith((".json", ".json.gz")):
        raise FormatError(f"{name or repr(name)}: the name must end in .json or .json.gz")
    data = encode(to_document(record))
    write_atomically(path, gzip_bytes(data) if name.endswith(".gz") else data)


def write_atomically(path: PathLike, data: bytes) -> None:
    """Writes beside the file, then renames; parents must exist. What a killed writer of this file left there is removed.

    A link stays a link: the file that it names is written. Devices and pipes are written as they are, and never replaced.

    Raises `FormatError` when the place cannot be written.
    """
    target = Path(name_of(path))
    try:
        if target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(data)
            return
        target = Path(os.path.realpath(target)) if target.is_symlink() else target
    except (OSError, ValueError) as error:
        raise FormatError(f"{target}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
    clear(target.parent, rf"\.{re.escape(target.name[:50])}\.{RANDOM}\.part", os.unlink)
    mode = None
    try:
        handle, temporary_path = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.", suffix=".part")
    except (OSError, ValueError) as error:
        raise FormatError(f"{target}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
    try:
        mode = lock(temporary_path)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary_path, 0o666 & ~mask)
        os.replace(temporary_path, target)
    except OSError as error:
        raise FormatError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(temporary_path):
            os.unlink(temporary_path)
        if mode is not None:
            os.close(mode)


def encode(document: dict[str, object]) -> bytes:
    """Returns a document as UTF-8 JSON: every column on a line of its own, so that files can be compared line by line."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"  {json.dumps(k)}: {_dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {_dumps(value)}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def gzip_bytes(data: bytes) -> bytes:
    """Returns compressed data, the same bytes each time."""
    # No name and no time in the header: the same record must give the same bytes.
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=6) as stream:
        stream.write(data)
    return buffer.getvalue()


def _expect(path: PathLike, document: Any, cls: type[_T]) -> _T:
    record = with_file_name(path, lambda: from_document(document))
    if not isinstance(record, cls):
        wanted_kind = next(kind for kind, (record_class, *_) in KINDS.items() if record_class is cls)
        raise FormatError(f"{name_of(path)}: field kind is {document['kind']!r}; it must be {wanted_kind!r}")
    return record


__all__ = [
    "FORMAT",
    "encode",
    "gzip_bytes",
    "load_cluster",
    "load_graph",
    "load_placement",
    "load_timeline",
    "save",
    "save_cluster",
    "save_graph",
    "write_atomically",
]
