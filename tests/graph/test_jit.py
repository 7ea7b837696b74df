"""Kernels that were compiled by an earlier version."""

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
    done = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_bug_a_cache_that_names_a_class_of_an_earlier_version_is_written_anew(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE.format(name="Before", added=0))
    assert printed(tmp_path) == "6.0"  # 0 + 1 + 2 + 3
    assert list(tmp_path.rglob("*.nbi"))
    path.write_text(SOURCE.format(name="After", added=1))
    assert printed(tmp_path) == "7.0"  # failed: Can't get attribute 'Before'
    assert printed(tmp_path) == "7.0"  # from the new cache
