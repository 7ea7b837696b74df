"""No word of the workbench without a tooltip: names that can be chosen, heads of columns, numbers and chips."""

import re
from pathlib import Path

import pandas as pd
import pytest

import baechi_lab as bl
from baechi_lab.fitting.record import FitOption
from baechi_lab.passes.optimize import PASSES
from baechi_lab.placers import placer_names
from baechi_lab.placers.registry import placer_class
from baechi_lab.simulator.schedulers import SCHEDULERS
from baechi_lab.simulator.schedules import RULES
from baechi_lab.sweeps.store import COLUMNS
from baechi_lab.widgets.glossary import GLOSSARY, name_with_tooltip, tip, with_term_tooltips
from baechi_lab.widgets.panels.explore_panel import FRONT_NOTE, sweep_columns
from baechi_lab.widgets.panels.fit_panel import option_columns
from baechi_lab.widgets.panels.params_form import hints

NAMES = [*placer_names(), *SCHEDULERS.names(), *RULES]


@pytest.fixture(scope="module")
def bench():
    """A chain in six groups under a schedule, and what Compare and Explain show of it."""
    graph = bl.generators.with_backward(bl.generators.chain(6, duration_us=10.0, size_bytes=8, seed=0))
    bench = bl.Workbench(
        graph,
        bl.Cluster.uniform(2, link=bl.Link(0.1, 0.0)),
        placer="contiguous",
        passes=(),
        micro_batches=2,
        schedule="1f1b",
    )
    bench.model.inline = True
    return bench


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_can_be_chosen_is_explained(name):
    assert len(tip(name)) > 20


def test_no_text_cites_a_paper_by_letter():
    """The letters are explained in docs/papers.md alone, which nobody has beside a tooltip."""
    texts = [*GLOSSARY.values(), *bl.list_placers().values(), *SCHEDULERS.lines().values()]
    texts += [hint for name in placer_names() for hint in hints(placer_class(name)).values()]
    assert [text for text in texts if re.search(r"\bpapers? [A-Z]\b", text, re.IGNORECASE)] == []
    assert all(
        "Mayer et al. 2017" in tip(name) for name in ("batch-split", "critical-path", "dfs", "mite", "msr", "pct")
    )


def heads_of(html):
    """The heads of the columns of a table, or the names of numbers, as HTML."""
    return [text for text in re.findall(r"<th>(.*?)</th>", html) if text]


def test_heads_and_names_are_explained(bench):
    bench.compare.boxes["random"].value = True
    bench.compare.compare.click()
    bench.compare.hold.click()
    bench.setting.placer.value = "single"
    compared = bench.compare.rows
    assert all(head["hint"] for head in compared.head)
    place = [head["name"] for head in compared.head].index("placer")
    assert all(row["tips"][place] for row in compared.rows)
    assert all(note["hint"] for row in compared.rows for note in row["notes"])
    assert all(f'title="{tip(name)[:10]}' in box.description for name, box in bench.compare.boxes.items())
    held_heads = heads_of(bench.compare.pinned.value)
    assert len(held_heads) == 2 + 3 and all("<abbr title=" in head for head in held_heads), held_heads
    bench.setting.schedule.value = ""
    bench.setting.micro.value = ""
    bench.setting.placer.value = "m-etf"
    bench.explain.start.click()
    explained_heads = heads_of(bench.explain.candidates.value)
    assert len(explained_heads) == 3 and all("<abbr title=" in head for head in explained_heads), explained_heads


def test_columns_of_explore_and_fit_are_explained():
    values = dict.fromkeys(COLUMNS, 1) | {
        "placer": "m-etf",
        "schedule": "1f1b",
        "op_order": "1f1b",
        "error": "too large",
        "feasible": False,
    }
    columns = sweep_columns(pd.DataFrame([values]))
    assert len(columns) == 14 and all(column.hint for column in columns), [c.name for c in columns if not c.hint]
    by_name = {column.name: column for column in columns}
    assert by_name["placer"].tips == (tip("m-etf"),) and by_name["order"].tips == (tip("1f1b"),)
    assert FRONT_NOTE["hint"]
    columns = option_columns([FitOption("recomputation", "keep", error="no activations")])
    assert all(column.hint for column in columns), [column.name for column in columns]


def test_facts_of_the_header_are_explained(bench):
    for name in (
        "step time",
        "bubble",
        "lower bound",
        "gap",
        "peak memory",
        "moved",
        "placed by",
        "order",
        "graph",
        "costs",
    ):
        assert name_with_tooltip(name).startswith("<abbr title="), name
    for name in ("against the setting before", "median", "95% interval", "measured / simulated", "steps"):
        assert name_with_tooltip(name).startswith("<abbr title="), name
    bench.model.change(placer="contiguous", micro_batches=2, schedule="1f1b")
    assert f'<b><abbr title="{tip("contiguous")[:20]}' in bench.header.facts.value
    assert [bench.setting.passes[name].tooltip for name in PASSES] and all(
        bench.setting.passes[name].tooltip for name in PASSES
    )
    assert tip("1f1b")[:20] in bench.setting.schedule.description


def test_plain_english_is_not_marked():
    """`single`, `exact`, `random` and `search` are placers, and words of any sentence."""
    assert (
        with_term_tooltips("single ops, an exact search, a random step") == "single ops, an exact search, a random step"
    )
    assert "<abbr" in with_term_tooltips("placed by m-etf, order pct")


def test_the_table_has_a_place_for_every_tooltip():
    script = (Path(bl.__file__).parent / "widgets" / "views" / "table_view.js").read_text(encoding="utf-8")
    assert "title: row.tips[k]" in script
