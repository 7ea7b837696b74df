"""Kernels that were compiled by an earlier version, or by another process at the same time."""

import subprocess
import sys

import pytest

pytest.importorskip("numba")

SOURCE = """
from typing import NamedTuple
import numpy as np
from baechi_lab.graph.kernels.jit import njit

class {name}(NamedTuple):
    a: np.ndarray

@njit(cache=True)
def total(given):
    return given.a.sum() + {added}

print(total({name}(np.arange(4.0))))
"""


def printed(folder):
    process = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.slow
def test_bug_a_cache_that_names_a_class_of_an_earlier_version_is_written_anew(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE.format(name="Before", added=0))
    assert printed(tmp_path) == "6.0"  # 0 + 1 + 2 + 3
    assert list(tmp_path.rglob("*.nbi"))
    path.write_text(SOURCE.format(name="After", added=1))
    assert printed(tmp_path) == "7.0"  # failed: Can't get attribute 'Before'
    assert printed(tmp_path) == "7.0"  # from the new cache


TOGETHER = """
import sys
from kernels import inner, outer
saved = []
for kernel in (outer, inner):
    save = kernel._cache.save_overload
    kernel._cache.save_overload = lambda *given, save=save, name=kernel.__name__: (saved.append(name), save(*given))
print("ready", flush=True)
sys.stdin.readline()
assert outer(3.0) == 7.0 and outer(3) == 7
print(*saved)
"""
KERNELS = """
from baechi_lab.graph.kernels.jit import njit

@njit(cache=True)
def inner(x):
    return 2 * x

@njit(cache=True)
def outer(x):
    return inner(x) + 1
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_of_processes_that_start_together_one_compiles_and_the_others_read(tmp_path):
    """Two kernels, one calling the other, each for two types: four versions in all, whoever makes them."""
    pytest.importorskip("fcntl")
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "together.py").write_text(TOGETHER)
    command = [sys.executable, str(tmp_path / "together.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as second:
        assert one.stdout.readline() == second.stdout.readline() == "ready\n"
        for process in (one, second):
            process.stdin.write("\n")
            process.stdin.flush()
        compiled = [name for process in (one, second) for name in process.communicate(timeout=100)[0].split()]
    assert sorted(compiled) == ["inner", "inner", "outer", "outer"]
    assert one.returncode == second.returncode == 0
