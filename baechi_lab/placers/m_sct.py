"""m-SCT: Small Communication Times under memory limits (Jeon et al. 2020, doi:10.1145/3419111.3421302, 2.4, 3.1, 3.4, 4).

Scheduling as in `sct.py`; devices without room are left out as in `m_etf.py`. With `K = n M / sum d_i` the makespan is
within `1 + (1 - 1/n) beta + (1 - beta/n) / (K - 1)` of the optimum, `beta = (2 + 2 rho) / (2 + rho)`.

Deviations:

- The rounding threshold is 0.1 as in Jeon et al. 2020, section 4.3. One favourite per op is enforced.
- Above `sct_program.favourites.LARGEST_LP` edges, favourites are chosen without the LP (`info["lp"]["solver"]` is "greedy"), and
  the bound does not hold.
- The LP's optimum is made canonical (`sct_program/solver.py`).
- The LP counts an op's time on its fastest allowed device and transfers over the mean link; the paper's devices are equal.
- Memory and repair are those of m-ETF: a device without room is left out for that op. The paper leaves it out for all later ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .list_scheduling.schedule import schedule
from .memory.feasible import within_memory
from .sct_program.favourites import Favourites, check_threshold, favourites


@dataclass(frozen=True)
class MSCT(Placer):
    """Small Communication Times under memory limits (Jeon et al. 2020): like m-ETF, but favourite children follow their parent.

    Args:
        threshold: up to which share of a transfer the linear program's answer makes a reader the favourite child.
        solver: of the linear program: "highs" (which large graphs do without), or what cvxpy knows, such as "CLARABEL".
        reservation: keep room for the largest temporary and output of a colocation group too, until it has run.
        explain: keep a log of all decisions in `info["decisions"]`.
    """

    name = "m-sct"
    threshold: float = 0.1
    solver: str = "highs"
    reservation: bool = False
    explain: bool = False

    def validate(self) -> None:
        check_threshold(self.threshold)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        favourite_ops, report = favourites_and_report(graph, cluster, self.threshold, self.solver)

        def attempt(limits: Cluster, careful: bool) -> Placement:
            return schedule(
                graph,
                limits,
                child=favourite_ops.child,
                parent=favourite_ops.parent,
                reservation=self.reservation or careful,
                explain=self.explain,
            )

        plan = within_memory(graph, cluster, attempt)
        return plan.replace(info={**plan.info, **report})


def favourites_and_report(
    graph: OpGraph, cluster: Cluster, threshold: float, solver: str
) -> tuple[Favourites, dict[str, object]]:
    """Returns the favourites, and the entries of `Placement.info`.

    These are `lp` (size, seconds and objective of the LP), the number of favourites, and conflicts.
    """
    favourite_ops = favourites(graph, cluster, threshold, solver)
    lp = favourite_ops.solution
    return favourite_ops, {
        "lp": {
            "solver": lp.solver,
            "rows": lp.rows,
            "columns": lp.columns,
            "seconds": lp.seconds,
            "objective_us": lp.objective_us,
        },
        "favourite_child": favourite_ops.child,
        "favourites": int(np.sum(favourite_ops.child >= 0)),
        "conflicts": favourite_ops.conflicts,
    }
