"""What a sweep must not be read without: answers that get worse where there is more to choose from."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..graph.units import format_limit, format_us

if TYPE_CHECKING:
    import pandas

NOISE = 1e-6
"""Relative difference of two step times below which they are the same."""
MOST = 3
REST = ["batch_size", "micro_batches", "schedule", "replicas", "devices", "placer"]


def surprises(table: pandas.DataFrame, most: int = MOST) -> list[str]:
    """A sentence for each reason why a setting has more memory than another and a longer step, the worst first.

    A placement that fits less memory fits more of it as well: what is found there is at hand.
    """
    found = defaultdict(list)
    fits = table[table["feasible"].astype(bool)]
    for _, rows in fits.groupby(REST, dropna=False, sort=False):
        rows = rows.sort_values("memory_bytes", kind="stable")
        longer = rows["makespan_us"] / rows["makespan_us"].cummin().shift()
        if not longer.max() > 1 + NOISE:
            continue
        row = rows.loc[longer.idxmax()]
        less = rows.loc[rows.loc[: row.name, "makespan_us"].idxmin()]
        found[_reason(row, less)].append((float(longer.max()), _both(row, less)))
    told = sorted((sorted(settings, reverse=True), why) for why, settings in found.items())
    return [f"{_listed([both for _, both in settings], most)}: {why}" for settings, why in reversed(told)]


def _listed(settings: list[str], most: int) -> str:
    more = len(settings) - most
    left = [] if more <= 0 else [f"{more} more setting{'s' if more > 1 else ''} likewise"]
    return "; ".join(settings[:most] + left)


def _reason(row: pandas.Series, less: pandas.Series) -> str:
    """Where the passes made other groups, they are the reason; else the rule itself."""
    if row["groups"] != less["groups"]:
        return (
            f"with more memory every device could hold the whole model, so the passes placed {int(row['groups']):,} groups of "
            f"forward ops instead of {int(less['groups']):,} groups of all ops (forward only: no places them as with less)."
        )
    return (
        "this rule does not try all placements, and less memory led it to a better one, which fits here "
        "too (placer auto compares more of them)."
    )


def _both(row: pandas.Series, less: pandas.Series) -> str:
    return (
        f"{row['placer']} on {int(row['devices'])} devices: {format_us(row['makespan_us'])} with "
        f"{format_limit(row['memory_bytes'])} each, {format_us(less['makespan_us'])} with {format_limit(less['memory_bytes'])}"
    )
