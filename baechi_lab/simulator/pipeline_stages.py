"""Pipeline stages of a placed graph: the stage of each op, and whether it is F, B or W."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph
from ..graph.kernels.csr import Bools, Integers, Ints, distinct, offsets
from ..passes.roles import BACKWARD, FORWARD, SETUP, roles

START, F, B, W, END = range(5)
"""Phases of a step: before all micro-batches, forward, gradients of inputs, gradients of weights, after all micro-batches."""


@dataclass(frozen=True, eq=False)
class PipelineStages:
    """Pipeline stages: `device` int32[S], the cluster's device of each; `stage` int32[n] and `phase` int8[n] of each op.

    Ops of phases `START` and `END` belong to no stage (-1). START runs before and END after all else on their device.
    """

    device: NDArray[np.int32]
    stage: NDArray[np.int32]
    phase: NDArray[np.int8]

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.device)

    @property
    def line(self) -> NDArray[np.int32]:
        """int32[S]: the device of each stage, numbered along the pipeline by first stage."""
        position: dict[int, int] = {}
        return np.array([position.setdefault(d, len(position)) for d in self.device.tolist()], dtype=np.int32)

    @property
    def training(self) -> bool:
        """Whether the graph has a backward pass."""
        return bool(np.any((self.phase == B) | (self.phase == W)))


def find_pipeline_stages(
    graph: OpGraph, cluster: Cluster, device: NDArray[np.int32], shape: str = "chain"
) -> PipelineStages:
    """Finds the pipeline stages of one micro-batch's graph that is placed on `device` int32[n].

    `shape` says how stages lie on the p devices, which are numbered in the order in which the forward pass reaches them:

    - "chain": one stage per device. Forward tensors must lead from stage to stage in one direction.
    - "loop": stage k is on device k mod p.
    - "v": two stages per device, forth and back. The work of the device at the turn is halved.

    Forward ops: with several stages per device, an op belongs to the earliest stage of its device that is not before the
    stages of its inputs. Inputs of the model, such as labels, belong to the stage that reads them.

    Backward ops: an op belongs to the stage of its forward op. Without one, it belongs to the last stage of its device
    that is not after the stages of its inputs. It is in phase B if another stage waits for it, directly or not, else in W.
    For the first stage, on which no other waits, B is what a previous stage would wait for: the ops from which the first
    layer's gradients are computed, and the first of these if it feeds no update.

    Updates are in phase END. So is a backward op that reads from an earlier stage, such as the sum of a shared weight's
    gradients.

    Raises:
        InvalidInput: an edge leads back, so the stages form no pipeline; the message names the edge.
    """
    work = _StageAssigner(graph, cluster, device)
    if shape == "chain" or (shape == "loop" and work.is_chain()):
        stage, stage_devices = work.number_chain()
    else:
        stage, stage_devices = work.number_rounds(shape)
    return PipelineStages(stage_devices.astype(np.int32), *_assign_phases(work, stage))


class _StageAssigner:
    """Assigns ops to stages by the forward and the backward edges of one micro-batch."""

    def __init__(self, graph: OpGraph, cluster: Cluster, device: NDArray[np.int32]):
        self.graph, self.cluster, self.device = graph, cluster, device
        self.role = roles_in_stages(graph)
        source, reader = graph.edge_source, graph.consumers
        self.forward, self.backward = self.role == FORWARD, self.role == BACKWARD
        self.forward_edges = np.flatnonzero(self.forward[source] & self.forward[reader])
        self.backward_edges = np.flatnonzero(self.backward[source] & self.backward[reader])
        self.used = np.unique(device[self.forward | self.backward])

    @cached_property
    def forward_neighbours(self) -> tuple[_Adjacency, _Adjacency]:
        """The producers and the readers of every op along forward edges."""
        return _neighbours(self.graph, self.forward_edges)

    def turning_edge_error(self, edge: int, stage: Ints, direction: str) -> InvalidInput:
        """Returns the error for an edge that leads back to an earlier stage."""
        graph = self.graph
        op_pair = [int(graph.edge_source[edge]), int(graph.consumers[edge])]
        text = [f"{graph.names[i]!r} (stage {stage[i]}, {self.cluster.names[self.device[i]]})" for i in op_pair]
        return InvalidInput(
            f"the stages of this placement form no pipeline: the {direction} tensor "
            f"{graph.tensor_label(int(graph.edge_tensor[edge]))!r} turns back from {text[0]} to {text[1]}"
        )

    def _device_successors(self, without_forward: set[int]) -> list[set[int]]:
        """Returns the successors of each device by forward tensors; devices `without_forward` ops are ordered by gradients."""
        successors = [set[int]() for _ in range(self.cluster.n)]
        for source, target in self._device_pairs(self.forward_edges):
            successors[source].add(target)
        if without_forward:
            for source, target in self._device_pairs(self.backward_edges):
                if (source in without_forward or target in without_forward) and target not in successors[source]:
                    successors[target].add(source)
        return successors

    def _device_pairs(self, edges: Ints) -> list[tuple[int, int]]:
        """Returns the pairs of different devices between which these edges lead, ascending."""
        a, b = self.device[self.graph.edge_source[edges]], self.device[self.graph.consumers[edges]]
        pairs = distinct(a.astype(np.int64) * self.cluster.n + b)
        return [(x, y) for x, y in (divmod(pair, self.cluster.n) for pair in pairs.tolist()) if x != y]

    def _pipeline_order(self) -> list[int] | None:
        """Returns the used devices in pipeline order (ties: lowest first); None if forward tensors form a cycle of devices.

        Devices without forward ops come last if their gradients allow no other position.
        """
        used = set(self.used.tolist())
        without_forward = used - set(np.unique(self.device[self.forward]).tolist())
        line = self._sort_devices(used, self._device_successors(without_forward))
        if line is None and without_forward:
            line = self._sort_devices(used - without_forward, self._device_successors(set()))
            line = None if line is None else line + sorted(without_forward)
        return line

    def _sort_devices(self, devices: set[int], successors: list[set[int]]) -> list[int] | None:
        """Returns the devices in topological order, ties by number; None if they form a cycle."""
        line: list[int] = []
        while devices:
            first_devices = [d for d in sorted(devices) if not any(d in successors[device] for device in devices)]
            if not first_devices:
                return None
            line.append(first_devices[0])
            devices = devices - {first_devices[0]}
        return line

    def is_chain(self) -> bool:
        """Whether forward tensors lead from device to device without a cycle."""
        return self._pipeline_order() is not None

    def number_chain(self) -> tuple[Ints, Ints]:
        """Returns the stage of each op and the device of each stage, with one stage per device."""
        line = self._pipeline_order()
        number = np.full(self.cluster.n, -1, dtype=np.int64)
        number[self._devices_by_reach() if line is None else line] = np.arange(len(self.used))
        stage = np.where(self.forward | self.backward, number[self.device], -1)
        if line is None:
            source, reader = self.graph.edge_source, self.graph.consumers
            wrong = self.forward_edges[stage[source[self.forward_edges]] > stage[reader[self.forward_edges]]]
            raise self.turning_edge_error(int(wrong[0]), stage, "forward")
        return stage, np.array(line, dtype=np.int64)

    def _devices_by_reach(self) -> list[int]:
        """Returns the used devices by the fewest device changes on the way to their ops, which count as late as readers allow."""
        graph, hop = self.graph, [0] * self.graph.n
        predecessors, successors = self.forward_neighbours
        order = graph.order[self.forward[graph.order]].tolist()
        device = self.device.tolist()
        for i in order:
            own_device = device[i]
            hop[i] = max([hop[k] + (device[k] != own_device) for k in predecessors[i]], default=0)
        for i in reversed(order):  # an op that is early without need, as an input of the last layer, does not count
            own_device = device[i]
            hop[i] = min([hop[k] - (device[k] != own_device) for k in successors[i]], default=hop[i])
        least_hops: dict[int, float] = dict.fromkeys(self.used.tolist(), np.inf)
        for i in order:
            least_hops[device[i]] = min(least_hops[device[i]], hop[i])
        return sorted(least_hops, key=lambda d: (least_hops[d], d))

    def number_rounds(self, shape: str) -> tuple[Ints, Ints]:
        """Returns the stage of each op and the device of each stage, with several stages per device."""
        graph, line = self.graph, self._devices_by_reach()
        p = len(line)
        position_of_device = {d: k for k, d in enumerate(line)}
        line_position = [position_of_device.get(d, -1) for d in self.device.tolist()]
        stage_limit = 2 * p if shape == "v" else p * (graph.n + 1)

        def position_of_stage(stage: int) -> int:
            return stage % p if shape == "loop" else min(stage, 2 * p - 1 - stage)

        stage_of_op = [-1] * graph.n
        predecessors, _ = self.forward_neighbours
        for i in graph.order[self.forward[graph.order]].tolist():
            earliest = max([stage_of_op[k] for k in predecessors[i]], default=0)
            for s in range(earliest, min(earliest + 2 * p, stage_limit)):
                if position_of_stage(s) == line_position[i]:
                    stage_of_op[i] = s
                    break
            else:
                stage_of_op[i] = line_position[i]
                source = max(predecessors[i], key=lambda k: stage_of_op[k])
                is_edge = (self.graph.edge_source == source) & (self.graph.consumers == i)
                raise self.turning_edge_error(int(np.flatnonzero(is_edge)[0]), np.array(stage_of_op), "forward")
        stage = np.array(stage_of_op, dtype=np.int64)
        self._move_inputs_to_readers(stage, [position_of_stage(s) for s in range(int(stage.max(initial=-1)) + 1)])
        count = -(-(int(stage.max(initial=-1)) + 1) // p) * p if shape == "loop" else 2 * p
        if shape == "v" and p and not np.any(stage == p):
            # Splits the work of the device at the turn of a "v" into two stages of about equal work.
            graph = self.graph
            turn_ops = [i for i in graph.order.tolist() if stage[i] == p - 1]
            weight = graph.duration_us.copy()
            paired_ops = np.flatnonzero(self.backward & (graph.forward_of >= 0))
            np.add.at(weight, graph.forward_of[paired_ops], graph.duration_us[paired_ops])
            middle = np.cumsum(weight[turn_ops]) - weight[turn_ops] / 2
            stage[np.array(turn_ops, dtype=np.int64)[middle > weight[turn_ops].sum() / 2]] = p
        self._number_backward(stage, line_position, [position_of_stage(s) for s in range(count)])
        empty = np.setdiff1d(np.arange(count), stage[self.forward])
        if len(empty):
            raise InvalidInput(
                f"the stages of this placement form no pipeline with several stages on a device: stage {empty[0]} of "
                f"{count}, on {self.cluster.names[line[position_of_stage(int(empty[0]))]]}, would have no forward op; "
                "use a schedule of one stage per device, such as 1f1b"
            )
        return stage, np.array([line[position_of_stage(s)] for s in range(count)], dtype=np.int64)

    def _move_inputs_to_readers(self, stage: Ints, position_of_stage: list[int]) -> None:
        """Moves inputs, and ops that their device computes from inputs alone, to the first stage that reads them."""
        predecessors, successors = self.forward_neighbours
        order = self.graph.order[self.forward[self.graph.order]].tolist()
        device, stage_of_op = self.device.tolist(), stage.tolist()
        movable: set[int] = set()
        for i in order:
            if all(k in movable and device[k] == device[i] for k in predecessors[i]):
                movable.add(i)
        for i in reversed(order):
            if i in movable and (readers := successors[i]):
                first_reader, own_position = min([stage_of_op[k] for k in readers]), position_of_stage[stage_of_op[i]]
                stage_of_op[i] = max(
                    s for s in range(stage_of_op[i], first_reader + 1) if position_of_stage[s] == own_position
                )
        stage[:] = stage_of_op

    def _number_backward(self, stage: Ints, line_position: list[int], position_of_stage: list[int]) -> None:
        """Sets the stage of every backward op, in place."""
        graph = self.graph
        predecessors, _ = _neighbours(graph, self.backward_edges)
        for i in graph.order.tolist():
            if not self.backward[i]:
                continue
            forward_op = int(graph.forward_of[i])
            if forward_op >= 0 and stage[forward_op] >= 0 and self.device[forward_op] == self.device[i]:
                stage[i] = stage[forward_op]
            else:
                latest = min((int(stage[k]) for k in predecessors[i]), default=len(position_of_stage) - 1)
                own_stages = [s for s, d in enumerate(position_of_stage) if d == line_position[i]]
                stage[i] = max((s for s in own_stages if s <= latest), default=own_stages[0] if own_stages else 0)


_ROLES: WeakKeyDictionary[OpGraph, NDArray[np.int8]] = WeakKeyDictionary()
"""Graph -> its `roles_in_stages`. A search finds the stages of many placements of one graph."""


def roles_in_stages(graph: OpGraph) -> NDArray[np.int8]:
    """Returns int8[n]: `roles`, but backward ops computed from constants alone are SETUP, since they belong to no stage."""
    if graph not in _ROLES:
        role = roles(graph)
        # Backward ops computed from constants alone, such as shapes, can run at the START on any device.
        pointer, predecessor = (a.tolist() for a in graph.predecessors)
        is_constant = ((role == BACKWARD) & (np.diff(graph.predecessors[0]) > 0)).tolist()
        for i in graph.order.tolist():
            is_constant[i] = is_constant[i] and all(
                role[k] == SETUP or is_constant[k] for k in predecessor[pointer[i] : pointer[i + 1]]
            )
        role[np.array(is_constant, dtype=np.bool_)] = SETUP
        role.setflags(write=False)
        _ROLES[graph] = role
    return _ROLES[graph]


class _Adjacency:
    """Adjacency lists of all ops, made on access, because many lists at once slow the garbage collector."""

    def __init__(self, op: Integers, neighbour: Integers, n: int):
        self.pointer, self.neighbours = offsets(op, n).tolist(), neighbour[np.argsort(op, kind="stable")].tolist()

    def __getitem__(self, op: int) -> list[int]:
        return self.neighbours[self.pointer[op] : self.pointer[op + 1]]


def _neighbours(graph: OpGraph, edges: Ints) -> tuple[_Adjacency, _Adjacency]:
    """Returns the producers and the readers of every op along these edges."""
    source, reader = graph.edge_source[edges], graph.consumers[edges]
    return _Adjacency(reader, source, graph.n), _Adjacency(source, reader, graph.n)


# -- F, B and W -------------------------------------------------------------------------------------------------------


def _assign_phases(assigner: _StageAssigner, stage: Ints) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Returns stage int32[n] and phase int8[n] of each op."""
    graph, backward_edges = assigner.graph, assigner.backward_edges
    source, reader = graph.edge_source[backward_edges], graph.consumers[backward_edges]
    predecessors, successors = _neighbours(graph, backward_edges)
    is_awaited = np.zeros(graph.n, dtype=np.bool_)
    is_awaited[source[stage[source] > stage[reader]]] = True
    is_awaited = _spread_marks(is_awaited, predecessors, graph.order[::-1])
    after_rising = np.zeros(graph.n, dtype=np.bool_)
    rising = backward_edges[stage[source] < stage[reader]]
    after_rising[graph.consumers[rising]] = True
    after_rising = _spread_marks(after_rising, successors, graph.order)
    if np.any(after_rising & is_awaited):
        edge = next(e for e in rising.tolist() if _reaches_marked(int(graph.consumers[e]), is_awaited, successors))
        raise assigner.turning_edge_error(edge, stage, "backward")
    # What only runs after all micro-batches makes no micro-batch wait.
    is_awaited = np.zeros(graph.n, dtype=np.bool_)
    is_awaited[source[(stage[source] > stage[reader]) & ~after_rising[reader]]] = True
    is_awaited = _spread_marks(is_awaited, predecessors, graph.order[::-1])
    _mark_first_stage_gradients(assigner, stage, is_awaited, after_rising)
    phase = np.full(graph.n, END, dtype=np.int8)
    phase[assigner.role == SETUP] = START
    phase[assigner.forward], phase[assigner.backward] = F, W
    phase[assigner.backward & is_awaited] = B
    phase[after_rising] = END
    return np.where((phase == START) | (phase == END), -1, stage).astype(np.int32), phase


def _spread_marks(marks: Bools, neighbours: _Adjacency, order: Integers) -> Bools:
    """Spreads marks from ops to their neighbours; `order` visits an op before its neighbours."""
    is_marked = marks.tolist()
    for i in order.tolist():
        if is_marked[i]:
            for k in neighbours[i]:
                is_marked[k] = True
    return np.array(is_marked, dtype=np.bool_)


def _reaches_marked(op: int, marks: Bools, successors: _Adjacency) -> bool:
    """Whether a marked op can be reached from `op`."""
    stack, visited = [op], {op}
    while stack:
        i = stack.pop()
        if marks[i]:
            return True
        stack += [k for k in successors[i] if k not in visited]
        visited.update(successors[i])
    return False


def _mark_first_stage_gradients(assigner: _StageAssigner, stage: Ints, is_awaited: Bools, after_rising: Bools) -> None:
    """Marks the B ops of stages for which no other stage waits; `after_rising` ops run once, after all micro-batches."""
    graph = assigner.graph
    for s in np.unique(stage[assigner.backward]).tolist():
        in_stage = assigner.backward & (stage == s) & ~after_rising
        if np.any(is_awaited & in_stage):
            continue
        stage_predecessors, _ = _neighbours(
            graph, assigner.backward_edges[in_stage[graph.edge_source[assigner.backward_edges]]]
        )
        first = _first_layer(assigner, np.flatnonzero(in_stage))
        is_input_gradient = np.zeros(graph.n, dtype=np.bool_)
        for i in first:
            is_input_gradient[stage_predecessors[i]] = True
        input_gradient = _input_gradient(assigner, first, is_awaited, after_rising)
        if input_gradient is not None:
            is_input_gradient[input_gradient] = True
        is_input_gradient = _spread_marks(is_input_gradient, stage_predecessors, graph.order[::-1])
        is_awaited |= is_input_gradient if is_input_gradient.any() else in_stage


def _first_layer(assigner: _StageAssigner, ops: Ints) -> list[int]:
    """Returns the backward `ops` of a stage whose forward op depends on no other of these forward ops, in topological order."""
    graph = assigner.graph
    paired_ops = ops[graph.forward_of[ops] >= 0]
    layer = np.unique(graph.forward_of[paired_ops])
    _, successors = assigner.forward_neighbours
    follows_layer = np.zeros(graph.n, dtype=np.bool_)
    for i in layer.tolist():
        follows_layer[successors[i]] = True
    follows_layer = _spread_marks(follows_layer, successors, graph.order)
    first = (i for i in paired_ops.tolist() if not follows_layer[graph.forward_of[i]])
    return sorted(first, key=lambda i: graph.position[i])


def _input_gradient(assigner: _StageAssigner, first: list[int], is_awaited: Bools, after_rising: Bools) -> int | None:
    """Returns the op among `first` that feeds no update and resembles a B op of another stage.

    Two ops resemble each other if they have one type and, without numbers, one name.
    """
    graph = assigner.graph
    pointer, successor = graph.successors
    per_micro_batch = (assigner.role == BACKWARD) & ~after_rising
    without_update = [i for i in first if per_micro_batch[successor[pointer[i] : pointer[i + 1]]].all()]

    def kind(i: int) -> tuple[str, str]:
        return graph.op_types[i], re.sub(r"\d+", "", graph.names[i])

    types = {graph.op_types[i] for i in without_update}
    gradient_kinds = {kind(i) for i in np.flatnonzero(is_awaited).tolist() if graph.op_types[i] in types}
    return next((i for i in without_update if kind(i) in gradient_kinds), without_update[0] if without_update else None)
