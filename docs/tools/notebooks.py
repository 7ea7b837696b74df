"""Notebooks as pages: what is stored in them, nothing is run.

A page is Markdown like every other, so it has the site's colours, search and size; nbconvert's own pages carry 600 kB of
JupyterLab's styles each.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)  # pandas' own, for a table on white
_LINK = re.compile(r"(\]\([\w./-]+)\.ipynb\b")
_PAGE = re.compile(r"(\]\()\.\./docs/")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def as_markdown(path: Path) -> str:
    """The cells of a notebook, one after the other."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [_PAGE.sub(r"\1../", _LINK.sub(r"\1.md", source))]
    parts = [_fence(source, "python"), *(_output(output) for output in cell["outputs"])]
    if "solution" not in cell.get("metadata", {}).get("tags", ()):
        return parts
    inside = textwrap.indent("\n\n".join(parts), "    ")
    return [f'??? note "Solution"\n\n{inside}']


def _output(output: dict[str, Any]) -> str:
    """The richest form of an output that a page without scripts can show."""
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items() if isinstance(value, (str, list))}
    if "image/svg+xml" in data:
        return f'<div class="output">{_one_block(data["image/svg+xml"])}</div>'
    if "image/png" in data:
        return f'<div class="output"><img alt="" src="data:image/png;base64,{data["image/png"].strip()}"></div>'
    if "text/html" in data:
        return f'<div class="output">{_one_block(_STYLE.sub("", data["text/html"]))}</div>'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return _fence(_COLOUR.sub("", text), "text")


def _one_block(markup: str) -> str:
    """Without empty lines, at which Markdown would end the block."""
    return "\n".join(line for line in markup.splitlines() if line.strip())


def _fence(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
