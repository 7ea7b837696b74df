"""A table with sortable columns, one unit per column, and a small picture of the devices in every row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from ...viz.layout import scale
from ..glossary import tip
from .base import Message, View, source

ONE = ((1.0, ""),)
PERCENT = ((0.01, "%"),)
MOST_DECIMALS = 4
RATIO_DECIMALS = 2
"""Decimals of a speedup or a share of 1, as in "1.00 times": also where all are whole."""


@dataclass(frozen=True)
class Column:
    """A column: its head, the text of every row, and the values by which it sorts (None sorts last).

    `hint` explains the head, by default as the glossary does. `tips` explain the texts, which may be names.
    """

    name: str
    texts: Sequence[str]
    values: Sequence[float | str | None] = ()
    hint: str = ""
    number: bool = False
    tips: Sequence[str] = ()


def names(name: str, texts: Sequence[str], hint: str = "") -> Column:
    """Makes a column of names, such as placers, each with its meaning in the glossary.

    >>> names("placer", ["single"]).tips[0][:29]
    'A placer that puts everything'
    """
    return Column(name, texts, hint=hint or tip(name), tips=tuple(map(tip, texts)))


def quantity(
    name: str,
    values: Sequence[Any],
    units: tuple[tuple[float, str], ...] = ONE,
    hint: str = "",
    most_decimals: int = MOST_DECIMALS,
    decimals: int | None = None,
) -> Column:
    """Makes a column of numbers in the unit that suits the largest of them; None and NaN are empty.

    All have the same decimals: none if all are whole, else as many as show at least two digits of the smallest, at least three
    below one unit, and not more than `most_decimals`. `decimals` are another number of them.

    >>> column = quantity("step", [1500.0, 20.0, None], ((1e3, "ms"), (1.0, "us")))
    >>> column.name, column.texts
    ('step (ms)', ('1.500', '0.020', ''))
    """
    numbers = [None if v is None or not math.isfinite(v) else float(v) for v in values]
    sizes = [abs(v) for v in numbers if v]
    factor, unit = scale(max(sizes, default=0.0), units)
    smallest = min(sizes, default=factor) / factor
    are_whole = all(v is None or v / factor == round(v / factor) for v in numbers)
    magnitude = math.floor(math.log10(smallest))
    least = 3 if unit and magnitude < 0 else min(2, 3 - magnitude)
    if decimals is None:
        decimals = 0 if are_whole else min(max(1 - magnitude, least, 0), 1 if unit == "%" else most_decimals)
    texts = tuple("" if v is None else _decimal(v / factor, decimals) for v in numbers)
    return Column(f"{name} ({unit})" if unit else name, texts, tuple(numbers), hint, number=True)


def _decimal(value: float, decimals: int) -> str:
    """Formats a number with `decimals` decimals; a positive number that would be shown as zero is shown as "<".

    >>> _decimal(1234.5, 1), _decimal(0.00001, 4), _decimal(-1e-16, 2)
    ('1,234.5', '<0.0001', '0.00')
    """
    least = 10.0**-decimals
    return f"<{least:.{decimals}f}" if 0 < value < least / 2 else f"{round(value, decimals) + 0.0:,.{decimals}f}"


def busy_lanes(shares: NDArray[np.float64], colors: Sequence[str]) -> list[dict[str, str]]:
    """Makes an SVG path per device, one unit high and one below the other; its height in a bin is the busy share.

    Args:
        shares: float64[devices, bins], the busy share of every bin, from 0 to 1.
        colors: one per device.

    >>> busy_lanes(np.array([[1.0, 1.0, 0.0, 0.5]]), ["#000000"])
    [{'d': 'M0 1v-1h2v1zM3 1v-0.5h1v0.5z', 'color': '#000000'}]
    """
    lanes = []
    for lane, (row, color) in enumerate(zip(shares, colors, strict=True)):
        starts = np.flatnonzero(np.diff(row, prepend=-1.0))
        widths = np.diff(np.append(starts, len(row)))
        stretches = zip(starts.tolist(), widths.tolist(), row[starts].tolist(), strict=True)
        path = "".join(f"M{k} {lane + 1}v-{s:.3g}h{width}v{s:.3g}z" for k, width, s in stretches if s > 0)
        lanes.append({"d": path, "color": color})
    return lanes


class TableView(View):
    """A table that sorts by a click, or a key, on the head of a column.

    `on_action(row, action)` is called for a button of a row, with the present position of the row of that `id`: rows may have
    come between since the click, and nothing is done if it is gone. Without ids, rows keep their positions.

    `head` has `name`, `hint` and `number` of every column. `rows` have an `id`, `cells`, their `tips`, `keys` (by which
    columns sort), `marked`, `notes` (`text`, `hint`, `good`, behind the first cell), `actions` (`name`, `hint`)
    and a picture `lanes`, which fills the
    share `span` of its cell and has the name `label`.

    >>> view = TableView()
    >>> view.show([Column("placer", ["single"], ["single"]), quantity("groups", [7])])
    >>> view.rows[0]["cells"], view.head[1]["number"]
    (['single', '7'], True)
    """

    _esm = source("js", "table_view")
    _css = source("css", "table_view")
    caption = traitlets.Unicode("").tag(sync=True)
    head: traitlets.List = traitlets.List().tag(sync=True)
    rows: traitlets.List = traitlets.List().tag(sync=True)

    def __init__(self, caption: str = "", on_action: Callable[[int, str], None] = lambda row, action: None):
        super().__init__(caption=caption)
        self.on_action = on_action
        self.on_msg(self._start_action)

    def show(self, columns: Sequence[Column], extras: Sequence[dict[str, object]] = ()) -> None:
        """Replaces the shown columns; `extras` are further fields of the rows, one dict each."""
        count = len(columns[0].texts) if columns else 0
        plain: dict[str, object] = {"marked": False, "notes": [], "actions": [], "lanes": [], "span": 0.0, "label": ""}
        with self.hold_sync():
            self.head = [{"name": c.name, "hint": c.hint or tip(c.name), "number": c.number} for c in columns]
            self.rows = [
                {
                    **plain,
                    "id": str(k),
                    "cells": [c.texts[k] for c in columns],
                    "tips": [c.tips[k] if c.tips else "" for c in columns],
                    "keys": [(c.values or c.texts)[k] for c in columns],
                    **(extras[k] if extras else {}),
                }
                for k in range(count)
            ]

    def _start_action(self, _: object, content: Message, __: object) -> None:
        if content.get("type") == "action":
            ids = [row["id"] for row in self.rows]
            if content["id"] in ids:
                self.on_action(ids.index(content["id"]), str(content["action"]))
