"""Nothing is rounded, wrapped, cut or dropped without a word on the way into a record or out of a file."""

import gzip
import inspect
import json
import os

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.columns import texts, whole_numbers
from baechi_lab.graph.formats import reading
from baechi_lab.graph.formats.files import load_placement, load_timeline, save

CHAIN = bl.OpGraph.from_edges([1, 2, 3], [(0, 1, 4), (1, 2, 4)])
LARGE = 2**53 + 1
"""The first whole number that float64 cannot hold."""


def two(**columns):
    return bl.OpGraph.from_edges([1, 2], [(0, 1, 4)], **columns)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bl.Placement(device=[2**32 + 1]), r"device\[0\] is 4294967297; it must fit into 32 bits"),
        (lambda: bl.Placement(device=np.array([0, 2**40])), r"device\[1\] is 1099511627776"),
        (lambda: bl.Placement(device=[0, 0], group_of=[0, 2**32]), r"group_of\[1\] is 4294967296"),
        (lambda: bl.Placement(device=[0, 0], group_of=[0, 2]), r"group_of\[1\] is 2; the placement has groups 0\.\.1"),
        (lambda: bl.Placement(device=[0], seconds=float("nan")), "seconds is nan"),
        (lambda: bl.Placement(device=[0], placer=None), "placer is None"),
        (lambda: two().replace(tensor_producer=np.array([2**32])), r"tensor_producer\[0\] is 4294967296"),
        (lambda: two().replace(consumers=np.array([2**32 + 1])), r"consumers\[0\] is 4294967297"),
        (lambda: two(colocation=[2**32, -1], colocation_names=("a",)), r"colocation\[0\] is 4294967296"),
        (lambda: two(temp_bytes=[2**63, 0]), r"temp_bytes\[0\] is 9223372036854775808; it must fit into 64 bits"),
        (
            lambda: two(temp_bytes=[10**400, 0]),
            r"temp_bytes\[0\] is a number of more than 50 digits; it must fit into 64 bits",
        ),
        (lambda: two(temp_bytes=np.array([2.0**63, 0])), r"temp_bytes\[0\] is 9223372036854775808"),
        (lambda: two(temp_bytes=[[1], [1, 2]]), "temp_bytes must be one list of numbers"),
        (lambda: two(temp_bytes=["1", "2"]), "temp_bytes must hold whole numbers"),
        (lambda: bl.OpGraph.from_edges([1, 2], [(0, 1.5, 4)]), r"consumer of edge\[0\] is 1\.5; it must be a whole"),
        (lambda: bl.OpGraph.from_edges([1, 2], [(0.5, 1, 4)]), r"producer of edge\[0\] is 0\.5"),
        (lambda: bl.OpGraph.from_edges([1, 2], [(0, 1)]), r"edges holds an entry that is not .*: \(0, 1\)"),
        (lambda: bl.OpGraph.from_edges([1, 2], [(0, 1, 4), 7]), "edges holds an entry that is not .*: 7"),
        (
            lambda: two().replace(consumer_ptr=[0, 2], consumers=[1, 1]),
            r"consumers of tensor 'op0:0' are \[1, 1\]; they must be ascending, each named once",
        ),
        (
            lambda: CHAIN.replace(tensor_producer=CHAIN.tensor_producer[::-1]),
            r"tensor_producer\[1\] is 0; it must be at least the entry before it",
        ),
        (lambda: bl.OpGraph.from_edges([1, 2], None), "edges is None"),
        (lambda: bl.OpGraph.from_edges(["1", None]), "duration_us holds '1'; each must be a number"),
        (lambda: bl.OpGraph.from_edges([10**400]), "duration_us holds a number that is too large"),
        (lambda: two(names="ab"), "names is 'ab'; it must be a list of texts"),
        (lambda: two(op_types=[1, 2]), "op_types holds 1; each must be a text"),
        (lambda: two(names=["a", "\ud800"]), r"names holds '\\ud800', half of a character"),
        (lambda: two(allowed=[0, 0], allowed_sets=("gpu",)), "allowed_sets is 'gpu'; it must be a list of texts"),
        (lambda: two(duration_by_kind=[1, 2]), r"duration_by_kind is \[1, 2\]; it must map"),
        (lambda: bl.Cluster.uniform(10**20), "number of devices is 100000000000000000000; at most 4096"),
        (lambda: bl.Cluster(bl.Cluster.uniform(4096).devices + (bl.Device("x", "gpu", 1),)), "4097; at most 4096"),
        (lambda: bl.Cluster.uniform(2, memory_bytes="1e400"), "'1e400' is too large"),
        (lambda: bl.Cluster.uniform(2, memory_bytes="1e9999999GB"), "'1e9999999GB' is too large"),
        (lambda: bl.Cluster.uniform(2, memory_bytes=2**63), "9223372036854775808 is too large"),
        (lambda: bl.Cluster.uniform(2, memory_bytes=2**62), "add up to 9223372036854775808; at most"),
        (lambda: bl.Cluster.uniform(2, memory_bytes=10**400), "is not a number of bytes"),
        (lambda: bl.Cluster.uniform(2, comm=[]), "communication mode"),
        (lambda: bl.Cluster.uniform(2, speed=10**400), "it must be finite and above 0"),
        (lambda: bl.Link(10**400, 0), "it must be finite and not negative"),
        (lambda: bl.Device("d", "gpu", 1, speed=1e-200), "speed of device 'd' is 1e-200; .* from 1e-150 to 1e.150"),
        (lambda: bl.Device("d", "gpu", 1, speed=1e300), "speed of device 'd' is 1e.300; .* from 1e-150 to 1e.150"),
        (lambda: bl.Link(1e300, 0), "link latency_us is 1e.300; it must be at most 1e.150"),
        (lambda: bl.Link(0, 1e300), "link us_per_byte is 1e.300; it must be at most 1e.150"),
        (lambda: bl.Link(0, 0, 1e300), "link overhead_us is 1e.300; it must be at most 1e.150"),
        (lambda: bl.Link(1e150, 0, 1e150), r"latency_us \+ 2 \* overhead_us is 3e.150; it must be at most 1e.150"),
        (lambda: bl.Device("\udc80", "gpu", 1), "half of a character"),
        (lambda: bl.Cluster(None), "devices is None"),
    ],
)
def test_what_a_record_cannot_hold_is_refused(make, message):
    with pytest.raises(bl.InvalidInput, match=message):
        make()


def test_whole_numbers_are_exact():
    graph = bl.OpGraph.from_edges(
        [1, 2], [(0, 1, LARGE)], temp_bytes=[LARGE, 1.0], persistent_bytes=np.array([LARGE, 3])
    )
    assert graph.tensor_bytes.tolist() == [LARGE]
    assert graph.temp_bytes.tolist() == [LARGE, 1]
    assert graph.persistent_bytes.tolist() == [LARGE, 3]
    assert whole_numbers("x", [2**63 - 1, -(2**63)]).tolist() == [2**63 - 1, -(2**63)]
    assert whole_numbers("x", [2**63 - 1, 1.0]).tolist() == [2**63 - 1, 1]
    assert texts("x", ["\U0001f600"]) == ("\U0001f600",)
    assert bl.Cluster.uniform(1, memory_bytes=f"{LARGE}").devices[0].memory_bytes == LARGE


def test_sizes_in_files_are_exact(tmp_path):
    graph = bl.OpGraph.from_edges([1, 2], [(0, 1, LARGE)])
    bl.save_graph(graph, tmp_path / "g.json")
    assert bl.load_graph(tmp_path / "g.json").tensor_bytes.tolist() == [LARGE]
    (tmp_path / "g.stg").write_text(f"2\n0 5 0\n1 1 1\n0 {LARGE}\n")
    assert bl.load_graph(tmp_path / "g.stg").tensor_bytes.tolist() == [LARGE]
    node = {"supportedOnFpga": 1, "cpuLatency": 2.0, "fpgaLatency": 1.0, "size": LARGE, "isBackwardNode": 0}
    edge = {"sourceId": 0, "destId": 1, "size": LARGE, "cost": 1.0}
    (tmp_path / "p.json").write_text(json.dumps({"nodes": [{**node, "id": k} for k in (0, 1)], "edges": [edge]}))
    graph_read = bl.load_graph(tmp_path / "p.json")
    assert (graph_read.tensor_bytes.tolist(), graph_read.persistent_bytes.tolist()) == ([LARGE], [LARGE] * 2)


def test_the_second_of_two_equal_fields_does_not_win(tmp_path):
    bl.save_graph(two(), tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text()
    (tmp_path / "g.json").write_text(text.replace('"duration_us"', '"duration_us": [7, 7], "duration_us"'))
    with pytest.raises(bl.FormatError, match=r"g\.json: field 'duration_us' appears more than once"):
        bl.load_graph(tmp_path / "g.json")


def test_a_placement_for_other_groups_is_refused():
    graph, three_ops = two(), bl.OpGraph.from_edges([1, 2, 3])
    placement = bl.Placement(device=[0], group_of=[0, 0, 0], source_key=graph.key, graph_key="x")
    with pytest.raises(bl.InvalidInput, match="another graph, of 1 ops"):
        placement.on(graph)
    with pytest.raises(bl.InvalidInput, match="another graph"):
        bl.Placement(device=[0, 0], graph_key=three_ops.key).on(three_ops)


def test_the_repr_of_a_far_device_takes_no_memory():
    assert "0..2147483647" in repr(bl.Placement(device=[2147483647]))


# -- files -----------------------------------------------------------------------------------------------------


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/zero", tmp_path):
        with pytest.raises(bl.FormatError, match="a folder, a pipe or a device"):
            bl.load_graph(path)


def test_what_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_FILE_BYTES", 1 << 20)
    with gzip.open(tmp_path / "bomb.json.gz", "wb", compresslevel=1) as stream:
        for _ in range(64):
            stream.write(bytes(1 << 20))
    assert (tmp_path / "bomb.json.gz").stat().st_size < 1 << 20
    (tmp_path / "long.json").write_bytes(bytes((1 << 20) + 1))
    for name in ("bomb.json.gz", "long.json"):
        with pytest.raises(bl.FormatError, match="holds more than 1048576 bytes"):
            bl.load_graph(tmp_path / name)


@pytest.mark.parametrize("path", ["a\0b.json", b"a\0b.json"])
def test_a_nul_in_a_path_is_one_sentence(path):
    with pytest.raises(bl.FormatError, match="must name a file"):
        bl.load_graph(path)
    with pytest.raises(bl.FormatError, match="must name a file"):
        save(two(), path)


def test_what_is_no_path_is_one_sentence():
    for path in (None, 7, ["a"]):
        with pytest.raises(bl.InvalidInput, match="must name a file"):
            bl.load_graph(path)
        with pytest.raises(bl.InvalidInput, match="must name a file"):
            save(two(), path)


@pytest.mark.parametrize(
    ("kind", "path_in_document", "value", "message"),
    [
        ("graph", ["kind"], [], "field kind is"),
        ("graph", ["version"], 10**400, "field version is"),
        ("graph", ["ops", "name", 0], "\ud800", "half of a character"),
        ("graph", ["ops", "duration_us", 0], 10**400, "too large for a float64"),
        ("placement", ["seconds"], 10**400, "seconds is"),
        ("placement", ["device", 0], 2**31, "device"),
        # torch's compiler raises the recursion limit of a process, and then the lists can be read.
        ("placement", ["info"], json.loads("[" * 900 + "]" * 900), "nested too deeply|must be an object"),
        ("timeline", ["makespan_us"], None, "makespan_us"),
        ("timeline", ["ops", "start_us", 0], None, r"ops\.start_us\[0\] is None; it must be finite"),
        ("timeline", ["memory", "op", 0], 2**40, "must fit into 32 bits"),
        ("timeline", ["violations"], [{"kind": 1}], "violations"),
        ("timeline", ["violations"], [7], "violations"),
    ],
)
def test_odd_values_in_files(tmp_path, kind, path_in_document, value, message):
    graph, cluster = two(), bl.Cluster.uniform(2)
    placement = bl.place(graph, cluster, "m-etf")
    record = {"graph": graph, "placement": placement, "timeline": bl.simulate(graph, cluster, placement)}[kind]
    load = {"graph": bl.load_graph, "placement": load_placement, "timeline": load_timeline}[kind]
    save(record, tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_text())
    home = document
    for key in path_in_document[:-1]:
        home = home[key]
    home[path_in_document[-1]] = value
    (tmp_path / "x.json").write_text(json.dumps(document))
    with pytest.raises(bl.InvalidInput, match=message) as caught:
        load(tmp_path / "x.json")
    assert "\n" not in str(caught.value)


def test_deep_lists_are_one_sentence(tmp_path):
    for depth in (400, 900, 100_000):
        (tmp_path / "deep.json").write_text(
            '{"format": "baechi_lab", "version": 1, "kind": "placement", "device": [0], "placer": "x", "info": {"a": '
            + "[" * depth
            + "]" * depth
            + "}}"
        )
        try:
            repr(load_placement(tmp_path / "deep.json"))
        except bl.FormatError as error:
            assert "nested too deeply" in str(error)


# -- arguments -------------------------------------------------------------------------------------------------

ARGUMENTS = ("graph", "cluster", "placement", "timeline", "moves")


@pytest.mark.parametrize(
    "name",
    [
        "bounds",
        "check",
        "compare",
        "critical_path",
        "downward_rank",
        "move",
        "optimize",
        "place",
        "ratios",
        "recompute",
        "robustness",
        "simulate",
        "throughput",
        "total_rank",
        "unroll",
        "upward_rank",
    ],
)
@pytest.mark.parametrize("bad", [None, 7, "x"])
def test_what_is_no_record_is_named(name, bad):
    graph, cluster = two(), bl.Cluster.uniform(2)
    placement = bl.place(graph, cluster, "m-etf")
    good = dict(zip(ARGUMENTS, (graph, cluster, placement, bl.simulate(graph, cluster, placement), {}), strict=True))
    function = getattr(bl, name)
    needed = [
        x.name for x in inspect.signature(function).parameters.values() if x.default is x.empty and x.name in ARGUMENTS
    ]
    assert needed
    for key in needed:
        with pytest.raises(bl.InvalidInput, match=key):
            function(
                **{x: bad if x == key else good[x] for x in needed},
                **({"micro_batches": 2} if name == "unroll" else {}),
            )


def test_names_in_foreign_graphs_are_texts(tmp_path):
    node = {"id": 0, "supportedOnFpga": 1, "cpuLatency": 2.0, "fpgaLatency": 1.0, "size": 1, "isBackwardNode": 0}
    (tmp_path / "p.json").write_text(json.dumps({"nodes": [{**node, "name": {"a": 1}}], "edges": []}))
    with pytest.raises(bl.FormatError, match=r"nodes\[0\]\.name is"):
        bl.load_graph(tmp_path / "p.json")


def test_half_a_character_beside_a_number_out_of_range(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1e400, "b": "\\ud800"}')
    with pytest.raises(bl.FormatError, match="half of a character"):
        bl.load_graph(tmp_path / "x.json")


def test_a_device_name_of_two_lines_makes_no_message_of_two():
    graph = bl.OpGraph.from_edges([1], allowed=[0], allowed_sets=(("a\nb",),))
    with pytest.raises(bl.InfeasiblePlacement, match=r"may run only on 'a\\nb'; the cluster has gpu:0"):
        bl.place(graph, bl.Cluster.uniform(1), "m-etf")
