"""Stored results say how they were made, and the studies that notebooks read from write what they print."""

import importlib.util
import json
import re

import pytest

import baechi_lab as bl
from studies import attack, budgets, critical_path, growth
from studies.results import result, result_names, result_path


def commands(name):
    """Returns command and date of a result, or of each of its parts."""
    stored = result(name)
    results = [entry for entry in stored.values() if isinstance(entry, dict)] if "format" in stored else [stored]
    return [(entry["command"], entry["date"]) for entry in results]


@pytest.mark.parametrize("name", result_names())
def test_every_result_names_a_command_that_exists_and_a_date(name):
    assert commands(name)
    for command, date in commands(name):
        assert re.match(r"20\d\d-\d\d-\d\d", date)
        if module := re.match(r"python -m (\S+)", command):
            assert importlib.util.find_spec(module[1]), command
        else:
            assert command.startswith("baechi-lab "), command


@pytest.mark.parametrize("name", result_names())
def test_no_result_names_a_folder_of_the_machine_that_made_it(name):
    assert not re.search(r"(?<![\w.])/(home|root|tmp|opt|work|Users)/", result_path(name).read_text("utf-8"))


def test_an_unknown_result_is_rejected():
    with pytest.raises(bl.UnknownNameError, match="did you mean 'growth'"):
        result("growht")


@pytest.mark.slow
def test_attack_finds_and_stores_what_it_prints(tmp_path, capsys):
    attack.main(["--steps", "6", "--store", str(tmp_path / "attack.json")])
    document = json.loads((tmp_path / "attack.json").read_text())
    assert (document["seed"], document["steps"], len(document["pairs"])) == (0, 6, 4 * 3)
    assert len(capsys.readouterr().out.splitlines()) == 12
    for pair in document["pairs"]:
        edges = tuple(tuple(edge) for edge in pair["edges"])
        worst = attack.Instance(tuple(pair["durations"]), edges, tuple(pair["speeds"]), pair["us_per_byte"])
        assert attack.ratio(worst, pair["attacked"], pair["other"]) == pytest.approx(pair["ratio"])


def test_attack_needs_a_step():
    with pytest.raises(bl.InvalidInput, match="at least one step per restart"):
        attack.search("m-etf", "heft", 0, 0)


def test_growth_stores_a_row_per_case(tmp_path):
    growth.main(["--largest", "1000", "--store", str(tmp_path / "growth.json")])
    rows = json.loads((tmp_path / "growth.json").read_text())["rows"]
    assert [(row["ops"], row["devices"]) for row in rows] == [(1000, devices) for devices in growth.DEVICES]


def test_the_critical_path_study_draws_costs_and_clusters_as_the_paper_says():
    """Section 5.1: durations and sizes from 1 to 100, speeds from 10 to 100, 50 devices."""
    network = bl.generators.random_dag(30, seed=1)
    graph, cluster = critical_path.draw(network, seed=0)
    assert cluster.n == 50 and 10 <= cluster.speed.min() < cluster.speed.max() <= 100
    assert graph.duration_us.min() >= 1 and graph.duration_us.max() <= 100 and graph.tensor_bytes.max() <= 100
    rows = critical_path.experiment(network, seeds=2, partitioners=("hash", "heft"))
    assert len(rows) == 2 * 2 * 3 and (rows["time"] >= rows["bound"] * (1 - 1e-12)).all()
    times = rows[(rows["partitioner"] == "heft") & (rows["scheduler"] == "pct")]["time"]
    table = critical_path.summary(rows)
    assert table.loc["heft", (network.name, "pct")] == f"{times.mean():.0f} ± {times.std():.0f}"


def test_the_ten_tasks_are_those_of_the_tests():
    """HEFT's makespan is 80 (Topcuoglu, Hariri, Wu 2002)."""
    graph, cluster = critical_path.ten_tasks()
    assert bl.simulate(graph, cluster, bl.place(graph, cluster, "heft")).makespan_us == 80.0


@pytest.mark.slow
def test_budgets_stores_what_each_way_repeats_and_what_is_proven(tmp_path):
    """No form repeats less than its bound, all plans no more than those that run an op once."""
    budgets.main(["--ops", "14", "--seconds", "30", "--store", str(tmp_path / "budgets.json")])
    stored = json.loads((tmp_path / "budgets.json").read_text())
    assert stored["command"] == "python -m studies.budgets --seconds 30 --seed 0 --store FILE"
    assert [row["share"] for row in stored["rows"]] == list(budgets.SHARES)
    for row in stored["rows"]:
        assert row["once"]["status"] == row["free"]["status"] == "Optimal"
        assert row["free"]["repeated"] <= row["once"]["repeated"] <= row["chains"]
        assert row["once"]["bound"] <= row["once"]["repeated"] + 1e-5
