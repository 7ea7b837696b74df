"""Placers by name: the built-in ones, and those that other packages add (entry-point group `baechi_lab.placers`)."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from ..errors import InvalidInput, UnknownNameError
from .base import Placer

BUILT_IN = {
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
    "expert": "expert:Expert",
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
    "search": "search.rule:Search",
    "auto": "auto:Auto",
    "exact": "exact.rule:Exact",
}
"""Name -> module:class below `baechi_lab.placers`; imported on first use, so that listing a name costs nothing."""


@cache
def _installed() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group="baechi_lab.placers")}


def placer_names() -> list[str]:
    """All registered names."""
    return sorted({*BUILT_IN, *_installed()})


def placer_class(name: str) -> type[Placer]:
    """The class registered under `name`; `UnknownNameError` suggests the nearest."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Placer] = getattr(importlib.import_module(f"baechi_lab.placers.{module}"), attribute)
        return found
    if name in _installed():
        loaded: type[Placer] = _installed()[name].load()
        return loaded
    raise UnknownNameError.of("placer", name, placer_names())


def make_placer(placer: str | Placer, **params: Any) -> Placer:
    """The parameter object for a name and its parameters, validated; an object passes through."""
    if isinstance(placer, Placer):
        if params:
            raise InvalidInput(f"parameters {sorted(params)} given beside a placer object; put them into the object")
        made = placer
    else:
        cls = placer_class(str(placer))
        known = cls.__dataclass_fields__
        for key in params:
            if key not in known:
                raise UnknownNameError.of(f"parameter of placer {cls.name!r}:", key, known)
        made = cls(**params)
    made.validate()
    return made


def list_placers() -> dict[str, str]:
    """Every registered placer with its one line.

    >>> list_placers()["m-topo"]
    "Fill devices in topological order up to a balanced memory cap (paper B's strawman)."
    """
    return {name: (placer_class(name).__doc__ or "").strip().splitlines()[0] for name in placer_names()}
