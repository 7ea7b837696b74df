"""The study of recomputed steps: what it states by hand, one small case live, and what is stored."""

import json
from pathlib import Path

import pytest

import baechi_lab as bl
from studies import recomputing

STORED = Path(bl.__file__).parent.parent / "studies" / "results" / "recomputing.json"


@pytest.mark.slow
def test_a_small_case_live():
    """An MLP of PyTorch's would do as well; a small BERT is there. The saving is met, the losses are the same."""
    pytest.importorskip("torch")
    sizes = {"batch_size": 4, "length": 8, "vocabulary": 11, "width": 16, "heads": 2, "inner": 64, "layers": 2}
    rows = recomputing.study({"torch": {"bert": sizes}}, steps=1, rounds=1)
    assert [row.choice for row in rows] == ["plain", "sqrt", "budget"]
    plain, segments, _ = rows
    assert all(row.same_losses for row in rows) and segments.copies > 0
    assert segments.measured_bytes < plain.measured_bytes
    assert abs(recomputing.saving_error(plain, segments)) <= recomputing.TARGET


def test_an_unknown_framework_is_refused():
    with pytest.raises(bl.InvalidInput, match="framework is 'jax'"):
        recomputing.study({"jax": {"gpt": {}}})


@pytest.mark.skipif(not STORED.exists(), reason="not stored yet")
def test_the_stored_study_has_the_errors_of_its_rows():
    document = json.loads(STORED.read_text())
    assert document["machine"] == "2 cores" and document["command"].startswith("python -m studies.recomputing")
    rows = [recomputing.Row(**{k: v for k, v in row.items() if k != "saving_error"}) for row in document["rows"]]
    for row, stored in zip(rows, document["rows"], strict=True):
        error = recomputing.saving_error(recomputing.plain_of(rows, row), row)
        assert stored["saving_error"] == pytest.approx(error) and row.same_losses
        assert abs(error) <= recomputing.TARGET
