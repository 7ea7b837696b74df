"""`optimize` and the registry: wiring, "auto", bad input, and properties in every order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph.generators import chain, gnmt, random_dag, unrolled_rnn
from baechi_lab.graph.groups import components
from baechi_lab.memory.peak import single_device_peak
from baechi_lab.passes import make_pass
from baechi_lab.passes.coplacement import CoPlacement
from baechi_lab.passes.fusion import Fusion
from baechi_lab.passes.optimize import fits_everywhere

NAMES = ("colocation", "coplacement", "fusion", "forward-only")


def test_every_pass_is_listed_with_a_sentence():
    assert set(NAMES) <= set(bl.list_passes())
    assert all(line.endswith(".") for line in bl.list_passes().values())


def test_parameters_are_code():
    coplacement = make_pass("coplacement", chains=False)
    assert coplacement == CoPlacement(chains=False)
    assert eval(repr(coplacement), {"CoPlacement": CoPlacement}) == coplacement  # noqa: S307
    assert coplacement.get_params() == {
        "chains": False,
        "backward": True,
        "constants": True,
        "cells": r"[^/]+(?=/t\d+/)",
        "operators": r"([^/]+_)?(batch_normalization|bn)(_\d+)*",
        "readers": "forward",
        "largest": None,
    }
    assert make_pass(coplacement) is coplacement


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda g: bl.optimize(g, passes=["fusoin"]), bl.UnknownNameError, "did you mean 'fusion'"),
        (lambda g: bl.optimize(g, passes="fusion"), bl.InvalidInput, "list of passes"),
        (lambda g: bl.optimize(g, passes=None), bl.InvalidInput, "passes is None"),
        (lambda g: bl.optimize(g, forward_only="maybe"), bl.InvalidInput, "'maybe'"),
        (lambda g: bl.optimize(g, forward_only=1), bl.InvalidInput, "forward_only is 1"),
        (lambda g: bl.optimize(g, cluster=4), bl.InvalidInput, "cluster"),
        (lambda _: bl.optimize("graph"), bl.InvalidInput, "OpGraph"),
        (lambda _: make_pass("coplacement", chain=True), bl.UnknownNameError, "did you mean 'chains'"),
        (lambda _: make_pass(Fusion(), x=1), bl.InvalidInput, "beside"),
    ],
)
def test_bad_input_is_rejected(call, error, words):
    with pytest.raises(error, match=words):
        call(chain(3))


def test_peak_by_hand(slow_peak):
    """0 -> 1 -> 2 with 10 and 20 bytes, temporaries 0, 5, 100, persistent 1: 1 + max(10, 35, 120)."""
    graph = bl.OpGraph.from_edges([1] * 3, [(0, 1, 10), (1, 2, 20)], temp_bytes=[0, 5, 100], persistent_bytes=[1, 0, 0])
    assert single_device_peak(graph) == 121 == slow_peak(graph, graph.order)
    assert single_device_peak(chain(0)) == 0


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_peak_equals_the_slow_model_and_the_simulator(n, seed, slow_peak):
    graph = random_dag(n, second_output=0.4, temp_bytes=(0, 1e6), persistent_bytes=(0, 1e5), duration_us=5.0, seed=seed)
    peak = single_device_peak(graph)
    assert peak == slow_peak(graph, graph.order)
    placement = bl.Placement(device=np.zeros(n, dtype=int), order=np.argsort(graph.order).astype(float))
    assert bl.simulate(graph, bl.Cluster.uniform(1, memory_bytes="1TB"), placement).peak_bytes[0] == peak


def test_auto_needs_a_cluster_whose_every_device_holds_the_model():
    graph = unrolled_rnn(4, 2)
    peak = single_device_peak(graph)
    enough, short = bl.Cluster.uniform(2, memory_bytes=peak), bl.Cluster.uniform(2, memory_bytes=peak - 1)
    assert fits_everywhere(graph, enough)
    assert not fits_everywhere(graph, short)
    assert not fits_everywhere(graph, enough.with_memory([peak, peak - 1]))
    on, off = bl.optimize(graph, forward_only=True), bl.optimize(graph, forward_only=False)
    assert on.n < off.n
    assert bl.optimize(graph, enough) == on
    assert bl.optimize(graph, short) == off
    assert bl.optimize(graph) == off


def test_forward_only_comes_before_the_first_fusion():
    graph = unrolled_rnn(4, 2)
    by_hand = graph
    for name in ("colocation", "coplacement", "forward-only", "fusion"):
        by_hand = make_pass(name).apply(by_hand)
    assert bl.optimize(graph, forward_only=True) == by_hand
    assert bl.optimize(graph, passes=(), forward_only=True) == make_pass("forward-only").apply(graph)
    assert bl.optimize(graph, passes=(), forward_only=False) is graph


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 25),
    seed=st.integers(0, 10**6),
    order=st.permutations(NAMES),
    twice=st.sampled_from(NAMES),
    pairs=st.integers(0, 8),
)
def test_any_order_gives_a_valid_coarse_graph(n, seed, order, twice, pairs, check_coarse):
    rng = np.random.default_rng(seed)
    forward_of = np.full(n, -1)
    for _ in range(pairs if n > 1 else 0):
        a, b = sorted(rng.choice(n, 2, replace=False))
        forward_of[b] = a
    graph = random_dag(n, degree=1.5, second_output=0.3, colocation_groups=3, temp_bytes=(0, 1e6), seed=seed)
    graph = graph.replace(forward_of=forward_of)
    before = graph.content_key
    coarse = bl.optimize(graph, passes=(*order, twice), forward_only=False)
    check_coarse(graph, coarse)
    assert graph.content_key == before == graph.replace().content_key
    assert bl.optimize(graph, passes=(*order, twice), forward_only=False) == coarse
    # Hard constraints survive: ops that shared a group share a coarse op or a group of coarse ops.
    member = np.arange(n) if coarse.group_of is None else coarse.group_of
    for k in range(len(graph.colocation_names)):
        groups = member[graph.colocation == k]
        assert len(set(groups.tolist())) <= 1 or len({int(coarse.colocation[g]) for g in groups} - {-1}) == 1


def test_orders_of_the_three_passes_on_a_training_graph(check_coarse):
    graph = unrolled_rnn(3, 2)
    for order in itertools.permutations(NAMES):
        check_coarse(graph, bl.optimize(graph, passes=order, forward_only=False))


def test_coarse_placements_simulate_on_the_full_graph_without_violation():
    graph = gnmt(4, 2)
    cluster = bl.Cluster.uniform(3, memory_bytes="16GB")
    for forward_only in (False, True):
        placement = bl.place(bl.optimize(graph, forward_only=forward_only), cluster, "m-etf")
        timeline = bl.simulate(graph, cluster, placement)
        assert timeline.feasible
        assert not bl.check(graph, cluster, placement, timeline)


def test_gnmt_shrinks_by_an_order_of_magnitude_with_forward_only():
    graph = gnmt(20, 4)
    assert bl.optimize(graph, forward_only=True).n * 6 < graph.n
    every = ["colocation", CoPlacement(readers="all"), "fusion"]
    assert bl.optimize(graph, passes=every, forward_only=False).n * 2 < graph.n


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 40), pairs=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60))
def test_components_equal_networkx(n, pairs):
    import networkx as nx

    edges = [(a % n, b % n) for a, b in pairs]
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(n))
    expected = [0] * n
    for component in nx.connected_components(graph):
        for node in component:
            expected[node] = min(component)
    a, b = (np.array([p[k] for p in edges], dtype=np.int64) for k in (0, 1))
    assert components(n, a, b).tolist() == expected


MIXED = (
    ("gpu",),
    ("gpu:0",),
    ("cpu",),
    ("gpu", "cpu"),
    ("cpu", "tpu"),
    ("gpu:0", "cpu:0"),
    ("tpu:0", "gpu"),
    ("cpu:0",),
)


def test_groups_that_the_passes_make_never_refuse_a_graph():
    """Lists of gpu, gpu:0 and cpu: joining the first two hid that the third cannot follow."""
    graph = bl.OpGraph.from_edges(
        [1, 1, 1], [(1, 2, 100), (2, 0, 16)], allowed=[0, 1, 2], allowed_sets=(("gpu",), ("gpu:0",), ("cpu",))
    )
    cluster = bl.Cluster((bl.Device("gpu:0", "gpu", 10**9), bl.Device("cpu:0", "cpu", 10**9)))
    assert bl.place(bl.optimize(graph, cluster), cluster, "m-etf").on(graph).device.tolist() == [0, 0, 1]
    assert bl.place(graph, cluster, "auto").device.tolist() == [0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("forward_only", [True, False])
def test_what_a_cluster_can_run_it_can_run_optimized(forward_only):
    rng, possible = np.random.default_rng(7), 0
    for _ in range(120):
        n = int(rng.integers(2, 8))
        edges = [(i, j, int(rng.integers(1, 3))) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.4]
        colocation = np.where(rng.random(n) < 0.3, rng.integers(0, 2, n), -1)
        forward = [int(rng.integers(0, i)) if i > n // 2 and rng.random() < 0.7 else -1 for i in range(n)]
        try:
            graph = bl.OpGraph.from_edges(
                rng.integers(1, 5, n),
                edges,
                allowed=rng.integers(-1, len(MIXED), n),
                allowed_sets=MIXED,
                colocation=colocation,
                colocation_names=("a", "b"),
                forward_of=forward,
            )
        except bl.BaechiLabError:
            continue
        names = rng.choice(["gpu:0", "gpu:1", "cpu:0", "tpu:0"], 3, replace=False)
        cluster = bl.Cluster(tuple(bl.Device(x, x[:3], 10**6) for x in names))
        try:
            bl.graph.allowed_devices(graph, cluster)
        except bl.BaechiLabError:
            continue
        possible += 1
        for known_cluster in (None, cluster):
            coarse = bl.optimize(graph, known_cluster, forward_only=forward_only)
            placement = bl.place(coarse, cluster, "m-etf").on(graph)
            assert not bl.simulate(graph, cluster, placement).violations
    assert possible > 12
