"""`baechi-lab doctor`: it says what is missing and what installs it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from baechi_lab.cli import doctor, main
from baechi_lab.errors import TESTED_VERSIONS

if sys.version_info < (3, 11):
    tomllib = pytest.importorskip("tomli")
else:
    import tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_extras_are_those_of_pyproject():
    assert {extra.name for extra in doctor.EXTRAS} == {"", *PROJECT["optional-dependencies"]}


@pytest.mark.parametrize(
    ("declared", "of_torch", "of_all"),
    [
        (["a>=1", "torch<3,>=2; extra == 'torch'"], ("torch<3,>=2",), ("a>=1",)),
        (['torch>=2 ; extra == "torch"', "b; sys_platform != 'x'"], ("torch>=2 ",), ("b; sys_platform != 'x'",)),
        (
            ["baechi-lab[onnx]; extra == 'torch'", "t; (sys_platform != 'x') and extra == 'torch'"],
            ("t; (sys_platform != 'x')",),
            (),
        ),
    ],
)
def test_requirements_are_those_of_the_installation(monkeypatch, declared, of_torch, of_all):
    """Other build back ends write the extra with other quotes, and beside other conditions."""
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: declared)
    extras = {extra.name: extra.requirements for extra in doctor.EXTRAS}
    assert (extras["torch"], extras[""], extras["onnx"]) == (of_torch, of_all, ())


def test_a_checkout_that_is_not_installed_is_said(monkeypatch, capsys):
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: None)
    assert main(["doctor"]) == 2
    assert "the package is not installed" in capsys.readouterr().err


def test_every_extra_is_documented():
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    assert [p.name for p in doctor.EXTRAS[1:] if f"'.[{p.name}]'" not in page] == []


def test_no_framework_is_required_and_numba_only_where_it_exists():
    required = {Requirement(text).name: Requirement(text) for text in PROJECT["dependencies"]}
    assert not required.keys() & {"tensorflow", "torch"}
    assert required["numba"].marker.evaluate({"sys_platform": "linux"})
    assert not required["numba"].marker.evaluate({"sys_platform": "emscripten"})


@pytest.mark.parametrize("package", TESTED_VERSIONS)
def test_frameworks_with_private_names_end_with_a_tested_version(package):
    texts = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    bounds = {str(r.specifier) for r in map(Requirement, texts) if r.name == package}
    assert {frozenset(b.split(",")) for b in bounds} == {frozenset(TESTED_VERSIONS[package].split(","))}
    assert any(b.startswith("<") for b in TESTED_VERSIONS[package].split(","))


@pytest.fixture
def versions(monkeypatch):
    """Installed versions by name; others are missing."""
    installed = {Requirement(text).name: "99" for text in doctor.EXTRAS[0].requirements}

    def version(name):
        if name not in installed:
            raise doctor.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor.metadata, "version", version)
    return installed


def run_doctor(capsys, *words):
    code = main(["doctor", *words])
    return code, capsys.readouterr().out


def test_what_is_missing_comes_with_a_command(versions, capsys):
    code, text = run_doctor(capsys)
    assert code == 0
    paragraph = re.search(r"\ntorch: missing\n(.*?)\n\n", text, re.DOTALL)[1]
    assert "PyTorch modules" in paragraph and "pip install 'accelerate>=1.0' 'torch<2.14,>=2.13'" in paragraph
    assert "(in a checkout: pip install '.[torch]')" in paragraph
    assert "always: installed" in text and "numpy 99" in text
    assert max(len(line) for line in text.splitlines() if "pip install" not in line) <= 100


def test_another_version_than_is_needed_is_said(versions, capsys):
    versions |= {"torch": "2.15.0", "accelerate": "1.2"}
    extras = {extra["extra"]: extra for extra in json.loads(run_doctor(capsys, "--json")[1])["parts"]}
    assert extras["torch"]["state"] == "other version"
    assert extras["torch"]["packages"][1] == {
        "name": "torch",
        "needs": "<2.14,>=2.13",
        "version": "2.15.0",
        "state": "other version",
    }
    assert "torch 2.15.0 (needs <2.14,>=2.13)" in run_doctor(capsys)[1]
    assert extras["transformers"]["state"] == "missing"


def test_local_versions_count_as_their_release(versions):
    versions["torch"] = "2.13.0+cpu"
    assert doctor.package_of("torch>=2.13,<2.14").state == "ok"


def test_a_required_package_that_is_missing_ends_with_1(versions, capsys):
    del versions["scipy"]
    code, text = run_doctor(capsys)
    assert code == 1 and "scipy missing" in text and "(in a checkout: pip install .)" in text


def test_numba_is_not_missing_where_there_is_none(versions, monkeypatch):
    del versions["numba"]
    assert doctor.package_of("numba>=0.59; sys_platform != 'emscripten'").state == "missing"
    assert doctor.package_of("numba>=0.59; sys_platform == 'emscripten'").state == "not on this platform"


def test_an_import_that_fails_in_a_command_names_the_part(monkeypatch, capsys):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'ortools.sat'", name="ortools.sat")

    monkeypatch.setattr(doctor, "run", run)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == (
        "baechi-lab doctor: baechi-lab doctor needs the package 'ortools': pip install ortools "
        "(in a checkout: pip install '.[solvers]')\n"
    )


def test_other_imports_that_fail_are_not_explained_away(monkeypatch):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'antigravity2'", name="antigravity2")

    monkeypatch.setattr(doctor, "run", run)
    with pytest.raises(ModuleNotFoundError, match="antigravity2"):
        main(["doctor"])
