"""A training graph as a forward and a backward pass, and the forward ops that may be computed again."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import Bools, Ints, grouped_sum, inverse
from ..graph.tensors import NAMED, RECOMPUTED, unrepeatable_ops
from ..passes.forward_only import backward_ops
from ..passes.roles import SETUP, UPDATE, roles

_RANDOM = re.compile(r"Random|Multinomial|Dropout|Bernoulli", re.IGNORECASE)
_STATISTICS = re.compile(r"batch_?norm", re.IGNORECASE)
_EFFECTS = re.compile(
    r"Assign|Apply[A-Z]|^(Resource|Read|Variable|VarHandle|Placeholder|Iterator|Print|Assert|Save|Restore|Queue|Stack(Push|Pop|V2)|"
    r"Barrier|TensorArray|Lookup|HashTable|Mutable|Stateful|PyFunc|EagerPyFunc|Write|Summary|_?Send|_?Recv|_?HostSend|"
    r"_?HostRecv|Collective|Nccl|While|If$|For$|Loss$|Case$|Enter|Exit|NextIteration|LoopCond|PartitionedCall)|"
    r"(Enqueue|Dequeue|Summary)|Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)$"
)
_INPLACE = re.compile(r"[^_]_$|^__(i(add|sub|mul|truediv|pow|and|or|xor|matmul)|setitem)__$")
"""PyTorch's types of ops that write over what they read."""


class TrainingGraph:
    """A training graph divided into a forward and a backward pass.

    - `is_backward`: bool[n], the ops with a `forward_of` and their descendants; all others are forward ops.
    - `rank`: int64[n], a topological order that puts backward ops last; `ordered` is its inverse. It follows `position`,
      int64[n], the positions in a topological order, by default that of the graph. Updates run as early as possible, so that
      the step does not end with all gradients in memory.
    - `setup`, `update`: bool[n], as defined in `passes.roles`.

    >>> graph = OpGraph.from_edges([0, 5, 9], [(0, 1, 8), (1, 2, 8)], forward_of=[-1, -1, 1],
    ...                            op_types=["Data", "MatMul", "MatMulGrad"])
    >>> TrainingGraph(graph).may_repeat.tolist()
    [False, True, False]
    """

    def __init__(self, graph: OpGraph, position: Ints | None = None):
        self.graph = graph
        role = roles(graph)
        self.setup, self.update = role == SETUP, role == UPDATE
        self.is_backward: Bools = backward_ops(graph)
        graph_position = graph.position if position is None else position
        # An update gets the position of the last other backward op that it waits for.
        sort_position = np.where(self.is_backward, graph_position, -1)
        pointer, predecessor = (a.tolist() for a in self.graph.predecessors)
        update = self.update & self.is_backward
        for op in self.graph.order[update[self.graph.order]].tolist():
            sort_position[op] = sort_position[predecessor[pointer[op] : pointer[op + 1]]].max(initial=-1)
        self.ordered: Ints = np.lexsort((graph_position, sort_position)).astype(np.int64)
        self.rank: Ints = inverse(self.ordered)

    @cached_property
    def may_repeat(self) -> Bools:
        """bool[n]: the ops that may be computed again, those without an `obstacle`."""
        graph = self.graph
        type_properties = {
            name: (not _obstacle_of_type(name), bool(_INPLACE.search(name))) for name in set(graph.op_types)
        }
        repeatable, in_place = (
            np.array([type_properties[name] for name in graph.op_types], dtype=np.bool_).reshape(-1, 2).T
        )
        repeatable = repeatable & ~(self.is_backward | self.setup | self.update) & (np.diff(graph.inputs[0]) > 0)
        is_holder = np.array([name in (NAMED, RECOMPUTED) for name in graph.op_types], dtype=np.bool_)
        prevents_repeat = (self.update & self.is_backward) | in_place | is_holder
        carries_data = graph.tensor_bytes[graph.edge_tensor] > CONTROL_BYTES
        repeatable[graph.edge_source[carries_data & prevents_repeat[graph.consumers]]] = False
        repeatable[[*self.unrepeatable]] = False
        return repeatable

    @cached_property
    def unrepeatable(self) -> dict[int, str]:
        """Op -> reason: the ops that must not run twice by the profile (`UNREPEATABLE` of `OpGraph.info`)."""
        return unrepeatable_ops(self.graph.info, self.graph.index)

    def obstacle(self, op: int) -> str:
        """Returns the reason why an op may not be computed again, as the end of a sentence; empty if it may."""
        op_type, read = self.graph.op_types[op], self.graph.inputs[0]
        if self.is_backward[op] or self.setup[op] or self.update[op]:
            return "it is no forward op"
        if read[op] == read[op + 1]:
            return "it reads nothing, so what it gives may differ the next time"
        if reason := _obstacle_of_type(op_type):
            return reason
        if any(_INPLACE.search(self.graph.op_types[k]) for k in self.readers(op).tolist()):
            return "an op that reads its output writes in place"
        if any(self.graph.op_types[k] == NAMED for k in self.readers(op).tolist()):
            return "the forward pass holds its output by a name until it returns"
        if any(self.graph.op_types[k] == RECOMPUTED for k in self.readers(op).tolist()):
            return "the model itself computes again from its output (torch.utils.checkpoint)"
        if np.any(self.update[self.readers(op)] & self.is_backward[self.readers(op)]):
            return "an update reads its output"
        return self.unrepeatable.get(op, "")

    def readers(self, op: int) -> NDArray[np.int32]:
        """Returns the ops that read a data tensor of `op`, once per read, without control dependencies."""
        graph = self.graph
        first, end = graph.output_ptr[op], graph.output_ptr[op + 1]
        first_edge, end_edge = graph.consumer_ptr[first], graph.consumer_ptr[end]
        carries_data = graph.tensor_bytes[graph.edge_tensor[first_edge:end_edge]] > CONTROL_BYTES
        return graph.consumers[first_edge:end_edge][carries_data]

    @cached_property
    def updates_read(self) -> dict[int, tuple[int, ...]]:
        """Op -> the updates that read the same variable, or the same value computed only from variables."""
        graph, updates_of_op = self.graph, dict[int, set[int]]()
        setup_tensors = np.flatnonzero(self.setup[graph.tensor_producer])
        for tensor in setup_tensors.tolist():
            readers = graph.tensor_consumers(tensor)
            updates = set(readers[self.update[readers]].tolist())
            for op in readers.tolist() if updates else ():
                updates_of_op.setdefault(op, set()).update(updates)
        return {op: tuple(sorted(updates)) for op, updates in updates_of_op.items()}

    @cached_property
    def data_bytes(self) -> Ints:
        """int64[n]: bytes of the outputs of each op, without control dependencies."""
        size = np.where(self.graph.tensor_bytes > CONTROL_BYTES, self.graph.tensor_bytes, 0)
        return grouped_sum(size, self.graph.tensor_producer, self.graph.n)


def _obstacle_of_type(op_type: str) -> str:
    """Returns the reason why ops of this type may not be computed again; empty if they may."""
    if _RANDOM.search(op_type):
        return f"its type {op_type!r} is random, and the backward pass must see the same numbers"
    if _STATISTICS.search(op_type):
        return f"its type {op_type!r} would update the statistics of its batch twice"
    if _EFFECTS.search(op_type):
        return f"its type {op_type!r} has side effects, or reads what may change"
    if _INPLACE.search(op_type):
        return f"its type {op_type!r} writes in place"
    return ""
