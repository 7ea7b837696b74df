"""Memory categories as shades of the device's colour, so that a colour always means the same device."""

from __future__ import annotations

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
