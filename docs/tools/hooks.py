"""What mkdocs calls while it builds the site: notebooks and rules become pages, diagrams pictures.

Pictures of Mermaid diagrams are stored, because Material would fetch Mermaid from a content network when a page is read.
The text stays in the page's source, where a test holds it against the imports and where GitHub draws it; `python
docs/tools/draw.py` draws it for the site.
"""

from __future__ import annotations

import html
import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from baechi_lab.passes.registry import PASSES
from baechi_lab.placers.registry import PLACERS
from baechi_lab.simulator.schedulers import SCHEDULERS

sys.path.insert(0, str(Path(__file__).parent))
from draw import DIAGRAMS, DOCS, digest, name_of

from notebooks import as_markdown

log = logging.getLogger("mkdocs.plugins.diagrams")


def on_config(config: Any) -> Any:
    """Mermaid blocks are drawn by us."""
    fence = {"name": "mermaid", "class": "diagram", "format": picture}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, config: Any) -> Files:
    """A page for every notebook."""
    for path in sorted((DOCS.parent / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_markdown(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`::: each placer` is a section per registered placer; passes and schedulers likewise."""
    return re.sub(r"^::: each (\w+)$", lambda found: "\n".join(map(_section, _classes(found[1]))), markdown, flags=re.M)


EACH = {kind.kind: kind for kind in (PLACERS, PASSES, SCHEDULERS)}


def _classes(kind: str) -> list[tuple[str, type]]:
    return [(name, EACH[kind].find(name)) for name in sorted(EACH[kind].names())]


def _section(named: tuple[str, type]) -> str:
    """What a rule's module says, then its class with the parameters."""
    name, rule = named
    idea = "{show_root_heading: false, show_root_toc_entry: false, members: false}"
    parameters = "{heading_level: 4, show_root_full_path: false, members: false}"
    return (
        f"\n### `{name}`\n\n::: {rule.__module__}\n    options: {idea}\n"
        f"\n::: {rule.__module__}.{rule.__name__}\n    options: {parameters}\n"
    )


def picture(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """The stored SVG of a diagram; a warning, which fails a strict build, where it is not of this text."""
    path = DIAGRAMS / f"{name_of(source)}.svg"
    stored = path.read_text(encoding="utf-8") if path.is_file() else ""
    if digest(source) not in stored[:200]:
        log.warning("%s is not of the diagram in the page; draw it again: python docs/tools/draw.py", path.name)
        return f"<pre>{html.escape(source)}</pre>"
    return f'<figure class="{css_class}">{re.sub("^<!--.*?-->", "", stored)}</figure>'
