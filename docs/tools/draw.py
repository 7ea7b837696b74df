"""Draws the Mermaid diagrams of the pages into docs/diagrams/, with Mermaid from npm in a headless browser.

    python docs/tools/draw.py

It needs npm, the playwright of the extra `dev` and Chromium. Every picture notes which text it was drawn from.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
DIAGRAMS = DOCS / "diagrams"
MERMAID = "mermaid@11"

# The page's own colours, so that one picture serves light and dark.
STYLE = """
svg { font-family: var(--md-text-font-family, sans-serif) }
.node rect, .node path, .node polygon { fill: var(--md-code-bg-color, #f5f5f5) !important; stroke: #2f7fc1 !important }
.cluster rect { fill: transparent !important; stroke: #8a8a8a !important; stroke-dasharray: 4 3 }
.edgePaths path, .flowchart-link { stroke: #7f8a99 !important }
.marker, .marker path { fill: #7f8a99 !important; stroke: #7f8a99 !important }
text, tspan, .label text { fill: var(--md-typeset-color, #222) !important }
.edgeLabel rect, .labelBkg, .background { fill: var(--md-default-bg-color, #fff) !important; opacity: 1 !important }
"""


def diagrams() -> dict[str, str]:
    """Name -> text of every Mermaid block of the pages."""
    pages = (path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    found = [text for page in pages for text in re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)]
    return {name_of(text): text for text in found}


def name_of(source: str) -> str:
    """The name in the comment that a diagram begins with: `%% architecture`."""
    found = re.match(r"%% *([\w-]+)", source)
    if not found:
        raise ValueError(
            f"a diagram begins with {source[:20]!r}; it must begin with a comment that names it, `%% name`"
        )
    return found[1]


def digest(source: str) -> str:
    """What a picture notes of the text that it was drawn from."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def main() -> None:
    """Draw all, and remove pictures of diagrams that are gone."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        subprocess.run(["npm", "install", "--silent", "--prefix", folder, MERMAID], check=True)
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.add_script_tag(path=f"{folder}/node_modules/mermaid/dist/mermaid.min.js")
        drawn = {name: _draw(page, name, text) for name, text in diagrams().items()}
        browser.close()
    DIAGRAMS.mkdir(exist_ok=True)
    for path in DIAGRAMS.glob("*.svg"):
        path.unlink()
    for name, svg in drawn.items():
        (DIAGRAMS / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"{name}: {len(svg)} bytes")


def _draw(page: object, name: str, source: str) -> str:
    layout = {"curve": "basis", "nodeSpacing": 18, "rankSpacing": 34, "padding": 8, "wrappingWidth": 400}
    settings = {
        "startOnLoad": False, "theme": "base", "themeCSS": STYLE, "deterministicIds": True, "fontFamily": "sans-serif",
        "htmlLabels": False, "flowchart": {"htmlLabels": False, **layout},
    }  # fmt: skip
    draw = "([settings, name, text]) => (mermaid.initialize(settings), mermaid.render('diagram-' + name, text)).then(r => r.svg)"
    svg = page.evaluate(draw, [settings, name, source])  # type: ignore[attr-defined]
    return f"<!-- {digest(source)} -->{svg}\n"


if __name__ == "__main__":
    main()
