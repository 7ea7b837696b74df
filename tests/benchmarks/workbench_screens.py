"""Pictures of every part of the workbench on seven graphs, at three sizes, light and dark, and what on them is not whole:

    python tests/benchmarks/workbench_screens.py FOLDER [--graphs mlp gnmt] [--looks 1600-dark 1920-light]

Each part is asked what its button asks first. A picture is `graph-part-width-theme.png`; the exit code is 1 where a label is
cut, a chart is blank, a part lies below the screen, an error is shown, or a text has the colour of its
background. BERT-12 is built from a configuration (`transformers`); the graph of 22,856 ops has no scopes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import jupyter_browser as jb
from whole_screen import EMPTIED, TABS, faults, tab, themed

SIZES = ((1280, 720), (1600, 1000), (1920, 1080))
LOOKS = {f"{width}-{theme.lower()}": (theme, width, height) for theme in ("Light", "Dark") for width, height in SIZES}
BUSY = "() => [...document.querySelectorAll('.bl-workbench button')].some((b) => b.innerText === 'Cancel' && b.offsetParent)"
ASK = {"Compare": "Compare", "Explore": "Sweep", "Explain": "Explain", "Fit": "Will it fit?"}
DATA = jb.ROOT / "data"
LARGE = """
import numpy as np
rng = np.random.default_rng(0)
n, edges = 22856, 45000
source = rng.integers(0, n - 1, edges)
target = np.minimum(n - 1, source + rng.integers(1, 60, edges))
graph = bl.OpGraph.from_edges(rng.uniform(1, 100, n), zip(source, target, np.full(edges, 4096)), name="large")
"""
BERT = """
sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522}
config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 12, **sizes}
config["max_position_embeddings"] = 512
graph = bl.torch.profile(*bl.torch.hugging_face(config), hardware="rtx2080")
"""
GRAPHS = {
    "gnmt": f"graph = bl.load_graph({str(DATA / 'gnmt-length40-batch128.json.gz')!r})",
    "inception_v3": f"graph = bl.load_graph({str(DATA / 'inception_v3-batch32.json.gz')!r})",
    "transformer": 'graph = bl.profile(bl.models.build("transformer"), mode="estimated", hardware="rtx2080")',
    "bert": BERT,
    "mlp": 'graph = bl.models.build("mlp")',
    "large": LARGE,
    "traced": 'graph = bl.profile(bl.models.build("gnmt", sequence_length=50), mode="estimated", hardware="rtx2080")',
}


def main() -> int:
    """Take the pictures; one line per fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--looks", nargs="+", default=list(LOOKS), choices=list(LOOKS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    messages: list[str] = []
    with tempfile.TemporaryDirectory() as folder, jb.running_lab(Path(folder)) as lab, jb.running_browser() as browser:
        for name in arguments.graphs:
            with jb.browser_page(browser, 1280, 720) as page:
                messages += walked(page, lab, name, arguments.looks, arguments.folder)
    print("\n".join(messages) or "nothing is cut, blank, faint or below the screen")
    return 1 if messages else 0


def walked(page, lab, name: str, looks: list[str], folder: Path) -> list[str]:
    """The faults of one graph's workbench."""
    messages: list[str] = []
    page.on("pageerror", lambda error: messages.append(f"{name}: {error}"))
    cell = f"import baechi_lab as bl\n{GRAPHS[name]}\nbl.Workbench(graph, bl.Cluster.uniform(4))"
    jb.open_notebook(page, lab.add_notebook(f"{name}.ipynb", [cell]))
    jb.run_all(page, 'canvas[aria-label="Graph"]', 400_000)  # models are built and traced
    page.wait_for_selector(".bl-stale", state="detached")  # the result of `auto`
    for tab_name, words in ASK.items():
        tab(page, tab_name)
        page.locator(f'.bl-pane .jupyter-button:visible:text-is("{words}")').first.click()
        page.wait_for_timeout(1500)
        page.wait_for_function(f"() => !({BUSY})()", timeout=400_000)
    messages += [f"{name}: {error}" for error in page.locator(".bl-problem:visible").all_inner_texts()]
    page.evaluate(EMPTIED)
    for look in looks:
        theme, width, height = LOOKS[look]
        themed(page, theme)
        page.set_viewport_size({"width": width, "height": height})
        for tab_name in TABS:
            messages += [f"{name}, {tab_name}, {look}: {k} {v}" for k, v in faults(page, tab_name).items()]
            page.screenshot(path=folder / f"{name}-{tab_name.lower()}-{look}.png")
    return messages + [f"{name}: blank {selector}" for selector in page.evaluate("() => window.emptied")]


if __name__ == "__main__":
    sys.exit(main())
