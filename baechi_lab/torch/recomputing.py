"""From a recomputed or offloaded graph (`bl.recompute`, `bl.offload`) to the rows by which a distributed model follows it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from ..errors import ActivationsKept, InvalidInput
from ..graph import OpGraph
from .records import PARTS, STATE, Trace
from .runtime.again import BACKWARD, HOST, OUTPUT, SAVED, Row

_COPY = re.compile(r"(/again)+'*$")
_HOST = re.compile(r"(:[^/]*)?/offloaded'*$")
_STATE = re.compile(r"(.*)/update/state'*$")


def changed(graph: OpGraph | None) -> bool:
    """Whether a graph computes ops again, or has some of their outputs or optimizer state on a host."""
    if graph is None:
        return False
    return STATE in graph.op_types or any(_COPY.search(name) or _HOST.search(name) for name in graph.names)


def rows(trace: Trace, graph: OpGraph | None) -> tuple[Row, ...]:
    """What the calls of `trace` read from runs other than the first, or from the host; see `runtime.again.Sources`.

    Calls that cannot be repeated are kept: an `ActivationsKept` warning says which and why.
    """
    if graph is None or not changed(graph):
        return ()
    found = sorted(set(_rows(len(trace.calls), graph)))
    kept = unrepeatable(trace)
    left = {producer for _, _, _, producer, source in found if source > 0} & kept.keys()
    if left:
        warnings.warn(said(trace, {call: kept[call] for call in left}), ActivationsKept, stacklevel=4)
    return tuple(
        row for row in found if not (row[3] in left and row[4] > 0) and not (row[0] in left and row[1] != BACKWARD)
    )


def _rows(calls: int, graph: OpGraph) -> Iterator[Row]:
    """Where backward ops and copies read: of several sources of one backward pass the one that keeps longest counts."""
    runs = [_run(calls, graph, op) for op in range(graph.n)]
    found: dict[tuple[int, int, int, int], int] = {}
    for edge, reader in enumerate(graph.consumers.tolist()):
        tensor = int(graph.edge_tensor[edge])
        producer, hosted = int(graph.tensor_producer[tensor]), False
        while producer >= calls and (
            (sent := _HOST.search(graph.names[producer])) or graph.op_types[producer] == PARTS
        ):
            read = graph.inputs[1][graph.inputs[0][producer] : graph.inputs[0][producer + 1]]
            tensor = int(read[graph.tensor_bytes[read].argmax()])  # the others are waits, without bytes
            producer, hosted = int(graph.tensor_producer[tensor]), hosted or sent is not None
        made, read = runs[producer], runs[reader]
        if made is None or read is None or made[1] == BACKWARD or read[1] == 0:
            continue
        label = graph.tensor_names[tensor]
        what = SAVED if label == "saved" else OUTPUT
        if not (what == SAVED or label.startswith("value:")):
            continue
        key, source = (*read, what, made[0]), HOST if hosted else made[1]
        found[key] = source if key not in found else _longer(found[key], source)
    return ((*key, source) for key, source in found.items() if source != 0 or key[1] != BACKWARD)


def _longer(a: int, b: int) -> int:
    """Of two sources of one reader: the first run, else the host, else the earlier run."""
    return min(a, b, key=lambda source: (source != 0, source != HOST, source))


def _run(calls: int, graph: OpGraph, op: int) -> tuple[int, int] | None:
    """The call that an op is, and which of its runs; its backward op; None for what no call does."""
    if op < calls:
        return op, 0
    origin = int(graph.forward_of[op])
    if not 0 <= origin < calls:
        return None
    again = _COPY.search(graph.names[op])
    if again and graph.names[op].startswith(graph.names[origin] + "/again"):
        return origin, graph.names[op][len(graph.names[origin]) :].count("/again")
    return origin, BACKWARD


def lent_groups(trace: Trace, graph: OpGraph | None) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Op of the graph that has state on a host, and the parameters that it belongs to, in the order of their updates.

    Raises `InvalidInput` for state of what is no call of the model.
    """
    for op, kind in enumerate(() if graph is None else graph.op_types):
        if kind != STATE or graph is None:
            continue
        found = _STATE.match(graph.names[op])
        if found is None or found[1] not in trace.index:
            raise InvalidInput(
                f"op {graph.names[op]!r} of graph {graph.name!r} keeps the state of no layer of the model; bl.offload names it "
                "LAYER/update/state"
            )
        call = trace.index[found[1]]
        yield op, tuple(name for name in trace.calls[call].parameters if trace.owner[name] == call)


def copies(calls: int, graph: OpGraph) -> dict[tuple[int, int], int]:
    """(call, run) -> the op of the graph that it is, for runs after the first."""
    runs = {op: run for op in range(calls, graph.n) if (run := _run(calls, graph, op)) is not None}
    return {run: op for op, run in runs.items() if run[1] > 0}


def unrepeatable(trace: Trace) -> dict[int, str]:
    """Calls that must not run twice, with the reason."""
    found, made = dict(trace.fixed), _made(trace)
    written = _written(trace, made)
    for index, call in enumerate(trace.calls):
        if call.recomputed:
            found.setdefault(index, "a checkpointed region of the model's own")
        if call.inplace:
            found.setdefault(index, "it writes in place")
        reads = {trace.values[v].storage for v in call.reads}
        if any(written.get(storage, -1) >= index for storage in made[index] | reads):
            found.setdefault(index, "a later call writes in place over what it reads or makes")
    return found


def _made(trace: Trace) -> list[set[int]]:
    """Storages that each call makes or hands on."""
    found: list[set[int]] = [set() for _ in trace.calls]
    for value in trace.values:
        if value.producer >= 0:
            found[value.producer].add(value.storage)
    return found


def _written(trace: Trace, made: list[set[int]]) -> dict[int, int]:
    """Storage -> the last call that writes it in place."""
    found: dict[int, int] = {}
    for index, call in enumerate(trace.calls):
        if call.inplace:
            reads = {trace.values[v].storage for v in call.reads}
            found |= dict.fromkeys(reads & made[index] or reads, index)
    return found


def said(trace: Trace, kept: dict[int, str]) -> str:
    """One line: how many calls are not repeated, and the reasons with an example each."""
    groups: dict[str, list[str]] = {}
    for call, why in sorted(kept.items()):
        groups.setdefault(why, []).append(trace.calls[call].key)
    shown = "; ".join(f"{why} ({len(keys)}, such as {keys[0]!r})" for why, keys in groups.items())
    return f"outputs of {len(kept)} calls are kept that the graph computes again, because the calls cannot run twice: {shown}"
