"""The second process compiles what the first does not, and ends with it."""

import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba")
pytest.importorskip("fcntl")


from baechi_lab.graph.kernels import jit
from baechi_lab.placers import second_compiler
from baechi_lab.placers.second_compiler import compile_ahead, compile_for_advice, compile_in_second_process


@pytest.fixture
def processes(monkeypatch):
    """The processes that are started, in an empty cache on a machine with a free core."""
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(jit, "is_missing", lambda kernel: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(second_compiler, "running_threads", lambda: 1)
    monkeypatch.delenv(second_compiler.VARIABLE, raising=False)
    monkeypatch.setattr(second_compiler, "_is_started", False)
    return started


@pytest.mark.subprocess
def test_the_process_ends_with_the_context_also_after_an_error(processes):
    def wait_for(count):
        while len(processes) < count:
            time.sleep(0.01)

    with compile_in_second_process(["single"]):
        wait_for(1)
    with pytest.raises(KeyError), compile_in_second_process(["single"]):
        wait_for(2)
        raise KeyError
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)  # waited for: no zombie


def test_no_process_without_a_free_core_or_where_it_has_nothing_to_do(processes, monkeypatch):
    def enter(placers=("single",)):
        with compile_in_second_process(placers):
            assert processes == []

    enter(())
    with monkeypatch.context() as patch:
        patch.setattr(second_compiler, "running_threads", lambda: 2)
        enter()
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        enter()
    with monkeypatch.context() as patch:
        patch.setenv(second_compiler.VARIABLE, "0")
        enter()
    with monkeypatch.context() as patch:
        patch.setattr(jit, "is_missing", lambda kernel: False)
        enter()


@pytest.mark.slow
@pytest.mark.subprocess
def test_one_process_of_a_program_compiles_ahead_and_ends_by_itself(processes, monkeypatch):
    monkeypatch.setattr(second_compiler, "COMPARED_PLACERS", ("single", "dfs"))
    compile_ahead("single", second_compiler.COMPARED_OPS - 1)
    compile_ahead("auto", 10**6)
    monkeypatch.setattr(jit, "is_missing", lambda kernel: False)
    compile_ahead("dfs", 10**6)
    assert processes == []
    monkeypatch.setattr(jit, "is_missing", lambda kernel: True)
    for _ in range(2):
        compile_ahead("dfs", 10**6)
    while not processes or processes[0].returncode is None:
        time.sleep(0.01)
    assert len(processes) == 1


@pytest.mark.slow
@pytest.mark.subprocess
def test_one_process_of_a_program_compiles_for_advice_and_ends_by_itself(processes, monkeypatch):
    monkeypatch.setattr(second_compiler, "ADVISED_PLACERS", ())
    monkeypatch.setattr(second_compiler, "COMPARED_PLACERS", ("single",))
    compile_for_advice(second_compiler.ADVISED_OPS - 1)
    with monkeypatch.context() as patch:
        patch.setattr(jit, "is_missing", lambda kernel: False)
        compile_for_advice(10**6)
    assert processes == []
    for _ in range(2):
        compile_for_advice(10**6)
    while not processes or processes[0].returncode is None:
        time.sleep(0.01)
    assert len(processes) == 1


def test_a_second_compiler_skips_what_another_process_compiles(tmp_path):
    import fcntl

    path = tmp_path / "kernel.lock"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError), jit.holding_lock(path, waits=False):
            pass
    for waits in (False, True):
        with jit.holding_lock(path, waits):  # the other process has finished
            pass
    assert issubclass(BlockingIOError, jit.SKIPPED_ERRORS)


def test_bug_no_thread_compiled_while_one_waited_for_another_process(tmp_path, monkeypatch):
    """A thread waits for the first kernel, which another process compiles; meanwhile the second one is compiled."""
    import fcntl

    (tmp_path / "two_kernels.py").write_text(
        "from baechi_lab.graph.kernels.jit import njit\n"
        "@njit(cache=True)\ndef first(x): return x + 1\n"
        "@njit(cache=True)\ndef second(x): return x + 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kernels = importlib.import_module("two_kernels")
    path = Path(kernels.first._cache._cache_file._index_path).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    results, asked_for_lock = [], threading.Event()

    def flock(file, operation):
        asked_for_lock.set()
        fcntl.flock(file, operation)

    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        names = {"LOCK_EX": fcntl.LOCK_EX, "LOCK_NB": fcntl.LOCK_NB, "flock": flock}
        monkeypatch.setattr(jit, "_files", SimpleNamespace(**names))
        waiting_thread = threading.Thread(target=lambda: results.append(kernels.first(1)))
        waiting_thread.start()
        assert asked_for_lock.wait(60)
        compiling_thread = threading.Thread(target=lambda: results.append(kernels.second(1)))
        compiling_thread.start()
        compiling_thread.join(60)
        assert results == [3]
    waiting_thread.join(60)
    assert results == [3, 2]


@pytest.mark.slow
def test_bug_programs_that_had_ended_kept_the_second_process_away(monkeypatch):
    """After an installation the load average is high for a minute; counted is what runs now."""
    counts = iter(["9.00 5.00 2.00 1/300 7\n"] * 5 + ["9.00 5.00 2.00 4/300 7\n"] * 4)
    monkeypatch.setattr(second_compiler.Path, "read_text", lambda *arguments: next(counts))
    assert second_compiler.running_threads() == 1
    monkeypatch.setattr(second_compiler.Path, "read_text", lambda *arguments: "unreadable")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5), raising=False)
    assert second_compiler.running_threads() == 1.5


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_first_process_reads_what_the_second_compiled(tmp_path):
    """The tiny graph of the second process has the types of any graph: nothing is left to compile, neither for a placer nor
    for the simulation of advice."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), second_compiler.VARIABLE: "1"}
    program = """
import os, time
from baechi_lab.graph.kernels import jit
from baechi_lab.placers.hash_partition import spread_units
from baechi_lab.placers import second_compiler
from baechi_lab.placers.second_compiler import compile_in_second_process, compile_schedulers
second_compiler.running_threads, os.sched_getaffinity = lambda: 1, lambda process: {0, 1}
with compile_in_second_process(["hash"]):
    while jit.is_missing(spread_units):
        time.sleep(0.1)
compile_schedulers()
"""
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=200)
    program = """
import baechi_lab as bl
from baechi_lab.graph.kernels import jit
from baechi_lab.placers.hash_partition import spread_units
from baechi_lab.simulator.kernel import _run
assert not jit.is_missing(spread_units)
jit.become_second_compiler()  # small graphs, too, run compiled kernels
graph = bl.generators.unrolled_rnn(10, 2)
bl.place(graph, bl.Cluster.uniform(3, memory_bytes="4GB"), "hash")
bl.simulate(graph, bl.Cluster.uniform(3), bl.Placement(device=[op % 3 for op in range(graph.n)]), scheduler="msr")
for kernel in (spread_units, _run):
    assert kernel.stats.cache_hits and not kernel.stats.cache_misses, kernel.stats
"""
    subprocess.run(
        [sys.executable, "-c", program], env=environment | {second_compiler.VARIABLE: "0"}, check=True, timeout=200
    )
