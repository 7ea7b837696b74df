"""Chooses the best setting of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InfeasiblePlacement

if TYPE_CHECKING:
    import pandas


def best(table: pandas.DataFrame) -> pandas.Series:
    """Returns the feasible row with the most samples per second, or with the shortest step where batch sizes are unknown.

    Ties go to fewer devices, then less memory, then the lower peak, then the earlier row. Rounding errors of sums make no
    difference.

    Raises:
        InfeasiblePlacement: no row is feasible; the message gives the last row's reason.
    """
    fits = table[table["feasible"].astype(bool)]
    if len(fits) == 0:
        reasons = [text for text in table["error"] if text] if len(table) else []
        raise InfeasiblePlacement(f"no setting fits: {reasons[-1]}" if reasons else "no setting fits: there is no row")
    rate = fits["samples_per_second"]
    costs = -rate if rate.notna().any() else fits["makespan_us"]
    with_cost = fits.assign(_cost=without_rounding_errors(costs))
    by_cost = with_cost.sort_values(["_cost", "devices", "memory_bytes", "peak_bytes"], kind="stable")
    return by_cost.iloc[0].drop("_cost")


def without_rounding_errors(values: pandas.Series) -> pandas.Series:
    """Returns the numbers with nine significant digits, by which sums of the same terms in another order are equal."""
    return values.astype(float).map(lambda value: float(f"{value:.9g}"))
