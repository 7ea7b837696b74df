"""Shades of the device's colour for categories of memory and phases of pipelines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import MEMORY_CATEGORIES, Timeline

PHASES = ("forward", "backward", "weight gradients")
PHASE_MIX = (("#FFFFFF", 0.45), ("#000000", 0.25), ("#000000", 0.25))
"""Per phase: the colour with which it is mixed, and its share."""
HATCHED = 3
"""The value of `pipeline_phases` for gradients of weights."""

CATEGORY_NAMES = tuple(name if name != "copies" else "received copies" for name in MEMORY_CATEGORIES)
"""Memory categories as legends name them."""
MIX = (("#000000", 0.45), ("#000000", 0.0), ("#FFFFFF", 0.45), ("#FFFFFF", 0.78))
"""Per memory category (persistent, outputs, temporary, copies): the colour with which it is mixed, and its share."""


def mix_colors(color: str, towards: str, share: float) -> str:
    """Mixes `#RRGGBB` with another colour, of which it gets `share`.

    >>> mix_colors("#000000", "#FFFFFF", 0.5)
    '#808080'
    """
    pairs = ((int(color[k : k + 2], 16), int(towards[k : k + 2], 16)) for k in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share + 1e-9):02X}" for a, b in pairs)


def shades(color: str) -> list[str]:
    """Returns one colour per memory category, from dark (persistent) to light (received copies)."""
    return [mix_colors(color, towards, share) for towards, share in MIX]


LEGEND = shades("#8A8A8A")
"""The same shades of grey, for legends."""


def pipeline_phases(timeline: Timeline) -> NDArray[np.uint8] | None:
    """Returns uint8[ops]: 1 + the position in `PHASES`, 0 for ops that run once; None without a pipeline schedule."""
    phase = timeline.phase
    return None if phase is None else np.where(phase <= len(PHASES), phase, 0).astype(np.uint8)


def phase_shades(color: str) -> list[str]:
    """Returns the colour itself and one per phase: light forward, dark backward."""
    return [color, *(mix_colors(color, towards, share) for towards, share in PHASE_MIX)]
