"""The ways to fit, as points with timelines and beside the memory view."""

import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.widgets import FitView, Workbench


def graph():
    return bl.generators.with_backward(bl.generators.chain(9, size_bytes=100_000, duration_us=100.0, seed=0))


def test_a_point_leads_to_its_timeline():
    answer = bl.fit(graph(), bl.Cluster.uniform(1, memory_bytes="600kB", link=bl.Link(5.0, 0.0001)))
    figure = viz.ways(answer)
    numbers = [n for trace in figure.data if trace.customdata is not None for n in trace.customdata]
    assert sorted(numbers) == [k for k, way in enumerate(answer.ways) if way.timeline is not None]
    view = FitView(answer)
    trace = next(t for t in view.points.data if t.name == "recomputation")
    view._clicked(trace, type("Points", (), {"point_inds": [0]})(), None)
    assert view.shown is answer.ways[trace.customdata[0]] and view.timeline.figure is not None
    assert "bl.recompute" in view.words.value


def test_the_button_beside_the_memory_view():
    bench = Workbench(graph(), bl.Cluster.uniform(1, memory_bytes="1GB"))
    bench.model.inline = True
    bench.fit.ask.click()
    assert bench.fit.answer.fits and "Yes: 1 device" in bench.fit.state.value
    assert "recomputation" in bench.fit.rows.value
