"""Text and JSON on stdout."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import Timeline
from ..graph.units import format_bytes, format_us, plural
from ..step_summary import gap_in_words

if TYPE_CHECKING:
    import pandas


WIDTH = 100
"""Largest width of a table in columns of the terminal."""
LONGEST_NAME = 40  # of a row in a table, in characters; longer ones are shortened


def plain(value: object) -> Any:
    """Converts `value` to JSON's types. NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def print_json(value: object) -> None:
    """Prints one JSON document."""
    print(json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def rows_of(table: pandas.DataFrame) -> list[dict[str, Any]]:
    """Returns the rows of a table as plain objects. Missing numbers become null."""
    return [plain(row) for row in table.astype(object).where(table.notna(), None).to_dict("records")]


def print_facts(facts: Mapping[str, object]) -> None:
    """Prints aligned `name  value` lines."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table of at most `WIDTH` characters: the first column left-aligned, the others right-aligned.

    Columns that do not fit beside the others come below them, behind the first one again.
    """
    lines = [[_shorten(line[0]), *line[1:]] for line in [header, *rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    blocks, used = [[0]], widths[0]
    for i, width in enumerate(widths[1:], 1):
        if used + 2 + width > WIDTH and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(i)
        used += 2 + width
    for k, columns in enumerate(blocks):
        if k:
            print()
        for line in [lines[0], ["-" * w for w in widths], *lines[1:]]:
            cells = [f"{line[i]:<{widths[i]}}" if i == 0 else f"{line[i]:>{widths[i]}}" for i in columns]
            print("  ".join(cells).rstrip())


def _shorten(text: str) -> str:
    """Shortens a name so that other columns fit."""
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 13]}...{text[-10:]}"


def print_descriptions(descriptions: Mapping[str, str]) -> None:
    """Prints `name  sentence` lines of at most `WIDTH` characters."""
    width = max(map(len, descriptions), default=0)
    for name, text in descriptions.items():
        print(textwrap.fill(text, WIDTH, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 2)))


def print_comparison(table: pandas.DataFrame) -> None:
    """Prints the table of `bl.compare`, then why rows are not feasible, and further remarks."""
    rows = rows_of(table)
    has_measurements = any(row.get("measured_us") is not None for row in rows)
    header = ["placer", "step", "speedup", "lower bound", "gap", "peak memory", "fits", "moved", "balance", "placed in"]
    if has_measurements:
        header += ["measured", "peak, measured"]
    if "native_ratio" in table:
        header.append("measured / native")
    print_rows(header, [_comparison_row(row, has_measurements) for row in rows])
    for row in rows:
        if row["error"]:
            print(f"  {row['placer']}: {row['error']}")
        if row.get("winner"):
            print(f"  {row['placer']}: took the placement of {row['winner']}")
    for note in table.attrs.get("notes", ()):
        print(f"note: {note}")


def _comparison_row(row: Mapping[str, object], has_measurements: bool) -> list[str]:
    """Returns the cells of a row of `bl.compare`; those of real runs if the table has any."""

    def cell(key: str, format_value: Callable[[Any], str]) -> str:
        return "-" if row.get(key) is None else format_value(row[key])

    cells = [
        str(row["placer"]),
        cell("makespan_us", format_us),
        cell("speedup", lambda ratio: f"{ratio:.2f}"),
        cell("lower_bound_us", format_us),
        cell("gap", gap_in_words),
        cell("peak_bytes", format_bytes),
        "yes" if row["feasible"] else "no",
        cell("moved_bytes", format_bytes),
        cell("balance", lambda b: f"{b:.2f}"),
        cell("place_seconds", lambda s: format_us(s * 1e6)),
    ]
    if has_measurements:
        cells += [cell("measured_us", format_us), cell("measured_peak_bytes", format_bytes)]
    if "native_ratio" in row:
        cells.append(cell("native_ratio", lambda ratio: f"{ratio:.2f}"))
    return cells


def timeline_facts(timeline: Timeline, lower_bound_us: float, batch_size: int | None = None) -> dict[str, object]:
    """Returns the facts of a timeline for `--json`. With the samples of a step, they include samples per second."""
    rate = (
        {"samples_per_second": batch_size * 1e6 / timeline.makespan_us} if batch_size and timeline.makespan_us else {}
    )
    return {
        **rate,
        "origin": timeline.origin,
        "makespan_us": timeline.makespan_us,
        "lower_bound_us": lower_bound_us,
        "gap": timeline.makespan_us / lower_bound_us - 1 if lower_bound_us > 0 else None,
        "feasible": timeline.feasible,
        "peak_bytes": int(timeline.peak_bytes.max(initial=0)),
        "moved_bytes": timeline.moved_bytes,
        "transfers": len(timeline.transfers),
        "devices": [
            {"name": name, "busy_us": float(busy), "peak_bytes": int(peak), "memory_bytes": int(limit)}
            for name, busy, peak, limit in zip(
                timeline.device_names, timeline.busy_us, timeline.peak_bytes, timeline.memory_bytes, strict=True
            )
        ],
        "violations": [{"kind": v.kind, "message": v.message} for v in timeline.violations],
    }


def print_timeline(facts: Mapping[str, Any]) -> None:
    """Prints `timeline_facts` as text."""
    bound, gap = facts["lower_bound_us"], facts["gap"]
    print_facts(
        {
            f"step, {facts['origin']}": format_us(facts["makespan_us"]),
            "lower bound": format_us(bound) + ("" if gap is None else f" (gap {gap_in_words(gap)})"),
            "moved": f"{format_bytes(facts['moved_bytes'])} in {facts['transfers']} {plural('transfer', facts['transfers'])}",
            "feasible": "yes" if facts["feasible"] else "no",
        }
    )
    print_rows(
        ["device", "busy", "peak memory", "of"],
        [
            [d["name"], format_us(d["busy_us"]), format_bytes(d["peak_bytes"]), format_bytes(d["memory_bytes"])]
            for d in facts["devices"]
        ],
    )
    for violation in facts["violations"]:
        print(f"  {violation['kind']}: {violation['message']}")
