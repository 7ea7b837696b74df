"""What `pip install .` alone can do: everything with graph files and the workbench, without numba and any framework.

What needs a part that is not installed says so in one sentence, with the command that installs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ABSENT = (
    "numba",
    "tensorflow",
    "keras",
    "torch",
    "accelerate",
    "transformers",
    "onnx",
    "ortools",
    "pymetis",
    "cryptography",
    "distributed",
)

PROGRAM = """
import json, sys

sys.modules.update(dict.fromkeys({absent!r}))  # None: what Python documents as not importable
import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.cli import main
from baechi_lab.lessons import LESSONS, lesson

outcome = {{}}
graph = bl.generators.random_dag(30, colocation_groups=3, persistent_bytes=1 << 20, temp_bytes=1 << 10, seed=5)
bl.save_graph(graph, "graph.json")
graph = bl.load_graph("graph.json")
cluster = bl.Cluster.uniform(2, memory_bytes=1 << 30, link=bl.Link(20.0, 0.001))
groups = bl.optimize(graph, cluster)
placement = bl.place(groups, cluster, "m-etf")
timeline = bl.simulate(graph, cluster, placement)
outcome["violations"] = len(bl.check(graph, cluster, placement.on(graph), timeline))
outcome["gap"] = timeline.makespan_us / bl.bounds(graph, cluster).best
outcome["rows"] = len(bl.compare(graph, cluster, ["m-topo", "m-etf", "m-sct"], progress=False))
small_graph = bl.generators.random_dag(6, persistent_bytes=1 << 20, seed=5)  # plain Python needs a second for it
outcome["fits"] = bl.fit(small_graph, cluster).fits
outcome["traces"] = [len(figure.data) > 0 for figure in (viz.gantt(timeline), viz.memory(timeline), viz.graph(groups, placement))]
bench = bl.Workbench(graph, cluster, placer="m-etf")
outcome["workbench"] = bench.outcome.timeline.makespan_us > 0
outcome["lessons"] = [repr(lesson(name)(1, ...)) for name in LESSONS]
outcome["codes"] = [main(words.split()) for words in (
    "place graph.json --placer m-sct -o placement.json", "simulate graph.json placement.json", "doctor",
    "run mlp", "profile mlp -o g.json", "profile hf:graph.json -o g.json", "place graph.json --placer metis", "links",
)]
calls = dict(
    trace=lambda: bl.trace(lambda: 1), profile=lambda: bl.profile(lambda: 1), build=lambda: bl.models.build("mlp"),
    describe=lambda: bl.models.describe("mlp"), torch=lambda: bl.Cluster.from_torch(),
    tensorflow=lambda: bl.Cluster.from_tensorflow(),
    torch_profile=lambda: bl.torch.profile, workers=lambda: bl.LocalCluster(2), links=lambda: bl.measure_link("cpu:0", "cpu:1"),
    learned=lambda: bl.place(graph, cluster, "hierarchical"), exact=lambda: bl.place(graph, cluster, "exact"),
    metis=lambda: bl.place(graph, cluster, "metis"), onnx=lambda: bl.profile_program("model.onnx"),
    secret=lambda: bl.make_secret("file"),
)
outcome["missing"] = {{}}
for name, call in calls.items():
    try:
        call()
    except bl.MissingPackage as error:
        outcome["missing"][name] = str(error)
outcome["calls"] = list(calls)
outcome["loaded"] = [name for name in {absent!r} if sys.modules[name] is not None]
print(json.dumps(outcome))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("core")
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(absent=ABSENT)], capture_output=True, text=True, cwd=folder, timeout=250
    )
    assert completed.returncode == 0, completed.stderr
    return {**json.loads(completed.stdout.splitlines()[-1]), "stderr": completed.stderr}


@pytest.mark.subprocess
@pytest.mark.slow
def test_graph_files_need_no_framework(outcome):
    assert outcome["violations"] == 0 and outcome["gap"] >= 1 and outcome["rows"] == 3 and outcome["fits"]
    assert outcome["traces"] == [True] * 3 and outcome["workbench"]
    assert len(outcome["lessons"]) >= 6
    assert outcome["loaded"] == []


@pytest.mark.subprocess
@pytest.mark.slow
def test_what_is_missing_is_one_sentence_with_a_command(outcome):
    assert sorted(outcome["missing"]) == sorted(outcome["calls"])
    assert [text for text in outcome["missing"].values() if "pip install" not in text or "\n" in text] == []
    assert [text for text in outcome["missing"].values() if "pip install baechi" in text] == []


@pytest.mark.subprocess
@pytest.mark.slow
def test_commands_end_with_2_and_the_sentence(outcome):
    assert outcome["codes"] == [0, 0, 0, 2, 2, 2, 2, 2]
    assert "Traceback" not in outcome["stderr"]
    assert outcome["stderr"].count("(in a checkout: pip install") == 5
