"""Registry of placers: built-in ones and those of other packages (entry-point group `baechi_lab.placers`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry import Registry
from .base import Placer

PLACERS: Registry[Placer] = Registry(
    "placer",
    Placer,
    {
        "single": "single:Single",
        "m-topo": "m_topo:MTopo",
        "m-etf": "m_etf:METF",
        "m-sct": "m_sct:MSCT",
        "etf": "etf:ETF",
        "sct": "sct:SCT",
        "post-adjusted": "post_adjusted:PostAdjusted",
        "heft": "heft:HEFT",
        "hash": "hash_partition:Hash",
        "batch-split": "batch_split:BatchSplit",
        "critical-path": "critical_path:CriticalPath",
        "mite": "mite:Mite",
        "dfs": "dfs:Dfs",
        "expert": "baechi_lab.models.expert_placer:Expert",
        "contiguous": "contiguous:Contiguous",
        "ideals": "ideals:Ideals",
        "metis": "metis:Metis",
        "random": "random_placement:Random",
        "cpu-only": "cpu_only:CpuOnly",
        "gpu-only": "gpu_only:GpuOnly",
        "scotch": "scotch:Scotch",
        "hierarchical": "hierarchical:Hierarchical",
        "simple-planner": "simple_planner:SimplePlanner",
        "coloc-rl": "coloc_rl:ColocRL",
        "search": "search.placer:Search",
        "auto": "auto:Auto",
        "exact": "exact.placer:Exact",
    },
    package="baechi_lab.placers",
    group="baechi_lab.placers",
)

placer_class = PLACERS.find


def placer_names() -> list[str]:
    """Returns all registered names, sorted."""
    return sorted(PLACERS.names())


def make_placer(placer: str | Placer, /, **params: object) -> Placer:
    """Makes a placer from its name and parameters; a placer object is returned as it is."""
    return PLACERS.make(placer, params)


def pipeline_parameters(placer: str, pipeline: Mapping[str, Any]) -> dict[str, object]:
    """Returns the arguments in `pipeline` that `placer` has as parameters, for a step of micro-batches.

    `pipeline` holds arguments of `bl.simulate` (`micro_batches`, `schedule`); `objective` becomes "step". Without a schedule
    the placer minimises the step without one, as it will be simulated.

    >>> pipeline_parameters("contiguous", {"micro_batches": 4}), pipeline_parameters("m-etf", {"micro_batches": 4})
    ({'objective': 'step', 'schedule': None, 'micro_batches': 4}, {})
    """
    fields = placer_class(placer).__dataclass_fields__
    parameters = (
        {"objective": "step", "schedule": None, **pipeline} if pipeline.get("micro_batches", 1) > 1 else pipeline
    )
    return {key: value for key, value in parameters.items() if key in fields}


def list_placers() -> dict[str, str]:
    """Returns every registered placer with the first line of its documentation.

    >>> list_placers()["m-topo"]
    'Fill devices in topological order up to a balanced memory cap (strawman of Jeon et al. 2020).'
    """
    return dict(sorted(PLACERS.lines().items()))
