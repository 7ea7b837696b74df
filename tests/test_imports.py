"""`import baechi_lab` is fast and loads no framework; every public name exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

import baechi_lab

HEAVY = ("tensorflow", "keras", "torch", "plotly", "ipywidgets", "anywidget", "cvxpy", "numba", "pandas", "scipy")


def run_python(code: str) -> str:
    """Standard output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_no_heavy_package():
    code = f"import sys, baechi_lab; print([m for m in {HEAVY} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_records_need_no_heavy_package():
    code = (
        "import sys, baechi_lab as bl\n"
        "graph = bl.OpGraph.from_edges([1.0, 2.0], [(0, 1, 8)]); bl.Cluster.uniform(2); bl.Placement(device=[0, 1])\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_command_line_parser_needs_no_framework():
    code = (
        "import sys; from baechi_lab.cli import parser; parser()\n"
        "print([m for m in ('tensorflow', 'torch', 'plotly', 'cvxpy', 'pandas') if m in sys.modules])"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("name", sorted(set(baechi_lab.__all__) - {"torch"}))
def test_every_public_name_exists(name):
    assert getattr(baechi_lab, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = baechi_lab.nonsense
