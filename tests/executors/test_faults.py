"""Faults injected into the worker: the caller gets a Run or one clear error, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors import Worker
from baechi_lab.workers.failures import cause_of_end

psutil = pytest.importorskip("psutil")
from processes import children, have_ended  # noqa: E402

ONCE = {"steps": 2, "warmup": 0, "traced": 0, "kind": "cpu"}


def fake(code):
    """A worker that runs `code` instead of TensorFlow; it starts in milliseconds."""
    return Worker((sys.executable, "-S", "-c", code))


@pytest.fixture(autouse=True)
def no_orphan():
    before = children()
    yield
    assert children() <= before


# -- a worker that fails ---------------------------------------------------------------------------------


def test_killed_at_step_3_returns_what_was_measured(step, placement, unplaced_losses):
    worker = Worker()

    def kill(result):
        if result.index == 3:
            os.kill(worker.pid, signal.SIGKILL)

    run = bl.execute(step, placement, steps=10_000, warmup=2, traced=1, kind="cpu", on_step=kill, worker=worker)
    assert run.status == "died"
    assert "killed by signal 9 (SIGKILL)" in run.message
    assert len(run.outputs) >= 4  # steps 0 to 3, and those already on their way
    np.testing.assert_allclose([float(o[0]) for o in run.outputs[:4]], unplaced_losses[:4], rtol=1e-6)
    assert run.timeline is not None and len(run.step_seconds) == len(run.outputs) - 3
    # The next execution works, in a process of its own.
    assert bl.execute(step, placement, **ONCE).status == "ok"


def test_a_worker_that_sends_no_message_is_dead(step, placement, ops):
    run = bl.execute(
        step, placement, graph=ops, worker=fake("import time; print('Hello!', flush=True); time.sleep(60)")
    )
    assert (run.status, len(run.outputs), run.timeline) == ("died", 0, None)
    assert run.message.startswith("the worker sent something that is no message: expected a message but got 'Hello!")


def test_garbage_that_begins_like_a_message(step, placement, ops):
    code = "import sys,time; sys.stdout.buffer.write(b'BLM1'+b'\\xff'*40); sys.stdout.flush(); time.sleep(60)"
    run = bl.execute(step, placement, graph=ops, worker=fake(code))
    assert run.status == "died" and "claims a header of 4294967295" in run.message


def test_message_that_is_no_json(step, placement, ops):
    code = "import struct,sys; sys.stdout.buffer.write(struct.pack('>4sIQ', b'BLM1', 3, 0)+b'{]}')"
    run = bl.execute(step, placement, graph=ops, worker=fake(code))
    assert run.status == "died" and "a message is not readable" in run.message


def test_crash_tells_the_last_words(step, placement, ops):
    run = bl.execute(
        step, placement, graph=ops, worker=fake("import sys; print('no kernel', file=sys.stderr); sys.exit(7)")
    )
    assert (run.status, run.message) == ("died", "the worker ended with exit code 7; it last said: no kernel")


def test_bug_a_crash_with_a_dump_of_stacks_told_its_last_line(step, placement, ops):
    code = "import faulthandler, os, sys; faulthandler.enable(); print('ready', file=sys.stderr); os.abort()"
    run = bl.execute(step, placement, graph=ops, worker=fake(code))
    signal = "the worker was killed by signal 6 (SIGABRT)"
    assert (run.status, run.message) == ("died", f"{signal}; it last said: Fatal Python error: Aborted")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", ""),
        ("a\n\nno kernel\n", "no kernel"),
        (
            "W0000 00:00:1.2 3 a.cc:4] slow\nF0000 00:00:1.2 3 b.cc:7] Check failed: n > 0\n*** Check failure stack trace: ***\n"
            "    @     0x7f1  absl::Fail\nFatal Python error: Aborted\n\nThread 0x7f2 (most recent call first):\n"
            '  File "x.py", line 6 in f\n\nExtension modules: numpy (total: 1)\n',
            "F0000 00:00:1.2 3 b.cc:7] Check failed: n > 0",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
            "Fatal Python error: Aborted\n",
            "what():  std::bad_alloc",
        ),
        ('Traceback (most recent call last):\n  File "x.py", line 1\nOSError: full\n', "OSError: full"),
        ("bad address\n*** Begin stack trace ***\n\t@ 0x1\n*** End stack trace ***\n", "bad address"),
    ],
)
def test_the_cause_of_an_end_is_found_before_the_dump(log, cause):
    assert cause_of_end(log.encode()) == cause


def test_a_worker_killed_by_a_signal_is_dead_and_the_signal_is_named(step, placement, ops):
    run = bl.execute(step, placement, graph=ops, worker=fake("import os; os.kill(os.getpid(), 11)"))
    assert (run.status, run.message) == ("died", "the worker was killed by signal 11 (SIGSEGV)")


def test_after_failures_the_next_execution_works(step, placement, ops, unplaced_losses):
    """Garbage, a crash and a hang in a row; what they leave behind would show in the step that follows."""
    for code in ("print('Hello!')", "import sys; sys.exit(7)", "import time; time.sleep(600)"):
        run = bl.execute(step, placement, graph=ops, timeout=1.0, worker=fake(code))
        assert run.status in ("died", "timeout") and run.message and len(run.outputs) == 0
    run = bl.execute(step, placement, graph=ops, **ONCE)
    assert run.status == "ok" and float(run.outputs[0][0]) == pytest.approx(unplaced_losses[0], rel=1e-6)


def test_worker_that_floods_its_log(step, placement, ops):
    """A megabyte of log must neither block the worker nor stay with the caller."""
    run = bl.execute(
        step, placement, graph=ops, worker=fake("import sys; sys.stderr.write('x\\n' * 500_000); sys.exit(3)")
    )
    assert run.status == "died" and run.message.endswith("it last said: x")


def test_hang_before_the_first_step(step, placement, ops):
    worker = fake("import time; time.sleep(600)")
    run = bl.execute(step, placement, graph=ops, timeout=0.5, worker=worker)
    assert (run.status, run.message) == ("timeout", "no result within 0.5 s; the worker was killed")
    assert have_ended(worker.pid)


def test_hang_in_the_middle_and_cancellation(step, placement, unplaced_losses):
    """A warm worker stopped by SIGSTOP, and one that is cancelled at step 2."""
    worker = Worker()
    assert bl.execute(step, placement, worker=worker, **ONCE).status == "ok"

    def stop(result):
        if result.index == 1:
            os.kill(worker.pid, signal.SIGSTOP)

    run = bl.execute(step, placement, steps=10_000, warmup=0, kind="cpu", timeout=2, on_step=stop, worker=worker)
    assert run.status == "timeout" and len(run.outputs) >= 2
    assert float(run.outputs[1][0]) == pytest.approx(unplaced_losses[1], rel=1e-6)
    assert have_ended(worker.pid)

    worker, cancel = Worker(), threading.Event()

    def cancel_at_2(result):
        if result.index == 2:
            cancel.set()

    run = bl.execute(step, placement, steps=10**6, kind="cpu", cancel=cancel, on_step=cancel_at_2, worker=worker)
    assert (run.status, run.message) == ("cancelled", "cancelled by the caller")
    assert 3 <= len(run.outputs) < 10**6 and have_ended(worker.pid)


def test_error_in_the_callback_ends_the_worker(step, placement):
    worker = Worker()

    def fail(result):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bl.execute(step, placement, kind="cpu", on_step=fail, worker=worker, steps=10**6)
    assert have_ended(worker.pid)


# -- a caller that ends ----------------------------------------------------------------------------------


def script(code):
    home = str(Path(bl.__file__).resolve().parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
    )


def test_ctrl_c_ends_the_worker_and_the_next_execution_works(step, placement):
    """As in a notebook: the interrupt is raised in the caller, whose process lives on."""
    worker = Worker()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))  # while the caller waits for the worker
    try:
        with pytest.raises(KeyboardInterrupt):
            bl.execute(
                step,
                placement,
                steps=10**7,
                kind="cpu",
                on_step=lambda result: result.index == 1 and interrupt.start(),
                worker=worker,
            )
    finally:
        interrupt.cancel()
        signal.signal(signal.SIGINT, handler)
    assert not worker.alive and have_ended(worker.pid)
    assert bl.execute(step, placement, **ONCE).status == "ok"


def test_no_worker_outlives_a_killed_caller():
    """The caller is killed without a chance to clean up, once the worker is deep in TensorFlow's import."""
    caller = script("""
import time
from baechi_lab.workers.client import Worker
from baechi_lab.workers.messages import Message, encode
worker = Worker()
exchange = worker.exchange(Message("devices", {"options": {}}), {"devices"}, timeout=1.5)
print(worker.pid, flush=True)
next(exchange)
""")
    pid = int(caller.stdout.readline())
    assert psutil.pid_exists(pid)
    time.sleep(0.5)
    caller.kill()
    caller.wait()
    caller.stdout.close()
    assert have_ended(pid)


def test_worker_ends_when_its_requests_do():
    """Where the kernel does not tell of a parent's death, the end of stdin does."""
    command = [sys.executable, "-m", "baechi_lab.workers.process"]
    home = str(Path(bl.__file__).resolve().parents[1])
    process = subprocess.run(
        command, input=b"", capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": home}
    )
    assert (process.returncode, process.stdout) == (0, b"")


# -- nothing leaks ---------------------------------------------------------------------------------------

ANSWER = """
import struct, sys
text = b'{"kind": "done", "arrays": []}'
sys.stdin.buffer.read(100)
sys.stdout.buffer.write(struct.pack(">4sIQ", b"BLM1", len(text), 0) + text)
"""


def handles_and_megabytes():
    me = psutil.Process()
    return me.num_fds(), me.num_threads(), me.memory_info().rss / 1e6


def test_50_worker_processes_leak_nothing(step, placement, ops):
    """Starting, talking to and ending a process; the process itself answers at once."""
    with fake(ANSWER) as first:
        bl.execute(step, placement, graph=ops, worker=first)
    before, running = handles_and_megabytes(), children()
    for _ in range(50):
        with fake(ANSWER) as worker:
            assert bl.execute(step, placement, graph=ops, worker=worker).status == "ok"
    after = handles_and_megabytes()
    assert after[0] <= before[0] and after[1] <= before[1] and after[2] - before[2] < 25
    assert children() == running


def test_50_executions_leak_nothing(step, placement, ops, worker):
    """Real steps with timelines, in one TensorFlow process."""
    options = {"steps": 1, "warmup": 0, "traced": 1, "kind": "cpu", "graph": ops, "worker": worker}
    bl.execute(step, placement, **options)
    before, running = handles_and_megabytes(), children()
    for _ in range(50):
        assert bl.execute(step, placement, **options).status == "ok"
    after = handles_and_megabytes()
    assert after[0] <= before[0] and after[1] <= before[1] and after[2] - before[2] < 25
    assert children() == running
