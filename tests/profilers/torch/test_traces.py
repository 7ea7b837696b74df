"""A trace that torch.profiler writes here replays to its own step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity
from torch.profiler import profile as profiler

import baechi_lab as bl

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(16, 64), torch.zeros(16, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    step()
    observer = ExecutionTraceObserver().register_callback(str(folder / "execution.json"))
    with profiler(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as session:
        step()
    session.export_chrome_trace(str(folder / "kineto.json.gz"))
    return folder, sum(t.nbytes for t in (*model.parameters(), inputs, labels))


def test_a_training_step_replays_to_its_own_time(traced):
    folder, size = traced
    record = bl.load_trace(folder / "kineto.json.gz", execution_trace=folder / "execution.json")
    makespan = bl.simulate(record.graph, record.cluster, record.placement).makespan_us
    assert makespan == pytest.approx(record.timeline.makespan_us, rel=0.05)
    assert {"aten::linear", "aten::mm"} <= set(record.graph.op_types)
    assert size <= record.graph.persistent_bytes.sum() < 1.2 * size
    linear = record.graph.names.index("aten::linear")
    assert record.graph.colocation[linear] >= 0  # with the updates of its weights
    four = bl.compare(record.graph, bl.Cluster.uniform(4, link=bl.Link(0.0, 0.0)), ["m-etf"])
    assert four["makespan_us"][0] < record.timeline.makespan_us


def test_without_the_execution_trace_order_decides(traced):
    record = bl.load_trace(traced[0] / "kineto.json.gz")
    assert bl.simulate(record.graph, record.cluster, record.placement).makespan_us == pytest.approx(
        record.timeline.makespan_us
    )
    assert any("inferred from the order" in note for note in record.notes)
