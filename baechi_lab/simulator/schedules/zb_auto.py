"""`zb-auto`: an order for the stages' own durations, within the devices' memory (after Qi et al. 2023, arXiv:2401.10241,
section 3.1).

It is a list schedule over all devices at once. A free device does the first of these that it can:

- a B that is there, or will be there within `hold` times the duration of an F;
- an F that is there and fits into memory;
- while it waits for one of these, the oldest W that is left, if the wait is at least `patience` times as long as that W, or
  if only a W makes room.

The result depends on `hold`, `patience` and how many forwards a device may be ahead, and no value is best everywhere. First
the same values on all devices are tried, then another patience on the last devices and for the last `tail` micro-batches, then
changes of one device, and of a few at random with a fixed seed. The cost is the length of the step plus the longest time from
the first to the last unit of a device, as in the paper, where steps overlap. The orders of zb-h1 and zb-h2 compete where memory
admits them.

The paper's search orders the same choices by three yes-or-no rules, and adds an integer program that is not used here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Floats, Ints
from ...graph.kernels.jit import njit
from .base import Orders, ScheduleRule, Setting
from .zb_h1 import ZbH1
from .zb_h2 import ZbH2

PATIENCE = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, np.inf)
HOLD = (0.0, 0.1)
TAIL = (0, 2, 4)
"""Values of the parameters that are tried; see `_Tuning`."""
_WORK, _TRIES = 20_000_000, 1500
"""Units times devices, and orders, that are planned at most after those with equal patience."""


@dataclass(frozen=True)
class ZbAuto(ScheduleRule):
    """An order found for the stages' durations within the devices' memory, gradients of weights as filling."""

    name = "zb-auto"
    splits = True

    def orders(self, setting: Setting) -> Orders:
        if setting.stages == 0 or setting.micro_batches == 0:
            return [[] for _ in range(setting.devices)]
        return min(_candidates(setting), key=lambda candidate: candidate[0])[1]


def _candidates(setting: Setting) -> Iterator[tuple[float, Orders]]:
    """Yields the time of a step and its orders: of two rules where they fit the memory, then of the best parameters found."""
    costs = np.zeros((8, setting.stages))
    costs[:3] = setting.forward_us, setting.input_us, setting.weight_us
    costs[3:5, :-1] = setting.send_us, setting.return_us
    costs[5:] = setting.held_bytes, setting.kept_bytes, setting.room_bytes
    line, zero, batch_count = _Line(setting.micro_batches, costs), np.zeros(setting.stages), setting.micro_batches
    default_tuning = _Tuning(zero, zero, np.full(setting.stages, batch_count))
    for rule in (ZbH1(), ZbH2()):
        orders = rule.orders(setting)
        if _fits(setting, orders):
            yield _evaluate(line, default_tuning, _codes(orders))[0], orders
    # The best common choice of parameters for all devices, then changes of one device, then of several at random.
    p, batches = line.costs.shape[1], line.batches
    from_end = p - 1 - np.arange(p)
    aheads = [np.full(p, batches), 2 * from_end + 1, 2 * from_end + 2, from_end + 1]
    common_tunings = [
        _Tuning(np.full(p, patience), np.full(p, hold), ahead)
        for ahead in aheads
        for patience in PATIENCE
        for hold in HOLD
    ]
    best = sorted(((_evaluate(line, candidate)[0], k) for k, candidate in enumerate(common_tunings)))[:5]
    halves = [
        _Tuning(
            np.where(np.arange(p) < k, common_tunings[i].patience, patience),
            common_tunings[i].hold,
            common_tunings[i].ahead,
            tail,
        )
        for (_, i), k, patience, tail in itertools.product(best, range(p), PATIENCE, TAIL)
    ]
    cost_and_tuning_of_halves = ((_evaluate(line, candidate)[0], candidate) for candidate in halves)
    cost, tuning = min(cost_and_tuning_of_halves, key=lambda cost_and_tuning: cost_and_tuning[0])
    rng = np.random.default_rng(0)
    for k in range(0 if p == 1 else min(_WORK // (3 * batches * p * p) + 1, _TRIES)):
        changed_tuning = tuning
        for d in [k % p] if k < 2 * p * len(PATIENCE) else rng.integers(0, p, rng.integers(1, 4)).tolist():
            ahead = int(changed_tuning.ahead[d] + rng.integers(-1, 2))
            changed_tuning = changed_tuning.on(d, rng.choice(PATIENCE), rng.choice(HOLD), ahead)
        changed_cost = _evaluate(line, changed_tuning)[0]
        if changed_cost < cost * (1 - 1e-12):
            cost, tuning = changed_cost, changed_tuning
    cost, code = _evaluate(line, tuning)
    yield cost, _orders(code)


class _Line(NamedTuple):
    """The pipeline that is ordered: the number of micro-batches, and the costs of its p stages.

    `costs` float64[8, p] has rows for the microseconds of F, B and W, of sending to the next stage and to the one before, then
    for the bytes held after F, those still held after B, and the memory for them.
    """

    batches: int
    costs: Floats


@dataclass(frozen=True, eq=False)
class _Tuning:
    """The parameters of each device, [p] each, see the module's text; `ahead`: most forward passes before their Bs."""

    patience: Floats
    hold: Floats
    ahead: Ints
    tail: int = 0

    def on(self, device: int, patience: float, hold: float, ahead: int) -> _Tuning:
        """Returns the parameters changed on one device."""
        choice = _Tuning(self.patience.copy(), self.hold.copy(), self.ahead.copy(), self.tail)
        choice.patience[device], choice.hold[device], choice.ahead[device] = patience, hold, max(ahead, 1)
        return choice


def _fits(setting: Setting, orders: Orders) -> bool:
    """Whether the activations of these orders fit into every device's memory for them."""
    for s, order in enumerate(orders):
        change = {
            "F": setting.held_bytes[s],
            "B": setting.kept_bytes[s] - setting.held_bytes[s],
            "W": -setting.kept_bytes[s],
        }
        level = np.cumsum([change[kind] for _, kind, _ in order])
        if level.max(initial=0.0) > setting.room_bytes[s]:
            return False
    return True


def _codes(orders: Orders) -> NDArray[np.int8]:
    """Returns int8[p, 3 M]: 0, 1, 2 for F, B, W, as `_plan` follows them."""
    return np.array([["FBW".index(kind) for _, kind, _ in order] for order in orders], dtype=np.int8)


def _evaluate(
    line: _Line, choice: _Tuning, fixed_order: NDArray[np.int8] | None = None
) -> tuple[float, NDArray[np.int8]]:
    """Returns the cost in microseconds and int8[p, 3 M] kinds of one list schedule, or of an order that is `fixed_order`."""
    patience, hold, ahead, tail = choice.patience, choice.hold, choice.ahead.astype(np.int64), choice.tail
    fixed_order = np.zeros((0, 0), dtype=np.int8) if fixed_order is None else fixed_order
    code, first, last = _plan(line.batches, line.costs, patience, hold, ahead, tail, fixed_order)
    return float(last.max() + (last - first).max()), code


def _orders(code: NDArray[np.int8]) -> Orders:
    """Returns the orders of int8[p, 3 M] kinds."""
    orders: Orders = []
    for s, kinds in enumerate(code.tolist()):
        count = [0, 0, 0]
        orders.append([])
        for k in kinds:
            orders[s].append((s, "FBW"[k], count[k]))
            count[k] += 1
    return orders


@njit(cache=True)
def _plan(
    count: int, costs: Floats, patience: Floats, hold: Floats, ahead: Ints, tail: int, fixed_order: NDArray[np.int8]
) -> tuple[NDArray[np.int8], Floats, Floats]:
    """Returns int8[p, 3 M] kinds in order, and float64[p] start of the first and end of the last unit per device.

    `count` and `costs` are those of a `_Line`, the next four those of a `_Tuning`; `fixed_order` int8[p, 3 M], or empty.
    """
    forward, inputs, weights, send = costs[0], costs[1], costs[2], costs[3]
    backward_us, held_bytes, weight_bytes, capacity = costs[4], costs[5], costs[6], costs[7]
    p = len(forward)
    code = np.zeros((p, 3 * count), np.int8)
    done_counts = np.zeros((p, 3), np.int64)  # Fs, Bs, Ws
    end = np.full((2, p, count), np.inf)  # of every F and B
    free, first, level = np.zeros(p), np.zeros(p), np.zeros(p)
    for _ in range(3 * p * count):
        best, best_start, best_kind = -1, np.inf, 0
        for s in range(p):
            f, b, w = done_counts[s]
            done_total = f + b + w
            if done_total == 3 * count:
                continue
            at_f = at_b = np.inf
            if f < count:
                at_f = 0.0 if s == 0 else end[0, s - 1, f] + send[s - 1]
            if b < f:
                at_b = end[0, s, b] if s == p - 1 else max(end[0, s, b], end[1, s + 1, b] + backward_us[s])
            now_us = free[s]
            if len(fixed_order):
                kind = fixed_order[s, done_total]
                start = (
                    max(now_us, at_f) if kind == 0 else max(now_us, at_b) if kind == 1 else now_us if w < b else np.inf
                )
            else:
                full = level[s] + held_bytes[s] > capacity[s] and f > w  # one micro-batch is always let in
                if full or f - b >= ahead[s]:
                    at_f = np.inf
                soon = min(max(at_f, now_us), max(at_b, now_us))
                prefers = max(at_b, now_us) <= max(at_f, now_us) + hold[s] * forward[s]
                kind, start = (1, max(at_b, now_us)) if prefers else (0, max(at_f, now_us))
                # Stage s + 1 has not begun its B, so the earliest end of that B is estimated.
                waits = b < f and s < p - 1 and at_b == np.inf
                if waits:
                    soon = min(soon, max(free[s + 1] + inputs[s + 1] + backward_us[s], now_us))
                enough = patience[s] if b < count - tail else max(patience[s], 1.0)
                idle = b == count or (soon - now_us >= enough * weights[s] and enough < np.inf)
                if w < b and start > now_us and (full or idle):
                    kind, start = 2, now_us
            if start < best_start:
                best, best_start, best_kind = s, start, kind
        if best < 0:  # a given order that blocks itself
            free[:] = np.inf
            break
        s = best
        if first[s] == 0.0 and done_counts[s].sum() == 0:
            first[s] = best_start
        code[s, done_counts[s].sum()] = best_kind
        duration_us = forward[s] if best_kind == 0 else inputs[s] if best_kind == 1 else weights[s]
        free[s] = best_start + duration_us
        level[s] += (
            held_bytes[s] if best_kind == 0 else weight_bytes[s] - held_bytes[s] if best_kind == 1 else -weight_bytes[s]
        )
        if best_kind < 2:
            end[best_kind, s, done_counts[s, best_kind]] = free[s]
        done_counts[s, best_kind] += 1
    return code, first, free
