"""`baechi-lab fidelity`: both parts for real on the smallest model, what it stores, and what it refuses."""

import importlib
import itertools
import json
from dataclasses import replace

import pytest

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.executors.tensorflow.calibration import Calibration
from baechi_lab.fidelity import load, load_report, provenance, speed_up_table, store
from baechi_lab.fidelity.study import BUILT_AS, MODELS

COSTS = Calibration(
    1.0, 100.0, bl.Link(5.0, 0.5), bl.Link(2.0, 0.25), bl.Link(10.0, 1.0), 1.0, overlap=bl.Link(1.0, 0.125)
)


@pytest.fixture
def small(monkeypatch):
    """One small model in both parts; calibrations, which have tests of their own, take no time: two have `COSTS` as mean."""
    study, speedup = (importlib.import_module(f"baechi_lab.fidelity.{name}") for name in ("study", "speedup"))
    monkeypatch.setattr(study, "MODELS", {"mlp": {"batch_size": 4}})
    monkeypatch.setattr(speedup, "SPEED_UP", ("mlp", {"batch_size": 4}))
    monkeypatch.setattr(speedup.speed_up, "__defaults__", (speedup.PLACERS[-1:],))
    in_turns = itertools.cycle(replace(COSTS, op_us=us) for us in (0.5, 1.5))
    monkeypatch.setattr(study, "calibrate", lambda local, steps: next(in_turns))
    monkeypatch.setattr(speedup, "calibrate", lambda local: COSTS)


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
def test_both_parts_are_printed_and_stored(small, tmp_path, capsys):
    pytest.importorskip("tensorflow")
    path = tmp_path / "found.json"
    code = main(
        [
            "fidelity",
            "--placements",
            "single,random",
            "--steps",
            "2",
            "--rounds",
            "2",
            "-o",
            str(path),
            "--json",
            "--busy",
        ]
    )
    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [row["placement"] for row in printed["rows"]] == ["single", "random"]
    single, random = load_report(path).rows
    assert single.transfers == 0 < random.transfers and random.predicted_us > single.predicted_us > COSTS.step_us
    assert all(0 < r.measured_low_us <= r.measured_us <= r.measured_high_us for r in (single, random))
    assert all(0.5 < r.simulated_peak_bytes / r.measured_peak_bytes < 2 for r in (single, random))
    for row in (single, random):
        assert sum(row.simulated_peak_parts.values()) == row.simulated_peak_bytes
        assert sum(row.measured_peak_parts.values()) == row.measured_peak_bytes
    assert [row["placer"] for row in printed["speed_up"]] == ["m-etf"]
    stored = load(path)
    assert stored["study"]["rows"] == printed["rows"] and stored["speed_up"]["rows"] == printed["speed_up"]
    for section in (stored["study"], stored["speed_up"]):
        assert section["command"] and section["date"].endswith("UTC") and section["hardware"]["cores"] >= 1
        assert (section["steps"], section["rounds"], section["workers"]) == (2, 2, 2)
    assert stored["study"]["seed"] == 0 and stored["study"]["models"] == {"mlp": {"batch_size": 4}}
    report = load_report(path)
    assert report.calibration == COSTS and [row.placement for row in report.rows] == ["single", "random"]
    assert report.to_dict()["rows"] == printed["rows"]
    table = speed_up_table(path)
    assert table["passes"].tolist() == ["colocation, coplacement, fusion"]
    assert (table["low"] <= table["times_faster"]).all() and (table["times_faster"] <= table["high"]).all()
    assert (table["one_device_ms"] / table["all_devices_ms"]).tolist() == pytest.approx(table["times_faster"].tolist())


OWN_STEP = """
import numpy as np
import tensorflow as tf

def dense():
    w = tf.Variable(np.ones((8, 8), np.float32))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return step, np.ones((4, 8), np.float32)
"""


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
def test_a_step_of_ones_own(small, tmp_path, capsys):
    pytest.importorskip("tensorflow")
    path = tmp_path / "mine.py"
    path.write_text(OWN_STEP)
    command = ["fidelity", "--models", f"{path}:dense", "--placements", "single", "--parts", "study"]
    assert main([*command, "--steps", "2", "--rounds", "1", "--busy", "--json", "-o", str(tmp_path / "o.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["model"], row["placement"]) for row in printed["rows"]] == [("dense", "single")]
    assert load(tmp_path / "o.json")["study"]["models"] == {"mine.py:dense": {}}


def test_files_that_are_not_there(capsys):
    assert main(["fidelity", "--models", "missing.py:step"]) == 2
    assert "missing.py: no such file" in capsys.readouterr().err


def test_parts_are_written_apart(tmp_path):
    path = tmp_path / "found.json"
    store(path, "study", {"rows": [1]})
    store(path, "speed_up", {"rows": [2]})
    store(path, "study", {"rows": [3]})
    assert load(path)["study"] == {"rows": [3]} and load(path)["speed_up"] == {"rows": [2]}


def test_provenance_names_no_folder(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/some/where/baechi-lab", "fidelity", "-o", "a b.json"])
    assert provenance()["command"] == "baechi-lab fidelity -o 'a b.json'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a result of"),
        ('{"format": "baechi_lab"}', "not a result of"),
        (None, "cannot be read"),
    ],
)
def test_files_of_other_kinds_are_rejected(tmp_path, text, message):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(bl.FormatError, match=message):
        load(path)


def test_file_without_a_study(tmp_path):
    store(tmp_path / "found.json", "speed_up", {"rows": []})
    with pytest.raises(bl.FormatError, match="field study is missing"):
        load_report(tmp_path / "found.json")
    store(tmp_path / "found.json", "study", {"rows": [{}], "calibration": {}})
    with pytest.raises(bl.FormatError, match="study is not complete: 'model'"):
        load_report(tmp_path / "found.json")
    assert len(speed_up_table(tmp_path / "found.json")) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "gnmmt"], "did you mean 'gnmt'"),
        (["--parts", "speed-up,speedu"], "did you mean 'speedup'"),
        (["--workers", "1"], "--workers is 1; it must be at least 2"),
        (["--steps", "0"], "--steps is 0"),
        (["--rounds", "x"], "--rounds is 'x'"),
        (["-o", "found.txt"], "must end in .json"),
        (["--placements", ","], "--placements is ','"),
        (["--placements", "m-etff"], "did you mean 'm-etf'"),
    ],
)
def test_bad_options_are_rejected(capsys, arguments, message):
    """Exit code 2 and one line, before a worker starts."""
    assert main(["fidelity", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and message in printed.err


def test_every_model_of_the_study_exists():
    from baechi_lab.models.registry import make_model

    for name, size in MODELS.items():
        model = make_model(BUILT_AS.get(name, name), **size)
        model.validate()
        assert model.get_params().items() >= size.items()
