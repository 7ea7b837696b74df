"""Data parallelism and ZeRO as a pass: adds to the graph of one copy the collectives with the other copies.

With zero 0 the gradients of a bucket are all-reduced as soon as all of its backward ops have run. ZeRO-1 reduce-scatters them,
updates a share of the parameters, and all-gathers these. ZeRO-2 keeps only a share of the gradients: every micro-batch
reduce-scatters its own. ZeRO-3 (FSDP) keeps only a share of the parameters: each bucket is gathered before its forward and its
backward pass, `prefetch` ops ahead. (S. Rajbhandari et al., "ZeRO", 2020, arXiv:1910.02054; Y. Zhao et al., "PyTorch FSDP",
2023, arXiv:2304.11277.) O(ops + edges).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..checks import check_flag, check_whole
from ..errors import InvalidInput
from ..graph import CONTROL_BYTES, OpGraph
from ..graph.tensors import TensorTable, text_column


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are reduced together.

    Args:
        name: name of the added ops.
        forward: the first op that reads the parameters; it holds their persistent bytes.
        backward: ops that produce the gradients.
        update: the op that updates the parameters, -1 if the graph has none.
        parameter_bytes: bytes of the parameters in the precision that kernels read.
        gradient_bytes: bytes of the reduced gradients.
        kept_gradient_bytes, state_bytes: bytes of gradients and optimizer states within the persistent bytes of `forward`.
        copies: the number of devices that hold the same parameters and reduce their gradients.
        axis: the axis of these devices, for `collective_us`.
        rank: which of the graph's devices holds the parameters, where a graph has several, as a pipeline has.
    """

    name: str
    forward: int
    backward: tuple[int, ...]
    update: int
    parameter_bytes: int
    gradient_bytes: int
    kept_gradient_bytes: int
    state_bytes: int
    copies: int
    axis: str = "dp+cp"
    rank: int = 0

    def resident_bytes(self, zero: int) -> int:
        """Returns the bytes of parameters, gradients and optimizer states that a device holds during the whole step."""
        size = self.parameter_bytes + self.kept_gradient_bytes + self.state_bytes
        divided_bytes = (self.state_bytes if zero >= 1 else 0) + (self.kept_gradient_bytes if zero >= 2 else 0)
        divided_bytes += self.parameter_bytes if zero >= 2 else 0  # with zero 2, the gathered copy is another tensor
        return size - divided_bytes + -(-divided_bytes // self.copies)

    def collectives(self, zero: int) -> tuple[tuple[str, int], ...]:
        """Returns kind and bytes of the bucket's collectives: of a step, with zero 2 and 3 of every micro-batch."""
        if self.copies == 1:
            return ()
        gather = "all_gather", self.parameter_bytes
        if zero == 0:
            return (("all_reduce", self.gradient_bytes),)
        return (("reduce_scatter", self.gradient_bytes), gather, *([gather] if zero == 3 else ()))


CollectiveTime = Callable[[str, str, float], float]
"""A function from kind, axis and bytes of a collective to its microseconds."""


def divide_data(
    graph: OpGraph,
    buckets: Sequence[Bucket],
    collective_us: CollectiveTime,
    *,
    zero: int = 0,
    overlap: bool = True,
    overlap_gather: bool = False,
    prefetch: int = 1,
    gather_us: float = 0.0,
) -> OpGraph:
    """Adds the collectives of data parallelism to the graph of one copy.

    Args:
        graph: one micro-batch of one rank.
        buckets: the buckets of all parameters, in the order of the forward pass.
        collective_us: a function that returns the microseconds of a collective.
        zero: 0 to 3, see the module's text.
        overlap: if False, with zero 0 and 1, no gradient is sent before all backward ops of the rank have run.
        overlap_gather: with zero 1, whether the parameters of a bucket are gathered in the next step, before its first forward
            op, or at the end of the step. A graph of a step that is one of many begins with the gathering.
        prefetch: with zero 2 and 3, the number of forward ops whose buckets are gathered ahead of the one that computes.
        gather_us: time of the host that is added to each gathering of parameters.

    Returns:
        A new graph. Optimizer states, gradients (from zero 2) and parameters (zero 3) of a bucket are divided by its copies, and
        so is the time of its update. Buckets with one copy do not change.
    """
    check_whole("zero", zero, 0)
    check_whole("prefetch", prefetch, 0)
    check_flag("overlap", overlap)
    check_flag("overlap_gather", overlap_gather)
    if zero > 3:
        raise InvalidInput(f"zero is {zero}; it must be 0, 1, 2 or 3")
    writer = _GraphExtension(graph)
    shared_buckets = [bucket for bucket in buckets if bucket.copies > 1]
    blocks = list({bucket.forward: bucket for bucket in shared_buckets}.values())
    backward_of_rank: dict[int, list[int]] = {}
    for bucket in buckets:
        backward_of_rank.setdefault(bucket.rank, []).extend(bucket.backward)
    for bucket in shared_buckets:
        gradient_ops = bucket.backward if overlap or zero >= 2 else dict.fromkeys(backward_of_rank[bucket.rank])
        writer.persistent[bucket.forward] += bucket.resident_bytes(zero) - bucket.resident_bytes(0)
        if zero == 0:
            op = writer.add(
                f"{bucket.name}/all_reduce",
                "all_reduce",
                collective_us("all_reduce", bucket.axis, bucket.gradient_bytes),
            )
            writer.wait(gradient_ops, op)
        elif zero == 1:
            duration_us = collective_us("reduce_scatter", bucket.axis, bucket.gradient_bytes)
            op = writer.add(f"{bucket.name}/reduce_scatter", "reduce_scatter", duration_us)
            writer.wait(gradient_ops, op)
        else:
            duration_us = collective_us("reduce_scatter", bucket.axis, bucket.gradient_bytes)
            op = writer.add(f"{bucket.name}/reduce_scatter", "reduce_scatter", duration_us, forward_of=bucket.forward)
            writer.tensor(bucket.backward[-1], f"{bucket.name}/gradients", bucket.gradient_bytes, [op])
            writer.wait(bucket.backward, op)
            _gather(writer, bucket, blocks, collective_us, zero, prefetch, gather_us)
        if bucket.update >= 0:
            writer.wait([op], bucket.update)
            if zero == 1:
                duration_us = collective_us("all_gather", bucket.axis, bucket.parameter_bytes)
                gather = writer.add(f"{bucket.name}/all_gather", "all_gather", duration_us)
                if overlap_gather:  # once per step, as ops are that depend on variables alone
                    writer.wait([writer.add(f"{bucket.name}/parameters", "Variable", 0.0)], gather)
                    writer.wait([gather], bucket.forward)
                else:
                    writer.wait([bucket.update], gather)
    if zero:
        writer.share_updates(buckets)
    return writer.graph()


def _gather(
    writer: _GraphExtension,
    bucket: Bucket,
    blocks: Sequence[Bucket],
    collective_us: CollectiveTime,
    zero: int,
    prefetch: int,
    gather_us: float,
) -> None:
    """Gathers a bucket before its forward pass and, with zero 3, again before its backward pass.

    `blocks`: one bucket of every forward op; buckets of one op are gathered one after the other. `forward_wait` and
    `backward_wait` are the blocks whose passes the gathering waits for, so that it does not run too far ahead.
    """
    position = next(k for k, block in enumerate(blocks) if block.forward == bucket.forward)
    forward_wait, backward_wait = position - prefetch - 1, position + prefetch + 1
    duration_us = collective_us("all_gather", bucket.axis, bucket.parameter_bytes) + gather_us
    label = f"{bucket.name}/parameters"
    gather = writer.add(f"{bucket.name}/all_gather", "all_gather", duration_us)
    writer.tensor(gather, label, bucket.parameter_bytes, [bucket.forward, *(bucket.backward if zero == 2 else ())])
    if forward_wait >= 0:
        writer.wait([blocks[forward_wait].forward], gather)
    if zero == 3:
        second_gather = writer.add(
            f"{bucket.name}/all_gather/backward", "all_gather", duration_us, forward_of=bucket.forward
        )
        writer.tensor(second_gather, label, bucket.parameter_bytes, bucket.backward)
        if backward_wait < len(blocks):
            writer.wait(blocks[backward_wait].backward[:1], second_gather)
        else:
            writer.wait([blocks[-1].forward], second_gather)


class _GraphExtension:
    """A graph to which ops and tensors are added, after the existing ones."""

    def __init__(self, graph: OpGraph) -> None:
        self.base = graph
        self.names, self.op_types = list(graph.names), list(graph.op_types)
        self.us = graph.duration_us.tolist()
        self.by_kind = {kind: us.tolist() for kind, us in graph.duration_by_kind.items()}
        self.forward_of = graph.forward_of.tolist()
        self.persistent = graph.persistent_bytes.astype(np.int64).tolist()
        self.table = TensorTable()
        first, readers = graph.consumer_ptr.tolist(), graph.consumers.tolist()
        columns = graph.tensor_producer.tolist(), graph.tensor_names, graph.tensor_bytes.tolist()
        for t, (producer, label, size) in enumerate(zip(*columns, strict=True)):
            self.table.add(producer, label, size, readers[first[t] : first[t + 1]])

    def add(self, name: str, op_type: str, us: float, forward_of: int = -1) -> int:
        """Adds an op; returns its index."""
        self.names.append(name)
        self.op_types.append(op_type)
        self.us.append(us)
        for times in self.by_kind.values():
            times.append(us)
        self.forward_of.append(forward_of)
        self.persistent.append(0)
        return len(self.names) - 1

    def tensor(self, producer: int, label: str, size: int, readers: Iterable[int]) -> None:
        """Adds a tensor of `size` bytes, or more readers of one."""
        self.table.add(producer, label, size, readers)

    def wait(self, producers: Iterable[int], reader: int) -> None:
        """Makes `reader` wait until `producers` have ended."""
        for producer in producers:
            self.table.add(producer, "order", CONTROL_BYTES, [reader])

    def share_updates(self, buckets: Sequence[Bucket]) -> None:
        """Divides the time of every update by the copies that share its states."""
        for update in {bucket.update for bucket in buckets if bucket.update >= 0}:
            updated_buckets = [bucket for bucket in buckets if bucket.update == update]
            bytes_per_copy = sum(bucket.state_bytes / bucket.copies for bucket in updated_buckets)
            share = bytes_per_copy / (sum(bucket.state_bytes for bucket in updated_buckets) or 1)
            for times in (self.us, *self.by_kind.values()):
                times[update] *= share

    def graph(self) -> OpGraph:
        """Returns the extended graph."""
        base, added_count = self.base, len(self.names) - self.base.n
        pad = lambda column, value: np.concatenate([column, np.full(added_count, value, dtype=column.dtype)])  # noqa: E731
        return base.replace(
            names=tuple(self.names),
            op_types=tuple(self.op_types),
            duration_us=np.array(self.us),
            duration_by_kind={kind: np.array(us) for kind, us in self.by_kind.items()},
            forward_of=np.array(self.forward_of, dtype=np.int32),
            persistent_bytes=np.array(self.persistent, dtype=np.int64),
            temp_bytes=pad(base.temp_bytes, 0),
            colocation=pad(base.colocation, -1),
            allowed=pad(base.allowed, -1),
            reuse=None if base.reuse is None else pad(base.reuse, 0),
            output_shapes=text_column(base.output_shapes, (*range(base.n), *[-1] * added_count)),
            **self.table.columns(),
        )
