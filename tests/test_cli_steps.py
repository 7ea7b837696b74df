"""Sub-commands that trace, run and export TensorFlow steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_script import run_torch

import baechi_lab as bl
from baechi_lab.cli import main

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

pytest.importorskip("tensorflow")

STEP_FILE = """
import numpy as np
import tensorflow as tf


def small():
    weights = tf.Variable(np.ones((4, 3), np.float32), name="weights")

    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(x @ weights))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    return train_step, np.ones((2, 4), np.float32)


def needs_arguments(x):
    return x


def broken():
    def train_step(x):
        return x @ tf.ones((5, 5))

    return train_step, np.ones((2, 4), np.float32)
"""


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Run the command in an empty folder; returns exit code, the JSON it printed, and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(STEP_FILE)

    def run(*argv):
        code = main([*argv, "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else None, printed.err

    return run


def test_named_hardware_is_estimated_and_never_measured(call):
    """Previously `--hardware h100` without --mode measured this machine."""
    code, facts, _ = call("profile", "steps.py:small", "--hardware", "h100", "--precision", "tf32")
    assert code == 0
    assert (facts["mode"], facts["device"], facts["estimate"]["precision"]) == ("estimated", "h100", "tf32")
    assert facts["estimate"]["hardware"]["gpu"] == "h100"
    code, _, err = call("profile", "steps.py:small", "--mode", "measured", "--hardware", "h100")
    assert code == 2
    assert "mode is 'measured' and hardware is 'h100'; a measurement is of this machine" in err
    code, _, err = call("run", "steps.py:small", "--mode", "measured", "--hardware", "h100")
    assert code == 2
    assert "mode is 'measured' and hardware is 'h100'" in err
    code, _, err = call("profile", "steps.py:small", "--hardware", "h100", "--precision", "bf17")
    assert code == 2
    assert "unknown precision 'bf17'; did you mean 'bf16'?" in err


def test_profile_place_run_export_by_files(call, tmp_path):
    code, facts, _ = call("profile", "steps.py:small", "--mode", "estimated", "--hardware", "v100", "-o", "graph.json")
    assert code == 0
    graph = bl.load_graph("graph.json")
    assert facts["ops"] == graph.n
    assert facts["persistent_bytes"] == 4 * 3 * 4  # one variable of 4 x 3 float32
    assert call("place", "graph.json", "--devices", "2", "--placer", "m-topo", "-o", "placement.json")[0] == 0
    code, out, _ = call("run", "steps.py:small", "--placement", "placement.json", "--devices", "2", "--steps", "3")
    assert code == 0
    assert out["status"] == "ok"
    assert len(out["step_seconds"]) == 3
    assert out["measured_us"] > 0
    assert out["simulated_us"] is None  # no profile was made here
    placing = ("steps.py:small", "--placement", "placement.json", "--devices", "2")
    code, facts, _ = call("export", *placing, "--format", "dot", "-o", "plan.dot")
    assert code == 0 and facts["text"].startswith("digraph") and facts["text"] == Path("plan.dot").read_text()
    assert call("export", *placing, "--format", "vllm")[0] == 2  # the step has no numbered layers
    code, facts, _ = call("export", "steps.py:small", "--placement", "placement.json", "--devices", "2", "-o", "out")
    assert code == 0
    assert (tmp_path / "out" / "train.py").is_file()


def test_bug_the_repeats_of_a_profile_were_a_line_of_113_characters():
    from baechi_lab.cli.profile import in_words

    measured = {"step_us": [79.93, 185.2, 100.0], "others_share": 1.25, "cores": 16}
    assert in_words({"measured": measured}) == {
        "measured": "3 repeats took 79.93 us to 185.20 us",
        "meanwhile": "other programs used 1.2 of 16 cores",
    }


def test_run_places_by_itself(call, tmp_path):
    code, out, _ = call(
        "run",
        "mlp",
        "--batch-size",
        "4",
        "--mode",
        "estimated",
        "--devices",
        "2",
        "--steps",
        "2",
        "--trace",
        "trace.json",
    )
    assert code == 0
    assert out["simulated_us"] > 0
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())


def test_micro_batches_run_and_export(call, tmp_path):
    """Four micro-batches of 8 samples: simulated and measured under 1F1B; the stages come from the placer for steps."""
    model = (
        "mlp",
        "--batch-size",
        "32",
        "-p",
        "layers=4",
        "--devices",
        "2",
        "--kind",
        "cpu",
        "--link-latency",
        "1",
        "--mode",
        "estimated",
    )
    cut = ("--hardware", "cpu-core", "--micro-batches", "4", "--schedule", "1f1b")
    code, out, _ = call("run", *model, *cut, "--steps", "2", "--trace", "trace.json")
    assert code == 0 and out["status"] == "ok" and out["simulated_us"] > 0
    assert any(event["name"].endswith("/mb3") for event in json.loads(Path("trace.json").read_text())["traceEvents"])
    assert call("export", *model, *cut, "-o", "out")[0] == 0
    plan = json.loads((tmp_path / "out" / "placement.json").read_text())
    assert plan["micro_batches"] == 4 and plan["inputs"][0]["shape"] == [8, 32]
    assert call("run", *model, "--micro-batches", "5")[0] == 2
    code, _, error = call("run", *model, "--micro-batches", "4", "--schedule", "1f2b")
    assert code == 2 and "unknown schedule '1f2b'" in error


def test_bug_a_tensorflow_step_of_a_file_was_not_cut_without_a_word(call, tmp_path):
    """It is one micro-batch: its function may fix the number of samples."""
    placing = ("--hardware", "cpu-core", "--devices", "2", "--micro-batches", "3")
    code, _, error = call("export", "steps.py:small", *placing, "-o", "out")
    assert (
        code == 0 and "note: the TensorFlow step of steps.py:small is one micro-batch: what runs has 3 times" in error
    )
    assert json.loads((tmp_path / "out" / "placement.json").read_text())["inputs"][0]["shape"] == [2, 4]
    code, _, error = call("export", "mlp", "--batch-size", "6", "-p", "layers=2", *placing, "-o", "cut")
    assert code == 0 and "is one micro-batch" not in error


def test_demo_is_the_whole_main_job(call, tmp_path):
    code, facts, _ = call("demo", "--model", "mlp", "--devices", "2", "--steps", "2", "-o", "exported")
    assert code == 0
    assert [row["placer"] for row in facts["comparison"]] == ["m-topo", "m-etf", "m-sct"]
    assert facts["best"] in {row["placer"] for row in facts["comparison"]}
    best = next(row for row in facts["comparison"] if row["placer"] == facts["best"])
    assert best["makespan_us"] == facts["simulated_us"] == min(row["makespan_us"] for row in facts["comparison"])
    assert all(row["makespan_us"] >= row["lower_bound_us"] for row in facts["comparison"])
    assert facts["measured_us"] > 0
    assert (tmp_path / "exported" / "train.py").is_file()


def test_step_that_cannot_be_traced(call):
    code, _, err = call("profile", "steps.py:broken", "--mode", "estimated")
    assert code == 2
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "train_step" in err


def test_placement_for_more_devices_than_given(call):
    bl.save_graph(bl.OpGraph.from_edges([1.0]), "graph.json")
    from baechi_lab.graph.formats.files import save

    save(bl.Placement(device=[3]), "placement.json")
    code, _, err = call("run", "steps.py:small", "--placement", "placement.json", "--devices", "2")
    assert code == 2
    assert "uses 4 devices; --devices is 2" in err


def test_demo_says_why_nothing_fits(call):
    code, _, err = call("demo", "--model", "mlp", "--devices", "2", "--memory", "1kB", "--steps", "1")
    assert code == 2
    assert "no placer found a placement that fits" in err


@pytest.mark.parametrize(
    ("file", "text"), [("steps.py:needs_arguments", "TypeError"), ("wrong.py:step", "SyntaxError")]
)
def test_what_the_readers_file_raises_is_one_sentence(call, tmp_path, file, text):
    (tmp_path / "wrong.py").write_text("def step(:\n")
    code, printed, err = call("profile", file)
    assert (code, printed) == (2, None)
    assert text in err
    assert "Traceback" not in err


def test_links_are_measured_and_the_cluster_is_used(call, monkeypatch):
    """The calibration, which has tests of its own, takes no time here."""
    from baechi_lab.executors.tensorflow import calibration

    none = bl.Link(30.0, 0.0)
    costs = calibration.Calibration(0.0, 0.0, none, none, none, 1.0)
    monkeypatch.setattr(calibration, "calibrate", lambda local: costs)
    code, out, _ = call("links", "--workers", "2", "--repeats", "1", "--memory", "1GB", "-o", "two.json")
    assert code == 0
    cluster = bl.load_cluster("two.json")
    assert out["comm"] == cluster.comm and cluster.memory_bytes.tolist() == [10**9] * 2
    assert [row["source"] for row in out["links"]] == list(cluster.names)
    assert out["links"][0]["us_per_byte"] == cluster.link_between(0, 1).us_per_byte
    bl.save_graph(bl.OpGraph.from_edges([1e6, 1e6, 1.0], [(0, 2, 4), (1, 2, 4)]), "graph.json")
    code, rows, _ = call("compare", "graph.json", "--cluster", "two.json", "--placers", "m-etf", "--no-optimize")
    assert code == 0
    assert (
        rows[0]["makespan_us"]
        == bl.compare(bl.load_graph("graph.json"), cluster, ["m-etf"], progress=False)["makespan_us"][0]
    )


def test_cluster_files_and_servers_that_are_none(call):
    bl.save_graph(bl.OpGraph.from_edges([1.0]), "graph.json")
    assert "field kind is 'graph'; it must be 'cluster'" in call("compare", "graph.json", "--cluster", "graph.json")[2]
    code, _, err = call("links", "--servers", "127.0.0.1:1,127.0.0.1:2")
    assert code == 2
    assert "worker '127.0.0.1:1' does not answer" in err
    assert "--workers is 1; it must be at least 2" in call("links", "--workers", "1")[2]
    code, _, err = call("links", "--servers", "127.0.0.1:1")  # previously an empty table
    assert code == 2 and "--servers is '127.0.0.1:1'; it must name at least 2 workers" in err


def test_native_steps_beside_placed_ones(call):
    assert (
        call("profile", "steps.py:small", "--mode", "estimated", "--hardware", "cpu-core", "-o", "graph.json")[0] == 0
    )
    options = ("--devices", "2", "--kind", "cpu", "--steps", "2", "--native")
    code, rows, _ = call("compare", "graph.json", "--placers", "single", "--step", "steps.py:small", *options)
    assert code == 0 and [row["placer"] for row in rows] == ["single", "native (tf.function)"]
    assert rows[1]["native_ratio"] == 1.0 and rows[0]["native_ratio"] > 0
    code, out, _ = call("run", "steps.py:small", "--mode", "estimated", "--hardware", "cpu-core", *options)
    assert code == 0 and out["native"]["tf.function"]["measured_us"] > 0 and out["native_ratio"] > 0
    code, _, error = call("compare", "graph.json", "--native")
    assert code == 2 and "--native needs the step that graph.json is a profile of: give --step MODEL" in error


TORCH_FILE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def error(outputs, target):
    return nn.functional.mse_loss(outputs, target)


def module():
    return Net(), torch.ones(4, 6)


def positional():
    return nn.Bilinear(2, 3, 4), torch.ones(4, 2), torch.ones(4, 3)


def alone():
    return Net()
"""
TORCH_STEP_FILE = """
import torch
import nets
import baechi_lab as bl


def step():
    target = (torch.zeros(4, 2),)
    return bl.torch.TorchStep(
        "net", nets.Net, (torch.ones(4, 6),), loss=nets.error, targets=target, optimizer=torch.optim.SGD
    )
"""


@pytest.fixture
def torch_files(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "nets.py").write_text(TORCH_FILE)
    (tmp_path / "torch_steps.py").write_text(TORCH_STEP_FILE)


@pytest.mark.torch
@pytest.mark.parametrize("model", ["torch_steps.py:step", "nets.py:module", "nets.py:positional"])
def test_pytorch_steps_run_and_become_scripts(call, torch_files, tmp_path, model):
    placing = ("--devices", "2", "--placer", "m-topo", "--kind", "cpu", "--no-optimize")
    code, out, err = call("run", model, "--steps", "2", *placing)
    assert code == 0, err
    assert out["status"] == "ok" and len(out["step_seconds"]) == 2 and out["simulated_us"] > 0
    code, facts, err = call("export", model, *placing, "-o", "out")
    assert code == 0, err
    assert ("the step has no optimizer, so train.py computes gradients" in err) == model.startswith("nets.py")
    assert facts == {"folder": "out", "script": "out/train.py"}
    script = run_torch(tmp_path / "out")
    assert script.returncode == 0 and "loss" in script.stdout, script.stderr


@pytest.mark.torch
def test_micro_batches_and_plans_of_a_pytorch_step(call, torch_files, tmp_path):
    placing = ("nets.py:module", "--devices", "2", "--kind", "cpu", "--placer", "contiguous")
    code, out, err = call("run", *placing, "--micro-batches", "2", "--schedule", "gpipe", "--steps", "2")
    assert code == 0 and out["status"] == "ok", err
    code, facts, err = call("export", *placing, "--format", "device_map")
    assert code == 0 and set(json.loads(facts["text"])) <= {"", "first", "second"}, err
    code, _, err = call("export", "steps.py:small", "--devices", "2", "--mode", "estimated", "--format", "device_map")
    assert code == 2 and "--format device_map divides a PyTorch model, which steps.py:small is not" in err
    assert "note:" not in err  # what was noticed on the way to an error is not said


def test_bug_two_batch_sizes_of_one_model(call):
    code, _, err = call("profile", "mlp", "--batch-size", "2", "-p", "batch_size=3")
    assert (code, err) == (
        2,
        "baechi-lab profile: parameter batch_size is given more than once: by --batch-size and by -p\n",
    )


def test_an_error_without_words_ends_without_a_colon(call):
    code, _, err = call("profile", "mlp", "-p", "layers=999999999999")
    assert (code, err) == (2, "baechi-lab profile: the step of model 'mlp' takes more memory than there is\n")


def test_bug_a_device_map_of_a_benchmark_model_was_refused_after_it_was_profiled(call):
    code, _, err = call("export", "mlp", "--format", "device_map")
    assert (code, err) == (2, "baechi-lab export: --format device_map divides a PyTorch model, which mlp is not\n")


@pytest.mark.torch
def test_a_pytorch_module_without_inputs_is_refused(call, torch_files):
    for command in ("profile", "run", "export"):
        code, _, err = call(command, "nets.py:alone")
        assert code == 2 and "returned a PyTorch module without inputs; it must return (module, *inputs)" in err
