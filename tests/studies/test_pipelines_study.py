"""The study of measured pipelines: whole layers as stages, rows and their file, what is stored."""

import json

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.tensorflow.calibration import Calibration, Cost
from studies.pipelines import busy
from studies.pipelines.layers import layer_stages, least_runs
from studies.pipelines.report import FORMAT, Row, keep, rows_of, summarize_rows
from studies.results import result, result_names


def test_least_runs_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(20):
        work = rng.integers(1, 9, 6).tolist()
        cuts = [(a, b) for a in range(1, 5) for b in range(a + 1, 6)]
        best = min(max(sum(work[:a]), sum(work[a:b]), sum(work[b:])) for a, b in cuts)
        runs_by_device = least_runs(work, 3)
        assert runs_by_device == sorted(runs_by_device) and set(runs_by_device) == {0, 1, 2}
        assert max(sum(w for w, run in zip(work, runs_by_device, strict=True) if run == k) for k in range(3)) == best


def test_stages_are_whole_layers():
    """Layers of 4, 2 and 2: two stages are the first and the others; backward ops go with their layer."""
    names = [
        "layer0/a",
        "layer1/a",
        "layer2/a",
        "gradient_tape/layer2/a",
        "gradient_tape/layer1/a",
        "gradient_tape/layer0/a",
    ]
    graph = bl.OpGraph.from_edges(
        [2, 1, 1, 1, 1, 2], [(k, k + 1, 8) for k in range(5)], names=names, forward_of=[-1, -1, -1, 2, 1, 0]
    )
    assert layer_stages(graph, 2).tolist() == [0, 1, 1, 1, 1, 0]
    with pytest.raises(bl.InvalidInput, match="the model has 3 layers; 4 stages need as many"):
        layer_stages(graph, 4)


def test_messages_of_busy_workers_are_what_both_ends_work_more(monkeypatch):
    """Products take 9 ms of each; 24 messages 30 us of the sender and 20 of the receiver, 90 us from end to end."""

    def cost(local, worker, steps, step, devices):
        is_sent = "that go," in step.name
        return Cost(0.0, 0.0, (9_000.0 + 24 * 30 * is_sent, 9_000.0 + 24 * 20 * is_sent))

    monkeypatch.setattr(busy, "cost_of", cost)
    monkeypatch.setattr(busy, "_arrivals", lambda size, local, worker: np.full(3, 90.0))
    free = bl.Link(0.0, 0.0)
    before = Calibration(2.0, 7.0, free, free, free, 1.0, cooled=((0.0, 0.0), (5.0, 9.0)))
    costs = busy.with_busy_messages(before, [busy.busy_messages(None, None)])
    assert [x.cost_us(1 << 20) for x in (costs.send, costs.receive, costs.wire)] == pytest.approx([30, 20, 40])
    assert (costs.op_us, costs.step_us, costs.cold_us(5.0)) == (2.0, 7.0, 0.0)


def test_single_differences_that_are_far_off_do_not_count():
    """Three rounds; in the last the cores were slower while messages went, in the second while they did not."""
    free = bl.Link(0.0, 0.0)
    right = np.array([[30.0, 20.0, 90.0]] * len(busy.SIZES))
    costs = busy.with_busy_messages(Calibration(2.0, 7.0, free, free, free, 1.0), [right, right - 400.0, right + 400.0])
    assert [x.cost_us(4096) for x in (costs.send, costs.receive, costs.wire)] == pytest.approx([30, 20, 40])


def row(schedule, simulated, measured):
    return Row("tensorflow", "m", 2, schedule, 4, 2, simulated, measured, measured, measured, measured, 1.0, 0.0, 300.0)


def test_rows_come_back_and_parts_stay(tmp_path):
    path = tmp_path / "rows.json"
    keep(path, "tensorflow, 2 processes", [row("gpipe", 90.0, 100.0)], command="c", seed=0)
    keep(path, "other", [row("1f1b", 80.0, 100.0)], command="c", seed=0)
    document = json.loads(path.read_text())
    assert document["format"] == FORMAT and len(rows_of(document)) == 2
    assert rows_of(document)[0] == row("gpipe", 90.0, 100.0)
    summary = summarize_rows(rows_of(document))
    assert summary.mean_error == pytest.approx(0.15) and summary.clear_pairs == 0 and not summary.met


@pytest.mark.skipif("pipelines" not in result_names(), reason="no stored study")
def test_stored_rows_say_what_their_summaries_say():
    document = result("pipelines")
    tables = [table for table in document.values() if isinstance(table, dict)]
    assert tables
    for table in tables:
        rows = rows_of({"part": table})
        summary = summarize_rows(rows)
        assert summary.mean_error == pytest.approx(table["summary"]["mean_error"])
        assert (summary.clear_pairs, summary.ranked_right) == (
            table["summary"]["clear_pairs"],
            table["summary"]["ranked_right"],
        )
        assert table["command"].startswith("python -m studies.pipelines")
