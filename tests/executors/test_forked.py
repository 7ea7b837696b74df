"""Workers that are forked from a process with TensorFlow: like programs of their own, and gone with their caller."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors import Worker
from baechi_lab.executors.structure import graph_of
from baechi_lab.workers import forked
from baechi_lab.workers.client import WorkerEnded, worker_environment
from baechi_lab.workers.messages import Message

psutil = pytest.importorskip("psutil")
from processes import have_ended  # noqa: E402

tf = pytest.importorskip("tensorflow")
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.subprocess,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux alone"),
]


@pytest.fixture(autouse=True, scope="module")
def one_server():
    """A caller that has started nothing yet. Its fork server, whose start takes seconds, is that of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked, "_started", {})
        yield


def servers():
    """The running process that workers with TensorFlow are forked from, in a list."""
    return [server for (imports, _), server in forked._running.items() if imports == forked.TENSORFLOW]


def printed(*command, **environment):
    """What a module prints, its exit code, and whether it was forked."""
    with_log = {**worker_environment(), **environment}
    process = forked.start(*command, environment=with_log)
    outputs = process.stdout.read().decode(), process.stderr.read().decode(), process.wait(60)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return outputs, isinstance(process, forked.Forked)


def devices(worker):
    request = Message("devices", {"options": {}})
    return [m.kind for m in worker.exchange(request, {"devices", "failed"}, timeout=60)]


def test_the_first_is_a_program_and_the_next_are_forked():
    forked._started.clear()
    with Worker() as first, Worker() as second, Worker() as third:
        assert isinstance(first._process, subprocess.Popen)
        (server,) = servers()
        assert {psutil.Process(worker.pid).ppid() for worker in (second, third)} == {server.process.pid}
        assert devices(second) == devices(third) == ["devices"]
        assert os.getsid(second.pid) == second.pid != third.pid


@pytest.mark.slow
def test_what_is_forked_finds_what_a_program_finds(monkeypatch, tmp_path):
    """Its arguments, variables and exit code (`site`, whose user base is in HOME), its folder, and its errors (`json.tool`)."""
    (tmp_path / "given.json").write_text("[1,")
    monkeypatch.chdir(tmp_path)
    for command in (("site", "--user-base"), ("json.tool", "given.json"), ("platform", "--terse")):
        forked._started.clear()
        (program, was_forked), (fork, is_forked) = (printed(*command, HOME="/opt/mine") for _ in range(2))
        assert (was_forked, is_forked) == (False, True) and fork == program and (fork[0] or fork[1])


@pytest.mark.slow
def test_one_server_serves_callers_in_any_folder_with_any_path(monkeypatch, tmp_path):
    """Previously every change of the folder or of `sys.path` ended the server and imported TensorFlow twice again."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "own_module.py").write_text("print('own')")
    printed("platform")
    printed("platform")
    before = servers()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "library")
    (output, error, code), was_forked = printed("own_module")
    assert (output, code, was_forked) == ("own\n", 0, True), error
    assert servers() == before


@pytest.mark.slow
def test_a_forked_worker_runs_on_its_callers_cores():
    cores = os.sched_getaffinity(0)
    printed("platform")
    printed("platform")
    os.sched_setaffinity(0, {max(cores)})
    try:
        with Worker() as worker:
            assert psutil.Process(worker.pid).cpu_affinity() == [max(cores)]
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.slow
def test_how_a_forked_worker_ended_is_said():
    printed("platform")
    with Worker() as worker:
        assert worker.alive
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(WorkerEnded, match=r"killed by signal 11 \(SIGSEGV\)"):
            devices(worker)
        assert not worker.alive and have_ended(worker.pid)


@pytest.mark.slow
def test_a_caller_may_have_a_thousand_files_open():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard == resource.RLIM_INFINITY else min(hard, 4096), hard))
    printed("platform")
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        with Worker() as worker:
            assert worker._process._status > 1024 and devices(worker) == ["devices"]


@pytest.mark.slow
def test_when_the_server_is_killed_the_next_worker_works():
    printed("platform")
    with Worker() as worker:
        pid = worker.pid
        (server,) = servers()
        server.process.kill()
        with pytest.raises(WorkerEnded, match="SIGKILL"):
            devices(worker)
        assert have_ended(pid)
    with Worker() as after:
        assert devices(after) == ["devices"]


@pytest.mark.slow
def test_what_tensorflow_reads_when_it_is_imported_is_read_anew_and_out_of_memory_is_a_status(monkeypatch):
    """And one sentence of a profile. Without oneDNN, TensorFlow says at once that there is too little memory; oneDNN's
    allocator waits for ten seconds for some to be freed."""
    printed("platform")
    monkeypatch.setattr(forked, "_running", dict(forked._running))  # other tests keep their server
    with Worker() as one:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        printed("platform")
        with Worker() as two:
            assert psutil.Process(one.pid).ppid() != psutil.Process(two.pid).ppid()
            assert devices(one) == devices(two) == ["devices"]
            huge = 1 << 42  # float32: 16 TiB
            step = bl.trace(lambda x: tf.reduce_sum(tf.fill([huge], x)), np.float32(1.0), name="16 TiB")
            placement = bl.Placement(device=[0] * graph_of(step).n)
            run = bl.execute(step, placement, steps=2, warmup=0, traced=0, kind="cpu", worker=two)
    assert run.status == "out-of-memory" and run.message.startswith("OOM when allocating tensor")
    assert len(run.outputs) == 0
    with pytest.raises(bl.ExecutionError, match="step '16 TiB' cannot run on /device:CPU:0: OOM when allocating"):
        bl.profile(step, mode="measured", device="/device:CPU:0", progress=False)


@pytest.mark.slow
def test_nothing_outlives_a_killed_caller():
    """A program, and workers that were forked; from a process with PyTorch, which is imported faster."""
    pytest.importorskip("torch")
    code = """
import time
from baechi_lab.executors import Worker
from baechi_lab.workers.forked import TORCH_PIPELINE
workers = [Worker(), Worker(imports=TORCH_PIPELINE), Worker(imports=TORCH_PIPELINE)]
print(*(w.pid for w in workers), workers[2]._process._server.process.pid, flush=True)
time.sleep(600)
"""
    home = str(Path(bl.__file__).resolve().parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": home}
    ) as caller:
        pids = list(map(int, caller.stdout.readline().split()))
        assert len(set(pids)) == 4 and all(map(psutil.pid_exists, pids))
        caller.kill()
        caller.wait()
        assert have_ended(*pids)


@pytest.mark.slow
def test_bug_a_cluster_could_not_be_closed_when_the_program_ended():
    """Its worker is forked: the caller's second one with TensorFlow's variables, and the first that imports it."""
    code = """
import atexit
atexit.register(lambda: cluster.close())  # runs after the exit handlers of all that is imported later
from baechi_lab import LocalCluster
from baechi_lab.workers import client, forked
forked.start("platform", environment=client.worker_environment()).communicate()
cluster = LocalCluster(1)
assert isinstance(cluster._processes[0], forked.Forked)
"""
    home = str(Path(bl.__file__).resolve().parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
