"""Print what is installed, what is missing, and what each missing extra would add, with the command that installs it.

Nothing is imported: versions are those that the installer recorded. The exit code is 1 if a package that every installation
needs is missing, or has a version that does not work.
"""

from __future__ import annotations

import argparse
import platform
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from .. import __version__
from ..errors import BaechiLabError
from . import output


@dataclass(frozen=True)
class Extra:
    """Packages that are installed together. `name` is theirs in `pip install '.[EXTRA]'`; the empty one is always installed."""

    name: str
    adds: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements that the installer recorded for this package; empty where it is not installed.

        >>> Extra("onnx", "").requirements
        ('onnx>=1.16',)
        """
        try:
            requirement_lines = metadata.requires("baechi-lab") or []
        except metadata.PackageNotFoundError:  # a checkout that was not installed
            requirement_lines = []
        texts: list[str] = []
        for text in requirement_lines:
            requirement, _, extra = re.sub(r" and (?=extra ==)", "; ", text).partition("; extra == ")
            if extra.strip("'\"") == self.name and not requirement.startswith("baechi-lab["):
                texts.append(requirement)
        return tuple(texts)

    @property
    def command(self) -> str:
        """The command that installs the packages of the extra, in any folder."""
        return "pip install " + " ".join(f"'{requirement.partition(';')[0]}'" for requirement in self.requirements)

    @property
    def checkout_command(self) -> str:
        """The command in a checkout, by the extra's name."""
        return f"pip install '.[{self.name}]'" if self.name else "pip install ."


EXTRAS = (
    Extra("", "placing, comparing, simulating, fitting and drawing graph files; the workbench in JupyterLab"),
    Extra(
        "tensorflow",
        "TensorFlow steps: tracing, profiling, running and exporting them, benchmark models, the Hierarchical Planner, demo",
    ),
    Extra("torch", "PyTorch modules: profiling, distributing, running and exporting them"),
    Extra("transformers", "graphs of Hugging Face models from a config.json"),
    Extra("onnx", "graphs of ONNX models, and traces stored as protocol buffers"),
    Extra("solvers", "the placers exact (OR-tools) and metis"),
    Extra("cluster", "workers on several machines behind TLS, and sweeps on Dask"),
    Extra("docs", "the documentation as a site"),
    Extra("dev", "the tests, with what tensorflow, onnx, solvers, cluster and docs bring"),
)
"""What `pip install .` brings, then the extras."""


@dataclass(frozen=True)
class Package:
    """One requirement on this machine. `version` is None where nothing is installed.

    `state` is "ok", "missing", "other version" or "not on this platform".
    """

    name: str
    needs: str
    version: str | None
    state: str

    @property
    def usable(self) -> bool:
        """Whether all requirements are installed."""
        return self.state in ("ok", "not on this platform")


def package_of(requirement_text: str) -> Package:
    """Looks a requirement up among the installed packages.

    >>> package_of("numpy>=1.26").state, package_of("numpy<1").state, package_of("no-such-package>=1").state
    ('ok', 'other version', 'missing')
    """
    from packaging.requirements import Requirement

    requirement = Requirement(requirement_text)
    needs = str(requirement.specifier)
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        elsewhere = requirement.marker is not None and not requirement.marker.evaluate()
        return Package(requirement.name, needs, None, "not on this platform" if elsewhere else "missing")
    fits = requirement.specifier.contains(version, prereleases=True)
    return Package(requirement.name, needs, version, "ok" if fits else "other version")


def extra_of(package: str) -> Extra | None:
    """Returns the first extra that brings a package; None where none does.

    >>> extra_of("ortools").name
    'solvers'
    """
    from packaging.requirements import Requirement

    return next((extra for extra in EXTRAS if any(Requirement(r).name == package for r in extra.requirements)), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no options."""


def run(arguments: argparse.Namespace) -> int:
    """Looks every extra up, and prints."""
    if not EXTRAS[0].requirements:
        raise BaechiLabError("the package is not installed, so that its requirements are not known: run pip install .")
    packages = {extra: [package_of(requirement) for requirement in extra.requirements] for extra in EXTRAS}
    if arguments.json:
        output.print_json(
            {
                "version": __version__,
                "python": platform.python_version(),
                "parts": [_facts(extra, packages[extra]) for extra in EXTRAS],
            }
        )
    else:
        print(f"baechi-lab {__version__}, Python {platform.python_version()}")
        for extra in EXTRAS:
            own_packages = packages[extra]
            state = _state(own_packages)
            print(f"\n{extra.name or 'always'}: {state}")
            _print_wrapped(f"adds {extra.adds}" if extra.name else extra.adds)
            _print_wrapped(", ".join(map(_describe, own_packages)))
            if state != "installed":
                print(f"  {extra.command}\n  (in a checkout: {extra.checkout_command})")
    return 0 if all(package.usable for package in packages[EXTRAS[0]]) else 1


def _state(packages: Iterable[Package]) -> str:
    unusable = {package.state for package in packages if not package.usable}
    return "installed" if not unusable else "missing" if "missing" in unusable else "other version"


def _facts(extra: Extra, packages: list[Package]) -> dict[str, object]:
    return {
        "extra": extra.name,
        "state": _state(packages),
        "adds": extra.adds,
        "install": extra.command,
        "packages": [{"name": p.name, "needs": p.needs, "version": p.version, "state": p.state} for p in packages],
    }


def _describe(package: Package) -> str:
    if package.state == "ok":
        return f"{package.name} {package.version}"
    if package.state == "other version":
        return f"{package.name} {package.version} (needs {package.needs})"
    return f"{package.name} {package.state}"


def _print_wrapped(text: str) -> None:
    print(textwrap.fill(text, output.WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
