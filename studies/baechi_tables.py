"""What Jeon et al. 2020 published (Baechi, SoCC), for comparison only: nothing here enters a computation.

Step times in seconds, measured by its authors on four RTX 2080 of 8 GB; None where they ran out of memory.
"""

from __future__ import annotations

PLACERS = ("single", "expert", "m-topo", "m-etf", "m-sct")

TABLE_2 = {
    "inception_v3": {"HierarchicalRL": "11 h 50 min", "Placeto": "1 h 49 min", "m-SCT": "1 to 10 s"},
    "gnmt": {"HierarchicalRL": "1 d 21 h 14 min", "Placeto": "2 d 20 h 40 min", "m-SCT": "1.2 to 48 s"},
}
"""Placement time."""

TABLE_3 = {
    "inception_v3-batch32": (0.269, 0.269, 0.286, 0.269, 0.269),
    "inception_v3-batch64": (0.491, 0.491, 0.521, 0.491, 0.491),
    "gnmt-length40-batch128": (0.251, 0.214, 0.265, 0.224, 0.212),
    "gnmt-length40-batch256": (0.474, 0.376, 0.481, 0.354, 0.369),
    "gnmt-length50-batch128": (0.319, 0.259, 0.348, 0.264, 0.267),
    "gnmt-length50-batch256": (0.618, 0.484, 0.609, 0.502, 0.516),
}
"""Step seconds with 8 GB per device, in the order of `PLACERS`."""

TABLE_4 = {
    "inception_v3-batch32": (None, None, 0.690, 0.312, 0.292),
    "gnmt-length40-batch128": (None, 0.221, 0.272, 0.230, 0.212),
}
"""Step seconds with 2.4 GB per device (30%), in the order of `PLACERS`."""

TABLE_5 = {
    "inception_v3-batch32": ((6884, 68.0, 0.302), (17, 0.9, 0.269)),
    "gnmt-length40-batch128": ((18050, 275.1, 0.580), (542, 1.2, 0.212)),
    "gnmt-length50-batch128": ((22340, 406.1, 0.793), (706, 2.4, 0.267)),
}
"""m-SCT without and with the optimizations: operators to place, placement seconds, step seconds."""
