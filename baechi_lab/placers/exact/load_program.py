"""The largest load of an assignment as a CP-SAT model: the period of endless micro-batches, and a bound on steps.

Variables: x[u, d] "unit u is on device d"; z[t, s, d] "tensor t goes from s to d". Constraints:

- Every unit is on one device that may run it. Persistent bytes fit.
- z[t, s, d] holds if t's producer is on s and a reader on d.
- The period is at least every load: compute with message overheads, queues by the communication mode, or their sum.

For a step the work is that of all micro-batches. A device does its work after the earliest start of one of its units (`head`)
and before the least time that follows one of them (`tail`); both are longest paths with free transfers. Where a schedule
needs a chain of pipeline stages, devices are in a line along which the forward tensors run. The optimum is a lower bound of
every step under every schedule (`simulator.bounds.pipeline`, `device-load`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, durations
from ...graph.kernels.csr import grouped_sum
from ...passes.roles import FORWARD, roles
from ...passes.unroll import unroll
from ...simulator.paths import heads_and_tails
from ...simulator.schedules import Schedule, is_schedule_text, make_rule
from ..pipeline_stages.device_chain import PARALLEL, SEQUENTIAL, SUM
from ..pipeline_stages.device_loads import LoadModel, load_model
from ..pipeline_stages.objective import Objective
from ..problem import devices_are_equal

if TYPE_CHECKING:
    from types import ModuleType

    from ortools.sat.python.cp_model import CpSolver, LinearExprT, LiteralT

FINE = 10**8
"""Model units in the horizon. Rounding down loses less than a millionth of a bound with a hundred terms."""


def load_request(graph: OpGraph, cluster: Cluster, objective: Objective, within_us: float) -> dict[str, Any]:
    """Returns the request for the solver.

    Times are whole numbers of model units, rounded down; `scale` is units per microsecond.
    """
    m = load_model(graph, cluster, sum=objective.sum and objective.name == "throughput")
    scale = FINE / max(within_us, 1e-9)
    times = lambda us: np.floor(np.asarray(us) * scale + 1e-6).astype(np.int64).tolist()  # noqa: E731
    count = objective.micro_batches if objective.name == "step" else 1
    cost = m.latency[None] + m.per_byte[None] * m.size[:, None, None]
    transfer_count = np.full(len(m.producer), count) if count == 1 else _transfer_counts(graph, m, count)
    request = {
        "scale": scale,
        "work": times(m.work),
        "allowed": m.allowed.tolist(),
        "limit": m.limit.tolist(),
        "persistent_bytes": m.persistent_bytes.tolist(),
        "producer": m.producer.tolist(),
        "cost": times(cost * transfer_count[:, None, None]),
        "overhead": times(m.overhead[None] * transfer_count[:, None, None]),
        "rule": int(m.rule),
        "readers": [m.reader[a:b].tolist() for a, b in zip(m.reader_ptr[:-1], m.reader_ptr[1:], strict=True)],
        "head": [0] * len(m.persistent_bytes),
        "tail": [0] * len(m.persistent_bytes),
        "chain": [],
        "equal": devices_are_equal(graph, cluster),
    }
    return request if objective.name != "step" else request | _step_request(graph, cluster, objective, m, times)


def _transfer_counts(graph: OpGraph, m: LoadModel, count: int) -> NDArray[np.int64]:
    """Returns the least number of times that each tensor is sent per step.

    It is 1 for ops that run once and for gradients that are summed.
    """
    once = np.array([t >= 0 for t in unroll(graph, 1).micro_batch])  # type: ignore[union-attr]
    crossing = m.unit[graph.edge_source] != m.unit[graph.consumers]
    always = np.ones(graph.tensor_count, dtype=np.bool_)
    every = once[graph.edge_source] & once[graph.consumers]
    always[graph.edge_tensor[crossing & ~every]] = False
    tensors = np.unique(graph.edge_tensor[crossing])
    tensors = tensors[np.argsort(m.unit[graph.tensor_producer[tensors]], kind="stable")]
    return np.where(always[tensors], count, 1)


def _step_request(
    graph: OpGraph, cluster: Cluster, objective: Objective, m: LoadModel, times: Callable[[object], list[object]]
) -> dict[str, object]:
    """Returns the work of all micro-batches, time before and after it, and the pairs of units that pipeline stages order."""
    unrolled_graph = unroll(graph, objective.micro_batches)
    unit, count = m.unit[unrolled_graph.copy_of], len(m.persistent_bytes)
    table = durations(unrolled_graph, cluster)
    work = grouped_sum(table, unit, count)
    head, tail = heads_and_tails(unrolled_graph, table.min(axis=1))
    least = [np.full(count, np.inf), np.full(count, np.inf)]
    for earliest, path in zip(least, (head, tail), strict=True):
        np.minimum.at(earliest, unit, path)
    schedule = objective.schedule
    is_rule = schedule is not None and not isinstance(schedule, Schedule) and not is_schedule_text(schedule)
    pairs: list[list[int]] = []
    if is_rule and make_rule(schedule).shape == "chain":
        ahead = (roles(graph) == FORWARD)[graph.edge_source] & (roles(graph) == FORWARD)[graph.consumers]
        pair = np.stack([m.unit[graph.edge_source], m.unit[graph.consumers]], axis=1)[ahead]
        pairs = np.unique(pair[pair[:, 0] != pair[:, 1]], axis=0).tolist()
    return {"work": times(work), "head": times(least[0]), "tail": times(least[1]), "chain": pairs}


class LoadProgram:
    """The CP-SAT model of a request, without the `forbidden` assignments."""

    def __init__(self, cp_model: ModuleType, request: dict[str, Any]):
        self.r, self.model = request, cp_model.CpModel()
        work = request["work"]
        self.units, self.devices = len(work), len(request["limit"])
        horizon = request["horizon"]
        self.period = self.model.new_int_var(min(request["lowest"], horizon), horizon, "period")
        r, model = self.r, self.model
        self.x = [[model.new_bool_var(f"x{u},{d}") for d in range(self.devices)] for u in range(self.units)]
        for u, row in enumerate(self.x):
            model.add_exactly_one(row)
            for d, literal in enumerate(row):
                if not r["allowed"][u][d]:
                    model.add(literal == 0)
                if r["equal"] and d:  # one numbering of equal devices is enough
                    model.add_bool_or([*(self.x[v][d - 1] for v in range(u)), ~literal])
        for d in range(self.devices):
            model.add(sum(b * self.x[u][d] for u, b in enumerate(r["persistent_bytes"]) if b) <= r["limit"][d])
        self.sends: list[tuple[int, int, int, LiteralT]] = []  # tensor, from, to, literal
        for t, (producer, readers) in enumerate(zip(self.r["producer"], self.r["readers"], strict=True)):
            for s, d in permutations(range(self.devices), 2):
                literal = self.model.new_bool_var(f"z{t},{s},{d}")
                for v in readers:
                    self.model.add_bool_or([~self.x[producer][s], ~self.x[v][d], literal])
                self.sends.append((t, s, d, literal))
        for d in range(self.devices):
            compute = sum(r["work"][u][d] * self.x[u][d] for u in range(self.units))
            compute += sum(r["overhead"][t][s][e] * z for t, s, e, z in self.sends if d in (s, e))
            outgoing = [(t, r["cost"][t][s][e], z) for t, s, e, z in self.sends if s == d]
            receive_time = sum(r["cost"][t][s][e] * z for t, s, e, z in self.sends if e == d)
            if r["rule"] == SUM:
                total = compute + receive_time
                for t in sorted({t for t, _, _ in outgoing}):  # a tensor is charged once, for its most expensive link
                    tensor_sends = [(c, z) for k, c, z in outgoing if k == t]
                    largest_cost = model.new_int_var(0, max(c for c, _ in tensor_sends), "")
                    for c, z in tensor_sends:
                        model.add(largest_cost >= c * z)
                    total += largest_cost
                model.add(total <= self.period)
                continue
            out = sum(c * z for _, c, z in outgoing)
            model.add(compute + self._waits(d, horizon) <= self.period)
            if r["rule"] == SEQUENTIAL:
                model.add(out + receive_time <= self.period)
            elif r["rule"] != PARALLEL:
                model.add(out <= self.period)
                model.add(receive_time <= self.period)
        self._chain()
        for assignment in request["forbidden"]:
            self.model.add_bool_or([~self.x[u][d] for u, d in enumerate(assignment)])
        self.model.minimize(self.period)

    def _waits(self, d: int, horizon: int) -> LinearExprT:
        """Returns the least head and tail of the units on the device; 0 if it has none."""
        if not any(self.r["head"]) and not any(self.r["tail"]):
            return 0
        model, used, total = self.model, self.model.new_bool_var(f"used{d}"), 0
        for row in self.x:
            model.add_implication(row[d], used)
        for path in (self.r["head"], self.r["tail"]):
            least = model.new_int_var(0, horizon, "")
            for level in sorted(set(path))[1:]:
                nobody = [~self.x[u][d] for u in range(self.units) if path[u] < level]
                model.add(least >= min(level, horizon)).only_enforce_if([*nobody, used])
            total += least
        return total

    def _chain(self) -> None:
        """Puts the devices in a line, along which these units follow each other."""
        if not self.r["chain"]:
            return
        model = self.model
        place = [self.model.new_int_var(0, self.devices - 1, f"place{d}") for d in range(self.devices)]
        model.add_all_different(place)
        after = {}
        for a, b in permutations(range(self.devices), 2):
            if a < b:
                after[a, b] = model.new_bool_var("")
                after[b, a] = ~after[a, b]
                model.add(place[a] < place[b]).only_enforce_if(after[a, b])
                model.add(place[a] > place[b]).only_enforce_if(~after[a, b])
        for u, v in self.r["chain"]:
            for a, b in permutations(range(self.devices), 2):
                model.add_bool_or([~self.x[u][a], ~self.x[v][b], after[a, b]])

    def unit_devices(self, solver: CpSolver) -> list[int]:
        """Returns the device of every unit in a solution."""
        return [max(range(self.devices), key=lambda d: solver.boolean_value(row[d])) for row in self.x]
