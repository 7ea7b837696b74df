"""Stages: the pipeline that a placement makes of a graph, and which ops are F, B and W of which stage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph
from ..graph.kernels.csr import offsets
from ..passes.roles import BACKWARD, FORWARD, SETUP, roles

START, F, B, W, END = range(5)
"""Parts of a step: what runs once before all micro-batches, forward, gradient of inputs, of weights, what runs last."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Stages:
    """`device` int32[S], the cluster's device of each stage, first to last; `stage` int32[n] and `part` int8[n] per op.

    Ops of parts `START` and `END` belong to no stage (-1) and run once, or, for END, after all else on their device.
    `line` int32[S]: the device counted along the pipeline, by first stage.
    """

    device: NDArray[Any]
    stage: NDArray[Any]
    part: NDArray[Any]

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.device)

    @property
    def line(self) -> NDArray[np.int32]:
        """int32[S]: which device of the pipeline holds each stage."""
        seen: dict[int, int] = {}
        return np.array([seen.setdefault(d, len(seen)) for d in self.device.tolist()], dtype=np.int32)

    @property
    def training(self) -> bool:
        """Is there a backward pass?"""
        return bool(np.any((self.part == B) | (self.part == W)))


def stages_of(graph: OpGraph, cluster: Cluster, device: NDArray[np.int32], shape: str = "chain") -> Stages:
    """The stages that `device` int32[n] makes of one micro-batch's graph.

    `shape` "chain" has one stage per device: forward tensors must lead from stage to stage in one direction. "loop" and
    "v" have several: a forward op belongs to the earliest stage of its device that is no earlier than those of what it
    reads, where stage k is on device k mod p ("loop"), or on k and then back ("v", two each, the device at the turn
    divided into halves of its work); inputs, such as labels, are in the stage that reads them. Devices are counted in the
    order in which the forward pass reaches them. A backward op is in the stage of its forward op, or else in the last one
    of its device that is no later than those of what it reads.

    B are the backward ops that another stage waits for, directly or not; W the others. In a stage for which nobody waits (the
    first), B is what another would wait for if there were one: the ops that the first layer's gradients are
    computed from, and the first of these where it feeds no update. A backward op that reads from an earlier stage (the sum of
    a shared weight's gradients) runs at the END; so do updates.

    Raises:
        InvalidInput: an edge turns back, so the stages form no pipeline; the message names it.

    >>> graph = OpGraph.from_edges([1, 2, 4, 2], [(0, 1, 8), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, 0])
    >>> found = stages_of(graph, Cluster.uniform(2), np.array([0, 1, 1, 0]))
    >>> found.stage.tolist(), found.part.tolist() == [F, F, B, B]
    ([0, 1, 1, 0], True)
    """
    work = _Work(graph, cluster, device)
    if shape == "chain" or (shape == "loop" and work.is_chain()):
        stage, homes = work.chain()
    else:
        stage, homes = work.rounds(shape)
    return Stages(homes.astype(np.int32), *_parts(work, stage))


class _Work:
    """The edges of one micro-batch, forward and backward."""

    def __init__(self, graph: OpGraph, cluster: Cluster, device: NDArray[np.int32]):
        self.graph, self.cluster, self.device = graph, cluster, device
        self.role = roles_in_stages(graph)
        source, reader = graph.edge_source, graph.consumers
        self.forward, self.backward = self.role == FORWARD, self.role == BACKWARD
        self.ahead = np.flatnonzero(self.forward[source] & self.forward[reader])
        self.back = np.flatnonzero(self.backward[source] & self.backward[reader])
        self.used = np.unique(device[self.forward | self.backward])

    def turned(self, edge: int, stage: NDArray[Any], what: str) -> InvalidInput:
        """The error for an edge that turns back."""
        graph = self.graph
        ends = [int(graph.edge_source[edge]), int(graph.consumers[edge])]
        text = [f"{graph.names[i]!r} (stage {stage[i]}, {self.cluster.names[self.device[i]]})" for i in ends]
        return InvalidInput(
            f"the stages of this placement form no pipeline: the {what} tensor "
            f"{graph.tensor_label(int(graph.edge_tensor[edge]))!r} turns back from {text[0]} to {text[1]}"
        )

    def _quotient(self, lonely: set[int]) -> list[set[int]]:
        """Per device the devices that it sends forward tensors to; `lonely` ones stand where their gradients flow."""
        graph, after = self.graph, [set[int]() for _ in range(self.cluster.n)]
        a, b = self.device[graph.edge_source[self.ahead]], self.device[graph.consumers[self.ahead]]
        for x, y in np.unique(np.stack([a, b], axis=1)[a != b], axis=0).tolist():
            after[x].add(y)
        if lonely:
            a, b = self.device[graph.edge_source[self.back]], self.device[graph.consumers[self.back]]
            for x, y in np.unique(np.stack([a, b], axis=1)[a != b], axis=0).tolist():
                if (x in lonely or y in lonely) and y not in after[x]:
                    after[y].add(x)
        return after

    def _line(self) -> list[int] | None:
        """The used devices in pipeline order (ties: lowest first); None when their forward tensors go round.

        Devices without forward ops come last where their gradients leave them no place.
        """
        used = set(self.used.tolist())
        lonely = used - set(np.unique(self.device[self.forward]).tolist())
        line = self._sorted(used, self._quotient(lonely))
        if line is None and lonely:
            line = self._sorted(used - lonely, self._quotient(set()))
            line = None if line is None else line + sorted(lonely)
        return line

    def _sorted(self, left: set[int], after: list[set[int]]) -> list[int] | None:
        line: list[int] = []
        while left:
            free = [d for d in sorted(left) if not any(d in after[x] for x in left)]
            if not free:
                return None
            line.append(free[0])
            left = left - {free[0]}
        return line

    def is_chain(self) -> bool:
        """Do forward tensors lead from device to device without coming back?"""
        return self._line() is not None

    def chain(self) -> tuple[Ints, Ints]:
        """Stage per op and device per stage, one stage per device."""
        line = self._line()
        number = np.full(self.cluster.n, -1, dtype=np.int64)
        number[self._reached() if line is None else line] = np.arange(len(self.used))
        stage = np.where(self.forward | self.backward, number[self.device], -1)
        if line is None:
            source, reader = self.graph.edge_source, self.graph.consumers
            wrong = self.ahead[stage[source[self.ahead]] > stage[reader[self.ahead]]]
            raise self.turned(int(wrong[0]), stage, "forward")
        return stage, np.array(line, dtype=np.int64)

    def _reached(self) -> list[int]:
        """Used devices by the fewest changes of device on the way to their ops, as late as the readers of these allow."""
        graph, hop = self.graph, np.zeros(self.graph.n, dtype=np.int64)
        before, after = _neighbours(graph, self.ahead)
        order = [i for i in graph.order.tolist() if self.forward[i]]
        where = self.device.tolist()
        for i in order:
            hop[i] = max((hop[k] + (where[k] != where[i]) for k in before[i]), default=0)
        for i in reversed(order):  # what is early without need (an input of the last layer) says nothing
            if after[i]:
                hop[i] = min(hop[k] - (where[k] != where[i]) for k in after[i])
        first = dict.fromkeys(self.used.tolist(), np.inf)
        for i in order:
            first[where[i]] = min(first[where[i]], hop[i])
        return sorted(first, key=lambda d: (first[d], d))

    def rounds(self, shape: str) -> tuple[Ints, Ints]:
        """Stage per op and device per stage, several stages per device."""
        graph, line = self.graph, self._reached()
        p = len(line)
        where = [line.index(d) if d in line else -1 for d in self.device.tolist()]
        most = 2 * p if shape == "v" else p * (graph.n + 1)

        def home(stage: int) -> int:
            return stage % p if shape == "loop" else min(stage, 2 * p - 1 - stage)

        stage = np.full(graph.n, -1, dtype=np.int64)
        before, _ = _neighbours(graph, self.ahead)
        for i in graph.order.tolist():
            if self.forward[i]:
                least = max((int(stage[k]) for k in before[i]), default=0)
                fitting = (s for s in range(least, min(least + 2 * p, most)) if home(s) == where[i])
                stage[i] = next(fitting, -1)
                if stage[i] < 0:
                    stage[i] = where[i]
                    raise self.turned(self._edge(before[i], i, stage), stage, "forward")
        self._inputs_late(stage, [home(s) for s in range(int(stage.max(initial=-1)) + 1)])
        count = -(-(int(stage.max(initial=-1)) + 1) // p) * p if shape == "loop" else 2 * p
        if shape == "v" and p and not np.any(stage == p):
            self._split_turn(stage, p)
        self._backward_rounds(stage, where, [home(s) for s in range(count)])
        empty = np.setdiff1d(np.arange(count), stage[self.forward])
        if len(empty):
            raise InvalidInput(
                f"the stages of this placement form no pipeline with several stages on a device: stage {empty[0]} of "
                f"{count}, on {self.cluster.names[line[home(int(empty[0]))]]}, would have no forward op"
            )
        return stage, np.array([line[home(s)] for s in range(count)], dtype=np.int64)

    def _inputs_late(self, stage: Ints, home: list[int]) -> None:
        """Inputs, and what their own device computes from them alone, go to the stage that reads them first."""
        before, after = _neighbours(self.graph, self.ahead)
        order = [i for i in self.graph.order.tolist() if self.forward[i]]
        free: set[int] = set()
        for i in order:
            if all(k in free and self.device[k] == self.device[i] for k in before[i]):
                free.add(i)
        for i in reversed(order):
            if i in free and after[i]:
                least = min(int(stage[k]) for k in after[i])
                own = home[int(stage[i])]
                stage[i] = max(s for s in range(int(stage[i]), least + 1) if home[s] == own)

    def _split_turn(self, stage: Ints, p: int) -> None:
        """Where the pipeline turns, one device has two stages in a row: the later half of its work is the second."""
        graph = self.graph
        mine = [i for i in graph.order.tolist() if stage[i] == p - 1]
        weight = graph.duration_us.copy()
        paired = np.flatnonzero(self.backward & (graph.forward_of >= 0))
        np.add.at(weight, graph.forward_of[paired], graph.duration_us[paired])
        middle = np.cumsum(weight[mine]) - weight[mine] / 2
        stage[np.array(mine, dtype=np.int64)[middle > weight[mine].sum() / 2]] = p

    def _edge(self, sources: list[int], reader: int, stage: Ints) -> int:
        """The edge to `reader` from the latest stage."""
        late = max(sources, key=lambda k: stage[k])
        found = (self.graph.edge_source == late) & (self.graph.consumers == reader)
        return int(np.flatnonzero(found)[0])

    def _backward_rounds(self, stage: Ints, where: list[int], home: list[int]) -> None:
        graph = self.graph
        before, _ = _neighbours(graph, self.back)
        for i in graph.order.tolist():
            if not self.backward[i]:
                continue
            ahead = int(graph.forward_of[i])
            if ahead >= 0 and stage[ahead] >= 0 and self.device[ahead] == self.device[i]:
                stage[i] = stage[ahead]
            else:
                least = min((int(stage[k]) for k in before[i]), default=len(home) - 1)
                own = [s for s, d in enumerate(home) if d == where[i]]
                stage[i] = max((s for s in own if s <= least), default=own[0] if own else 0)


def roles_in_stages(graph: OpGraph) -> NDArray[np.int8]:
    """int8[n]: `roles`, with backward ops that are computed from constants alone as SETUP: they belong to no stage."""
    role = roles(graph)
    role[_ungrounded(graph, role)] = SETUP
    return role


def _ungrounded(graph: OpGraph, role: NDArray[np.int8]) -> Bools:
    """Backward ops computed from constants alone (shapes, for example): they can run at the START, wherever they are."""
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    free = ((role == BACKWARD) & (np.diff(graph.predecessors[0]) > 0)).tolist()
    for i in graph.order.tolist():
        free[i] = free[i] and all(role[k] == SETUP or free[k] for k in predecessor[pointer[i] : pointer[i + 1]])
    return np.array(free, dtype=np.bool_)


class _Rows:
    """A list of ops for every op, cut out when it is asked for: so many lists at once keep the garbage collector busy."""

    def __init__(self, op: Any, other: Any, n: int):
        self.pointer, self.others = offsets(op, n).tolist(), other[np.argsort(op, kind="stable")].tolist()

    def __getitem__(self, op: int) -> list[int]:
        return self.others[self.pointer[op] : self.pointer[op + 1]]


def _neighbours(graph: OpGraph, edges: Ints) -> tuple[_Rows, _Rows]:
    """Sources and readers of every op over these edges."""
    source, reader = graph.edge_source[edges], graph.consumers[edges]
    return _Rows(reader, source, graph.n), _Rows(source, reader, graph.n)


# -- F, B and W -------------------------------------------------------------------------------------------------------


def _parts(work: _Work, stage: Ints) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Stage int32[n] and part int8[n]."""
    graph, back = work.graph, work.back
    source, reader = graph.edge_source[back], graph.consumers[back]
    before, after = _neighbours(graph, back)
    waited = np.zeros(graph.n, dtype=np.bool_)
    waited[source[stage[source] > stage[reader]]] = True
    waited = _closed(waited, before, graph.order[::-1])
    late = np.zeros(graph.n, dtype=np.bool_)
    rising = back[stage[source] < stage[reader]]
    late[graph.consumers[rising]] = True
    late = _closed(late, after, graph.order)
    if np.any(late & waited):
        edge = next(e for e in rising.tolist() if _leads_to(int(graph.consumers[e]), waited, after))
        raise work.turned(edge, stage, "backward")
    _first_stage(work, stage, waited)
    part = np.full(graph.n, END, dtype=np.int8)
    part[work.role == SETUP] = START
    part[work.forward], part[work.backward] = F, W
    part[work.backward & waited] = B
    part[late] = END
    return np.where((part == START) | (part == END), -1, stage).astype(np.int32), part


def _closed(marked: Bools, neighbours: _Rows, order: Any) -> Bools:
    """Also mark every neighbour of a marked op; `order` visits an op before its neighbours."""
    found = marked.tolist()
    for i in order.tolist():
        if found[i]:
            for k in neighbours[i]:
                found[k] = True
    return np.array(found, dtype=np.bool_)


def _leads_to(op: int, marked: Bools, after: _Rows) -> bool:
    waiting, seen = [op], {op}
    while waiting:
        i = waiting.pop()
        if marked[i]:
            return True
        waiting += [k for k in after[i] if k not in seen]
        seen.update(after[i])
    return False


def _first_stage(work: _Work, stage: Ints, waited: Bools) -> None:
    """Mark the B of stages for which no other stage waits."""
    graph = work.graph
    for s in np.unique(stage[work.backward]).tolist():
        mine = work.backward & (stage == s)
        if np.any(waited & mine):
            continue
        inside, _ = _neighbours(graph, work.back[mine[graph.edge_source[work.back]]])
        first = _first_layer(work, np.flatnonzero(mine))
        own = np.zeros(graph.n, dtype=np.bool_)
        for i in first:
            own[inside[i]] = True
        chosen = _input_gradient(work, first, waited)
        if chosen is not None:
            own[chosen] = True
        own = _closed(own, inside, graph.order[::-1])
        waited |= own if own.any() else mine


def _first_layer(work: _Work, ops: Ints) -> list[int]:
    """Of a stage's backward `ops` those whose forward op depends on no other such forward op, in topological order."""
    graph = work.graph
    layer = np.zeros(graph.n, dtype=np.bool_)
    paired = ops[graph.forward_of[ops] >= 0]
    layer[graph.forward_of[paired]] = True
    before, _ = _neighbours(graph, work.ahead)
    below = np.zeros(graph.n, dtype=np.bool_)
    for i in graph.order.tolist():
        below[i] = any(below[k] or layer[k] for k in before[i])
    rank = np.empty(graph.n, dtype=np.int64)
    rank[graph.order] = np.arange(graph.n)
    return sorted((i for i in paired.tolist() if not below[graph.forward_of[i]]), key=lambda i: rank[i])


def _input_gradient(work: _Work, first: list[int], waited: Bools) -> int | None:
    """The op among `first` that feeds no update and looks like other stages' B, by type or by name without numbers."""
    graph = work.graph
    pointer, successor = graph.successors
    free = [i for i in first if all(work.role[k] == BACKWARD for k in successor[pointer[i] : pointer[i + 1]])]

    def look(i: int) -> tuple[str, str]:
        return graph.op_types[i], re.sub(r"\d+", "", graph.names[i])

    others = {look(i) for i in np.flatnonzero(waited).tolist()}
    return next((i for i in free if look(i) in others), free[0] if free else None)
