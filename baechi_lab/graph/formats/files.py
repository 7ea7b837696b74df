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
import stat
import tempfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

from ...errors import FormatError, InvalidInput
from ..cluster import Cluster
from ..opgraph import OpGraph
from ..placement import Placement
from ..timeline import Timeline
from .dnn_partitioning import graph_from_partitioning, looks_like_partitioning
from .json_format import FORMAT, Record, from_document, to_document
from .pipedream import PEEK, graph_from_pipedream, looks_like_pipedream
from .stg import graph_from_stg

PathLike = str | os.PathLike[str]
_T = TypeVar("_T", OpGraph, Cluster, Placement, Timeline)


def load_graph(path: PathLike) -> OpGraph:
    """Read a graph: ours (`.json`, `.json.gz`), dnn-partitioning JSON, PipeDream's `graph.txt`, or a Standard Task Graph.

    The content decides, not the name, except that `.stg` and `.stg.gz` are always read as task graphs. Units and meaning
    of the foreign formats: see `dnn_partitioning`, `pipedream` and `stg` in `baechi_lab.graph.formats`.

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
    data = _read(path)
    if _name(path).removesuffix(".gz").endswith(".stg"):
        task_graph: OpGraph = _located(path, lambda: graph_from_stg(_text(data), _stem(path)))
        return task_graph
    if looks_like_pipedream(data[:PEEK].decode("utf-8", "replace")):
        profile: OpGraph = _located(path, lambda: graph_from_pipedream(_text(data), _stem(path)))
        return profile
    document = _located(path, lambda: _parse(data))
    if looks_like_partitioning(document):
        foreign: OpGraph = _located(path, lambda: graph_from_partitioning(document, _stem(path)))
        return foreign
    return _expect(path, document, OpGraph)


def save_graph(graph: OpGraph, path: PathLike) -> None:
    """Write a graph to a `.json` or `.json.gz` file (see `baechi_lab.graph.formats.json_format`).

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
    """Write a cluster to a `.json` or `.json.gz` file, such as one that `bl.measure_cluster` has measured.

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
    """Read a cluster that `bl.save_cluster` wrote.

    Raises:
        FormatError: an unreadable or foreign file; the message names file, field and place.
    """
    return _expect(path, _located(path, lambda: _parse(_read(path))), Cluster)


def load_placement(path: PathLike) -> Placement:
    """Read a placement that `save` wrote."""
    return _expect(path, _located(path, lambda: _parse(_read(path))), Placement)


def load_timeline(path: PathLike) -> Timeline:
    """Read a timeline that `save` wrote."""
    return _expect(path, _located(path, lambda: _parse(_read(path))), Timeline)


def save(record: Record, path: PathLike) -> None:
    """Write a graph, cluster, placement or timeline to a `.json` or `.json.gz` file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Cluster.uniform(2), f"{folder}/two.json")
    ...     load_cluster(f"{folder}/two.json")
    <Cluster 2 x gpu of 8.59 GB, sequential transfers>
    """
    name = _name(path)
    if not name.endswith((".json", ".json.gz")):
        raise FormatError(f"{name}: the name must end in .json or .json.gz")
    data = encode(to_document(record))
    write_atomically(path, compressed(data) if name.endswith(".gz") else data)


def write_atomically(path: PathLike, data: bytes) -> None:
    """Write beside, then rename; parents must exist. Raises `FormatError` when the place cannot be written."""
    target = Path(_name(path))
    try:
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.", suffix=".part")
    except (OSError, ValueError) as error:
        raise FormatError(f"{target}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(beside, 0o666 & ~mask)
        os.replace(beside, target)
    except OSError as error:
        raise FormatError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def encode(document: dict[str, Any]) -> bytes:
    """A document as UTF-8 JSON: every column on a line of its own, so that files can be compared line by line."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"  {json.dumps(k)}: {_dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {_dumps(value)}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def compressed(data: bytes) -> bytes:
    """Gzip data, the same bytes each time."""
    # No name and no time in the header: the same record must give the same bytes.
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=6) as stream:
        stream.write(data)
    return buffer.getvalue()


MOST_FILE_BYTES = 1 << 29
"""A file may hold, and unpack to, half a gibibyte: graphs of a million ops are below a third of that."""


def _read(path: PathLike) -> bytes:
    name = _name(path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # a FIFO would wait for ever, a device never end
            raise FormatError(f"{name}: cannot be read: it is a folder, a pipe or a device, not a file")
        with open(name, "rb") as stream:
            data = stream.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as archive:
                data = archive.read(MOST_FILE_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise FormatError(f"{name}: the gzip data is truncated or damaged: {error}") from error
    if len(data) > MOST_FILE_BYTES:
        raise FormatError(f"{name}: holds more than {MOST_FILE_BYTES} bytes; no record may be larger")
    return data


def _name(path: PathLike) -> str:
    """A path as text. Raises `InvalidInput` for what names no file."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise InvalidInput(f"path is {path!r:.60}; it must name a file")
    return os.fsdecode(path)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {error.start} is not UTF-8 text") from error


def _parse(data: bytes) -> Any:
    text = _text(data)
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        cut = " (the file ends there: is it truncated?)" if not text[error.pos :].strip() else ""
        raise FormatError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}{cut}") from error
    except RecursionError as error:
        raise FormatError("not a document of ours: lists are nested too deeply") from error
    except ValueError as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"not a document of ours: {error}") from error
    if HALF_CHARACTER.search(text):
        _refuse_half_characters(document)
    return document


HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""How a half of a surrogate pair begins; pairs are legal, so this is only a reason to look."""


def _refuse_half_characters(document: Any) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"a text holds {error.object[error.start]!a}, which is half of a character") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; the last of two equal keys would win without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for k, (key, _) in enumerate(pairs) if key in dict(pairs[:k]))
        raise FormatError(f"field {twice!r:.60} appears more than once in one object")
    return found


def _refuse_constant(word: str) -> Any:
    raise FormatError(f"{word} is not JSON; numbers must be finite")


def _expect(path: PathLike, document: Any, cls: type[_T]) -> _T:
    record = _located(path, lambda: from_document(document))
    if not isinstance(record, cls):
        kind = document["kind"]
        raise FormatError(f"{_name(path)}: field kind is {kind!r}; a {cls.__name__} was asked for")
    return record


def _located(path: PathLike, work: Any) -> Any:
    """Run `work`; put the file's name in front of what it has to complain about, keeping the error's class."""
    try:
        return work()
    except InvalidInput as error:
        raise type(error)(f"{_name(path)}: {error}") from error
    except RecursionError as error:
        raise FormatError(f"{_name(path)}: lists or objects are nested too deeply") from error
    except MemoryError as error:
        raise FormatError(f"{_name(path)}: takes more memory than there is") from error


def _stem(path: PathLike) -> str:
    name = Path(_name(path)).name
    return name.removesuffix(".gz").removesuffix(".json").removesuffix(".stg")


__all__ = [
    "FORMAT", "compressed", "encode", "load_cluster", "load_graph", "load_placement", "load_timeline", "save",
    "save_cluster", "save_graph", "write_atomically",
]  # fmt: skip
