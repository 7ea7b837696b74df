"""The columns of `OpGraph` that tensors make, from tensors collected one by one or from arrays in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels.csr import Integers, distinct, inverse, offsets

_SHORT_TYPES = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}
_MOST_SHAPES = 4  # outputs of an op whose shapes are shown


BATCH_BYTES = "batch_bytes"
"""Entry of `OpGraph.info`: name of an op -> bytes of the batch among its persistent bytes. Each micro-batch has its own."""

SPARSE_GRADIENTS = "sparse_gradients"
"""Entry of `OpGraph.info`: name of a backward op -> bytes of the sparse gradients among its persistent bytes.

The sum of sparse gradients has the rows of all of them. An update in the colocation group of the op reads it.
"""

UNREPEATABLE = "unrepeatable"
"""Entry of `OpGraph.info`: reasons why ops must not run twice -> names of these ops."""


def bytes_of_ops(info: Mapping[str, object], entry: str, index: Mapping[str, int]) -> dict[int, int]:
    """Returns op -> bytes, from an entry (`BATCH_BYTES`, `SPARSE_GRADIENTS`) of the info of a graph with the ops of `index`.

    >>> bytes_of_ops({BATCH_BYTES: {"first": 80, "gone": 8}}, BATCH_BYTES, {"first": 0})
    {0: 80}
    """
    bytes_by_name = info.get(entry)
    if not isinstance(bytes_by_name, Mapping):  # a file may have anything there
        return {}
    return {
        index[op]: size for op, size in bytes_by_name.items() if op in index and type(size) is int and 0 <= size < 2**63
    }


def unrepeatable_ops(info: Mapping[str, object], index: Mapping[str, int]) -> dict[int, str]:
    """Returns op -> reason: the ops that must not run twice, from the info of a graph with the ops of `index`.

    >>> unrepeatable_ops({UNREPEATABLE: {"it draws numbers": ["drop", "gone"]}}, {"first": 0, "drop": 1})
    {1: 'it draws numbers'}
    """
    names_by_reason = info.get(UNREPEATABLE)
    if not isinstance(names_by_reason, Mapping):  # a file may have anything there
        return {}
    reasons_by_name = [
        (name, str(why)) for why, names in names_by_reason.items() if isinstance(names, list) for name in names
    ]
    return {index[name]: why for name, why in reasons_by_name if isinstance(name, str) and name in index}


def lasting_info(
    info: Mapping[str, object], index: Mapping[str, int], names_after: Callable[[int], Iterable[str]]
) -> dict[str, object]:
    """Returns the entries of the info of a graph with the ops of `index` that stay true in a graph made from it.

    `names_after` gives the names of the ops that stand for an op there.

    >>> info = {"estimate": {}, "measured": {}, UNREPEATABLE: {"it draws numbers": ["drop"]}, BATCH_BYTES: {"drop": 8}}
    >>> lasting_info(info, {"drop": 0}, lambda op: ["drop/mb0", "drop/mb1"]) == {
    ...     "estimate": {},
    ...     UNREPEATABLE: {"it draws numbers": ["drop/mb0", "drop/mb1"]},
    ...     BATCH_BYTES: {"drop/mb0": 8, "drop/mb1": 8},
    ... }
    True
    """
    unique_names: dict[str, dict[str, None]] = {}
    for op, reason in unrepeatable_ops(info, index).items():
        unique_names.setdefault(reason, {}).update(dict.fromkeys(names_after(op)))
    names_by_reason = {reason: list(names) for reason, names in unique_names.items()}
    entries: dict[str, object] = {"estimate": info.get("estimate"), UNREPEATABLE: names_by_reason}
    for key in (BATCH_BYTES, SPARSE_GRADIENTS):
        size_bytes: dict[str, int] = {}
        for op, size in bytes_of_ops(info, key, index).items():
            for name in names_after(op):
                size_bytes[name] = size_bytes.get(name, 0) + size
        entries[key] = size_bytes
    return {key: entry for key, entry in entries.items() if entry or key in info}


def shapes_in_words(tensors: Iterable[tuple[str, Iterable[int]]]) -> str:
    """Types and shapes of what an op makes as `OpGraph.output_shapes` has them; a negative size is not known.

    >>> shapes_in_words([("float32", (32, 1000)), ("bfloat16", ()), ("int64", (-1,))])
    'f32[32,1000], bf16[], i64[?]'
    """
    texts = []
    for dtype, shape in tensors:
        long = next((name for name in _SHORT_TYPES if dtype.startswith(name)), "")
        sizes = ",".join("?" if size < 0 else str(size) for size in shape)
        texts.append(f"{_SHORT_TYPES.get(long, '')}{dtype[len(long) :]}[{sizes}]")
    omitted_count = len(texts) - _MOST_SHAPES
    return ", ".join(texts[:_MOST_SHAPES]) + (f" and {omitted_count} more" if omitted_count > 0 else "")


def text_column(texts: Sequence[str], origin: Iterable[int]) -> tuple[str, ...]:
    """Returns an optional column of texts for a graph whose ops come from those of `origin`; -1: a new op, which has no text.

    >>> text_column(["a", "b"], [1, 1, -1]), text_column([], [1, 1, -1])
    (('b', 'b', ''), ())
    """
    return tuple(texts[k] if k >= 0 else "" for k in origin) if texts else ()


PARTS_TYPE = "Parts"
"""Type of PyTorch's ops that hand out parts of what a call made, as views."""
NAMED = "Named"
"""Type of ops of PyTorch's steps that keep a tensor for as long as a variable names it (`simulator.pipelined_graph`)."""
TARGETS = "Targets"
"""Type of the op of PyTorch's steps that hands the targets of the batch to the loss, as views."""
RECOMPUTED = "Recomputed"
"""Type of PyTorch's ops that make again what an op of a checkpointed region made."""


class TensorTable:
    """Tensors by producer and label, with the ops that read them.

    >>> table = TensorTable()
    >>> table.add(1, "x", 8, [2])
    >>> table.add(0, "y", 4, [1])
    >>> table.add(1, "x", 8, [3])
    >>> {key: list(column) for key, column in table.columns().items() if key != "tensor_names"}
    {'tensor_producer': [0, 1], 'tensor_bytes': [4, 8], 'consumer_ptr': [0, 1, 3], 'consumers': [1, 2, 3]}
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], tuple[int, set[int]]] = {}

    def add(self, producer: int, label: str, size: int, readers: Iterable[int]) -> None:
        """Adds a tensor, or more readers of one (whose size stays the first that was given)."""
        self.rows.setdefault((producer, label), (size, set()))[1].update(readers)

    def columns(self) -> dict[str, Any]:
        """Returns the arguments of `OpGraph` that tensors make."""
        keys = sorted(self.rows, key=lambda key: key[0])  # stable: in the order in which they were added
        readers = [sorted(self.rows[key][1]) for key in keys]
        row = np.repeat(np.arange(len(keys)), [len(r) for r in readers])
        return {
            "tensor_producer": [p for p, _ in keys],
            "tensor_bytes": [self.rows[key][0] for key in keys],
            "tensor_names": tuple(label for _, label in keys),
            "consumer_ptr": offsets(row, len(keys)).tolist(),
            "consumers": [op for r in readers for op in r],
        }


def tensor_columns(
    producer: Integers, size_bytes: NDArray[np.int64], labels: Sequence[str], row: Integers, reader: Integers, ops: int
) -> dict[str, Any]:
    """Returns the arguments of `OpGraph` that tensors make, one per entry of `producer`, in any order; no `labels`: by number.

    Tensor `row[k]` is read by the op `reader[k]`, of `ops` in all; equal pairs count once.

    >>> columns = tensor_columns(np.array([1, 0]), np.array([8, 4]), ("x", "y"), np.array([0, 1]), np.array([2, 1]), 3)
    >>> columns["tensor_names"], columns["consumers"].tolist()
    (('y', 'x'), [1, 2])
    """
    order = np.argsort(producer, kind="stable")
    pairs = distinct(inverse(order)[row] * np.int64(ops) + reader)
    return {
        "tensor_producer": producer[order].astype(np.int32),
        "tensor_bytes": size_bytes[order],
        "tensor_names": tuple(labels[k] for k in order.tolist()) if labels else (),
        "consumer_ptr": offsets(pairs // ops, len(order)),
        "consumers": (pairs % ops).astype(np.int32),
    }
