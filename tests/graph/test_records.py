"""Records are validated once, on construction: each mistake has its own clear error."""

import dataclasses
import gc
import pickle

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import Cluster, CostError, Link, OpGraph
from baechi_lab.graph import durations
from baechi_lab.graph.timeline import MemoryLog


def graph(duration=(1, 1, 1), edges=((0, 1, 4), (1, 2, 4)), **columns):
    return bl.OpGraph.from_edges(list(duration), list(edges), **columns)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"edges": [(0, 1, 4), (1, 0, 4)]}, bl.CycleError, r"has a cycle, for example op0 -> op1 -> op0"),
        ({"edges": [(1, 1, 4)]}, bl.CycleError, r"op1 -> op1"),
        (
            {"duration": [1, -2, 1]},
            bl.CostError,
            r"duration_us of op 'op1' is -2\.0; it must be finite and not negative",
        ),
        ({"duration": [1, float("nan"), 1]}, bl.CostError, r"duration_us of op 'op1' is nan"),
        ({"duration": [1, float("inf"), 1]}, bl.CostError, r"is inf"),
        ({"edges": [(0, 1, -4)]}, bl.CostError, r"size_bytes of tensor 'op0:0' is -4"),
        ({"edges": [(0, 1, 0.5)]}, bl.CostError, r"tensor_bytes\[0\] is 0\.5; it must be a whole number"),
        ({"edges": [(0, 3, 4)]}, bl.UnknownOpError, r"names op 3; the graph has ops 0\.\.2"),
        ({"names": ["a", "b", "a"]}, bl.DuplicateNameError, r"op name 'a' appears more than once"),
        ({"names": ["a", "", "c"]}, bl.InvalidInput, r"every op needs a non-empty name"),
        ({"names": ["a", "b"]}, bl.InvalidInput, r"must have one entry per op"),
        ({"temp_bytes": [0, -1, 0]}, bl.CostError, r"temp_bytes of op 'op1' is -1"),
        ({"persistent_bytes": [0, 0]}, bl.InvalidInput, r"persistent_bytes has shape \(2,\)"),
        ({"persistent_bytes": [0, np.nan, 0]}, bl.CostError, r"persistent_bytes\[1\] is nan"),
        ({"duration_by_kind": {"cpu": [1, np.nan, 1]}}, bl.CostError, r"duration_by_kind\['cpu'\] of op 'op1' is nan"),
        ({"forward_of": [-1, 9, -1]}, bl.UnknownOpError, r"forward_of entry 1 names op 9"),
        ({"forward_of": [-1, 1, -1]}, bl.InvalidInput, r"forward_of of op 'op1' names the op itself"),
        ({"colocation": [0, 0, 1], "colocation_names": ("a",)}, bl.InvalidInput, r"colocation of op 'op2' is 1"),
        (
            {
                "colocation": [0, 0, -1],
                "colocation_names": ("w",),
                "allowed": [0, 1, -1],
                "allowed_sets": (("cpu",), ("gpu",)),
            },
            bl.ColocationError,
            r"ops 'op0' and 'op1' share colocation group 'w' but allow different devices",
        ),
        ({"allowed": [0, -1, -1], "allowed_sets": ((),)}, bl.InvalidInput, r"must name at least one device or kind"),
        ({"group_of": [0, 1, 1]}, bl.InvalidInput, r"group_of leaves op 'op2' without members"),
    ],
)
def test_bad_graphs_are_rejected(columns, error, message):
    with pytest.raises(error, match=message):
        graph(**columns)


def test_edges_of_one_producer_and_size_are_one_tensor():
    op_graph = graph(duration=[1] * 4, edges=[(0, 1, 8), (0, 2, 8), (0, 3, 16)])
    assert op_graph.tensor_count == 2
    assert op_graph.edge_count == 3
    assert op_graph.tensor_consumers(0).tolist() == [1, 2]


def test_views_of_a_graph_agree_with_its_edges():
    op_graph = graph(duration=[1] * 4, edges=[(0, 2, 8), (1, 2, 8), (1, 2, 9), (2, 3, 1)])
    pointer, tensors = op_graph.inputs
    assert tensors[pointer[2] : pointer[3]].tolist() == [0, 1, 2]
    pointer, ops = op_graph.predecessors
    assert ops[pointer[2] : pointer[3]].tolist() == [0, 1]
    assert list(op_graph.outputs(1)) == [1, 2]
    assert op_graph.tensor_label(2) == "op1:1"
    assert [m.tolist() for m in op_graph.members] == [[0], [1], [2], [3]]
    assert op_graph.index["op3"] == 3


def test_order_is_topological_smallest_index_first():
    assert graph(duration=[1] * 4, edges=[(3, 0, 1), (2, 1, 1)]).order.tolist() == [2, 1, 3, 0]
    assert graph(duration=[1] * 4, edges=[(3, 0, 1), (2, 1, 1)]).position.tolist() == [3, 1, 0, 2]  # of ops 0 to 3


def test_arrays_cannot_be_written():
    duration = np.array([1.0, 1.0, 1.0])
    op_graph = graph(duration=duration)
    with pytest.raises(ValueError, match="read-only"):
        op_graph.duration_us[0] = 5
    duration[0] = 5
    assert op_graph.duration_us[0] == 1


def test_keys_tell_structure_from_cost():
    one, slower = graph(), graph(duration=[1, 1, 2])
    assert one.key == slower.key
    assert one.content_key != slower.content_key
    assert one == graph()
    assert one != slower
    assert graph(names=["a", "b", "c"]).key != one.key


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bl.Cluster.uniform(0), bl.InvalidInput, "number of devices is 0"),
        (lambda: bl.Cluster(()), bl.InvalidInput, "devices is empty"),
        (lambda: bl.Cluster.uniform(2, memory_bytes=-1), bl.InvalidInput, "memory_bytes of device 'gpu:0' is -1"),
        (lambda: bl.Cluster.uniform(2, memory_bytes="8 bananas"), bl.InvalidInput, "write for example 8GB"),
        (lambda: bl.Cluster.uniform(2, speed=0), bl.InvalidInput, "speed of device 'gpu:0' is 0"),
        (lambda: bl.Cluster.uniform(2, comm="sequentail"), bl.UnknownNameError, "did you mean 'sequential'"),
        (lambda: bl.Link(-1.0, 0.0), bl.InvalidInput, "link latency_us is -1.0"),
        (lambda: bl.Link(0.0, float("inf")), bl.InvalidInput, "link us_per_byte is inf"),
        (lambda: bl.Link.from_bandwidth(0.0), bl.InvalidInput, "link bandwidth is 0.0"),
        (
            lambda: bl.Cluster.uniform(2).replace(link=[[bl.Link(1, 1)] * 3] * 2),
            bl.InvalidInput,
            r"link matrix has rows of \[3, 3\]; 2 devices need 2 x 2",
        ),
        (lambda: bl.Cluster.uniform(2).replace(link=[[1, 2], [3, 4]]), bl.InvalidInput, "each entry must be a Link"),
        (
            lambda: bl.Cluster((bl.Device("a", "gpu", 1), bl.Device("a", "gpu", 1))),
            bl.DuplicateNameError,
            "device name 'a' appears more than once",
        ),
        (lambda: bl.Device("", "gpu", 1), bl.InvalidInput, "device name is ''"),
        (lambda: bl.Cluster.uniform(2).with_memory([1]), bl.InvalidInput, "1 entries for 2 devices"),
    ],
)
def test_bad_clusters_are_rejected(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_link_per_ordered_pair():
    links = [[bl.Link(0, 0), bl.Link(1, 0.5)], [bl.Link(2, 0.25), bl.Link(0, 0)]]
    cluster = bl.Cluster(tuple(bl.Device(f"gpu:{i}", "gpu", 10) for i in range(2)), links, "parallel")
    assert cluster.latency_us.tolist() == [[0, 1], [2, 0]]
    assert cluster.us_per_byte.tolist() == [[0, 0.5], [0.25, 0]]
    assert cluster.link_between(1, 0).cost_us(8) == 2 + 0.25 * 8


def test_memory_as_people_write_it():
    assert bl.Cluster.uniform(1, memory_bytes="2400MB").memory_bytes.tolist() == [2_400_000_000]
    assert bl.Cluster.uniform(1, memory_bytes="8GiB").memory_bytes.tolist() == [8 << 30]


def test_an_op_that_no_device_may_run():
    op_graph = graph(allowed=[0, -1, -1], allowed_sets=(("tpu",),))
    with pytest.raises(bl.InfeasiblePlacement, match="op 'op0' may run only on tpu; the cluster has gpu:0, gpu:1"):
        bl.place(op_graph, bl.Cluster.uniform(2), "m-etf")


@pytest.mark.parametrize(
    ("lists", "kind", "reason"),
    [
        (
            (("gpu",), ("d:1",)),
            "cpu",
            "'a' may run on no device: op 'op0' may run only on gpu, op 'op1' may run only on d:1",
        ),
        (
            (("d:1",), ()),
            "host",
            "'a' may run on no device: op 'op0' may run only on d:1, ops without a list run on no host",
        ),
        (((), ("tpu",)), "cpu", "op 'op1' may run only on tpu"),
    ],
)
def test_bug_a_refusal_named_no_list_if_those_of_a_colocation_group_have_no_device_in_common(lists, kind, reason):
    """It said that an op may run only on "that its colocation group allows", or on a kind that the cluster has."""
    op_graph = graph(
        colocation=[0, 0, 0],
        colocation_names=("a",),
        allowed=[*(k if names else -1 for k, names in enumerate(lists)), -1],
        allowed_sets=tuple(names or ("unused",) for names in lists),
    )
    cluster = bl.Cluster((bl.Device("d:0", "gpu", 99), bl.Device("d:1", kind, 99)), bl.Link(1.0, 0.0), "parallel")
    with pytest.raises(bl.InfeasiblePlacement) as refusal:
        bl.place(op_graph, cluster, "auto")
    assert str(refusal.value).removeprefix("colocation group ") == f"{reason}; the cluster has d:0, d:1"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": [0, -1]}, r"device\[1\] is -1"),
        ({"device": [0.5]}, r"device\[0\] is 0\.5; it must be a whole number"),
        ({"device": [[0]]}, "must be a list of device indices"),
        ({"device": [0, 1], "order": [1]}, "order has shape"),
        ({"device": [0, 1], "priority": [1, np.nan]}, "priority has shape"),
        ({"device": [0], "order": [1], "priority": [1]}, "give one of them"),
    ],
)
def test_bad_placements_are_rejected(fields, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.Placement(**fields)


def test_a_placement_of_groups_is_a_placement_of_ops():
    fine = graph(
        duration=[1] * 4, edges=[(0, 1, 1), (1, 2, 1), (2, 3, 1)], colocation=[0, 0, 1, 1], colocation_names=("a", "b")
    )
    coarse = bl.optimize(fine, passes=("fusion",))
    assert coarse.n == 2
    placement = bl.Placement(
        device=[1, 0], order=[0, 1], graph_key=coarse.key, group_of=coarse.group_of, source_key=coarse.source_key
    )
    assert placement.on(coarse) is placement
    assert placement.on(fine).device.tolist() == [1, 1, 0, 0]
    with pytest.raises(bl.InvalidInput, match="made for another graph"):
        placement.on(graph())


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"names": ["a", "b", "d"]}, "its op 2 is 'd' instead of 'c'"),
        ({"edges": [(0, 1, 1), (0, 2, 1)]}, "its op 'c' reads other ops"),
        ({"edges": [(0, 1, 1), (0, 1, 2), (1, 2, 1)]}, "its tensors differ: 3 instead of 2"),
    ],
)
def test_bug_the_error_did_not_say_what_differs_between_graphs_of_one_size(changes, difference):
    columns = {"duration": [1] * 3, "edges": [(0, 1, 1), (1, 2, 1)], "names": ["a", "b", "c"], **changes}
    original = graph(duration=[1] * 3, edges=[(0, 1, 1), (1, 2, 1)], names=["a", "b", "c"])
    coarse = bl.Placement(device=[0], graph_key="of groups", group_of=[0] * 3, source_key=original.key)
    for placement in (bl.Placement(device=[0] * 3, graph_key=original.key), coarse):
        with pytest.raises(bl.InvalidInput, match=f"this graph has 3 ops, and {difference}$"):
            placement.on(graph(**columns))
    del original
    gc.collect()
    with pytest.raises(bl.InvalidInput, match=r"this graph has 3 ops, and its names or tensors differ$"):
        coarse.on(graph(**columns))


def test_members_of_groups_may_have_an_order_of_their_own():
    fine = graph(
        duration=[1] * 4, edges=[(0, 1, 1), (1, 2, 1), (2, 3, 1)], colocation=[0, 0, 1, 1], colocation_names=("a", "b")
    )
    coarse = bl.optimize(fine, passes=("fusion",))
    keys = {"graph_key": coarse.key, "group_of": coarse.group_of, "source_key": coarse.source_key}
    placement = bl.Placement(device=[1, 0], priority=[2, 1], member_order=[3, 2, 1, 0], **keys)
    on_ops = placement.on(fine)
    assert on_ops.order.tolist() == [3, 2, 1, 0] and on_ops.priority is None and on_ops.member_order is None
    assert placement.on(coarse).rank.tolist() == [-2, -1]
    twice = bl.unroll(fine, micro_batches=2)
    assert placement.on(twice).order.tolist() == [[3, 2, 1, 0][op] for op in twice.copy_of]
    assert placement != placement.replace(member_order=None)
    for wrong, message in (([1.0], "one number per op of group_of"), ([0, 1, 2, float("nan")], "member_order")):
        with pytest.raises(bl.InvalidInput, match=message):
            bl.Placement(device=[1, 0], member_order=wrong, **keys)
    with pytest.raises(bl.InvalidInput, match="group_of"):
        bl.Placement(device=[1, 0], member_order=[0, 1])


def test_timeline_as_a_table():
    fine, cluster = graph(), bl.Cluster.uniform(2, link=bl.Link(3.0, 0.0))
    timeline = bl.simulate(fine, cluster, bl.Placement(device=[0, 1, 1]))
    table = timeline.to_pandas()
    assert table["kind"].tolist() == ["op", "transfer", "op", "op"]
    assert table["duration_us"].tolist() == [1, 3, 1, 1]
    assert table["target"].tolist() == ["gpu:0", "gpu:1", "gpu:1", "gpu:1"]
    assert timeline.busy_us.tolist() == [1, 2]
    assert timeline.idle_us.tolist() == [6 - 1, 6 - 2]
    assert timeline.moved_bytes == 4


def test_what_cannot_be_added_up_is_refused():
    """Four ops of 1e308 us: their sum is infinite, and list schedulers waited for it for ever."""
    with pytest.raises(CostError, match="duration_us adds up to inf us"):
        OpGraph.from_edges([1e308] * 4, [(0, 1, 4), (1, 2, 4)])
    with pytest.raises(CostError, match=r"duration_by_kind\['cpu'\] adds up to 2e\+307 us"):
        OpGraph.from_edges([1, 1], duration_by_kind={"cpu": [1e307, 1e307]})
    with pytest.raises(CostError, match="add up to"):
        OpGraph.from_edges([1, 1], [(0, 1, 2**60)], persistent_bytes=[2**60, 0], temp_bytes=[0, 2**60])
    assert OpGraph.from_edges([1, 1], [(0, 1, 2**60)], persistent_bytes=[2**59, 0]).n == 2


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster.uniform(2, speed=1e-150), "the ops take"),
        (Cluster.uniform(2, link=Link(1e150, 0.0)), "transfers"),
        (Cluster.uniform(2, link=Link(0.0, 1e150)), "transfers"),
        (Cluster.uniform(2, link=Link(0.0, 0.0, overhead_us=5e149)), "transfers"),
    ],
)
def test_devices_and_links_count_in_the_sum(cluster, message):
    graph = OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 4), (1, 2, 4)])
    with pytest.raises(CostError, match=message):
        durations(graph, cluster)


def test_records_travel_to_other_processes():
    graph = bl.OpGraph.from_edges([1, 2], [(0, 1, 8)]).replace(duration_by_kind={"cpu": np.array([5.0, 6.0])})
    placement = bl.Placement(device=[0, 1], params={"seed": 1}, info={"history": ((0.0, 1, 2.0),)}, order=[0, 1])
    assert pickle.loads(pickle.dumps(graph)).key == graph.key  # noqa: S301
    copy = pickle.loads(pickle.dumps(placement))  # noqa: S301
    assert copy.device.tolist() == [0, 1] and copy.params == placement.params and copy.info == placement.info
    with pytest.raises(TypeError):
        copy.params["seed"] = 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("end_us", [1.0], "end_us has 1 entries; op has 2"),
        ("device", [0, 2], r"device\[1\] is 2; it must be one of the 2 devices, counted from 0"),
        ("op", [0, 5], r"op\[1\] is 5; it must be one of the 2 ops"),
        ("memory_bytes", [8], "memory_bytes has 1 entries; device_names has 2"),
        ("peak_bytes", [], "peak_bytes has 0 entries; device_names has 2"),
        ("tensor_bytes", [], "tensor_bytes has 0 entries; tensor_producer has 1"),
        ("info", {"micro_batch": [0, 0.0]}, r"info\['micro_batch'\] holds floats; it must hold whole numbers"),
        ("info", {"micro_batch": [0, 10**18]}, r"micro_batch\[1\] is 10{18}; it must be one of the 2 micro-batches"),
        ("info", {"micro_batch": [0]}, r"info\['micro_batch'\] has 1 entries; op_names has 2"),
        ("info", {"on_communication_lane": [True]}, r"info\['on_communication_lane'\] has 1 entries; op_names has 2"),
        ("info", {"phase": [4, -4]}, r"phase\[1\] is -4; it must be one of the 5 phases"),
        ("info", {"phase": [1, 1, 1]}, r"info\['phase'\] has 3 entries; op_names has 2"),
        ("info", {"turn": ["first", "second"]}, r"info\['turn'\] must hold whole numbers"),
        ("info", {"runtime_peak_bytes": [8]}, r"info\['runtime_peak_bytes'\] has 1 entries; device_names has 2"),
        ("info", {"stage_device": [0, 2]}, r"info\['stage_device'\]\[1\] is 2; it must be one of the 2 devices"),
        ("info", {"line_device": [-1]}, r"info\['line_device'\]\[0\] is -1; it must be one of the 2 devices"),
        (
            "memory",
            MemoryLog([0], [0.0], [0], [8], [46]),
            r"op of the memory log\[0\] is 46; it must be one of the 2 ops",
        ),
        ("violations", (bl.Violation("memory", "full", 7),), "a violation is of device 7 and op -1"),
    ],
)
def test_columns_of_a_timeline_fit_each_other(field, value, message):
    timeline = bl.simulate(bl.OpGraph.from_edges([1, 2], [(0, 1, 8)]), bl.Cluster.uniform(2), bl.Placement([0, 1]))
    with pytest.raises(bl.InvalidInput, match=message):
        dataclasses.replace(timeline, **{field: value})


def test_columns_of_transfers_and_memory_fit_each_other():
    with pytest.raises(bl.InvalidInput, match="end_us has 0 entries; tensor has 1"):
        bl.Transfers([0], [0], [1], [0.0], [0.0], [])
    with pytest.raises(bl.InvalidInput, match=r"category\[0\] is 9"):
        MemoryLog([0], [0.0], [9], [8], [0])


def test_bug_the_text_of_a_graph_had_its_work_in_microseconds_always():
    assert repr(bl.OpGraph.from_edges([30_000.0, 6_343.8], name="g")).endswith("36.34 ms of work>")  # 36,343.8 us
