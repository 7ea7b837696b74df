"""What must hold for every placer on every graph: valid, deterministic, never below a bound, groups together."""

import numpy as np
import pytest
from fewer import slow
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_reference import simulate_reference

import baechi_lab as bl
from baechi_lab.placers.registry import placer_class, placer_names

PLACERS = placer_names()
SLOW_PLACERS = ("auto", "metis", "post-adjusted", "search")
PARTITIONERS = ("batch-split", "critical-path", "dfs", "hash", "heft", "mite")  # test_partitioners.py has a fast test
LIMITED = [name for name in PLACERS if placer_class(name).uses_memory]
# A count of updates instead of seconds, and small networks: what is learned does not matter here.
LEARNED = {
    "time_limit": None,
    "updates": 2,
    "groups": 4,
    "grouper_hidden": 4,
    "placer_hidden": 4,
    "placement_samples": 2,
    "workers": 1,
}
PARAMETERS = {
    "auto": {"workers": 1},
    "coloc-rl": LEARNED,
    "exact": {"workers": 1, "warm_start": 0.0},
    "expert": {"model": "inception_v3"},
    "hierarchical": LEARNED,
    "search": {"time_limit": None, "evaluations": 50, "workers": 1},
    "simple-planner": LEARNED,
}
"""By placer: what makes its effort a number of steps, small, and nothing depend on the clock."""
EXAMPLES = {"auto": 8, "coloc-rl": 1, "exact": 3, "hierarchical": 1, "search": 10, "simple-planner": 2}
"""By placer: fewer random cases where one takes long."""
KINDS = {"cpu-only": "cpu"}


@st.composite
def graphs(draw, kind="gpu"):
    n = draw(st.integers(0, 10))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    edge_pairs = draw(st.lists(st.sampled_from(pairs), max_size=2 * n, unique=True)) if pairs else []
    small = st.integers(0, 9)
    column = st.lists(small, min_size=n, max_size=n)
    return bl.OpGraph.from_edges(
        [float(x) for x in draw(column)],
        [(i, j, draw(st.integers(0, 20))) for i, j in edge_pairs],
        temp_bytes=draw(column),
        persistent_bytes=draw(column),
        colocation=draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n)),
        colocation_names=("a", "b"),
        allowed=draw(st.lists(st.sampled_from([-1, -1, -1, 0]), min_size=n, max_size=n)),
        allowed_sets=((f"{kind}:0",),),
    )


@st.composite
def clusters(draw, memory_bytes=10**6, kind="gpu"):
    return bl.Cluster.uniform(
        draw(st.integers(1, 4)),
        kind=kind,
        memory_bytes=memory_bytes,
        link=bl.Link(draw(st.integers(0, 5)), draw(st.sampled_from([0.0, 0.5, 1.0]))),
        comm=draw(st.sampled_from(["parallel", "sequential", "duplex"])),
    )


def checked_on_random_cases(placer, examples, check, **params):
    """Run `check(graph, cluster, ...)` on random cases that suit the placer, as many as `examples` or what it can take."""
    kind = KINDS.get(placer, "gpu")
    cases = given(graph=graphs(kind), cluster=clusters(kind=kind), **params)
    settings(max_examples=EXAMPLES.get(placer, examples), deadline=None)(cases(check))()


@pytest.mark.parametrize("placer", slow(PLACERS, "auto", "search"))
def test_placements_with_ample_memory_are_valid_and_repeat(placer):
    params = PARAMETERS.get(placer, {})

    def check(graph, cluster):
        first, repeated = bl.place(graph, cluster, placer, **params), bl.place(graph, cluster, placer, **params)
        assert first.device.tobytes() == repeated.device.tobytes()
        timeline = bl.simulate(graph, cluster, first)
        assert timeline.violations == ()
        assert bl.check(graph, cluster, first, timeline) == ()
        assert timeline.makespan_us >= bl.bounds(graph, cluster).best * (1 - 1e-12)
        for group in range(2):
            assert len(set(first.device[graph.colocation == group].tolist())) <= 1

    checked_on_random_cases(placer, 10, check)


@pytest.mark.parametrize("placer", slow(LIMITED, "exact", *SLOW_PLACERS, *PARTITIONERS))
def test_under_tight_memory_valid_or_infeasible(placer):
    params = PARAMETERS.get(placer, {})

    def check(graph, cluster, share):
        alone = simulate_reference(graph, cluster, [0] * graph.n).peak[0]
        tight = cluster.with_memory(int(share * alone))
        try:
            placement = bl.place(graph, tight, placer, **params)
        except bl.InfeasiblePlacement as error:
            assert error.available_bytes == tuple(tight.memory_bytes.tolist())
            return
        timeline = bl.simulate(graph, tight, placement)
        assert bl.check(graph, tight, placement, timeline) == ()
        assert np.all(timeline.peak_bytes <= tight.memory_bytes)

    checked_on_random_cases(placer, 12, check, share=st.floats(0.0, 1.0))


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), cluster=clusters(), data=st.data())
def test_any_placement_by_hand_is_simulated_as_its_twin_says(graph, cluster, data):
    device = data.draw(st.lists(st.integers(0, cluster.n - 1), min_size=graph.n, max_size=graph.n))
    timeline = bl.simulate(graph, cluster, bl.Placement(device=np.array(device, dtype=int)))
    twin = simulate_reference(graph, cluster, device)
    assert timeline.end_us.tolist() == [twin.end[i] for i in range(graph.n)]
    assert timeline.peak_bytes.tolist() == twin.peak
