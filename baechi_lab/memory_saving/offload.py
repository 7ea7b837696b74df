"""Offloading: outputs of forward ops, and optimizer state, wait on a device of kind `host` until they are read.

An offloaded output has one more reader, the op `name/offloaded`. It runs on the host, takes no time and makes the same bytes
again, which the backward ops read. So the copy to the host and the copy back are two transfers, and in between the device does
not hold the bytes; simulator, checks and views need no new rule. The copy back must not start at once. So the op on the host
waits, by a control dependency, for an op that runs early enough before the first reader for the transfer to arrive.

Optimizer state is the persistent bytes of a variable that only updates read, or those of the update itself. It lies on the host
between steps (`name/state`), is copied to the device before its update, and back after it (`name/stored`). Sources: Rhu et al.
2016 (vDNN, arXiv:1602.08124) for outputs, Ren et al. 2021 (ZeRO-Offload, arXiv:2101.06840) for state. In PyTorch's graphs an
update holds its state itself, and layers are updated one after another. There a state is copied once the backward pass and the
previous update have ended, and the update uses the received bytes.

One device that runs all ops one after the other is simulated to find an op that is early enough. O((ops + edges) log).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_number, is_list
from ..errors import InvalidInput, UnknownOpError, in_short
from ..graph import CONTROL_BYTES, HOST, Cluster, Link, OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.opgraph import OWN, VIEW
from ..graph.tensors import lasting_info, tensor_columns, text_column
from ..graph.units import format_bytes
from ..internal_warnings import warn
from ..passes.base import Pass
from ..simulator import simulate
from .training_graph import TrainingGraph

OFFLOADED, STATE, STORED = "Offloaded", "State", "Stored"
"""Types of the ops on the host."""
LAYER_UPDATE = "Update"
"""Type of the op of PyTorch's graphs that updates a layer's parameters and holds the optimizer's state."""


def offload(
    graph: OpGraph,
    cluster: Cluster,
    ops: Iterable[str] | None = None,
    *,
    share: float = 1.0,
    state: bool = False,
    host: str | None = None,
    lead: float = 2.0,
    placement: Placement | None = None,
) -> OpGraph:
    """Rewrites the graph of a step so that outputs of forward ops wait on a host until the backward pass reads them.

    Args:
        graph: the profile of a training step, not coarsened.
        cluster: has at least one device of kind "host" (`Cluster.with_host`).
        ops: names of the ops whose outputs are offloaded; None: outputs that wait longer than two transfers take.
        share: which share of their bytes, from 0 to 1, is offloaded, those that wait longest first. 0 offloads no output, any
            larger share at least one.
        state: whether optimizer state lies on the host between steps, too.
        host: name of the host; required if the cluster has several hosts.
        lead: how early a copy back starts, as a multiple of the time of its transfer.
        placement: where the ops of `graph` run; None: all on one device.

    Both graphs are simulated under `placement`, the copies on the host. If offloading raises the peak of a device, a warning
    says so, and the given graph is returned unless `ops` or `state` is set.

    Returns:
        The new graph. Its ops on the host come last and are allowed only there. The given graph is returned if no output
        waits long enough, or if the peak would rise.

    Raises:
        InvalidInput: the graph is coarse; the cluster has no device of kind "host", or only such; `host` is of another kind;
            `share` is outside 0 to 1; the backward pass reads no output of an op in `ops`.
        UnknownNameError: no device has the name `host`.
        UnknownOpError: no op has a name in `ops`.

    >>> graph = OpGraph.from_edges([1, 9, 9, 1], [(0, 1, 800), (1, 2, 8), (2, 3, 8), (0, 3, 800)], forward_of=[-1, -1, -1, 0])
    >>> cluster = Cluster.uniform(1, link=Link(1.0, 0.001)).with_host("1GB")
    >>> offload(graph, cluster).names
    ('op0', 'op1', 'op2', 'op3', 'op0/offloaded')
    """
    device = host_of(cluster, host)
    link = cluster.link_between(device, 0 if device else min(1, cluster.n - 1))
    other_kinds = tuple(dict.fromkeys(d.kind for d in cluster.devices if d.kind != HOST))
    if ops is not None and (isinstance(ops, str) or not is_list(ops)):
        raise InvalidInput(f"ops is {in_short(ops)}; it must be a list of op names")
    offload_pass = Offload(
        host=cluster.names[device],
        latency_us=link.latency_us,
        us_per_byte=link.us_per_byte,
        ops=None if ops is None else tuple(ops),
        share=share,
        state=state,
        lead=lead,
        others=other_kinds,
    )
    offload_pass.check()
    offloaded_graph = offload_pass.apply(graph)
    if offloaded_graph is graph:
        return graph
    if placement is None:
        device = next(k for k, d in enumerate(cluster.devices) if d.kind != HOST)
        original = Placement(device=np.full(graph.n, device, dtype=np.int32))
    else:
        check_records(placement=placement)
        original = placement
    risen = _risen_peak(
        graph, original, offloaded_graph, extended_placement(original, offloaded_graph, cluster), cluster
    )
    if risen is None:
        return offloaded_graph
    is_explicit = ops is not None or state
    device, before, after = risen
    device_label = "one device" if placement is None else f"device {cluster.names[device]!r}"
    warn(
        f"offloading saves nothing here: the peak of graph {graph.name!r} on {device_label} is {format_bytes(after)}, and "
        f"{format_bytes(before)} without" + ("" if is_explicit else "; the graph is returned as it was")
    )
    return offloaded_graph if is_explicit else graph


def _risen_peak(
    graph: OpGraph, placement: Placement, offloaded_graph: OpGraph, with_host: Placement, cluster: Cluster
) -> tuple[int, int, int] | None:
    """Returns the first device that computes and whose simulated peak offloading raises, with the peaks before and after."""
    before = simulate(graph, cluster, placement).peak_bytes
    after = simulate(offloaded_graph, cluster, with_host).peak_bytes
    risen = [k for k, d in enumerate(cluster.devices) if d.kind != HOST and after[k] > before[k]]
    return (risen[0], int(before[risen[0]]), int(after[risen[0]])) if risen else None


def host_of(cluster: Cluster, name: str | None = None) -> int:
    """Returns the index of the cluster's host, or of the host called `name`."""
    if not isinstance(cluster, Cluster):
        raise InvalidInput(f"cluster is a {type(cluster).__name__}; it must be a Cluster")
    hosts = [k for k, device in enumerate(cluster.devices) if device.kind == HOST]
    if name is not None:
        if (host := cluster.index(name)) not in hosts:
            raise InvalidInput(
                f"host is {name!r}, a device of kind {cluster.devices[host].kind!r}; it must be of kind 'host'"
            )
        return host
    if len(hosts) == cluster.n:
        raise InvalidInput(
            "the cluster has devices of kind 'host' only, which then compute; add a device of another kind"
        )
    if len(hosts) != 1:
        raise InvalidInput(
            f"the cluster has {len(hosts)} devices of kind 'host'; "
            + ("name one by host=" if hosts else "add one with cluster.with_host(memory_bytes)")
        )
    return hosts[0]


@dataclass(frozen=True)
class Offload(Pass):
    """Keep outputs of forward ops, or optimizer state, on a device of kind host until they are read."""

    name: ClassVar[str] = "offload"
    host: str = "host"
    latency_us: float = 134.0
    us_per_byte: float = 0.0001754
    ops: tuple[str, ...] | None = None
    share: float = 1.0
    state: bool = False
    lead: float = 2.0
    others: tuple[str, ...] = ()
    """Kinds of the devices on which all other ops may run; so no pass groups one of them with ops on the host."""

    def validate(self) -> None:
        Link(self.latency_us, self.us_per_byte)

    def check(self) -> None:
        # Before the check of types, whose error names no range.
        check_number("share", self.share, high=1.0)
        check_number("lead", self.lead)
        super().check()

    def apply(self, graph: OpGraph) -> OpGraph:
        check_records(graph=graph)
        if graph.group_of is not None:
            raise InvalidInput(f"graph {graph.name!r} is coarse; offload in the graph that it was made from")
        return _OffloadBuilder(graph, self).build()


class _OffloadBuilder:
    """Builds the graph with ops on the host. Tensors of new ops are numbered after those of the graph."""

    def __init__(self, graph: OpGraph, params: Offload):
        self.graph, self.params, self.training = graph, params, TrainingGraph(graph)
        duration_us = graph.duration_us[self.training.ordered]
        self.end_us = np.cumsum(duration_us)
        self.begin_us = self.end_us - duration_us
        self.names, self.types, self.bytes = [], [], []  # type: list[str], list[str], list[int]
        self.new_tensors: list[tuple[int, int, str]] = []  # producer, bytes, name of each new tensor
        self.reads: list[tuple[int, int]] = []  # (tensor, reader); tensors of the graph first
        # Edges of the graph that read the copy on the host instead.
        self.is_dropped = np.zeros(graph.edge_count, dtype=np.bool_)
        self.moved_bytes = np.zeros(graph.n, dtype=np.int64)  # persistent bytes that went to the host
        self.temporary, self.size = graph.temp_bytes.copy(), graph.tensor_bytes.copy()
        self.layers: list[int] = []  # updates that keep their state themselves

    def build(self) -> OpGraph:
        for tensor in self._choose_tensors():
            self._offload(tensor)
        if self.params.state:
            for op, updates in self._find_states():
                self._move_state(op, updates)
        return self._make_graph() if self.names else self.graph

    def _choose_tensors(self) -> list[int]:
        """Returns the tensors to offload, those that wait longest first."""
        graph, training = self.graph, self.training
        size = graph.tensor_bytes
        is_backward = training.is_backward[graph.consumers]
        first, last = np.full(graph.tensor_count, graph.n), training.rank[graph.tensor_producer].copy()
        np.minimum.at(first, graph.edge_tensor[is_backward], training.rank[graph.consumers[is_backward]])
        np.maximum.at(last, graph.edge_tensor[~is_backward], training.rank[graph.consumers[~is_backward]])
        producer = graph.tensor_producer
        may_offload = (
            (first < graph.n) & (size > CONTROL_BYTES) & ~training.is_backward[producer] & ~training.setup[producer]
        )
        waits = self.begin_us[np.minimum(first, graph.n - 1)] - self.end_us[last]
        may_offload &= (
            waits > 2 * self._transfer_us(size)
            if self.params.ops is None
            else self._ops_asked_for(may_offload)[producer]
        )
        tensors = np.flatnonzero(may_offload)
        tensors = tensors[np.lexsort((tensors, -waits[tensors]))]
        total_bytes = np.cumsum(size[tensors])
        limit = self.params.share * float(total_bytes[-1]) if len(total_bytes) else 0.0
        return tensors[total_bytes <= max(limit, float(total_bytes[0]) if limit else 0.0)].tolist()

    def _ops_asked_for(self, may_offload: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns bool[n]: the ops in `ops`. Each must produce a tensor for which `may_offload` is set."""
        graph, is_named = self.graph, np.zeros(self.graph.n, dtype=np.bool_)
        for name in self.params.ops or ():
            if not isinstance(name, str) or name not in graph.index:
                raise UnknownOpError(f"ops names op {in_short(name)}, which graph {graph.name!r} does not have")
            op = graph.index[name]
            if not may_offload[graph.output_ptr[op] : graph.output_ptr[op + 1]].any():
                reason = f"the backward pass reads nothing of it that is larger than {CONTROL_BYTES} bytes"
                if self.training.is_backward[op] or self.training.setup[op]:
                    reason = "it is no forward op"
                raise InvalidInput(f"op {name!r} in ops cannot be offloaded: {reason}")
            is_named[op] = True
        return is_named

    def _transfer_us(self, size: Any) -> Any:
        return self.params.latency_us + self.params.us_per_byte * size

    def _trigger(self, reader: int, size: int) -> int:
        """Returns the last op that ends at least `lead` transfers before `reader` begins."""
        at = self.begin_us[self.training.rank[reader]] - self.params.lead * float(self._transfer_us(size))
        rank = min(int(np.searchsorted(self.end_us, at, side="right")) - 1, int(self.training.rank[reader]) - 1)
        return int(self.training.ordered[max(rank, 0)])

    def _add_op(self, name: str, op_type: str, persistent: int = 0) -> int:
        self.names.append(name)
        self.types.append(op_type)
        self.bytes.append(persistent)
        return self.graph.n + len(self.names) - 1

    def _add_tensor(self, producer: int, size: int, name: str) -> int:
        self.new_tensors.append((producer, size, name))
        return self.graph.tensor_count + len(self.new_tensors) - 1

    def _add_wait(self, before: int, after: int) -> None:
        self.reads.append((self._add_tensor(before, 0, f"wait{len(self.new_tensors)}"), after))

    def _offload(self, tensor: int) -> None:
        graph, training = self.graph, self.training
        edges = np.arange(graph.consumer_ptr[tensor], graph.consumer_ptr[tensor + 1])
        edges = edges[training.is_backward[graph.consumers[edges]]]
        readers = graph.consumers[edges]
        first = int(readers[training.rank[readers].argmin()])
        producer, size = int(graph.tensor_producer[tensor]), int(graph.tensor_bytes[tensor])
        label = graph.tensor_names[tensor] if tensor > graph.output_ptr[producer] else ""
        mark = "." if label.isdigit() else ":"  # TensorFlow's names have no colon
        op = self._add_op(f"{graph.names[producer]}{mark if label else ''}{label}/offloaded", OFFLOADED)
        self.reads.append((tensor, op))
        if (trigger := self._trigger(first, size)) != producer:
            self._add_wait(trigger, op)
        fetched_tensor = self._add_tensor(op, size, "0")
        self.reads += [(fetched_tensor, int(reader)) for reader in readers]
        self.is_dropped[edges] = True

    def _find_states(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Finds the ops whose persistent bytes only updates read, and these updates; an update with its own state is both."""
        graph, training = self.graph, self.training
        pointer, successor = graph.successors
        for op in np.flatnonzero(graph.persistent_bytes > CONTROL_BYTES).tolist():
            readers = successor[pointer[op] : pointer[op + 1]]
            if training.setup[op] and len(readers) and training.update[readers].all():
                yield op, readers
            elif graph.op_types[op] == LAYER_UPDATE:
                yield op, np.array([op])

    def _move_state(self, op: int, readers: NDArray[np.int32]) -> None:
        graph = self.graph
        first = int(readers[self.training.rank[readers].argmin()])
        last = int(readers[self.training.rank[readers].argmax()])
        size = int(graph.persistent_bytes[op])
        state = self._add_op(f"{graph.names[op]}/state", STATE, size)
        store_op = self._add_op(f"{graph.names[op]}/stored", STORED)
        if op in readers:
            # A layer's state waits for the previous layer's update, that of the first layer for the update's inputs.
            if self.layers:
                self._add_wait(self.layers[-1], state)
            else:
                pointer, tensors = graph.inputs
                self.reads += [(tensor, state) for tensor in tensors[pointer[op] : pointer[op + 1]].tolist()]
            self.layers.append(op)
            outputs = np.arange(graph.output_ptr[op], graph.output_ptr[op + 1])
            data_outputs = outputs[self.size[outputs] > CONTROL_BYTES]
            self.temporary[op] += self.size[data_outputs].sum()
            self.size[data_outputs] = CONTROL_BYTES
        else:
            self._add_wait(self._trigger(first, size), state)
        fetched_tensor = self._add_tensor(state, size, "0")
        self.reads += [(fetched_tensor, int(reader)) for reader in readers]
        self.reads.append((self._add_tensor(last, size, f"state{len(self.new_tensors)}"), store_op))
        self.moved_bytes[op] = size

    def _make_graph(self) -> OpGraph:
        """Builds the graph with the ops, tensors and reads that the decisions have added."""
        graph, op_count = self.graph, len(self.names)
        used_names, names = set(graph.names), []
        for name in self.names:
            while name in used_names:
                name += "'"
            used_names.add(name)
            names.append(name)
        column = lambda values, fill: np.concatenate([values, np.full(op_count, fill, dtype=np.asarray(values).dtype)])  # noqa: E731
        elsewhere = len(graph.allowed_sets) + 1 if self.params.others else -1
        reuse = graph.reuse
        if reuse is not None:
            # What returns from the host is a view of what was sent there, or of the state that lies there.
            reuse = np.concatenate([reuse, [OWN if op_type == STORED else VIEW for op_type in self.types]])
            reuse[self.layers] = VIEW
        producer = np.concatenate([graph.tensor_producer, [m[0] for m in self.new_tensors]]).astype(np.int64)
        size = np.concatenate([self.size, [m[1] for m in self.new_tensors]]).astype(np.int64)
        labels = [*graph.tensor_names, *(m[2] for m in self.new_tensors)]
        is_kept = ~self.is_dropped
        tensor = np.concatenate([graph.edge_tensor[is_kept], [r[0] for r in self.reads]]).astype(np.int64)
        reader = np.concatenate([graph.consumers[is_kept], [r[1] for r in self.reads]]).astype(np.int64)
        return OpGraph(
            names=(*graph.names, *names),
            op_types=(*graph.op_types, *self.types),
            duration_us=column(graph.duration_us, 0.0),
            duration_by_kind={kind: column(us, 0.0) for kind, us in graph.duration_by_kind.items()},
            temp_bytes=column(self.temporary, 0),
            persistent_bytes=np.concatenate([graph.persistent_bytes - self.moved_bytes, self.bytes]),
            allowed=column(np.where(graph.allowed < 0, elsewhere, graph.allowed), len(graph.allowed_sets)),
            allowed_sets=(
                *graph.allowed_sets,
                (self.params.host,),
                *([self.params.others] if self.params.others else []),
            ),
            forward_of=column(graph.forward_of, -1),
            colocation=column(graph.colocation, -1),
            colocation_names=graph.colocation_names,
            reuse=reuse,
            output_shapes=text_column(graph.output_shapes, (*range(graph.n), *[-1] * op_count)),
            batch_readers=graph.batch_readers,
            info=lasting_info(graph.info, graph.index, lambda op: [graph.names[op]]),
            name=f"{graph.name}, offloading",
            **tensor_columns(producer, size, labels, tensor, reader, graph.n + len(self.names)),
        )


def sent_tensor(graph: OpGraph, op: int) -> int:
    """Returns the tensor that an op on the host receives; its control dependencies are tensors without bytes.

    >>> step = OpGraph.from_edges([1, 9, 1], [(0, 1, 800), (1, 2, 8), (0, 2, 800)], forward_of=[-1, -1, 0])
    >>> sent_tensor(offload(step, Cluster.uniform(1).with_host("1GB"), ["op0"]), 3)
    0
    """
    pointer, tensors = graph.inputs
    read = tensors[pointer[op] : pointer[op + 1]]
    return int(read[graph.tensor_bytes[read].argmax()])


def offloaded_placement(placement: Placement, graph: OpGraph, cluster: Cluster) -> Placement:
    """Extends a placement of a graph to the graph that `offload` returned: added ops go to their host.

    If offloading outputs raises the simulated peak of a device, a warning says so. Optimizer state is not compared.

    Args:
        placement: of the graph that was given to `offload`.
        graph: what `offload` returned.
        cluster: has the host.

    >>> placement = offloaded_placement(Placement(device=[0]), OpGraph.from_edges([1, 0], names=["a", "a/offloaded"],
    ...     allowed=[-1, 0], allowed_sets=[("host",)]), Cluster.uniform(1).with_host("1GB"))
    >>> placement.device.tolist()
    [0, 1]
    """
    check_records(placement=placement, graph=graph, cluster=cluster)
    with_host = extended_placement(placement, graph, cluster)
    original = without_offloading(graph, placement.n)
    if original is not None:
        before = placement.replace(graph_key=original.key, group_of=None, source_key=None, member_order=None)
        if risen := _risen_peak(original, before, graph, with_host, cluster):
            device, low, high = risen
            warn(
                f"offloading raises the peak of device {cluster.names[device]!r} from {format_bytes(low)} to "
                f"{format_bytes(high)} in this placement of graph {graph.name!r}; bl.offload(..., placement=) offloads only "
                "where no peak rises"
            )
    return with_host


def without_offloading(graph: OpGraph, ops: int) -> OpGraph | None:
    """Returns the graph whose outputs `offload` moved, which has `ops` ops; None if it moved optimizer state, too."""
    if ops == graph.n or set(graph.op_types[ops:]) != {OFFLOADED}:
        return None
    is_sent_back = graph.tensor_producer >= ops
    original_tensor = np.arange(graph.tensor_count)
    original_tensor[is_sent_back] = [sent_tensor(graph, op) for op in graph.tensor_producer[is_sent_back].tolist()]
    is_read = graph.consumers < ops
    numbers = np.cumsum(~is_sent_back) - 1  # ops on the host come last, and so do their tensors
    columns = {
        key: getattr(graph, key)[:ops]
        for key in ("duration_us", "temp_bytes", "persistent_bytes", "forward_of", "colocation", "allowed")
    }
    return OpGraph(
        names=graph.names[:ops],
        op_types=graph.op_types[:ops],
        duration_by_kind={kind: us[:ops] for kind, us in graph.duration_by_kind.items()},
        allowed_sets=graph.allowed_sets,
        colocation_names=graph.colocation_names,
        reuse=None if graph.reuse is None else graph.reuse[:ops],
        info=lasting_info(graph.info, graph.index, lambda op: [graph.names[op]]),
        name=graph.name,
        **columns,
        **tensor_columns(
            graph.tensor_producer[~is_sent_back],
            graph.tensor_bytes[~is_sent_back],
            [label for label, is_fetched in zip(graph.tensor_names, is_sent_back, strict=True) if not is_fetched],
            numbers[original_tensor[graph.edge_tensor[is_read]]],
            graph.consumers[is_read],
            ops,
        ),
    )


def extended_placement(placement: Placement, graph: OpGraph, cluster: Cluster) -> Placement:
    """Returns what `offloaded_placement` returns, and compares no peaks."""
    added_count = graph.n - placement.n
    hosts = [cluster.index(graph.allowed_sets[k][0]) for k in graph.allowed[placement.n :].tolist()]
    rank = placement.rank
    order = None if rank is None else np.concatenate([rank, np.zeros(added_count)])
    device = np.concatenate([placement.device, np.array(hosts, dtype=np.int32)])
    return placement.replace(
        device=device,
        order=order,
        priority=None,
        graph_key=graph.key,
        group_of=None,
        source_key=None,
        member_order=None,
    )
