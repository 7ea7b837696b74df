"""The experiment's command writes one row per placer, each as a simulation of its placement says."""

import json

import pytest

from baechi_lab import OpGraph, save_graph
from baechi_lab.placers.planner import experiment


def test_rows_and_command(tmp_path):
    pytest.importorskip("tensorflow")
    # Two independent ops of 1 s. One GPU: 2 s; two GPUs: 1 s; the CPU at an eighth of the speed: 16 s.
    save_graph(OpGraph.from_edges([1e6, 1e6]), tmp_path / "two.json")
    arguments = [str(tmp_path / "two.json"), str(tmp_path / "out.json"), "--gpus", "2", "--seconds", "0.01"]
    params = {"placer_hidden": 4, "grouper_hidden": 4, "workers": 1, "placement_samples": 64}
    assert experiment.main([*arguments, "--trials", "1", "--params", json.dumps(params)]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["command"].endswith(" ".join(["--params", json.dumps(params)])) and result["seed"] == 0
    found = {row["placer"]: row for row in result["tables"]["2"]}
    assert list(found) == [*experiment.RIVALS, *experiment.LEARNED, "random grouping 0"]
    assert (found["cpu-only"]["step_seconds"], found["gpu-only"]["step_seconds"]) == (16.0, 2.0)
    # ETF takes the earliest start, which the slow CPU offers too: 8 s. 64 draws of 9 placements find 1 s.
    assert (found["m-etf"]["step_seconds"], found["simple-planner"]["step_seconds"]) == (8.0, 1.0)
    assert found["hierarchical"]["samples"] == 64 and "error" in found["expert"]
