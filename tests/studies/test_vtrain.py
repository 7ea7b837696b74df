"""GPT iterations on A100s: the graph of a micro-batch, the stored calibration, and the errors of the rows left out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from baechi_lab import Cluster, check, simulate, unroll
from baechi_lab.errors import FormatError
from baechi_lab.graph.hardware import Hardware
from studies.results import result
from studies.vtrain.gpt import ADAM_BYTES, GPT, layer_rows, microseconds, pipeline
from studies.vtrain.study import ROWS, predicted_ms, read, spread_rows

DATA = Path(__file__).parents[2] / "data" / "vtrain" / "a100_single_node_even.csv"
A100 = Hardware.named("a100").as_roofline()


def calibrated() -> Hardware:
    return replace(A100, launches_hidden=True, **result("vtrain")["hardware"])


def test_flops_of_a_layer_are_the_published_formula():
    """24 B s h^2 + 4 B s^2 h for a forward pass (Narayanan et al. 2021, doi:10.1145/3458817.3476209, appendix)."""
    b, s, h = 2, 1024, 2048
    flops = sum(row[0] for row in layer_rows(GPT(1, h, 16, s), b))
    assert flops == 24 * b * s * h**2 + 4 * b * s**2 * h


def test_stages_hold_their_layers_and_backward_recomputes():
    gpt = GPT(layers=4, hidden=1024, heads=16, sequence_length=1024)
    graph, cluster, placement = pipeline(gpt, 1, 2, 1, A100)
    assert cluster.n == 2
    assert [int(placement.device[graph.index[f"layer{k}"]]) for k in range(4)] == [0, 0, 1, 1]
    ahead, rows = graph.duration_us[graph.index["layer1"]], layer_rows(gpt, 1)
    # layer1 is the last of its stage: its backward pass begins the stage's, with 12 launches of the engine's own
    backward_us = graph.duration_us[graph.index["layer1/backward"]] - 12 * A100.launch_us
    assert ahead == pytest.approx(microseconds(rows, A100))
    assert backward_us == pytest.approx(ahead + microseconds(rows, A100, 2.0))


def test_update_without_replicas_is_adam_alone():
    """28 bytes a parameter over 2039 GB/s, after a launch of 6.7 us."""
    gpt = GPT(layers=1, hidden=8, heads=1, sequence_length=4, vocabulary=10)
    graph, _, _ = pipeline(gpt, 1, 1, 1, A100)
    parameters = 12 * 8**2 + (10 + 4) * 8
    expected = 6.7 + parameters * ADAM_BYTES / 2039e9 * 1e6
    assert graph.duration_us[graph.index["stage0/update"]] == pytest.approx(expected)


def test_an_iteration_is_a_valid_timeline():
    graph, cluster, placement = pipeline(GPT(4, 1024, 16, 1024), 1, 4, 2, A100)
    timeline = simulate(graph, cluster, placement, micro_batches=8, schedule="1f1b")
    step = unroll(graph, 8)
    assert not check(step, cluster, placement.on(step), timeline)
    assert isinstance(cluster, Cluster)


@pytest.mark.slow
def test_rows_left_out_are_predicted_within_the_bar():
    """The stored errors, and that they are what the stored hardware gives (every tenth row)."""
    rows, stored = read(DATA), result("vtrain")
    assert len(stored["fitted_rows"]) == ROWS == 12
    fitted = spread_rows(rows)
    assert [stored["errors"][k] for k in fitted] == [row["error"] for row in stored["fitted_rows"]]
    other_errors = np.abs(np.delete(stored["errors"], fitted))
    assert other_errors.mean() == pytest.approx(stored["mean_absolute_error_of_others"], abs=1e-4)
    assert other_errors.mean() <= 0.06
    for k in range(0, len(rows), 10):
        assert predicted_ms(rows[k], calibrated()) / rows[k].measured_ms - 1 == pytest.approx(
            stored["errors"][k], abs=2e-4
        )


def test_bad_rows_are_one_sentence(tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text(DATA.read_text().splitlines()[0] + "\n1,2,3\n")
    with pytest.raises(FormatError, match="line 2"):
        read(bad)
