"""Run notebooks and store their outputs: python -m studies.render notebooks/00_quickstart.ipynb ...

Figures are stored as interactive plotly data and, for readers that cannot run it (GitHub, nbconvert), as a picture as
well. Standard error (progress bars, TensorFlow's notices) and execution times are left out. Needs kaleido and a Chrome or
Chromium.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import plotly.io as pio
from nbclient import NotebookClient

PLOTLY, SVG = "application/vnd.plotly.v1+json", "image/svg+xml"


def render(path: Path) -> None:
    """Execute the notebook in its folder and write it back."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}})
    client.execute(env={**os.environ, "PLOTLY_RENDERER": "plotly_mimetype", "TF_CPP_MIN_LOG_LEVEL": "2"})
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [picture(out) for out in cell.outputs if out.get("name") != "stderr" and not of_widget(out)]
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def of_widget(out: nbformat.NotebookNode) -> bool:
    """A live widget, whose kernel is gone once the notebook is stored, or what hides it then; its picture is between them."""
    data = out.get("data", {})
    return "application/vnd.jupyter.widget-view+json" in data or "bl-stray" in "".join(data.get("text/html", ""))


def picture(out: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The output, with a PNG beside a plotly figure, and beside an SVG, which JupyterLab hides until it is trusted."""
    data = out.get("data", {})
    image = None
    if PLOTLY in data:
        image = pio.to_image({k: data[PLOTLY][k] for k in ("data", "layout")}, format="png", width=900)
    elif SVG in data:
        image = pio.to_image(svg_figure("".join(data[SVG])), format="png")
    if image is not None:
        data["image/png"] = base64.b64encode(image).decode()
    return out


def svg_figure(svg: str) -> dict[str, Any]:
    """A plotly figure that shows the SVG in its own size and nothing else."""
    width, height = (float(re.findall(rf'<svg[^>]*?\b{side}="([\d.]+)', svg)[0]) for side in ("width", "height"))
    source = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    image = {"source": source, "x": 0, "y": 1, "sizex": 1, "sizey": 1, "xref": "paper", "yref": "paper"}
    bare = {"width": width, "height": height, "margin": dict.fromkeys("lrtb", 0), "template": "none"}
    hidden = {"visible": False}
    return {"data": [], "layout": {"images": [image], "xaxis": hidden, "yaxis": hidden, **bare}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Render every notebook named."""
    parser = argparse.ArgumentParser(prog="python -m studies.render", description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in parser.parse_args(arguments).notebooks:
        render(path)


if __name__ == "__main__":
    main()
