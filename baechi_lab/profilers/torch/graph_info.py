"""Entries of `OpGraph.info` of a graph of layers: what must not run twice, the batch, and sparse gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...graph.tensors import BATCH_BYTES, SPARSE_GRADIENTS, UNREPEATABLE
from ...torch_steps.activation_rows import find_unrepeatable_calls
from ...torch_steps.records import Trace


def unrepeatable_entry(trace: Trace) -> dict[str, dict[str, list[str]]]:
    """Returns the entry with the calls that must not run twice: names by the reason."""
    names_by_reason: dict[str, list[str]] = {}
    for call, reason in sorted(find_unrepeatable_calls(trace).items()):
        names_by_reason.setdefault(reason, []).append(trace.calls[call].key)
    return {UNREPEATABLE: names_by_reason} if names_by_reason else {}


def batch_entry(trace: Trace, batch_bytes: int) -> dict[str, dict[str, int]]:
    """Returns the entry with the bytes of the batch, which the first call of a step holds."""
    return {BATCH_BYTES: {trace.calls[0].key: batch_bytes}} if batch_bytes and trace.calls else {}


def sparse_entry(sparse_gradients: Mapping[int, int], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Returns the entry with the bytes of the sparse gradients of ops.

    >>> sparse_entry({1: 80}, ["table", "table/backward"])
    {'sparse_gradients': {'table/backward': 80}}
    """
    bytes_by_name = {names[op]: size for op, size in sparse_gradients.items()}
    return {SPARSE_GRADIENTS: bytes_by_name} if bytes_by_name else {}
