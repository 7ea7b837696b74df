"""Placement: which device runs each op, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole, finite, is_list
from ..errors import InvalidInput, in_short
from .columns import check_record, numbers, text, whole_numbers
from .device import MOST_DEVICES
from .kernels.csr import Integers
from .opgraph import OpGraph
from .pickling import Picklable


@dataclass(frozen=True, eq=False, repr=False)
class Placement(Picklable):
    """The device index of every op; `Placement(device=array)` makes one by hand.

    Args:
        device: int32[n], index into the cluster's devices.
        order: float64[n], the planned position of each op: among the ready ops of a device the lowest runs first.
        priority: float64[n], the reverse of `order`: the highest runs first. Give at most one of the two.
        placer, params: the algorithm that made it and its parameters.
        seconds: time the algorithm took, without compiling at its first use.
        graph_key: `OpGraph.key` of the graph it was made for; None fits any graph of that size.
        group_of, source_key: for a placement of a coarse graph, how to read it for the original one.
        member_order: float64[len(group_of)], like `order` for each original op. The original graph is then run in this order;
            by default all ops of a group have the position of the group.
        replicas: groups of devices, each a tuple: a pipeline stage placed on the first of them runs on all, each of which takes
            every r-th micro-batch. No op may be placed on the others by name.
        info: further results of the placer, such as the planned makespan, the size of the LP or the decision log.
        graph: of a placer with `give_up`, the graph that it placed, to simulate, check and run with; not stored in files.
        gave_up: the arguments of `bl.recompute` and `bl.offload` that make `graph` of the given one, by function.
        interrupted: whether Ctrl-C ended a search, and this is the best placement until then; not stored in files.
        finer_groups: if a pipeline placed smaller groups because none of its groups fit, a sentence that says so; else empty.
        passes: in that case, the passes that made the smaller groups; not stored in files.

    >>> Placement(device=[0, 0, 1]).n
    3
    """

    device: NDArray[np.int32]
    order: NDArray[np.float64] | None = None
    priority: NDArray[np.float64] | None = None
    placer: str = "hand"
    params: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    graph_key: str | None = None
    group_of: Integers | None = None
    source_key: str | None = None
    member_order: NDArray[np.float64] | None = None
    replicas: tuple[tuple[int, ...], ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    graph: OpGraph | None = None
    gave_up: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interrupted: bool = False
    finer_groups: str = ""
    passes: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", _indices("device", self.device, "device indices"))
        if self.order is not None and self.priority is not None:
            raise InvalidInput("order and priority say the same thing in opposite directions; give one of them")
        for key in ("order", "priority"):
            value = getattr(self, key)
            if value is None:
                continue
            column = numbers(key, value)
            if column.shape != self.device.shape or np.any(np.isnan(column)):
                raise InvalidInput(
                    f"{key} has shape {column.shape}; it must have one number per op, {self.device.shape}"
                )
            object.__setattr__(self, key, column)
        if self.group_of is not None:
            group_of = _indices("group_of", self.group_of, "groups")
            if group_of.size and group_of.max() >= self.n:
                at = int(group_of.argmax())
                raise InvalidInput(f"group_of[{at}] is {group_of[at]}; the placement has groups 0..{self.n - 1}")
            object.__setattr__(self, "group_of", group_of)
        if self.member_order is not None:
            member_order = numbers("member_order", self.member_order)
            count = 0 if self.group_of is None else len(self.group_of)
            if member_order.shape != (count,) or np.any(np.isnan(member_order)):
                raise InvalidInput(
                    f"member_order has shape {member_order.shape}; it must have one number per op of group_of, ({count},)"
                )
            object.__setattr__(self, "member_order", member_order)
        for key in ("params", "gave_up", "info"):
            if not isinstance(getattr(self, key), Mapping):
                raise InvalidInput(f"{key} is {in_short(getattr(self, key))}; it must be a mapping")
        if self.graph is not None:
            check_record("graph", self.graph, OpGraph)
        text("placer", self.placer)
        text("finer_groups", self.finer_groups)
        for key in ("graph_key", "source_key"):
            if getattr(self, key) is not None:
                text(key, getattr(self, key))
        if (seconds := finite(self.seconds)) is None:
            raise InvalidInput(f"seconds is {in_short(self.seconds)}; it must be a finite number")
        object.__setattr__(self, "seconds", seconds)
        replicas = self.replicas
        if not is_list(replicas):
            raise InvalidInput(f"replicas is {in_short(replicas)}; it must be groups of two or more devices")
        groups = tuple(tuple(_indices("replicas", group, "device indices").tolist()) for group in replicas)
        members = [d for group in groups for d in group]
        if len(set(members)) != len(members) or any(len(group) < 2 for group in groups) or any(d < 0 for d in members):
            raise InvalidInput(
                f"replicas is {replicas!r}; it must be groups of two or more devices, none of them named twice"
            )
        followers = {d for group in groups for d in group[1:]}
        conflicting = sorted(followers & set(np.unique(self.device).tolist())) if followers else []
        if conflicting:
            raise InvalidInput(
                f"device {conflicting[0]} repeats what the first of its group in replicas does; no op may be placed on it"
            )
        object.__setattr__(self, "replicas", groups)
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        object.__setattr__(self, "gave_up", MappingProxyType(dict(self.gave_up)))
        object.__setattr__(self, "info", MappingProxyType(dict(self.info)))

    @property
    def n(self) -> int:
        """Number of ops placed."""
        return len(self.device)

    @property
    def devices(self) -> int:
        """Number of devices that a cluster must have: one more than the highest index, replicas included; at least 1.

        >>> Placement(device=[0, 0], replicas=[(0, 3)]).devices
        4
        """
        return max(int(self.device.max(initial=0)), *(d for group in self.replicas for d in group), 0) + 1

    @property
    def rank(self) -> NDArray[np.float64] | None:
        """float64[n] from `order` or `priority`, lowest runs first; None without a plan."""
        if self.order is not None:
            return self.order
        return None if self.priority is None else -self.priority

    def at(self, micro_batch: int) -> NDArray[np.int32]:
        """Returns int32[n]: the device of every op for one micro-batch, counted from 0; the same for all without replicas.

        >>> Placement(device=[0, 2], replicas=[(0, 1)]).at(3).tolist()
        [1, 2]
        """
        device = self.device.copy()
        for group in self.replicas:
            device[self.device == group[0]] = group[micro_batch % len(group)]
        return device

    def on(self, graph: OpGraph) -> Placement:
        """Returns the placement of `graph` that this one gives: itself, or for its groups one of the original ops.

        A placement of one micro-batch, or of its groups, also gives one of the unrolled graph. Members of a group have the
        position that `member_order` plans, else that of the group; copies have the position of their original; ties are
        broken by op index. Raises `InvalidInput` if this placement was made for another graph.
        """
        check_record("graph", graph, OpGraph)
        if self.graph_key in (graph.key, None) and self.n == graph.n:
            return self
        if self.group_of is not None and self.source_key == graph.key and len(self.group_of) == graph.n:
            return self._spread(self.group_of, graph, self.member_order)
        if graph.copy_of is not None:
            if self.graph_key == graph.copied_key or (
                self.graph_key is None and self.n == graph.copy_of.max(initial=-1) + 1
            ):
                return self._spread(graph.copy_of, graph)
            if self.group_of is not None and self.source_key == graph.copied_key:
                member_order = None if self.member_order is None else self.member_order[graph.copy_of]
                return self._spread(self.group_of[graph.copy_of], graph, member_order)
        made_for = f"{self.n} ops" + (f" (groups of {len(self.group_of)} ops)" if self.group_of is not None else "")
        key = self.graph_key if self.group_of is None or graph.n == self.n else self.source_key
        difference = graph.difference_from(key) if key not in (None, graph.key) else ""
        if not difference and graph.n in (self.n, self.n if self.group_of is None else len(self.group_of)):
            difference = "its names or tensors differ"
        raise InvalidInput(
            f"the placement was made for another graph, of {made_for}; this graph has {graph.n} ops"
            + (f", and {difference}" if difference else "")
        )

    def _spread(self, group_of: Integers, graph: OpGraph, member_order: NDArray[np.float64] | None = None) -> Placement:
        """Returns the placement of `graph` whose op `i` is placed like op `group_of[i]` of this one.

        In an unrolled graph, the ops of a replica are on the replica's device. `member_order` is the order of the ops of
        `graph`; None for that of the groups.
        """
        device, groups = self.device[group_of], self.replicas
        if groups and graph.micro_batch is not None:
            batch, replica_device = np.asarray(graph.micro_batch), device.copy()
            for group in self.replicas:
                group_ops = np.flatnonzero(device == group[0])
                once = batch[group_ops][batch[group_ops] < 0]
                if len(once) and once.min() > -len(group):
                    raise InvalidInput(
                        f"graph {graph.name!r} was unrolled for one device per stage, the placement has replicas; give it to "
                        "bl.unroll as well"
                    )
                replica = np.where(batch[group_ops] >= 0, batch[group_ops], -1 - batch[group_ops]) % len(group)
                replica_device[group_ops] = np.array(group, dtype=np.int32)[replica]
            device, groups = replica_device, ()
        group_order = None if self.order is None else self.order[group_of]
        planned_by_op = member_order is not None
        return replace(
            self,
            device=device,
            replicas=groups,
            order=member_order if planned_by_op else group_order,
            priority=None if planned_by_op or self.priority is None else self.priority[group_of],
            graph_key=graph.key,
            group_of=None,
            source_key=None,
            member_order=None,
            graph=None,
        )

    def checked(self, graph: OpGraph, devices: int) -> Placement:
        """Returns `on(graph)`. Raises `InvalidInput` if it names a device that is not below `devices`."""
        check_whole("devices", devices, low=0)
        placement = self.on(graph)
        highest_device = max((d for group in placement.replicas for d in group), default=-1)
        if highest_device >= devices:
            raise InvalidInput(f"replicas names device {highest_device}; the cluster has devices 0..{devices - 1}")
        if placement.n and placement.device.max() >= devices:
            op = int(placement.device.argmax())
            device = int(placement.device[op])
            raise InvalidInput(
                f"op {graph.names[op]!r} is placed on device {device}; the cluster has devices 0..{devices - 1}"
            )
        return placement

    def replace(self, **changes: Any) -> Placement:
        """Returns a new placement with some fields replaced."""
        return replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        same_rank = _same_order(self.rank, other.rank) and _same_order(self.member_order, other.member_order)
        same_graph = self.graph_key == other.graph_key and self.replicas == other.replicas
        return same_rank and same_graph and np.array_equal(self.device, other.device)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        highest = int(self.device.max(initial=-1))
        # A foreign file may name device 2147483647: one count per device would fill the memory.
        used = [] if not self.n else np.bincount(self.device).tolist() if highest < MOST_DEVICES else f"0..{highest}"
        return f"<Placement by {self.placer}: {self.n} ops, per device {used}, {self.seconds:.3g} s>"


def with_keys_of(graph: OpGraph, placement: Placement) -> Placement:
    """Returns the placement as one of `graph`: with its key and, if it is coarse, the groups and key of the original graph."""
    return placement.replace(graph_key=graph.key, group_of=graph.group_of, source_key=graph.source_key)


def _same_order(a: NDArray[np.float64] | None, b: NDArray[np.float64] | None) -> bool:
    """Whether two optional orders are equal."""
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _indices(key: str, values: object, meaning: str) -> NDArray[np.int32]:
    """Returns int32[n]. Raises `InvalidInput` unless `values` are whole numbers from 0."""
    column = whole_numbers(key, values, np.int32)
    array = np.asarray(values)
    if column.ndim != 1 or (column.size and array.dtype.kind not in "iuO"):
        raise InvalidInput(f"{key} must be a list of {meaning}, not {array.dtype} of shape {array.shape}")
    if column.size and column.min() < 0:
        raise InvalidInput(f"{key}[{int(column.argmin())}] is {column.min()}; {meaning} start at 0")
    return column
