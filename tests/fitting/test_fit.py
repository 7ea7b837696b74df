"""Does a step fit, and the ways to make it fit: each is simulated, and what is said of it is what the simulation says."""

import json

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.fitting.devices import grown
from baechi_lab.fitting.joint import recompute_and_place
from baechi_lab.fitting.placing import Placing

KINDS = ("more devices", "smaller batch", "micro-batches", "recomputation", "offloading")


def build(batch_size):
    """Eight stages; outputs grow with the batch."""
    forward = bl.generators.chain(9, seed=0)
    size = np.full(forward.tensor_count, batch_size * 1000)
    forward = forward.replace(tensor_bytes=size, duration_us=np.full(9, 10.0 + batch_size * 30))
    return bl.generators.with_backward(forward)


LINK = bl.Link(5.0, 0.0001)


def test_a_step_that_fits():
    answer = bl.fit(build(8), bl.Cluster.uniform(1, memory_bytes="1MB", link=LINK), batch_size=8)
    assert answer.fits and answer.missing_bytes == 0 and [w.way for w in answer.ways] == ["as it is"]
    assert answer.best.samples_per_second == pytest.approx(8e6 / answer.best.step_us)
    assert str(answer).startswith("Yes: 1 device")


@pytest.mark.parametrize(("devices", "share"), [(1, 0.6), (2, 0.4)])
def test_every_way_is_what_its_simulation_says(devices, share):
    whole = bl.simulate(build(64), bl.Cluster.uniform(1, memory_bytes=1 << 40), bl.Placement(device=[0] * build(64).n))
    cluster = bl.Cluster.uniform(devices, memory_bytes=int(whole.peak_bytes[0] * share), link=LINK)
    answer = bl.fit(build, cluster, batch_size=64)
    assert not answer.fits and answer.missing_bytes > 0 and not answer.ways[0].fits
    assert {w.way for w in answer.ways[1:]} == set(KINDS)
    assert {"more devices", "smaller batch", "recomputation"} <= {w.way for w in answer.cheapest}
    for way in answer.ways:
        if way.timeline is None:
            assert way.error
            continue
        broken = [v for v in way.timeline.violations if v.kind != "memory"]
        assert not broken and (way.fits or way.error)
        assert way.fits == bool(np.all(way.timeline.peak_bytes <= way.cluster.memory_bytes))
        if way.way != "micro-batches":
            assert bl.simulate(way.graph, way.cluster, way.placement).makespan_us == way.step_us
    best = min((w for w in answer.ways if w.fits), key=lambda w: w.step_us / w.batch_size)
    assert answer.best is best
    table = answer.to_pandas()
    assert table.fits.tolist() == [w.fits for w in answer.ways] and "gives_up" in table


def test_one_device_more_is_enough_and_no_fewer():
    """Four weights of 60 bytes; a device of 100 holds one of them."""
    graph = bl.OpGraph.from_edges([1] * 4, persistent_bytes=[60] * 4)
    answer = bl.fit(graph, bl.Cluster.uniform(2, memory_bytes=100))
    more = next(w for w in answer.ways if w.way == "more devices")
    assert more.fits and more.choice == "4 devices" and more.gives_up == "2 more devices"
    assert answer.missing_bytes == 20  # two weights on a device


def test_the_front_has_nothing_that_another_beats():
    answer = bl.fit(build, bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK), batch_size=64)
    front = answer.pareto()
    assert front
    times = [w.time_per_sample_us for w in front]
    assert times == sorted(times)


def test_code_of_a_way_gives_its_step():
    answer = bl.fit(build, bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK), batch_size=64)
    tried = 0
    for way in answer.cheapest:
        if way.way in ("smaller batch", "recomputation", "more devices"):
            placed = eval(way.command, {"bl": bl, "build": build, "cluster": answer.cluster})  # noqa: S307 (our own text)
            assert bl.simulate(way.graph, way.cluster, placed).makespan_us == way.step_us
            tried += 1
    assert tried


def test_recomputing_and_placing_is_never_worse_than_either():
    graph = build(64)
    cluster = bl.Cluster.uniform(2, memory_bytes="256kB", link=LINK)
    placing = Placing(("m-topo", "m-etf"))
    found = recompute_and_place(graph, cluster, placing, 2)
    alone = []
    for keep in ("sqrt", "boundaries"):
        again = bl.recompute(graph, keep)
        best, _ = placing.fastest(again, cluster)
        alone += [] if best is None else [best[1].makespan_us]
    assert found and found[0].timeline.makespan_us <= min(alone, default=np.inf)
    assert all(joint.timeline.feasible for joint in found)


def test_a_graph_alone_has_no_other_batch():
    answer = bl.fit(build(64), bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK))
    for kind in ("smaller batch", "micro-batches"):
        way = next(w for w in answer.ways if w.way == kind)
        assert not way.fits and "cannot: a graph does not say what another batch costs" in way.error
    assert np.isnan(answer.ways[0].samples_per_second)


def test_devices_are_added_like_the_last_one():
    links = [[bl.Link(1, 0), bl.Link(2, 0)], [bl.Link(3, 0), bl.Link(4, 0)]]
    cluster = bl.Cluster((bl.Device("a", "cpu", 5), bl.Device("b", "gpu", 7)), links)
    more = grown(cluster, 3)
    assert more.names == ("a", "b", "gpu:0") and more.memory_bytes.tolist() == [5, 7, 7]
    assert more.link_between(0, 2) == bl.Link(2, 0) and more.link_between(1, 2) == bl.Link(3, 0)


def test_bad_input():
    cluster = bl.Cluster.uniform(1)
    with pytest.raises(bl.InvalidInput, match="graph is a int; it must be an OpGraph, a Step, a model's name"):
        bl.fit(7, cluster)
    with pytest.raises(bl.InvalidInput, match="batch_size is None; a function"):
        bl.fit(build, cluster)
    with pytest.raises(bl.InvalidInput, match="returned a str"):
        bl.fit(lambda size: "graph", cluster, batch_size=8)
    with pytest.raises(bl.InvalidInput, match="batch_size is 0"):
        bl.fit(build, cluster, batch_size=0)
    with pytest.raises(bl.InvalidInput, match="cluster is None"):
        bl.fit(build(8), None)
    with pytest.raises(bl.UnknownNameError, match="unknown placer 'm-eft'; did you mean 'm-etf'"):
        bl.fit(build(8), cluster, placers=["m-eft"])
    with pytest.raises(bl.InvalidInput, match="time_limit is -1"):
        bl.fit(build(8), cluster, time_limit=-1)
    with pytest.raises(bl.UnknownNameError, match="unknown model 'gnnt'; did you mean 'gnmt'"):
        bl.fit("gnnt", cluster)


def test_the_command(tmp_path, capsys):
    bl.save_graph(build(64), path := str(tmp_path / "graph.json"))
    assert main(["fit", path, "--memory", "400kB", "--devices", "1", "--link-latency", "5", "--batch-size", "64"]) == 0
    assert "No: the fullest device lacks" in (said := capsys.readouterr().out) and "recomputation" in said
    assert main(["fit", path, "--memory", "8GB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert main(["fit"]) == 2 and "give a graph file or --model NAME" in capsys.readouterr().err
