"""Peaks that a framework may reach, beside those of the schedule."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.fitting.record import Fit, FitOption
from baechi_lab.passes.contraction import contract
from baechi_lab.simulator import simulate_step
from baechi_lab.simulator.executor_order import executor_orders
from baechi_lab.simulator.runtime_peaks import notes_on_runtime_peaks

NAMES = ("a", "b", "join", "join/backward", "b/backward", "a/backward")


def towers(names=NAMES):
    """Two towers and their join. `a` (30 bytes) and `b` (20) are read by the join (4); gradients are as large."""
    edges = [(0, 2, 30), (1, 2, 20), (2, 3, 4), (3, 4, 20), (3, 5, 30), (0, 5, 30), (1, 4, 20)]
    return bl.OpGraph.from_edges(
        [1, 1, 1, 1, 1, 1],
        edges,
        names=names,
        forward_of=[-1, -1, -1, 2, 1, 0],
        temp_bytes=[0, 90, 0, 0, 0, 0],
        reuse=[0] * 6,
    )


def test_devices_that_work_in_turns_hold_more_than_devices_at_once():
    # At once, gpu:0 runs b (20 + 90) first, by its order, and then a: 110 bytes. In turns, a runs first: 30 + 110 while b runs.
    cluster = bl.Cluster.uniform(2, memory_bytes=120, link=bl.Link(0.0, 0.0))
    placement = bl.Placement(device=[0, 0, 1, 1, 0, 0], order=[1, 0, 2, 3, 4, 5])
    timeline = bl.simulate(towers(), cluster, placement)
    assert timeline.peak_bytes[0] == 20 + 90
    assert timeline.runtime_peak_bytes[0] == 30 + 20 + 90
    assert timeline.peak_margin[0] == 140 / 110 - 1
    assert timeline.feasible and timeline.devices_in_doubt == (0,)
    step = simulate_step(towers(), cluster, placement)  # the same without the peaks of the framework's own orders
    assert step.peak_bytes.tolist() == timeline.peak_bytes.tolist() and step.makespan_us == timeline.makespan_us
    assert step.runtime_peak_bytes.tolist() == step.peak_bytes.tolist()
    assert notes_on_runtime_peaks(timeline) == [
        "gpu:0 fits by the simulation, with 110 B, but may need 140 B of its 120 B when the framework runs it (peak_margin)"
    ]


def test_only_graphs_in_code_order_run_in_turns():
    other_names = (*NAMES[:3], "grad/join", "grad/b", "grad/a")
    cluster, placement = bl.Cluster.uniform(1), bl.Placement(device=[0] * 6, order=[1, 0, 2, 3, 4, 5])
    assert bl.simulate(towers(), cluster, placement).runtime_peak_bytes.tolist() == [140]
    assert bl.simulate(towers(other_names), cluster, placement).peak_margin.tolist() == [0.0]


def test_bug_groups_of_a_step_in_code_order_had_no_margin():
    """`join` and its gradient are fused with nothing that waits; towers as groups run in turns, as their ops do."""
    groups = contract(towers(), np.array([0, 1, 2, 2, 4, 5]))
    placement = bl.Placement(device=[0, 0, 1, 0, 0], order=[1, 0, 2, 3, 4])
    timeline = bl.simulate(groups, bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0)), placement)
    assert timeline.peak_bytes[0] == 20 + 90 and timeline.runtime_peak_bytes[0] == 30 + 20 + 90


def test_fit_prefers_a_placement_that_fits_with_its_margin():
    """One device of 130 bytes: the order of readiness takes 140; b first takes 110, but not in the order of the code."""
    answer = bl.fit(towers(), bl.Cluster.uniform(1, memory_bytes=139), give_up=())
    assert not answer.fits or not answer.options[0].fits_with_margin
    fits = bl.fit(towers(), bl.Cluster.uniform(1, memory_bytes=140), give_up=())
    assert fits.fits and fits.best.fits_with_margin and fits.best.peak_margin == 0.0 and fits.doubt == ""
    assert "peak_margin" in fits.to_pandas()


def test_fit_says_which_device_may_exceed_its_memory():
    cluster = bl.Cluster.uniform(2, memory_bytes=120, link=bl.Link(0.0, 0.0))
    placement = bl.Placement(device=[0, 0, 1, 1, 0, 0], order=[1, 0, 2, 3, 4, 5])
    alone = bl.fit(towers(), cluster, placement=placement, placers=["single"], give_up=())
    assert alone.fits and not alone.best.fits_with_margin
    assert "may need 140 B of its 120 B" in str(alone) and "may need 140 B" in alone._repr_html_()


def test_an_option_that_fits_with_its_margin_is_better_than_the_step_as_it_is_without():
    placement = bl.Placement(device=[0] * 6, order=[1, 0, 2, 3, 4, 5])
    tight, large = (bl.Cluster.uniform(1, memory_bytes=size) for size in (120, 150))
    in_doubt = FitOption("as it is", "1 device", timeline=bl.simulate(towers(), tight, placement), cluster=tight)
    second_option = FitOption(
        "more devices", "2 devices", timeline=bl.simulate(towers(), large, placement), cluster=large
    )
    answer = Fit((in_doubt, second_option))
    assert answer.fits and not in_doubt.fits_with_margin and answer.best is second_option
    small = bl.Cluster.uniform(1, memory_bytes=60)
    lacking = FitOption("as it is", "1 device", timeline=bl.simulate(towers(), small, placement), cluster=small)
    slow = towers().replace(duration_us=np.full(6, 2.0))
    slower = FitOption("more devices", "2 devices", timeline=bl.simulate(slow, large, placement), cluster=large)
    refusal = Fit((lacking, in_doubt, slower))
    assert "The fastest option that fits with the margin of its peak is more devices" in refusal.answer
    assert [option.texts()[2] for option in refusal.options] == ["no", "in doubt", "yes"]
    assert answer.answer.startswith("By the simulation alone: gpu:0 fits") and "2 devices" in answer.answer
    assert [option.kind for option in answer.cheapest] == ["more devices", "as it is"]
    assert Fit((in_doubt,)).best is in_doubt


def test_margins_are_stored_with_the_timeline(tmp_path):
    from baechi_lab.graph.formats.files import load_timeline, save

    timeline = bl.simulate(towers(), bl.Cluster.uniform(1), bl.Placement(device=[0] * 6, order=[1, 0, 2, 3, 4, 5]))
    save(timeline, tmp_path / "timeline.json")
    assert load_timeline(tmp_path / "timeline.json").peak_margin.tolist() == [140 / 110 - 1]


@pytest.mark.parametrize("seed", range(5))
def test_margins_are_never_negative(seed):
    graph = bl.generators.random_dag(40, seed=seed).replace(reuse=np.random.default_rng(seed).integers(0, 3, 40))
    for rule in ("m-topo", "m-etf"):
        cluster = bl.Cluster.uniform(3)
        assert (bl.simulate(graph, cluster, bl.place(graph, cluster, rule)).peak_margin >= 0).all()


def test_gradients_of_weights_may_wait_in_tensorflow():
    """By index, `ga` frees 100 B of `a` before `c` makes 100 more; the executor may run `b` and `c` first, then `ga`.

    On schedule at most 8 B of `w`, 4 B of `ga` and of `gb`, and 100 B of `b` and of `c`. Else 8 + 4 B, and 100 B of each of `a`,
    `b` and `c`. Without variables it is no step of TensorFlow.
    """
    types = ["VarHandleOp", "Placeholder", "MatMul", "MatMul", "MatMul", "MatMul", "MatMul", "AssignSubVariableOp"]
    w, x, a, ga, b, gb, c, update = range(8)
    edges = [(x, a, 4), (a, ga, 100), (a, b, 100), (b, gb, 100), (b, c, 100)]
    edges += [(c, update, 100), (ga, update, 4), (gb, update, 4), (w, update, 8)]
    graph = bl.OpGraph.from_edges([1, 1, 1, 1, 1, 1, 5, 1], edges, op_types=types, reuse=[0] * 8)
    cluster, placement = bl.Cluster.uniform(1, memory_bytes=300), bl.Placement(device=[0] * 8)
    timeline = bl.simulate(graph, cluster, placement)
    assert timeline.peak_bytes.tolist() == [8 + 4 + 4 + 200]
    assert timeline.runtime_peak_bytes.tolist() == [8 + 4 + 300]
    assert timeline.feasible and timeline.devices_in_doubt == (0,)
    without_inputs = graph.replace(op_types=("Placeholder", *types[1:]))
    assert bl.simulate(without_inputs, cluster, placement).peak_margin.tolist() == [0.0]


def test_bug_gradients_of_weights_waited_in_tensorflow_although_they_are_long_and_have_the_last_numbers():
    """A U-Net held all inputs of its convolutions until the last gradient of an input: 22 % more than its margin allowed.

    By index and by critical paths `ga` frees 100 B of `a` before `c` makes 100 more. A session may number ops anew, and then runs
    `b` and `c` first, and `gb` with its 4 B while `a`, `b` and `c` are live.
    """
    types = ["VarHandleOp", "Placeholder", "MatMul", "MatMul", "MatMul", "MatMul", "MatMul", "AssignSubVariableOp"]
    w, x, a, b, ga, c, gb, update = range(8)
    edges = [(x, a, 4), (a, b, 100), (a, ga, 100), (b, c, 100), (b, gb, 100)]
    edges += [(c, update, 100), (ga, update, 4), (gb, update, 4), (w, update, 8)]
    graph = bl.OpGraph.from_edges([1, 1, 1, 1, 10, 1, 10, 1], edges, op_types=types, reuse=[0] * 8)
    timeline = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * 8))
    assert timeline.peak_bytes.tolist() == [8 + 4 + 4 + 200]
    assert timeline.runtime_peak_bytes.tolist() == [300 + 4]


def test_bug_copies_wait_for_a_slow_worker_of_tensorflow():
    """gpu:0 sends 100 B at 10 us and at 20 us; gpu:1 reads each in 1 us, so it holds one. A slow gpu:1 holds both."""
    types = ["VarHandleOp", "MatMul", "MatMul", "MatMul", "MatMul"]
    graph = bl.OpGraph.from_edges(
        [0, 10, 10, 1, 1], [(1, 2, 0), (1, 3, 100), (2, 4, 100)], op_types=types, reuse=[0] * 5
    )
    cluster, placement = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0)), bl.Placement(device=[0, 0, 0, 1, 1])
    timeline = bl.simulate(graph, cluster, placement)
    assert timeline.peak_bytes.tolist() == [100, 100] and timeline.runtime_peak_bytes.tolist() == [200, 200]


def test_the_largest_peak_is_that_of_an_order_that_runs():
    """Random steps: positions are those of a topological order, and the plan of each order stays below the margin."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        n = int(rng.integers(5, 30))
        edges = [(i, j, int(rng.integers(1, 100))) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.2]
        types = [["VarHandleOp", "Const", "Reshape", "MatMul"][k] for k in rng.integers(0, 4, n - 1)] + ["VarHandleOp"]
        graph = bl.OpGraph.from_edges(rng.integers(1, 9, n), edges, op_types=types, reuse=[0] * n)
        alone, cluster = bl.Placement(device=[0] * n), bl.Cluster.uniform(1)
        bound = bl.simulate(graph, cluster, alone).runtime_peak_bytes[0]
        for order in executor_orders(graph):
            assert sorted(order.tolist()) == list(range(n))
            assert (order[graph.edge_source] < order[graph.consumers]).all()
            assert bl.simulate(graph, cluster, alone.replace(order=order)).peak_bytes[0] <= bound


def test_bug_gradients_within_the_forward_pass_were_on_the_device_of_their_call_alone():
    """Autograd runs them where the layers are: 16 bytes of results, and 7 + 8 of their own backward pass may be there."""
    graph = bl.OpGraph.from_edges(
        [1.0] * 4,
        [(0, 1, 8), (1, 3, 16), (3, 2, 8)],
        names=["a", "penalty", "a/backward", "penalty/backward"],
        op_types=["Linear", "grad", "LinearBackward", "gradBackward"],
        forward_of=[-1, -1, 0, 1],
        temp_bytes=[0, 5, 0, 7],
        reuse=[0] * 4,
    )
    cluster, placement = bl.Cluster.uniform(2, kind="cpu"), bl.Placement(device=[0, 1, 0, 1])
    other_type = graph.replace(op_types=("Linear", "add", "LinearBackward", "addBackward"))
    peaks, other_peaks = (bl.simulate(g, cluster, placement).runtime_peak_bytes for g in (graph, other_type))
    assert (peaks - other_peaks).tolist() == [16 + max(5, 7 + 8), 0]
    on_one = bl.Placement(device=[0] * 4)
    peaks, other_peaks = (bl.simulate(g, cluster, on_one).runtime_peak_bytes for g in (graph, other_type))
    assert peaks.tolist() == other_peaks.tolist()
