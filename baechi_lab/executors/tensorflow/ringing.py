"""Sums among the replicas of a stage, as TensorFlow runs them: the rings of the unrolled graph, under its names.

Every replica adds up the gradients of its own micro-batches, puts them one behind the other and cuts that into as many parts
as there are replicas. In each round an op of the unrolled graph (`all-reduce0/round1/replica0`) adds its own part to what the
replica before has sent, or hands it on (see `passes.all_reduce`); then every replica has all sums, equal to the last bit,
so that copies of variables stay equal. What lies around these ops (reshaping, cutting) has names under `prefix`.

Numbers of other types and rows of looked-up tables are added up, or put one behind the other, once for all replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...graph import OpGraph, Placement
from ...passes.all_reduce import ALL_REDUCE
from .accumulating import Sums, Tensor, constant, made_node


class Shares:
    """Which ops of a micro-batch's graph are in stages with replicas: `width(name)` of them, in group `group(name)` or -1."""

    def __init__(self, graph: OpGraph, placed: Placement) -> None:
        self.widths = [len(group) for group in placed.replicas]
        first = {group[0]: g for g, group in enumerate(placed.replicas)}
        homes = placed.device.tolist()
        self._group = {name: first[d] for name, d in zip(graph.names, homes, strict=True) if d in first}

    def group(self, name: str) -> int:
        return self._group.get(name, -1)

    def width(self, name: str) -> int:
        return self.widths[self._group[name]] if name in self._group else 1

    def replica(self, name: str, reader: str, k: int) -> int:
        """The replica of what `name` does once that copy `k` of `reader` reads: micro-batch k, or replica -1 - k."""
        if self.group(name) < 0 or self.group(name) != self.group(reader):
            return 0
        return k % self.width(name) if k >= 0 else -1 - k


class Rings:
    """Adds rings to a GraphDef. `gradients`: (op, output) -> its type, for all tensors of micro-batches that updates read."""

    def __init__(
        self, made: Any, graph: OpGraph, whole: OpGraph, shares: Shares, sums: Sums, gradients: Mapping[Tensor, int],
        copies: Any, prefix: str,
    ) -> None:  # fmt: skip
        self.made, self.shares, self.sums, self.gradients = made, shares, sums, gradients
        self.copies, self.prefix = copies, prefix
        self.ops: dict[int, dict[tuple[int, int], str]] = {}  # group -> (round, replica) -> name in the unrolled graph
        for name, kind, i in zip(whole.names, whole.op_types, whole.copy_of.tolist(), strict=True):  # type: ignore[union-attr]
            if kind == ALL_REDUCE:
                _, at, replica = name.rsplit("/", 2)
                group = self.ops.setdefault(shares.group(graph.names[i]), {})
                group[int(at.removeprefix("round")), int(replica.removeprefix("replica"))] = name
        self._kind = {g: self._most(g) for g in self.ops}
        self._total: dict[tuple[Tensor, int], str] = {}
        for g in self.ops:
            self._ring(g)

    def of(self, tensor: Tensor, replica: int) -> str:
        """The tensor that holds the sum over all micro-batches for a replica."""
        at = (tensor, replica)
        if at not in self._total:
            if (tensor, 0) not in self._total:
                self._total[tensor, 0] = self._joined(tensor)
            self._total[at] = self._total[tensor, 0]
        return self._total[at]

    def _most(self, g: int) -> int:
        """The type whose sums go round: that of most gradients."""
        kinds = [kind for tensor, kind in self.gradients.items() if self._dense(tensor, kind, g)]
        return max(dict.fromkeys(kinds), key=kinds.count, default=0)

    def _dense(self, tensor: Tensor, kind: int, g: int) -> bool:
        import tensorflow as tf

        there = self.shares.group(tensor[0]) == g and tensor not in self.sums.rows
        return there and tf.dtypes.as_dtype(kind).is_floating

    def _own(self, tensor: Tensor, replica: int) -> str:
        """What a replica's own micro-batches give."""
        parts = list(enumerate(self.copies(*tensor)))[replica :: self.shares.width(tensor[0])]
        return self.sums.chain(tensor, self.gradients[tensor], parts, f"/replica{replica}")

    def _joined(self, tensor: Tensor) -> str:
        kind, width = self.gradients[tensor], self.shares.width(tensor[0])
        parts = [(k, self._own(tensor, k)) for k in range(width)]
        total = self.sums.chain(tensor, kind, parts, "/replicas", named=False)
        return self.sums.mean_of(tensor, kind, total, "")

    def _ring(self, g: int) -> None:
        """The ops of one ring; without gradients that go round they only keep the order."""
        ops, width, kind = self.ops[g], self.shares.widths[g], self._kind[g]
        mine = [tensor for tensor, own in self.gradients.items() if own == kind and self._dense(tensor, own, g)]
        if not mine:
            for name in ops.values():
                made_node(self.made, "NoOp", name, ())
            return
        own = [self._cut(g, k, [self._own(tensor, k) for tensor in mine]) for k in range(width)]
        for s, k in sorted(ops):
            before, part = ops.get((s - 1, (k - 1) % width)), own[k][(k - s) % width]
            inputs = [part] if before is None else [part, before] if s < width else [before]
            made_node(self.made, "AddV2" if len(inputs) > 1 else "Identity", ops[s, k], inputs, T=kind)
        for k in range(width):
            parts = [ops[width - 1 if (k + 1 - p) % width == 0 else width + (k - p) % width, k] for p in range(width)]
            self._spread(g, k, mine, parts)

    def _cut(self, g: int, k: int, sums: Sequence[str]) -> list[str]:
        """The parts of one replica's sums."""
        base, kind, width = f"{self.prefix}/ring{g}/replica{k}", self._kind[g], self.shares.widths[g]
        every = self._integers(f"{base}/every", [-1])
        flat = [
            made_node(self.made, "Reshape", f"{base}/flat{i}", [name, every], T=kind, Tshape=self._int64)
            for i, name in enumerate(sums)
        ]
        line = self._concat(f"{base}/line", flat, kind)
        size = made_node(self.made, "Size", f"{base}/size", [line], T=kind, out_type=self._int64)
        least = self._whole("FloorDiv", f"{base}/least", size, self._integers(f"{base}/width", width))
        others = self._whole("Mul", f"{base}/others", least, self._integers(f"{base}/before", width - 1))
        last = self._whole("Sub", f"{base}/last", size, others)
        return self._split(f"{base}/part", line, [last, *[least] * (width - 1)], kind)

    def _spread(self, g: int, k: int, tensors: Sequence[Tensor], parts: Sequence[str]) -> None:
        """From the complete parts to the sums of all tensors, on one replica."""
        base, kind = f"{self.prefix}/ring{g}/replica{k}", self._kind[g]
        line = self._concat(f"{base}/sums", parts, kind)
        sizes = [
            made_node(self.made, "Size", f"{base}/size{i}", [f"{base}/flat{i}"], T=kind, out_type=self._int64)
            for i in range(len(tensors))
        ]
        pieces = self._split(f"{base}/sum", line, sizes, kind)
        for i, (tensor, piece) in enumerate(zip(tensors, pieces, strict=True)):
            like = [self._own(tensor, k)]
            shape = made_node(self.made, "Shape", f"{base}/shape{i}", like, T=kind, out_type=self._int64)
            whole = made_node(self.made, "Reshape", f"{base}/whole{i}", [piece, shape], T=kind, Tshape=self._int64)
            self._total[tensor, k] = self.sums.mean_of(tensor, kind, whole, f"/replica{k}")

    # -- ops ---------------------------------------------------------------------------------------------------------

    @property
    def _int64(self) -> int:
        import tensorflow as tf

        return int(tf.int64.as_datatype_enum)

    def _integers(self, name: str, value: Any) -> str:
        import tensorflow as tf

        return constant(self.made, name, tf.constant(value, tf.int64), tf.int64)

    def _whole(self, op: str, name: str, a: str, b: str) -> str:
        return made_node(self.made, op, name, [a, b], T=self._int64)

    def _concat(self, name: str, parts: Sequence[str], kind: int) -> str:
        if len(parts) == 1:
            return parts[0]
        axis = self._integers(f"{name}/axis", 0)
        made_node(self.made, "ConcatV2", name, [*parts, axis], T=kind, Tidx=self._int64)
        self.made.node[-1].attr["N"].i = len(parts)
        return name

    def _split(self, name: str, line: str, sizes: Iterable[str], kind: int) -> list[str]:
        import tensorflow as tf

        lengths = list(sizes)
        if len(lengths) == 1:
            return [line]
        packed = made_node(self.made, "Pack", f"{name}/sizes", lengths, T=self._int64)
        self.made.node[-1].attr["N"].i = len(lengths)
        axis = constant(self.made, f"{name}/axis", tf.constant(0), tf.int32)
        made_node(self.made, "SplitV", name, [line, packed, axis], T=kind, Tlen=self._int64)
        self.made.node[-1].attr["num_split"].i = len(lengths)
        return [f"{name}:{i}" if i else name for i in range(len(lengths))]
