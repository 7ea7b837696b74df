"""What a fresh process waits for: the import, the first placement with an empty and with a filled kernel cache.

Run with: pytest tests/benchmarks/test_speed_process.py --benchmark-only
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST = """
import time; began = time.perf_counter()
import baechi_lab as bl
graph = bl.generators.random_dag(2000, seed=0)
print(bl.place(graph, bl.Cluster.uniform(4), "m-etf").device.sum())
"""
pytestmark = pytest.mark.timeout(300)


def run(program, cache):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=cache
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_import(benchmark, tmp_path):
    """Less the start of Python itself, which `-X importtime` leaves out too."""
    program = "import time; t = time.perf_counter(); import baechi_lab; print(time.perf_counter() - t)"
    benchmark.extra_info["bar_s"] = 0.3
    benchmark.extra_info["import_s"] = sorted(float(run(program, tmp_path)) for _ in range(5))[2]
    benchmark.pedantic(lambda: run(program, tmp_path), rounds=3)


def test_first_placement_with_an_empty_cache(benchmark, tmp_path):
    benchmark.extra_info["bar_s"] = 20
    assert benchmark.pedantic(lambda: run(FIRST, tmp_path), rounds=1).strip()
    assert list(tmp_path.rglob("*.nbc")), "the kernels were not cached where they were told to be"


def test_first_placement_with_a_filled_cache(benchmark, tmp_path):
    benchmark.extra_info["bar_s"] = 1.5
    expected = run(FIRST, tmp_path)
    assert benchmark.pedantic(lambda: run(FIRST, tmp_path), rounds=3) == expected
