"""Ring all-reduce among the replicas of a pipeline stage, in TensorFlow ops with the names of the unrolled graph.

Every replica adds up the gradients of its own micro-batches, concatenates them and splits the result into as many parts as
there are replicas. In each round an op of the unrolled graph (`all-reduce0/round1/replica0`) adds its own part to the part
that the previous replica sent, or passes it on (see `passes.all_reduce`). Every replica then has all sums. They are equal to
the last bit, so the copies of variables stay equal. With three replicas and the parts a, b, c of the gradients (a1 is replica
1's part a), the ops are these. Each goes to the next replica (0 to 1 to 2 to 0), whose op of the next round reads it:

    round        0     1          2               3    4
    replica 0    a0    c2 + c0    b1 + b2 + b0    a    c
    replica 1    b1    a0 + a1    c2 + c0 + c1    b    a
    replica 2    c2    b1 + b2    a0 + a1 + a2    c    b

Helper ops (reshape, split) have names under `prefix`.

Tensors of other types and rows of looked-up tables are added up, or concatenated, once for all replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...graph import OpGraph, Placement
from ...passes.all_reduce import ALL_REDUCE
from .gradient_sums import Sums, Tensor, add_node, constant

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


class Shares:
    """Replica groups of a micro-batch's ops: op `name` has `width(name)` replicas in group `group(name)`, or -1 for none."""

    def __init__(self, graph: OpGraph, placement: Placement) -> None:
        self.widths = [len(group) for group in placement.replicas]
        first = {group[0]: g for g, group in enumerate(placement.replicas)}
        op_devices = placement.device.tolist()
        self._group = {name: first[d] for name, d in zip(graph.names, op_devices, strict=True) if d in first}

    def group(self, name: str) -> int:
        return self._group.get(name, -1)

    def width(self, name: str) -> int:
        return self.widths[self._group[name]] if name in self._group else 1

    def replica(self, name: str, reader: str, k: int) -> int:
        """Returns the replica of the op `name` that copy `k` of `reader` reads; `k` is a micro-batch, or -1 - replica."""
        if self.group(name) < 0 or self.group(name) != self.group(reader):
            return 0
        return k % self.width(name) if k >= 0 else -1 - k


class Rings:
    """Adds rings to a GraphDef. `gradients`: (op, output) -> type of every tensor of micro-batches that updates read."""

    def __init__(
        self,
        graph_def: GraphDef,
        graph: OpGraph,
        unrolled_graph: OpGraph,
        shares: Shares,
        sums: Sums,
        gradients: Mapping[Tensor, int],
        copies: Callable[[str, int], Sequence[str]],
        prefix: str,
    ) -> None:
        self.graph_def, self.shares, self.sums, self.gradients = graph_def, shares, sums, gradients
        self.copies, self.prefix = copies, prefix
        self.ops: dict[int, dict[tuple[int, int], str]] = {}  # group -> (round, replica) -> name in the unrolled graph
        copy_of = unrolled_graph.copy_of.tolist()  # type: ignore[union-attr]
        for name, kind, i in zip(unrolled_graph.names, unrolled_graph.op_types, copy_of, strict=True):
            if kind == ALL_REDUCE:
                _, at, replica = name.rsplit("/", 2)
                group = self.ops.setdefault(shares.group(graph.names[i]), {})
                group[int(at.removeprefix("round")), int(replica.removeprefix("replica"))] = name
        self._kind = {g: self._commonest_type(g) for g in self.ops}
        self._total: dict[tuple[Tensor, int], str] = {}
        for g in self.ops:
            self._ring(g)

    def of(self, tensor: Tensor, replica: int) -> str:
        """Returns the name of the sum of `tensor` over all micro-batches, on a replica."""
        at = (tensor, replica)
        if at not in self._total:
            if (tensor, 0) not in self._total:
                kind, width = self.gradients[tensor], self.shares.width(tensor[0])
                replica_sums = [(k, self._replica_sum(tensor, k)) for k in range(width)]
                total = self.sums.chain(tensor, kind, replica_sums, "/replicas", with_name=False)
                self._total[tensor, 0] = self.sums.mean_of(tensor, kind, total, "")
            self._total[at] = self._total[tensor, 0]
        return self._total[at]

    def _commonest_type(self, g: int) -> int:
        """Returns the data type of most gradients. Only gradients of this type use the ring."""
        kinds = [kind for tensor, kind in self.gradients.items() if self._dense(tensor, kind, g)]
        return max(dict.fromkeys(kinds), key=kinds.count, default=0)

    def _dense(self, tensor: Tensor, kind: int, g: int) -> bool:
        import tensorflow as tf

        of_group = self.shares.group(tensor[0]) == g and tensor not in self.sums.rows
        return of_group and tf.dtypes.as_dtype(kind).is_floating

    def _replica_sum(self, tensor: Tensor, replica: int) -> str:
        """Returns the sum of `tensor` over a replica's own micro-batches."""
        addends = list(enumerate(self.copies(*tensor)))[replica :: self.shares.width(tensor[0])]
        return self.sums.chain(tensor, self.gradients[tensor], addends, f"/replica{replica}")

    def _ring(self, g: int) -> None:
        """Adds the ops of one ring. Without gradients for the ring, they are NoOps that only keep the order."""
        ops, width, kind = self.ops[g], self.shares.widths[g], self._kind[g]
        ring_tensors = [t for t, dtype in self.gradients.items() if dtype == kind and self._dense(t, dtype, g)]
        if not ring_tensors:
            for name in ops.values():
                add_node(self.graph_def, "NoOp", name, ())
            return
        parts_of_replica = [
            self._cut_into_parts(g, k, [self._replica_sum(tensor, k) for tensor in ring_tensors]) for k in range(width)
        ]
        for s, k in sorted(ops):
            received_chunk, chunk = ops.get((s - 1, (k - 1) % width)), parts_of_replica[k][(k - s) % width]
            inputs = [chunk] if received_chunk is None else [chunk, received_chunk] if s < width else [received_chunk]
            add_node(self.graph_def, "AddV2" if len(inputs) > 1 else "Identity", ops[s, k], inputs, T=kind)
        for k in range(width):
            complete_parts = [
                ops[width - 1 if (k + 1 - p) % width == 0 else width + (k - p) % width, k] for p in range(width)
            ]
            # Split the complete parts into the sums of all tensors, on one replica.
            base = f"{self.prefix}/ring{g}/replica{k}"
            line = self._concat(f"{base}/sums", complete_parts, kind)
            sizes = [
                add_node(self.graph_def, "Size", f"{base}/size{i}", [f"{base}/flat{i}"], T=kind, out_type=self._int64)
                for i in range(len(ring_tensors))
            ]
            pieces = self._split_tensor(f"{base}/sum", line, sizes, kind)
            for i, (tensor, piece) in enumerate(zip(ring_tensors, pieces, strict=True)):
                like = [self._replica_sum(tensor, k)]
                shape = add_node(self.graph_def, "Shape", f"{base}/shape{i}", like, T=kind, out_type=self._int64)
                whole_gradient = add_node(
                    self.graph_def, "Reshape", f"{base}/whole{i}", [piece, shape], T=kind, Tshape=self._int64
                )
                self._total[tensor, k] = self.sums.mean_of(tensor, kind, whole_gradient, f"/replica{k}")

    def _cut_into_parts(self, g: int, k: int, sums: Sequence[str]) -> list[str]:
        """Concatenates one replica's sums and splits them into one part per replica."""
        base, kind, width = f"{self.prefix}/ring{g}/replica{k}", self._kind[g], self.shares.widths[g]
        every = self._integers(f"{base}/every", [-1])
        flat = [
            add_node(self.graph_def, "Reshape", f"{base}/flat{i}", [name, every], T=kind, Tshape=self._int64)
            for i, name in enumerate(sums)
        ]
        line = self._concat(f"{base}/line", flat, kind)
        size = add_node(self.graph_def, "Size", f"{base}/size", [line], T=kind, out_type=self._int64)
        part_size = self._integer_op("FloorDiv", f"{base}/least", size, self._integers(f"{base}/width", width))
        equal_parts_size = self._integer_op(
            "Mul", f"{base}/others", part_size, self._integers(f"{base}/before", width - 1)
        )
        last_size = self._integer_op("Sub", f"{base}/last", size, equal_parts_size)
        return self._split_tensor(f"{base}/part", line, [last_size, *[part_size] * (width - 1)], kind)

    # -- ops ---------------------------------------------------------------------------------------------------------

    @property
    def _int64(self) -> int:
        import tensorflow as tf

        return int(tf.int64.as_datatype_enum)

    def _integers(self, name: str, value: object) -> str:
        import tensorflow as tf

        return constant(self.graph_def, name, tf.constant(value, tf.int64), tf.int64)

    def _integer_op(self, op: str, name: str, a: str, b: str) -> str:
        return add_node(self.graph_def, op, name, [a, b], T=self._int64)

    def _concat(self, name: str, tensors: Sequence[str], kind: int) -> str:
        if len(tensors) == 1:
            return tensors[0]
        axis = self._integers(f"{name}/axis", 0)
        add_node(self.graph_def, "ConcatV2", name, [*tensors, axis], T=kind, Tidx=self._int64)
        self.graph_def.node[-1].attr["N"].i = len(tensors)
        return name

    def _split_tensor(self, name: str, line: str, sizes: Iterable[str], kind: int) -> list[str]:
        import tensorflow as tf

        lengths = list(sizes)
        if len(lengths) == 1:
            return [line]
        packed_lengths = add_node(self.graph_def, "Pack", f"{name}/sizes", lengths, T=self._int64)
        self.graph_def.node[-1].attr["N"].i = len(lengths)
        axis = constant(self.graph_def, f"{name}/axis", tf.constant(0), tf.int32)
        add_node(self.graph_def, "SplitV", name, [line, packed_lengths, axis], T=kind, Tlen=self._int64)
        self.graph_def.node[-1].attr["num_split"].i = len(lengths)
        return [f"{name}:{i}" if i else name for i in range(len(lengths))]
