"""What a workbench makes before its page has drawn the first picture, and what comes after."""

import asyncio
from collections import Counter

import ipywidgets

import baechi_lab as bl
from tests.helpers.messages import receive, shown_text


def test_setting_hidden_tabs_and_advice_come_after_the_first_picture():
    """Two independent ops of 10 us and a sink of 5: in one group 25 us, on two devices 10 + 2 + 5."""
    graph = bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)])
    cluster = bl.Cluster.uniform(2, link=bl.Link(2.0, 0.0), comm="parallel")

    async def main():
        bench = bl.Workbench(graph, cluster, placer="m-etf", passes=("coplacement", "fusion"))
        assert "step time 25.00 us" in shown_text(bench.header.facts)
        assert not {"setting", "compare", "run", "explore", "explain", "fit", "export"} & set(vars(bench))
        assert bench.model.advice == () and not bench.model.worker.busy
        receive(bench.graph, type="drawn")
        assert bench.setting.memory.value == "8 GB" and bench.setting.widget.children
        assert all(pane.children for pane in bench.panes.children)
        while bench.model.worker.busy:
            await asyncio.sleep(0.01)
        assert bench.model.advice[0].sentence.endswith(": 25.0 -> 17.0 us")
        # A second page of the same workbench makes nothing again.
        fields = bench.setting.widget.children
        receive(bench.graph, type="drawn")
        assert bench.setting.widget.children == fields and not bench.model.worker.busy

    asyncio.run(main())


def test_what_widgets_share_has_no_values_of_its_own():
    """Each model and each message costs the page a millisecond: one empty layout and one style of each kind are enough."""
    graph = bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)])

    async def main():
        earlier_models = set(ipywidgets.widgets.widget._instances)
        bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer="m-etf")
        models = [m for key, m in ipywidgets.widgets.widget._instances.items() if key not in earlier_models]
        kinds = Counter(type(model).__name__ for model in models)
        assert kinds["HTMLStyle"] == kinds["ButtonStyle"] == 1 and len(models) < 100
        receive(bench.graph, type="drawn")
        bench.tabs.choose("Compare")
        uses = Counter(m.layout for m in ipywidgets.widgets.widget._instances.values() if hasattr(m, "layout"))
        shared_layouts = [layout for layout, count in uses.items() if count > 1]
        assert shared_layouts
        for layout in shared_layouts:
            values = {name: value for name, value in layout.get_state().items() if not name.startswith("_")}
            assert set(values.values()) == {None}, values
        # The fold of the details is hidden on this tab, and nothing else with it.
        assert bench.details_fold.layout.visibility == "hidden" and uses[bench.details_fold.layout] == 1

    asyncio.run(main())


def test_a_result_that_comes_before_the_first_picture_gets_its_advice_after_it():
    graph = bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)])
    cluster = bl.Cluster.uniform(2, link=bl.Link(2.0, 0.0), comm="parallel")

    async def main():
        bench = bl.Workbench(graph, cluster, placer="single", passes=("coplacement", "fusion"))
        bench.model.change(placer="m-etf")  # by code in the same cell
        while bench.model.stale:
            await asyncio.sleep(0.01)
        assert bench.model.outcome.setting.placer == "m-etf" and bench.model.advice == ()
        receive(bench.graph, type="drawn")
        assert bench.setting.placer.value == "m-etf"
        while bench.model.worker.busy:
            await asyncio.sleep(0.01)
        assert bench.model.advice

    asyncio.run(main())
