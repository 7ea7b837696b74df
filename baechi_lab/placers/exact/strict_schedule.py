"""The strict model: a device that could start an op does so, as in the simulator.

(`exact.transfers` has the same rule for transfers: they start as soon as their queues are free.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .variables import ExactModel

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar


def forbid_idling(m: ExactModel) -> None:
    """If an op on the device was ready before `i` starts, another op must end there when `i` starts."""
    n, model = m.graph.n, m.model
    ready = [_ready(m, i) for i in range(n)]
    for i in range(n):
        follows = [
            m.reason(m.start[i], m.end[j], [m.together(i, j), m.before(j, i)])
            for j in range(n)
            if j != i and not m.after[i, j]
        ]
        packed = m.bool(f"packed{i}")
        model.add_bool_or([*follows, ~packed])
        m.at_one_instant(m.start[i], ready[i], ~packed)
        for k in range(n):
            if k != i and not m.after[k, i]:
                waited = ready[k] + m.times.tolerance >= m.start[i]
                model.add(waited).only_enforce_if([m.together(i, k), m.before(i, k), ~packed])


def _ready(m: ExactModel, i: int) -> IntVar:
    """The time at which all inputs of `i` are on its device."""
    at = m.var(0, m.horizon, f"r{i}")
    if m.arrivals[i]:
        m.model.add_max_equality(at, m.arrivals[i])
    else:
        m.model.add(at == 0)
    m.model.add(m.start[i] >= at)
    return at
