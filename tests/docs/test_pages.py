"""What the pages of docs/ show runs and prints what they say; links and names in them exist."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sys
import types
from pathlib import Path

import pytest
from fewer import slow

import baechi_lab as bl
from baechi_lab.widgets import glossary

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = sorted(path.name for path in DOCS.glob("*.md") if "```py" in path.read_text(encoding="utf-8"))


def blocks(page: str) -> list[tuple[str, str]]:
    """(`python` or `pycon`, text) of every fenced example, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```(python|pycon)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_there_are_pages_with_examples():
    assert {"index.md", "simulated-time.md", "add-a-placer.md", "add-a-pass.md"} <= set(PAGES)


@pytest.mark.parametrize(
    "page",
    slow(PAGES, "devices.md", "layouts.md", "memory.md", "peaks.md", "placers.md", "plans.md", "running-pipelines.md"),
)
def test_examples_run(page, monkeypatch):
    """All blocks of a page are one module, read from top to bottom."""
    monkeypatch.chdir(ROOT)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    runner, parser = doctest.DocTestRunner(optionflags=FLAGS), doctest.DocTestParser()
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), module.__dict__)
        else:
            test = parser.get_doctest(text, module.__dict__, page, page, 0)
            runner.run(test, clear_globs=False)
            module.__dict__.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.torch
@pytest.mark.slow
def test_the_two_towers_are_as_much_faster_as_the_page_says(tmp_path, monkeypatch):
    """The first two blocks of the page are files; a comment behind the command `compare` says what it prints."""
    text = (DOCS / "your-model.md").read_text(encoding="utf-8")
    towers, step = re.findall(r"^```py(?:thon)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[:2]
    (tmp_path / "towers.py").write_text(towers, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(step, "step.py", "exec"), namespace)
    graph = bl.profile(namespace["step"](), mode="estimated", hardware="h100")
    row = bl.compare(graph, bl.Cluster.uniform(2, kind="h100"), ["auto"], progress=False).iloc[0]
    assert f"# speedup {row['speedup']:.2f}; the step is {row['gap']:.1%} above the lower bound\n" in text


QUESTIONS = (
    "estimates estimate-errors fidelity layouts memory offloading peaks pipelines plans recomputation running-pipelines "
    "simulated-time your-model"
)


@pytest.mark.parametrize("page", QUESTIONS.split())
def test_pages_say_what_is_not_offered(page):
    """In the last section of the page, where readers look for it."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[-1] == "What this does not do"


def test_a_placer_is_written_in_thirty_lines():
    code = blocks("add-a-placer.md")[0][1]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 30


def reference() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md")))


def test_every_public_name_is_in_the_reference():
    missing = [
        name for name in bl.__all__ if not re.search(rf"^::: baechi_lab\.(graph\.)?{name}\b", reference(), re.MULTILINE)
    ]
    assert missing == ["__version__"]


def test_bug_public_names_of_pytorch_were_missing_in_the_reference():
    """`models` has a page of its own, and `lend_state` is the deprecated name of `offload_optimizer_state`."""
    names = re.findall(r"^::: baechi_lab\.[\w.]*torch[\w.]*\.(\w+)$", reference(), re.MULTILINE)
    assert set(bl.torch.__all__) - set(names) == {"lend_state", "models"}


def test_every_notebook_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [p.stem for p in (ROOT / "notebooks").glob("*.ipynb") if f"notebooks/{p.stem}.md" not in navigation] == []


def test_modules_that_the_pages_name_exist():
    """Paths such as `simulator/kernel.py` in the prose, from the root or from the package."""
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_-]+\.(?:py|md|json))?)`", prose)
        bases = (ROOT, ROOT / "baechi_lab", ROOT / "docs")
        assert [n for n in named if not any((base / n).exists() for base in bases)] == [], path


def test_bug_a_page_had_the_marks_of_a_merge():
    texts = [path for folder in (ROOT, DOCS, ROOT / "changes", ROOT / "tests") for path in folder.glob("*.md")]
    assert len(texts) > 40
    with_marks = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
    assert [path.name for path in texts if with_marks.search(path.read_text(encoding="utf-8"))] == []


def test_nothing_cites_a_page_that_is_not_there():
    for path in [*ROOT.glob("baechi_lab/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        for page in re.findall(r"\bdocs/[\w-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / page).is_file(), path


def test_the_glossary_is_that_of_the_workbench():
    """Else: python -m baechi_lab.widgets.glossary > docs/glossary.md."""
    assert (DOCS / "glossary.md").read_text(encoding="utf-8") == glossary.page()
    assert list(glossary.GLOSSARY) == sorted(glossary.GLOSSARY, key=str.lower)
    assert set(glossary.WORDS.values()) <= set(glossary.GLOSSARY)


@pytest.mark.parametrize("tool", ["docstrings", "notebooks"])
def test_examples_of_the_tools(tool, monkeypatch):
    if tool == "docstrings":
        pytest.importorskip("griffe")
    monkeypatch.syspath_prepend(str(DOCS / "tools"))
    assert doctest.testmod(importlib.import_module(tool)).failed == 0


def test_a_notebook_becomes_a_page(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "tools"))
    markdown = importlib.import_module("notebooks").as_markdown
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[1mbold\x1b[0m\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": "<Figure>"}},
        {"output_type": "execute_result", "data": {"text/html": "<style scoped>x</style>\n<b>1</b>\n\n<i>2</i>"}},
    ]
    cells = [
        {
            "cell_type": "markdown",
            "source": [
                "# Title\n",
                "see [other](30_x.ipynb) and [data](../data/README.ipynb), [words](../docs/glossary.md)",
            ],
        },
        {"cell_type": "code", "source": ["print(1)"], "outputs": outputs},
        {"cell_type": "code", "metadata": {"tags": ["solution"]}, "source": ["check(1)"], "outputs": outputs[:1]},
    ]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert markdown(path).split("\n\n") == [
        "# Title\nsee [other](30_x.md) and [data](../data/README.md), [words](../glossary.md)",
        "````python\nprint(1)\n````",
        "````text\nbold\n````",
        '<div class="output"><img alt="" src="data:image/png;base64,aGk="></div>',
        '<div class="output"><b>1</b>\n<i>2</i></div>',
        '??? note "Solution"',
        "    ````python\n    check(1)\n    ````",
        "    ````text\n    bold\n    ````",
    ]


def test_the_table_of_browser_tests_names_tests_that_exist():
    folder = ROOT / "tests" / "ui"
    defined = {name for path in folder.glob("*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)", (folder / "README.md").read_text(encoding="utf-8")))
    assert len(named) > 30 and named <= defined, named - defined
