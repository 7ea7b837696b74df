"""Stage 4: simulating a placement. One event-driven simulator defines the cost for every placer and picture.

What a simulated microsecond means is defined in docs/simulated-time.md.
"""

from .bounds import Bounds
from .ranks import critical_path, downward_rank, total_rank, upward_rank
from .ratios import Ratios, ratios
from .robustness import Robustness, robustness
from .simulation import makespan_and_peak, simulate, simulate_step
from .throughput import Throughput, throughput
from .validity import check

__all__ = [
    "Bounds",
    "Ratios",
    "Robustness",
    "Throughput",
    "check",
    "critical_path",
    "downward_rank",
    "makespan_and_peak",
    "ratios",
    "robustness",
    "simulate",
    "simulate_step",
    "throughput",
    "total_rank",
    "upward_rank",
]
