"""Child processes: none imports from the current folder, none outlives its caller."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.workers.isolated import child_path, isolated_command
from baechi_lab.workers.pool import Pool

psutil = pytest.importorskip("psutil")

LIBRARY = ("random", "queue", "struct", "pickle", "socket", "selectors", "numpy", "tqdm", "sitecustomize", "json")
"""Names that a data folder may well hold, and that the children import."""


@pytest.fixture
def trapped(tmp_path):
    """A folder whose modules leave a mark when they are imported."""
    for name in LIBRARY:
        (tmp_path / f"{name}.py").write_text(f"open(__file__ + '.ran', 'w').close()\nraise SystemExit('{name} ran')\n")
    graph = bl.OpGraph.from_edges(
        [3, 2, 4, 1, 5, 2], [(0, 1, 4), (0, 2, 4), (1, 3, 8), (2, 3, 8), (2, 4, 8), (4, 5, 2)]
    )
    bl.save_graph(graph, tmp_path / "graph.json")
    return tmp_path


def run_there(folder, *arguments):
    """The command as its console script runs it, in `folder`, with PYTHONPATH naming the folder as well."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [*isolated_command("baechi_lab"), *arguments]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert not list(folder.glob("*.ran")), process.stderr
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_exact_imports_nothing_from_the_current_folder(trapped):
    pytest.importorskip("ortools")
    out = run_there(
        trapped, "place", "graph.json", "--placer", "exact", "--devices", "2", "-o", "placed.json", "--json"
    )
    assert json.loads(out)["placer"] == "exact"


@pytest.mark.slow
def test_a_sweep_imports_nothing_from_the_current_folder(trapped):
    out = run_there(trapped, "sweep", "graph.json", "--devices", "1,2", "--jobs", "2", "--json")
    assert [row["feasible"] for row in json.loads(out)] == [True, True]


@pytest.mark.slow
def test_run_imports_the_neighbours_of_a_step_but_nothing_else_from_the_current_folder(trapped):
    pytest.importorskip("tensorflow")
    (trapped / "mine.py").write_text(
        "import tensorflow as tf\nimport numpy as np\nfrom half import half\n"
        "def step(): return lambda x: tf.tanh(half(x)), np.ones(3, 'float32')\n"
    )
    (trapped / "half.py").write_text("def half(x): return x / 2\n")
    options = ("--steps", "1", "--devices", "2", "--mode", "estimated", "--hardware", "cpu-core")
    assert run_there(trapped, "run", "mine.py:step", *options, "--json")


def test_python_m_imports_nothing_from_the_current_folder(trapped):
    """Python itself reads the folder until `__main__` runs; only what it needs for that is left out here."""
    for name in ("struct", "pickle", "socket", "selectors", "json", "sitecustomize"):
        (trapped / f"{name}.py").unlink()
    process = subprocess.run(
        [sys.executable, "-m", "baechi_lab", "--version"], cwd=trapped, capture_output=True, text=True
    )
    assert (process.returncode, list(trapped.glob("*.ran"))) == (0, []), process.stderr


def test_the_child_of_a_checkout_imports_the_callers_package(tmp_path):
    """The package is the caller's even where the current folder, or an installed one, has another."""
    (tmp_path / "baechi_lab").mkdir()
    (tmp_path / "baechi_lab" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    process = subprocess.run(
        isolated_command("baechi_lab.workers.process"), cwd=tmp_path, input=b"", capture_output=True, timeout=60
    )
    assert (process.returncode, process.stderr) == (0, b"")


def test_a_child_shares_its_callers_cache_of_compiled_modules(tmp_path, monkeypatch):
    """Python's `-I` ignores the variable PYTHONPYCACHEPREFIX."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    command = isolated_command("timeit", "-n1", "-r1", "-s", "import sys; print(sys.pycache_prefix)")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith(f"{tmp_path}\n")


def test_the_path_of_a_child(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    library = os.path.dirname(os.__file__)
    paths = ["", str(tmp_path), str(tmp_path / "link"), ".", "/opt/mine", library, "/opt/mine"]
    assert child_path(paths) == [library, "/opt/mine"]


# -- nobody is left behind -------------------------------------------------------------------------------------

SWEEP = """
import baechi_lab as bl
if __name__ == "__main__":
    graph = bl.OpGraph.from_edges([1 + i % 7 for i in range(400)], [(i // 3, i, 4) for i in range(1, 400)])
    bl.sweep(graph, devices=[2, 3], placer="search", params={"search": {"time_limit": 100}}, progress=False)
"""
EXACT = """
import baechi_lab as bl
if __name__ == "__main__":
    graph = bl.OpGraph.from_edges([1 + i * 37 % 11 for i in range(40)], [(i // 2, i, 4) for i in range(1, 40)])
    bl.place(graph, bl.Cluster.uniform(3, link=bl.Link(1, 1)), "exact", time_limit=100)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "children", "sign"), [(SWEEP, 2, signal.SIGTERM), (EXACT, 1, signal.SIGKILL)], ids=["sweep", "exact"]
)
def test_no_child_outlives_a_caller_that_is_ended(tmp_path, code, children, sign):
    """The children are deep in a search or a proof, inside compiled code that does not look at pipes."""
    (tmp_path / "caller.py").write_text(code)
    caller = subprocess.Popen([sys.executable, tmp_path / "caller.py"], stdin=subprocess.DEVNULL)
    try:
        busy = _descendants_at_work(caller, min(children, len(os.sched_getaffinity(0))))
        caller.send_signal(sign)
        caller.wait(30)
        _, alive = psutil.wait_procs(busy, timeout=10)
        assert alive == []
    finally:
        caller.kill()
        caller.wait()


def _descendants_at_work(caller, count):
    """The caller's descendants once `count` of them have computed for a while."""
    for _ in range(1200):
        assert caller.poll() is None
        children = psutil.Process(caller.pid).children(recursive=True)
        if sum(p.cpu_times().user > 1.2 for p in children) >= count:
            return children
        time.sleep(0.1)
    raise AssertionError("the children did not start to work")


# -- the pool ----------------------------------------------------------------------------------------------------


def test_the_pool_returns_values_and_errors():
    with Pool(1) as pool:
        assert pool.submit(divmod, 17, 5).result() == (3, 2)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
        with pytest.raises(bl.InvalidInput, match="speed of device"):
            pool.submit(bl.Device, "a", "cpu", 1, -1.0).result()
        assert pool.submit(len, pool.share(b"abc")).result() == 3
        assert pool.submit(bytes.upper, pool.share(b"abc")).result() == b"ABC"


@pytest.mark.slow
def test_a_killed_process_of_the_pool_loses_no_call():
    """The first kill is made good by a fresh process, the second of one call is told."""
    from concurrent.futures import BrokenExecutor

    with Pool(1) as pool:
        first = pool.submit(os.getpid).result()
        os.kill(first, signal.SIGKILL)
        assert pool.submit(os.getpid).result() != first
        with pytest.raises(BrokenExecutor, match="was killed by signal 9"):
            pool.submit(signal.raise_signal, signal.SIGKILL).result()
        assert pool.submit(max, 1, 2).result() == 2


def test_errors_and_results_that_nothing_can_read_are_told(tmp_path):
    """Their classes raise what they like when they are packed or built anew: the caller was told of a signal, or waited."""
    program = """
from baechi_lab.workers.pool import Pool
class Unpacked(Exception):
    def __reduce__(self): raise RuntimeError("no")
class Ends(BaseException): pass
class Unbuilt:
    def __setstate__(self, state): raise RuntimeError("not here")
    def __getstate__(self): return 1
def fail(error): raise error("the reason")
if __name__ == "__main__":
    with Pool(1) as pool:
        for call in ((fail, Unpacked), (fail, Ends), (Unbuilt,)):
            print(pool.submit(*call).exception(timeout=60))
"""
    (tmp_path / "program.py").write_text(program)
    process = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120)
    lines = process.stdout.splitlines()
    assert lines[0].endswith("Unpacked: the reason") and lines[1] == "the reason", process.stderr
    assert lines[2] == "what the call returned cannot be read here: not here"


@pytest.mark.slow
def test_a_program_without_a_main_guard_is_told(tmp_path):
    program = """
import baechi_lab as bl
graph = bl.OpGraph.from_edges([1, 2], [(0, 1, 4)])
print(bl.sweep(graph, devices=[1], progress=False))
"""
    (tmp_path / "program.py").write_text(program)
    process = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120)
    assert process.returncode == 1 and "__name__" in process.stderr.splitlines()[-1]


def test_functions_of_the_callers_program_are_found(tmp_path):
    program = """
from baechi_lab.workers.pool import Pool
from mine import half
def double(x): return 2 * x
if __name__ == "__main__":
    with Pool(1) as pool:
        print(pool.submit(double, 21).result(), pool.submit(half, 4).result())
"""
    (tmp_path / "mine.py").write_text("def half(x): return x // 2\n")
    (tmp_path / "program.py").write_text(program)
    process = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.stdout == "42 2\n", process.stderr


@pytest.mark.slow
def test_affinity_is_asked_for_only_where_the_system_has_it():
    """macOS has no `os.sched_getaffinity`: `baechi-lab demo` and native runs ended with AttributeError there."""
    asking = [
        text
        for file in Path(bl.__file__).parent.rglob("*.py")
        if file.name != "forked.py"  # whose processes are forked on Linux alone
        if "sched_getaffinity" in (source := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and "os.sched_getaffinity" in (text := ast.unparse(node))
    ]
    assert asking
    assert not [text for text in asking if "hasattr(os, 'sched_" not in text]
