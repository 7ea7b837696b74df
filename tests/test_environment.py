"""`environment.yml` brings every requirement of the extras in the README's second command, in no older version."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

yaml = pytest.importorskip("yaml")
if sys.version_info < (3, 11):
    tomllib = pytest.importorskip("tomli")
else:
    import tomllib

ROOT = Path(__file__).resolve().parents[1]


def least(requirement):
    """The smallest version that a requirement allows."""
    return max((Version(s.version) for s in requirement.specifier if s.operator in (">=", "==")), default=Version("0"))


def asked_for():
    """The requirements of the README's second command."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)[1].split("&&")[0].split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    texts = [*project["dependencies"], *(w for w in words if "==" in w)]
    extras = next(w for w in words if "[" in w).strip("'.[]").split(",")
    while extras:
        for text in optional[extras.pop()]:
            requirement = Requirement(text)
            if requirement.name == "baechi-lab":
                extras += sorted(requirement.extras)
            else:
                texts.append(text)
    return [Requirement(text) for text in texts]


def brought():
    """Package -> smallest version that the environment brings, and the extras of the checkout that pip installs."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (pip,) = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    versions, extras = {}, set()
    for text in [entry for entry in listed if isinstance(entry, str)] + pip:
        if text.startswith("-e "):
            extras = set(re.fullmatch(r"-e \.\[(.+)\]", text)[1].split(","))
            continue
        requirement = Requirement(text)
        versions[canonicalize_name(requirement.name)] = least(requirement)
    return versions, extras


def test_every_package_of_the_second_command_is_in_the_environment():
    versions, extras = brought()
    for requirement in asked_for():
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is missing in environment.yml"
        assert versions[name] >= least(requirement), f"{name} may be too old"
    assert "mkdocstrings-python" in versions  # what pip calls `mkdocstrings[python]`
    assert extras == {"dev", "torch", "transformers"}
    assert versions["torch"] == Version("2.13.0")
