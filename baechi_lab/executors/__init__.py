"""Stage 5: running a placed step on real devices and measuring it. TensorFlow is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from ..workers.client import Worker
    from .dispatch import execute
    from .statistics import compare_rounds, interleaved, summarize
    from .tensorflow.cluster import LocalCluster
    from .tensorflow.execution import StepResult
    from .tensorflow.links import measure_cluster, measure_link, measure_links
    from .tensorflow.placed_step import PlacedStep, apply
    from .tensorflow.secret import make_secret
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "LocalCluster",
    "PlacedStep",
    "StepResult",
    "Worker",
    "apply",
    "compare_rounds",
    "execute",
    "interleaved",
    "make_secret",
    "measure_cluster",
    "measure_link",
    "measure_links",
    "summarize",
]
