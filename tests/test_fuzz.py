"""Damaged files and odd command lines: a few hundred here; `python -m fuzzing.run` in tests/helpers has no limit."""

import pytest
from fuzzing.run import CASES, run


@pytest.mark.parametrize(
    ("what", "count"), [("graphs", 300), ("files", 300), ("commands", 100), ("traces", 200), ("configs", 30)]
)
def test_every_answer_is_a_result_or_one_sentence(what, count):
    refused, taken, failures = run(CASES[what](count, seed=0))
    assert not failures, "\n".join(failures)
    assert refused + taken == count
    assert refused > count // 10
    assert taken > count // 20
