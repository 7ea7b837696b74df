"""Sizes of the models: counted by hand on the smallest, the stored table against fresh traces."""

import json

import pytest

pytest.importorskip("tensorflow")

import baechi_lab as bl
from baechi_lab.models.statistics import activation_bytes, describe
from studies import model_sizes


def test_activation_bytes_are_forward_results_that_backward_ops_read():
    graph = bl.OpGraph.from_edges(
        [1.0] * 6,
        [
            (0, 1, 400),  # a weight that was read: there before, not an activation
            (1, 2, 10),
            (1, 3, 10),  # the same tensor, read by a backward op: counts once
            (1, 4, 10),
            (2, 3, 7),
            (3, 4, 1000),  # backward result
            (4, 5, 2000),  # sum of gradients, without a telling name
            (0, 4, 400),
        ],
        names=["w/read", "layer0/MatMul", "loss", "gradient_tape/loss", "gradient_tape/layer0/MatMul", "AddN"],
        op_types=["ReadVariableOp", "MatMul", "Mean", "Mul", "MatMul", "AddN"],
    )
    assert activation_bytes(graph) == 10 + 7


def test_mlp_counted_by_hand():
    description = describe("mlp", layers=1, units=4, inputs=3, classes=2, batch_size=5)
    assert description["parameters"] == (3 * 4 + 4) + (4 * 2 + 2)
    # Products of [5,3]x[3,4] and [5,4]x[4,2]: forward, gradient of each weight, gradient of the hidden layer.
    products = 2 * (5 * 3 * 4) * 2 + 2 * (5 * 4 * 2) * 3
    assert products <= description["flops"] <= 2 * products
    # The hidden layer after ReLU (20 numbers); the loss kernel's gradient of 5 x 2 logits.
    assert description["activation_bytes"] == 4 * (20 + 10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params"), [("mlp", {}), ("rnnlm", {})])
def test_stored_sizes_are_what_tracing_gives(name, params):
    stored = bl.models.list().set_index(["model", "params"]).loc[(name, "")]
    fresh = describe(name, **params)
    for column in ("ops", "edges", "parameters", "flops", "activation_bytes"):
        assert stored[column] == fresh[column], column


def test_models_have_the_published_numbers_of_parameters_and_ops():
    """Trained parameters of the original models, and GNMT's ops against Jeon et al.'s 18,050 and 22,340."""
    table = bl.models.list().set_index(["model", "params"])
    keras = {"inception_v3": 23_817_352, "resnet": 25_583_592}  # Keras' documented totals less the moving averages
    assert table.loc[("inception_v3", "")].parameters == keras["inception_v3"]
    assert table.loc[("resnet", "depth=50")].parameters == keras["resnet"]
    assert table.loc[("gnmt", "")].ops == pytest.approx(18_050, rel=0.02)
    assert table.loc[("gnmt", "sequence_length=50")].ops == pytest.approx(22_340, rel=0.01)
    # Multiplications and additions, 5.7 billion multiply-adds per image (Szegedy et al. 2016: 5), three passes.
    assert table.loc[("inception_v3", "")].flops == pytest.approx(32 * 3 * 2 * 5.7e9, rel=0.03)


def test_every_model_is_listed_and_the_command_writes_records(tmp_path):
    assert {name for name, _ in model_sizes.LISTED} == set(bl.models.names())
    assert len(bl.models.list()) == len(model_sizes.LISTED)
    path = tmp_path / "sizes.json"
    model_sizes.store(path, [("mlp", {"layers": 3})])
    (row,) = json.loads(path.read_text())
    assert row["params"] == {"layers": 3} and row == describe("mlp", layers=3)
