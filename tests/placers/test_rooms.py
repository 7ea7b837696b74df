"""Modules of the rooms below the rules import one way, those inside functions and for types alone included."""

import ast
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import baechi_lab

PACKAGE = Path(baechi_lab.__file__).parent
ROOMS = ("evaluation", "memory", "planner", "search")


def imports(path):
    """Modules that a module imports by relative imports, as paths."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield from (home / f"{alias.name}.py" for alias in node.names)
            yield home.with_suffix(".py")


@cache
def arrows():
    imports_graph = nx.DiGraph()
    for path in (PACKAGE / "placers").rglob("*.py"):
        imports_graph.add_edges_from(
            (path, imported) for imported in imports(path) if imported.is_file() and path.stem != "__init__"
        )
    return imports_graph


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    own_modules = [p for p in arrows() if p.parent.name in ROOMS or p.stem in ("hierarchical", "metis", "contiguous")]
    circles = [c for c in nx.strongly_connected_components(arrows()) if len(c) > 1 and c & set(own_modules)]
    assert circles == []


@pytest.mark.parametrize(("low", "high"), [("evaluation", "memory"), ("evaluation", "search"), ("memory", "search")])
def test_lower_rooms_do_not_know_higher_ones(low, high):
    assert not [(a, b) for a, b in arrows().edges if a.parent.name == low and b.parent.name == high]
    assert [(a, b) for a, b in arrows().edges if a.parent.name == high and b.parent.name == low], "arrows are seen"
