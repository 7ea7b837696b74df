"""Categories of memory and phases of pipelines as shades of the device's colour: a colour always means the same device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import Timeline

PHASES = ("forward", "backward", "weight gradients")
PHASE_MIX = (("#FFFFFF", 0.45), ("#000000", 0.25), ("#000000", 0.25))
"""Per phase: towards which colour, and how far."""
HATCHED = 3
"""Of `pipeline_phases`: weight gradients."""

MIX = (("#000000", 0.45), ("#000000", 0.0), ("#FFFFFF", 0.45), ("#FFFFFF", 0.78))
"""Per memory category (persistent, outputs, temporary, copies): towards which colour, and how far."""


def mixed(color: str, towards: str, share: float) -> str:
    """`#RRGGBB` moved `share` of the way to another.

    >>> mixed("#000000", "#FFFFFF", 0.5)
    '#808080'
    """
    pairs = ((int(color[k : k + 2], 16), int(towards[k : k + 2], 16)) for k in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share + 1e-9):02X}" for a, b in pairs)


def shades(color: str) -> list[str]:
    """One colour per memory category, from dark (persistent) to light (received copies)."""
    return [mixed(color, towards, share) for towards, share in MIX]


LEGEND = shades("#8A8A8A")
"""The same shades of grey, for legends."""


def pipeline_phases(timeline: Timeline) -> NDArray[np.uint8] | None:
    """uint8[ops]: 1 + the position in `PHASES`, 0 for what is done once. None for a timeline without a pipeline schedule."""
    phase = timeline.info.get("phase")
    if phase is None:
        return None
    number = np.asarray(phase)  # as `bl.simulate` says: 0 before all micro-batches, 4 after them
    return np.where(number <= len(PHASES), number, 0).astype(np.uint8)


def phase_shades(color: str) -> list[str]:
    """The colour itself and one per phase: light forward, dark backward."""
    return [color, *(mixed(color, towards, share) for towards, share in PHASE_MIX)]
