"""OpGraph: the operators of one training step and the tensors between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import check_position, is_list
from ..errors import CycleError, InvalidInput, UnknownOpError, in_short
from .columns import numbers, text, texts, whole_numbers
from .kernels.csr import Integers, distinct, frozen_array, grouped_sum, inverse, offsets, topological_order, transpose
from .pickling import Picklable
from .units import format_us
from .validation import check_ids, validate

if TYPE_CHECKING:
    import networkx

CONTROL_BYTES = 4
"""Size of the tensor that stands for a control dependency (docs/simulated-time.md)."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Types of ops by which ranks exchange tensors. They occupy the communication lane of their device."""

OWN, OVERWRITES, VIEW, GROWS = range(4)
"""Values of `OpGraph.reuse`, where an op's outputs lie:

- OWN: in new bytes.
- OVERWRITES: in an input of their size that no other op still needs.
- VIEW: in an input that is at least as large, else in persistent bytes (of a variable that is read).
- GROWS: in new bytes; the op's persistent bytes exist from its start on, as gradients of parameters do.
"""


@dataclass(frozen=True, eq=False, repr=False)
class OpGraph(Picklable):
    """A DAG of `n` operators; a tensor has one producer, a size, and any number of consumers.

    Arrays are copied when needed and made read-only; `None` means the default.

    Args:
        names: `n` distinct operator names; the position of a name is the op's index.
        duration_us: float64[n], microseconds on the reference device.
        tensor_producer: int32[T], op that produces each tensor, ascending.
        tensor_bytes: int64[T], size of each tensor.
        consumer_ptr, consumers: int64[T+1] and int32[E]: ops that read tensor `t` are
            `consumers[consumer_ptr[t]:consumer_ptr[t+1]]`, each once.
        tensor_names: `T` names, distinct per producer (default "0", "1", ... per producer).
        op_types: `n` type names (default "op").
        duration_by_kind: device kind -> float64[n]; kinds not named use `duration_us`.
        temp_bytes, persistent_bytes: int64[n] (default 0).
        colocation, colocation_names: int32[n], index into the names of the groups, -1 for none.
        allowed, allowed_sets: int32[n], index into the sets (tuples of device names or kinds), -1 for any device.
        forward_of: int32[n], the forward op that a backward op belongs to, -1 for none.
        group_of: for a coarse graph, int32[original ops] -> op of this graph.
        source_key: for a coarse graph, `key` of the original graph.
        name: of the whole graph, for titles.
        copy_of, copied_key: for an unrolled graph (`bl.unroll`), int32[n], the micro-batch's op that each op copies or
            belongs to, and `key` of the micro-batch's graph; a placement of that one is a placement of this one.
        micro_batch: for an unrolled graph, int32[n], the micro-batch of each op, -1 for what is done once
            (-1 - k on the k-th replica of its pipeline stage).
        reuse: int8[n], where the op's outputs lie in memory, if known: `OWN`, `OVERWRITES`, `VIEW` or `GROWS`. By
            default every tensor has bytes of its own.
        output_shapes: `n` texts for people, types and shapes of what each op makes, such as "f32[32,1000]"; "" where unknown,
            empty by default. Not part of comparisons.
        batch_readers: of a profile of a PyTorch model, the names of the calls of functions between layers that take an input
            of the model. Not part of comparisons.
        info: further facts about the costs, as JSON has it; not part of comparisons. In a measured profile, `info["measured"]`
            says how its repeats differed and how much other programs used meanwhile; see
            `baechi_lab.profilers.machine_load.summarize_repeats`.

    Raises:
        CostError: a duration or size that is negative, NaN or infinite.
        CycleError: the graph is not a DAG.
        DuplicateNameError: two ops, or two tensors of one producer, of one name.
        UnknownOpError: an index that is no op.
        ColocationError: ops of one group that may not run on one device.
        InvalidInput: an array of the wrong length or type.

    >>> g = OpGraph.from_edges([5.0, 10.0, 5.0], [(0, 1, 8), (1, 2, 8)])
    >>> g.n, g.edge_count, float(g.duration_us.sum())
    (3, 2, 20.0)
    """

    names: tuple[str, ...]
    duration_us: NDArray[np.float64]
    tensor_producer: NDArray[np.int32]
    tensor_bytes: NDArray[np.int64]
    consumer_ptr: NDArray[np.int64]
    consumers: NDArray[np.int32]
    tensor_names: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    duration_by_kind: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    temp_bytes: NDArray[np.int64] = None  # type: ignore[assignment]
    persistent_bytes: NDArray[np.int64] = None  # type: ignore[assignment]
    colocation: NDArray[np.int32] = None  # type: ignore[assignment]
    colocation_names: tuple[str, ...] = ()
    allowed: NDArray[np.int32] = None  # type: ignore[assignment]
    allowed_sets: tuple[tuple[str, ...], ...] = ()
    forward_of: NDArray[np.int32] = None  # type: ignore[assignment]
    group_of: Integers | None = None
    source_key: str | None = None
    copy_of: Integers | None = None
    copied_key: str | None = None
    micro_batch: Integers | None = None
    reuse: NDArray[np.int8] | None = None
    output_shapes: tuple[str, ...] = ()
    batch_readers: tuple[str, ...] = ()
    name: str = "graph"
    info: Mapping[str, Any] = field(default_factory=dict)

    original: ClassVar[OpGraph | None] = None
    """The graph from which `bl.optimize` made this coarse graph in this process; it is not stored."""

    def __post_init__(self) -> None:
        names = texts("names", self.names)
        n = len(names)
        set_field = lambda key, value: object.__setattr__(self, key, value)  # noqa: E731
        set_field("names", names)
        set_field("op_types", texts("op_types", self.op_types) or ("op",) * n)
        set_field("output_shapes", texts("output_shapes", self.output_shapes))
        set_field("batch_readers", texts("batch_readers", self.batch_readers))
        set_field("duration_us", numbers("duration_us", self.duration_us))
        if not isinstance(self.duration_by_kind, Mapping):
            raise InvalidInput(
                f"duration_by_kind is {in_short(self.duration_by_kind)}; it must map device kinds to durations"
            )
        by_kind = {text("duration_by_kind", k): v for k, v in self.duration_by_kind.items()}
        kinds = {k: numbers(f"duration_by_kind[{k!r}]", v) for k, v in sorted(by_kind.items())}
        set_field("duration_by_kind", MappingProxyType(kinds))
        for key, dtype in (
            ("tensor_producer", np.int32),
            ("tensor_bytes", np.int64),
            ("consumer_ptr", np.int64),
            ("consumers", np.int32),
        ):
            set_field(key, whole_numbers(key, getattr(self, key), dtype))
        for key in ("temp_bytes", "persistent_bytes"):
            column = getattr(self, key)
            set_field(key, whole_numbers(key, np.zeros(n) if column is None else column, np.int64))
        for key in ("colocation", "allowed", "forward_of"):
            column = getattr(self, key)
            set_field(key, whole_numbers(key, np.full(n, -1) if column is None else column, np.int32))
        set_field("colocation_names", texts("colocation_names", self.colocation_names))
        if isinstance(self.allowed_sets, str) or not is_list(self.allowed_sets):
            raise InvalidInput(f"allowed_sets is {in_short(self.allowed_sets)}; it must be a list of lists of texts")
        set_field("allowed_sets", tuple(texts("allowed_sets", s) for s in self.allowed_sets))
        for key in ("group_of", "copy_of", "micro_batch"):
            if getattr(self, key) is not None:
                set_field(key, whole_numbers(key, getattr(self, key), np.int32))
        if self.reuse is not None:
            set_field("reuse", whole_numbers("reuse", self.reuse, np.int8))
        if self.source_key is not None:
            text("source_key", self.source_key)
        text("name", self.name)
        if not isinstance(self.info, Mapping):
            raise InvalidInput(f"info is {in_short(self.info)}; it must be a mapping")
        set_field("info", MappingProxyType(dict(self.info)))
        set_field(
            "tensor_names", texts("tensor_names", self.tensor_names) or default_tensor_names(self.tensor_producer)
        )
        validate(self)

    # -- shape ---------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of operators."""
        return len(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def tensor_count(self) -> int:
        return len(self.tensor_producer)

    @property
    def edge_count(self) -> int:
        """Number of (tensor, consumer) pairs."""
        return len(self.consumers)

    @cached_property
    def edge_source(self) -> NDArray[np.int32]:
        """int32[E], the producer of each (tensor, consumer) pair."""
        return np.repeat(self.tensor_producer, np.diff(self.consumer_ptr))

    @cached_property
    def edge_tensor(self) -> NDArray[np.int32]:
        """int32[E], the tensor of each (tensor, consumer) pair."""
        return np.repeat(np.arange(self.tensor_count, dtype=np.int32), np.diff(self.consumer_ptr))

    @cached_property
    def output_bytes(self) -> NDArray[np.int64]:
        """int64[n]: the bytes of all outputs of each op.

        >>> OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (0, 2, 20)]).output_bytes.tolist()
        [50, 0, 0]
        """
        return frozen_array(grouped_sum(self.tensor_bytes, self.tensor_producer, self.n), np.int64)

    @cached_property
    def device_unit(self) -> NDArray[np.int64]:
        """int64[n]: ops with the same number must share a device: the op's colocation group, else a number of its own.

        >>> OpGraph.from_edges([1, 1, 1], colocation=[0, -1, 0], colocation_names=["w"]).device_unit.tolist()
        [0, 2, 0]
        """
        own_number = len(self.colocation_names) + np.arange(self.n)
        return frozen_array(np.where(self.colocation >= 0, self.colocation, own_number), np.int64)

    @cached_property
    def output_ptr(self) -> NDArray[np.int64]:
        """int64[n+1]: tensors `output_ptr[i]:output_ptr[i+1]` are produced by op `i`."""
        return offsets(self.tensor_producer, self.n)

    @cached_property
    def inputs(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """CSR op -> tensors it reads: int64[n+1] pointers and int32[E] tensors, ascending."""
        return transpose(self.consumer_ptr, self.consumers, self.n)

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """int32[n]: the ops in topological order, smallest index first among the ready."""
        order = topological_order(self.n, self.edge_source, self.consumers)
        if order is None:
            import networkx as nx

            edges = nx.DiGraph(zip(self.edge_source.tolist(), self.consumers.tolist(), strict=True))
            ops = [self.names[u] for u, _ in nx.find_cycle(edges)]
            cycle_ops = ops if len(ops) <= 8 else [*ops[:7], "..."]
            raise CycleError(f"graph {self.name!r} has a cycle, for example {' -> '.join([*cycle_ops, ops[0]])}")
        return frozen_array(order, np.int32)

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """int64[n]: where each op stands in `order`."""
        return frozen_array(inverse(self.order), np.int64)

    @cached_property
    def on_communication_lane(self) -> NDArray[np.bool_]:
        """bool[n]: collectives, which run beside what their device computes.

        >>> OpGraph.from_edges([1, 2], op_types=["matmul", "all_reduce"]).on_communication_lane.tolist()
        [False, True]
        """
        return frozen_array([op_type in COLLECTIVES for op_type in self.op_types], np.bool_)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Operator name -> index."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def latest_durations(self) -> list[tuple[object, NDArray[np.float64]]]:
        """Cache of `baechi_lab.graph.costs.durations`: the latest cluster and its table; empty before the first call."""
        return []

    # -- identity ------------------------------------------------------------------------------------

    @cached_property
    def key(self) -> str:
        """Hash of the structure (names, tensors, consumers) without costs; a placement belongs to a structure."""
        digest = hashlib.blake2b("\0".join(self.names).encode(), digest_size=16)
        for array in (self.tensor_producer, self.consumer_ptr, self.consumers):
            digest.update(array.tobytes())
        key = digest.hexdigest()
        _graph_of_key[key] = self
        return key

    def difference_from(self, key: str) -> str:
        """Returns what differs first from the structure of the graph with that `key`: a name, or what an op reads.

        A key is a hash, so the text is empty once that graph is freed.

        >>> graph, other = (OpGraph.from_edges([1, 1], names=["a", b]) for b in "bc")
        >>> graph.difference_from(other.key)
        "its op 1 is 'b' instead of 'c'"
        """
        expected = _graph_of_key.get(key)
        if expected is None:
            return ""
        for op, (name, expected_name) in enumerate(zip(self.names, expected.names, strict=False)):
            if name != expected_name:
                return f"its op {op} is {name!r} instead of {expected_name!r}"
        (offsets, producers), (expected_offsets, expected_producers) = self.predecessors, expected.predecessors
        for op, name in enumerate(self.names[: expected.n]):
            inputs = producers[offsets[op] : offsets[op + 1]]
            expected_inputs = expected_producers[expected_offsets[op] : expected_offsets[op + 1]]
            if not np.array_equal(inputs, expected_inputs):
                return f"its op {name!r} reads other ops"
        return f"its tensors differ: {self.tensor_count} instead of {expected.tensor_count}"

    @cached_property
    def content_key(self) -> str:
        """Hash of all columns, costs included; cached results depend on it."""
        digest = hashlib.blake2b(self.key.encode(), digest_size=16)
        for times in (self.duration_us, *self.duration_by_kind.values()):
            digest.update(times.tobytes())
        for sizes in (self.tensor_bytes, self.temp_bytes, self.persistent_bytes):
            digest.update(sizes.tobytes())
        for indices in (self.colocation, self.allowed, self.forward_of):
            digest.update(indices.tobytes())
        for column in (self.group_of, self.copy_of, self.micro_batch, self.reuse):
            if column is not None:
                digest.update(column.tobytes())
        text = (
            self.tensor_names,
            self.op_types,
            tuple(self.duration_by_kind),
            self.colocation_names,
            self.allowed_sets,
        )
        digest.update(repr((text, self.source_key, self.copied_key)).encode())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpGraph) and self.content_key == other.content_key

    def __hash__(self) -> int:
        return hash(self.content_key)

    def __repr__(self) -> str:
        coarse = f", of {len(self.group_of)} original ops" if self.group_of is not None else ""
        work = format_us(float(self.duration_us.sum()))
        return (
            f"<OpGraph {self.name!r}: {self.n} ops{coarse}, {self.tensor_count} tensors, "
            f"{self.edge_count} edges, {work} of work>"
        )

    # -- parts ---------------------------------------------------------------------------------------

    @cached_property
    def members(self) -> tuple[NDArray[np.int64], ...]:
        """For each op, the indices of its original ops; in a graph that is not coarse, its own."""
        group = np.arange(self.n) if self.group_of is None else self.group_of
        order = np.argsort(group, kind="stable")
        pointer = offsets(group, self.n)
        return tuple(order[pointer[i] : pointer[i + 1]] for i in range(self.n))

    def outputs(self, op: int) -> range:
        """Returns the tensors that `op` produces. Raises `UnknownOpError` for an invalid index."""
        op = check_position("op", op, self.n, "ops", UnknownOpError)
        return range(int(self.output_ptr[op]), int(self.output_ptr[op + 1]))

    def tensor_consumers(self, tensor: int) -> NDArray[np.int32]:
        """Returns int32[k], the ops that read `tensor`. Raises `InvalidInput` for an invalid index."""
        tensor = check_position("tensor", tensor, self.tensor_count, "tensors")
        return self.consumers[self.consumer_ptr[tensor] : self.consumer_ptr[tensor + 1]]

    def tensor_label(self, tensor: int) -> str:
        """Returns `producer:tensor`, for messages and charts. Raises `InvalidInput` for an invalid index."""
        tensor = check_position("tensor", tensor, self.tensor_count, "tensors")
        return f"{self.names[self.tensor_producer[tensor]]}:{self.tensor_names[tensor]}"

    @cached_property
    def successors(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """CSR op -> distinct successor ops."""
        return _distinct_pairs(self.edge_source, self.consumers, self.n)

    @cached_property
    def predecessors(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """CSR op -> distinct predecessor ops."""
        return _distinct_pairs(self.consumers, self.edge_source, self.n)

    def replace(self, **columns: Any) -> OpGraph:
        """Returns a new graph with some columns replaced."""
        return replace(self, **columns)

    # -- other forms ---------------------------------------------------------------------------------

    @classmethod
    def from_edges(
        cls,
        duration_us: ArrayLike,
        edges: Iterable[tuple[int, int, int]] = (),
        *,
        names: Sequence[str] | None = None,
        **columns: Any,
    ) -> OpGraph:
        """Returns a graph from `(producer, consumer, bytes)` triples; equal sizes of one producer are one tensor.

        `duration_us` has one entry per op; other columns as in the constructor.

        >>> OpGraph.from_edges([1, 1, 1], [(0, 1, 4), (0, 2, 4)]).tensor_count
        1
        """
        duration = numbers("duration_us", duration_us).reshape(-1)
        producer, consumer, size = _triples(edges)
        n = len(duration)
        op_names = texts("names", names) if names is not None else tuple(f"op{i}" for i in range(n))
        check_ids("edge", np.concatenate([producer, consumer]), n)
        unique, tensor = np.unique(np.stack([producer, size], axis=1), axis=0, return_inverse=True)
        pairs = np.unique(np.stack([tensor.reshape(-1), consumer], axis=1), axis=0)
        return cls(
            names=op_names,
            duration_us=duration,
            tensor_producer=unique[:, 0].astype(np.int32),
            tensor_bytes=unique[:, 1],
            consumer_ptr=offsets(pairs[:, 0], len(unique)),
            consumers=pairs[:, 1].astype(np.int32),
            **columns,
        )

    if TYPE_CHECKING:  # set in `baechi_lab.graph`, from `baechi_lab.graph.formats.networkx_bridge`

        def to_networkx(self) -> networkx.DiGraph: ...

        @classmethod
        def from_networkx(cls, graph: networkx.DiGraph, name: str | None = None) -> OpGraph: ...


def _triples(edges: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns int64[E] each: producers, consumers and bytes of a list of triples, exactly as given."""
    if not is_list(edges):
        raise InvalidInput(f"edges is {in_short(edges)}; it must be a list of (producer, consumer, bytes)")
    try:
        columns = list(edges.T if isinstance(edges, np.ndarray) else zip(*edges, strict=True)) or [(), (), ()]
    except (TypeError, ValueError):
        columns = []
    if len(columns) != 3:
        wrong = next((edge for edge in edges if not is_list(edge) or len(edge) != 3), edges)
        raise InvalidInput(f"edges holds an entry that is not (producer, consumer, bytes): {in_short(wrong)}")
    fields = ("producer of edge", "consumer of edge", "tensor_bytes")
    producer, consumer, size = (whole_numbers(field, column) for field, column in zip(fields, columns, strict=True))
    if any(column.ndim != 1 for column in (producer, consumer, size)):
        raise InvalidInput("edges holds an entry in which a number is a list; each is (producer, consumer, bytes)")
    return producer, consumer, size


def default_tensor_names(producer: Integers) -> tuple[str, ...]:
    """Returns the position of each tensor among those of its producer, as text."""
    if len(producer) == 0:
        return ()
    first = np.r_[True, producer[1:] != producer[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(len(producer)), 0))
    text = {int(k): str(k) for k in np.unique(np.arange(len(producer)) - start)}
    return tuple(text[int(k)] for k in np.arange(len(producer)) - start)


def _distinct_pairs(row: Integers, column: Integers, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    pair = distinct(row.astype(np.int64) * max(n, 1) + column)
    return offsets(pair // max(n, 1), n), (pair % max(n, 1)).astype(np.int32)


_graph_of_key: WeakValueDictionary[str, OpGraph] = WeakValueDictionary()
"""The graphs of this process by their keys, so that an error can say what differs from them."""
