"""Unrolling of a step: forward and backward ops are copied for each micro-batch, parameters and updates occur once.

`roles` says which ops run once, and which for each micro-batch. A tensor that an update reads is a gradient. It is
accumulated, with one addition per micro-batch after the first, on the device that produces it, and the update reads the
last sum. (Scalars and control dependencies are not added up: the update reads those of all micro-batches.) An addition reads
two tensors and writes one. So it takes three times the tensor's bytes over the bandwidth of additions in the profile: that of
the graph's `AddN` and `Add` ops, weighted by their bytes. A graph without such ops gives the bandwidth of its updates, which
are also bound by memory, or else of its fastest ops by moved bytes; if no op moves bytes, additions take 0 us. In a graph
without updates, such as PyTorch's layer graphs, backward ops add into stored gradients, which `persistent_bytes` includes, and
no op is added. If such gradients are allocated by the backward op (`GROWS`), those of a later micro-batch exist besides the sum
until they are added to it. A sum of sparse gradients has the rows of all of them, and is made beside both that it adds
(`SPARSE_GRADIENTS`). Each micro-batch has a batch of its own, which exists from the start of the step (`BATCH_BYTES`).

A pipeline stage with r replicas has its setup, its updates and its sums once on each of them, and every r-th micro-batch on each;
before the updates the replicas add up their sums around a ring (`all_reduce`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_batch_size, check_whole
from ..errors import InvalidInput, in_short
from ..graph import OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.columns import check_record
from ..graph.groups import add_single_groups
from ..graph.kernels.csr import Ints
from ..graph.opgraph import GROWS, OWN
from ..graph.tensors import BATCH_BYTES, SPARSE_GRADIENTS, bytes_of_ops, lasting_info, text_column
from ..internal_warnings import warn
from .all_reduce import ALL_REDUCE
from .base import Pass
from .roles import BACKWARD, SETUP, UPDATE, group_with_several_roles, roles
from .unroll_tensors import OpNumbering, number_replicas, unrolled_tensor_columns

ACCUMULATE = "Accumulate"
"""Type of the ops that add a micro-batch's gradient to the sum of those before it."""

MOST_OPS = 100_000_000
"""Most ops of an unrolled step; more would exceed the memory of most machines."""

_STATISTICS = re.compile(r"batch_?norm", re.IGNORECASE)
_ADDITIONS = frozenset({"AddN", "Add", "AddV2"})
_HANDLES = frozenset({"VarHandleOp"})
_LARGE = 1 << 12
"""Least bytes of an addition that shows the bandwidth; a smaller one takes only the time of a launch."""


def unroll(graph: OpGraph, micro_batches: int, placement: Placement | None = None) -> OpGraph:
    """Makes the graph of a step of `micro_batches` micro-batches, each of which is one run of `graph`.

    Copies are named `name/mb0`, `name/mb1`, ...; ops that run once keep their names. A placement of `graph` is a placement
    of the new graph: every copy is on the device of its original (`copy_of`), and a gradient is accumulated where it is
    produced. Copies share their original's colocation group. `micro_batch` is the micro-batch of each op. Ops are
    numbered in topological order, micro-batch by micro-batch; one micro-batch gives the graph itself. In a coarse graph
    the role of a group is that of its longest member, or "once per micro-batch" if that of some member is.
    O(micro_batches x (ops + edges)), by array operations.

    Warns about groups that join ops of several passes, as `forward_only` of `bl.optimize` makes them: take the original graph.
    Warns about a model that normalises by batch statistics, since each micro-batch has its own.

    Args:
        graph: the profile of one micro-batch.
        micro_batches: the number of micro-batches of a step.
        placement: a placement whose `replicas` share pipeline stages. The step is then unrolled for them: ops that run once
            per step run once on each replica (`micro_batch` -1 - k on the k-th), and gradients are all-reduced.

    Raises:
        InvalidInput: `micro_batches` is not a whole number of at least 1, or fewer than the replicas of a pipeline stage; the
            graph is unrolled already; the placement was made for another graph.

    >>> graph = OpGraph.from_edges([0, 5, 9, 1], [(0, 1, 4), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, -1],
    ...     op_types=["Variable", "MatMul", "MatMulGrad", "Update"], names=["w", "matmul", "gradient", "update"])
    >>> unroll(graph, 2).names
    ('w', 'matmul/mb0', 'gradient/mb0', 'matmul/mb1', 'gradient/mb1', 'gradient/accumulate0/mb1', 'update')
    """
    unroll_pass = Unroll(micro_batches)
    unroll_pass.validate()
    if placement is not None:
        check_record("placement", placement, Placement)
    if placement is None or not placement.replicas:
        return unroll_pass.apply(graph)
    return unroll_pass.apply_with_replicas(graph, placement.on(graph))


@dataclass(frozen=True)
class Unroll(Pass):
    """Unroll a step into micro-batches: copy forward and backward ops, keep parameters and updates once, add up gradients."""

    name: ClassVar[str] = "unroll"
    micro_batches: int = 1

    def validate(self) -> None:
        check_micro_batches(self.micro_batches)

    def apply(self, graph: OpGraph) -> OpGraph:
        role = self._roles(graph)
        if self.micro_batches == 1:
            once = (role == SETUP) | (role == UPDATE)
            return graph.replace(copy_of=np.arange(graph.n), copied_key=graph.key, micro_batch=np.where(once, -1, 0))
        return _build_step(graph, OpNumbering(graph, role, int(self.micro_batches)))

    def apply_with_replicas(self, graph: OpGraph, placement: Placement) -> OpGraph:
        """Returns the unrolled step for the replicas of `placement`."""
        role = self._roles(graph)
        for group in placement.replicas:
            if len(group) > self.micro_batches and np.any(placement.device == group[0]):
                raise InvalidInput(
                    f"micro_batches is {self.micro_batches}; a stage has {len(group)} replicas, each of which needs one"
                )
        return _build_step(graph, OpNumbering(graph, role, int(self.micro_batches), placement))

    def _roles(self, graph: OpGraph) -> NDArray[np.int8]:
        """Returns the roles of the ops; rejects a graph that is unrolled already or that would become too large."""
        check_records(graph=graph)
        if graph.copy_of is not None:
            raise InvalidInput(f"graph {graph.name!r} is unrolled already; unroll the graph of one micro-batch")
        if self.micro_batches * graph.n > MOST_OPS:
            raise InvalidInput(
                f"micro_batches is {in_short(self.micro_batches)}; a step of the {graph.n} ops of graph {graph.name!r} may have "
                f"{MOST_OPS // graph.n} at most, which are {MOST_OPS} ops"
            )
        role = roles(graph)
        if self.micro_batches > 1:
            if (op := op_with_batch_statistics(graph, role)) is not None:
                warn(
                    f"op {graph.names[op]!r} normalises by the statistics of its batch: every micro-batch sees its own, so the "
                    "step is not that of the undivided batch"
                )
            # The copies of such a group hold, or repeat, more or less than its members would.
            group = group_with_several_roles(graph)
            if group is not None:
                warn(
                    f"group {graph.names[group]!r} joins ops of several passes (forward, backward, update): as a group it runs "
                    "once per micro-batch, so times and peaks differ from those of its ops; take the graph that was optimized, "
                    "on which the placement holds as well"
                )
        return role


def op_with_batch_statistics(graph: OpGraph, role: NDArray[np.int8]) -> int | None:
    """Returns the first op of a training step that normalises by statistics of the whole batch, if there is one."""
    if not np.any(role == BACKWARD):
        return None  # inference uses stored statistics
    normalizing = [
        i
        for i, (name, op_type) in enumerate(zip(graph.names, graph.op_types, strict=True))
        if (_STATISTICS.search(op_type) or _STATISTICS.search(name)) and "Frozen" not in op_type
    ]
    if any(graph.op_types[i] == "Rsqrt" for i in normalizing):  # of a variance, which may be a variable
        # Whether each op depends on more than variables and constants.
        first, producers = graph.predecessors
        is_constant = np.isin(np.array(graph.op_types), ["Const", *_HANDLES])
        varies = np.zeros(graph.n, dtype=bool)
        for i in graph.order:
            inputs = producers[first[i] : first[i + 1]]
            varies[i] = varies[inputs].any() if len(inputs) else not is_constant[i]
        normalizing = [i for i in normalizing if graph.op_types[i] == "Rsqrt" and varies[i]]
    return normalizing[0] if normalizing else None


def micro_batch_size(batch_size: int, micro_batches: int) -> int:
    """Returns the number of samples per micro-batch.

    Raises `InvalidInput` if the batch size is no multiple of `micro_batches`.
    """
    check_micro_batches(micro_batches)
    check_batch_size(batch_size)
    if batch_size % micro_batches:
        raise InvalidInput(
            f"batch_size is {batch_size}; it must be a multiple of micro_batches, which is {micro_batches}"
        )
    return int(batch_size) // int(micro_batches)


def check_micro_batches(count: object) -> None:
    """Raises `InvalidInput` unless `count` is a whole number of at least 1."""
    check_whole("micro_batches", count)


def _build_step(graph: OpGraph, numbering: OpNumbering) -> OpGraph:
    """Makes the graph of all micro-batches."""
    origin = np.empty(numbering.total, dtype=np.int64)  # the original of an addition is the op whose gradient it adds
    batch = np.full(numbering.total, -1, dtype=np.int32)
    for ops in (numbering.setup_ops, numbering.update_ops):
        number, replica = number_replicas(numbering, ops)
        origin[number], batch[number] = np.repeat(ops, numbering.width[ops]), -1 - replica
    origin[numbering.copies] = numbering.repeated_ops[None, :]
    batch[numbering.copies] = np.arange(numbering.count, dtype=np.int32)[:, None]
    micro, tensor = np.nonzero(numbering.additions >= 0)
    addition = numbering.additions[micro, tensor]
    origin[addition], batch[addition] = graph.tensor_producer[numbering.tensors_to_sum[tensor]], micro
    ring = slice(numbering.ring_start, numbering.ring_start + numbering.rings.ops)
    origin[ring], batch[ring] = numbering.rings.origin, -1 - numbering.rings.replica
    is_added = np.zeros(numbering.total, dtype=np.bool_)
    is_added[addition] = True
    is_added[ring] = True
    batch_bytes, persistent = np.zeros(graph.n, dtype=np.int64), graph.persistent_bytes
    for op, size in bytes_of_ops(graph.info, BATCH_BYTES, graph.index).items():
        batch_bytes[op] = min(size, int(persistent[op]))
    no_persistent = is_added | (batch >= numbering.width[origin])
    # Of micro-batch k on its replica: its own sparse gradients, which stay, and the sum of those of k micro-batches.
    own_sparse = np.where(no_persistent & ~is_added, _sparse_bytes(graph)[origin], 0)
    sparse_sum = own_sparse * (batch // numbering.width[origin])
    # `forward_of` within the same micro-batch; for ops that run once, the first copy on their replica.
    forward_op = graph.forward_of[origin].astype(np.int64)
    batch_or_replica = np.where(batch >= 0, batch, (-1 - batch) % numbering.width[forward_op])
    offset = np.where(
        numbering.is_repeated[forward_op],
        numbering.shift[batch_or_replica],
        batch_or_replica % numbering.width[forward_op],
    )
    names = _names(graph, numbering)
    return OpGraph(
        names=names,
        op_types=_op_types(graph, numbering),
        duration_us=_durations(graph, numbering, graph.duration_us, origin),
        duration_by_kind={
            kind: _durations(graph, numbering, us, origin) for kind, us in graph.duration_by_kind.items()
        },
        temp_bytes=np.where(
            is_added,
            0,
            graph.temp_bytes[origin] * _sparse_gradients_per_update(graph, numbering)[origin]
            + np.where(no_persistent, _growing_bytes(graph)[origin], 0)
            + sparse_sum,
        ),
        persistent_bytes=np.where(
            no_persistent, np.where(is_added, 0, batch_bytes[origin]) + own_sparse, persistent[origin]
        ),
        allowed=graph.allowed[origin],
        allowed_sets=graph.allowed_sets,
        forward_of=np.where(forward_op >= 0, numbering.first[forward_op] + offset, -1).astype(np.int32),
        copy_of=origin,
        copied_key=graph.key,
        micro_batch=batch,
        info=lasting_info(
            graph.info, graph.index, lambda op: [names[k] for k in np.flatnonzero((origin == op) & ~is_added).tolist()]
        ),
        name=f"{graph.name} x {numbering.count}",
        **_colocation(graph, numbering, origin, batch),
        reuse=None if graph.reuse is None else np.where(is_added, OWN, graph.reuse[origin]),
        output_shapes=text_column(graph.output_shapes, np.where(is_added, -1, origin).tolist()),
        **unrolled_tensor_columns(graph, numbering),
    )


def _growing_bytes(graph: OpGraph) -> Ints:
    """Returns int64[n]: the persistent bytes that each op allocates when it starts (`GROWS`)."""
    return np.zeros(graph.n, dtype=np.int64) if graph.reuse is None else graph.persistent_bytes * (graph.reuse == GROWS)


def _sparse_bytes(graph: OpGraph) -> Ints:
    """Returns int64[n]: the bytes of the sparse gradients among the persistent bytes of each op."""
    sparse_bytes = np.zeros(graph.n, dtype=np.int64)
    for op, size in bytes_of_ops(graph.info, SPARSE_GRADIENTS, graph.index).items():
        sparse_bytes[op] = min(size, int(graph.persistent_bytes[op]))
    return sparse_bytes


def _sparse_gradients_per_update(graph: OpGraph, numbering: OpNumbering) -> Ints:
    """Returns int64[n]: of updates that read sparse gradients, how many micro-batches' rows are in their sum; otherwise 1.

    Such updates are in the colocation groups of the ops that make the gradients.
    """
    groups = graph.colocation[[*bytes_of_ops(graph.info, SPARSE_GRADIENTS, graph.index)]]
    reads_sum = numbering.is_update & np.isin(graph.colocation, groups[groups >= 0])
    counts: Ints = np.where(reads_sum, -(-numbering.count // numbering.width), 1)
    return counts


def _names_per_replica(graph: OpGraph, numbering: OpNumbering, ops: Ints) -> list[str]:
    """Returns the names of ops that run once, on each replica."""
    return [
        graph.names[i] + (f"/replica{k}" if k else "")
        for i, width in zip(ops.tolist(), numbering.width[ops].tolist(), strict=True)
        for k in range(width)
    ]


def _names(graph: OpGraph, numbering: OpNumbering) -> tuple[str, ...]:
    """Returns the names of all ops of the step, in the order of their numbers."""
    names = _names_per_replica(graph, numbering, numbering.setup_ops)
    repeated_names = [graph.names[i] for i in numbering.repeated_ops.tolist()]
    first_output = graph.output_ptr[graph.tensor_producer]
    # The position, since a tensor's name may not be valid as an op's name.
    sum_names = [
        f"{graph.names[graph.tensor_producer[t]]}/accumulate{t - first_output[t]}"
        for t in numbering.tensors_to_sum.tolist()
    ]
    for k in range(numbering.count):
        names += [f"{name}/mb{k}" for name in repeated_names]
        names += [f"{sum_names[t]}/mb{k}" for t in np.flatnonzero(numbering.additions[k] >= 0).tolist()]
    return (*names, *numbering.rings.names, *_names_per_replica(graph, numbering, numbering.update_ops))


def _op_types(graph: OpGraph, numbering: OpNumbering) -> tuple[str, ...]:
    """Returns the types of all ops of the step, in the order of their numbers."""
    repeated_types = [graph.op_types[i] for i in numbering.repeated_ops.tolist()]
    types = [graph.op_types[i] for i in np.repeat(numbering.setup_ops, numbering.width[numbering.setup_ops]).tolist()]
    for sum_count in (numbering.additions >= 0).sum(axis=1).tolist():
        types += repeated_types + [ACCUMULATE] * sum_count
    types += [ALL_REDUCE] * numbering.rings.ops
    return (
        *types,
        *(graph.op_types[i] for i in np.repeat(numbering.update_ops, numbering.width[numbering.update_ops]).tolist()),
    )


def _durations(graph: OpGraph, numbering: OpNumbering, us: NDArray[np.float64], origin: Ints) -> NDArray[np.float64]:
    """Returns the durations of all ops of the step; `us` float64[n] are those of the micro-batch's ops."""
    durations = us[origin]
    micro, tensor = np.nonzero(numbering.additions >= 0)
    addition_us = 3 * graph.tensor_bytes[numbering.tensors_to_sum] * us_per_byte_moved(graph, us, numbering.is_update)
    durations[numbering.additions[micro, tensor]] = addition_us[tensor]
    durations[numbering.ring_start : numbering.ring_start + numbering.rings.ops] = 0.0
    return durations


def us_per_byte_moved(graph: OpGraph, us: NDArray[np.float64], update: NDArray[np.bool_]) -> float:
    """Returns the microseconds per byte that an op without computation reads or writes; see the module's text.

    `us` float64[n] is the duration of each op; `update` bool[n] marks updates.

    >>> graph = OpGraph.from_edges([1.0, 6.0, 0.0], [(0, 1, 8000), (1, 2, 16000)], op_types=["x", "AddN", "y"])
    >>> us_per_byte_moved(graph, graph.duration_us, np.zeros(3, dtype=bool))   # 24000 bytes in 6 us
    0.00025
    """
    read = graph.tensor_bytes[graph.edge_tensor]
    moved_bytes = graph.output_bytes + np.bincount(graph.consumers, read, graph.n)
    # A variable is read and written behind its handle: each is as large as the gradient that the update reads.
    variable = np.array([t in _HANDLES for t in graph.op_types], dtype=np.bool_)
    gradient = np.zeros(graph.n)
    np.maximum.at(gradient, graph.consumers, read)
    handles = np.bincount(graph.consumers, variable[graph.edge_source] & (read < _LARGE), graph.n)
    moved_bytes = moved_bytes + np.where(update, 2 * handles * gradient, 0)
    additions = np.array([t in _ADDITIONS for t in graph.op_types], dtype=np.bool_)
    usable = (moved_bytes >= _LARGE) & (us > 0)
    for sample in (usable & additions, usable & update):
        if sample.any():
            return float(us[sample].sum() / moved_bytes[sample].sum())
    return float((us[usable] / moved_bytes[usable]).min(initial=np.inf)) if usable.any() else 0.0


def _colocation(graph: OpGraph, numbering: OpNumbering, origin: Ints, batch: NDArray[np.int32]) -> dict[str, Any]:
    """Returns the colocation columns, which put copies into the group of their original.

    Originals with persistent bytes need a group, because the bytes exist once, or with replicas once on each.
    """
    ungrouped_ops = np.flatnonzero(numbering.is_repeated & (graph.colocation < 0) & (graph.persistent_bytes > 0))
    group, names = add_single_groups(graph, ungrouped_ops, "copies of")
    if np.all(numbering.width == 1):
        return {"colocation": group[origin], "colocation_names": names}
    replica = np.where(batch >= 0, batch, -1 - batch) % numbering.width[origin]
    widest = int(numbering.width.max())
    group_of_copy = np.where(group[origin] >= 0, group[origin] * widest + replica, -1)
    copied_groups = np.unique(group_of_copy[group_of_copy >= 0])
    labels = [names[k // widest] + (f"/replica{k % widest}" if k % widest else "") for k in copied_groups.tolist()]
    return {
        "colocation": np.where(group_of_copy >= 0, np.searchsorted(copied_groups, group_of_copy), -1).astype(np.int32),
        "colocation_names": tuple(labels),
    }
