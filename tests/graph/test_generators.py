"""Generators: shape, seeds, validation; and the training graph that `with_backward` builds."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.generators.recurrent import _Net

G = bl.generators


def test_a_chain_has_an_edge_between_neighbours():
    graph = G.chain(4, duration_us=2.0, size_bytes=8)
    assert graph.duration_us.tolist() == [2.0] * 4
    assert list(zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)) == [(0, 1), (1, 2), (2, 3)]
    assert [G.chain(n).edge_count for n in (0, 1, 2)] == [0, 0, 1]


def test_a_fork_join_sends_one_tensor_to_all_branches():
    graph = G.fork_join(2, 2, duration_us=1, size_bytes=8)
    edges = set(zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True))
    assert edges == {(0, 1), (1, 2), (2, 5), (0, 3), (3, 4), (4, 5)}
    assert graph.tensor_count == 5  # the source sends one tensor to both branches


@pytest.mark.parametrize("n", [0, 1, 2, 7, 300])
def test_a_layered_dag_feeds_all_but_its_first_layer(n):
    graph = G.layered_dag(n, seed=3)
    assert graph.n == n
    assert np.all(graph.edge_source < graph.consumers)
    if n >= 300:
        fed = np.diff(graph.predecessors[0]) > 0
        assert 0 < (~fed).sum() < 2 * 18  # only the first layer reads nothing: at most 2 * 17 - 1 ops
        assert 1.5 < graph.edge_count / fed.sum() < 2.1


def test_a_random_dag_keeps_to_its_window():
    graph = G.random_dag(400, degree=3.0, window=10, second_output=0.4, colocation_groups=5, seed=4)
    assert np.all(graph.edge_source < graph.consumers)
    assert np.max(graph.consumers - graph.edge_source) <= 10
    outputs = np.diff(graph.output_ptr)
    assert set(outputs.tolist()) == {0, 1, 2}
    assert 0 < (graph.colocation >= 0).sum() < 200
    assert G.random_dag(0).n == 0
    assert G.random_dag(1).edge_count == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: G.chain(20, seed=seed),
        lambda seed: G.fork_join(5, 3, seed=seed),
        lambda seed: G.layered_dag(50, seed=seed),
        lambda seed: G.random_dag(50, seed=seed),
        lambda seed: G.unrolled_rnn(3, 2, seed=seed),
        lambda seed: G.gnmt(3, 2, seed=seed),
    ],
)
def test_same_seed_same_graph(make):
    assert make(5) == make(5)
    assert make(5) != make(6)


def test_costs_stay_in_their_range():
    graph = G.layered_dag(500, duration_us=(2, 8), size_bytes=(10, 20), temp_bytes=(0, 5), persistent_bytes=7)
    assert graph.duration_us.min() >= 2
    assert graph.duration_us.max() <= 8
    assert graph.tensor_bytes.min() >= 9  # bytes are cut to whole numbers
    assert graph.tensor_bytes.max() <= 20
    assert set(graph.persistent_bytes.tolist()) == {7}
    assert graph.temp_bytes.max() <= 5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: G.chain(-1), "n is -1"),
        (lambda: G.chain(2.5), "n is 2.5"),
        (lambda: G.chain(True), "n is True"),
        (lambda: G.chain(3, duration_us=-1), "duration_us"),
        (lambda: G.chain(3, duration_us=(5, 2)), "low, high"),
        (lambda: G.chain(3, size_bytes=float("nan")), "size_bytes"),
        (lambda: G.chain(3, seed=-1), "seed"),
        (lambda: G.fork_join(0), "width"),
        (lambda: G.layered_dag(5, degree=0.5), "degree"),
        (lambda: G.layered_dag(5, skip=2), "skip"),
        (lambda: G.layered_dag(5, width=0), "width"),
        (lambda: G.random_dag(5, second_output=-0.1), "second_output"),
        (lambda: G.random_dag(5, colocation_groups=-1), "colocation_groups"),
        (lambda: G.unrolled_rnn(0), "steps"),
        (lambda: G.unrolled_rnn(3, layers=0), "layers"),
        (lambda: G.unrolled_rnn(ops=0), "ops"),
        (lambda: G.gnmt(3, hidden=0), "hidden"),
        (lambda: G.gnmt(3, jitter=-1), "jitter"),
        (lambda: G.gnmt(3, seed="a"), "seed"),
        (lambda: G.with_backward(G.unrolled_rnn(2, 1)), "forward has the backward op"),
        (lambda: G.with_backward(G.chain(3), ratio=-1), "ratio"),
        (lambda: G.with_backward(G.chain(3), slots=0.5), "slots"),
    ],
)
def test_bad_parameters_are_rejected(call, words):
    with pytest.raises(bl.InvalidInput, match=words):
        call()


@pytest.mark.parametrize("make", [G.unrolled_rnn, G.gnmt])
@pytest.mark.parametrize("training", [True, False])
def test_ops_chooses_the_fewest_steps(make, training):
    graph = make(ops=2000, layers=2, training=training)
    steps = int(graph.name.removesuffix("-training").split("x")[1])
    assert graph.n >= 2000
    assert make(steps - 1, layers=2, training=training).n < 2000


def test_recurrent_graphs_are_numbered_topologically_and_sized_by_their_parameters():
    graph = G.gnmt(4, 3, batch=2, hidden=8, vocabulary=10)
    assert np.all(graph.edge_source < graph.consumers)
    kernel = graph.index["encoder/layer0/kernel"]
    # [input, state] x 4 gates in float32, and one more copy that the optimizer keeps
    assert graph.persistent_bytes[kernel] == 2 * 4 * (8 + 8) * 4 * 8
    split = graph.index["decoder/layer1/split/0"]
    assert [int(graph.tensor_bytes[t]) for t in graph.outputs(split)] == [4 * 2 * 8] * 4
    hidden = graph.index["encoder/layer0/hidden/1"]
    assert (
        graph.index["encoder/layer0/concat/2"]
        in graph.successors[1][graph.successors[0][hidden] : graph.successors[0][hidden + 1]]
    )


def test_backward_of_a_hand_made_layer():
    """w (variable) and x (input) -> mul -> act -> loss; x needs no gradient."""
    forward = bl.OpGraph.from_edges(
        [0.0, 0.0, 10.0, 2.0, 1.0],
        [(0, 2, 100), (1, 2, 40), (2, 3, 20), (3, 4, 20)],
        names=["w", "x", "mul", "act", "loss"],
        persistent_bytes=[100, 0, 0, 0, 0],
        duration_by_kind={"cpu": [0, 0, 30.0, 4.0, 2.0]},
    )
    graph = G.with_backward(forward, ratio=2.0, slots=2)
    assert graph.names[5:] == ("grad/loss", "grad/act", "grad/mul", "update/w")
    edges = {(graph.names[u], graph.names[v]) for u, v in zip(graph.edge_source, graph.consumers, strict=True)}
    assert edges - {("w", "mul"), ("x", "mul"), ("mul", "act"), ("act", "loss")} == {
        ("grad/loss", "grad/act"),
        ("grad/act", "grad/mul"),
        ("grad/mul", "update/w"),
        ("act", "grad/act"),  # one input: its own output is the activation
        ("x", "grad/mul"),  # two inputs: the other one
    }
    assert graph.duration_us[5:8].tolist() == [2.0, 4.0, 20.0]
    assert graph.duration_by_kind["cpu"][5:8].tolist() == [4.0, 8.0, 60.0]
    assert [graph.names[i] if i >= 0 else None for i in graph.forward_of[5:]] == ["loss", "act", "mul", None]
    assert graph.persistent_bytes[0] == 300
    assert graph.colocation[graph.index["w"]] == graph.colocation[graph.index["update/w"]] >= 0
    assert graph.colocation_names == ("variable/w",)


def test_gradients_of_a_tensor_with_two_readers_are_added():
    forward = bl.OpGraph.from_edges(
        [0, 1, 1, 1], [(0, 1, 8), (0, 2, 8), (1, 3, 4), (2, 3, 4)], persistent_bytes=[8, 0, 0, 0]
    )
    graph = G.with_backward(forward)
    total = graph.index["sum/op0:0"]
    assert {graph.names[u] for u, v in zip(graph.edge_source, graph.consumers, strict=True) if v == total} == {
        "grad/op1",
        "grad/op2",
    }
    assert graph.names[graph.consumers[-1]] == "update/op0"
    assert graph.forward_of[total] == -1


def test_the_collector_counts_ops():
    net = _Net()
    assert net.ops(["a", "b"], "X", 0.0, 4).tolist() == [0, 1]
    assert net.ops(["c"], "X", 0.0, 4).tolist() == [2]


def test_a_graph_with_backward_ops_gets_no_others():
    trained = bl.generators.with_backward(bl.generators.chain(2))
    with pytest.raises(
        bl.InvalidInput, match=r"forward has the backward op 'grad/op1'; give a graph of forward ops only"
    ):
        bl.generators.with_backward(trained)
    coarse = bl.optimize(bl.generators.chain(2), passes=["coplacement", "fusion"])
    with pytest.raises(bl.InvalidInput, match=r"forward is the coarse graph '.*'; give the graph of single ops"):
        bl.generators.with_backward(coarse)
