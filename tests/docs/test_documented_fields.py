"""The fields that docstrings describe exist under the names that they have there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "baechi_lab"

ENTRY = re.compile(r"^    (\w+(?:, \w+)*):", re.MULTILINE)
"""The names of an entry below `Args:`, one or several."""


def documented_names(docstring: str) -> list[str]:
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    return [] if section is None else [name for names in ENTRY.findall(section[1]) for name in names.split(", ")]


def records(source: str) -> Iterator[tuple[str, list[str], set[str]]]:
    """Yields the name, the documented names and the members of each class that inherits no fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} <= {"NamedTuple"}:
            members = {str(ast.unparse(item.target)) for item in node.body if isinstance(item, ast.AnnAssign)}
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    members |= {item.name, *(a.arg for a in [*item.args.args, *item.args.kwonlyargs])}
            yield node.name, documented_names(ast.get_docstring(node) or ""), members


def test_an_entry_without_its_field_is_seen():
    source = 'class A:\n    """B.\n\n    Args:\n        c, d: e.\n            f: g.\n    """\n\n    c: int\n'
    assert list(records(source)) == [("A", ["c", "d"], {"c"})]


@pytest.mark.slow
def test_documented_fields_exist():
    missing = [
        f"{path.relative_to(PACKAGE)}: {name} has no {field}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "Args:" in (source := path.read_text(encoding="utf-8"))
        for name, documented, members in records(source)
        for field in documented
        if field not in members
    ]
    assert not missing, missing


ARGUMENT = re.compile(r"`([a-z]\w*)=[^=`]*`")
"""An argument with its value, such as `memory_limits=False`."""


def named_arguments(tree: ast.AST) -> set[str]:
    """Returns the names that a module takes or gives as arguments, or declares as fields."""
    names = {node.arg for node in ast.walk(tree) if isinstance(node, (ast.arg, ast.keyword)) and node.arg}
    return names | {ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}


@pytest.mark.slow
def test_arguments_that_docstrings_name_exist():
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    described = (ast.FunctionDef, ast.ClassDef, ast.Module)
    missing = {
        name: f"{path.relative_to(PACKAGE)}: {name}"
        for path, source in sources.items()
        if ARGUMENT.search(source)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, described)
        for name in ARGUMENT.findall(ast.get_docstring(node) or "")
    }
    assert missing.pop("num_cpus")  # an option of Ray's
    for source in sources.values():  # as many as it takes: to parse all takes three seconds
        if any(name in source for name in missing):
            for name in named_arguments(ast.parse(source)) & missing.keys():
                del missing[name]
    assert not missing, missing
