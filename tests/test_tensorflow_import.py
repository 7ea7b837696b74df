"""TensorFlow's start-up notices do not reach the reader; what it says when it fails does."""

import contextlib
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from baechi_lab.workers import tensorflow_import as loading

ROOT = Path(__file__).resolve().parents[1]


PROGRAM = """
import sys
import types
from baechi_lab.workers import tensorflow_import

notice, kept_back = tensorflow_import._NOTICE, []

def match(line):
    if notice.match(line):
        kept_back.append(line.decode())
    return notice.match(line)

tensorflow_import._NOTICE = types.SimpleNamespace(match=match)
with tensorflow_import.without_notices():
    tf = tensorflow_import.import_tensorflow()
tensorflow_import.load_tensorflow().constant(1)
print([name for name in tensorflow_import.OPTIONAL if name in sys.modules])
import pandas, keras
print(float(tf.keras.losses.MeanSquaredError()([[1.0]], [[3.0]])), len(pandas.DataFrame({"a": [1, 2]})))
print(*kept_back)
"""


@pytest.fixture(scope="module")
def program():
    """The program above after its end; its output is a line of what was imported, one of results, and what was kept back."""
    # Not on every processor is oneDNN used by default.
    log_settings = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_ENABLE_ONEDNN_OPTS": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **log_settings}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
def test_importing_tensorflow_says_nothing_through_us(program):
    """It does say something, which is kept back."""
    assert program.returncode == 0, program.stderr
    notice = "oneDNN custom operations"
    assert notice in program.stdout and notice not in program.stderr


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
def test_what_was_left_out_works_afterwards(program):
    """Processes that serve import less; what they left out can still be imported."""
    assert program.stdout.splitlines()[:2] == ["[]", "4.0 2"], program.stderr


def test_a_failure_shows_what_was_kept_back_and_later_lines_come_through(capfd):
    def fail():
        with loading.without_notices():
            os.write(2, b"kept\n")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    with loading.without_notices():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(2, b"I0000 00:00:1795710554.922032   13605 port.cc:153] oneDNN custom operations are on.\n")
        os.write(
            2, b"2024-05-01 10:00:00.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.\n"
        )
        os.write(2, b"another thread\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "kept\nanother thread\nafter\n"


def test_two_threads_that_load_it_leave_standard_error_as_it_was(monkeypatch):
    """Each would restore what the other has set: only one redirects."""
    inside, largest = [], []

    @contextlib.contextmanager
    def counted():
        inside.append(1)
        largest.append(len(inside))
        time.sleep(0.05)
        yield
        inside.pop()

    monkeypatch.setattr(loading, "without_notices", counted)
    monkeypatch.setattr(loading, "_loaded", False)
    monkeypatch.setitem(
        sys.modules, "tensorflow", types.SimpleNamespace(config=types.SimpleNamespace(list_physical_devices=list))
    )
    threads = [threading.Thread(target=loading.load_tensorflow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert largest == [1]


def test_a_process_without_standard_error(monkeypatch, capfd):
    """There is nothing to keep back from: descriptor 2 stays what it was, which may be a file of the caller's."""
    monkeypatch.setattr(sys, "stderr", None)
    with loading.without_notices():
        os.write(2, b"untouched\n")
    assert capfd.readouterr().err == "untouched\n"
