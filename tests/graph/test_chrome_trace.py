"""Chrome traces: valid JSON with the right events on the right lanes."""

import gzip
import json
from itertools import pairwise

import pytest

import baechi_lab as bl
from baechi_lab.graph.timeline import MemoryLog, Timeline, Transfers


def events(path, phase):
    return [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == phase]


def test_ops_transfers_and_memory(tmp_path, small_timeline):
    path = tmp_path / "trace.json"
    small_timeline.to_chrome_trace(path)
    spans = {(e["cat"], e["pid"], e["name"], e["ts"], e["dur"]) for e in events(path, "X")}
    # The transfer is received from 2 to 6; its cost of 4 holds the sender from 1 to 5.
    assert spans == {
        ("compute", 0, "a", 0.0, 1.0),
        ("compute", 1, "b", 6.0, 2.0),
        ("send", 0, "a", 1.0, 4.0),
        ("receive", 1, "a", 2.0, 4.0),
    }
    counters = [(e["pid"], e["ts"], e["args"]) for e in events(path, "C")]
    none = {"persistent": 0, "outputs": 0, "temporary": 0, "copies": 0}
    assert counters == [(0, 0.0, {**none, "outputs": 8}), (1, 2.0, {**none, "copies": 8})]
    names = {(e["name"], e["pid"], e["args"].get("name")) for e in events(path, "M")}
    assert ("process_name", 1, "d1") in names
    assert ("thread_name", 0, "compute") in names
    assert json.loads(path.read_text())["otherData"] == {"origin": "simulated", "makespan_us": 8.0}


def test_events_on_one_lane_never_overlap(tmp_path):
    """Parallel communication: three transfers from one device at once need three lanes."""
    timeline = Timeline(
        op=[0],
        device=[0],
        start_us=[0.0],
        end_us=[1.0],
        transfers=Transfers([0, 0, 0, 0], [0] * 4, [1] * 4, [1, 1, 2, 4], [1, 1, 2, 4], [3, 4, 5, 6]),
        memory=MemoryLog.none(),
        peak_bytes=[0, 0],
        makespan_us=6.0,
        origin="simulated",
        op_names=("a",),
        device_names=("d0", "d1"),
        memory_bytes=[1, 1],
        tensor_producer=[0],
        tensor_bytes=[8],
    )
    path = tmp_path / "trace.json"
    timeline.to_chrome_trace(path)
    sends = [e for e in events(path, "X") if e["cat"] == "send"]
    by_lane = {}
    for event in sends:
        by_lane.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert sorted(len(spans) for spans in by_lane.values()) == [1, 1, 2]
    for spans in by_lane.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_traces_can_be_compressed_and_bad_paths_are_rejected(tmp_path, small_timeline):
    small_timeline.to_chrome_trace(tmp_path / "t.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    with pytest.raises(bl.FormatError, match="cannot be written"):
        small_timeline.to_chrome_trace(tmp_path / "no" / "t.json")
    with pytest.raises(bl.InvalidInput, match="path is None"):
        small_timeline.to_chrome_trace(None)
