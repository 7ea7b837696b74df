"""`import baechi_lab` is fast and loads no framework; every public name exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import baechi_lab

HEAVY = ("tensorflow", "keras", "torch", "plotly", "ipywidgets", "anywidget", "cvxpy", "numba", "pandas", "scipy")


def run_python(code: str) -> str:
    """Standard output of a fresh interpreter."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


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
        "import sys; from baechi_lab.cli import COMMANDS, parser; [parser(command) for command in COMMANDS]\n"
        "print([m for m in ('tensorflow', 'torch', 'plotly', 'cvxpy', 'pandas') if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_a_command_imports_its_own_module_only():
    """The module of `demo` imports every stage, and with them numba."""
    code = (
        "import sys; from baechi_lab.cli import parser; parser('place')\n"
        "print([m for m in ('baechi_lab.cli.demo', 'baechi_lab.passes', 'numba', 'scipy') if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_reading_a_graph_imports_no_large_package(tmp_path):
    path = tmp_path / "graph.json"
    baechi_lab.save_graph(baechi_lab.generators.chain(3), path)
    code = (
        f"import sys, baechi_lab as bl; bl.load_graph({str(path)!r})\nprint([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("name", sorted(set(baechi_lab.__all__) - {"torch"}))
def test_every_public_name_exists(name):
    assert getattr(baechi_lab, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = baechi_lab.nonsense


# -- imports run one way ---------------------------------------------------------------------------------

PACKAGE = Path(baechi_lab.__file__).parent
PYTORCH = {"torch", "torch_steps", "torch_runtime"}
STAGES = {"profilers", "passes", "placers", "simulator", "executors", "exporters", "models", "memory_saving"} | PYTORCH
FRONTS = {"pipeline", "stages", "comparison", "sweeps", "cli", "viz", "widgets", "fidelity", "lessons", "fitting"}
MAY_NOT_KNOW = {
    "graph": STAGES | FRONTS | {"workers"},
    "workers": STAGES | FRONTS,
    "torch_runtime": STAGES | FRONTS,
    "torch_steps": FRONTS | STAGES - {"torch_steps", "torch_runtime"},
    "profilers": FRONTS | STAGES - {"profilers", "torch_steps", "torch_runtime", "passes"},
    "memory": FRONTS | STAGES,
    "passes": FRONTS | STAGES - {"passes"},
    "memory_saving": FRONTS | STAGES - {"memory_saving", "passes", "simulator"},
    "simulator": FRONTS | STAGES - {"simulator", "passes"},  # micro-batches are simulated on the unrolled graph
    "placers": FRONTS | PYTORCH | {"executors", "exporters", "profilers", "models"},
    "models": FRONTS | STAGES - {"models", "profilers", "placers", "simulator"},
    "executors": FRONTS | {"exporters", "placers", "models", "torch"},
    "exporters": FRONTS | STAGES - {"exporters", "executors", "simulator", "torch_steps", "torch_runtime"},
    "torch": FRONTS,
    "viz": STAGES | FRONTS - {"viz", "fitting"},  # it draws the record of bl.fit
    "fidelity": {"widgets", "cli", "lessons"},
    "lessons": {"widgets", "cli", "fidelity"},
    "cli": {"widgets"},
    "sweeps": {"widgets", "cli", "fidelity", "lessons"},
    "widgets": {"cli", "fidelity", "lessons"},
}


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """All of a file, those inside functions included."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def known_packages(path: Path) -> set[str]:
    """First parts below baechi_lab of everything that a module imports, inside functions as well."""
    packages = set()
    home = ["baechi_lab", *path.relative_to(PACKAGE).parts[:-1]]
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            full_name = [*base, *(node.module or "").split(".")]
            names = [[*full_name, a.name] for a in node.names] if full_name[-1] in ("baechi_lab", "") else [full_name]
        else:
            names = [a.name.split(".") for a in node.names]
        clean = [[word for word in name if word] for name in names]
        packages |= {name[1] for name in clean if name[0] == "baechi_lab" and len(name) > 1}
    return packages


@pytest.mark.parametrize("package", sorted(MAY_NOT_KNOW))
def test_imports_run_one_way(package):
    climbing_imports = [
        (path.relative_to(PACKAGE).as_posix(), package_name)
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for package_name in known_packages(path) & (MAY_NOT_KNOW[package] - {package})
    ]
    assert climbing_imports == []


def test_the_way_imports_run_is_seen():
    """The reader of imports finds relative and lazy ones, or the test above would prove nothing."""
    assert {"graph", "profilers"} <= known_packages(PACKAGE / "executors" / "structure.py")
    assert "fitting" in known_packages(PACKAGE / "cli" / "fit.py")


def imported_names() -> list[tuple[str, str, str]]:
    """(module, imported module, name) of every relative import of the package, those inside functions included."""
    names_found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module_path = ("baechi_lab", *path.relative_to(PACKAGE).with_suffix("").parts)
        package_path = module_path[:-1]  # the package that a module, or an __init__, is in
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = package_path[: len(package_path) - node.level + 1]
                target = ".".join([*above, *([node.module] if node.module else [])])
                names_found += [(".".join(module_path), target, alias.name) for alias in node.names]
    return names_found


@pytest.mark.slow
def test_every_name_that_a_function_imports_exists():
    without_torch = importlib.util.find_spec("torch") is None
    for module, target, name in imported_names():
        if without_torch and "torch" in target:
            continue
        home = importlib.import_module(target)
        if not hasattr(home, name):
            assert importlib.util.find_spec(f"{target}.{name}"), f"{module} imports {name} from {target}"
