"""With more memory or devices, a placement that fits less of either stays a candidate, within one ladder of limits."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.placers.memory_trades.best_of_placers import BestOfPlacers
from baechi_lab.placers.memory_trades.memory_ladder import place_on_memory_ladder

RULES = BestOfPlacers(("single", "m-topo", "m-etf", "contiguous"))
LINK = bl.Link(5.0, 0.0001)


def step(seed, ops=14):
    rng = np.random.default_rng(seed)
    graph = bl.generators.with_backward(bl.generators.layered_dag(ops, seed=seed))
    return graph.replace(persistent_bytes=rng.integers(0, 200_000, graph.n))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_placement_of_the_ladder_is_forgotten_where_there_is_more_memory(seed):
    graph, roomy = step(seed), bl.Cluster.uniform(3, memory_bytes=1 << 40, link=LINK)
    peaks_and_times = [(int(t.peak_bytes.max()), t.makespan_us) for _, t in place_on_memory_ladder(graph, roomy)]
    assert len({peak for peak, _ in peaks_and_times}) > 3
    peaks = sorted(peak for peak, _ in peaks_and_times)
    for memory in (peaks[0], peaks[len(peaks) // 2]):
        cluster = roomy.with_memory(memory)
        fastest, _ = RULES.fastest(graph, cluster, other_limits=True)
        assert fastest.timeline.makespan_us <= min(us for peak, us in peaks_and_times if peak <= memory)
        assert [t.makespan_us for _, t in place_on_memory_ladder(graph, cluster)] == [
            us for _, us in peaks_and_times
        ]  # whatever the limit


@pytest.mark.slow
def test_a_row_of_the_ladder_is_what_its_code_gives_and_says_that_it_is_no_minimum():
    graph, cluster = step(1), bl.Cluster.uniform(3, memory_bytes="1GB", link=LINK)
    answer = bl.fit(graph, cluster)
    first, (plain, _) = answer.options[0], RULES.fastest(graph, cluster)
    assert "bl.fit(" in first.command and first.step_us < plain.timeline.makespan_us
    placement = eval(first.command, {"bl": bl, "graph": graph, "cluster": cluster})  # noqa: S307 (our own text)
    assert bl.simulate(graph, cluster, placement).makespan_us == first.step_us
    assert bl.check(graph, cluster, first.placement, first.timeline) == ()
    assert "another placement may be faster" in str(answer)
    assert bl.fit(graph, bl.Cluster.uniform(1)).caveat == ""


@pytest.mark.slow
def test_more_devices_are_never_slower_than_those_there_are():
    """The placement on fewer devices is a candidate, whether `bl.fit` or the user provides it."""
    graph, cluster = step(3), bl.Cluster.uniform(2, memory_bytes="1GB", link=LINK)
    best = bl.place(graph, cluster, "search", evaluations=3000, workers=1)
    for placement in (None, best):
        answer = bl.fit(graph, cluster, every_option=True, give_up=("devices",), placement=placement)
        first, more_devices = answer.options
        assert more_devices.fits and more_devices.step_us <= first.step_us
        if more_devices.placement is first.placement:
            assert more_devices.command == first.command


@pytest.mark.slow
def test_the_code_of_every_row_makes_its_step_with_the_cluster_that_was_given():
    """The code has an assumed host, devices beside a host, and the bytes on it."""
    random = bl.generators.with_backward(bl.generators.random_dag(6, seed=24))
    for graph, cluster in (
        (step(1, 8), bl.Cluster.uniform(1, memory_bytes="1MB", link=LINK).with_host("1GB")),
        (step(1, 8), bl.Cluster.uniform(1, memory_bytes="1MB")),
        (random, bl.Cluster.uniform(1, memory_bytes=36_061, link=bl.Link(2.0, 1e-5))),
    ):
        namespace = {"bl": bl, "graph": graph, "cluster": cluster}
        for option in bl.fit(graph, cluster, every_option=True, give_up=("devices", "offload")).options:
            if option.command:
                placement = eval(option.command, namespace)  # noqa: S307 (our own text)
                assert bl.simulate(option.graph, option.cluster, placement).makespan_us == option.step_us


def test_arguments_that_are_no_lists_or_functions():
    for arguments, message in (
        ({"placers": 3}, "placers is 3"),
        ({"placers": np.array(3)}, "placers is array"),
        ({"callback": 3}, "callback is 3"),
    ):
        with pytest.raises(bl.InvalidInput, match=message):
            bl.fit(step(1), bl.Cluster.uniform(1), **arguments)
    for give_up in (3, (["x"],)):
        with pytest.raises(bl.InvalidInput, match="give_up is"):
            bl.place(step(1), bl.Cluster.uniform(1), "search", give_up=give_up)
