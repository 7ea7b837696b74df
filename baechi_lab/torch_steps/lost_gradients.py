"""Calls that build an autograd graph although no gradient reaches them, such as an encoder whose result is rounded.

They have no backward pass. What they save for one is released with the last tensor that was computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .records import Call, Trace, Value


def without_lost_gradients(
    calls: Sequence[Call], values: Sequence[Value], groups: Iterable[tuple[int, ...]], roots: Iterable[int]
) -> tuple[Call, ...]:
    """Returns the calls; those that no gradient of `roots` reaches have no gradient. Calls of one of `groups` share theirs."""
    companions: dict[int, list[int]] = {}
    for group in groups:
        for i in group:
            companions.setdefault(i, []).extend(group)
    reached_calls: set[int] = set()
    stack = [root for root in roots if root >= 0]
    while stack:
        i = stack.pop()
        if i not in reached_calls and calls[i].requires_grad:
            reached_calls.add(i)
            stack += [values[k].producer for k in calls[i].reads if values[k].requires_grad and values[k].producer >= 0]
            stack += companions.get(i, ())
    calls = [replace(call, requires_grad=i in reached_calls) for i, call in enumerate(calls)]
    return _with_graph_until(calls, values, {})


def has_lost_graphs(trace: Trace) -> bool:
    """Whether a call builds an autograd graph that no gradient reaches."""
    return any(call.graph_until >= 0 for call in trace.calls)


def hold_named_graphs(trace: Trace, named_calls: Mapping[tuple[int, int], int]) -> Trace:
    """Returns the trace whose lost autograd graphs are alive for as long as the code has names for their tensors.

    `named_calls` is as in `baechi_lab.profilers.torch.named_tensors`.
    """
    return replace(trace, calls=_with_graph_until(trace.calls, trace.values, named_calls))


def _with_graph_until(
    calls: Sequence[Call], values: Sequence[Value], named_calls: Mapping[tuple[int, int], int]
) -> tuple[Call, ...]:
    """Returns the calls, those whose graph no gradient reaches with the last call at which it is alive."""
    values_of: dict[int, list[int]] = {}
    for k, value in enumerate(values):
        if value.requires_grad and value.producer >= 0 and not calls[value.producer].requires_grad:
            values_of.setdefault(value.producer, []).append(k)
    readers: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        for k in call.reads:
            readers.setdefault(k, []).append(i)
    graph_until: dict[int, int] = {}
    for i in sorted(values_of, reverse=True):
        last_calls = [named_calls.get((i, values[k].position), -1) for k in values_of[i]]
        last_calls += [graph_until.get(reader, reader) for k in values_of[i] for reader in readers.get(k, ())]
        graph_until[i] = max(i, *last_calls)
    return tuple(
        replace(call, graph_until=graph_until[i]) if i in graph_until else call for i, call in enumerate(calls)
    )
