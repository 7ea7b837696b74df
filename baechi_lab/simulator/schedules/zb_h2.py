"""`zb-h2`: no bubble but the pipeline's filling, for twice the activations (Qi et al. 2023, arXiv:2401.10241, section 2.3).

Stage s of p begins with 2 (p - 1 - s) forwards instead of p - 1 - s and does a W 2 s micro-batches after its B, so that every
device holds at most 2 p - 1 activations. With F = B = W and free transfers no device waits between its first and its last unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from .zb_h1 import ZbH1


@dataclass(frozen=True)
class ZbH2(ZbH1):
    """Twice the forwards ahead of zb-h1: no device waits between its first and last unit, for 2 p - 1 activations."""

    name = "zb-h2"
    _ahead = 2
