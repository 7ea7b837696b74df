"""What a sweep must not be read without: answers that get worse where there is more to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.units import format_bytes, format_us

if TYPE_CHECKING:
    import pandas

NOISE = 1e-6
"""Relative difference of two step times below which they are the same."""
MOST = 3
REST = ["batch_size", "micro_batches", "schedule", "replicas", "devices", "placer"]


def surprises(table: pandas.DataFrame, most: int = MOST) -> list[str]:
    """A sentence for each setting that has more memory than another and a longer step, the worst first.

    A placement that fits less memory fits more of it as well: what is found there is at hand.
    """
    found = []
    fits = table[table["feasible"].astype(bool)]
    for _, rows in fits.groupby(REST, dropna=False, sort=False):
        rows = rows.sort_values("memory_bytes", kind="stable")
        lowest = rows["makespan_us"].cummin().shift()
        worse = rows[rows["makespan_us"] > lowest * (1 + NOISE)]
        for at, row in worse.iterrows():
            earlier = rows.loc[:at]
            less = earlier.loc[earlier["makespan_us"].idxmin()]
            found.append((float(row["makespan_us"] / less["makespan_us"]), _sentence(row, less)))
    return [text for _, text in sorted(found, reverse=True)[:most]]


def _sentence(row: pandas.Series, less: pandas.Series) -> str:
    """Where the passes made other groups, they are the reason; else the rule itself."""
    if row["groups"] != less["groups"]:
        why = (
            f"with more memory every device could hold the whole model, so the passes placed {int(row['groups']):,} groups of "
            f"forward ops instead of {int(less['groups']):,} groups of all ops (forward only: no places them as with less)."
        )
        return f"{_both(row, less)}: {why}"
    return (
        f"{_both(row, less)}: this rule does not try all placements, and less memory led it to a better one, which fits here "
        "too (placer auto compares more of them)."
    )


def _both(row: pandas.Series, less: pandas.Series) -> str:
    return (
        f"{row['placer']} on {int(row['devices'])} devices: {format_us(row['makespan_us'])} with "
        f"{format_bytes(row['memory_bytes'])} each, {format_us(less['makespan_us'])} with {format_bytes(less['memory_bytes'])}"
    )
