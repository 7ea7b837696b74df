"""Makes the rows by which a distributed model follows a recomputed or offloaded graph (`bl.recompute`, `bl.offload`)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from ..errors import ActivationsKept, InvalidInput
from ..graph import OpGraph
from ..graph.tensors import PARTS_TYPE
from ..internal_warnings import outer_stacklevel
from ..torch_runtime.activation_policy import BACKWARD, HOST, OUTPUT, SAVED, ActivationRow
from .pinned_calls import describe_reasons
from .records import STATE, Trace

_COPY = re.compile(r"(/again)+'*$")
_HOST = re.compile(r"(:[^/]*)?/offloaded'*$")
_STATE = re.compile(r"(.*)/update/state'*$")


def recomputes_or_offloads(graph: OpGraph | None) -> bool:
    """Whether a graph computes ops again, or has outputs or optimizer state on a host."""
    if graph is None:
        return False
    return STATE in graph.op_types or any(_COPY.search(name) or _HOST.search(name) for name in graph.names)


def activation_rows(trace: Trace, graph: OpGraph | None) -> tuple[ActivationRow, ...]:
    """Returns what the calls of `trace` read from a later run or from the host; see `activation_policy.ActivationSources`.

    The outputs of calls that cannot run twice are kept. An `ActivationsKept` warning says which and why.
    """
    if graph is None or not recomputes_or_offloads(graph):
        return ()
    # Rows for all reads of backward ops and copies. Of several sources of one reader, the one that lives longest counts.
    calls = len(trace.calls)
    run_of = [_run_of_op(calls, graph, op) for op in range(graph.n)]
    source_of: dict[tuple[int, int, int, int], int] = {}
    for edge, reader in enumerate(graph.consumers.tolist()):
        tensor = int(graph.edge_tensor[edge])
        producer, is_on_host = int(graph.tensor_producer[tensor]), False
        while producer >= calls and (
            (host_copy := _HOST.search(graph.names[producer])) or graph.op_types[producer] == PARTS_TYPE
        ):
            inputs = graph.inputs[1][graph.inputs[0][producer] : graph.inputs[0][producer + 1]]
            tensor = int(inputs[graph.tensor_bytes[inputs].argmax()])  # other inputs are waits without bytes
            producer, is_on_host = int(graph.tensor_producer[tensor]), is_on_host or host_copy is not None
        producer_run, reader_run = run_of[producer], run_of[reader]
        if producer_run is None or reader_run is None or producer_run[1] == BACKWARD or reader_run[1] == 0:
            continue
        label = graph.tensor_names[tensor]
        kind = SAVED if label == "saved" else OUTPUT
        if not (kind == SAVED or label.startswith("value:")):
            continue
        key, source = (*reader_run, kind, producer_run[0]), HOST if is_on_host else producer_run[1]
        # The first run lives longest, then the host, then the earlier run.
        longest = lambda source: (source != 0, source != HOST, source)  # noqa: E731
        source_of[key] = min(source_of.get(key, source), source, key=longest)
    all_rows = sorted((*key, source) for key, source in source_of.items() if source != 0 or key[1] != BACKWARD)
    unrepeatable_calls = find_unrepeatable_calls(trace)
    kept_calls = {producer for _, _, _, producer, source in all_rows if source > 0} & unrepeatable_calls.keys()
    if kept_calls:
        reasons = {call: unrepeatable_calls[call] for call in kept_calls}
        message = f"outputs of {len(reasons)} calls are kept that the graph computes again, because the calls cannot run twice: "
        message += describe_reasons(reasons, [call.key for call in trace.calls])
        warnings.warn(message, ActivationsKept, stacklevel=outer_stacklevel())
    return tuple(
        row
        for row in all_rows
        if not (row[3] in kept_calls and row[4] > 0) and not (row[0] in kept_calls and row[1] != BACKWARD)
    )


def _run_of_op(calls: int, graph: OpGraph, op: int) -> tuple[int, int] | None:
    """Returns (call, run) of an op. The run is `BACKWARD` for a backward op. None if the op belongs to no call."""
    if op < calls:
        return op, 0
    origin = int(graph.forward_of[op])
    if not 0 <= origin < calls:
        return None
    copy_suffix = _COPY.search(graph.names[op])
    if copy_suffix and graph.names[op].startswith(graph.names[origin] + "/again"):
        return origin, graph.names[op][len(graph.names[origin]) :].count("/again")
    return origin, BACKWARD


def offloaded_state_groups(trace: Trace, graph: OpGraph | None) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Returns each op of the graph that has state on a host, with the parameters of that state, in the order of their updates.

    Raises `InvalidInput` for state of what is no call of the model.
    """
    for op, kind in enumerate(() if graph is None else graph.op_types):
        if kind != STATE or graph is None:
            continue
        match = _STATE.match(graph.names[op])
        if match is None or match[1] not in trace.index:
            raise InvalidInput(
                f"op {graph.names[op]!r} of graph {graph.name!r} keeps the state of no layer of the model; bl.offload names it "
                "LAYER/update/state"
            )
        call = trace.index[match[1]]
        yield op, tuple(name for name in trace.calls[call].parameters if trace.owner[name] == call)


def rerun_ops(calls: int, graph: OpGraph) -> dict[tuple[int, int], int]:
    """Returns (call, run) -> its op in the graph, for runs after the first."""
    run_of = {op: run for op in range(calls, graph.n) if (run := _run_of_op(calls, graph, op)) is not None}
    return {run: op for op, run in run_of.items() if run[1] > 0}


def find_unrepeatable_calls(trace: Trace) -> dict[int, str]:
    """Returns the calls that must not run twice, with the reason."""
    # The storages that each call computes or hands on, and the last call that writes each storage in place.
    storages_of: list[set[int]] = [set() for _ in trace.calls]
    for value in trace.values:
        if value.producer >= 0:
            storages_of[value.producer].add(value.storage)
    last_writer: dict[int, int] = {}
    for index, call in enumerate(trace.calls):
        if call.inplace:
            reads = {trace.values[v].storage for v in call.reads}
            last_writer |= dict.fromkeys(reads & storages_of[index] or reads, index)
    reasons = dict(trace.fixed)
    for index, call in enumerate(trace.calls):
        if call.recomputed:
            reasons.setdefault(index, "a checkpointed region of the model's own")
        if call.module is None and call.op_type in ("grad", "backward"):
            reasons.setdefault(index, "it differentiates what ran before it")
        if call.inplace:
            reasons.setdefault(index, "it writes in place")
        reads = {trace.values[v].storage for v in call.reads}
        if any(last_writer.get(storage, -1) >= index for storage in storages_of[index] | reads):
            reasons.setdefault(index, "a later call writes in place over what it reads or makes")
    return reasons
