"""Placers that may recompute or offload: what they return fits, runs by the rules, and is no slower than without."""

import numpy as np
import pytest
from fewer import slow

import baechi_lab as bl

LINK = bl.Link(100.0, 0.0)
SEARCH = {"time_limit": None, "evaluations": 400}


def chain(n):
    """n outputs of 1 kB, 100 us an op; the backward pass reads them all, so 1 kB times n + 1 are held at once."""
    return bl.generators.with_backward(bl.generators.chain(n, size_bytes=(1000, 1000), duration_us=(100, 100)))


def step_of(graph, cluster, placement):
    placed_graph = placement.graph or graph
    timeline = bl.simulate(placed_graph, cluster, placement)
    assert bl.check(placed_graph, cluster, placement, timeline) == ()
    return timeline.makespan_us


@pytest.mark.slow
@pytest.mark.parametrize(("placer", "params"), [("search", SEARCH), ("auto", {})])
def test_what_fits_only_by_recomputing_or_offloading(placer, params):
    graph, cluster = chain(16), bl.Cluster.uniform(2, memory_bytes=6000, link=LINK).with_host("1MB", link=LINK)
    with pytest.raises(bl.InfeasiblePlacement):  # 16 kB on 2 devices of 6 kB
        bl.place(graph, cluster, placer, **params)
    repeated = bl.place(graph, cluster, placer, give_up=("recompute",), **params)
    either = bl.place(graph, cluster, placer, give_up=("recompute", "offload"), **params)
    assert repeated.placer == placer and repeated.params["give_up"] == ("recompute",)
    assert step_of(graph, cluster, either) <= step_of(graph, cluster, repeated)
    (keyword,) = repeated.gave_up.values()
    assert bl.recompute(graph, **keyword) == repeated.graph


@pytest.mark.slow
@pytest.mark.parametrize("memory", slow([9000, 12_000], 9000))
def test_never_slower_than_without(memory):
    """Memory binds, and is enough for a placement: with half of the simulations search finds as much by itself here."""
    graph, cluster = chain(12), bl.Cluster.uniform(2, memory_bytes=memory, link=LINK)
    plain = bl.place(graph, cluster, "search", time_limit=None, evaluations=200)
    free = bl.place(graph, cluster, "search", give_up=("recompute",), **SEARCH)
    assert step_of(graph, cluster, free) <= step_of(graph, cluster, plain)


def test_where_memory_does_not_bind_nothing_is_given_up():
    graph, cluster = chain(4), bl.Cluster.uniform(2, memory_bytes="1MB", link=LINK)
    free = bl.place(graph, cluster, "search", give_up=("recompute",), **SEARCH)
    assert free.gave_up == {} and free.graph is free.info["graph"] is graph
    assert free == bl.place(graph, cluster, "search", **SEARCH)


@pytest.mark.slow
def test_both_where_neither_is_enough():
    """Masks of 3 kB that may not be made again, a host that holds one of them (as in the tests of `fit`)."""
    graph = chain(12)
    masks = np.isin(np.arange(graph.n), (2, 7))
    graph = graph.replace(
        tensor_bytes=np.where(masks[graph.tensor_producer], 3000, graph.tensor_bytes),
        op_types=["Dropout" if mask else "op" for mask in masks],
    )
    cluster = bl.Cluster.uniform(1, memory_bytes=9000, link=LINK).with_host(3500, link=bl.Link(50.0, 0.0))
    placement = bl.place(graph, cluster, "auto", give_up=("recompute", "offload"))
    assert set(placement.gave_up) == {"recompute", "offload"} and step_of(graph, cluster, placement) > 0


def test_bad_input_is_rejected():
    graph, cluster = chain(4), bl.Cluster.uniform(1, memory_bytes=100)
    for give_up in ("recompute", ("fly",), np.array([])):
        with pytest.raises(bl.InvalidInput, match="it must name 'recompute', 'offload' or both"):
            bl.place(graph, cluster, "search", give_up=give_up)
    for placers in (np.array([]), "m-etf", np.array(["m-etf", "m-topo"])):
        with pytest.raises(bl.InvalidInput, match=r"placers is .*; it must be a list of names of placers, or None"):
            bl.place(graph, cluster, "auto", placers=placers)
    with pytest.raises(bl.InvalidInput, match="objective is 'throughput'; it must be"):
        bl.place(graph, cluster, "auto", give_up=("recompute",), objective="throughput")
    with pytest.raises(bl.InvalidInput, match="no device of kind 'host'"):
        bl.place(graph, cluster, "auto", give_up=("offload",))
    with pytest.raises(bl.InvalidInput, match="is coarse; give the graph that it was made from"):
        bl.place(bl.optimize(graph), cluster, "auto", give_up=("recompute",))
    with pytest.raises(bl.InfeasiblePlacement, match="nor was a graph found that fits and gives up recompute"):
        bl.place(graph, cluster, "auto", give_up=("recompute",))
