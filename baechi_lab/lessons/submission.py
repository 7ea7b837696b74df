"""A submitted notebook as text: its code cells, its answers, and its attempts to tamper with the checks. It is not executed."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FormatError

CHECKERS = ("check", "lesson")
"""Names that the notebooks of the course give to the checks."""
FROM_LESSONS = {"Instance", "lesson", "ratio"}
"""Names that a notebook may import from `baechi_lab.lessons`, besides the graphs of exercises; the other names hold answers."""
MOST_BYTES = 50_000_000
"""Largest notebook that is read."""


@dataclass(frozen=True)
class Cell:
    """A code cell to run: its number in the notebook (from 1), its text, and the expressions of answers by exercise."""

    number: int
    source: str
    answers: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Submission:
    """The contents of a notebook: its lesson, or whether it is homework, its cells, and its tampering."""

    cells: tuple[Cell, ...]
    lesson: str | None
    is_homework: bool
    tampering: tuple[str, ...]


def read_submission(path: Path) -> Submission:
    """Reads a notebook, without the solutions of the course in it; raises `FormatError` where the file is no notebook."""
    cells: list[Cell] = []
    lesson, is_homework, tampering = None, False, []
    names_of_library: set[str] = set()
    for number, source in _code_cells(path):
        tree = _parse_cell(source)
        answers: dict[int, str] = {}
        if tree is not None:
            names_of_library |= {name for node in ast.walk(tree) for name in _library_names(node)}
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                lesson = lesson or _named_lesson(call)
                is_homework = is_homework or _called_name(call) == "homework"
                if (answer := _checked_answer(call)) is not None:
                    answers[answer[0]] = answer[1]
            tampering += [
                f"cell {number} {text}" for node in ast.walk(tree) for text in _tampering(node, names_of_library)
            ]
        cells.append(Cell(number, source, answers))
    return Submission(tuple(cells), lesson, is_homework, tuple(dict.fromkeys(tampering)))


def _code_cells(path: Path) -> Iterator[tuple[int, str]]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FormatError(f"has more than {MOST_BYTES:,} bytes")
        notebook: Any = json.loads(path.read_text(encoding="utf-8"))
        for number, cell in enumerate(notebook["cells"], 1):
            source = "".join(cell["source"])
            tags = cell.get("metadata", {}).get("tags", [])
            if cell["cell_type"] == "code" and "solution" not in tags and "check.solution(" not in source:
                yield number, source
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise FormatError(f"is no notebook that can be read: {reason:.100}") from error


def _parse_cell(source: str) -> ast.Module | None:
    """Returns the syntax tree of a cell without lines for IPython; None if it is not Python."""
    lines = [
        line[: len(line) - len(line.lstrip())] + "pass" if line.strip()[:1] in ("%", "!", "?") else line
        for line in source.splitlines()
    ]
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _named_lesson(call: ast.Call) -> str | None:
    if _called_name(call) == "lesson" and call.args and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value)
    return None


def _checked_answer(call: ast.Call) -> tuple[int, str] | None:
    """Returns exercise and expression of a call such as `check(2, answer)`."""
    if getattr(call.func, "id", "") != "check" or len(call.args) != 2 or not isinstance(call.args[0], ast.Constant):
        return None
    exercise = call.args[0].value
    return (exercise, ast.unparse(call.args[1])) if isinstance(exercise, int) else None


def _library_names(node: ast.AST) -> list[str]:
    """Returns the names that an import of this package defines."""
    if isinstance(node, ast.Import):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names if _is_library(alias.name)]
    if isinstance(node, ast.ImportFrom) and _is_library(node.module or ""):
        return [alias.asname or alias.name for alias in node.names]
    return []


def _is_library(module: str) -> bool:
    return module.partition(".")[0] == "baechi_lab"


def _tampering(node: ast.AST, library: set[str]) -> Iterator[str]:
    """Describes how a statement tampers: it replaces the checker or a part of the library, or reads answers; empty if not."""
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)):
        targets = [node.target]
    for target in [x for t in targets for x in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]:
        root = _root(target)
        if isinstance(target, ast.Name) and root in CHECKERS and not _makes_checker(node):
            yield f"replaces {root}"
        elif isinstance(target, (ast.Attribute, ast.Subscript)) and root in (*CHECKERS, *library):
            yield f"replaces {ast.unparse(target):.60}"
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in CHECKERS:
        yield f"replaces {node.name}"
    if isinstance(node, ast.Call) and _called_name(node) in ("setattr", "delattr") and node.args:
        if _root(node.args[0]) in (*CHECKERS, *library):
            yield f"replaces a part of {ast.unparse(node.args[0]):.60}"
    if isinstance(node, ast.Attribute) and _root(node) in CHECKERS and node.attr != "solution":
        yield f"looks into {ast.unparse(node):.60}"
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("baechi_lab.lessons"):
        names = [alias.name for alias in node.names if alias.name not in FROM_LESSONS]
        if hidden := [name for name in names if not name.isupper() or name == "CHECKS"]:
            yield f"imports {hidden[0]} from the checks"
    if isinstance(node, ast.Import) and any(alias.name.startswith("baechi_lab.lessons") for alias in node.names):
        yield "imports the checks"


def _makes_checker(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return (
        isinstance(value, ast.Call) and _named_lesson(value) is not None and not isinstance(value.func, ast.Attribute)
    )


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
