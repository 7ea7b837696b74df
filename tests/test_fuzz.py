"""Damaged files, odd command lines and odd arguments: dozens of each kind here; `python -m tests.fuzz` goes on for hours."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from fuzzing.arguments import call_in_temporary_folder
from fuzzing.case import Case
from fuzzing.run import CASES, run


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param("graphs", 100, marks=pytest.mark.slow),
        pytest.param("files", 100, marks=pytest.mark.slow),
        pytest.param("commands", 40, marks=pytest.mark.slow),
        ("traces", 100),
        pytest.param("configs", 12, marks=pytest.mark.slow),
        pytest.param("layouts", 30, marks=pytest.mark.slow),
        ("arguments", 150),
        ("torch", 60),
    ],
)
def test_every_answer_is_a_result_or_one_sentence(kind, count):
    refused, accepted, failures = run(CASES[kind](count, seed=0))
    assert not failures, "\n".join(failures)
    assert refused + accepted == count
    assert refused > count // 10
    assert accepted > count // 50


def test_bug_a_folder_that_a_call_writes_stayed_in_the_working_tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call_in_temporary_folder(os.makedirs, {"name": "x/y"})
    with pytest.raises(FileNotFoundError):
        call_in_temporary_folder(os.rmdir, {"path": "x"})
    assert not any(tmp_path.iterdir())


def test_a_run_of_hours_keeps_what_failed_and_the_file_that_it_read(tmp_path, monkeypatch, capsys):
    path = Path(__file__).with_name("fuzz.py")
    spec = importlib.util.spec_from_file_location("fuzz_for_hours", path)
    fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    read = tmp_path / "case.json.gz"
    read.write_bytes(b"damaged")

    def broken(count, seed):
        yield Case(f"first {seed}/0", lambda: None)
        yield Case(f"second {seed}/1", lambda: 1 / 0, read)
        while True:
            yield Case("third", lambda: None)

    monkeypatch.setitem(CASES, "broken", broken)
    ticks = iter(range(100))
    monkeypatch.setattr(fuzz.time, "monotonic", lambda: float(next(ticks)))
    arguments = ["--hours", str(4 / 3600), "--seed", "7", "--output", str(tmp_path / "out"), "--kinds", "broken"]
    assert fuzz.main(arguments) == 1
    assert "seed 7" in capsys.readouterr().out
    assert (tmp_path / "out" / "broken-1.txt").read_text().startswith("second 7/1: ZeroDivisionError: division by zero")
    assert (tmp_path / "out" / "broken-1.json.gz").read_bytes() == b"damaged"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (
        summary["seed"] == 7
        and summary["failures"] == 1
        and summary["answers"] == {"broken": {"taken": 2, "failed": 1}}
    )
