"""Measured profiling in a worker process: the same figures, and one clear error for whatever becomes of it."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.profilers.tensorflow import worker_measurement
from baechi_lab.profilers.tensorflow.measurement import collect_traces, read_traces, step_session
from baechi_lab.profilers.tensorflow.structure import read_structure
from baechi_lab.workers.client import Worker

pytestmark = [pytest.mark.subprocess, pytest.mark.slow]

psutil = pytest.importorskip("psutil")
from processes import children  # noqa: E402

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def step():
    weight = tf.Variable(np.eye(64, dtype=np.float32), name="w")
    return bl.trace(lambda x: tf.reduce_sum(tf.nn.tanh(x @ weight)), np.ones((32, 64), np.float32), name="product")


def fake(code):
    return Worker((sys.executable, "-S", "-c", code))


@pytest.fixture(autouse=True)
def no_orphan():
    before = children()
    yield
    assert children() <= before


def test_profile_is_measured_in_another_process(step, monkeypatch):
    """The process is gone afterwards, and it was not this one."""
    started = []

    class RecordedWorker(Worker):
        def __init__(self):
            super().__init__()
            started.append(self.pid)

    monkeypatch.setattr(worker_measurement, "Worker", RecordedWorker)
    graph = bl.profile(step, mode="measured", device="/device:CPU:0", warmup=1, runs=2, progress=False)
    assert len(started) == 1 and started[0] != os.getpid() and not psutil.pid_exists(started[0])
    product = graph.names.index(next(n for n, t in zip(graph.names, graph.op_types, strict=True) if t == "MatMul"))
    assert graph.duration_us[product] > 0
    assert graph.tensor_bytes[list(graph.outputs(product))].tolist() == [32 * 64 * 4]
    assert graph.persistent_bytes.sum() >= 64 * 64 * 4
    assert list(graph.duration_by_kind) == ["cpu"]


def test_another_process_sees_what_this_one_sees(step):
    """Same ops, same bytes; durations are measured anew and only have to be there."""
    device_name, kind, in_worker = worker_measurement.measure(step, "/device:CPU:0", warmup=1, runs=2, timeout=120)
    structure = read_structure(step)
    with step_session(step, "/device:CPU:0") as run:
        in_this_process = read_traces(structure, collect_traces(run, 1, 2))
    assert (device_name, kind) == ("/device:CPU:0", "cpu")
    assert in_worker.output_bytes == in_this_process.output_bytes and np.array_equal(
        in_worker.in_trace, in_this_process.in_trace
    )
    assert np.array_equal(in_worker.temp_bytes, in_this_process.temp_bytes) and np.array_equal(
        in_worker.persistent_bytes, in_this_process.persistent_bytes
    )
    assert in_worker.duration_us.shape == (structure.n,) and np.all(in_worker.duration_us[in_worker.in_trace] > 0)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import os; os.kill(os.getpid(), 9)",
            r"was not measured: the worker was killed by signal 9 \(SIGKILL\); the sys",
        ),
        ("import sys; print('no room', file=sys.stderr); sys.exit(3)", "ended with exit code 3; it last said: no room"),
        ("print('Hi', flush=True); import time; time.sleep(60)", "sent something that is no message"),
    ],
)
def test_a_worker_that_fails_is_an_error(step, code, message):
    with pytest.raises(bl.ExecutionError, match=message):
        worker_measurement.measure(step, worker=fake(code))


def test_a_worker_that_hangs_is_an_error(step):
    with pytest.raises(bl.ExecutionError, match=r"step 'product' was not measured: no result within 0\.5 s"):
        worker_measurement.measure(step, worker=fake("import time; time.sleep(600)"), timeout=0.5)


def test_worker_killed_while_it_measures(step):
    """Killed once it has begun: thousands of runs could not have ended."""
    worker = Worker()
    threading.Timer(0.2, lambda: os.kill(worker.pid, signal.SIGKILL)).start()
    with pytest.raises(bl.ExecutionError, match="killed by signal 9"):
        worker_measurement.measure(step, "/device:CPU:0", runs=10**6, worker=worker)


def test_ctrl_c_ends_the_worker(step):
    worker = fake("import time; time.sleep(600)")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of a shell
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            worker_measurement.measure(step, worker=worker)
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not psutil.pid_exists(worker.pid)


def test_refusals_keep_their_class(step):
    with pytest.raises(bl.UnknownNameError, match="unknown device '/device:TPU:7'"):
        bl.profile(step, mode="measured", device="/device:TPU:7", progress=False)
