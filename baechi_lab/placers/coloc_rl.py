"""`coloc-rl`: a learned placement of groups that names make (Mirhoseini et al. 2017, arXiv:1706.04972).

The Placer network of `hierarchical` on groups by name scope; `grouping=` takes hand-made groups, one number per op.
The original's op embeddings and its asynchronous controllers are not rebuilt: what is compared is the grouping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .hierarchical import Hierarchical


@dataclass(frozen=True)
class ColocRL(Hierarchical):
    """ColocRL: learns to place groups made by name scope or by hand (needs TensorFlow)."""

    name: ClassVar[str] = "coloc-rl"
    grouping: str | Sequence[int] = "scopes"
