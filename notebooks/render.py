"""Run notebooks and store their outputs: python notebooks/render.py notebooks/00_quickstart.ipynb ...

Figures are stored as interactive plotly data and, for readers that cannot run it (GitHub, nbconvert), as a picture as
well. Standard error (progress bars, TensorFlow's notices) and execution times are left out. Needs kaleido and a Chrome or
Chromium.
"""

import base64
import os
import sys
from pathlib import Path

import nbformat
import plotly.io as pio
from nbclient import NotebookClient

PLOTLY = "application/vnd.plotly.v1+json"


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
    """A live widget, whose kernel is gone once the notebook is stored; the workbench's picture is the next output."""
    return "application/vnd.jupyter.widget-view+json" in out.get("data", {})


def picture(out: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The output, with a PNG beside a plotly figure."""
    data = out.get("data", {})
    if PLOTLY in data:
        image = pio.to_image({k: data[PLOTLY][k] for k in ("data", "layout")}, format="png", width=900)
        data["image/png"] = base64.b64encode(image).decode()
    return out


if __name__ == "__main__":
    for name in sys.argv[1:]:
        render(Path(name))
