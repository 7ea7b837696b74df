"""Traces of other tools: what becomes what, replays, and what is refused. Small traces are written here by hand."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest

import baechi_lab as bl
from baechi_lab.errors import CycleError, DuplicateNameError, FormatError, UnknownOpError
from baechi_lab.graph.formats.traces import chakra, xplane
from baechi_lab.graph.formats.traces.loading import InferredDependencies
from baechi_lab.graph.formats.traces.protobuf import delimited_messages, messages, with_length
from baechi_lab.graph.formats.traces.recording import Event, recording


def replayed(recorded: bl.Recording) -> float:
    """The step under the trace's own placement, checked."""
    timeline = bl.simulate(recorded.graph, recorded.cluster, recorded.placement)
    assert not bl.check(recorded.graph, recorded.cluster, recorded.placement, timeline) and timeline.feasible
    return timeline.makespan_us


def edges(graph: bl.OpGraph) -> set[tuple[str, str]]:
    names = graph.names
    return {(names[a], names[b]) for a, b in zip(graph.edge_source, graph.consumers, strict=True)}


def test_waits_that_nothing_explains_count_with_the_op_after_them():
    """Thread 2 waits for a (ends at 10) and starts b at 13: 3 us more than its own 4. Then c follows at once."""
    a, b = Event("a", "op", "t1", 0, 10), Event("b", "op", "t2", 13, 17, reads={(0, "x"): 8})
    recorded = recording([a, b, Event("c", "op", "t2", 17, 18, after={1})], "three")
    assert recorded.graph.duration_us.tolist() == [10, 7, 1]
    assert replayed(recorded) == recorded.timeline.makespan_us == 18
    assert "8% of all lanes' time" in recorded.notes[0]  # 3 of 2 * 18


def test_what_overlaps_on_a_thread_gets_lanes_and_contradicted_dependencies_go():
    recorded = recording([Event("a", "op", "t", 0, 10), Event("b", "op", "t", 4, 9, after={0})], "two")
    assert recorded.cluster.names == ("t", "t (2)")
    assert recorded.graph.edge_count == 0
    assert recorded.notes[0].startswith("1 dependencies of the trace are not kept")


def test_bug_ops_of_one_variable_that_ran_on_two_lanes():
    """The second read overlaps the first and gets a lane of its own; the trace's own placement broke the group."""
    rows = [("w", 0, 1), ("read", 1, 5), ("read too", 2, 6), ("assign", 6, 8)]
    recorded = recording([Event(n, "op", "CPU:0", a, b, group="w") for n, a, b in rows], "reads")
    assert recorded.placement.device.tolist() == [0, 0, 1, 0] and recorded.graph.colocation.tolist() == [0, 0, -1, 0]
    timeline = bl.simulate(recorded.graph, recorded.cluster, recorded.placement)
    assert not bl.check(recorded.graph, recorded.cluster, recorded.placement, timeline)
    assert recorded.notes[0].startswith("1 ops ran on another lane than what they share a variable with")


# -- Chakra ----------------------------------------------------------------------------------------------


def et(*nodes: dict, version: str = "0.0.4") -> bytes:
    message_types = messages(chakra.SCHEMA)
    chunks = [message_types["GlobalMetadata"](version=version), *(message_types["Node"](**node) for node in nodes)]
    return b"".join(with_length(chunk.SerializeToString()) for chunk in chunks)


def attribute(name: str, **value) -> dict:
    return {"name": name, **value}


CPU = [attribute("is_cpu_op", bool_val=True)]
NODES = [
    {"id": 1, "name": "load", "type": 2, "duration_micros": 5, "attr": [attribute("tensor_size", uint64_val=64)]},
    {"id": 2, "name": "note", "type": 1, "ctrl_deps": [1]},
    {"id": 3, "name": "matmul", "type": 4, "duration_micros": 7, "data_deps": [1]},
    {"id": 4, "name": "relu", "type": 4, "duration_micros": 2, "ctrl_deps": [2], "data_deps": [3]},
]


def test_a_chakra_trace_by_hand(tmp_path):
    """load 5 on the memory unit, then matmul 7 and relu 2: 14. relu waits for load through the note, which is no op."""
    (tmp_path / "step.et").write_bytes(et(*NODES))
    recorded = bl.load_trace(tmp_path / "step.et")
    assert recorded.graph.names == ("load", "matmul", "relu")
    assert recorded.graph.op_types == ("mem_load", "comp", "comp")
    assert edges(recorded.graph) == {("load", "matmul"), ("matmul", "relu"), ("load", "relu")}
    assert recorded.graph.tensor_bytes[0] == 64
    assert recorded.cluster.names == ("memory", "compute")
    assert replayed(recorded) == recorded.timeline.makespan_us == 5 + 7 + 2
    assert "no start times" in recorded.notes[0]


def test_data_of_chakra_comes_through_nodes_without_work(tmp_path):
    """load, then two notes one behind the other, then relu: relu reads load's 64 bytes."""
    nodes = [
        NODES[0],
        {"id": 2, "name": "note", "type": 1, "data_deps": [1]},
        {"id": 3, "name": "none", "type": 0, "data_deps": [2]},
        {"id": 4, "name": "relu", "type": 4, "duration_micros": 2, "data_deps": [3]},
    ]
    (tmp_path / "step.et").write_bytes(et(*nodes))
    recorded = bl.load_trace(tmp_path / "step.et")
    assert edges(recorded.graph) == {("load", "relu")} and recorded.graph.tensor_bytes.tolist() == [64]


@pytest.mark.parametrize("kind", ["ctrl_deps", "data_deps"])
def test_what_a_child_of_chakra_waited_for_through_its_parents_is_kept(tmp_path, kind):
    """PyTorch's converter lets a child depend on its parents, which end after it began: it depends on what they waited for."""
    nodes = [
        {"id": 1, "name": "a", "type": 4, "start_time_micros": 1, "duration_micros": 9, "attr": CPU},
        {"id": 2, "name": "parent", "type": 4, "start_time_micros": 10, "duration_micros": 90, kind: [1], "attr": CPU},
        {"id": 3, "name": "inner", "type": 4, "start_time_micros": 12, "duration_micros": 80, kind: [2], "attr": CPU},
        {"id": 4, "name": "child", "type": 4, "start_time_micros": 20, "duration_micros": 10, kind: [3]},
    ]
    (tmp_path / "step.et").write_bytes(et(*nodes))
    recorded = bl.load_trace(tmp_path / "step.et")
    assert edges(recorded.graph) == {("a", "parent"), ("a", "inner"), ("a", "child")}
    assert recorded.notes[0].startswith("2 dependencies of the trace are not kept")
    assert replayed(recorded) == recorded.timeline.makespan_us == 99


def test_chakra_in_json_is_the_same(tmp_path):
    """As the jsonizer writes it: objects one behind the other, 64-bit numbers as texts."""
    kinds = {1: "METADATA_NODE", 2: "MEM_LOAD_NODE", 4: "COMP_NODE"}
    documents = [{"version": "0.0.4"}]
    for node in NODES:
        lists = {
            json_key: [str(x) for x in node.get(key, [])]
            for json_key, key in (("ctrlDeps", "ctrl_deps"), ("dataDeps", "data_deps"))
        }
        attr = [{"name": a["name"], "uint64Val": str(a["uint64_val"])} for a in node.get("attr", [])]
        fields = {"durationMicros": str(node.get("duration_micros", 0)), "attr": attr}
        documents.append({"id": str(node["id"]), "name": node["name"], "type": kinds[node["type"]], **lists, **fields})
    (tmp_path / "step.json").write_text("".join(json.dumps(d, indent=1) for d in documents))
    (tmp_path / "step.et").write_bytes(et(*NODES))
    assert bl.load_trace(tmp_path / "step.json").graph == bl.load_trace(tmp_path / "step.et").graph
    with pytest.warns(InferredDependencies, match="no start times"):
        assert bl.load_graph(tmp_path / "step.json").n == 3


def test_chakra_in_the_json_of_astra_sim_is_the_same(tmp_path):
    """As its feeder reads it: a list `workload_graph`, whose nodes have attributes as fields, and no control dependencies."""
    nodes = [{key: value for key, value in node.items() if key != "ctrl_deps"} for node in NODES]
    names = {"id": "Id", "name": "Name", "type": "NodeType", "duration_micros": "runtime", "data_deps": "data_deps"}
    feeder = [{names[key]: value for key, value in node.items() if key in names} for node in nodes]
    feeder[0]["tensor_size"] = 64
    (tmp_path / "step.json").write_text(json.dumps({"workload_graph": feeder}))
    (tmp_path / "step.et").write_bytes(et(*nodes))
    assert bl.load_trace(tmp_path / "step.json").graph == bl.load_trace(tmp_path / "step.et").graph


def test_ranks_of_chakra_wait_for_each_other(tmp_path):
    """Rank 0 computes 4 and sends for 2; rank 1 receives (1, after the send) and computes 3: 4 + 2 + 1 + 3."""
    peers = [attribute("comm_src", int32_val=0), attribute("comm_dst", int32_val=1), attribute("comm_tag", int32_val=7)]
    size = attribute("comm_size", int64_val=1024)
    first = et(
        {"id": 0, "name": "a", "type": 4, "duration_micros": 4},
        {"id": 1, "name": "send", "type": 5, "duration_micros": 2, "data_deps": [0], "attr": [*peers, size]},
    )
    second = et(
        {"id": 0, "name": "recv", "type": 6, "duration_micros": 1, "attr": [*peers, size]},
        {"id": 1, "name": "b", "type": 4, "duration_micros": 3, "data_deps": [0]},
    )
    (tmp_path / "x.0.et").write_bytes(first)
    (tmp_path / "x.1.et").write_bytes(second)
    recorded = bl.load_trace([tmp_path / "x.0.et", tmp_path / "x.1.et"])
    assert replayed(recorded) == 4 + 2 + 1 + 3
    assert ("send", "recv") in edges(recorded.graph)
    assert "rank 1/compute" in recorded.cluster.names
    assert not any("receives" in note for note in recorded.notes)
    alone = bl.load_trace(tmp_path / "x.1.et")
    assert alone.notes[0].startswith("1 receives have no send in what was given")


def test_bug_receives_of_chakra_with_one_tag_all_waited_for_the_last_send(tmp_path):
    """Both ranks send 1, receive and send again: the first receive cannot wait for a send that follows it."""

    def events_of(rank: int) -> bytes:
        peers = [attribute("comm_tag", int32_val=0), attribute("comm_size", int64_val=64)]
        sends = [*peers, attribute("comm_src", int32_val=rank), attribute("comm_dst", int32_val=1 - rank)]
        receives = [*peers, attribute("comm_src", int32_val=1 - rank), attribute("comm_dst", int32_val=rank)]
        kinds = [
            (f"send{rank}a", 5, sends),
            (f"recv{rank}a", 6, receives),
            (f"send{rank}b", 5, sends),
            (f"recv{rank}b", 6, receives),
        ]
        return et(
            *(
                {"id": k, "name": n, "type": t, "duration_micros": 1, "attr": a, "ctrl_deps": [k - 1] if k else []}
                for k, (n, t, a) in enumerate(kinds)
            )
        )

    for rank in (0, 1):
        (tmp_path / f"x.{rank}.et").write_bytes(events_of(rank))
    recorded = bl.load_trace([tmp_path / "x.0.et", tmp_path / "x.1.et"])
    assert {("send0a", "recv1a"), ("send0b", "recv1b"), ("send1a", "recv0a"), ("send1b", "recv0b")} <= edges(
        recorded.graph
    )
    assert replayed(recorded) == 4


def test_a_receive_of_chakra_holds_up_no_send_behind_it(tmp_path):
    """Rank 1 sends back at once (0..2) though it lists its receive first, which waits until 9 + 2: 2 + 5 against 11."""
    peers = lambda a, b, tag: [  # noqa: E731
        attribute(f"comm_{k}", int32_val=v) for k, v in (("src", a), ("dst", b), ("tag", tag))
    ]
    ranks = [
        et(
            {"id": 0, "name": "a", "type": 4, "duration_micros": 9},
            {"id": 1, "name": "send", "type": 5, "duration_micros": 2, "data_deps": [0], "attr": peers(0, 1, 7)},
        ),
        et(
            {"id": 0, "name": "recv", "type": 6, "attr": peers(0, 1, 7)},
            {"id": 1, "name": "back", "type": 5, "duration_micros": 2, "attr": peers(1, 2, 8)},
        ),
        et(
            {"id": 0, "name": "recv too", "type": 6, "attr": peers(1, 2, 8)},
            {"id": 1, "name": "b", "type": 4, "duration_micros": 5, "data_deps": [0]},
        ),
    ]
    for k, data in enumerate(ranks):
        (tmp_path / f"x.{k}.et").write_bytes(data)
    recorded = bl.load_trace([tmp_path / f"x.{k}.et" for k in range(3)])
    starts = dict(zip(recorded.graph.names, recorded.timeline.start_us.tolist(), strict=True))
    assert starts == {"a": 0, "send": 9, "recv": 11, "back": 0, "recv too": 2, "b": 2}
    assert replayed(recorded) == recorded.timeline.makespan_us == 11


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (et(*NODES)[:-3], FormatError, "cut off"),
        (b"\xff" * 40, FormatError, "no length of a message"),
        (et({"id": 1, "type": 99}), FormatError, "node 1 is of type 99"),
        (et({"id": 1, "type": 4}, {"id": 1, "type": 4}), DuplicateNameError, "node 1 is there twice"),
        (et({"id": 1, "type": 4, "data_deps": [8]}), UnknownOpError, "depends on node 8"),
        (et({"id": 1, "type": 4, "data_deps": [2]}, {"id": 2, "type": 4, "data_deps": [1]}), CycleError, "cycle"),
        (et(), FormatError, "no operator"),
        (b'{"version": "0.0.4"}{"id": "x", "type": "COMP_NODE"}', FormatError, "id is 'x'"),
        (b'{"version": "9.1"}{"id": "1", "type": "COMP_NODE"}', FormatError, "version is '9.1'; versions 0.x of"),
        (et(*NODES, version="9.1"), FormatError, "version is '9.1'; versions 0.x of Chakra traces are read"),
        (b'{"id": "1", "type": "COMP_NODE"', FormatError, "cut off"),
    ],
)
def test_bad_chakra_traces_are_rejected(tmp_path, data, error, match):
    (tmp_path / "bad.et").write_bytes(data)
    with pytest.raises(error, match=match):
        bl.load_trace(tmp_path / "bad.et")


@pytest.mark.parametrize("form", ["{}{}", "{},\n{}", "[{}, {}]"])
def test_bug_the_nodes_of_a_chakra_trace_as_a_list_were_refused(tmp_path, form):
    nodes = [{"id": k, "name": f"op {k}", "type": "COMP_NODE", "duration_micros": 5} for k in (1, 2)]
    nodes[1]["data_deps"] = [1]
    first, second = map(json.dumps, nodes)
    (tmp_path / "step.json").write_text(form.replace("{}", first, 1).replace("{}", second, 1))
    assert replayed(bl.load_trace(tmp_path / "step.json")) == 10


def test_bug_a_binary_chakra_trace_whose_first_message_has_123_bytes_was_read_as_text(tmp_path):
    """123 is the code of a brace. The field with number 15 is unknown, and fills the message."""
    version, nodes = et(*NODES)[1:8], et(*NODES)[8:]
    (tmp_path / "step.et").write_bytes(with_length(version + b"\x7a\x72" + b" " * 114) + nodes)
    assert (tmp_path / "step.et").read_bytes()[:1] == b"{"
    (tmp_path / "same.et").write_bytes(et(*NODES))
    recorded, expected = (bl.load_trace(tmp_path / name) for name in ("step.et", "same.et"))
    assert recorded.graph.names == expected.graph.names and replayed(recorded) == replayed(expected)


def test_bug_control_dependencies_on_nodes_that_are_left_out_were_refused(tmp_path):
    """As in the trace of the Chakra project itself, whose ops control the parents that PyTorch's converter left out."""
    nodes = [{**node, "ctrl_deps": [*node.get("ctrl_deps", []), 9]} for node in NODES]
    (tmp_path / "step.et").write_bytes(et(*nodes))
    recorded = bl.load_trace(tmp_path / "step.et")
    assert edges(recorded.graph) == {("load", "matmul"), ("matmul", "relu"), ("load", "relu")}
    assert (
        replayed(recorded) == 14
        and "control dependencies on nodes that the trace leaves out order nothing: 4" in recorded.notes
    )


def test_bug_callers_were_control_dependencies_in_a_cycle(tmp_path):
    """relu calls clamp, which it waits for: 7 for matmul, 3 for clamp, 2 for relu."""
    nodes = [
        {"id": 1, "name": "matmul", "type": 4, "duration_micros": 7},
        {"id": 2, "name": "relu", "type": 4, "duration_micros": 2, "data_deps": [3]},
        {"id": 3, "name": "clamp", "type": 4, "duration_micros": 3, "ctrl_deps": [2], "data_deps": [1]},
    ]
    (tmp_path / "step.et").write_bytes(et(*nodes))
    recorded = bl.load_trace(tmp_path / "step.et")
    assert edges(recorded.graph) == {("matmul", "clamp"), ("clamp", "relu")} and replayed(recorded) == 12
    assert recorded.notes[0] == "control dependencies contradict data dependencies: only data dependencies are counted"


def test_messages_are_split_by_their_lengths():
    payloads = [b"", b"a" * 127, b"b" * 128, b"c" * 20000]
    assert list(delimited_messages(b"".join(map(with_length, payloads)))) == payloads


# -- Kineto ----------------------------------------------------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7) -> dict:
    return event("kernel", name, ts, dur, device=0, stream=stream, correlation=correlation)


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", dur: float = 2) -> dict:
    return event("cuda_runtime", name, ts, dur, correlation=correlation)


GPU = [
    event("user_annotation", "Optimizer.step", 0, 100),
    event("cpu_op", "aten::linear", 0, 10, **{"Record function id": 1}),
    event("cpu_op", "aten::addmm", 2, 7, **{"Record function id": 2}),
    launch(4, 11),
    event("cpu_op", "aten::relu", 12, 6, **{"Record function id": 3}),
    launch(13, 12),
    event("cpu_op", "aten::item", 20, 24, **{"Record function id": 4}),
    launch(22, 13, "cudaMemcpyAsync"),
    launch(25, 14, "cudaStreamSynchronize", 17),
    kernel("gemm", 8, 20, 11),
    kernel("relu_kernel", 28, 5, 12),
    kernel("Memcpy DtoH", 34, 7, 13),
]


def test_kernels_follow_their_launches_and_hosts_that_wait(tmp_path):
    """The host runs ahead until item waits for the copy: gemm 8..28, relu 28..33, copy 34..41, item goes on at 42."""
    (tmp_path / "gpu.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": GPU}).encode()))
    recorded = bl.load_trace(tmp_path / "gpu.json.gz")
    graph = recorded.graph
    assert recorded.cluster.names == ("cpu/thread 1", "gpu:0/stream 7")
    assert [d.kind for d in recorded.cluster.devices] == ["cpu", "gpu"]
    assert replayed(recorded) == pytest.approx(44)
    found_edges = edges(graph)
    assert {("aten::linear", "gemm"), ("aten::relu", "relu_kernel"), ("gemm", "relu_kernel")} <= found_edges
    last = max(i for i, name in enumerate(graph.names) if name.startswith("aten::item"))
    assert ("Memcpy DtoH", graph.names[last]) in found_edges
    assert graph.duration_us[last] == pytest.approx(3)  # 41 to 44: it waited from 25 on, and that is no work
    assert graph.duration_us[graph.names.index("gemm")] == pytest.approx(22)  # 20, and 2 from the launch's end at 6
    assert set(graph.allowed_sets) == {("cpu",), ("gpu",)}
    twice = bl.simulate(
        graph,
        recorded.cluster.replace(devices=(recorded.cluster.devices[0], bl.Device("fast", "gpu", 1 << 40, 2.0))),
        recorded.placement,
    )
    assert twice.makespan_us < 40


@pytest.mark.parametrize("dtype", ["float64", "int16", "uint16", "float8_e4m3fn", "float8_e5m2", "complex32"])
def test_bytes_of_inputs_have_the_width_that_pytorch_writes(tmp_path, dtype):
    """PyTorch's own names of types: `short int`, `c10::Float8_e4m3fn`, ..."""
    torch = pytest.importorskip("torch")
    tensor = torch.empty(1000, dtype=getattr(torch, dtype))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        tensor.clone()
        tensor.clone()
    profiler.export_chrome_trace(str(tmp_path / "k.json"))
    recorded = bl.load_trace(tmp_path / "k.json")
    assert recorded.graph.tensor_bytes.tolist() == [1000 * tensor.element_size()]
    assert not any("type" in note for note in recorded.notes)


def test_lists_of_tensors_are_as_large_as_their_largest_tensor(tmp_path):
    """Kineto has no type for lists: 4 bytes for each of the 30 elements, and a note."""
    shapes = {"Input Dims": [[[2, 3], [5, 6]], []], "Input type": ["TensorList", "Scalar"]}
    rows = [event("cpu_op", "aten::mm", 0, 10), event("cpu_op", "aten::cat", 10, 10, **shapes)]
    recorded = read(tmp_path, rows)
    assert recorded.graph.tensor_bytes.tolist() == [30 * 4]
    assert any("largest input of 1 of 2 ops" in note for note in recorded.notes)


def test_one_of_several_steps_is_read(tmp_path):
    """Of three marked steps the second and third have one op each: the third is read, with the kernel that it launched."""
    marks = [event("user_annotation", f"ProfilerStep#{k}", 100 * k, 90) for k in range(3)]
    rows = [*marks, event("cpu_op", "aten::mm", 110, 10), event("cpu_op", "aten::relu", 210, 10), launch(212, 9)]
    (tmp_path / "k.json").write_text(
        json.dumps({"traceEvents": [*rows, kernel("k", 230, 5, 9), kernel("old", 215, 5, 3)]})
    )
    recorded = bl.load_trace(tmp_path / "k.json")
    assert recorded.graph.op_types == ("aten::relu", "aten::relu", "kernel")  # before and after the launch
    assert recorded.notes[0] == "the trace holds 3 steps, of which ProfilerStep#2 is read"
    assert replayed(recorded) == pytest.approx(25)  # from 210 to 235


def read(folder, rows, **fields) -> bl.Recording:
    (folder / "k.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows, **fields}))
    return bl.load_trace(folder / "k.json")


def durations(recorded: bl.Recording, kind: str = "kernel") -> list[float]:
    return [
        d
        for d, op_type in zip(recorded.graph.duration_us.tolist(), recorded.graph.op_types, strict=True)
        if op_type == kind
    ]


def loop(
    steps: int,
    gpu_us: list[float],
    *,
    host_us: float = 30,
    queue: int = 10**9,
    sync: int | None = None,
    gap: float = 0,
    streams: int = 1,
    devices: int = 1,
    more_in_first: int = 0,
    cut_off: int = 0,
) -> list[dict]:
    """Rows of a loop: op j takes `host_us`, and launches from 5 to 10 a kernel of `gpu_us[j]`, which starts 2 later at least.

    The host waits where `queue` kernels are under way, and at a step's end for the kernels of `sync` steps before.
    """
    rows, free, end_of, time_us, number, last = [], {}, [], 0.0, 0, {}
    for k in range(steps):
        begin, count = time_us, len(gpu_us) + (more_in_first if k == 0 else 0)
        for j in range(count):
            number += 1
            called = time_us + 5
            while sum(end > called for end in end_of) >= queue:
                called = min(end for end in end_of if end > called)
            device, stream = j % devices, 7 + j % streams
            start = max(free.get((device, stream), -gap) + gap, called + 7)
            free[device, stream] = end = start + gpu_us[j % len(gpu_us)]
            end_of.append(end)
            rows.append(
                event(
                    "cpu_op",
                    f"aten::op{j}",
                    time_us,
                    max(called + 5 - time_us, host_us - 10),
                    **{"External id": number},
                )
            )
            rows.append(launch(time_us + 5, number, dur=called - time_us))
            if not (k == steps - 1 and j >= count - cut_off):
                rows.append(
                    event("kernel", f"k{j}", start, end - start, device=device, stream=stream, correlation=number)
                )
            time_us = max(time_us + host_us, called + 5)
        last[k] = max(free.values())
        if sync is not None and k - sync in last:
            until = max(time_us + 5, last[k - sync] + 1)
            rows += [
                event("cpu_op", "aten::item", time_us, until + 1 - time_us),
                launch(time_us + 2, 0, "cudaStreamSynchronize", until - time_us - 2),
            ]
            time_us = until + 2
        rows.append(event("user_annotation", f"ProfilerStep#{k}", begin, time_us - begin))
    return rows


@pytest.mark.parametrize(
    ("rows", "step_us", "kernel_us"),
    [
        (loop(4, [100] * 3), 300, [100] * 3),
        (loop(6, [100] * 3, gap=1.5), 304.5, [101.5] * 3),
        (loop(12, [100] * 3, queue=7), 300, [100] * 3),
        (loop(12, [100] * 6, queue=4), 600, [100] * 6),
        (loop(9, [100] * 3, sync=1), 300, [100] * 3),
        (loop(6, [100, 60, 100, 60], streams=2), 200, [60, 60, 100, 100]),
        (loop(6, [100, 60, 100, 60], streams=2, devices=2), 200, [60, 60, 100, 100]),
        (loop(5, [100] * 6, cut_off=3), 600, [100] * 6),
        (loop(5, [100] * 6, more_in_first=20), 600, [100] * 6),
        # With a synchronization, or a host that is slower, a kernel starts 2 after its launch at 10: 12 + 300 + 1 + 1.
        (loop(6, [100] * 3, sync=0), 314, [102, 100, 100]),
        (loop(6, [10] * 3), 2 * 30 + 12 + 10, [12] * 3),
        # The first kernel of 200 is behind. From the ninth on, launched at 250, the device waits for the host: 9 * 30 + 20.
        (loop(6, [200] + [5] * 9), 290, [202] + [5] * 7 + [7] * 2),
    ],
    ids=[
        "ahead",
        "gaps",
        "queue",
        "short queue",
        "previous step",
        "streams",
        "devices",
        "cut off",
        "warm-up",
        "waits",
        "host",
        "caught up",
    ],
)
def test_a_step_of_a_loop_is_without_the_backlog_of_earlier_ones(tmp_path, rows, step_us, kernel_us):
    """A loop whose host runs ahead takes per step what its device takes: it is never idle."""
    recorded = read(tmp_path, rows)
    assert replayed(recorded) == pytest.approx(recorded.timeline.makespan_us) == pytest.approx(step_us)
    assert sorted(durations(recorded)) == pytest.approx(sorted(kernel_us))
    assert not any("not kept" in note for note in recorded.notes)


def test_the_only_step_of_a_trace_may_begin_behind(tmp_path):
    """The launches of the kernels before it are not in the trace."""
    rows = loop(6, [100] * 3)
    start = next(row["ts"] for row in rows if row["name"] == "ProfilerStep#5")
    recorded = read(tmp_path, [row for row in rows if row["ts"] >= start])
    assert replayed(recorded) == pytest.approx(300) and durations(recorded) == pytest.approx([100] * 3)
    # Behind since 500, where the host began; the first kernel began at 1512.
    assert "up to 1062 us are left out" in recorded.notes[0]


def test_steps_without_work_between_them_and_rows_outside_are_left_out(tmp_path):
    rows = [row for row in loop(8, [100] * 3) if row["name"] not in ("ProfilerStep#3", "ProfilerStep#7")]
    recorded = read(tmp_path, rows)
    assert recorded.notes[0] == "the trace holds 6 steps, of which ProfilerStep#6 is read"
    assert replayed(recorded) == pytest.approx(300)


def test_a_side_stream_keeps_its_place_beside_a_stream_that_is_behind(tmp_path):
    """Per step mm 100, then all-reduce 80 beside mm 100, then adam 50 after both, each 1 after what it waits for: 253."""
    rows, main, side = [], 0.0, 0.0
    for k in range(6):
        t, first = 100 * k, 4 * k
        names = ["aten::mm", "c10d::allreduce_", "aten::mm", "aten::adam"]
        rows.append(event("user_annotation", f"ProfilerStep#{k}", t, 100))
        for j, name in enumerate(names):
            rows += [event("cpu_op", name, t + 20 * j, 15), launch(t + 20 * j + 5, first + j)]
        main = max(main + 1, t + 9) + 100
        side = max(side, main) + 81
        rows += [kernel("mm", main - 100, 100, first), kernel("ncclDevKernel", side - 80, 80, first + 1, stream=30)]
        main += 101
        rows.append(kernel("mm", main - 100, 100, first + 2))
        main = max(main, side) + 51
        rows.append(kernel("adam", main - 50, 50, first + 3))
    recorded = read(tmp_path, rows)
    assert replayed(recorded) == recorded.timeline.makespan_us == pytest.approx(253)
    assert sorted(durations(recorded)) == pytest.approx([51, 81, 101, 101])


def test_a_blocking_copy_launches_and_waits(tmp_path):
    """AMD's item: hipMemcpyWithStream returns 2 after its copy, which comes after three kernels of 100 that begin at 16."""
    rows, free, t = [], 0.0, 0.0
    for k in range(4):
        begin = t
        for j in range(3):
            number, start = 4 * k + j, max(free, t + 16)
            rows += [
                event("cpu_op", "aten::mm", t, 20),
                launch(t + 5, number, "hipLaunchKernel", 5),
                kernel("gemm", start, 100, number, 0),
            ]
            free, t = start + 100, t + 25
        free += 3
        rows += [
            event("cpu_op", "aten::item", t, free + 4 - t),
            launch(t + 4, 4 * k + 3, "hipMemcpyWithStream", free - 2 - t),
        ]
        rows.append({**kernel("CopyDeviceToHost", free - 3, 3, 4 * k + 3, 0), "cat": "gpu_memcpy"})
        t = free + 7
        rows.append(event("user_annotation", f"ProfilerStep#{k}", begin, t - begin))
    recorded = read(tmp_path, rows)
    assert replayed(recorded) == recorded.timeline.makespan_us == pytest.approx(16 + 303 + 4)
    item = [
        d for n, d in zip(recorded.graph.names, recorded.graph.duration_us, strict=True) if n.startswith("aten::item")
    ]
    assert sum(item) == pytest.approx(5 + 4 + 4)  # since the op before, until the call, after the copy


def test_kernels_beside_each_other_on_one_stream_last_as_long_as_measured(tmp_path):
    """Branches of a CUDA graph have one stream: b and c run while a does. d begins 1 before c, by the clock, has ended."""
    names = [("a", 100, 1000), ("b", 110, 10), ("c", 120, 10), ("e", 1100, 40), ("f", 1139, 400), ("g", 1539, 10)]
    rows = [event("cpu_op", "aten::mm", 0, 20), launch(5, 1, "cudaGraphLaunch", 10)]
    recorded = read(tmp_path, [*rows, *(kernel(name, ts, dur, 1) for name, ts, dur in names)])
    assert replayed(recorded) == recorded.timeline.makespan_us == 1549
    kernels = dict(zip(recorded.graph.names, recorded.graph.duration_us.tolist(), strict=True))
    # a starts 85 after its launch ends, and nothing says why.
    assert {name: kernels[name] for name, *_ in names} == {"a": 1085, "b": 10, "c": 10, "e": 39, "f": 400, "g": 10}
    assert recorded.cluster.names[1:] == ("gpu:0/stream 7", "gpu:0/stream 7 (2)")


@pytest.mark.parametrize(
    "rows",
    [
        # b begins 1.5 before a ends, which is more than clocks explain.
        [("a", 100, 4000), ("b", 4098.5, 3.25), ("c", 4102, 50)],
        # b overlaps with a by a third of it; c runs on the lane of a, within b.
        [("a", 100, 12), ("b", 108, 1000), ("c", 500, 10), ("d", 1108, 40)],
    ],
    ids=["overlap", "within"],
)
def test_bug_a_short_kernel_beside_a_long_one_lasted_as_long_as_that(tmp_path, rows):
    """What the trace says of all kernels but the first, which waits since its launch, and the last, which ends the step."""
    host = [event("cpu_op", "aten::mm", 0, 20), launch(5, 1, "cudaGraphLaunch", 10)]
    recorded = read(tmp_path, [*host, *(kernel(name, ts, dur, 1) for name, ts, dur in rows)])
    assert replayed(recorded) == recorded.timeline.makespan_us == rows[-1][1] + rows[-1][2]
    durations_by_name = dict(zip(recorded.graph.names, recorded.graph.duration_us.tolist(), strict=True))
    assert {name: durations_by_name[name] for name, *_ in rows[1:-1]} == {name: dur for name, _, dur in rows[1:-1]}


@pytest.mark.parametrize("base", [0, 1_700_000_000_000_000, 1_700_000_000_000_000.5, -5e6])
@pytest.mark.parametrize("write", [lambda x: x, str], ids=["number", "text"])
def test_times_may_count_from_any_moment_and_be_texts(tmp_path, base, write):
    """Up to PyTorch 2.3 since 1970."""
    rows = [
        event("cpu_op", name, write(base + ts), write(dur))
        for name, ts, dur in (("aten::mm", 0, 40), ("aten::relu", 40, 5))
    ]
    recorded = read(tmp_path, rows, displayTimeUnit="ms", baseTimeNanoseconds=1719000000000000000)
    assert replayed(recorded) == recorded.timeline.makespan_us == pytest.approx(45)
    assert recorded.graph.duration_us.tolist() == [40, 5]


def test_pairs_of_begin_and_end_and_old_categories_are_rows(tmp_path):
    complete = read(tmp_path, GPU)
    pairs = []
    for at, row in enumerate(GPU):
        begin_event = {key: value for key, value in row.items() if key != "dur"} | {"ph": "B"}
        pairs += [
            (row["ts"], 1, at, begin_event),
            (row["ts"] + row["dur"], 0, -at, {"ph": "E", "ts": row["ts"] + row["dur"], "tid": row["tid"]}),
        ]
    for _, _, at, row in pairs:
        if "stream" in GPU[abs(at)]["args"]:
            row["tid"] = 7  # as Kineto writes it: pairs are of one thread or stream
    pairs.append((101, 1, 99, {"ph": "B", "cat": "cpu_op", "name": "aten::never_ended", "ts": 101, "tid": 1}))
    recording_of_pairs = read(tmp_path, [row for *_, row in sorted(pairs, key=lambda pair: pair[:3])])
    assert recording_of_pairs.graph == complete.graph
    names = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    assert read(tmp_path, [{**row, "cat": names.get(row["cat"], row["cat"])} for row in GPU]).graph == complete.graph


def test_bug_steps_that_old_versions_mark_were_read_as_one(tmp_path):
    """PyTorch before 1.10 writes the marks of steps as ops."""
    marks = [event("Operator", f"ProfilerStep#{k}", 100 * k, 90) for k in range(2)]
    recorded = read(tmp_path, [*marks, *(event("Operator", "aten::mm", 100 * k + 10, 20 + k) for k in range(2))])
    assert recorded.graph.duration_us.tolist() == [21]
    assert recorded.notes[0] == "the trace holds 2 steps, of which ProfilerStep#1 is read"


def flat_node(number: int, name: str, inputs: list, outputs: list, thread: int = 1, schema: str = "") -> dict:
    """As schema 1.0.1 has it, up to PyTorch 2.1: everything is a field of the node."""
    lists = {
        "inputs": inputs,
        "input_shapes": [],
        "input_types": [],
        "outputs": outputs,
        "output_shapes": [],
        "output_types": [],
    }
    return {"name": name, "id": number + 1, "rf_id": number, "parent": 1, "tid": thread, "op_schema": schema, **lists}


OPS = [("aten::mm", [1, 2], [3]), ("aten::exp", [3], [4]), ("aten::sum", [3], [5])]
FORK = {("aten::mm", "aten::exp"), ("aten::mm", "aten::sum")}


def joined(folder, rows: list[dict], nodes: list[dict], schema: str = "1.0.1") -> bl.Recording:
    (folder / "k.json").write_text(json.dumps({"traceEvents": rows}))
    (folder / "e.json").write_text(json.dumps({"schema": schema, "nodes": nodes}))
    return bl.load_trace(folder / "k.json", execution_trace=folder / "e.json")


def test_old_execution_traces_are_joined_by_external_id(tmp_path):
    rows = [
        event("cpu_op", name, 10 * k, 8, **{"External id": k + 1, "Ev Idx": k}) for k, (name, _, _) in enumerate(OPS)
    ]
    nodes = [flat_node(k + 1, name, list(map(tensor, a)), list(map(tensor, b))) for k, (name, a, b) in enumerate(OPS)]
    recorded = joined(tmp_path, rows, [flat_node(0, "[pytorch|profiler|execution_graph|process]", [], []), *nodes])
    assert edges(recorded.graph) == FORK and "by External id" in recorded.notes[0]
    assert recorded.graph.persistent_bytes.tolist() == [80, 0, 0]
    changing = flat_node(
        1, "aten::mm", list(map(tensor, [1, 2])), [tensor(1)], schema="aten::mm(Tensor(a!) x, Tensor y) -> Tensor(a!)"
    )
    assert joined(tmp_path, rows, [changing, *nodes[1:]]).graph.n == 3


def test_an_observer_beside_the_profiler_is_joined_by_order(tmp_path):
    """The observer ran for one step of three, on other numbers; a thread of its own runs backward ops."""
    names = [
        "aten::mm",
        "aten::add",
        "aten::exp",
        "aten::mul",
        "aten::sum",
        "aten::neg",
        "aten::cos",
        "aten::sin",
        "aten::div",
    ]
    rows, nodes = [], []
    for k in range(3):
        rows.append(event("user_annotation", f"ProfilerStep#{k}", 200 * k, 200))
        for j, name in enumerate(names):
            rows.append(
                event("cpu_op", name, 200 * k + 10 * j, 8, **{"Record function id": 0, "External id": 1 + 9 * k + j})
            )
            rows.append(event("cpu_op", f"autograd::{name}", 200 * k + 100 + 10 * j, 9, 2, **{"Record function id": 0}))
            rows.append(event("cpu_op", f"{name}_backward", 200 * k + 101 + 10 * j, 7, 2, **{"Record function id": 0}))
    for j, name in enumerate(names):
        nodes.append(flat_node(500 + j, name, [tensor(10 + j)], [tensor(11 + j)]))
        nodes.append(flat_node(600 + 2 * j, f"autograd::{name}", [], [], 2))
        nodes.append(flat_node(601 + 2 * j, f"{name}_backward", [tensor(11 + j)], [tensor(50 + j)], 2))
    recorded = joined(tmp_path, rows, nodes)
    assert "by their order on threads" in recorded.notes[1]
    forward = set(pairwise(names))
    assert edges(recorded.graph) == forward | {(name, f"{name}_backward") for name in names}


def test_an_execution_trace_of_another_program_is_refused_whatever_its_numbers(tmp_path):
    rows = [event("cpu_op", name, 10 * k, 8, **{"External id": k + 1}) for k, (name, _, _) in enumerate(OPS)]
    for names in (["aten::relu", "aten::exp"], ["aten::exp", "aten::mm", "aten::sum"], ["aten::exp"]):
        with pytest.raises(FormatError, match="of another run"):
            joined(tmp_path, rows, [flat_node(k + 70, name, [tensor(1)], [tensor(2)]) for k, name in enumerate(names)])


def test_bug_what_ops_within_an_op_make_comes_from_it(tmp_path):
    """dropout makes a mask (storage 7) that only its backward op reads; batch_norm adds to a count (storage 9).

    The mask counted as there before the step, and its backward op did not wait for dropout.
    """
    ops = [  # name, start, duration, inputs, outputs
        ("aten::dropout", 0, 10, [1], [2]),
        ("aten::empty_like", 1, 2, [1], [7]),
        ("aten::mul", 4, 2, [1, 7], [2]),
        ("aten::exp", 10, 5, [9], [4]),
        ("aten::batch_norm", 20, 10, [2, 9], [3]),
        ("aten::add_", 21, 2, [9], [9]),
        ("aten::neg", 30, 5, [9], [5]),
        ("aten::native_dropout_backward", 40, 5, [3, 7], [6]),
    ]
    rows, nodes = [], []
    for k, (name, start, duration, inputs, outputs) in enumerate(ops, 1):
        rows.append(event("cpu_op", name, start, duration, **{"Record function id": k}))
        schema = ADD if name == "aten::add_" else ""
        nodes.append(flat_node(k, name, list(map(tensor, inputs)), list(map(tensor, outputs)), schema=schema))
    graph = joined(tmp_path, rows, nodes).graph
    assert edges(graph) == {
        ("aten::dropout", "aten::batch_norm"),
        ("aten::dropout", "aten::native_dropout_backward"),
        ("aten::batch_norm", "aten::native_dropout_backward"),
        ("aten::exp", "aten::batch_norm"),  # which changes what exp reads
        ("aten::batch_norm", "aten::neg"),
    }
    assert dict(zip(graph.names, graph.persistent_bytes.tolist(), strict=True)) == {
        "aten::dropout": 40,  # x
        "aten::exp": 40,  # the count
        "aten::batch_norm": 0,
        "aten::neg": 0,
        "aten::native_dropout_backward": 0,
    }


def test_bug_an_execution_trace_of_a_similar_program_is_refused(tmp_path):
    """Record numbers start anew in every process: two programs agree in the names of four of six ops, but not in tensors."""
    names = ["aten::mm", "aten::relu", "aten::t", "aten::mm", "aten::sum", "aten::mul"]
    other_names = ["aten::conv2d", "aten::relu", "aten::t", "aten::bmm", "aten::sum", "aten::mul"]
    rows = [event("cpu_op", name, 10 * k, 8, **{"Record function id": k + 1}) for k, name in enumerate(names)]
    for program in (names, other_names):
        nodes = [flat_node(k + 1, name, [tensor(k + 1)], [tensor(k + 2)]) for k, name in enumerate(program)]
        if program is names:
            assert joined(tmp_path, rows, nodes).graph.edge_count == 5
        else:
            with pytest.raises(FormatError, match="it is of another run"):
                joined(tmp_path, rows, nodes)


def test_a_pair_of_pytorch_traces_is_no_list_of_ranks(tmp_path):
    joined(
        tmp_path, [event("cpu_op", "aten::mm", 0, 8, **{"Record function id": 1})], [flat_node(1, "aten::mm", [], [])]
    )
    for paths in (["k.json", "e.json"], ["e.json", "k.json"]):
        with pytest.raises(FormatError, match="the execution trace of the same run as execution_trace"):
            bl.load_trace([tmp_path / path for path in paths])


def et_node(number: int, schema: str, inputs: list, outputs: list) -> dict:
    attrs = [{"name": "rf_id", "value": number}, {"name": "op_schema", "value": schema}]
    return {
        "id": number,
        "name": schema.split("(")[0],
        "inputs": {"values": inputs},
        "outputs": {"values": outputs},
        "attrs": attrs,
    }


def tensor(storage: int, elements: int = 10) -> list:
    return [storage + 100, storage, 0, elements, 4, "cpu"]


ADD = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"


def test_dependencies_from_storages(tmp_path):
    """mm reads x and w and makes y; two ops read y side by side; add_ changes w, after mm has read it, with mm's group."""
    rows = [
        event("cpu_op", f"aten::{x}", 10 * k, 10, **{"Record function id": k})
        for k, x in enumerate(("mm", "exp", "t", "add_"))
    ]
    nodes = [
        et_node(0, "aten::mm(Tensor self, Tensor mat2) -> Tensor", [tensor(1), tensor(2)], [tensor(3)]),
        et_node(1, "aten::exp(Tensor self) -> Tensor", [tensor(3)], [tensor(4)]),
        et_node(2, "aten::t(Tensor(a) self) -> Tensor(a)", [tensor(3)], [tensor(3)]),
        et_node(3, ADD, [tensor(2), tensor(4)], [tensor(2)]),
    ]
    (tmp_path / "k.json").write_text(json.dumps({"traceEvents": rows}))
    (tmp_path / "e.json").write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    recorded = bl.load_trace(tmp_path / "k.json", execution_trace=tmp_path / "e.json")
    graph = recorded.graph
    assert edges(graph) == {
        ("aten::mm", "aten::exp"),
        ("aten::mm", "aten::t"),
        ("aten::exp", "aten::add_"),
        ("aten::mm", "aten::add_"),
    }
    assert graph.persistent_bytes.tolist() == [80, 0, 0, 0]  # x and w
    assert graph.colocation.tolist() == [0, -1, -1, 0]
    assert replayed(recorded) == 40
    two = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0))
    assert bl.simulate(graph, two, bl.place(graph, two, "m-etf")).makespan_us == 30  # t beside exp
    alone = bl.load_trace(tmp_path / "k.json")
    assert edges(alone.graph) == {("aten::mm", "aten::exp"), ("aten::exp", "aten::t"), ("aten::t", "aten::add_")}
    assert "inferred from the order" in alone.notes[0]


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ({"schemaVersion": 2, "traceEvents": []}, "schemaVersion is 2; version 1 is read"),
        ({"traceEvents": 3}, "traceEvents is int"),
        ({"traceEvents": []}, "no op of PyTorch"),
        (
            {"traceEvents": [event("user_annotation", "ProfilerStep#1", 0, 5), event("cpu_op", "aten::mm", 9, 1)]},
            "the step that prof.step\\(\\) marks has no op of PyTorch: all 1 of the trace lie outside",
        ),
        ({"traceEvents": [event("Op", "MatMul", 0, 1)]}, "of TensorFlow, give the RunMetadata and not the timeline"),
        ({"traceEvents": [event("cpu_op", "aten::mm", 0, -1)]}, "dur is -1"),
        ({"traceEvents": [event("cpu_op", "aten::mm", "x", 1)]}, "ts is 'x'"),
        ({"schema": "1.0.0", "nodes": []}, "an execution trace has no times"),
    ],
)
def test_bad_kineto_traces_are_rejected(tmp_path, document, match):
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=match):
        bl.load_trace(tmp_path / "bad.json")


@pytest.mark.parametrize("end", ["]", "", ",\n"])
def test_bug_kineto_traces_that_are_a_list_of_events_were_refused(tmp_path, end):
    """A Chrome trace is an object or the list of its events, whose end may be missing."""
    (tmp_path / "object.json").write_text(json.dumps({"traceEvents": GPU}))
    (tmp_path / "list.json.gz").write_bytes(gzip.compress(("\ufeff" + json.dumps(GPU)[:-1] + end).encode()))
    expected, recorded = (bl.load_trace(tmp_path / name) for name in ("object.json", "list.json.gz"))
    assert recorded.timeline.start_us.tolist() == expected.timeline.start_us.tolist()
    assert edges(recorded.graph) == edges(expected.graph)
    assert ("the list of events has no end: events may be missing" in recorded.notes) == (end != "]")
    (tmp_path / "cut.json").write_text(json.dumps(GPU)[:-20])
    with pytest.raises(FormatError, match=r"cut\.json: not JSON: .* is it truncated"):
        bl.load_graph(tmp_path / "cut.json")


def test_bug_the_list_of_a_profilers_events_was_refused(tmp_path):
    """`EventList.export_chrome_trace` names no categories, and does not tell kernels of devices from ops."""
    row = {"ph": "X", "name": "aten::mm", "pid": "CPU functions", "tid": 1, "ts": 0, "dur": 5, "args": {}}
    (tmp_path / "events.json").write_text(json.dumps([row, {**row, "ts": 6, "name": "aten::relu"}]))
    recorded = bl.load_trace(tmp_path / "events.json")
    assert recorded.graph.names == ("aten::mm", "aten::relu") and replayed(recorded) == 11
    (tmp_path / "gpu.json").write_text(json.dumps([row, {**row, "ph": "s", "cat": "cpu_to_cuda", "id": 0}]))
    with pytest.raises(FormatError, match="does not tell ops from kernels of devices: export the trace by"):
        bl.load_trace(tmp_path / "gpu.json")


def test_bug_kineto_traces_with_long_process_groups_were_no_traces(tmp_path):
    """`distributedInfo` lists all ranks of all groups, before the events."""
    groups = [{"pg_name": str(k), "ranks": list(range(512))} for k in range(64)]
    document = {"schemaVersion": 1, "distributedInfo": {"pg_config": groups}, "traceEvents": GPU}
    (tmp_path / "k.json").write_text(json.dumps(document))
    assert replayed(bl.load_trace(tmp_path / "k.json")) == pytest.approx(44)


def test_execution_traces_of_another_run_or_version_are_refused(tmp_path):
    (tmp_path / "k.json").write_text(
        json.dumps({"traceEvents": [event("cpu_op", "aten::mm", 0, 1, **{"Record function id": 5})]})
    )
    (tmp_path / "x.pbtxt").write_text("")
    for document, match in (
        ({"schema": "1.0.0", "nodes": []}, "of another run"),
        ({"schema": "7", "nodes": []}, "versions 1.x.x"),
        ({"nodes": []}, "no fields schema"),
        ({"schema": "1.0.0", "nodes": [{"attrs": 7}]}, "nodes\\[0\\].attrs is 7; it must be a list"),
    ):
        (tmp_path / "e.json").write_text(json.dumps(document))
        with pytest.raises(FormatError, match=match) as refused:
            bl.load_trace(tmp_path / "k.json", execution_trace=tmp_path / "e.json")
        assert ("e.json" in str(refused.value)) == (match != "of another run")  # the file at fault is named
    same = et_node(5, "aten::exp(Tensor self) -> Tensor", [tensor(3)], [tensor(4)])
    unnumbered = [event("cpu_op", "aten::exp", k, 1, **{"Record function id": 5}) for k in range(2)]
    for rows in ([event("cpu_op", "aten::mm", 0, 1, **{"Record function id": 5})], unnumbered):
        (tmp_path / "k.json").write_text(json.dumps({"traceEvents": rows}))
        (tmp_path / "e.json").write_text(json.dumps({"schema": "1.0.0", "nodes": [same]}))
        with pytest.raises(FormatError, match="of another run; give the profiler execution_trace_observer="):
            bl.load_trace(tmp_path / "k.json", execution_trace=tmp_path / "e.json")
    (tmp_path / "e.json").write_text(json.dumps({"schema": "1.0.0", "nodes": []}))
    with pytest.raises(bl.InvalidInput, match="is no Kineto trace"):
        bl.load_trace(tmp_path / "x.pbtxt", execution_trace=tmp_path / "e.json")


# -- XPlane ----------------------------------------------------------------------------------------------


def test_an_xplane_trace_by_hand(tmp_path):
    """Two ops on a thread of the host within a call, and a kernel on a stream, found by its tf_op."""
    cls = messages(xplane.SCHEMA)
    names = ["ExecutorState::Process", "a/MatMul:MatMul", "Relu:Relu", "sgemm"]
    metadata = [{"key": k, "value": {"id": k, "name": name}} for k, name in enumerate(names)]
    host = {
        "name": "/host:CPU",
        "event_metadata": metadata,
        "lines": [
            {
                "name": "python",
                "timestamp_ns": 1_000_000,
                "events": [
                    {"metadata_id": 0, "offset_ps": 0, "duration_ps": 10_000_000},
                    {"metadata_id": 1, "offset_ps": 1_000_000, "duration_ps": 2_000_000},
                    {"metadata_id": 2, "offset_ps": 4_000_000, "duration_ps": 3_000_000},
                ],
            }
        ],
    }
    stats = [{"key": 1, "value": {"id": 1, "name": "tf_op"}}]
    rows = [
        {
            "metadata_id": 3,
            "offset_ps": 5_000_000,
            "duration_ps": 9_000_000,
            "stats": [{"metadata_id": 1, "str_value": "a/MatMul:MatMul"}],
        }
    ]
    lines = [
        {"name": "Stream #7(compute)", "timestamp_ns": 1_000_000, "events": rows},
        {"name": "Steps", "timestamp_ns": 1_000_000, "events": rows},
    ]
    gpu = {"name": "/device:GPU:0", "event_metadata": metadata, "stat_metadata": stats, "lines": lines}
    (tmp_path / "host.xplane.pb").write_bytes(cls["XSpace"](planes=[host, gpu]).SerializeToString())
    recorded = bl.load_trace(tmp_path / "host.xplane.pb")
    assert recorded.graph.names == ("a/MatMul", "Relu", "sgemm")
    assert ("a/MatMul", "sgemm") in edges(recorded.graph)
    assert replayed(recorded) == pytest.approx(13)  # from 1 to 14
    assert "no tensors" in recorded.notes[0]


@pytest.mark.parametrize("steps", [1, 3])
def test_an_xplane_trace_of_several_steps_says_so(tmp_path, steps):
    """Two ops per step, and one that runs before the first."""
    cls = messages(xplane.SCHEMA)
    metadata = [{"key": k, "value": {"id": k, "name": name}} for k, name in enumerate(("x:Cast", "a:MatMul", "b:Relu"))]
    op_of_row = [0, *[1, 2] * steps]
    rows = [{"metadata_id": op, "offset_ps": k * 10**6, "duration_ps": 10**6} for k, op in enumerate(op_of_row)]
    host = {"name": "/host:CPU", "event_metadata": metadata, "lines": [{"name": "python", "events": rows}]}
    (tmp_path / "host.xplane.pb").write_bytes(cls["XSpace"](planes=[host]).SerializeToString())
    recorded = bl.load_trace(tmp_path / "host.xplane.pb")
    assert recorded.graph.n == 1 + 2 * steps
    assert any("most ops ran 3 times" in note for note in recorded.notes) == (steps == 3)


# -- all -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "match"),
    [("x.json", "no trace of a kind"), ("x.pb", "RunMetadata"), ("x.xplane.pb", "XSpace"), ("x.pbtxt", "as text")],
)
def test_nonsense_is_one_sentence(tmp_path, name, match):
    (tmp_path / name).write_bytes(b"\x93\x00nonsense" * 50)
    with pytest.raises(FormatError, match=match) as caught:
        bl.load_trace(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["m.onnx", "m.pt2"])
def test_programs_are_sent_to_profile(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x08\x0b")
    with pytest.raises(FormatError, match=r"bl\.profile"):
        bl.load_graph(tmp_path / name)


def _launched(launch: object, kernel: object) -> list[dict]:
    """An op that launches a kernel, which starts when 10 us of the op have passed; values of the field `correlation`."""
    row = {"ph": "X", "pid": 1, "tid": 1}
    device = {"device": 0, "stream": 7, "correlation": kernel}
    return [
        {**row, "name": "aten::mm", "cat": "cpu_op", "ts": 100, "dur": 20, "args": {}},
        {
            **row,
            "name": "cudaLaunchKernel",
            "cat": "cuda_runtime",
            "ts": 105,
            "dur": 5,
            "args": {"correlation": launch},
        },
        {**row, "name": "gemm", "cat": "kernel", "ts": 110, "dur": 50, "pid": 0, "args": device},
    ]


@pytest.mark.parametrize(("launch", "kernel"), [(7, 7), ("7", 7), (7.0, 7), ("a", "a")])
def test_bug_a_correlation_of_another_type_was_no_launch(tmp_path, launch, kernel):
    (tmp_path / "k.json").write_text(json.dumps({"traceEvents": _launched(launch, kernel)}))
    recording = bl.load_trace(tmp_path / "k.json")
    assert not any("no launch" in note for note in recording.notes)
    assert dict(zip(recording.graph.names, recording.graph.duration_us, strict=True))["gemm"] == 50


@pytest.mark.parametrize(("launch", "kernel"), [(0, 0), (None, None), (7, 8), (7, 7.5)])
def test_bug_kernels_without_a_launch_were_read_without_a_word(tmp_path, launch, kernel):
    """0 stands for no correlation: kernels were assigned to the last launch with it."""
    (tmp_path / "k.json").write_text(json.dumps({"traceEvents": _launched(launch, kernel)}))
    recording = bl.load_trace(tmp_path / "k.json")
    assert any(note.startswith("1 of 1 ops on devices have no launch in the trace") for note in recording.notes)
    assert recording.graph.names.count("gemm") == 1
