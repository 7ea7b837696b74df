"""`simple-planner`: one feed-forward network that places every op by itself (Mirhoseini et al. 2018, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .hierarchical import Hierarchical


@dataclass(frozen=True)
class SimplePlanner(Hierarchical):
    """Simple Planner: learns a device for every op by itself, without groups (needs TensorFlow)."""

    name: ClassVar[str] = "simple-planner"
    grouping: str | Sequence[int] = "none"
