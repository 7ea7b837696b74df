"""From a model's Python code to an OpGraph with estimated costs: GNMT of Jeon et al. 2020, length 40, 4 layers, batch 128.

Run with: pytest tests/benchmarks/test_speed_trace.py --benchmark-only
`bar_s` is what it may take once TensorFlow is imported; `ours_s`, bar 5 s, is that less TensorFlow's own tracing.
"""

from __future__ import annotations

import time

import pytest

import baechi_lab as bl

pytestmark = pytest.mark.timeout(600)


def test_trace_and_estimate_gnmt(benchmark):
    pytest.importorskip("tensorflow")
    ours = []

    def work():
        began = time.perf_counter()
        step = bl.models.build("gnmt", sequence_length=40)
        graph = bl.profile(step, mode="estimated", hardware="rtx2080")
        ours.append(time.perf_counter() - began - step.info["framework_seconds"])
        return graph

    benchmark.extra_info["bar_s"] = 30.0
    graph = benchmark.pedantic(work, rounds=3)
    benchmark.extra_info["ours_s"] = sorted(ours)[1]
    assert graph.n > 10_000
