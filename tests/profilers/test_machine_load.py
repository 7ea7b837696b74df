"""What a measured profile says of its repeats and of other programs, and when it warns."""

import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.errors import BusyMachine
from baechi_lab.profilers import machine_load
from baechi_lab.profilers.machine_load import OtherPrograms, describe_repeats, summarize_repeats, warn_if_disturbed

OP_US = np.array([[100.0, 900.0, 0.0], [100.0, 1100.0, 0.0], [130.0, 870.0, 0.0]])


def test_spread_of_steps_and_of_ops_by_hand(monkeypatch):
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: 4)
    measured = summarize_repeats(["a", "b", "c"], OP_US, 0.25, 1)
    assert measured["step_us"] == [1000.0, 1200.0, 1000.0]
    assert measured["spread"] == 0.2  # (1200 - 1000) / 1000
    assert measured["op_spread"] == {"a": 0.3, "b": round(230 / 900, 3)}  # c has no share of the work
    assert measured["others_share"] == 0.25 and measured["cores"] == 4
    assert describe_repeats(measured) == "3 repeats took 1.00 ms to 1.20 ms, and other programs used 0.25 of 4 cores"


@pytest.mark.parametrize(
    ("cores", "needed", "share", "busy"),
    [
        (4, 1, 3.0, False),
        (4, 1, 3.2, True),
        (4, 4, 0.1, False),
        (4, 4, 0.2, True),
        (1, 1, 0.1, False),
        (1, 2, 0.2, True),
    ],
)
def test_a_machine_is_busy_where_others_leave_too_few_cores(monkeypatch, cores, needed, share, busy):
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: cores)
    assert summarize_repeats(["a"], np.ones((2, 1)), share, needed)["busy"] is busy


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"busy": True, "others_share": 1.9}, "'mlp' was measured beside other programs: .* used 1.9 of 2 cores"),
        ({"spread": 0.6}, "'mlp' was measured with widely differing times: 2 repeats took 1.00 ms to 1.60 ms"),
        ({"spread": 0.6, "step_us": [100.0, 160.0]}, None),  # so short a step differs on every machine
        ({}, None),
    ],
)
def test_disturbed_measurements_warn(changes, sentence):
    measured = {"step_us": [1000.0, 1600.0], "spread": 0.1, "others_share": 0.0, "cores": 2, "busy": False, **changes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_disturbed("mlp", measured)
    assert [w.category for w in caught] == ([] if sentence is None else [BusyMachine])
    if sentence is not None:
        with pytest.warns(BusyMachine, match=sentence):
            warn_if_disturbed("mlp", measured)


@pytest.fixture
def busy(monkeypatch):
    """Other programs use all of two cores."""
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(OtherPrograms, "share", lambda self: 2.0)


def check_measured(graph, run_count):
    measured = graph.info["measured"]
    assert len(measured["step_us"]) == run_count and min(measured["step_us"]) > 0
    assert measured["spread"] >= 0 and set(measured["op_spread"]) <= set(graph.names) and measured["op_spread"]
    return measured


@pytest.mark.torch
def test_pytorch_profiles_say_their_spread_and_the_load(busy):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    with pytest.warns(BusyMachine, match="'sequential' was measured beside other programs: 3 repeats took") as caught:
        graph = bl.torch.profile(model, torch.ones(4, 8), runs=3)
    assert [one.filename for one in caught if one.category is BusyMachine] == [__file__]  # no line of the package
    measured = check_measured(graph, 3)
    assert measured["busy"] is True and measured["others_share"] == 2.0
    assert float(graph.duration_us.sum()) == pytest.approx(np.mean(measured["step_us"]), rel=1e-3)
    assert "measured" not in bl.torch.profile(model, torch.ones(4, 8), hardware="a100").info


@pytest.mark.slow
@pytest.mark.tensorflow
def test_tensorflow_profiles_say_their_spread_and_the_load():
    step = bl.models.build("mlp", batch_size=2, layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BusyMachine)  # of the machine that runs the tests
        graph = bl.profile(step, runs=3, progress=False)
    measured = check_measured(graph, 3)
    assert measured["others_share"] >= 0
    assert float(graph.duration_us.sum()) == pytest.approx(np.mean(measured["step_us"]), rel=1e-3)
    assert "measured" not in bl.profile(step, mode="estimated").info


def test_what_a_profile_says_is_kept_in_files_and_in_networkx(tmp_path):
    graph = bl.OpGraph.from_edges(
        [1.0, 2.0], [(0, 1, 8)], info={"measured": summarize_repeats(["op0", "op1"], np.ones((2, 2)), 0.0, 1)}
    )
    for name in ("g.json", "g.json.gz"):
        bl.save_graph(graph, tmp_path / name)
        assert dict(bl.load_graph(tmp_path / name).info) == dict(graph.info)
    assert dict(bl.OpGraph.from_networkx(graph.to_networkx()).info) == dict(graph.info)
    assert graph == graph.replace(info={}) and graph.content_key == graph.replace(info={}).content_key
    with pytest.raises(bl.InvalidInput, match="info is 3; it must be a mapping"):
        graph.replace(info=3)


def test_a_step_below_the_bound_is_explained():
    import pandas as pd

    from baechi_lab.step_summary import note_on_bound

    graph = bl.OpGraph.from_edges(
        [1.0], info={"measured": summarize_repeats(["op0"], np.array([[240.0], [4256.0]]), 1.5, 1)}
    )
    table = pd.DataFrame(
        {
            "placer": ["single", "m-etf", "m-sct"],
            "measured_us": [250.0, 174.1, np.nan],
            "lower_bound_us": [240.8] * 3,
        }
    )
    (note,) = note_on_bound(table, graph)
    assert note.startswith(
        "m-etf measured 174.10 us, below the lower bound of 240.80 us: the bound holds for the times of"
    )
    assert "2 repeats took 240.00 us to 4.26 ms, and other programs used 1.5 of" in note
    assert note_on_bound(table[:1], graph) == () == note_on_bound(table[2:], graph)
