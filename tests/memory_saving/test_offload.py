"""Offloading: bytes wait on the host; transfers out and back are in the timeline, and the device is free meanwhile."""

import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.memory_saving.offload import offloaded_placement, without_offloading

ONE = bl.Cluster.uniform(1, memory_bytes=10**6, link=bl.Link(1.0, 0.001), comm="duplex")
WITH_HOST = ONE.with_host(10**6)


def step(**columns):
    """a is read by b and, much later, by a_grad."""
    names = ["x", "a", "b", "c", "c_grad", "b_grad", "a_grad"]
    edges = [(0, 1, 8), (1, 2, 1000), (2, 3, 8), (3, 4, 8), (4, 5, 8), (5, 6, 8), (1, 6, 1000)]
    forward_of = [-1, -1, -1, -1, 3, 2, 1]
    columns = {"names": names, "forward_of": forward_of, **columns}
    return bl.OpGraph.from_edges([0, 1, 4, 10, 10, 10, 1], edges, **columns)


def simulated(graph, offloaded):
    placement = offloaded_placement(bl.Placement(device=[0] * graph.n), offloaded, WITH_HOST)
    timeline = bl.simulate(offloaded, WITH_HOST, placement)
    assert bl.check(offloaded, WITH_HOST, placement, timeline) == ()
    return timeline


def test_an_offloaded_step_by_hand():
    graph = step(temp_bytes=[0, 0, 0, 5000, 0, 0, 0])
    offloaded = bl.offload(graph, WITH_HOST)
    assert offloaded.names[graph.n :] == ("a/offloaded",)
    timeline = simulated(graph, offloaded)
    # a ends at 1; its copy goes out at 1 for 1 + 1000 / 1000 = 2 us. b runs until 5, and then the device has no bytes of a.
    # a_grad would begin at 35, two transfers before is 31: c_grad, ended at 25, is the last op that has ended by then.
    out, returning = (
        k for k in range(len(timeline.transfers)) if offloaded.tensor_bytes[timeline.transfers.tensor[k]] == 1000
    )
    transfers = timeline.transfers
    assert (transfers.start_us[out], transfers.end_us[out], transfers.target[out]) == (1, 3, 1)
    # The wait reaches the host 1 us after 25, and the copy is there 2 us later.
    assert (transfers.start_us[returning], transfers.end_us[returning], transfers.target[returning]) == (26, 28, 0)
    assert timeline.makespan_us == 36
    # While c runs: 5000, and outputs of b and c. Without: a's 1000 as well.
    assert timeline.peak_bytes[0] == 5016
    assert bl.simulate(graph, ONE, bl.Placement(device=[0] * graph.n)).peak_bytes[0] == 6016


def test_late_copies_make_the_reader_wait():
    graph = step()
    slow = bl.Cluster.uniform(1, link=bl.Link(1.0, 0.01), comm="duplex").with_host("1GB")
    offloaded = bl.offload(graph, slow, ["a"], lead=0.0)
    placement = offloaded_placement(bl.Placement(device=[0] * graph.n), offloaded, slow)
    # b_grad ends at 35; the wait takes 1 us and the copy 11.
    assert bl.simulate(offloaded, slow, placement).makespan_us == 35 + 1 + 11 + 1


def test_what_would_not_wait_long_enough_stays():
    graph = step()
    slow = bl.Cluster.uniform(1, link=bl.Link(1.0, 0.1)).with_host("1GB")
    assert bl.offload(graph, slow) is graph  # 30 us until it is read, 101 us per transfer
    assert bl.offload(graph, slow, ["a"]).n == graph.n + 1
    assert bl.offload(graph, WITH_HOST, share=0.0) is graph


def test_state_lies_on_the_host_between_steps():
    names = ["w", "slot", "x", "f", "f_grad", "update"]
    types = ["Variable", "Variable", "Data", "MatMul", "MatMulGrad", "ApplyAdam"]
    edges = [(0, 3, 8), (2, 3, 8), (3, 4, 8), (4, 5, 8), (0, 5, 8), (1, 5, 8)]
    graph = bl.OpGraph.from_edges(
        [0, 0, 0, 9, 9, 1],
        edges,
        names=names,
        op_types=types,
        forward_of=[-1, -1, -1, -1, 3, -1],
        persistent_bytes=[500, 1000, 0, 0, 0, 0],
    )
    # Nothing but the update needs memory; it has both, 2000.
    with pytest.warns(UserWarning, match="saves nothing here"):
        offloaded = bl.offload(graph, WITH_HOST, state=True)
    assert offloaded.names[graph.n :] == ("slot/state", "slot/stored")
    assert offloaded.persistent_bytes.tolist() == [500, 0, 0, 0, 0, 0, 1000, 0]
    timeline = simulated(graph, offloaded)
    big = offloaded.tensor_bytes[timeline.transfers.tensor] == 1000
    order = np.argsort(timeline.transfers.start_us[big])
    assert timeline.transfers.target[big][order].tolist() == [0, 1]  # there before the update, and back after it
    assert timeline.peak_bytes[1] >= 1000


def test_trained_networks_keep_every_rule():
    cluster = bl.Cluster.uniform(2).with_host("64GB")
    for seed in range(4):
        graph = bl.generators.with_backward(bl.generators.layered_dag(20, seed=seed))
        for share in (0.5, 1.0):
            offloaded = bl.offload(graph, cluster, share=share, state=True)
            placement = bl.place(offloaded, cluster, "m-etf")
            assert bl.check(offloaded, cluster, placement, bl.simulate(offloaded, cluster, placement)) == ()
            assert np.all((placement.device == 2) == (np.arange(offloaded.n) >= graph.n))


def test_nothing_else_runs_on_a_host():
    graph, cluster = step(), bl.Cluster.uniform(1, speed=0.1).with_host("1GB")
    for placer in ("single", "m-topo", "m-etf", "heft", "contiguous", "random"):
        assert set(bl.place(graph, cluster, placer).device.tolist()) == {0}
    placement = bl.Placement(device=[1] * graph.n)
    assert {v.kind for v in bl.simulate(graph, cluster, placement).violations} == {"allowed"}
    estimated = graph.replace(duration_by_kind={"a100": graph.duration_us})
    cluster = bl.Cluster.uniform(1, kind="a100").with_host("1GB")  # the host was refused: it is no a100
    offloaded = bl.offload(estimated, cluster)
    assert bl.simulate(offloaded, cluster, bl.place(offloaded, cluster, "single")).violations == ()


def test_bad_input_is_rejected():
    graph = step()
    with pytest.raises(bl.InvalidInput, match=r"has 0 devices of kind 'host'; add one with cluster\.with_host"):
        bl.offload(graph, ONE)
    with pytest.raises(bl.InvalidInput, match="has 2 devices of kind 'host'; name one"):
        bl.offload(graph, WITH_HOST.with_host("1GB", name="second"))
    with pytest.raises(bl.UnknownNameError, match="unknown device 'hots'; did you mean 'host'"):
        bl.offload(graph, WITH_HOST, host="hots")
    with pytest.raises(bl.InvalidInput, match="host is 'gpu:0', a device of kind 'gpu'"):
        bl.offload(graph, WITH_HOST, host="gpu:0")
    with pytest.raises(bl.UnknownOpError, match="ops names op 'nobody'"):
        bl.offload(graph, WITH_HOST, ["nobody"])
    with pytest.raises(bl.InvalidInput, match="ops is 'a'"):
        bl.offload(graph, WITH_HOST, "a")
    for share in (-0.1, 1.5, "half", True):
        with pytest.raises(bl.InvalidInput, match="share is"):
            bl.offload(graph, WITH_HOST, share=share)


def test_a_share_sends_at_least_one_output_and_counts_for_named_ops_too():
    """a (1000 bytes) waits from 5 until 35; b (500 bytes) from 15 until 25."""
    names, edges = ["x", "a", "b", "c", "c_grad", "b_grad", "a_grad"], [(0, 1, 8), (1, 2, 1000), (2, 3, 500), (3, 4, 8)]
    graph = bl.OpGraph.from_edges(
        [0, 1, 4, 10, 10, 10, 1],
        [*edges, (4, 5, 8), (5, 6, 8), (1, 6, 1000), (2, 5, 500)],
        names=names,
        forward_of=[-1, -1, -1, -1, 3, 2, 1],
    )
    for ops in (None, ["a", "b"]):
        for share, count in ((0.0, 0), (0.1, 1), (0.5, 1), (1.0, 2)):
            offloaded = bl.offload(graph, WITH_HOST, ops, share=share)
            assert offloaded.names[graph.n :] == ("a/offloaded", "b/offloaded")[:count]


def test_what_cannot_be_offloaded_is_refused_by_name():
    graph = step()
    for name, why in (("c_grad", "it is no forward op"), ("x", "the backward pass reads nothing of it")):
        with pytest.raises(bl.InvalidInput, match=f"op '{name}' in ops cannot be offloaded: {why}"):
            bl.offload(graph, WITH_HOST, [name])


def test_outputs_that_share_memory_do_so_beside_a_host():
    """b is a view of a, so both are 1000 bytes; the host holds what it was sent, once."""
    graph = step(reuse=[0, 0, 2, 0, 0, 0, 0])
    offloaded = bl.offload(graph, WITH_HOST, ["a"])
    assert offloaded.reuse.tolist() == [*graph.reuse.tolist(), 2]
    assert simulated(graph, offloaded).peak_bytes[1] == 1000


@pytest.mark.slow
@pytest.mark.parametrize("forward", [bl.generators.chain, bl.generators.layered_dag])
def test_bug_offloading_raised_the_peak_without_a_word(forward):
    """Copies that come back early, and ops that run in another order beside them: on one device the peak was higher."""
    cluster = bl.Cluster.uniform(1, link=bl.Link(0.5, 0.01), comm="parallel").with_host("1GB")
    warned = 0
    for seed in range(60):
        graph = bl.generators.with_backward(forward(6, size_bytes=(1, 1000), seed=seed))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            offloaded = bl.offload(graph, cluster)
        assert [str(w.message).endswith("; the graph is returned as it was") for w in caught] == [True] * len(caught)
        warned += len(caught)
        if caught:
            assert offloaded is graph
        elif offloaded is not graph:
            plain = bl.Placement(device=[0] * graph.n)
            placement = offloaded_placement(plain, offloaded, cluster)
            after, before = bl.simulate(offloaded, cluster, placement), bl.simulate(graph, cluster, plain)
            assert after.peak_bytes[0] <= before.peak_bytes[0]
    assert warned > 0


def test_bug_offloading_raised_the_peak_of_one_of_several_devices_without_a_word():
    """Each device of a placement: `offload` that is told the placement hands the graph back, else the placement warns."""
    cluster = bl.Cluster.uniform(3, link=bl.Link(0.5, 0.01)).with_host("1GB", link=bl.Link(0.5, 0.01))
    outcomes = set()
    for seed in range(40):
        graph = bl.generators.with_backward(bl.generators.layered_dag(5, size_bytes=(1, 1000), seed=seed))
        plain = bl.Placement(device=np.random.default_rng(seed).integers(0, 3, graph.n))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            aware = bl.offload(graph, cluster, placement=plain)
            warnings_of_offload = len(caught)
            offloaded = bl.offload(graph, cluster)
            placement = offloaded_placement(plain, offloaded, cluster) if offloaded is not graph else None
        if placement is None:
            continue
        before = bl.simulate(graph, cluster, plain).peak_bytes[:3]
        rises = bool((bl.simulate(offloaded, cluster, placement).peak_bytes[:3] > before).any())
        assert rises == warnings_of_offload == (aware is graph) == (len(caught) - warnings_of_offload)
        assert not rises or "raises the peak of device 'gpu:" in str(caught[-1].message)
        outcomes.add(rises)
    assert outcomes == {True, False}


def test_offloaded_outputs_come_back_as_the_graph_they_were_of():
    graph = step(reuse=[0, 0, 2, 0, 0, 0, 0])
    original = without_offloading(bl.offload(graph, WITH_HOST, ["a"]), graph.n)
    for column in ("consumers", "duration_us", "reuse", "forward_of"):
        np.testing.assert_array_equal(getattr(original, column), getattr(graph, column))
    assert original.names == graph.names
