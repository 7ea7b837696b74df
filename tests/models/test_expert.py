"""Expert placements: by scope on hand-made graphs, and on traced models."""

from functools import cache

import pytest
from fewer import slow

import baechi_lab as bl
from baechi_lab.models.scopes import assign_by_scope, layer_number, layered_rule, scope_parts

GIB = 1 << 30


def graph_of(names, edges=(), name="rnnlm", **columns):
    return bl.OpGraph.from_edges([1.0] * len(names), edges, names=names, name=name, **columns)


def test_scope_of_forward_backward_and_update():
    assert scope_parts("decoder/layer1/t0/MatMul") == ("decoder", "layer1", "t0", "MatMul")
    assert scope_parts("gradient_tape/decoder/layer1/t0/MatMul/MatMul_1")[:2] == ("decoder", "layer1")
    assert scope_parts("gradients/decoder/layer1/t0/MatMul_grad/MatMul")[:2] == ("decoder", "layer1")
    assert scope_parts("optimizer/decoder/layer1/kernel/ResourceApplyAdam")[:2] == ("decoder", "layer1")
    assert scope_parts("optimizer") == ("optimizer",)
    assert layer_number(scope_parts("attention/layers/t0")) is None


@pytest.mark.parametrize(
    ("layers", "devices", "expected"),
    [
        (4, 4, [0, 1, 2, 3]),
        (4, 2, [0, 0, 1, 1]),
        (4, 3, [0, 0, 1, 2]),  # layer * 3 // 4
        (2, 5, [0, 1]),  # three devices stay empty
        (3, 1, [0, 0, 0]),
    ],
)
def test_layers_are_spread_in_order(layers, devices, expected):
    rule = layered_rule(layers, devices, ("embedding",), ("projection",))
    assert [rule(("decoder", f"layer{k}", "t0")) for k in range(layers)] == expected
    assert rule(("embedding", "table")) == 0
    assert rule(("projection", "t7")) == expected[-1]
    assert rule(("AddN_3",)) is None


def test_ops_without_scope_follow_their_readers_then_their_sources():
    # words -> embedding -> layer0 -> layer1 -> projection -> result; AddN reads layer0 and feeds layer1.
    names = ["words", "embedding/lookup", "layer0/t0/MatMul", "AddN", "layer1/t0/MatMul", "projection/t0/MatMul", "out"]
    graph = graph_of(names, [(0, 1, 8), (1, 2, 8), (2, 3, 8), (3, 4, 8), (4, 5, 8), (5, 6, 8)])
    assert bl.models.expert("rnnlm", graph, bl.Cluster.uniform(2)).tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_backward_op_without_scope_follows_its_forward_op():
    graph = graph_of(
        ["layer0/t0/MatMul", "layer1/t0/MatMul", "unnamed"], [(0, 1, 8), (1, 2, 8)], forward_of=[-1, -1, 0]
    )
    assert bl.models.expert("rnnlm", graph, bl.Cluster.uniform(2)).tolist() == [0, 1, 0]


def test_group_goes_where_most_of_it_belongs():
    graph = graph_of(["layer0/a", "layer1/b", "layer1/c", "x"], colocation=[0, 0, 0, 0], colocation_names=("shared",))
    assert bl.models.expert("rnnlm", graph, bl.Cluster.uniform(2)).tolist() == [1, 1, 1, 1]


def test_group_that_no_rule_knows_stays_together():
    graph = graph_of(
        ["layer0/a", "layer1/b", "x", "y"],
        [(2, 0, 8), (3, 1, 8)],  # x is read in layer 0, y in layer 1
        colocation=[-1, -1, 0, 0],
        colocation_names=("group",),
    )
    assert bl.models.expert("rnnlm", graph, bl.Cluster.uniform(2)).tolist() == [0, 1, 0, 0]


def test_op_moves_to_the_first_device_that_it_may_run_on():
    cluster = bl.Cluster([bl.Device(f"gpu:{k}", "gpu", GIB) for k in range(2)] + [bl.Device("cpu:0", "cpu", GIB)])
    graph = graph_of(["layer0/a", "layer1/b"], allowed=[0, -1], allowed_sets=(("cpu",),))
    assert bl.models.expert("rnnlm", graph, cluster).tolist() == [2, 1]


def test_empty_graph_and_bad_device_count():
    graph = graph_of([])
    assert bl.models.expert("mlp", graph, bl.Cluster.uniform(2)).tolist() == []
    for devices in (0, -1, 1.5, True):
        with pytest.raises(bl.InvalidInput, match=f"devices is {devices}"):
            assign_by_scope(graph, devices, lambda scopes: 0)


@pytest.mark.parametrize("name", ["gnmt", "gnmt length 50", "gnmt-batch64", "gnmt_50"])
def test_model_is_what_the_graph_name_begins_with(name):
    assert bl.models.model_of(graph_of(["x"], name=name)) == "gnmt"


def test_model_of_nothing_known():
    with pytest.raises(bl.UnknownNameError, match="unknown benchmark model of graph 'gnmtx'"):
        bl.models.model_of(graph_of(["x"], name="gnmtx"))
    with pytest.raises(bl.UnknownNameError, match="unknown model 'lstm'"):
        bl.place(graph_of(["x"]), bl.Cluster.uniform(2), "expert", model="lstm")
    with pytest.raises(bl.InvalidInput, match="attention is 'middle'"):
        bl.place(graph_of(["x"]), bl.Cluster.uniform(2), "expert", attention="middle")


def test_expert_has_nothing_to_offer_when_memory_is_short():
    graph = graph_of(["layer0/a", "layer1/b"], persistent_bytes=[10, 30])
    assert bl.place(graph, bl.Cluster.uniform(2, memory_bytes=30), "expert").device.tolist() == [0, 1]
    with pytest.raises(bl.InfeasiblePlacement, match=r"needs 30 B on device \S+, which has 29 B") as caught:
        bl.place(graph, bl.Cluster.uniform(2, memory_bytes=29), "expert")
    assert caught.value.needed_bytes == 30 and caught.value.available_bytes == (29, 29)


# -- on traced models --------------------------------------------------------------------------------------

SMALL = {"units": 8, "vocabulary": 20, "sequence_length": 3, "batch_size": 4}
TRACED = {
    "mlp": {},
    "gnmt": {**SMALL, "layers": 4},
    "nmt": {**SMALL, "layers": 4},
    "rnnlm": {**SMALL, "layers": 4},
    "transformer": {**SMALL, "layers": 4, "heads": 2, "inner": 16},
}

LONG_TO_TRACE = ("nmt", "transformer")


@cache
def traced(name):
    pytest.importorskip("tensorflow")
    return bl.profile(bl.models.build(name, **TRACED[name]), mode="estimated")


@pytest.mark.parametrize("devices", [1, 3, 4])
@pytest.mark.parametrize("name", slow(sorted(TRACED), *LONG_TO_TRACE))
def test_expert_is_a_valid_placement_of_every_op(name, devices):
    graph, cluster = traced(name), bl.Cluster.uniform(devices)
    placement = bl.place(graph, cluster, "expert")
    assert placement.n == graph.n and placement.placer == "expert"
    used = 1 if name == "mlp" else devices
    assert sorted(set(placement.device.tolist())) == list(range(used))
    for group in range(len(graph.colocation_names)):
        assert len(set(placement.device[graph.colocation == group].tolist())) == 1
    assert bl.check(graph, cluster, placement, bl.simulate(graph, cluster, placement)) == ()


@pytest.mark.parametrize("name", slow(["gnmt", "nmt", "rnnlm", "transformer"], *LONG_TO_TRACE))
def test_every_scoped_op_is_with_its_layer(name):
    graph = traced(name)
    device = bl.models.expert(None, graph, bl.Cluster.uniform(4))
    visited = set()
    for op, label in enumerate(graph.names):
        scopes = scope_parts(label)
        number = layer_number(scopes)
        place = {"embedding": 0, "projection": 3, "attention": 3}.get(scopes[0], number)
        visited.add(scopes[0])
        if place is not None:
            assert device[op] == place, label
    assert {"embedding", "projection"} <= visited


@pytest.mark.parametrize("name", slow(["gnmt", "nmt"], *LONG_TO_TRACE))
def test_attention_goes_with_the_first_layer_on_request(name):
    graph = traced(name)
    device = bl.place(graph, bl.Cluster.uniform(4), "expert", attention="first").device
    attention = [op for op, label in enumerate(graph.names) if scope_parts(label)[0] == "attention"]
    assert len(attention) > 50 and set(device[attention].tolist()) == {0}
