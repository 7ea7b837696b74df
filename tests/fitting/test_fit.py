"""Does a step fit, and the ways to make it fit: each is simulated, and what is said of it is what the simulation says."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from brute_force import optimum
from fewer import fast

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.fitting import options
from baechi_lab.fitting.proof import proof_of
from baechi_lab.fitting.record import FitOption
from baechi_lab.placers.memory_trades import best_of_placers
from baechi_lab.placers.memory_trades.best_of_placers import BestOfPlacers
from baechi_lab.placers.memory_trades.recomputation import recompute_and_place

KINDS = ("more devices", "smaller batch", "micro-batches", "recomputation", "offloading")


def build(batch_size):
    """Eight stages; outputs grow with the batch."""
    forward = bl.generators.chain(9, seed=0)
    size = np.full(forward.tensor_count, batch_size * 1000)
    forward = forward.replace(tensor_bytes=size, duration_us=np.full(9, 10.0 + batch_size * 30))
    return bl.generators.with_backward(forward)


LINK = bl.Link(5.0, 0.0001)


def test_a_step_that_fits_is_its_own_best_option():
    answer = bl.fit(build(8), bl.Cluster.uniform(1, memory_bytes="1MB", link=LINK), batch_size=8)
    assert answer.fits and answer.missing_bytes == 0 and [option.kind for option in answer.options] == ["as it is"]
    assert answer.best.samples_per_second == pytest.approx(8e6 / answer.best.step_us)
    assert str(answer).startswith("Yes: 1 device")


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "share"), [(1, 0.6), pytest.param(2, 0.4, marks=pytest.mark.slow)])
def test_every_option_is_what_its_simulation_says(devices, share):
    alone = bl.simulate(build(64), bl.Cluster.uniform(1, memory_bytes=1 << 40), bl.Placement(device=[0] * build(64).n))
    cluster = bl.Cluster.uniform(devices, memory_bytes=int(alone.peak_bytes[0] * share), link=LINK)
    answer = bl.fit(build, cluster, batch_size=64)
    assert not answer.fits and answer.missing_bytes > 0 and not answer.options[0].fits
    assert {option.kind for option in answer.options[1:]} == set(KINDS)
    assert {"more devices", "smaller batch", "recomputation"} <= {option.kind for option in answer.cheapest}
    for option in answer.options:
        if option.timeline is None:
            assert option.error
            continue
        broken = [v for v in option.timeline.violations if v.kind != "memory"]
        assert not broken and (option.fits or option.error)
        assert option.fits == bool(np.all(option.timeline.peak_bytes <= option.cluster.memory_bytes))
        if option.kind != "micro-batches":
            assert bl.simulate(option.graph, option.cluster, option.placement).makespan_us == option.step_us
    best = min(
        (option for option in answer.options if option.fits), key=lambda option: option.step_us / option.batch_size
    )
    assert answer.best is best
    table = answer.to_pandas()
    assert table.fits.tolist() == [option.fits for option in answer.options] and "gives_up" in table


def test_bug_a_slower_option_gave_up_nothing():
    """A step of 30 us beside one of 24 us gives up 25 % more time; where batches differ, per sample."""
    from baechi_lab.fitting.fit import beside_as_it_is
    from baechi_lab.fitting.record import FitOption

    def option(us, gives_up="nothing", batch_size=8):
        graph = bl.OpGraph.from_edges([us])
        timeline = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0]))
        return FitOption("recomputation", gives_up=gives_up, batch_size=batch_size, timeline=timeline)

    first = option(24.0)
    assert beside_as_it_is(option(30.0), first).gives_up == "25.0% more time"
    assert beside_as_it_is(option(30.0, "nothing but time"), first).gives_up == "25.0% more time"
    assert beside_as_it_is(option(30.0, "1 more device"), first).gives_up == "1 more device, 25.0% more time"
    assert beside_as_it_is(option(24.0), first).gives_up == "nothing"
    assert beside_as_it_is(option(12.0, "a batch of 8", 4), first).gives_up == "a batch of 8"  # 3 us per sample
    assert beside_as_it_is(option(24.0, batch_size=4), first).gives_up == "100.0% more time per sample"
    assert beside_as_it_is(option(30.0), FitOption("as it is")).gives_up == "nothing"  # unknown: nothing simulated


def test_an_option_that_gains_nothing_says_so():
    """Beside 24 us and 1,000 bytes: 996 bytes are the same in a table, 900 are less, and so is a step of 20 us."""
    from baechi_lab.fitting.fit import beside_as_it_is
    from baechi_lab.fitting.record import FitOption

    def option(us, size, gives_up="nothing", limit=2000):
        cluster, graph = bl.Cluster.uniform(1, memory_bytes=limit), bl.OpGraph.from_edges([us], persistent_bytes=[size])
        timeline = bl.simulate(graph, cluster, bl.Placement(device=[0]))
        return FitOption("recomputation", gives_up=gives_up, cluster=cluster, timeline=timeline)

    first = option(24.0, 1000)
    assert beside_as_it_is(option(30.0, 996), first).gives_up == "gains nothing, 25.0% more time"
    assert beside_as_it_is(option(24.0, 1000, "1 more device"), first).gives_up == "gains nothing, 1 more device"
    assert beside_as_it_is(option(30.0, 900), first).gives_up == "25.0% more time"
    assert beside_as_it_is(option(20.0, 1000), first).gives_up == "nothing"
    # What makes a step fit gains that, also in more memory than a placement has that does not fit.
    assert beside_as_it_is(option(30.0, 1000), option(24.0, 1000, limit=500)).gives_up == "25.0% more time"
    # Weights of 1 MB and tensors of 4 bytes: nothing that is computed again frees memory.
    edges = [(k, k + 1, 4) for k in range(5)]
    chain = bl.OpGraph.from_edges([10.0] * 6, edges, persistent_bytes=[10**6] * 6)
    answer = bl.fit(bl.generators.with_backward(chain), bl.Cluster.uniform(1), every_option=True)
    rows = [row for row in answer.options if row.kind in ("recomputation", "more devices") and row.timeline]
    assert {row.gives_up.startswith("gains nothing") for row in rows} == {True}


def test_one_device_more_is_enough_and_no_fewer():
    """Four weights of 60 bytes; a device of 100 holds one of them."""
    graph = bl.OpGraph.from_edges([1] * 4, persistent_bytes=[60] * 4)
    answer = bl.fit(graph, bl.Cluster.uniform(2, memory_bytes=100))
    more_devices = next(option for option in answer.options if option.kind == "more devices")
    assert more_devices.fits and more_devices.choice == "4 devices" and more_devices.gives_up == "2 more devices"
    assert answer.missing_bytes == 20  # two weights on a device


def test_groups_that_fit_nowhere_do_not_end_the_search_for_devices(monkeypatch):
    """Fusion makes a group of 100 bytes of each pair: no device of 90 holds it. Op by op six devices are enough.

    Placers only plan, as they do on large graphs.
    """
    monkeypatch.setattr(best_of_placers, "MAX_REPAIRED_OPS", 0)
    edges = [(0, 1, 10), (2, 3, 10), (4, 5, 10)]
    graph = bl.OpGraph.from_edges([1] * 6, edges, persistent_bytes=[50] * 6)
    cluster = bl.Cluster.uniform(1, memory_bytes=90)
    assert bl.optimize(graph, cluster).persistent_bytes.tolist() == [100] * 3
    more_devices = next(option for option in bl.fit(graph, cluster).options if option.kind == "more devices")
    assert more_devices.fits and more_devices.choice == "6 devices"


def test_bug_the_host_was_one_more_device_in_the_table():
    """An op of 1,000 bytes on the first of two devices, and a host that holds nothing."""
    graph, cluster = bl.OpGraph.from_edges([5], persistent_bytes=[1000]), bl.Cluster.uniform(2).with_host("1GB")
    timeline = bl.simulate(graph, cluster, bl.Placement(device=np.array([0], np.int32)))
    option = FitOption("offloading", graph=graph, cluster=cluster, timeline=timeline)
    assert option.peaks_of_devices_and_hosts == ([1000, 0], [0])
    assert option.texts()[5] == "1.00 kB, 0 B, host 0 B"


@pytest.mark.slow
def test_two_options_together_where_neither_fits():
    """Masks of 3 kB each may not be made again, and the host holds one of them: 10 kB recomputed, one mask less on the host."""
    graph = bl.generators.with_backward(bl.generators.chain(12, size_bytes=(1000, 1000), duration_us=(100, 100)))
    masks = np.isin(np.arange(graph.n), (2, 7))
    graph = graph.replace(
        tensor_bytes=np.where(masks[graph.tensor_producer], 3000, graph.tensor_bytes),
        op_types=["Dropout" if mask else "op" for mask in masks],
    )
    link = bl.Link(50.0, 0.0)
    cluster = bl.Cluster.uniform(1, memory_bytes=9000, link=link).with_host(3500, link=link)
    answer = bl.fit(graph, cluster)
    assert {option.kind for option in answer.options if option.fits} == {"more devices", "recomputation + offloading"}
    pair = next(option for option in answer.options if option.kind == "recomputation + offloading")
    placement = eval(pair.command, {"bl": bl, "graph": graph, "cluster": cluster})  # noqa: S307 (our own text)
    assert bl.simulate(pair.graph, cluster, placement).makespan_us == pair.step_us
    assert bl.check(pair.graph, cluster, pair.placement, pair.timeline) == ()


@pytest.mark.slow
def test_micro_batches_are_recomputed_where_they_do_not_fit():
    """A micro-batch of 4 samples holds 9 values of 4 kB, 36 kB; within 20 kB five of them at once."""
    answer = bl.fit(build, bl.Cluster.uniform(1, memory_bytes="20kB", link=LINK), batch_size=64)
    pairs = [option for option in answer.options if option.kind == "micro-batches + recomputation"]
    assert pairs[-1].fits and pairs[-1].choice.startswith("16 of 4") and not any(option.fits for option in pairs[:-1])
    # 64 kB a value: what an op reads and makes, 192 kB, fits nowhere, so neither devices nor recomputation help the whole batch.
    assert answer.proof.least_bytes == 576_000 and answer.proof.least_devices == 0
    assert "only smaller batches help" in str(answer.proof)
    assert not any(
        option.timeline for option in answer.options if option.kind in ("more devices", "recomputation", "offloading")
    )


@pytest.mark.parametrize("seed", fast(range(12), 4))
def test_what_is_proven_holds_for_every_placement(seed):
    """All placements of small graphs, in two orders: none needs less than proven, also where outputs lie in others."""
    rng = np.random.default_rng(seed)
    n = 5
    edges = [(i, j, int(rng.integers(1, 40))) for j in range(n) for i in range(j) if rng.random() < 0.5]
    graph = bl.OpGraph.from_edges(
        rng.integers(1, 9, n),
        edges,
        temp_bytes=rng.integers(0, 30, n),
        persistent_bytes=rng.integers(0, 20, n),
        reuse=rng.integers(0, 4, n) if seed % 2 else None,
    )
    cluster = bl.Cluster.uniform(2, memory_bytes=1 << 20, link=bl.Link(1.0, 0.1))
    peaks = []
    for home in itertools.product(range(2), repeat=n):
        for order in (None, rng.random(n)):
            peaks.append(bl.simulate(graph, cluster, bl.Placement(device=home, order=order)).peak_bytes)
    least = min(int(peak.max()) for peak in peaks)
    for memory in (least, least - 1, least // 2):
        proof = proof_of(graph, cluster.with_memory(memory))
        assert proof.least_bytes <= least
        assert not (proof.as_it_is or proof.whatever) or memory < least
        assert proof.least_devices <= 2 or memory < least
        assert memory >= proof.least_bytes or proof.as_it_is


def test_bug_no_number_of_devices_was_enough_for_ops_without_memory():
    answer = bl.fit(bl.OpGraph.from_edges([5.0]), bl.Cluster.uniform(2, memory_bytes="1kB"), every_option=True)
    errors = {option.kind: option.error for option in answer.options if option.error}
    assert "more devices" not in errors and answer.fits
    assert errors["recomputation"] == "the graph has no backward pass, before which outputs could be computed again"


def test_bug_64_devices_that_are_enough_were_said_not_to_be():
    answer = bl.fit(bl.OpGraph.from_edges([5.0]), bl.Cluster.uniform(64, memory_bytes="1kB"), every_option=True)
    more_devices = next(option for option in answer.options if option.kind == "more devices")
    assert answer.fits and more_devices.error == "64 devices are there already; up to 64 are tried"
    assert answer.options[0].texts()[5] == "64 x 0 B"


def test_the_front_has_nothing_that_another_beats():
    answer = bl.fit(build, bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK), batch_size=64)
    front = answer.pareto()
    assert front
    times = [option.time_per_sample_us for option in front]
    assert times == sorted(times)


def test_the_code_of_an_option_gives_its_step():
    answer = bl.fit(build, bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK), batch_size=64)
    tried = 0
    for option in answer.cheapest:
        if option.kind in ("smaller batch", "recomputation", "more devices"):
            placement = eval(option.command, {"bl": bl, "build": build, "cluster": answer.cluster})  # noqa: S307 (our own text)
            assert bl.simulate(option.graph, option.cluster, placement).makespan_us == option.step_us
            tried += 1
    assert tried


@pytest.mark.slow
def test_recomputing_and_placing_is_never_worse_than_either():
    graph = build(64)
    cluster = bl.Cluster.uniform(2, memory_bytes="256kB", link=LINK)
    rules = BestOfPlacers(("m-topo", "m-etf"))
    variants = recompute_and_place(graph, cluster, rules, 2)
    alone = []
    for keep in ("sqrt", "boundaries"):
        recomputed = bl.recompute(graph, keep)
        best, _ = rules.fastest(recomputed, cluster)
        alone += [] if best is None else [best[1].makespan_us]
    assert variants and variants[0].timeline.makespan_us <= min(alone, default=np.inf)
    assert all(variant.timeline.feasible for variant in variants)


def test_a_graph_alone_has_no_other_batch():
    answer = bl.fit(build(64), bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK))
    for kind in ("smaller batch", "micro-batches"):
        option = next(option for option in answer.options if option.kind == kind)
        assert not option.fits and "cannot: a graph does not say what another batch costs" in option.error
        assert option.texts()[2] == "not tried"  # "no" would be an answer
    assert np.isnan(answer.options[0].samples_per_second)


def test_bug_nothing_to_offload_was_called_an_option_that_does_not_fit():
    """`no` stood beside a step that fits as it is."""
    graph = bl.OpGraph.from_edges([10.0, 10.0], [(0, 1, 4096)])
    answer = bl.fit(graph, bl.Cluster.uniform(1, memory_bytes="1MB"), every_option=True)
    option = next(option for option in answer.options if option.kind == "offloading")
    assert "no output waits" in option.error and option.texts()[2] == "not tried"
    assert answer.options[0].fits


@pytest.mark.slow
def test_bug_the_table_had_arguments_where_people_read_words():
    answer = bl.fit(build(64), bl.Cluster.uniform(2, memory_bytes="400kB", link=LINK), every_option=True)
    choices = [(option.choice, option.texts()[1]) for option in answer.options if "=" in option.choice]
    assert choices  # recomputation with `keep` or `budget`
    assert not any("=" in text or "'" in text for _, text in choices)
    code = "\n".join(option.command for option in answer.options)
    assert all(choice.split(", ")[-1] in code for choice, _ in choices)


def test_devices_are_added_like_the_last_one():
    links = [[bl.Link(1, 0), bl.Link(2, 0)], [bl.Link(3, 0), bl.Link(4, 0)]]
    cluster = bl.Cluster((bl.Device("a", "cpu", 5), bl.Device("b", "gpu", 7)), links)
    larger = cluster.with_devices(3)
    assert larger.names == ("a", "b", "gpu:0") and larger.memory_bytes.tolist() == [5, 7, 7]
    assert larger.link_between(0, 2) == bl.Link(2, 0) and larger.link_between(1, 2) == bl.Link(3, 0)
    alone = bl.Cluster.uniform(1, link=bl.Link(1, 0)).with_host("1GB", link=bl.Link(9, 0))
    assert alone.with_devices(3).link_between(0, 3) == bl.Link(1, 0)  # not that to the host
    assert alone.with_devices(1) == alone
    with pytest.raises(bl.InvalidInput, match="number of devices is 1; it must be a whole number of at least 2"):
        cluster.with_devices(1)


def test_bad_input_is_rejected():
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
    with pytest.raises(bl.CostError, match="of kind 'gpu' and the graph was estimated for a100, h100"):
        bl.fit(build(8).replace(duration_by_kind=dict.fromkeys(("a100", "h100"), build(8).duration_us)), cluster)
    with pytest.raises(bl.UnknownNameError, match="unknown placer 'm-eft'; did you mean 'm-etf'"):
        bl.fit(build(8), cluster, placers=["m-eft"])
    with pytest.raises(bl.InvalidInput, match="time_limit is -1"):
        bl.fit(build(8), cluster, time_limit=-1)
    with pytest.raises(bl.UnknownNameError, match="unknown model 'gnnt'; did you mean 'gnmt'"):
        bl.fit("gnnt", cluster)
    with pytest.raises(bl.InvalidInput, match=r"graph is 'graph\.json'; .* a file is read by bl\.load_graph"):
        bl.fit("graph.json", cluster)
    with pytest.raises(bl.UnknownNameError, match="unknown hardware 'a1000'"):
        bl.fit(build(8), cluster, hardware="a1000")
    for give_up in ("recompute", ["hope"], [[]], 3):
        with pytest.raises(
            bl.InvalidInput, match=r"give_up is .*; it must be a list of names among 'devices', 'batch'"
        ):
            bl.fit(build(8), cluster, give_up=give_up)


@pytest.mark.slow
def test_the_command_prints_options_and_their_code(tmp_path, capsys):
    bl.save_graph(build(64), path := str(tmp_path / "graph.json"))
    assert main(["fit", path, "--memory", "400kB", "--devices", "1", "--link-latency", "5", "--batch-size", "64"]) == 0
    assert "No: the fullest device lacks" in (printed := capsys.readouterr().out) and "recomputation" in printed
    for memory in ("400kB", "400kB,390kB"):
        options = [
            "--devices",
            str(memory.count(",") + 1),
            "--host-memory",
            "1MB",
            "--give-up",
            "devices,offload",
            "--json",
        ]
        assert main(["fit", path, "--memory", memory, *options]) == 0
        document = json.loads(capsys.readouterr().out)
        namespace = {"bl": bl}
        exec("\n".join(document["setup"]), namespace)
        for option in document["ways"]:
            placement = eval(option["command"] or "None", namespace)  # noqa: S307 (our own text)
            assert placement is None or isinstance(placement, bl.Placement)
        assert namespace["cluster"].memory_bytes.tolist()[-1] == 1_000_000
    assert main(["fit", path, "--memory", "8GB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert main(["fit", path, "--memory", "20kB", "--json"]) == 1  # as `compare` and `simulate`
    captured = capsys.readouterr()
    assert captured.err.startswith("baechi-lab fit: no option that was tried fits (")
    document = json.loads(captured.out)
    assert (
        document["least_bytes"] == 576_000
        and "only smaller batches help" in document["proof"]
        and document["proof"] in document["answer"]
    )
    memory = ["fit", path, "--memory", "400kB", "--devices", "1"]
    assert main([*memory, "--give-up", "devices,recompute", "--json"]) == 0
    document = {option["way"] for option in json.loads(capsys.readouterr().out)["ways"]}
    assert document == {"as it is", "more devices", "recomputation"}
    assert main([*memory, "--give-up", "hope"]) == 2
    assert "--give-up is 'hope'; it must be names among devices, batch" in capsys.readouterr().err
    assert main([*memory, "--host-memory", "8 GBs"]) == 2
    assert "--host-memory: '8 GBs' is not an amount of memory" in capsys.readouterr().err
    assert main(["fit"]) == 2 and "give a graph file or --model NAME" in capsys.readouterr().err


def test_only_smaller_batches_help_is_not_said_of_groups():
    graph = bl.generators.with_backward(bl.generators.chain(8, seed=0))
    answer = bl.fit(bl.optimize(graph), bl.Cluster.uniform(2, memory_bytes="5MB"))
    assert "or the graph that its groups were made of" in str(answer)
    offloading = next(option for option in answer.options if option.kind == "offloading")
    assert (
        "is coarse" in offloading.error
    )  # previously bl.fit raised that of every coarse graph that is not proven too large
    assert bl.fit(graph, bl.Cluster.uniform(2, memory_bytes="5MB")).fits


def test_a_step_that_none_can_beat_has_no_caveat():
    """No op, one, and two equal ones apart, whose devices both work all the time."""
    cluster = bl.Cluster.uniform(2, memory_bytes=100)
    for durations in ([], [5.0], [5.0, 5.0]):
        assert bl.fit(bl.OpGraph.from_edges(durations), cluster).caveat == ""


def test_hosts_alone_compute_and_nothing_is_offloaded_to_them():
    graph = bl.generators.with_backward(bl.generators.chain(8, seed=0))
    hosts = bl.Cluster((bl.Device("h", "host", 5 * 10**6),))
    options_by_kind = {option.kind: option for option in bl.fit(graph, hosts).options}
    assert options_by_kind["more devices"].fits and options_by_kind["recomputation"].fits
    assert "all devices are of kind 'host'" in options_by_kind["offloading"].error
    with pytest.raises(bl.InvalidInput, match="has devices of kind 'host' only"):
        bl.offload(graph, hosts)


def test_a_plan_that_two_choices_make_is_one_row(monkeypatch):
    """As a budget that leaves no better plan than the boundaries of layers."""
    recompute_and_place = options.recompute_and_place

    def twice(*arguments):
        return [
            copy
            for variant in recompute_and_place(*arguments)
            for copy in (variant, dataclasses.replace(variant, description=f"{variant.description} again"))
        ]

    monkeypatch.setattr(options, "recompute_and_place", twice)
    answer = bl.fit(build(64), bl.Cluster.uniform(1, memory_bytes="400kB", link=LINK), give_up=["recompute"])
    rows = [
        (option.step_us, *option.peak_bytes)
        for option in answer.options
        if option.kind == "recomputation" and option.fits
    ]
    assert rows and len(set(rows)) == len(rows)


def test_bug_a_budget_was_named_without_what_the_placement_takes():
    """Persistent bytes of 30 and 10 on two devices, 40 on one."""
    graph = bl.OpGraph.from_edges([1, 1], [(0, 1, 0)], persistent_bytes=[30, 10])
    for device, budget, words in (
        ([0, 1], 25, "batch 4, budget of 25 B for one device, 30 B as placed"),
        ([0, 1], 30, "batch 4, budget of 30 B for one device"),
        ([0, 0], 40, "batch 4, budget of 40 B"),
        ([0, 0], 39, "batch 4, budget of 39 B, 40 B as placed"),
    ):
        cluster = bl.Cluster.uniform(max(device) + 1, memory_bytes=100)
        timeline = bl.simulate(graph, cluster, bl.Placement(device=device))
        option = FitOption(
            "recomputation",
            f"batch 4, budget={budget}",
            cluster=cluster,
            timeline=timeline,
            recomputation={"budget": budget},
        )
        assert option.choice_in_words == words


def test_bug_a_step_that_fits_on_one_device_in_another_order_was_said_not_to():
    """Op 2 reads 3 bytes and makes 2. Behind ops 0 and 1, whose outputs have 3 and 2 bytes, that is 7; before op 1 it is 5."""
    graph = bl.OpGraph.from_edges([1.0] * 4, [(0, 2, 3), (1, 3, 2), (2, 3, 2)])
    answer = bl.fit(graph, bl.Cluster.uniform(1, memory_bytes=5))
    assert answer.fits and answer.best.peak_bytes == [5]
    assert not bl.fit(graph, bl.Cluster.uniform(1, memory_bytes=4), give_up=()).fits
    assert answer.best.command == f"bl.place(graph, cluster, {answer.best.placement.placer!r})"


@pytest.mark.parametrize("seed", range(6))
def test_bug_small_steps_took_up_to_four_times_the_optimum(seed):
    graph = bl.generators.random_dag(6, seed=seed, duration_us=(1.0, 30.0), size_bytes=(10, 60))
    peak_bytes = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    cluster = bl.Cluster.uniform(2, memory_bytes=int(0.8 * peak_bytes), link=bl.Link(5.0, 0.05))
    expected = optimum(graph, cluster)
    answer = bl.fit(graph, cluster, give_up=())
    assert answer.fits == np.isfinite(expected)
    assert not answer.fits or answer.best.timeline.makespan_us == pytest.approx(expected)
