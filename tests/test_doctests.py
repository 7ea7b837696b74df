"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType

import pytest

import baechi_lab
import studies

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
TEMPLATES = {"baechi_lab.exporters.tensorflow.worker", "baechi_lab.exporters.tensorflow.watch"}
"""Copied into exported folders, where what they import lies beside them."""


def module_names() -> list[str]:
    """All modules of the package and of the studies; those that need torch only where it is installed."""
    names = [
        module.name
        for package in (baechi_lab, studies)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None)
    ]
    without_torch = importlib.util.find_spec("torch") is None
    names = sorted(set(names) - TEMPLATES)
    return [n for n in names if not n.endswith("__main__") and not (without_torch and _needs_torch(n))]


def _needs_torch(name: str) -> bool:
    return any(package == "torch" or package.startswith("torch_") for package in name.split("."))


def examples_of(module: ModuleType) -> Iterator[doctest.DocTest]:
    """Yields the docstrings of a module as tests, with those of cached properties, which the finder passes over."""
    yield from doctest.DocTestFinder().find(module)
    for cls in vars(module).values():
        if inspect.isclass(cls) and cls.__module__ == module.__name__:
            for name, member in vars(cls).items():
                if isinstance(member, cached_property) and member.__doc__:
                    place = f"{module.__name__}.{cls.__name__}.{name}"
                    yield doctest.DocTestParser().get_doctest(
                        member.__doc__, dict(vars(module)), place, module.__file__, 0
                    )


@pytest.mark.parametrize("name", module_names())
def test_examples_of_a_module_print_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example that writes a file writes it there
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    module = importlib.import_module(name)
    has_examples = ">>> " in Path(str(module.__file__)).read_text(encoding="utf-8")  # looking for them takes longer
    for test in examples_of(module) if has_examples else ():
        if test.examples:  # the runner asks for the time of every source that was read before each docstring
            runner.run(test)
    failed, tried = runner.summarize(verbose=False)
    assert failed == 0, f"{failed} of {tried} examples in {name} fail; see the captured output"


@pytest.mark.slow
def test_docstrings_have_one_heading_style_and_describe_arguments_that_exist():
    """Google's: `Args:`, not `Parameters:`, `Parameters` and dashes, or `:param x:`; ruff checks how they are written."""
    foreign_heading = re.compile(
        r"^ *(Parameters|Params|Arguments|Return|Raise|Yield|Example):$|^ *-{4,}$|^ *:param ", re.M
    )
    headings, unknown = [], []
    for path in sorted(Path(baechi_lab.__file__).parent.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "Args:" in source or foreign_heading.search(source) else ():
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                headings += [(path.name, line.group().strip()) for line in foreign_heading.finditer(text)]
                described = _described(text)
                if described and (parameters := _parameters(node)):  # none: a data class, which may inherit fields
                    unknown += [f"{path.name}: {name}" for name in sorted(described - parameters)]
    assert headings == []
    assert unknown == []


def _described(docstring: str) -> set[str]:
    """Names in the section `Args:`; the describing text is indented further."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.M | re.S)
    entries = re.findall(r"^ {4}(\S[^:]*)", section[1], re.M) if section else []
    return {name.strip(" *") for entry in entries for name in entry.partition(" (")[0].split(",")}


def _parameters(node: ast.AST) -> set[str]:
    """Parameters of a function or of a class's constructor."""
    if isinstance(node, ast.ClassDef):
        constructors = [child for child in node.body if getattr(child, "name", "") == "__init__"]
        return _parameters(constructors[0]) if constructors else set()
    return {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}
