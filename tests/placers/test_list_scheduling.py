"""ETF, m-ETF, SCT and m-SCT on graphs small enough to schedule by hand."""

import pytest

import baechi_lab as bl

BIG = 10**9


def cluster(devices=2, comm="parallel", latency=0.0, per_byte=1.0, memory=BIG):
    """Transfers cost one microsecond per byte unless said otherwise."""
    return bl.Cluster.uniform(devices, memory_bytes=memory, link=bl.Link(latency, per_byte), comm=comm)


def place_and_simulate(graph, clu, placer, **params):
    """Place, and hold the simulated timeline against the rules."""
    placement = bl.place(graph, clu, placer, **params)
    timeline = bl.simulate(graph, clu, placement)
    assert bl.check(graph, clu, placement, timeline) == ()
    return placement, timeline


@pytest.mark.parametrize("placer", ["etf", "m-etf", "sct", "m-sct"])
def test_independent_ops_spread(placer):
    # op0 on device 0 at 0, op1 on device 1 at 0, op2 on device 1 at 2 (device 0 is free at 3)
    placement, timeline = place_and_simulate(bl.OpGraph.from_edges([3, 2, 2]), cluster(), placer)
    assert placement.device.tolist() == [0, 1, 1]
    assert timeline.makespan_us == 2 + 2


@pytest.mark.parametrize("placer", ["etf", "m-etf", "sct", "m-sct"])
def test_dear_transfers_keep_a_fork_join_together(placer):
    g = bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 100), (0, 2, 101), (1, 3, 100), (2, 3, 100)])
    assert place_and_simulate(g, cluster(), placer)[1].makespan_us == 5 + 10 + 10 + 5


def test_etf_ships_a_branch_when_that_starts_earlier():
    # after op 0 (0..5): op 1 on device 0 at 5; op 2 on device 0 at 15 or on device 1 at 5 + 4: device 1.
    # op 3 needs both: on device 0 at 9 + 10 + 4 = 23, on device 1 at max(15 + 4, 19) = 19
    g = bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 3, 4)])
    placement, timeline = place_and_simulate(g, cluster(), "etf")
    assert placement.device.tolist() == [0, 0, 1, 1]
    assert timeline.makespan_us == 19 + 5


def test_equal_starts_go_to_the_lower_op_then_the_lower_device():
    placement, _ = place_and_simulate(bl.OpGraph.from_edges([1, 1, 1, 1]), cluster(3), "m-etf")
    assert placement.device.tolist() == [0, 1, 2, 0]
    assert placement.order.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("comm", "device", "makespan"), [("parallel", 2, 1 + 5 + 10), ("sequential", 0, 11 + 10)])
def test_waits_in_the_queue_enter_the_earliest_start(comm, device, makespan):
    # op 0 (0..1) feeds three ops of 10. Op 1 runs beside it at 1, op 2 on device 1 at 1 + 5. Op 3: on device 0 at 11; on
    # device 2 at 1 + 5 if its tensor need not wait, at 1 + 5 + 5 behind op 2's otherwise: a tie that device 0 wins
    g = bl.OpGraph.from_edges([1, 10, 10, 10], [(0, 1, 5), (0, 2, 5), (0, 3, 5)])
    placement, timeline = place_and_simulate(g, cluster(3, comm), "m-etf")
    assert placement.device.tolist() == [0, 0, 1, device]
    assert timeline.makespan_us == makespan


def test_a_cached_tensor_is_not_fetched_again():
    # op 1 stays; op 2 fetches the tensor to device 1 at 1 + 5; op 3 may follow there at 6 + 10 or start beside op 1 at 31
    g = bl.OpGraph.from_edges([1, 30, 10, 10], [(0, 1, 5), (0, 2, 5), (0, 3, 5)])
    placement, timeline = place_and_simulate(g, cluster(2, "sequential"), "m-etf")
    assert placement.device.tolist() == [0, 0, 1, 1]
    assert len(timeline.transfers) == 1


def test_without_memory_a_pair_is_dropped():
    # both ops would start at 0, but no device holds 6 + 6 bytes; a third op of 6 fits nowhere
    tight = cluster(memory=10)
    for placer in ("m-topo", "m-etf", "m-sct"):
        assert place_and_simulate(bl.OpGraph.from_edges([1, 1], persistent_bytes=[6, 6]), tight, placer)[
            0
        ].device.tolist() == [
            0,
            1,
        ]
        with pytest.raises(bl.InfeasiblePlacement) as caught:
            bl.place(bl.OpGraph.from_edges([1, 1, 1], persistent_bytes=[6, 6, 6]), tight, placer)
        assert caught.value.needed_bytes == 18
        assert caught.value.available_bytes == (10, 10)


def test_a_full_device_is_excluded_although_it_could_start_first():
    # a chain of unit ops with 3 bytes each: ETF stays on device 0, m-ETF must leave it after two of them
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 0), (1, 2, 0)], persistent_bytes=[3, 3, 3])
    tight = cluster(latency=1.0, memory=6)
    assert bl.place(g, tight, "etf").device.tolist() == [0, 0, 0]
    placement, timeline = place_and_simulate(g, tight, "m-etf")
    assert placement.device.tolist() == [0, 0, 1]
    assert timeline.makespan_us == 1 + 1 + 1 + 1


def test_placing_the_first_op_promises_the_groups_memory():
    # chain of 4 with groups a, b, a, b; ops 2 and 3 keep 10 bytes each: the groups need a device each
    g = bl.OpGraph.from_edges(
        [1, 1, 50, 50],
        [(0, 1, 0), (1, 2, 0), (2, 3, 0)],
        persistent_bytes=[0, 0, 10, 10],
        colocation=[0, 1, 0, 1],
        colocation_names=("a", "b"),
    )
    for placer in ("m-topo", "m-etf", "m-sct"):
        placement, timeline = place_and_simulate(g, cluster(latency=100.0, memory=15), placer)
        assert placement.device.tolist() == [0, 1, 0, 1]
        assert timeline.makespan_us == 1 + 100 + 1 + 100 + 50 + 100 + 50


@pytest.mark.parametrize(("reservation", "device"), [(False, 0), (True, 1)])
def test_reservation_keeps_room_for_the_rest_of_a_group(reservation, device):
    # group {0, 3} on device 0: op 3 needs 6 temporary bytes once op 1 (0..10 on device 1) is done. Op 2 needs 6 too:
    # at 1 on device 0 that is free meanwhile, but reserved for the group (6 + 6 > 10) it waits for device 1
    g = bl.OpGraph.from_edges(
        [1, 10, 1, 1], [(1, 3, 0)], temp_bytes=[6, 0, 6, 6], colocation=[0, -1, -1, 0], colocation_names=("a",)
    )
    placement, _ = place_and_simulate(g, cluster(memory=10), "m-etf", reservation=reservation)
    assert placement.device.tolist() == [0, 1, device, 0]


# i -> j (4), x -> j (3), i -> k (9); i = 0, x = 1, j = 2, k = 3
AWAKE = bl.OpGraph.from_edges([5, 3, 10, 2], [(0, 2, 4), (1, 2, 3), (0, 3, 9)])


def test_a_device_stays_awake_for_a_favourite_child():
    # i runs on device 0 until 5, x on device 1 until 3. j can start on device 0 at 3 + 3 = 6, on device 1 at 5 + 4 = 9.
    # ETF puts k on device 0 at 5..7, so that j runs 7..17. SCT keeps device 0 for j (6..16); k goes to device 1 at 14
    assert place_and_simulate(AWAKE, cluster(), "etf")[1].makespan_us == 7 + 10
    placement = bl.place(AWAKE, cluster(), "sct", threshold=0.2)
    assert placement.info["favourite_child"].tolist() == [2, -1, -1, -1]
    assert placement.device.tolist() == [0, 1, 0, 1]
    assert placement.info["planned_makespan_us"] == max(6 + 10, 14 + 2)


def test_an_awake_device_takes_urgent_ops():
    # as above, with y (30) on device 1 from 3 and z (2), which needs nothing and could start anywhere: z may use the
    # gap of device 0 at 5 although j is delayed to 7
    g = bl.OpGraph.from_edges([5, 3, 10, 30, 2], [(0, 2, 4), (1, 2, 3)])
    placement = bl.place(g, cluster(), "sct", threshold=0.2)
    assert placement.info["favourite_child"][0] == 2
    assert placement.device.tolist() == [0, 1, 0, 1, 0]
    assert placement.info["planned_makespan_us"] == 3 + 30
    assert placement.order.tolist() == [0, 1, 4, 2, 3]


def test_only_one_favourite_child_although_two_round_to_it():
    # 5 -> {10, 10} with transfers of 4: x = 0.5, 0.5, objective 5 + 2 + 10
    g = bl.OpGraph.from_edges([5, 10, 10], [(0, 1, 4), (0, 2, 4)])
    placement = bl.place(g, cluster(), "m-sct", threshold=0.5)
    assert placement.info["lp"]["objective_us"] == pytest.approx(17)
    assert placement.info["favourites"] == 1
    assert placement.info["conflicts"] == 1
    assert bl.place(g, cluster(), "m-sct", threshold=0.1).info["favourites"] == 0


def test_sct_runs_out_of_memory_where_m_sct_succeeds():
    # in the spirit of Jeon et al.'s Figure 1: 4 memory units per device, a chain of six unit ops that keep one unit each
    g = bl.OpGraph.from_edges([1] * 6, [(i, i + 1, 0) for i in range(5)], persistent_bytes=[1] * 6)
    four = cluster(latency=1.0, memory=4)
    out_of_memory = bl.simulate(g, four, bl.place(g, four, "sct"))
    assert [v.kind for v in out_of_memory.violations] == ["memory"]
    assert out_of_memory.makespan_us == 6
    assert place_and_simulate(g, four, "m-sct")[1].makespan_us == 6 + 1


@pytest.mark.parametrize("placer", ["m-topo", "m-etf", "m-sct", "etf", "sct", "single"])
@pytest.mark.parametrize(
    "graph",
    [
        bl.OpGraph.from_edges([]),
        bl.OpGraph.from_edges([7]),
        bl.OpGraph.from_edges([5, 0, 5], [(0, 1, 0), (1, 2, 0)]),
        bl.OpGraph.from_edges([0, 0, 0], [(0, 1, 0), (0, 2, 0)]),
        bl.OpGraph.from_edges([1, 2, 3]),
    ],
    ids=["empty", "one op", "zero duration inside", "all zero", "disconnected"],
)
@pytest.mark.parametrize("devices", [1, 3])
def test_degenerate_graphs_in_no_memory_at_all(placer, graph, devices):
    _, timeline = place_and_simulate(graph, cluster(devices, "sequential", memory=0), placer)
    assert timeline.feasible


@pytest.mark.parametrize("placer", ["m-topo", "m-etf", "m-sct", "single"])
def test_memory_exactly_full(placer):
    g = bl.OpGraph.from_edges([1, 1], [(0, 1, 10)], persistent_bytes=[3, 4])
    assert place_and_simulate(g, cluster(1, memory=3 + 4 + 10), placer)[1].feasible
    with pytest.raises(bl.InfeasiblePlacement):
        bl.place(g, cluster(1, memory=3 + 4 + 10 - 1), placer)


def test_fusion_example_of_baechi():
    # section 3.3: unit ops, Grad -> UpdateStep costs 5, Step and UpdateStep share a device: 1 + 5 + 1 before, 3 after
    g = bl.OpGraph.from_edges(
        [1, 1, 1],
        [(0, 2, 5), (1, 2, 0)],
        names=["Grad", "Step", "UpdateStep"],
        colocation=[-1, 0, 0],
        colocation_names=("step",),
    )
    assert place_and_simulate(g, cluster(), "m-etf")[1].makespan_us == 7
    fused = bl.optimize(g, passes=("fusion",))
    placement = bl.place(fused, cluster(), "m-etf")
    assert bl.simulate(fused, cluster(), placement).makespan_us == 3
    assert bl.simulate(g, cluster(), placement).makespan_us == 3


def test_names_and_parameters_are_checked():
    g = bl.OpGraph.from_edges([1])
    with pytest.raises(bl.UnknownNameError, match="did you mean 'm-sct'"):
        bl.place(g, cluster(), "m-stc")
    with pytest.raises(bl.UnknownNameError, match="did you mean 'threshold'"):
        bl.place(g, cluster(), "m-sct", treshold=0.2)
    with pytest.raises(bl.InvalidInput, match=r"threshold is 1.0; it must be in \[0, 1\)"):
        bl.place(g, cluster(), "m-sct", threshold=1.0)
    with pytest.raises(bl.UnknownNameError, match="unknown LP solver 'mosek'"):
        bl.place(g, cluster(), "m-sct", solver="mosek")


def test_every_placer_has_one_line():
    lines = bl.list_placers()
    assert {"single", "m-topo", "m-etf", "m-sct", "etf", "sct"} <= set(lines)
    assert all(line.strip().endswith((".", ")")) for line in lines.values())


@pytest.mark.parametrize("placer", ["m-etf", "etf", "m-sct", "sct"])
@pytest.mark.parametrize("comm", ["parallel", "sequential", "duplex"])
def test_of_many_equal_devices_only_the_first_few_are_looked_at(placer, comm, monkeypatch):
    """Plans for the first 2, 8, ... of 24 equal devices, until one is left unused, are the plan for all of them."""
    from baechi_lab.placers.list_scheduling import schedule

    graph = bl.generators.layered_dag(60, seed=3)
    cluster = bl.Cluster.uniform(24, memory_bytes=1 << 33, link=bl.Link(3.0, 1e-5), comm=comm)
    every = bl.place(graph, cluster, placer)
    monkeypatch.setattr(schedule, "FIRST_DEVICES", 2)
    few = bl.place(graph, cluster, placer)
    assert few.device.tolist() == every.device.tolist() and few.rank.tolist() == every.rank.tolist()
    assert 2 < len(set(few.device.tolist())) < 24


def test_too_many_pairs_are_refused_before_the_work(monkeypatch):
    from baechi_lab.placers.list_scheduling import schedule

    monkeypatch.setattr(schedule, "MAX_PAIRS", 100)
    graph, cluster = bl.OpGraph.from_edges([1.0] * 51), bl.Cluster.uniform(2)
    with pytest.raises(bl.InvalidInput, match="51 ops on 2 devices are 102 pairs"):
        bl.place(graph, cluster, "m-etf")
    assert bl.place(graph, cluster, "heft").n == 51


@pytest.mark.parametrize("placer", ["single", "gpu-only"])
def test_bug_one_device_was_refused_where_only_the_first_of_equally_fast_ones_is_too_small(placer):
    """Peak: 30 persistent bytes and an output of 8. The second device has room, and is as fast as the first."""
    graph = bl.OpGraph.from_edges([2.0, 3.0], [(0, 1, 8)], persistent_bytes=[10, 20])
    small, slow, large = (
        bl.Device(name, "gpu", size, speed) for name, size, speed in (("s", 37, 1.0), ("w", 99, 0.5), ("l", 38, 1.0))
    )
    assert bl.place(graph, bl.Cluster((small, slow, large)), placer).device.tolist() == [2, 2]
    assert bl.place(graph, bl.Cluster((small, slow)), placer).device.tolist() == [1, 1]
    with pytest.raises(bl.InfeasiblePlacement, match=r"device s needs 38 B .* has 37 B"):
        bl.place(graph, bl.Cluster((small, small.__class__("t", "gpu", 36))), placer)
    with pytest.raises(bl.InfeasiblePlacement, match="device s needs"):
        bl.place(graph, bl.Cluster((small, large)), "single", device="s")
