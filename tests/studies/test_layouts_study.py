"""The study of layouts: its rows, what was fitted, and that the package still predicts what is stored."""

from __future__ import annotations

import pytest
from fewer import slow

from baechi_lab.parallel.layouts import MEAN_ERRORS
from studies.layouts.measured import SOURCES
from studies.layouts.study import choices, choose_rows
from studies.results import result

ROWS = {"vtrain": 720, "bloom": 51, "mpt": 108, "b200": 14, "sailor": 14, "megatron": 26}


@pytest.mark.parametrize("source", slow(SOURCES, "megatron"))
def test_every_row_is_a_legal_layout_of_its_devices(source: str) -> None:
    steps = SOURCES[source]()
    assert len(steps) == ROWS[source]
    for step in steps:
        assert step.layout.devices == step.cluster.n
        assert step.global_batch % (step.layout.dp * step.layout.micro_batch) == 0


def test_the_smallest_and_the_largest_mean_error_of_every_hardware_are_said() -> None:
    errors: dict[str, list[float]] = {}
    for entry in result("layouts")["sources"].values():
        for kind, error in entry["mean_errors_by_hardware"].items():
            errors.setdefault(kind, []).append(round(error, 2))
    assert {kind: (min(values), max(values)) for kind, values in errors.items()} == MEAN_ERRORS


@pytest.mark.slow
def test_24_rows_are_fitted_those_that_the_rule_chooses() -> None:
    fitted = {name: entry["fitted_rows"] for name, entry in result("layouts")["sources"].items()}
    assert sum(map(len, fitted.values())) == 24
    assert fitted == choose_rows()


@pytest.mark.parametrize("source", slow(SOURCES, "megatron"))
def test_predictions_are_those_that_are_stored(source: str) -> None:
    steps = [step for step in SOURCES[source]() if step.seconds]
    stored = result("layouts")["sources"][source]["errors"]
    assert len(stored) == len(steps)
    for k in range(0, len(steps), max(len(steps) // 3, 1)):
        assert steps[k].predicted_seconds() / float(steps[k].seconds or 1) - 1 == pytest.approx(stored[k], abs=2e-3)


def test_the_choice_among_measured_layouts() -> None:
    steps = SOURCES["b200"]()[:2]  # Llama on eight devices with one batch: 0.843 s and 0.7255 s
    right = [{"predicted_s": 2.0}, {"predicted_s": 1.0}]
    assert choices(steps, right) == {"groups": 1, "within_3_percent": 1.0, "slower_on_average": 0.0}
    wrong = [{"predicted_s": 1.0}, {"predicted_s": 2.0}]
    assert choices(steps, wrong)["slower_on_average"] == round(0.843 / 0.7255 - 1, 4)
