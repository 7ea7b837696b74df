"""Registry of passes by name."""

from __future__ import annotations

from ..registry import Registry
from .base import Pass

PASSES: Registry[Pass] = Registry(
    "pass",
    Pass,
    {
        "colocation": "colocation:Colocation",
        "coplacement": "coplacement:CoPlacement",
        "fusion": "fusion:Fusion",
        "forward-only": "forward_only:ForwardOnly",
        "offload": "baechi_lab.memory_saving.offload:Offload",
        "recompute": "baechi_lab.memory_saving.recompute:Recompute",
        "replicate": "replicate:Replicate",
        "unroll": "unroll:Unroll",
    },
    package="baechi_lab.passes",
)


def make_pass(name: str | Pass, /, **params: object) -> Pass:
    """Makes a pass from its name and parameters; a pass object is returned as it is."""
    return PASSES.make(name, params)


def list_passes() -> dict[str, str]:
    """Returns every pass with the first line of its documentation.

    >>> sorted(list_passes())
    ['colocation', 'coplacement', 'forward-only', 'fusion', 'offload', 'recompute', 'replicate', 'unroll']
    """
    return PASSES.lines()
