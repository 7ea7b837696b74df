"""Stages compose, and only what changed is computed again."""

from __future__ import annotations

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.memo import Memo, content


@pytest.fixture
def graph():
    """Source 5, two branches of 10, sink 5; every tensor 1 byte."""
    return bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])


@pytest.fixture
def cluster():
    """Two devices, each transfer costs 4."""
    return bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(4.0, 0.0), comm="parallel")


def by_hand(graph, cluster):
    """A place stage: everything on device 0, except op 2."""
    return bl.Placement(device=[0, 0, 1, 0], graph_key=graph.key)


# -- running -----------------------------------------------------------------------------------------------


def test_result_by_hand(graph, cluster):
    result = bl.Pipeline(place=by_hand, simulate=bl.Simulate()).run(graph, cluster)
    # op 2 starts at 5 + 4 on device 1, ends at 19, its tensor is back at 19 + 4; the sink takes 5 more.
    assert result.timeline.makespan_us == 5 + 4 + 10 + 4 + 5
    assert result.bounds["critical-path"] == 5 + 10 + 5
    # the two branches side by side pay for a transfer, in turn they take 5 + 10 + 10 + 5
    assert result.bounds.best == 5 + 10 + 4 + 5
    assert result.gap == pytest.approx(28 / 24 - 1)
    assert result.coarse is result.graph is graph
    assert result.run is None


def test_stages_are_the_functions(graph, cluster):
    result = (bl.Optimize() | bl.Place("m-etf") | bl.Simulate()).run(graph, cluster)
    coarse = bl.optimize(graph, cluster)
    placement = bl.place(coarse, cluster, "m-etf")
    assert result.coarse == coarse
    assert result.placement == placement
    assert result.timeline.makespan_us == bl.simulate(graph, cluster, placement).makespan_us


def test_simulate_on_coarse_graph(graph, cluster):
    result = (bl.Optimize() | bl.Place("single") | bl.Simulate(on="coarse")).run(graph, cluster)
    assert len(result.timeline.op) == result.coarse.n


def test_a_pipeline_of_one_stage_has_no_timeline(graph, cluster):
    result = bl.Pipeline.of(bl.Place("single")).run(graph, cluster)
    assert result.placement.device.tolist() == [0, 0, 0, 0]
    assert result.timeline is None
    assert np.isnan(result.gap)


# -- what is computed again --------------------------------------------------------------------------------


def test_second_run_computes_nothing(graph, cluster):
    pipe = bl.Optimize() | bl.Place("m-etf") | bl.Simulate()
    first = pipe.run(graph, cluster)
    second = pipe.run(graph, cluster)
    assert first.recomputed == ("optimize", "place", "simulate", "bounds")
    assert second.recomputed == ()
    assert second.timeline is first.timeline


def test_equal_content_counts_not_identity(graph, cluster):
    pipe = bl.Place("m-etf") | bl.Simulate()
    pipe.run(graph, cluster)
    same = bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    assert pipe.run(same, cluster.replace(comm="parallel")).recomputed == ()


def test_scheduler_recomputes_only_simulation(graph, cluster):
    pipe = bl.Place("m-etf") | bl.Simulate()
    pipe.run(graph, cluster)
    assert pipe.replace(simulate=bl.Simulate("fifo")).run(graph, cluster).recomputed == ("simulate",)


def test_placer_with_the_same_outcome_does_not_simulate_again(graph, cluster):
    first = bl.Pipeline(place=by_hand, simulate=bl.Simulate())
    first.run(graph, cluster)
    with_function = first.replace(place=lambda graph, cluster: by_hand(graph, cluster))
    assert with_function.run(graph, cluster).recomputed == ("place",)


def test_duration_recomputes_from_the_changed_input_on(graph, cluster):
    pipe = bl.Place("single") | bl.Simulate()
    pipe.run(graph, cluster)
    slower = graph.replace(duration_us=graph.duration_us * 2)
    assert pipe.run(slower, cluster).recomputed == ("place", "simulate", "bounds")
    assert pipe.run(graph, cluster).recomputed == ()  # both stay remembered


def test_link_recomputes_what_reads_the_cluster(graph, cluster):
    pipe = bl.Optimize() | bl.Place("m-etf") | bl.Simulate()
    pipe.run(graph, cluster)
    recomputed = pipe.run(graph, cluster.replace(link=bl.Link(1.0, 0.0))).recomputed
    assert "optimize" not in recomputed
    assert set(recomputed) == {"place", "simulate", "bounds"}


def test_ops_are_grouped_again_where_no_device_holds_the_whole_model_any_more(graph, cluster):
    """Four ops of 20 bytes and at most three tensors of one: 83 bytes at most."""
    graph = graph.replace(persistent_bytes=np.full(4, 20))
    pipe = bl.Optimize() | bl.Place("m-etf") | bl.Simulate()
    pipe.run(graph, cluster)
    assert "optimize" not in pipe.run(graph, cluster.resized(3).with_memory(90)).recomputed
    assert "optimize" in pipe.run(graph, cluster.with_memory(70)).recomputed
    always = pipe.replace(optimize=bl.Optimize(forward_only=False))
    always.run(graph, cluster)
    assert "optimize" not in always.run(graph, cluster.with_memory(70)).recomputed


def test_again_computes_on_request(graph, cluster):
    pipe = bl.Place("single") | bl.Simulate()
    pipe.run(graph, cluster)
    assert pipe.run(graph, cluster, recompute=("simulate",)).recomputed == ("simulate",)


def test_execute_and_profile_are_remembered_by_step(graph, cluster):
    calls = []

    def profile(step):
        calls.append("profile")
        return graph

    def execute(step, placement):
        calls.append("execute")
        return bl.Run(None, np.array([0.5]), ())

    step = a_step()
    pipe = bl.Pipeline(profile=profile, place=by_hand, simulate=bl.Simulate(), execute=execute)
    assert pipe.run(step, cluster).run.median_seconds == 0.5
    assert pipe.run(step, cluster).recomputed == ()
    assert pipe.run(a_step(weight=2.0), cluster).recomputed == ("profile", "execute")
    assert pipe.replace(simulate=bl.Simulate("fifo")).run(step, cluster).recomputed == ("simulate",)
    assert calls == ["profile", "execute", "profile", "execute"]


def a_step(weight: float = 1.0) -> bl.Step:
    """A step record; no framework reads it here."""
    spec = bl.TensorSpec("w", "float32", (1,))
    return bl.Step("tiny", b"graph", (), (), (), (spec,), (np.array([weight], dtype=np.float32),))


def test_memory_is_bounded():
    memo = Memo(size=2)
    double = lambda x: 2 * x  # noqa: E731
    assert [memo.recall("s", double, x)[1] for x in (1, 2, 3)] == [True, True, True]
    assert memo.recall("s", double, 3) == (6, False)
    assert memo.recall("s", double, 1) == (2, True)
    memo.clear()
    assert memo.recall("s", double, 1) == (2, True)


def test_failed_stage_is_not_remembered(graph, cluster):
    attempts = []

    def place(graph, cluster):
        attempts.append(1)
        if len(attempts) == 1:
            raise bl.InfeasiblePlacement("no room", 10, [5, 5])
        return by_hand(graph, cluster)

    pipe = bl.Pipeline(place=place)
    with pytest.raises(bl.InfeasiblePlacement):
        pipe.run(graph, cluster)
    assert pipe.run(graph, cluster).placement.n == 4


FACTOR = [0]


def test_a_stage_that_reads_another_value_is_computed_again(graph, cluster):
    """The same function object: a global that it reads has changed, or what it closes over."""
    homes = np.zeros(4, dtype=int)

    def place(graph, cluster):
        return bl.Placement(device=homes + FACTOR[0])

    pipe = bl.Pipeline(place=place)
    assert pipe.run(graph, cluster).placement.device.tolist() == [0] * 4
    assert pipe.run(graph, cluster).recomputed == ()
    FACTOR[0] = 1
    try:
        assert pipe.run(graph, cluster).placement.device.tolist() == [1] * 4
    finally:
        FACTOR[0] = 0
    homes[:] = [0, 1, 0, 1]
    assert pipe.run(graph, cluster).placement.device.tolist() == [0, 1, 0, 1]


def test_a_stage_without_an_identity_is_computed_each_time(graph, cluster):
    homes = iter([0, 1])

    def draws():
        yield from homes

    drawn = draws()
    pipe = bl.Pipeline(place=lambda graph, cluster: bl.Placement(device=[next(drawn)] * 4))
    assert [pipe.run(graph, cluster).placement.device[0] for _ in range(2)] == [0, 1]


def test_content_tells_apart_what_differs(graph):
    assert content(np.array([1, 2])) != content(np.array([1.0, 2.0]))
    assert content([1]) != content((1,))
    assert content(True) != content(1)
    assert content(bl.Place("m-sct")) == content(bl.Place("m-sct")) != content(bl.Place("m-etf"))
    assert content(bl.Placement(device=[0], order=[1.0])) != content(bl.Placement(device=[0], priority=[-2.0]))
    assert content(object()) != content(object())


# -- composing ---------------------------------------------------------------------------------------------


def test_repr_is_code(graph):
    pipe = (
        bl.Profile(mode="estimated", hardware="v100")
        | bl.Optimize(passes=("fusion",))
        | bl.Place("m-sct", threshold=0.2)
    )
    pipe = pipe | bl.Simulate() | bl.Execute(steps=3)
    names = {name: getattr(bl, name) for name in ("Profile", "Optimize", "Place", "Simulate", "Execute")}
    evaluated = eval(repr(pipe), names)  # noqa: S307
    assert evaluated == pipe
    assert "threshold=0.2" in repr(pipe)


def test_stage_objects_are_values():
    assert bl.Place("m-sct") == bl.Place("m-sct") != bl.Place("m-sct", threshold=0.2)
    assert hash(bl.Place("m-sct")) == hash(bl.Place("m-sct"))
    assert bl.Place("m-sct", threshold=0.2).get_params() == {"placer": "m-sct", "threshold": 0.2}
    assert bl.Simulate(on="coarse").get_params() == {"scheduler": None, "on": "coarse"}
    assert "Simulate" in bl.Simulate()._repr_html_()
    assert "m-sct" in (bl.Place("m-sct") | bl.Simulate())._repr_html_()


def test_functions_take_the_next_slot(graph, cluster):
    pipe = bl.Optimize() | (lambda graph, cluster: bl.Placement(device=[0] * graph.n)) | bl.Simulate()
    assert list(pipe.stages) == ["optimize", "place", "simulate"]
    assert pipe.run(graph, cluster).placement.device.max() == 0


def test_function_may_name_its_slot():
    def place_on_first(graph, cluster):
        return bl.Placement(device=[0] * graph.n)

    place_on_first.slot = "place"
    assert list((bl.Profile() | place_on_first).stages) == ["profile", "place"]


def test_pipelines_compose():
    front, last_stages = bl.Profile() | bl.Optimize(), bl.Place("m-etf") | bl.Simulate()
    assert list((front | last_stages).stages) == ["profile", "optimize", "place", "simulate"]
    assert (front | last_stages).replace(optimize=None) == bl.Profile() | bl.Place("m-etf") | bl.Simulate()


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bl.Profile(mode="guessed"), "unknown profile mode 'guessed'"),
        (lambda: bl.Profile(hardware="v10"), "did you mean 'v100'"),
        (lambda: bl.Place("m-sctt"), "did you mean 'm-sct'"),
        (lambda: bl.Place("m-sct", treshold=0.1), "did you mean 'threshold'"),
        (lambda: bl.Simulate("fifi"), "did you mean 'fifo'"),
        (lambda: bl.Simulate(on="paper"), "graph to simulate on 'paper'"),
        (lambda: bl.Optimize(passes="fusion"), "passes is the text 'fusion'"),
        (lambda: bl.Optimize(passes=("fusoin",)), "did you mean 'fusion'"),
        (lambda: bl.Optimize(forward_only="maybe"), "forward_only is 'maybe'"),
        (lambda: bl.Execute(steps=0), "steps is 0"),
        (lambda: bl.Execute(steps=True), "steps is True"),
        (lambda: bl.Simulate() | bl.Place("m-sct"), "stage place comes after simulate|needs a place stage"),
        (lambda: bl.Place("single") | bl.Place("single"), "stage place comes after place"),
        (lambda: bl.Place("single") | 5, "5 is not a stage"),
        (lambda: bl.Pipeline(place=5), "stage place is 5"),
        (lambda: bl.Pipeline(plaec=by_hand), "did you mean 'place'"),
        (lambda: bl.Pipeline(place=bl.Simulate()), "belongs to another slot"),
        (lambda: bl.Pipeline(simulate=bl.Simulate()), "needs a place stage"),
    ],
)
def test_bad_stages_are_refused_at_once(make, message):
    with pytest.raises(bl.InvalidInput, match=message):
        make()


def test_bad_subjects_are_refused_before_anything_runs(graph, cluster):
    pipe = bl.Place("single") | bl.Simulate()
    with pytest.raises(bl.InvalidInput, match="not on int"):
        pipe.run(5, cluster)
    with pytest.raises(bl.InvalidInput, match="cluster is int"):
        pipe.run(graph, 4)
    with pytest.raises(bl.InvalidInput, match="without a profile stage"):
        pipe.run(a_step(), cluster)
    with pytest.raises(bl.InvalidInput, match="runs on a Step"):
        (pipe | bl.Execute()).run(graph, cluster)
    with pytest.raises(bl.UnknownNameError, match="did you mean 'place'"):
        pipe.run(graph, cluster, recompute=("plac",))


# -- groups that do not fit --------------------------------------------------------------------------------


@pytest.fixture
def heavy():
    """A chain whose ops keep 60 bytes each and send 8: two ops take 60 + 60 + 8 on one device, or 60 + 8 on each."""
    return bl.OpGraph.from_edges([1, 1], [(0, 1, 8)], persistent_bytes=[60, 60], names=["a", "b"])


GROUPED = bl.Optimize(("coplacement", "fusion"))
SMALL = bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(4.0, 0.0))


def test_single_ops_are_placed_where_no_group_fits(heavy):
    result = (GROUPED | bl.Place("m-etf") | bl.Simulate()).run(heavy, SMALL)
    assert result.placement.device.tolist() == [0, 1] and result.timeline.makespan_us == 1 + 4 + 1
    assert result.coarse is heavy and result.timeline.peak_bytes.tolist() == [60 + 8, 60 + 8]
    words = "no placement of groups by coplacement, fusion was found that fits: single ops were placed"
    assert result.placement.finer_groups == words
    roomy = (GROUPED | bl.Place("m-etf")).run(heavy, SMALL.with_memory(128))
    assert roomy.coarse.n == 1 and not roomy.placement.finer_groups


def test_colocation_groups_are_placed_before_single_ops(heavy):
    chain = bl.OpGraph.from_edges(
        [1, 1, 1], [(0, 1, 8), (1, 2, 8)], persistent_bytes=[30, 30, 60], colocation=[0, 0, -1], colocation_names=("g",)
    )
    result = (bl.Optimize() | bl.Place("m-etf")).run(chain, SMALL)
    assert result.placement.passes == ("colocation",)
    assert result.placement.on(chain).device.tolist() == [0, 0, 1]


def test_forward_only_groups_give_way_to_groups_of_the_same_passes():
    # Forward op a keeps its output for backward op b. A group of both holds it beside b's own output all the time.
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1],
        [(0, 1, 40), (1, 2, 40), (0, 3, 40), (2, 3, 40)],
        forward_of=[-1, -1, 1, 0],
        persistent_bytes=[5, 5, 5, 5],
    )
    one = bl.Cluster.uniform(
        1, memory_bytes=int(bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * 4)).peak_bytes[0])
    )
    with pytest.raises(bl.InfeasiblePlacement, match="smaller groups or single ops may fit"):
        bl.place(bl.optimize(graph, one), one, "m-etf")
    result = (bl.Optimize() | bl.Place("m-etf") | bl.Simulate()).run(graph, one)
    assert result.timeline.feasible and result.placement.finer_groups.startswith("no placement of ")


def test_a_refusal_speaks_of_groups_only_where_ops_may_fit(heavy):
    coarse = bl.optimize(heavy, SMALL, passes=("coplacement", "fusion"))
    with pytest.raises(bl.InfeasiblePlacement) as error:
        bl.place(coarse, SMALL, "m-etf")
    assert str(error.value) == (
        # 60 + 60 persistent bytes, and the tensor of 8 between its ops.
        "the group of 2 ops, the largest of which is 'a' with 68 B, needs 128 B while it runs as one op (persistent bytes, "
        "inputs, outputs and temporaries) and the largest device that it may use has 100 B; the graph keeps 120 B persistently, "
        "the devices have gpu:0 100 B, gpu:1 100 B; this holds for the 1 group that ops were joined to: smaller groups or single "
        "ops may fit"
    )
    # 60 + 8 bytes are needed by each of the ops: this is proven of them.
    with pytest.raises(bl.InfeasiblePlacement) as error:
        (GROUPED | bl.Place("m-etf")).run(heavy, SMALL.with_memory(65))
    assert str(error.value).startswith("op 'a' needs 68 B while it runs") and "group" not in str(error.value)


def test_the_bytes_of_a_colocation_group_are_said_to_be_its_own():
    tied = bl.OpGraph.from_edges([1, 1], persistent_bytes=[60, 60], colocation=[0, 0], colocation_names=("g",))
    with pytest.raises(
        bl.InfeasiblePlacement,
        match="60 B that 1 other op of its colocation group keeps persistently on its device: together 120 B",
    ):
        bl.place(tied, SMALL, "m-etf")
