"""Figures show what the records say, in a bounded number of marks."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.viz.bars import merge_bars
from baechi_lab.viz.colors import (
    INK,
    LIMIT,
    OKABE_ITO,
    SERIES,
    _luminance,
    device_colors,
    series_colors,
    text_color,
    text_on,
    with_opacity,
)
from baechi_lab.viz.layout import spread_positions
from baechi_lab.viz.memory_chart import thin_levels
from baechi_lab.viz.nested.svg import CROSSING, TITLE_TEXT
from baechi_lab.viz.shades import HATCHED, phase_shades, pipeline_phases, shades
from baechi_lab.widgets.bars import build_bars


@pytest.fixture
def graph():
    """Source 5, branches of 10 and 20, sink 5."""
    return bl.OpGraph.from_edges(
        [5, 10, 20, 5], [(0, 1, 1000), (0, 2, 1000), (1, 3, 1000), (2, 3, 1000)], names=["in", "left", "right", "out"]
    )


@pytest.fixture
def timeline(graph):
    """The right branch on a second device; transfers cost 4."""
    cluster = bl.Cluster.uniform(2, memory_bytes="1MB", link=bl.Link(4.0, 0.0), comm="parallel")
    return bl.simulate(graph, cluster, bl.Placement(device=[0, 0, 1, 0]))


# -- colours -------------------------------------------------------------------------------------------------


def test_sixteen_devices_have_sixteen_colours():
    assert len(set(device_colors(16))) == 16
    # 64 devices are told apart, and none is grey: its channels lie apart.
    channels = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in device_colors(64)])
    assert len(set(device_colors(64))) == 64 and ((channels.max(axis=1) - channels.min(axis=1)) > 40).all()
    assert device_colors(["a", "b"]) == device_colors(16)[:2]


@pytest.mark.parametrize("share", [(0.29275, 0.70725), (0.11238, 0.88762)], ids=["deuteranope", "protanope"])
def test_first_eight_colours_differ_for_red_green_blind_readers(share):
    # Viénot, Brettel and Mollon 1999: what is seen depends on R' = G' = a mean of linear red and green, and on blue.
    def seen_by_dichromat(color):
        red, green, blue = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [c**2.2 for c in (red, green, blue)]
        yellow = share[0] * linear[0] + share[1] * linear[1]
        return np.array([yellow ** (1 / 2.2), linear[2] ** (1 / 2.2)])

    for colors in (device_colors(8), series_colors(6)):
        first = [seen_by_dichromat(c) for c in colors]
        assert min(np.linalg.norm(a - b) for i, a in enumerate(first) for b in first[:i]) > 0.09


def test_colours_of_series_are_no_devices():
    def channels(color):
        return np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255

    assert min(np.linalg.norm(channels(a) - channels(b)) for a in SERIES for b in OKABE_ITO) > 0.2


def test_text_colour_contrasts():
    assert text_on("#FFFFFF") == "#000000"
    assert text_on("#000080") == "#FFFFFF"
    assert with_opacity("#FF0080", 0.5) == "rgba(255,0,128,0.5)"


def contrasts(color):
    """With white, and with the dark pages of JupyterLab (#111111): WCAG 2.1."""
    light, dark = (_luminance(ground) for ground in ("#FFFFFF", "#111111"))
    return (light + 0.05) / (_luminance(color) + 0.05), (_luminance(color) + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    "color", [INK, TITLE_TEXT, *map(text_color, (*SERIES, *OKABE_ITO, LIMIT, "#000000", "#FFFFFF"))]
)
def test_texts_are_read_on_light_and_on_dark_pages(color):
    on_light, on_dark = contrasts(color)
    assert on_light >= 4.5 and on_dark >= 4.0  # no colour has 4.5 on both: their product is 18.9, 4.35 squared


@pytest.mark.parametrize("color", [*SERIES, LIMIT])
def test_lines_are_seen_on_light_and_on_dark_pages(color):
    assert min(contrasts(color)) >= 3.0


# -- theme ---------------------------------------------------------------------------------------------------


def test_labels_that_would_overlap_are_pushed_apart():
    # 10, 10 and 20 need 15 each: middle (10 + 10 + 20) / 3, so -1.67, 13.33, 28.33; 90 is far enough away.
    assert spread_positions(np.array([90.0, 10.0, 20.0, 10.0])) == pytest.approx([90, 40 / 3 - 15, 40 / 3 + 15, 40 / 3])


def test_all_figures_share_one_theme_and_say_what_their_axes_are(graph, timeline):
    cluster = bl.Cluster.uniform(2, memory_bytes="1MB", link=bl.Link(4.0, 0.0), comm="parallel")
    explained = bl.place(graph, cluster, "m-etf", explain=True)
    answer = bl.fit(graph, bl.Cluster.uniform(1))
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.Index([1, 2], name="devices"))
    figures = [
        viz.gantt(timeline),
        viz.gantt(timeline, timeline),
        viz.memory(timeline),
        viz.comparison(table()),
        viz.fit_options(answer),
        viz.decisions(graph, cluster, explained),
        viz.curves(frame, title="Time", y="time (us)"),
        viz.graph(graph),
    ]
    for figure in figures:
        assert figure.layout.template == viz.THEME
        assert figure.layout.paper_bgcolor is None and figure.layout.plot_bgcolor is None
        assert figure.layout.legend.yanchor in (None, "bottom")  # plotly's buttons are at the top
        assert figure.layout.title.text
        below = [a for a in figure.select_xaxes() if a.visible is not False and a.showticklabels is not False]
        shown = [*figure.select_yaxes(lambda a: a.visible is not False), *below]
        assert all(axis.title.text for axis in shown), figure.layout.title.text


def test_eleven_curves_have_eleven_colours_in_figures_of_ours_and_of_plotly_express():
    frame = pd.DataFrame({f"model {k}": [k, k + 1.0] for k in range(11)}, index=pd.Index([1, 2], name="devices"))
    figure = viz.curves(frame, title="Time", y="time (us)")
    assert len({line.line.color for line in figure.data}) == 11
    assert len(set(viz.THEME.layout.colorway)) >= 11


def test_curves_end_in_their_names_and_mark_what_has_no_value():
    nothing = np.nan
    frame = pd.DataFrame(
        {"1": [5.0, nothing, nothing], "2": [6.0, 9.0, nothing]}, index=pd.Index([16, 32, 64], name="batch")
    )
    figure = viz.curves(frame, title="Throughput", y="samples per second")
    assert [a.text for a in figure.layout.annotations] == ["1", "2", "does not fit"]
    assert [a.x for a in figure.layout.annotations] == [16, 32, 64]
    crosses = figure.data[-1]
    assert list(crosses.x) == [32, 64, 64]
    assert max(crosses.y) < 0  # below the axis, so that no cross is read as a value
    assert min(figure.layout.yaxis.tickvals) == 0
    with pytest.raises(bl.InvalidInput, match="not int"):
        viz.curves(3, title="", y="")


def test_curves_on_logarithmic_axes():
    frame = pd.DataFrame({"a": [1.0, 10.0], "b": [2.0, 1000.0]}, index=pd.Index([10, 1000], name="ops"))
    figure = viz.curves(frame, title="Growth", y="seconds", log=True)
    assert [(a.x, a.y) for a in figure.layout.annotations] == [(3.0, 1.0), (3.0, 3.0)]
    low, high = figure.layout.yaxis.range
    assert low < 0 and high > 3


def test_few_ops_have_their_names_on_the_bars(timeline):
    assert [text for bar in viz.gantt(timeline, transfers=False).data for text in bar.text] == [
        "in",
        "left",
        "out",
        "right",
    ]
    chain = bl.generators.chain(61, seed=0)
    many = bl.simulate(chain, bl.Cluster.uniform(1), bl.Placement(device=[0] * 61))
    assert viz.gantt(many).data[0].text is None


# -- bars ----------------------------------------------------------------------------------------------------


def test_few_rows_stay_as_they_are():
    bars = merge_bars(np.array([5.0, 0.0]), np.array([6.0, 2.0]), 10)
    assert bars.start.tolist() == [0.0, 5.0]
    assert bars.row.tolist() == [1, 0]
    assert bars.row_count.tolist() == [1, 1]


def test_many_rows_are_merged_without_losing_any():
    rng = np.random.default_rng(0)
    start = np.sort(rng.uniform(0, 1000, 50_000))
    end = start + rng.uniform(0, 0.02, 50_000)
    bars = merge_bars(start, end, 500)
    assert len(bars.start) <= 2 * 500 + 1
    assert bars.row_count.sum() == 50_000
    assert bars.start[0] == start[0]
    assert bars.end.max() == end.max()


def test_long_row_among_short_ones_keeps_its_own_bar():
    start = np.r_[np.arange(100) * 0.1, 10.0, 60 + np.arange(100) * 0.1]
    end = np.r_[np.arange(100) * 0.1 + 0.05, 60.0, 60 + np.arange(100) * 0.1 + 0.05]
    bars = merge_bars(start, end, 10)
    alone = (bars.start == 10.0) & (bars.end == 60.0)
    assert bars.row_count[alone].tolist() == [1]
    assert bars.row[alone].tolist() == [100]


def test_rows_of_one_instant():
    bars = merge_bars(np.zeros(10), np.zeros(10), 3)
    assert bars.row_count.sum() == 10


# -- Gantt ---------------------------------------------------------------------------------------------------


def test_gantt_has_the_rows_of_the_timeline(timeline):
    figure = viz.gantt(timeline)
    ops = {text.split("</b>")[0][3:]: (base, x) for bar in figure.data[:1] for text, base, x in _rows(bar)}
    assert ops == {"in": (0, 5), "left": (5, 10), "out": (33, 5)}  # right: 5 + 4 .. 29 on device 1, back at 33
    lanes = [bar.y[0] for bar in figure.data]
    assert lanes == ["gpu:0", "gpu:0 sends", "gpu:1", "gpu:1 sends"]
    assert figure.data[0].marker.color[0] == device_colors(2)[0]


def _rows(bar):
    return zip(bar.hovertext, bar.base, bar.x, strict=True)


def test_gantt_sends_do_not_overlap_where_they_wait_for_the_receiver():
    # Both producers send to device 2 at 10; with one queue per device the second is received from 14 on, until 18.
    graph = bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 1), (1, 2, 1)])
    cluster = bl.Cluster.uniform(3, link=bl.Link(4.0, 0.0), comm="sequential")
    timeline = bl.simulate(graph, cluster, bl.Placement(device=[0, 1, 2]))
    assert timeline.transfers.end_us.tolist() == [14, 18]
    sends = [bar for bar in viz.gantt(timeline).data if bar.y[0].endswith("sends")]
    assert [(bar.base[0], bar.x[0]) for bar in sends] == [(10, 4), (10, 4)]


def test_gantt_marks_what_is_on_another_device_than_in_the_first_timeline(graph, timeline):
    cluster = bl.Cluster.uniform(2, memory_bytes="1MB", link=bl.Link(4.0, 0.0), comm="parallel")
    other_timeline = bl.simulate(graph, cluster, bl.Placement(device=[0, 1, 1, 0]))  # left went over
    figure = viz.gantt(timeline, other_timeline, transfers=False, moved=True)
    outlined = [
        re.sub("<.*?>", " ", bar.hovertext[k]).split()[0]
        for bar in figure.data
        for k, width in enumerate(np.atleast_1d(bar.marker.line.width))
        if width > 1
    ]
    assert outlined == ["left"] and "ops elsewhere: 1" in figure.layout.annotations[1].text
    plain = viz.gantt(timeline, other_timeline, transfers=False)
    assert {bar.marker.line.width for bar in plain.data} == {0.5}


def test_bug_bars_as_thin_as_their_outline_were_white(timeline):
    """Hundreds of outlines of 0.5 pixels cover bars that are thinner: they have three quarters of the bar's own colour."""
    checked = 0
    for bar in viz.gantt(timeline).data:
        for color, outline in zip(bar.marker.color, bar.marker.line.color, strict=True):
            if not color.startswith("#"):  # transfers are translucent, and so are their outlines
                assert outline == color
                continue
            bar_rgb, outline_rgb = ([int(text[k : k + 2], 16) for k in (1, 3, 5)] for text in (color, outline))
            assert outline_rgb == pytest.approx([0.75 * channel for channel in bar_rgb], abs=0.5)
            checked += 1
    assert checked == 4


def test_gantt_without_transfers(timeline):
    assert [bar.y[0] for bar in viz.gantt(timeline, transfers=False).data] == ["gpu:0", "gpu:1"]


def test_gantt_of_two_timelines_shares_the_time_axis(timeline):
    figure = viz.gantt(timeline, timeline)
    assert {bar.xaxis for bar in figure.data} == {"x", "x2"}
    assert figure.layout.xaxis.matches == "x2"
    assert "simulated" in figure.layout.annotations[0].text


def test_gantt_marks_violations(graph):
    cluster = bl.Cluster.uniform(1, memory_bytes=1500)
    broken = bl.simulate(graph, cluster, bl.Placement(device=[0] * 4))
    assert broken.violations
    marks = viz.gantt(broken).data[-1]
    assert marks.mode == "markers"
    assert "exceeds" in marks.hovertext[0]


def test_gantt_of_a_large_timeline_stays_small():
    graph = bl.generators.chain(20_000, seed=1)
    timeline = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=np.arange(20_000) % 2))
    figure = viz.gantt(timeline, max_bars=1000)
    assert sum(len(bar.base) for bar in figure.data) <= 2 * 1000 + 2 * 1000 + 8
    assert "more" in figure.data[0].hovertext[0]


def test_gantt_of_an_empty_graph():
    empty = bl.simulate(bl.OpGraph.from_edges([]), bl.Cluster.uniform(2), bl.Placement(device=np.zeros(0, dtype=int)))
    assert len(viz.gantt(empty).data) == 0


def idle_third(graph):
    """Devices 0 and 2 of four are idle."""
    return bl.simulate(graph, bl.Cluster.uniform(4, link=bl.Link(4.0, 0.0)), bl.Placement(device=[1, 1, 3, 1]))


def test_idle_devices_have_rows_of_their_own(graph):
    first, second = idle_third(graph), bl.simulate(graph, bl.Cluster.uniform(4), bl.Placement(device=[0] * 4))
    figure = viz.gantt(first, second, transfers=False)
    for axis in (figure.layout.yaxis, figure.layout.yaxis2):
        assert axis.categoryarray == ("gpu:3", "gpu:2", "gpu:1", "gpu:0")
        assert axis.range[0] < -0.5 and axis.range[1] > 3.5 - 0.2  # of all four, whichever have bars
    names = [
        trace.name for trace in viz.graph(graph, bl.Placement(device=[1, 1, 1, 1]), device_names=("a", "b", "c")).data
    ]
    assert sorted(names) == ["a", "b", "c"]


def test_timelines_below_each_other_have_one_time_scale(graph):
    short, long = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * 4)), idle_third(graph)
    longest = max(short.makespan_us, long.makespan_us)
    for figure in (viz.gantt(short, long), viz.gantt(long, short)):
        assert {axis.range for axis in figure.select_xaxes()} == {(0, longest)}


# -- memory --------------------------------------------------------------------------------------------------


def test_memory_areas_sum_to_the_peak(timeline):
    figure = viz.memory(timeline)
    for device in range(2):
        areas = figure.data[4 * device : 4 * device + 4]
        assert [a.name for a in areas] == ["persistent", "outputs", "temporary", "received copies"]
        total = sum(np.array(a.y) for a in areas)
        assert total.max() * 1000 == timeline.peak_bytes[device]  # drawn in kB


def test_memory_draws_a_limit_that_is_near_and_names_one_that_is_far(graph, timeline):
    assert len(viz.memory(timeline).layout.shapes) == 0
    assert "of 1.00 MB" in viz.memory(timeline).layout.annotations[0].text
    near = bl.simulate(graph, bl.Cluster.uniform(1, memory_bytes=1500), bl.Placement(device=[0] * 4))
    figure = viz.memory(near)
    assert figure.layout.shapes[0].y0 == 1.5
    assert "over its limit" in figure.layout.annotations[0].text


def test_memory_panels_have_one_scale_and_the_devices_colours(graph):
    timeline = idle_third(graph)
    figure = viz.memory(timeline)
    assert len({axis.range for axis in figure.select_yaxes()}) == 1
    assert figure.layout.yaxis.range[1] * 1000 > timeline.peak_bytes.max()  # kB
    assert {axis.range for axis in figure.select_xaxes()} == {(0, timeline.makespan_us)}
    for device, color in enumerate(device_colors(4)):
        assert [area.fillcolor for area in figure.data[4 * device : 4 * device + 4]] == shades(color)
    assert [entry.name for entry in figure.data if entry.showlegend is None] == [
        "persistent",
        "outputs",
        "temporary",
        "received copies",
    ]


def test_thinning_keeps_peaks():
    rng = np.random.default_rng(3)
    level = rng.integers(0, 1000, (10_000, 4))
    time, kept_levels = thin_levels(np.arange(10_000.0), level, 100)
    assert len(time) == 100
    assert kept_levels.sum(axis=1).max() == level.sum(axis=1).max()
    assert np.all(np.diff(time) > 0)


def test_memory_without_a_log_shows_peaks(timeline):
    from dataclasses import replace

    from baechi_lab.graph import MemoryLog

    figure = viz.memory(replace(timeline, memory=MemoryLog.none(), origin="measured"))
    assert figure.data[0].type == "bar"
    assert "measured" in figure.layout.title.text


# -- graph ---------------------------------------------------------------------------------------------------


def test_graph_shows_every_op_once(graph):
    figure = viz.graph(graph, bl.Placement(device=[0, 0, 1, 0]), device_names=("gpu:0", "gpu:1"))
    nodes = {t.name: len(t.x) for t in figure.data if t.mode == "markers"}
    assert nodes == {"gpu:0": 3, "gpu:1": 1}
    picture = base64.b64decode(figure.layout.images[0].source.partition(",")[2]).decode()
    assert all(f">{name}<" in picture for name in graph.names)
    assert picture.count(f'stroke="{CROSSING}"') == 2  # in -> right, right -> out


@pytest.mark.parametrize("placement", [None, bl.Placement(device=[0, 0, 1, 0])])
def test_bug_boxes_were_white_on_dark_pages(graph, placement):
    """Boxes are holes in all that is drawn below them; their texts are in colours for light and dark pages."""
    source = viz.graph(graph, placement).layout.images[0].source
    picture = ElementTree.fromstring(base64.b64decode(source.partition(",")[2]))
    svg = "{http://www.w3.org/2000/svg}"
    mask = picture.find(f"{svg}mask")
    page, *holes = mask
    assert page.get("fill") == "#FFFFFF" and all(
        hole.get("fill") is None for hole in holes
    )  # white is drawn, black is not
    position = lambda e: tuple(e.get(key) for key in ("x", "y", "width", "height"))  # noqa: E731
    outlines = [e for e in picture.findall(f"{svg}rect") if e.get("fill") == "none"]
    assert [position(e) for e in holes] == [position(e) for e in outlines] and len(holes) == 4
    picture.remove(mask)
    assert [e for e in picture.iter() if e.get("fill") == "#FFFFFF"] == []
    assert {e.get("fill") for e in picture.iter(f"{svg}text")} <= {INK, TITLE_TEXT}
    assert picture.findall(f"{svg}path") == []  # all arrows are in the masked group
    assert len(picture.find(f"{svg}g[@mask='url(#{mask.get('id')})']").findall(f"{svg}g")) == 4


def test_graph_without_placement_is_grey(graph):
    figure = viz.graph(graph)
    assert [t.name for t in figure.data if t.mode == "markers"] == ["not placed"]


def test_a_large_graph_is_a_picture_of_few_boxes_that_hold_all_ops():
    figure = viz.graph(bl.generators.chain(5000, seed=0))
    ops_of_box = [int(re.search(r"<br>([\d,]+) ops", text)[1].replace(",", "")) for text in figure.data[0].hovertext]
    assert len(ops_of_box) <= 24 and sum(ops_of_box) == 5000
    assert f"5,000 ops, {len(ops_of_box)} boxes drawn" in figure.layout.title.text


def test_empty_graph_is_an_empty_picture():
    assert len(viz.graph(bl.OpGraph.from_edges([])).data) == 0


def test_coarse_graph_says_how_many_original_ops():
    fine = bl.OpGraph.from_edges([1.0, 2.0, 3.0], [(0, 1, 8), (1, 2, 8)])
    coarse = bl.OpGraph.from_edges([3.0, 3.0], [(0, 1, 8)], group_of=[0, 0, 1], source_key=fine.key)
    nodes = viz.graph(coarse).data[-1]
    assert "2 original ops" in nodes.hovertext[0]


# -- comparison ----------------------------------------------------------------------------------------------


def table(**columns):
    """Two placers; the second found nothing."""
    base = {
        "placer": ["a", "b"],
        "makespan_us": [2000.0, np.nan],
        "lower_bound_us": [1000.0, 1000.0],
        "feasible": [True, False],
        "peak_bytes": [10.0, np.nan],
        "error": ["", "no room"],
    }
    return pd.DataFrame({**base, **columns})


def test_comparison_bars_and_bound():
    figure = viz.comparison(table())
    assert figure.data[0].y[0] == 2.0  # milliseconds
    assert "no room" in figure.data[0].hovertext[1]
    assert figure.layout.shapes[0].y0 == 1.0
    assert "lower bound<br>1 ms" in figure.layout.annotations[0].text


def test_comparison_with_measured_steps():
    figure = viz.comparison(table(measured_us=[2500.0, np.nan]))
    assert [t.name for t in figure.data] == ["simulated", "measured"]
    assert figure.data[1].y[0] == 2.5


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: viz.gantt(), "one or more timelines"),
        (lambda: viz.gantt("x"), "one or more timelines"),
        (lambda: viz.memory(3), "not int"),
        (lambda: viz.graph(3), "not int"),
        (lambda: viz.graph(bl.OpGraph.from_edges([1.0]), max_nodes=0), "max_nodes is 0"),
        (lambda: viz.graph(bl.OpGraph.from_edges([1.0]), 3), "placement is of type int; it must be a Placement"),
        (lambda: viz.groups(bl.OpGraph.from_edges([1.0]), 3), "placement is of type int; it must be a Placement"),
        (
            lambda: viz.decisions(bl.OpGraph.from_edges([1.0]), bl.Cluster.uniform(1), 3),
            "placement is of type int; it must be a Placement",
        ),
        (lambda: viz.graph(bl.OpGraph.from_edges([1.0]), bl.Placement(device=[0, 0])), "another graph"),
        (lambda: viz.comparison(pd.DataFrame({"placer": []})), "lacks column 'makespan_us'"),
    ],
)
def test_wrong_records_are_refused(draw, message):
    with pytest.raises(bl.InvalidInput, match=message):
        draw()


# -- decisions -----------------------------------------------------------------------------------------------


def test_one_slider_position_per_decision(graph):
    cluster = bl.Cluster.uniform(2, memory_bytes="1MB", link=bl.Link(4.0, 0.0), comm="parallel")
    placement = bl.place(graph, cluster, "m-etf", explain=True)
    figure = viz.decisions(graph, cluster, placement)
    log, steps = placement.info["decisions"], figure.layout.sliders[0].steps
    assert [s.label for s in steps] == ["1", "2", "3", "4"]
    for k, (decision, step) in enumerate(zip(log, steps, strict=True)):
        shown = [trace for trace, visible in zip(figure.data, step.args[0]["visible"], strict=True) if visible]
        assert list(shown[0].text) == [graph.names[d.chosen.op] for d in log[: k + 1]]
        assert list(shown[0].base) == [d.chosen.start_us for d in log[: k + 1]]
        marked = sum(len(text.split(", ")) for trace in shown[1:] for text in trace.text)
        pair = (decision.chosen.op, decision.chosen.device)
        assert marked == sum((c.op, c.device) != pair for c in decision.candidates)
        assert decision.reason in step.args[1]["title.text"]
    assert [trace.visible for trace in figure.data[-3:]] == [True, True, True]


def test_decisions_need_a_log_that_fits(graph):
    cluster = bl.Cluster.uniform(2)
    with pytest.raises(bl.InvalidInput, match="explain=True"):
        viz.decisions(graph, cluster, bl.place(graph, cluster, "m-etf"))
    chain = bl.generators.chain(201)
    with pytest.raises(bl.InvalidInput, match="201 steps"):
        viz.decisions(chain, cluster, bl.place(chain, cluster, "m-etf", explain=True))


# -- learned groups ------------------------------------------------------------------------------------------


def test_groups_are_drawn_with_their_devices_and_the_rest_in_grey(graph):
    from baechi_lab.placers.planner.explain import learned_groups

    learned = learned_groups(graph, np.array([9, 4, 4, 2]), np.array([0, 1, 1, 0]))  # work: 5, 10 + 20, 5
    placement = bl.Placement(device=[0, 1, 1, 0], info={"explanation": learned})
    figure = viz.groups(graph, placement, most=1, device_names=("cpu", "gpu"))
    first, other_groups = figure.data
    assert (first.name, len(first.x), first.marker.color) == ("0 on gpu: 2 ops", 2, series_colors(1)[0])
    assert (other_groups.name, len(other_groups.x), other_groups.marker.color) == ("2 more: 2 ops", 2, "#9A9A9A")
    picture = base64.b64decode(figure.layout.images[0].source.partition(",")[2]).decode()
    assert all(f">{name}<" in picture for name in graph.names)
    assert picture.count(f'stroke="{CROSSING}"') == 4  # all: in and out are on device 0, left and right on 1
    assert figure.layout.title.text.endswith("3 learned groups of 4 ops")
    with pytest.raises(bl.errors.InvalidInput, match="tells no learned groups"):
        viz.groups(graph, bl.Placement(device=[0, 1, 1, 0]))
    with pytest.raises(bl.errors.InvalidInput, match="another graph"):
        viz.groups(bl.OpGraph.from_edges([1.0]), placement)
    with pytest.raises(bl.errors.InvalidInput, match="most is 0; it must be at least 1"):
        viz.groups(graph, placement, most=0)


@pytest.mark.slow
def test_groups_of_a_coarse_graph_on_the_whole_graph():
    from baechi_lab.placers.planner.explain import learned_groups

    graph = bl.generators.unrolled_rnn(10, 2)
    coarse = bl.optimize(graph)
    device = np.arange(coarse.n) % 2
    learned = learned_groups(coarse, np.arange(coarse.n), device)
    placement = bl.Placement(
        device=device,
        graph_key=coarse.key,
        group_of=coarse.group_of,
        source_key=coarse.source_key,
        info={"explanation": learned},
    )
    assert coarse.n < graph.n
    for drawn, ops in ((coarse, coarse.n), (graph, graph.n)):
        texts = [text for trace in viz.groups(drawn, placement, most=coarse.n).data for text in trace.hovertext or ()]
        assert len(texts) <= 24
        op_counts = [re.search(r"<br>([\d,]+) ops", text) for text in texts]
        assert sum(int(op_count[1].replace(",", "")) if op_count else 1 for op_count in op_counts) == ops


def two_stage_pipeline(schedule):
    """Two layers on two devices, in two micro-batches. Layer 0 waits for `input1`, nothing waits for `weights1`."""
    names = ["forward0", "forward1", "input1", "weights1", "backward0"]
    graph = bl.OpGraph.from_edges(
        [4.0, 4.0, 4.0, 2.0, 6.0],
        [(0, 1, 8), (1, 2, 8), (1, 3, 8), (2, 4, 8)],
        names=names,
        forward_of=np.array([-1, -1, 1, 1, 0], dtype=np.int32),
    )
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0))
    placement = bl.Placement(device=[0, 1, 1, 1, 0])
    return bl.simulate(graph, cluster, placement, micro_batches=2, schedule=schedule)


def test_a_pipeline_is_light_forward_dark_backward_and_hatched_where_weights_get_gradients():
    timeline = two_stage_pipeline("zb-h1")
    phases = dict(zip(timeline.op_names, pipeline_phases(timeline).tolist(), strict=True))
    for name, phase in (("forward0", 1), ("forward1", 1), ("input1", 2), ("weights1", HATCHED), ("backward0", 2)):
        assert phases[f"{name}/mb0"] == phases[f"{name}/mb1"] == phase
    bars = next(trace for trace in viz.gantt(timeline, transfers=False).data if trace.y[0] == timeline.device_names[1])
    plain, light, dark, hatched = phase_shades(device_colors(2)[1])
    # forward 0, backward 0, forward 1, backward 1 with the gradients of weights in the gaps or behind them
    assert sorted(bars.marker.color) == sorted([light] * 2 + [dark] * 2 + [hatched] * 2)
    assert sorted(bars.marker.pattern.shape) == ["", "", "", "", "/", "/"]
    assert plain not in bars.marker.color


def test_a_pipeline_says_its_bubbles_in_percent():
    # Device 0: 0-4 and 4-8 forward, then 6 for each backward pass: 20 us. Device 1: 4 + 4 + 2 for each micro-batch, also 20 us.
    timeline = two_stage_pipeline("zb-h1")
    share = round(100 * (1 - 20 / timeline.makespan_us))
    axis = viz.gantt(timeline).layout.yaxis
    assert list(axis.ticktext) == [f"gpu:0, {share}% bubble", "gpu:0 sends", f"gpu:1, {share}% bubble", "gpu:1 sends"]
    assert list(axis.tickvals) == ["gpu:0", "gpu:0 sends", "gpu:1", "gpu:1 sends"] and 0 < share < 50


def test_gantt_has_a_row_of_collectives_where_the_workbench_has_a_lane_of_them():
    # The all-reduce, 5 to 15, lies beside the second product, 5 to 13.
    graph = bl.OpGraph.from_edges(
        [5, 10, 8], [(0, 1, 8), (0, 2, 8)], names=["a", "reduce", "b"], op_types=["MatMul", "all_reduce", "MatMul"]
    )
    timeline = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 0, 0]))
    figure = viz.gantt(timeline, transfers=False)
    rows = {bar.y[0]: list(zip(bar.base.tolist(), bar.x.tolist(), strict=True)) for bar in figure.data}
    assert rows == {"gpu:0": [(0, 5), (5, 8)], "gpu:0 collectives": [(5, 10)]}
    assert list(figure.layout.yaxis.categoryarray) == ["gpu:1 collectives", "gpu:1", "gpu:0 collectives", "gpu:0"]
    lanes = [(lane["device"], lane["kind"]) for lane in build_bars(graph, [timeline]).lanes]
    assert lanes == [(d, kind) for d in (0, 1) for kind in ("ops", "collectives", "transfers")]


def test_a_step_without_a_schedule_has_no_phases():
    graph = bl.OpGraph.from_edges([5, 10], [(0, 1, 8)])
    timeline = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 1]))
    assert pipeline_phases(timeline) is None
    assert all(trace.marker.pattern.shape is None for trace in viz.gantt(timeline).data)
