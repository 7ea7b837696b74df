"""A slow, obvious model of memory on one device, to hold the passes' formulas against."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import baechi_lab as bl


def peak_in_order(graph: bl.OpGraph, order: Sequence[int]) -> int:
    """Peak bytes when one device runs the ops in this order: docs/simulated-time.md, tensor by tensor."""
    waiting = {t: set(graph.tensor_consumers(t).tolist()) for t in range(graph.tensor_count)}
    live_bytes, peak = int(graph.persistent_bytes.sum()), int(graph.persistent_bytes.sum())
    live: set[int] = set()
    for op in order:
        live |= set(graph.outputs(op))
        live_bytes += sum(int(graph.tensor_bytes[t]) for t in graph.outputs(op))
        peak = max(peak, live_bytes + int(graph.temp_bytes[op]))
        for tensor in sorted(live):
            waiting[tensor].discard(op)
            if not waiting[tensor]:
                live.remove(tensor)
                live_bytes -= int(graph.tensor_bytes[tensor])
    return peak


@pytest.fixture(scope="session")
def slow_peak() -> Callable[[bl.OpGraph, Sequence[int]], int]:
    return peak_in_order


@pytest.fixture(scope="session")
def check_coarse() -> Callable[[bl.OpGraph, bl.OpGraph], None]:
    """What every pass promises of its result (a cycle would have been refused on construction)."""

    def check(graph: bl.OpGraph, coarse: bl.OpGraph) -> None:
        members = np.concatenate(coarse.members) if coarse.n else np.zeros(0)
        originals = graph.n if graph.group_of is None else len(graph.group_of)
        assert sorted(members.tolist()) == list(range(originals))
        assert np.isclose(coarse.duration_us.sum(), graph.duration_us.sum())
        for kind, us in graph.duration_by_kind.items():
            assert np.isclose(coarse.duration_by_kind[kind].sum(), us.sum())
        if coarse.group_of is not None:
            assert coarse.source_key == (graph.key if graph.group_of is None else graph.source_key)

    return check
