"""Small charts of the panels: bars by name, or curves over numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import traitlets

from .base import View, source

Chart = dict[str, object]
"""The specification of a chart, or of a curve, a rule or a cell in it."""


class ChartView(View):
    """Draws a specification of `bars`, `curves`, `points` or `heat` as SVG, in the colours of the page.

    `show(None)` removes the chart. A chart in a hidden part is drawn when the part is shown. `clicked` is the mark that was
    clicked last: one of the `ids` of a series, or the `id` of a cell.
    """

    _esm = source("js", "chart_view")
    _css = source("css", "chart_view")
    spec = traitlets.Dict().tag(sync=True)
    height = traitlets.Int(250).tag(sync=True)
    clicked = traitlets.Int(-1).tag(sync=True)

    def show(self, spec: Mapping[str, object] | None) -> None:
        self.clicked = -1
        self.spec = dict(spec or {})


def rule(y: float, text: str = "", color: str = "currentColor", dash: bool = True, to: float | None = None) -> Chart:
    """Makes a horizontal line at `y` with a text, or a band from `y` to `to`."""
    return {"y": y, "text": text, "color": color, "dash": dash, **({} if to is None else {"to": to})}


def limit(x: float, text: str, color: str) -> Chart:
    """Makes a vertical line at `x` with a text."""
    return {**rule(0.0, text, color), "x": x}


def series(
    y: Iterable[float | None],
    name: str = "",
    color: str = "",
    x: Iterable[float] = (),
    hollow: Sequence[bool] = (),
    tips: Sequence[str] = (),
    ids: Sequence[int] = (),
    dash: bool = False,
) -> Chart:
    """Makes one kind of bars, or one curve, without unknown values (None, NaN). An empty colour is that of the text.

    Marks with `ids` can be clicked. In a chart of points, a series with `dash` is a line without marks.

    >>> series([1.0, float("nan")])["y"]
    [1.0, None]
    """
    values = [None if v is None or not math.isfinite(v) else float(v) for v in y]
    return {
        "name": name,
        "color": color,
        "x": [float(v) for v in x],
        "y": values,
        "hollow": [bool(h) for h in hollow],
        "tips": [str(t) for t in tips],
        "ids": [int(i) for i in ids],
        "dash": dash,
    }


def bars(
    labels: Iterable[str], y: str, series_list: Iterable[object], rules: Iterable[object] = (), title: str = ""
) -> Chart:
    """Makes a chart of bars, side by side at every label; hollow bars do not fit."""
    chart = {"kind": "bars", "labels": [str(label) for label in labels], "x": "", "y": y, "title": title}
    return {**chart, "series": list(series_list), "rules": list(rules)}


def curves(
    x: str,
    y: str,
    series_list: Iterable[object],
    rules: Iterable[object] = (),
    title: str = "",
    steps: bool = False,
    **axis_range: object,
) -> Chart:
    """Makes a chart of curves with their names at the ends. `axis_range`: `from`, `to` and `ticks` of the x axis."""
    chart = {"kind": "lines", "labels": [], "x": x, "y": y, "title": title, "steps": steps, **axis_range}
    return {**chart, "series": list(series_list), "rules": list(rules)}


def points(x: str, y: str, series_list: Iterable[object], rules: Iterable[object] = (), title: str = "") -> Chart:
    """Makes a chart of points, whose names stand above it; hollow points do not fit."""
    return {**curves(x, y, series_list, rules, title), "kind": "points", "from": 0.0}


def heat(columns: Sequence[str], rows: Sequence[str], title: str, cells: Sequence[Mapping[str, object]]) -> Chart:
    """Makes a heat map, whose cells can be clicked.

    `cells` have `x`, `y` (their column and row), `text`, `tip`, `id`, `fits`, `front` and `good` (0 to 1: colour strength).
    """
    chart = {"kind": "heat", "labels": list(columns), "rows": list(rows), "x": "", "y": "", "title": title}
    return {**chart, "cells": [dict(cell) for cell in cells], "series": [], "rules": []}
