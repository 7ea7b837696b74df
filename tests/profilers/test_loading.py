"""TensorFlow's start-up notices do not reach the reader; what it says when it fails does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baechi_lab.profilers.tensorflow import loading

ROOT = Path(__file__).resolve().parents[2]


def _errors_of(program):
    # Not on every processor is oneDNN used by default.
    told = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_ENABLE_ONEDNN_OPTS": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **told}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.subprocess
@pytest.mark.slow
def test_importing_tensorflow_says_nothing_through_us():
    notice = "oneDNN custom operations"
    assert notice in _errors_of("import tensorflow")
    assert notice not in _errors_of("from baechi_lab.profilers.tensorflow.loading import load_tensorflow as f; f()")


def test_a_failure_shows_what_was_kept_back_and_later_lines_come_through(capfd):
    def fail():
        with loading._held_back():
            os.write(2, b"kept\n")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    with loading._held_back():
        os.write(2, b"gone\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "kept\nafter\n"


def test_a_process_without_standard_error(monkeypatch, capfd):
    """There is nothing to keep back from: descriptor 2 stays what it was, which may be a file of the caller's."""
    monkeypatch.setattr(sys, "stderr", None)
    with loading._held_back():
        os.write(2, b"untouched\n")
    assert capfd.readouterr().err == "untouched\n"
