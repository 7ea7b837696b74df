"""The scheduling problem of docs/simulated-time.md as a CP-SAT model.

Variables: x[g, d] "group g is on device d"; the start of every op; per tensor and receiving device the start of its send and
of its receive; where transfers queue, which of two producers ends first. Constraints:

- Devices: an op occupies its device for its duration; no two ops overlap.
- Precedence: an op starts no earlier than each of its inputs arrives: at the producer's end on the same device, otherwise at
  the receive's start plus the cost.
- Transfers (`exact.transfers`): queues serve requests in the order in which their tensors were produced.
- Memory (`exact.memory`): outputs, temporaries and received copies next to the persistent bytes.
- Colocation groups share x; devices that are not allowed are left out.

This is the relaxed model. Ops and transfers may start later than they could, the copies of one tensor may be sent in any
order, and equal devices are numbered in one way only. Its optimum is a lower bound of every schedule. The strict model adds
the simulator's rule that nothing waits without need (`exact.strict_schedule`). Its optimum is the best that any placement and
any order can reach in the simulator.
"""

from __future__ import annotations

from ..problem import memory_may_run_out
from .memory import add_memory
from .strict_schedule import forbid_idling
from .symmetry import devices_are_equal, first_numbering
from .transfers import add_transfer_bounds, add_transfers
from .variables import ExactModel


def build_model(m: ExactModel) -> ExactModel:
    """Adds all variables and constraints to an empty model."""
    m.add_devices()
    m.add_ops()
    add_transfers(m)
    m.add_inputs()
    if m.cluster.n > 1:
        add_transfer_bounds(m)
    if memory_may_run_out(m.graph, m.cluster):
        add_memory(m)
    if m.strict:
        forbid_idling(m)
    elif devices_are_equal(m.graph, m.cluster):
        first_numbering(m)
    m.model.minimize(m.makespan)
    return m
