"""Print what is installed, what is missing, and what each missing extra would add, with the command that installs it.

Nothing is imported: versions are those that the installer recorded. The exit code is 1 if a package that every installation
needs is missing, or has a version that does not work.
"""

from __future__ import annotations

import argparse
import platform
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from .. import __version__
from . import output


@dataclass(frozen=True)
class Extra:
    """Packages that are installed together. `name` is theirs in `pip install '.[EXTRA]'`; the empty one is always installed.

    `requirements` are as in pyproject.toml, which a test compares with them.
    """

    name: str
    adds: str
    requirements: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that installs the packages of the extra, in any folder.

        >>> Extra("torch", "", ("torch>=2.13,<2.14", "accelerate>=1.0")).command
        "pip install 'torch>=2.13,<2.14' 'accelerate>=1.0'"
        """
        return "pip install " + " ".join(f"'{requirement.partition(';')[0]}'" for requirement in self.requirements)

    @property
    def checkout_command(self) -> str:
        """The command in a checkout, by the extra's name."""
        return f"pip install '.[{self.name}]'" if self.name else "pip install ."


EXTRAS = (
    Extra(
        "",
        "placing, comparing, simulating, fitting and drawing graph files; the workbench in JupyterLab",
        (
            "numpy>=1.26",
            "scipy>=1.11",
            "pandas>=2.1",
            "networkx>=3.2",
            "cvxpy>=1.5",
            "highspy>=1.7",
            "numba>=0.59; sys_platform != 'emscripten'",
            "plotly>=5.20",
            "jsonschema>=4.20",
            "tqdm>=4.66",
            "packaging>=23",
            "ipywidgets>=8.1",
            "anywidget>=0.9.13",
            "traitlets>=5.14",
            "nbformat>=5.9",
            "jupyterlab>=4.1; sys_platform != 'emscripten'",
        ),
    ),
    Extra(
        "tensorflow",
        "TensorFlow steps: tracing, profiling, running and exporting them, benchmark models, the Hierarchical Planner, demo",
        ("tensorflow>=2.17,<2.22",),
    ),
    Extra(
        "torch",
        "PyTorch modules: profiling, distributing, running and exporting them",
        ("torch>=2.13,<2.14", "accelerate>=1.0"),
    ),
    Extra(
        "transformers",
        "graphs of Hugging Face models from a config.json",
        ("torch>=2.13,<2.14", "transformers>=4.45"),
    ),
    Extra("onnx", "graphs of ONNX models, and traces stored as protocol buffers", ("onnx>=1.16",)),
    Extra("solvers", "the placers exact (OR-tools) and metis", ("ortools>=9.10", "pymetis>=2023.1")),
    Extra(
        "cluster",
        "workers on several machines behind TLS, and sweeps on Dask",
        ("cryptography>=42", "distributed>=2024.1"),
    ),
    Extra(
        "docs",
        "the documentation as a site",
        ("mkdocs>=1.6,<2", "mkdocs-material>=9.7", "mkdocstrings[python]>=1.0"),
    ),
    Extra(
        "dev",
        "the tests (beside the parts tensorflow, onnx, solvers, cluster and docs)",
        (
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "kaleido>=1.0",
            "mypy>=1.10",
            "nbval>=0.11",
            "playwright>=1.44",
            "pre-commit>=4.0",
            "psutil>=5.9",
            "pytest>=8.2",
            "pytest-benchmark>=4.0",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.15",
            "towncrier>=24.8",
            "voila>=0.5",
        ),
    ),
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
    """The first extra that brings a package; None where none does.

    >>> extra_of("ortools").name
    'solvers'
    """
    from packaging.requirements import Requirement

    return next((extra for extra in EXTRAS if any(Requirement(r).name == package for r in extra.requirements)), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run(arguments: argparse.Namespace) -> int:
    """Look every extra up, and print."""
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
            _print_wrapped(", ".join(map(_described, own_packages)))
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


def _described(package: Package) -> str:
    if package.state == "ok":
        return f"{package.name} {package.version}"
    if package.state == "other version":
        return f"{package.name} {package.version} (needs {package.needs})"
    return f"{package.name} {package.state}"


def _print_wrapped(text: str) -> None:
    print(textwrap.fill(text, output.WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
