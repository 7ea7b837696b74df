"""Explanations of surprising rows of a sweep: settings with more memory and a longer step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..graph.units import format_limit, format_us, plural
from ..placers.auto import Auto

if TYPE_CHECKING:
    import pandas

NOISE = 1e-6
"""Relative difference below which two steps count as equal."""
MOST_SETTINGS = 3
OTHER_AXES = ["batch_size", "micro_batches", "schedule", "replicas", "devices", "placer"]


def surprises(table: pandas.DataFrame) -> list[str]:
    """Returns a sentence per reason why a setting has more memory than another and a longer step, the worst first.

    A placement that fits less memory also fits more memory, so a longer step needs an explanation.
    """
    settings_by_reason = defaultdict(list)
    fits = table[table["feasible"].astype(bool)]
    for _, rows in fits.groupby(OTHER_AXES, dropna=False, sort=False):
        rows = rows.sort_values("memory_bytes", kind="stable")
        longer = rows["makespan_us"] / rows["makespan_us"].cummin().shift()
        if not longer.max() > 1 + NOISE:
            continue
        row = rows.loc[longer.idxmax()]
        faster_row = rows.loc[rows.loc[: row.name, "makespan_us"].idxmin()]
        if row["groups"] != faster_row["groups"]:
            reason = (
                "with more memory every device could hold the whole model, so the passes placed "
                f"{int(row['groups']):,} groups of forward ops instead of {int(faster_row['groups']):,} groups of all ops "
                "(forward only: no places them as with less)."
            )
        else:
            hint = "" if row["placer"] == Auto.name else f" (placer {Auto.name} compares more of them)"
            reason = (
                "this placer does not try all placements, and less memory led it to a better one, which fits here "
                f"too{hint}."
            )
        settings_by_reason[reason].append(
            (
                float(longer.max()),
                f"{row['placer']} on {int(row['devices'])} devices: {format_us(row['makespan_us'])} with "
                f"{format_limit(row['memory_bytes'])} each, "
                f"{format_us(faster_row['makespan_us'])} with {format_limit(faster_row['memory_bytes'])}",
            )
        )
    sorted_reasons = sorted((sorted(settings, reverse=True), why) for why, settings in settings_by_reason.items())
    return [
        f"{_list_settings([setting for _, setting in settings])}: {why}" for settings, why in reversed(sorted_reasons)
    ]


def _list_settings(settings: list[str]) -> str:
    more_count = len(settings) - MOST_SETTINGS
    remainder = [] if more_count <= 0 else [f"{more_count} more {plural('setting', more_count)} likewise"]
    return "; ".join(settings[:MOST_SETTINGS] + remainder)
