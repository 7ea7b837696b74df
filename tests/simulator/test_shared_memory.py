"""Outputs that lie in the memory of inputs (`OpGraph.reuse`): examples by hand; event walk and intervals of the check agree."""

import dataclasses

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.graph import OpGraph
from baechi_lab.graph.opgraph import GROWS, OVERWRITES, OWN, VIEW
from baechi_lab.memory.peak import readiness_peak
from baechi_lab.simulator.buffer_reuse import apply_buffer_reuse

ONE, TWO = bl.Cluster.uniform(1), bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0), comm="parallel")


def peaks(graph, cluster=ONE, device=None):
    placement = bl.Placement(device=device or [0] * graph.n)
    timeline = bl.simulate(graph, cluster, placement, "fifo")
    assert not bl.check(graph, cluster, placement, timeline)
    for d in range(cluster.n):
        assert timeline.memory.levels(d)[1].sum(axis=1)[-1:].tolist() in (
            [],
            [persistent_bytes(graph, placement.device == d)],
        )
    return timeline.peak_bytes.tolist()


def persistent_bytes(graph, device):
    return int(graph.persistent_bytes[device].sum())


def test_an_op_writes_over_an_input_that_nobody_else_needs():
    chain = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)])
    assert peaks(chain) == [60]
    assert peaks(chain.replace(reuse=[OWN, OVERWRITES, OWN])) == [30]


def test_an_input_that_is_still_needed_is_not_written_over():
    fork = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (0, 2, 30), (1, 2, 30)], reuse=[OWN, OVERWRITES, OWN])
    assert peaks(fork) == [60]


def test_an_input_of_another_size_is_not_written_over():
    chain = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 40), (1, 2, 30)], reuse=[OWN, OVERWRITES, OWN])
    assert peaks(chain) == [70]


def test_a_view_keeps_its_base():
    # op 1 views the first output; op 2 makes 7 bytes; op 3 reads the view after op 2: 30 + 7 at once, never 60.
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1], [(0, 1, 30), (1, 3, 30), (1, 2, 30), (2, 3, 7)], reuse=[OWN, VIEW, OWN, OWN]
    )
    assert peaks(graph) == [37]
    assert peaks(graph.replace(reuse=None)) == [60]


def test_a_part_of_a_tensor_is_a_view_too():
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 10)], reuse=[OWN, VIEW, OWN])
    assert peaks(graph) == [30]


def test_the_read_of_a_variable_has_its_persistent_bytes():
    graph = bl.OpGraph.from_edges(
        [0, 1, 1], [(0, 1, 8), (1, 2, 50)], persistent_bytes=[50, 0, 0], reuse=[OWN, VIEW, OWN]
    )
    assert peaks(graph) == [50 + 8]


def test_a_tensor_that_is_being_sent_is_not_written_over():
    # op 1 starts at 1, when the transfer to device 1 is under way until 2.
    graph = bl.OpGraph.from_edges([1, 5, 1], [(0, 1, 30), (0, 2, 30)], reuse=[OWN, OVERWRITES, OWN])
    assert peaks(graph, TWO, [0, 0, 1]) == [30, 30]  # op 1 has no reader, but its output is there while it runs
    graph = bl.OpGraph.from_edges([1, 5, 1, 1], [(0, 1, 30), (0, 2, 30), (1, 3, 30)], reuse=[OWN, OVERWRITES, OWN, OWN])
    assert peaks(graph, TWO, [0, 0, 1, 0]) == [60, 30]


def test_a_received_copy_is_not_written_over():
    """Whoever brought it may still hold it: 30 received and 30 made."""
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[OWN, OVERWRITES, OWN])
    assert peaks(graph, TWO, [0, 1, 1]) == [30, 60]


@pytest.mark.parametrize(
    ("edges", "peak"), [([(0, 1, 40), (1, 2, 40)], 40), ([(0, 1, 40), (0, 2, 40), (1, 2, 40)], 80)]
)
def test_tensorflow_writes_over_a_received_copy(edges, peak):
    """1 and 2 are elsewhere: the result of 1 lies in the copy of 0, unless 2 reads that too. Also where it is sent back."""
    for last in (1, 0) if len(edges) == 2 else (1,):
        graph = OpGraph.from_edges([1, 1, 1], edges).replace(reuse=[OWN, OVERWRITES, OWN])
        line = bl.simulate(graph, TWO, bl.Placement(device=[0, 1, last]))
        assert line.peak_bytes[1] == 80 and apply_buffer_reuse(graph, TWO, line).peak_bytes[1] == 80
        assert apply_buffer_reuse(graph, TWO, line, over_copies_us=0.0).peak_bytes[1] == peak


@pytest.mark.parametrize(("after", "peak"), [(0.0, 40), (3.0, 40), (3.5, 80)])
def test_only_after_a_while(after, peak):
    """0's output is there at 1; on that device 1 begins at 4, after 2, and 3 reads what it makes."""
    edges = [(0, 1, 40), (2, 1, 0), (1, 3, 40)]
    graph = OpGraph.from_edges([1, 1, 4, 1], edges).replace(reuse=[OWN, OVERWRITES, OWN, OWN])
    line = bl.simulate(graph, bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0)), bl.Placement(device=[0, 1, 1, 1]))
    assert line.start_us[1] == 4.0
    assert apply_buffer_reuse(graph, TWO, line, over_copies_us=after).peak_bytes[1] == peak


def test_what_is_sent_lies_in_memory_to_send_from():
    """Op 1 writes over op 0's output, unless its own is sent and that one is not; where both are, it does again."""
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[OWN, OVERWRITES, OWN])
    assert peaks(graph, TWO, [0, 0, 0]) == [30, 0]
    assert peaks(graph, TWO, [0, 0, 1]) == [60, 30]
    both_rules = bl.OpGraph.from_edges(
        [1, 5, 1, 1, 1],
        [(0, 4, 30), (4, 1, 0), (0, 1, 30), (1, 2, 30), (4, 3, 0)],
        reuse=[OWN, OVERWRITES, OWN, OWN, OWN],
    )
    assert peaks(both_rules, TWO, [0, 0, 1, 1, 1]) == [30, 30]  # op 4 has read the first when the second comes


def test_an_op_that_grows_takes_its_persistent_bytes_when_it_starts():
    # 30 of op 0 while it runs; op 1 reads them and keeps 50 (80); op 2 keeps on: 50 + 40.
    graph = bl.OpGraph.from_edges(
        [1, 1, 1], [(0, 1, 30), (1, 2, 1)], persistent_bytes=[0, 50, 0], temp_bytes=[0, 0, 40]
    )
    assert peaks(graph) == [50 + 1 + 40]
    assert peaks(graph.replace(reuse=[OWN, GROWS, OWN])) == [50 + 1 + 40]
    with_temporary = graph.replace(temp_bytes=[60, 0, 0])  # 60 + 30 beside 50 that are there, or not yet
    assert peaks(with_temporary) == [50 + 60 + 30]
    assert peaks(with_temporary.replace(reuse=[OWN, GROWS, OWN])) == [60 + 30]


def test_an_op_of_no_time_holds_inputs_and_outputs_together():
    """At 1 us op 1 holds 30 + 40; then op 2 takes 5 beside the 40. A timeline that contradicts itself is told so."""
    graph, home = (
        bl.OpGraph.from_edges([1, 0, 1], [(0, 1, 30), (1, 2, 40)], temp_bytes=[0, 0, 5]),
        bl.Placement(device=[0, 0, 0]),
    )
    small = bl.Cluster.uniform(1, memory_bytes=69)
    timeline = bl.simulate(graph, small, home)
    assert timeline.peak_bytes.tolist() == [30 + 40] and timeline.turn.tolist() == [1, 2, 3]
    assert [(v.kind, v.time_us, v.op) for v in bl.check(graph, small, home, timeline)] == [("memory", 1.0, 1)]
    for wrong in ([1, 2, 2], [1, 3, 2], [1, 2, -3]):
        changed = dataclasses.replace(timeline, info={"turn": wrong})
        assert {v.kind for v in bl.check(graph, small, home, changed)} == {"order"}
    for malformed in ([[1], 2, 3], [1, 2]):
        with pytest.raises(bl.InvalidInput, match="turn"):
            dataclasses.replace(timeline, info={"turn": malformed})


def test_a_violation_names_the_op():
    chain = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[OWN, OVERWRITES, OWN])
    small = bl.Cluster.uniform(1, memory_bytes=20)
    placement = bl.Placement(device=[0, 0, 0])
    timeline = bl.simulate(chain, small, placement)
    assert [(v.kind, v.op) for v in timeline.violations] == [("memory", 0)]
    assert {v.kind for v in bl.check(chain, small, placement, timeline)} == {"memory"}


def random_case(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    edges = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.25]
    size = rng.choice([8, 16, 24], n)
    graph = bl.OpGraph.from_edges(
        rng.integers(1, 9, n) + rng.random(n),
        [(i, j, int(size[i])) for i, j in edges],
        temp_bytes=rng.integers(0, 9, n),
        persistent_bytes=rng.integers(0, 3, n) * 8,
        reuse=rng.integers(0, 4, n),
    )
    cluster = bl.Cluster.uniform(
        3, link=bl.Link(float(rng.random()), 0.1), comm=str(rng.choice(["parallel", "sequential", "duplex"]))
    )
    return graph, cluster, bl.Placement(device=rng.integers(0, 3, n))


@pytest.mark.parametrize("seed", fast(range(60), 12))
def test_both_ways_of_counting_agree(seed):
    """The check refuses a limit of one byte less than the simulated peak, and accepts the peak; odd ones have ops of no time."""
    graph, cluster, placement = random_case(seed)
    if seed % 2:
        stays = np.random.default_rng(seed).random(graph.n) < 0.6
        graph = graph.replace(duration_us=np.where(stays, 0.0, np.ceil(graph.duration_us)))
        cluster = cluster.replace(link=bl.Link(0.0, 0.125 * (seed % 4 == 1)))
        alone, plain = (
            bl.simulate(graph.replace(reuse=r), cluster, placement, "fifo") for r in ([OWN] * graph.n, None)
        )
        assert alone.peak_bytes.tolist() == plain.peak_bytes.tolist()
    timeline = bl.simulate(graph, cluster, placement, "fifo")
    for missing_bytes, expected in ((0, set()), (1, set(np.flatnonzero(timeline.peak_bytes > 0).tolist()))):
        limits = np.maximum(timeline.peak_bytes - missing_bytes, 0)
        tight = cluster.with_memory(limits.tolist())
        replayed = bl.simulate(graph, tight, placement, "fifo")
        violations = bl.check(graph, tight, placement, replayed)
        assert {v.device for v in violations if v.kind == "memory"} == expected
        assert {v.device for v in replayed.violations} == expected


@pytest.mark.parametrize("seed", fast(range(60), 12))
def test_one_device_in_the_order_of_readiness(seed):
    """What plans of recomputation go by is the simulated peak."""
    graph, _, _ = random_case(seed)
    assert [readiness_peak(graph)] == peaks(graph)


def test_it_survives_a_file(tmp_path):
    graph = bl.OpGraph.from_edges([1, 1], [(0, 1, 8)], reuse=[OWN, VIEW])
    bl.save_graph(graph, tmp_path / "g.json")
    assert bl.load_graph(tmp_path / "g.json") == graph
    assert bl.OpGraph.from_networkx(graph.to_networkx()) == graph


@pytest.mark.parametrize("bad", [[0, 4], [-1, 0], [0]])
def test_bad_columns_are_refused(bad):
    with pytest.raises(bl.InvalidInput, match="reuse"):
        bl.OpGraph.from_edges([1, 1], [(0, 1, 8)], reuse=bad)


def test_unrolled_steps_keep_what_is_known_of_memory():
    """Two micro-batches of a chain whose second op writes over the first's output; what adds gradients has bytes of its own."""
    types = ("Mul", "Relu", "ResourceApplyAdam")
    graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], op_types=types).replace(
        reuse=[OWN, OVERWRITES, OWN]
    )
    step = bl.unroll(graph, 2)
    assert [step.op_types[i] for i in np.flatnonzero(step.reuse == OVERWRITES)] == ["Relu", "Relu"]
    assert "Accumulate" in step.op_types


def test_a_wait_for_a_view_keeps_nothing():
    """Op 1 looks at op 0's 30 bytes and makes 10 in them; op 3 only waits for op 1, so the 30 go before it runs."""
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1],
        [(0, 1, 30), (1, 2, 10), (1, 3, 0), (2, 3, 5)],
        temp_bytes=[0, 0, 0, 20],
        reuse=[OWN, VIEW, OWN, OWN],
    )
    assert peaks(graph) == [35] and readiness_peak(graph) == 35


def test_a_busy_sender_holds_what_it_sends_until_it_has_nothing_left_to_compute():
    # gpu:0 computes from 0 to 8 without a pause. a's 30 bytes are sent by 2; late, they are there while c (4 + 40) runs.
    edges = [(0, 4, 30), (1, 2, 4), (2, 3, 40)]
    graph = bl.OpGraph.from_edges([1, 5, 1, 1, 1], edges).replace(reuse=[0] * 5)
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
    timeline = bl.simulate(graph, cluster, bl.Placement(device=[0, 0, 0, 0, 1]))
    assert timeline.peak_bytes.tolist() == [4 + 40, 30]
    assert timeline.runtime_peak_bytes.tolist() == [30 + 4 + 40, 30]
    assert timeline.peak_margin.tolist() == [74 / 44 - 1, 0.0]


def test_a_copy_counts_from_when_its_tensor_is_produced():
    # Two tensors wait for one queue: the second is received from 2 on, but may come as soon as it is produced, at 2.
    graph = bl.OpGraph.from_edges([1, 1, 9, 1], [(0, 2, 30), (1, 3, 20), (2, 3, 8)]).replace(reuse=[0] * 4)
    cluster = bl.Cluster.uniform(2, link=bl.Link(4.0, 0.0), comm="sequential")
    timeline = bl.simulate(graph, cluster, bl.Placement(device=[0, 0, 1, 1]))
    assert (timeline.peak_margin >= 0).all()
    assert timeline.runtime_peak_bytes[1] >= timeline.peak_bytes[1]


def test_one_device_has_no_margin():
    graph = bl.OpGraph.from_edges([1, 1], [(0, 1, 8)]).replace(reuse=[0, 0])
    assert bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0, 0])).peak_margin.tolist() == [0.0]
