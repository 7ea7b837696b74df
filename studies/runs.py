"""One run of an experiment: a stored profile, a placer, the simulated step on the whole graph."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baechi_lab.errors import InfeasiblePlacement, InvalidInput
from baechi_lab.graph import Cluster, OpGraph, Placement, Timeline, load_graph
from baechi_lab.passes import optimize
from baechi_lab.passes.optimize import PASSES
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from studies.baechi_tables import PLACERS

if TYPE_CHECKING:
    import pandas

PLACERS_OF_WHOLE_GRAPHS = ("single", "expert")
"""Placers that look at the graph as it is: people do not fuse operators first."""


@dataclass(frozen=True)
class Outcome:
    """What came of one placer: operators it placed, seconds it took, and, unless memory was short, the rest.

    `seconds` is the placer, `prepare_seconds` the passes before it. `why` says what was missing.
    """

    placer: str
    ops: int
    prepare_seconds: float
    seconds: float
    placement: Placement | None = None
    timeline: Timeline | None = None
    planned_us: float = float("nan")
    why: str = ""

    @property
    def step_s(self) -> float | None:
        """Simulated seconds per step on the whole graph; None when memory did not suffice."""
        return None if self.timeline is None or self.why else self.timeline.makespan_us / 1e6


def stored(name: str, folder: str | Path = "data") -> OpGraph:
    """The stored profile of that name.

    Raises:
        InvalidInput: there is no such file.
    """
    path = Path(folder) / f"{name}.json.gz"
    if not path.is_file():
        raise InvalidInput(f"folder is {str(folder)!r}; it must hold {path.name}, see data/README.md")
    return load_graph(path)


def paper_cluster(memory_bytes: int | str = "8GB", comm: str = "sequential") -> Cluster:
    """Jeon et al.'s machine, simulated: four RTX 2080, transfers through host memory, one at a time per device."""
    return Cluster.uniform(4, memory_bytes=memory_bytes, comm=comm)


def outcome(
    graph: OpGraph,
    cluster: Cluster,
    placer: str,
    *,
    passes: Iterable[Any] | None = None,
    forward_only: bool | str = "auto",
    **params: Any,
) -> Outcome:
    """Optimize, place, and simulate on the whole graph.

    `passes` None is the default ones, or none for `single` and `expert`. Never raises for lack of memory: see `why`.
    A timeline that exceeds a device's memory counts as lack of memory, whatever the placer planned.

    >>> from baechi_lab.graph.generators import chain
    >>> outcome(chain(3, duration_us=2.0), paper_cluster(), "single").step_s
    6e-06
    """
    chosen_passes = tuple(passes) if passes is not None else () if placer in PLACERS_OF_WHOLE_GRAPHS else PASSES
    start = time.perf_counter()
    coarse = optimize(graph, cluster, passes=chosen_passes, forward_only=forward_only) if chosen_passes else graph
    middle = time.perf_counter()
    try:
        placement = place(coarse, cluster, placer, **params)
    except InfeasiblePlacement as error:
        return Outcome(placer, coarse.n, middle - start, time.perf_counter() - middle, why=str(error))
    end = time.perf_counter()
    timeline = simulate(graph, cluster, placement)
    planned = timeline if coarse is graph else simulate(coarse, cluster, placement)
    short = [v for v in timeline.violations if v.kind == "memory"]
    why = short[0].message if short else ""
    return Outcome(placer, coarse.n, middle - start, end - middle, placement, timeline, planned.makespan_us, why)


def outcomes(graph: OpGraph, cluster: Cluster, placers: Iterable[str] = PLACERS, **options: Any) -> dict[str, Outcome]:
    """`outcome` by placer."""
    return {placer: outcome(graph, cluster, placer, **options) for placer in placers}


def step_table(outcomes_by_model: dict[str, dict[str, Outcome]], paper: dict[str, Any]) -> pandas.DataFrame:
    """Step times in seconds: per model one row of ours (simulated), one of the paper's (measured)."""
    import pandas as pd

    rows: dict[tuple[str, str], list[str]] = {}
    for model, by_placer in outcomes_by_model.items():
        rows[model, "simulated here"] = [_seconds(by_placer[p].step_s) for p in PLACERS]
        rows[model, "the paper, measured"] = [_seconds(value) for value in paper[model]]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(PLACERS)).set_index(
        pd.MultiIndex.from_tuples(rows, names=["model", "seconds per step"])
    )


def ratio_table(
    outcomes_by_model: dict[str, dict[str, Outcome]], paper: dict[str, Any], base: str = "single"
) -> pandas.DataFrame:
    """Step time over that of `base` minus 1, ours and the paper's, in percent (negative: faster)."""
    import pandas as pd

    rows = {}
    for model, by_placer in outcomes_by_model.items():
        ours = {p: by_placer[p].step_s for p in PLACERS}
        theirs = dict(zip(PLACERS, paper[model], strict=True))
        for who, times in (("simulated here", ours), ("the paper, measured", theirs)):
            rows[model, who] = [_percent(times[p], times[base]) for p in PLACERS]
    index = pd.MultiIndex.from_tuples(rows, names=["model", f"against {base}"])
    return pd.DataFrame(list(rows.values()), index=index, columns=list(PLACERS))


def _seconds(value: float | None) -> str:
    return "out of memory" if value is None else f"{value:.3f}"


def _percent(value: float | None, base: float | None) -> str:
    return "" if value is None or base is None else f"{round(100 * (value / base - 1), 1) + 0.0:+.1f}%"
