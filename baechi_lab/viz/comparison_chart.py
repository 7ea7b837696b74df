"""Chart of the steps of several placers, with the lower bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from ..errors import InvalidInput
from ..graph.units import format_bytes
from .colors import LIMIT, MEASURED, SERIES, text_color
from .layout import LEGEND, scale, styled

if TYPE_CHECKING:
    import pandas

_VALUES = {"texttemplate": "%{y:.3g}", "textposition": "outside", "cliponaxis": False}
COLUMNS = ("placer", "makespan_us", "lower_bound_us", "feasible", "peak_bytes")


def comparison(table: pandas.DataFrame, *, title: str = "Step time by placer") -> go.Figure:
    """Draws the table that `bl.compare` returns as bars: solid if feasible, hatched if a memory limit is exceeded.

    A placer without a placement has its name on the axis and no bar. A measured step (column `measured_us`) has a bar beside
    the simulated one.
    """
    missing = [c for c in COLUMNS if c not in getattr(table, "columns", ())]
    if missing:
        raise InvalidInput(f"the table lacks column {missing[0]!r}; give what bl.compare returned")
    has_measurements = "measured_us" in table.columns and table["measured_us"].notna().any()
    times = table["makespan_us"].fillna(0.0)
    largest = max(times.max(), table["measured_us"].max() if has_measurements else 0.0) if len(table) else 0.0
    factor, unit = scale(float(largest))
    names = table["placer"].astype(str).tolist()
    texts = []
    for _, row in table.iterrows():
        has_step = row["makespan_us"] == row["makespan_us"]
        state = "fits" if row["feasible"] else "does not fit"
        peak = format_bytes(row["peak_bytes"]) if has_step else ""
        texts.append(
            f"<b>{row['placer']}</b><br>{row['makespan_us'] / factor:.4g} {unit}<br>peak {peak}, {state}"
            if has_step
            else f"<b>{row['placer']}</b><br>{row.get('error') or 'no placement'}"
        )
    hatch = ["" if ok else "/" for ok in table["feasible"]]
    figure = go.Figure(
        go.Bar(
            x=names,
            y=table["makespan_us"] / factor,
            name="simulated",
            hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>",
            marker={"color": SERIES[0], "pattern": {"shape": hatch}},
            **_VALUES,
        )
    )
    if has_measurements:
        figure.add_trace(
            go.Bar(x=names, y=table["measured_us"] / factor, name="measured", marker={"color": MEASURED}, **_VALUES)
        )
    bound = table["lower_bound_us"].max() if len(table) else float("nan")
    if bound == bound:
        figure.add_hline(y=bound / factor, line={"color": LIMIT, "dash": "dash", "width": 1.5})
        figure.add_annotation(
            text=f"lower bound<br>{bound / factor:.3g} {unit}",
            font={"color": text_color(LIMIT)},
            x=1,
            xref="paper",
            xanchor="left",
            y=bound / factor,
            yanchor="middle",
            align="left",
            xshift=4,
            showarrow=False,
        )
    figure.update_yaxes(title_text=f"step time ({unit})", rangemode="tozero")
    figure.update_xaxes(title_text="placer", type="category", categoryorder="array", categoryarray=names)
    return styled(
        figure, title, 360, barmode="group", showlegend=bool(has_measurements), legend=LEGEND, margin={"r": 100}
    )
