"""The experiment's command writes one row per placer, each as a simulation of its placement says."""

import json

import numpy as np
import pytest

from baechi_lab import Cluster, OpGraph, save_graph
from studies.planner import experiment, tables
from studies.results import result


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_command_stores_a_row_per_trial(tmp_path, eager_networks):
    pytest.importorskip("tensorflow")
    # Two independent ops of 1 s. One GPU: 2 s; two GPUs: 1 s; the CPU at an eighth of the speed: 16 s.
    save_graph(OpGraph.from_edges([1e6, 1e6]), tmp_path / "two.json")
    params = {"placer_hidden": 4, "grouper_hidden": 4, "workers": 1, "placement_samples": 64}
    arguments = [str(tmp_path / "out.json"), "--graph", str(tmp_path / "two.json"), "--gpus", "2", "--seconds", "0.01"]
    assert experiment.main([*arguments, "--trials", "1", "--params", json.dumps(params)]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["command"].endswith(" ".join(["--params", json.dumps(params)])) and result["seed"] == 0
    assert result["budget"].startswith("0.01 s") and result["took_seconds"] > 0 and len(result["date"]) == 10
    (cell,) = result["cells"]
    row_of_placer = {row["placer"]: row for row in cell["rows"]}
    on_ops = ["hierarchical on ops", "random grouping 0 on ops"]
    assert list(row_of_placer) == [*experiment.RIVALS, *experiment.LEARNED, *on_ops]
    assert (row_of_placer["cpu-only"]["step_seconds"], row_of_placer["gpu-only"]["step_seconds"]) == (16.0, 2.0)
    # ETF gets the GPUs alone: one op each. 64 draws of 9 placements find that, too.
    assert (row_of_placer["m-etf"]["step_seconds"], row_of_placer["simple-planner"]["step_seconds"]) == (1.0, 1.0)
    assert row_of_placer["hierarchical"]["samples"] == 64 and "error" in row_of_placer["expert"]


def test_cells_are_those_of_the_papers():
    # H, Table 1 (models and GPUs) and section 3 (batch sizes); B, Table 2 (GNMT on 4 GPUs).
    setting_of_cell = {cell.name: (cell.gpus, cell.params.get("batch_size")) for cell in experiment.CELLS}
    assert setting_of_cell == {
        "Inception-V3": (2, 1),
        "ResNet": (2, 128),
        "RNNLM": (2, 64),
        "NMT (2-layer)": (2, 64),
        "NMT (4-layer)": (4, 64),
        "NMT (8-layer)": (8, 64),
        "GNMT": (4, 128),
    }


@pytest.mark.tensorflow
@pytest.mark.slow
def test_learning_rates_are_compared(monkeypatch, eager_networks):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(experiment, "LEARNING_RATES", (0.1, 0.001))
    graph = OpGraph.from_edges([1e6] * 4)
    cluster = Cluster.uniform(2)
    rows = experiment.learning_rates(graph, cluster, 0.01, 0, placer_hidden=4, groups=4, workers=1, noise_updates=0)
    assert [row["learning_rate"] for row in rows] == [0.1, 0.001]
    for row in rows:  # four ops of 1 s on two devices: between 2 and 4 s
        assert 2.0 - 1e-9 <= row["best_seconds"] <= 4.0 + 1e-9 and row["updates"] >= 1
        assert -2.0 - 1e-6 <= row["last_reward"] <= -(2.0**0.5) + 1e-6


def test_tables_of_the_planner_by_hand():
    steps = {
        "cpu-only": 8.0,
        "gpu-only": 4.0,
        "expert": 5.0,
        "scotch": 6.0,
        "metis": 3.0,
        "m-topo": 4.0,
        "m-etf": 2.0,
        "m-sct": 2.5,
        "hierarchical": 1.5,
        "coloc-rl": 2.0,
        "simple-planner": 2.0,
        "hierarchical on ops": 3.0,
        "random grouping 0 on ops": 4.0,
        "random grouping 1 on ops": 6.0,
    }
    learned = [name for name in steps if name in experiment.LEARNED or name.endswith("on ops")]
    rows = [
        {
            "placer": name,
            "step_seconds": step,
            "feasible": name != "expert",
            "place_seconds": 0.5,
            **({"updates": 7, "samples": 28, "place_seconds": 10.0} if name in learned else {}),
        }
        for name, step in steps.items()
    ]
    results = {"cells": [{"name": "RNNLM", "gpus": 2, "rows": rows}]}
    first = tables.table_1(results).loc["RNNLM"]
    assert (first["GPUs"], first["min-cut"], first["reduction"]) == (2, 3.0, 1 - 1.5 / 3.0)
    assert first.isna()["expert"]
    second = tables.table_2(results).loc["RNNLM"]
    assert second.tolist() == [4.0, 5.0, 6.0, 3.0, 1 - 3.0 / 4.0, 7]
    took = tables.placing_times(results).loc[("RNNLM", "m-etf")]
    assert (took["times_longer"], took["samples"], took["step_learned_over_rival"]) == (20.0, 28, 0.75)
    # Counts are whole numbers, where a table of them and of seconds made all of them 2.0.
    assert tables.table_1(results)["GPUs"].dtype == tables.table_2(results)["updates"].dtype == np.int64
    assert tables.placing_times(results)["samples"].dtype == np.int64
    assert tables.paper_table_1().loc["NMT (4-layer)", "hierarchical"] == 1.69


def test_stored_results_hold_every_cell():
    results = result("planner")
    assert {"command", "seed", "date", "took_seconds", "budget", "hardware"} <= set(results)
    assert [cell["name"] for cell in results["cells"]] == [cell.name for cell in experiment.CELLS]
    assert list(tables.table_1(results).index) == [cell.name for cell in experiment.CELLS]
    best = {row["learning_rate"]: row["last_entropy"] for row in results["cells"][-1]["learning_rates"]}
    assert best[0.1] < 0.01 < best[0.005]  # what the parameter's text says


def test_compared_groupings_by_hand():
    def row(grouping, seed, seconds, best, **columns):
        curve = [[16, seconds / 2, 2 * best], [32, seconds, best]]
        return {
            "grouping": grouping,
            "seed": seed,
            "samples": 32,
            "train_seconds": seconds,
            "best_seconds": best,
            "curve": curve,
            **columns,
        }

    rows = [
        row("learned", 0, 10.0, 1.0, updates=2),
        row("learned", 1, 30.0, 3.0, updates=2),
        row("random", 0, 8.0, 4.0, updates=2),
        row("random", 1, 8.0, 6.0, updates=2),
        row("random placement", 0, 1.0, 9.0),
    ]
    table = tables.compared_groupings({"cells": [{"on": "ops", "rows": rows}]})
    learned = table.loc[("ops", "learned")]
    # The fastest run took 8 s: by then, seed 0 has its first point and seed 1 none yet.
    assert (learned["median"], learned["median after 8 s"], learned["seconds"]) == (2.0, float("inf"), 20.0)
    assert table.loc[("ops", "random")].tolist() == [4.0, 6.0, 5.0, 5.0, 32, 8.0]
    assert table.loc[("ops", "random placement"), "median after 8 s"] == 9.0


@pytest.mark.tensorflow
@pytest.mark.slow
def test_command_compares_groupings(tmp_path, eager_networks):
    pytest.importorskip("tensorflow")
    pytest.importorskip("pymetis")
    save_graph(OpGraph.from_edges([1e6, 1e6]), tmp_path / "two.json")
    arguments = [str(tmp_path / "out.json"), "--graph", str(tmp_path / "two.json"), "--gpus", "2", "--groupings", "4"]
    params = {"placer_hidden": 4, "grouper_hidden": 4, "workers": 1}
    assert experiment.main([*arguments, "--seeds", "4", "--on", "ops", "--params", json.dumps(params)]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    (cell,) = result["cells"]
    assert (cell["on"], cell["ops"], result["seed"]) == ("ops", 2, [4]) and result["budget"].startswith("4 updates")
    best = {row["grouping"]: row["best_seconds"] for row in cell["rows"]}
    # Two ops of 1 s and two GPUs: every one of 64 samples would have to miss 2 of 9 placements. METIS keeps them apart.
    assert best["metis"] == best["learned"] == best["random placement"] == 1.0 and best["random"] >= 1.0


def test_stored_groupings_are_what_the_notebook_says():
    for on in ("optimized", "ops"):
        results = result(f"planner_groupings_{on}")
        assert {"command", "seed", "date", "took_seconds", "budget", "hardware"} <= set(results)
        assert "--groupings" in results["command"] and results["seed"] == [0, 1, 2]
        table = tables.compared_groupings(results).loc[on]
        assert len(set(table["samples"])) == 1
        for column in (name for name in table if name.startswith("median")):
            assert table.loc["learned", column] < min(table.loc[["random", "random placement"], column])
