"""Lazy imports: names of a package that are imported on first use, and that type checkers and editors can still see.

The names are those that the package's `if TYPE_CHECKING:` block imports. A type checker reads the block. At run time the block
is read as text, and each import in it happens at the first use of its name (as SPEC 1 of Scientific Python proposes,
https://scientific-python.org/specs/spec-0001/).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import resolve_name
from typing import Any

from .errors import MissingPackage
from .importing import in_existing_folder


def lazy_names(
    package: str, needs: tuple[str, ...] = (), extra: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the functions `__getattr__` and `__dir__` of a package.

    Args:
        package: the package's `__name__`.
        needs: optional packages that its names need; a missing one raises `MissingPackage`.
        extra: the extra that installs them (`pip install '.[extra]'` in a checkout); empty if every installation has them.
    """
    module = sys.modules[package]
    sources = _sources(module)

    def look_up(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            with in_existing_folder():
                value = _import(package, *sources[name])
        except ImportError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in needs:
                raise MissingPackage.of(missing, extra, f"{package}.{name}") from error
            raise
        setattr(module, name, value)
        return value

    return look_up, lambda: sorted({*module.__dict__, *sources})


def _import(package: str, source: str, name: str) -> Any:
    """Returns the object that `from source import name` imports."""
    if source == package:
        return import_module(f"{source}.{name}")
    module = import_module(source)
    return getattr(module, name) if hasattr(module, name) else import_module(f"{source}.{name}")


def _sources(module: Any) -> dict[str, tuple[str, str]]:
    """Returns (module, name in it) by public name, for every import in the `TYPE_CHECKING` blocks of a package."""
    package = module.__name__
    sources = {}
    for block in ast.parse(module.__spec__.loader.get_source(package)).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    source = (
                        resolve_name("." * line.level + (line.module or ""), package) if line.level else line.module
                    )
                    sources.update({a.asname or a.name: (str(source), a.name) for a in line.names})
    return sources
