"""Forward-only placement: what belongs where, what it costs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph.generators import chain, gnmt, layered_dag, unrolled_rnn, with_backward
from baechi_lab.passes.forward_only import ForwardOnly, backward_ops


def training() -> bl.OpGraph:
    """w -> f -> loss, grad_loss -> grad_f -> update (with w), rate -> update."""
    return bl.OpGraph.from_edges(
        [0.0, 10.0, 2.0, 3.0, 20.0, 1.0, 0.5],
        [
            (0, 1, 100),
            (0, 4, 100),  # the weights are read forward and backward
            (1, 2, 40),
            (1, 4, 40),  # f's output too
            (2, 3, 4),
            (3, 4, 40),
            (4, 5, 100),
            (6, 5, 4),
        ],
        names=["w", "f", "loss", "grad_loss", "grad_f", "update", "rate"],
        persistent_bytes=[100, 0, 0, 0, 0, 0, 1],
        colocation=[0, -1, -1, -1, -1, 0, -1],
        colocation_names=("w",),
        forward_of=[-1, -1, -1, 2, 1, -1, -1],
    )


def test_backward_ops_are_those_with_a_forward_op_and_their_descendants():
    assert np.flatnonzero(backward_ops(training())).tolist() == [3, 4, 5]


def test_a_forward_only_graph_by_hand():
    graph = training()
    coarse = ForwardOnly().apply(graph)
    # grad_loss goes with loss, grad_f with f, update with w (colocated), rate with update, its only reader.
    assert coarse.names == ("w", "f", "loss")
    assert coarse.group_of.tolist() == [0, 1, 2, 2, 1, 0, 0]
    assert coarse.duration_us.tolist() == [0 + 1 + 0.5, 10 + 20, 2 + 3]
    # Persistent: w 100 + rate 1, and w's tensor of 100, which grad_f reads; f's 40, which grad_f reads; loss' 4.
    assert coarse.persistent_bytes.tolist() == [100 + 1 + 100, 40, 4]
    # Backward, grad_f sends 100 to update (f to w), and grad_loss 40 to grad_f (loss to f).
    assert coarse.tensor_bytes.tolist() == [100, 100, 40, 40]
    assert [coarse.tensor_consumers(t).tolist() for t in range(4)] == [[1], [1], [2], [2]]
    assert coarse.tensor_names[1] == "backward/f"


def test_backward_traffic_within_a_colocation_group_is_no_traffic():
    coarse = ForwardOnly().apply(training().replace(colocation=[0, 0, 0, -1, -1, 0, -1]))
    assert coarse.tensor_bytes.tolist() == [100, 40]


def test_backward_traffic_of_one_pair_is_summed_and_a_tensor_counts_once():
    # 0 -> 1 forward; 2 and 3 belong to 1, 4 and 5 to 0; 2 sends 7 to both, 3 sends 11 to 5.
    graph = bl.OpGraph.from_edges(
        [1.0] * 6, [(0, 1, 4), (1, 2, 4), (1, 3, 4), (2, 4, 7), (2, 5, 7), (3, 5, 11)], forward_of=[-1, -1, 1, 1, 0, 0]
    )
    coarse = ForwardOnly().apply(graph)
    assert coarse.n == 2
    assert coarse.tensor_bytes.tolist() == [4, 7 + 11]
    assert coarse.source_key == graph.key
    assert not np.any(coarse.forward_of >= 0)


def test_gradients_are_temporary():
    """grad_f holds its 100 bytes while it runs, grad_loss its 40, rate its 4 until the group has ended."""
    coarse = ForwardOnly().apply(training())
    assert coarse.temp_bytes.tolist() == [4, 100, 40]


def test_a_forward_graph_is_left_alone():
    graph = chain(4)
    assert ForwardOnly().apply(graph) is graph
    coarse = ForwardOnly().apply(training())
    assert ForwardOnly().apply(coarse) is coarse


def test_without_group_or_forward_op_the_largest_input_decides():
    # 3 (backward of 2) -> 4 <- 1 : op 4 reads 8 bytes from 3 and 64 from forward op 1.
    edges = [(0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 4, 8), (1, 4, 64)]
    graph = bl.OpGraph.from_edges([1.0] * 5, edges, forward_of=[-1, -1, -1, 2, -1])
    assert ForwardOnly().apply(graph).group_of.tolist() == [0, 1, 2, 2, 1]
    heavier = bl.OpGraph.from_edges(
        [1.0] * 5, [*edges[:3], (3, 4, 65), (1, 4, 64)], forward_of=[-1, -1, -1, 2, -1]
    )  # now it follows 3, and so op 2
    assert ForwardOnly().apply(heavier).group_of.tolist() == [0, 1, 2, 2, 2]


def test_a_group_of_backward_ops_moves_as_one():
    """Following producers one by one would tie forward ops 0 and 1 together through the group of 4 and 5."""
    edges = [(0, 1, 4), (1, 2, 8), (2, 3, 8), (2, 4, 16), (3, 5, 8)]
    graph = bl.OpGraph.from_edges(
        [1.0] * 6,
        edges,
        forward_of=[-1, -1, 1, 0, -1, -1],
        colocation=[-1, -1, -1, -1, 0, 0],
        colocation_names=("sum",),
    )
    coarse = ForwardOnly().apply(graph)
    assert coarse.group_of.tolist() == [0, 1, 1, 0, 1, 1]  # 4 reads 16 bytes from 2, 5 reads 8 from 3
    assert coarse.colocation.tolist() == [-1, 0]


def test_conflicting_devices_keep_an_op_apart():
    graph = training().replace(
        allowed=[-1, 0, -1, -1, 1, -1, -1], allowed_sets=(("gpu",), ("cpu",))
    )  # f on gpus only, grad_f on cpus only
    coarse = ForwardOnly().apply(graph)
    assert coarse.names == ("w", "f", "loss", "grad_f")
    grad = coarse.index["grad_f"]
    # It reads what forward ops produce, is charged for grad_loss (loss), and nobody reads it.
    assert [coarse.names[p] for p in coarse.predecessors[1][coarse.predecessors[0][grad] :]] == ["w", "f", "loss"]
    assert len(coarse.outputs(grad)) == 0


def test_loops_of_forward_of_stay_by_themselves():
    graph = chain(3, duration_us=1.0).replace(forward_of=[-1, 2, 1])
    coarse = ForwardOnly().apply(graph)
    assert coarse is graph


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_on_random_training_graphs(n, seed, check_coarse):
    graph = with_backward(layered_dag(n, degree=1.5, seed=seed, temp_bytes=(0, 100), persistent_bytes=(0, 1e6)))
    coarse = ForwardOnly().apply(graph)
    check_coarse(graph, coarse)
    assert coarse.n <= n
    assert coarse.persistent_bytes.sum() >= graph.persistent_bytes.sum()
    member = np.arange(graph.n) if coarse.group_of is None else coarse.group_of
    paired = np.flatnonzero(graph.forward_of >= 0)
    assert np.array_equal(member[paired], member[graph.forward_of[paired]])


def test_recurrent_graphs_keep_their_forward_ops():
    for graph in (unrolled_rnn(4, 2), gnmt(3, 2)):
        forward = graph.n - int(backward_ops(graph).sum())
        coarse = ForwardOnly().apply(graph)
        assert coarse.n == forward
        grouped = [graph.colocation[m] for m in coarse.members]
        assert all(len(set(g[g >= 0].tolist())) <= 1 for g in grouped)  # no two variables were tied together
