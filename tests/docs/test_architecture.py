"""The picture of the rooms in docs/architecture.md is what the imports say, those inside functions included."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import baechi_lab

PACKAGE = Path(baechi_lab.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
DIAGRAM = re.search(r"```mermaid\n(%% architecture.*?)```", PAGE, re.DOTALL)[1]


def drawn_rooms() -> dict[str, str]:
    """Path below the package -> name of the room whose box names it."""
    boxes = re.findall(r'^ *(\w+)\["(.*?)"\]$', DIAGRAM, re.MULTILINE)
    return {path: room for room, text in boxes for path in text.replace("<br/>", " ").split()}


def drawn_arrows(line: str) -> set[tuple[str, str]]:
    """(from, to) of every arrow drawn with `line`; several targets are joined by `&`."""
    rows = re.findall(rf"^ *(\w+) {re.escape(line)} (.*)$", DIAGRAM, re.MULTILINE)
    return {(source, target) for source, targets in rows for target in targets.split(" & ")}


def room_of(module_path: tuple[str, ...] | list[str], rooms: dict[str, str]) -> str:
    """The room of a module: that of the longest path that is drawn."""
    paths = ("/".join(module_path[:k]) for k in range(len(module_path), 0, -1))
    return next((rooms[path] for path in paths if path in rooms), f"{module_path[0]} (in no box)")


@cache
def imported(path: Path) -> list[list[str]]:
    """Modules (or names in them) below the package that a file imports, as parts of a path."""
    home, imports = path.relative_to(PACKAGE).parts[:-1], []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*home[: len(home) - node.level + 1], *(node.module.split(".") if node.module else [])]
            imports += [[*base, alias.name] if base else public_home(alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            imports += [a.name.split(".")[1:] for a in node.names if a.name.startswith("baechi_lab.")]
    return imports


def public_home(name: str) -> list[str]:
    """Where `from .. import name` leads: to a module of the package, or to the home of a public name."""
    if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() or name.startswith("__"):
        return [name if not name.startswith("__") else "__init__"]
    return getattr(baechi_lab, name).__module__.split(".")[1:]


def real_arrows(rooms: dict[str, str]) -> set[tuple[str, str]]:
    """(from, to) of every import between rooms; the package's own `__init__` names what is public, and is no room."""
    pairs = set()
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / "__init__.py"}:
        importing_room = room_of(path.relative_to(PACKAGE).with_suffix("").parts, rooms)
        pairs |= {
            (importing_room, room_of(module_path, rooms))
            for module_path in imported(path)
            if module_path != ["__init__"]
        }
    return {(a, b) for a, b in pairs if a != b}


def test_every_box_names_what_exists():
    missing = [p for p in drawn_rooms() if not ((PACKAGE / p).is_dir() or (PACKAGE / f"{p}.py").is_file())]
    assert missing == []


def test_no_arrow_goes_against_the_order():
    """Every arrow is solid: an import that climbs has no place in the picture, for whatever reason."""
    assert set(re.findall(r"^ *\w+ (\S*[-=.]\S*>\S*)", DIAGRAM, re.MULTILINE)) == {"-->"}


@pytest.mark.slow
def test_arrows_are_the_imports():
    """Imports between rooms form no circle; drawn are those that do not follow from others."""
    imports = nx.DiGraph(sorted(real_arrows(drawn_rooms())))
    circles = [sorted(circle) for circle in nx.strongly_connected_components(imports) if len(circle) > 1]
    assert circles == [], "these rooms import each other"
    expected, drawn = set(nx.transitive_reduction(imports).edges), drawn_arrows("-->")
    change = {"draw": sorted(expected - drawn), "remove": sorted(drawn - expected)}
    assert change == {"draw": [], "remove": []}, f"{change} in docs/architecture.md, then run docs/tools/draw.py"


@pytest.mark.slow
def test_the_reader_of_imports_sees():
    """Relative ones, those inside functions, and public names; or the tests above would prove nothing."""
    pairs = real_arrows(drawn_rooms())
    assert ("executors", "profilers") in pairs
    assert ("cli", "fitting") in pairs  # inside a function
    assert ("simulator", "widgets") not in pairs
