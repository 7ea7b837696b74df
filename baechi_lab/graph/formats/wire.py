"""A graph as bytes, for another process or machine, or for a file of rows."""

from __future__ import annotations

import gzip
import json
import zlib
from functools import lru_cache

from ...errors import FormatError
from ..opgraph import OpGraph
from .json_format import from_document, to_document


def encode_graph(graph: OpGraph) -> bytes:
    """Returns a graph as compressed JSON."""
    return gzip.compress(json.dumps(to_document(graph), separators=(",", ":")).encode(), compresslevel=5, mtime=0)


@lru_cache(maxsize=4)
def decode_graph(data: bytes) -> OpGraph:
    """Returns the graph of `encode_graph`, cached for further calls. Raises `FormatError` for damaged bytes."""
    try:
        graph = from_document(json.loads(gzip.decompress(data)))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FormatError(f"the stored graph is damaged: {error}") from error
    if not isinstance(graph, OpGraph):
        raise FormatError(f"the stored record is a {type(graph).__name__}, not a graph")
    return graph
