"""Co-placement: an op with its only reader, backward with forward, never against the allowed lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph.generators import chain, random_dag, unrolled_rnn
from baechi_lab.passes import make_pass
from baechi_lab.passes.coplacement import CoPlacement


def groups(graph: bl.OpGraph) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(graph.colocation == k).tolist()) for k in range(len(graph.colocation_names))}


def test_the_ops_of_a_tensordot_are_one_group():
    """Jeon et al. 2020, figure 3: op_in and perm feed transpose only, transpose and shape feed reshape only: one device."""
    graph = bl.OpGraph.from_edges(
        [10, 1, 1, 1, 1],
        [(0, 2, 100), (1, 2, 4), (2, 4, 100), (3, 4, 4)],
        names=["op_in", "perm", "transpose", "shape", "reshape"],
    )
    grouped = CoPlacement().apply(graph)
    assert groups(grouped) == {frozenset(range(5))}
    assert grouped.colocation_names == ("with/op_in",)


def test_an_op_with_two_readers_stays_free_unless_it_is_a_constant_of_one_group():
    diamond = bl.OpGraph.from_edges([1] * 4, [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 3, 4)])
    assert groups(CoPlacement(constants=False).apply(diamond)) == {frozenset({1, 2, 3})}
    # 0 reads nothing, and all of its readers are in one group.
    assert groups(CoPlacement().apply(diamond)) == {frozenset({0, 1, 2, 3})}
    # With an op before it, 0 (here 1) is no constant; that op has one reader, which it joins.
    longer = bl.OpGraph.from_edges([1] * 5, [(0, 1, 4), (1, 2, 4), (1, 3, 4), (2, 4, 4), (3, 4, 4)])
    assert groups(CoPlacement().apply(longer)) == {frozenset({0, 1}), frozenset({2, 3, 4})}


def test_readers_in_two_groups_keep_a_constant_out():
    # 0 is read by 1 and 2, which belong to chains ending in 3 and 4 that nobody reads.
    graph = bl.OpGraph.from_edges([1] * 5, [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 4, 4)])
    assert groups(CoPlacement().apply(graph)) == {frozenset({1, 3}), frozenset({2, 4})}


def test_backward_joins_forward():
    # forward 0 -> 1, backward 2 (of 1) -> 3 (of 0); 0 and 1 have two readers each.
    edges = [(0, 1, 8), (1, 2, 8), (2, 3, 8), (0, 3, 8), (1, 3, 4)]
    graph = bl.OpGraph.from_edges([1] * 4, edges, forward_of=[-1, -1, 1, 0])
    assert groups(CoPlacement(chains=False).apply(graph)) == {frozenset({1, 2}), frozenset({0, 3})}
    alone = CoPlacement(backward=False, readers="all").apply(graph)
    assert groups(alone) == {frozenset({2, 3})}  # 1 reads 0, so (iii) does not apply
    # 0 has one forward reader, and backward ops follow no reader.
    assert groups(CoPlacement(backward=False).apply(graph)) == {frozenset({0, 1})}
    assert groups(CoPlacement().apply(graph)) == {frozenset({0, 1, 2, 3})}


def test_given_groups_are_part_of_the_closure_and_keep_their_name():
    graph = bl.OpGraph.from_edges(
        [1] * 4, [(0, 1, 4)], colocation=[-1, 0, 0, -1], colocation_names=("w",)
    )  # op 0 joins 1, which shares w with 2
    grouped = CoPlacement().apply(graph)
    assert grouped.colocation.tolist() == [0, 0, 0, -1]
    assert grouped.colocation_names == ("w",)


def test_conflicting_lists_are_never_joined():
    graph = chain(3).replace(allowed=[0, -1, 1], allowed_sets=(("cpu",), ("gpu",)))
    # 0 joins 1, which from then on may only run on the cpu, so 1 does not join 2.
    assert groups(CoPlacement().apply(graph)) == {frozenset({0, 1})}


def test_a_limit_on_work_keeps_groups_small():
    graph = chain(8, duration_us=1.0)
    grouped = CoPlacement(largest=0.25).apply(graph)  # at most 2 of 8 us
    work = np.bincount(grouped.colocation[grouped.colocation >= 0])
    assert work.max() == 2
    assert len(groups(CoPlacement().apply(graph))) == 1


@pytest.mark.parametrize("largest", [0, -1, 1.5, True, float("nan")])
def test_bad_limits_are_rejected(largest):
    with pytest.raises(bl.InvalidInput, match="largest"):
        make_pass("coplacement", largest=largest)


@settings(max_examples=80, deadline=None)
@given(n=st.integers(0, 30), seed=st.integers(0, 10**6), count=st.integers(0, 3))
def test_rules_hold_on_random_graphs(n, seed, count):
    graph = random_dag(n, degree=1.5, second_output=0.3, colocation_groups=count, seed=seed)
    grouped = CoPlacement().apply(graph)
    assert grouped.key == graph.key
    for op in range(n):
        readers = {int(x) for t in graph.outputs(op) for x in graph.tensor_consumers(t)}
        if len(readers) == 1:
            assert grouped.colocation[op] == grouped.colocation[readers.pop()] >= 0
    for given_group in groups(graph):
        assert len({int(grouped.colocation[i]) for i in given_group}) <= 1
    assert CoPlacement().apply(graph) == grouped


def test_every_pair_of_a_training_graph_shares_a_group():
    graph = unrolled_rnn(4, 2)
    grouped = CoPlacement().apply(graph)
    backward = np.flatnonzero(graph.forward_of >= 0)
    assert len(backward) > 50
    assert np.array_equal(grouped.colocation[backward], grouped.colocation[graph.forward_of[backward]])


def test_ops_of_one_unrolled_cell_join():
    graph = bl.OpGraph.from_edges(
        [1] * 5,
        [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 3, 4), (3, 4, 4)],
        names=["net/layer0/t1/concat", "net/layer0/t1/a", "net/layer0/t1/b/mul", "net/layer0/t2/concat", "loss"],
    )
    steps = CoPlacement(chains=False, constants=False, cells=r"t\d+").apply(graph)
    assert steps.colocation.tolist() == [0, 0, 0, -1, -1]
    layers = CoPlacement(chains=False, constants=False).apply(graph)  # net/layer0 is unrolled, the loss is not
    assert layers.colocation.tolist() == [0, 0, 0, 0, -1]
    assert CoPlacement(chains=False, constants=False, cells=None).apply(graph).colocation.tolist() == [-1] * 5


def test_a_batch_normalization_counts_as_one_reader():
    """The convolution (1) is read by three ops, which were one operator; its moving average (7, 8) joins, then relu (6)."""
    graph = bl.OpGraph.from_edges(
        [1] * 9,
        [
            (0, 1, 4),
            (1, 2, 4),
            (1, 3, 4),
            (1, 4, 4),
            (2, 5, 4),
            (3, 5, 4),
            (4, 5, 4),
            (5, 6, 4),
            (2, 8, 4),
            (7, 8, 4),
            (7, 3, 4),
        ],
        names=["x", "conv", *(f"net/batch_normalization_3_1/{k}" for k in "abcd"), "relu", "mean", "mean/assign"],
        colocation=[-1] * 7 + [0, 0],
        colocation_names=("mean",),
    )
    assert groups(CoPlacement(constants=False).apply(graph)) == {frozenset(range(9))}
    without_operators = CoPlacement(constants=False, operators=None).apply(graph)
    assert frozenset({0, 1}) in groups(without_operators)


def test_a_variable_joins_the_only_cell_that_reads_it():
    graph = bl.OpGraph.from_edges(
        [1] * 4,
        [(0, 1, 4), (0, 2, 4), (1, 2, 4), (2, 3, 4)],
        names=["kernel", "net/layer0/t0/mul", "net/layer0/t1/mul", "other"],
        colocation=[0, -1, -1, -1],
        colocation_names=("kernel",),
    )
    assert groups(CoPlacement(constants=False, cells=None).apply(graph)) == {frozenset({1, 2, 3}), frozenset({0})}
    assert frozenset({0, 1, 2, 3}) in groups(CoPlacement(constants=False).apply(graph))


def test_only_forward_readers_count_and_gradients_do_not_chain_models_together():
    # 0 -> 1 -> 2 with a second forward reader of 0 (3): backward 4 (of 2) -> 5 (of 1) -> 6 (of 0).
    graph = bl.OpGraph.from_edges(
        [1] * 7,
        [(0, 1, 4), (0, 3, 4), (1, 2, 4), (1, 3, 4), (2, 4, 4), (4, 5, 4), (5, 6, 4)],
        forward_of=[-1, -1, -1, -1, 2, 1, 0],
    )
    assert groups(CoPlacement(constants=False).apply(graph)) == {frozenset(k) for k in ({0, 6}, {1, 5}, {2, 4})}
    assert frozenset({0, 1, 2, 4, 5, 6}) in groups(CoPlacement(constants=False, readers="all").apply(graph))


@pytest.mark.parametrize("readers", ["backward", None, 1])
def test_readers_are_forward_or_all(readers):
    with pytest.raises(bl.InvalidInput, match="readers is"):
        make_pass("coplacement", readers=readers)


def test_backward_ops_join_their_forward_ops_cell_and_given_groups_stay_apart():
    graph = bl.OpGraph.from_edges(
        [1] * 4,
        [(0, 1, 4), (1, 2, 4), (2, 3, 4)],
        names=["t1/read", "t1/mul", "t2/mul", "gradient_tape/t1/mul/Mul"],
        forward_of=[-1, -1, -1, 1],
        colocation=[0, -1, -1, -1],
        colocation_names=("weight",),
    )
    joined = CoPlacement(chains=False, constants=False).apply(graph)
    assert joined.colocation[1] == joined.colocation[3] >= 0
    assert joined.colocation[0] != joined.colocation[1]


def test_cells_must_be_a_regular_expression():
    with pytest.raises(bl.InvalidInput, match="cells is '\\('; it must be a regular expression"):
        CoPlacement(cells="(").validate()
