"""Classical SCT, Small Communication Times, on finitely many devices: no memory limits.

Like ETF, but the LP's favourite child of an op is kept for its device: a device whose last op's favourite child is ready
and would start there first stays awake for it, and meanwhile takes only urgent ops, those whose inputs are there
at once on every device (Jeon et al. 2020, section 2.4 after Hanen and Munier 1995, doi:10.1109/ETFA.1995.496763). Within
`1 + (1 - 1/n) (2 + 2 rho) / (2 + rho)` of the optimum under the SCT assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .list_scheduling.schedule import schedule
from .m_sct import favourites_and_report
from .sct_program.favourites import check_threshold


@dataclass(frozen=True)
class SCT(Placer):
    """Classical Small Communication Times, blind to memory (for teaching; `m-sct` is the one to use).

    Args:
        threshold: up to which share of a transfer the linear program's answer makes a reader the favourite child.
        solver: of the linear program: "highs", or what cvxpy knows, such as "CLARABEL".
        explain: keep a log of all decisions in `info["decisions"]`.
    """

    name = "sct"
    uses_memory = False
    threshold: float = 0.1
    solver: str = "highs"
    explain: bool = False

    def validate(self) -> None:
        check_threshold(self.threshold)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        favourite_ops, report = favourites_and_report(graph, cluster, self.threshold, self.solver)
        plan = schedule(
            graph,
            cluster,
            child=favourite_ops.child,
            parent=favourite_ops.parent,
            memory_limits=False,
            explain=self.explain,
        )
        return plan.replace(info={**plan.info, **report})
