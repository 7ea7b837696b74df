"""Solvers write nothing on standard output, where commands write JSON, and never redirect it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import baechi_lab
from baechi_lab.highs import silent_highs
from baechi_lab.workers import metis, pool

HIGHS = """
from baechi_lab.highs import silent_highs
print("before")
for _ in range(2):
    solver = silent_highs(threads=1)
    solver.run()
print(solver.modelStatusToString(solver.getModelStatus()), solver.getOptionValue("threads")[1])
"""
METIS = """
import pymetis
from baechi_lab.workers.metis import metis_parts
if {direct}:
    weights = [0, 0, 0, 1000000]
    options = pymetis.Options(ufactor=30, seed=0)
    pymetis.part_graph(4, pymetis.CSRAdjacency([0] * 5, []), vweights=weights, recursive=True, options=options)
else:
    metis_parts([0] * 5, [], [], 4, recursive=True, seed=0, vertex_weight=[0, 0, 0, 1000000], imbalance=0.03)
"""
SCT = """
import baechi_lab as bl
graph = bl.OpGraph.from_edges([4, 8, 8], [(0, 1, 4), (0, 2, 4)])
for solver in ("HIGHS", "highs-ipm", "clarabel"):
    bl.place(graph, bl.Cluster.uniform(2, link=bl.Link(1.0, 0.1)), "m-sct", solver=solver)
"""


def output_of(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_highs_prints_nothing():
    assert output_of(HIGHS).splitlines() == ["before", "Empty 1"]


@pytest.mark.subprocess
@pytest.mark.slow
def test_no_solver_of_the_sct_program_prints():
    pytest.importorskip("cvxpy")
    assert output_of(SCT) == ""


@pytest.mark.slow
def test_metis_prints_in_its_own_process():
    """METIS says that it cannot bisect a graph of 0 vertices, here and on every platform whatever its options."""
    pytest.importorskip("pymetis")
    assert "Cannot bisect a graph" in output_of(METIS.format(direct=True))
    assert output_of(METIS.format(direct=False)) == ""


@pytest.mark.slow
def test_metis_starts_again_after_its_process_was_killed():
    pytest.importorskip("pymetis")
    ring = ([0, 2, 4, 6, 8], [1, 3, 0, 2, 1, 3, 0, 2], [9, 1, 9, 1, 1, 9, 1, 9])  # 0-1 and 2-3 by edges of 9
    first = metis.metis_parts(*ring, 2, recursive=False, seed=0)
    worker = metis._pool(os.getpid()).submit(os.getpid).result()
    os.kill(worker, signal.SIGKILL)
    second = metis.metis_parts(*ring, 2, recursive=False, seed=0)
    assert first.tolist() == second.tolist()
    assert first[0] == first[1] != first[2] == first[3]


def test_a_process_that_ends_without_an_answer_is_an_error(monkeypatch):
    pytest.importorskip("pymetis")
    monkeypatch.setattr(pool, "isolated_command", lambda module: [sys.executable, "-c", ""])
    monkeypatch.setattr(metis, "_pool", lambda process_id: pool.Pool(1, imports_main=False))
    with pytest.raises(baechi_lab.errors.ExecutionError, match="METIS runs in a process of its own"):
        metis.metis_parts([0, 0], [], [], 1, recursive=False, seed=0)


def test_nobody_redirects_standard_output_of_the_caller():
    """A redirection is for the whole process: two threads restore what the other has set, and what others print is lost.

    What remains runs in processes of our own, or at the end of one; `loading` does so under one lock.
    """
    package = Path(baechi_lab.__file__).parent
    redirection = re.compile(r"os\.dup2|redirect_std(out|err)|sys\.std(out|err) = ")
    users = {
        str(p.relative_to(package)) for p in package.rglob("*.py") if redirection.search(p.read_text(encoding="utf-8"))
    }
    assert users == {
        "cli/__init__.py",
        "lessons/notebook_process.py",
        "workers/tensorflow_import.py",
        "workers/fork_server.py",
        "workers/process.py",
    }


def test_options_reach_highs():
    assert silent_highs(threads=1, time_limit=3.0).getOptionValue("time_limit")[1] == 3.0
