"""How far gradients of micro-batches may be off those of the undivided batch, in both frameworks."""

from __future__ import annotations

GRADIENT_TOLERANCE, HALF_GRADIENT_TOLERANCE = 1e-3, 5e-2
"""Relative difference up to which gradients count as the same: in float32, and where 16 bits take part.

Rounding that flips one of a million ReLUs changes a gradient by 1e-3.
"""
