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


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_bug_several_steps_without_marks_were_read_as_one_without_a_word(tmp_path, steps):
    """A trace without a schedule marks no steps; the momentum of the first step makes its ops others than the second's."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with profiler(activities=[ProfilerActivity.CPU]) as session:
        for _ in range(steps):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    notes = [note for note in bl.load_trace(tmp_path / "trace.json").notes if "no steps are marked" in note]
    assert [f"repeat {steps} times" in note for note in notes] == ([] if steps == 1 else [True])
