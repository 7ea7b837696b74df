"""The stored study of memory meets its target; orders and summaries by hand."""

import dataclasses
import json
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.fidelity.profiles import temporary_bytes
from baechi_lab.fidelity.study import MODELS
from baechi_lab.graph import MEMORY_CATEGORIES, MemoryLog
from studies import memory
from studies.memory.__main__ import NAMES
from studies.memory.predicting import in_both_orders
from studies.memory.study import PLACEMENTS, rows_of

STORED = Path(bl.__file__).parent.parent / "studies" / "results" / "memory.json"
FIELDS = ("model", "placement", "device", "simulated", "measured", "allocator", "simulated_parts", "parts")


def test_the_stored_study_meets_the_target():
    document = json.loads(STORED.read_text())
    rows = [memory.Row(**{key: row[key] for key in FIELDS}) for row in document["rows"]]
    assert {row.model for row in rows} >= set(MODELS)
    assert {row.placement for row in rows} == set(PLACEMENTS)
    assert all(sum(row.parts) == row.measured and sum(row.simulated_parts) == row.simulated for row in rows)
    assert memory.summarize_rows(rows).mean_error == pytest.approx(document["summary"]["mean_error"])
    assert memory.summarize_rows(rows).met


def test_rows_tell_of_the_largest_peaks():
    """Of two orders and two runs; the second device holds nothing."""
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 40), (0, 2, 8)])
    line = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 0, 0]))
    measured_runs = [
        bl.Run(dataclasses.replace(line, peak_bytes=line.peak_bytes - saved_bytes), [], ()) for saved_bytes in (8, 0)
    ]
    (row,) = rows_of("m", "single", [line, dataclasses.replace(line, peak_bytes=line.peak_bytes + 2)], measured_runs)
    assert (row.device, row.simulated, row.measured, row.allocator) == ("gpu:0", 50, 48, 0)
    with pytest.raises(bl.ExecutionError, match=r"placement 'single' of 'm' gave no trace: out of memory"):
        rows_of("m", "single", [line], [*measured_runs, bl.Run(None, [], (), message="out of memory")])


def test_the_two_orders_hold_different_amounts():
    """Two sources of 40 that reduce to 1 each: first in, first out both are there (40 + 40 + the first result); last in,
    first out one is reduced before the other starts (its result, 40, and the other result)."""
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1, 1], [(0, 2, 40), (1, 3, 40), (2, 4, 1), (3, 4, 1)], names=["a", "b", "ra", "rb", "end"]
    )
    first, last = in_both_orders(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * 5))
    assert [first.op_names[i] for i in first.op[first.start_us.argsort()]] == ["a", "b", "ra", "rb", "end"]
    assert [last.op_names[i] for i in last.op[last.start_us.argsort()]] == ["b", "rb", "a", "ra", "end"]
    assert (first.peak_bytes[0], last.peak_bytes[0]) == (81, 42)


def test_the_stored_study_of_pytorch_meets_the_target():
    document = json.loads(STORED.with_name("memory_torch.json").read_text())
    rows = [memory.Row(**{key: row[key] for key in FIELDS}) for row in document["rows"]]
    assert {row.model for row in rows} == set(NAMES)
    assert all({row.placement for row in rows if row.model == name} == {"single", "m-etf", "random"} for name in NAMES)
    assert all(sum(row.parts) == row.measured and sum(row.simulated_parts) == row.simulated for row in rows)
    summary = memory.summarize_rows(rows)
    assert summary.met and summary.mean_error == pytest.approx(document["summary"]["mean_error"])


@pytest.mark.slow
def test_peaks_of_a_small_gnmt_follow_what_pytorch_holds():
    pytest.importorskip("torch")
    from studies.memory.torch_study import torch_study

    rows = torch_study(["gnmt"], ["single", "random"])
    assert len(rows) == 3 and sum(row.parts[3] for row in rows) > 0  # copies between devices
    assert all(-0.05 <= row.error <= 0.25 for row in rows)
    assert rows[0].parts[0] == rows[0].simulated_parts[0]


def test_temporary_bytes_of_a_measured_timeline():
    """What an op holds besides its outputs: 30, or 20 and then 25 of which 20 are freed before; outputs do not count."""
    graph = bl.OpGraph.from_edges([2, 3], [(0, 1, 8)])
    line = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0, 0]))
    temporary, outputs = MEMORY_CATEGORIES.index("temporary"), MEMORY_CATEGORIES.index("outputs")
    rows = [
        (0.0, temporary, 30, 0),
        (0.0, outputs, 8, 0),
        (2.0, temporary, -30, 0),
        (2.0, temporary, 20, 1),
        (3.0, temporary, -20, 1),
        (3.0, temporary, 25, 1),
        (5.0, temporary, -25, 1),
    ]
    time, category, delta, op = zip(*rows, strict=True)
    log = MemoryLog([0] * len(rows), time, category, delta, op)
    assert temporary_bytes(dataclasses.replace(line, memory=log), 2).tolist() == [30, 25]
