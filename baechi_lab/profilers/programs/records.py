"""`Program`: the operators of an exported model (ONNX, `torch.export`), the values that they read and make, and their work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...errors import InvalidInput, OpenBatchSize
from ...graph import CONTROL_BYTES, OpGraph
from ...graph.groups import join_groups
from ...graph.hardware import Hardware
from ...graph.opgraph import GROWS, OWN, VIEW
from ...graph.tensors import TensorTable
from ..estimate_record import estimate_record
from ..kernel_model import estimated_us
from ..precision import Precision
from ..work import Kernel, work_of

UNKNOWN_SHAPES = "shapes that are not known"
"""Reason why an op's work is guessed: its shapes are unknown, so its bytes are guessed too."""
UNKNOWN_ITERATIONS = "a body that runs an unknown number of times"
"""Reason why an op's work is guessed: that of one iteration is counted."""


@dataclass(frozen=True)
class CallWork:
    """Work of one call of an operator, or of its gradients.

    Args:
        kernels: what runs; none if this is not known.
        temp_bytes: bytes that it holds besides its inputs and outputs while it runs.
        saved_bytes: of gradients, bytes that the forward call keeps for them besides its inputs and outputs.
    """

    kernels: tuple[Kernel, ...] = ()
    temp_bytes: int = 0
    saved_bytes: int = 0


@dataclass(frozen=True)
class ProgramOp:
    """One operator.

    Args:
        name, op_type: distinct name, and the operator's type in its framework.
        kernels: its work.
        reads, makes: names of values; values that no op makes are inputs or parameters.
        after: indices of ops that it waits for without reading their outputs.
        forward_of: for a backward op, the index of its forward op.
        owner: ops with the same owner share a device.
        temp_bytes: bytes held besides inputs and outputs while it runs.
        persistent_bytes: bytes kept besides parameters; a backward op keeps gradients from its start.
        output_shapes: types and shapes of what it makes, as `OpGraph.output_shapes` has them.
        is_detached: True if it runs without gradients, as under `torch.no_grad`; its inputs then get none.
        gradients: function from some of `reads` to the work of their gradients; without it, or if this has no kernels, these
            follow from those of the forward pass (`backward`).
    """

    name: str
    op_type: str
    kernels: tuple[Kernel, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    after: tuple[int, ...] = ()
    forward_of: int = -1
    owner: str = ""
    temp_bytes: int = 0
    persistent_bytes: int = 0
    output_shapes: str = ""
    is_detached: bool = False
    gradients: Callable[[Sequence[str]], CallWork] | None = field(default=None, compare=False, repr=False)

    @property
    def is_product(self) -> bool:
        """Whether it runs on matrix units."""
        return any(kernel.matrix for kernel in self.kernels)

    @property
    def moves_data(self) -> bool:
        """Whether it does more than reinterpret the shape of its input."""
        return any(not kernel.metadata for kernel in self.kernels)


@dataclass(frozen=True)
class Program:
    """Operators in an executable order.

    Args:
        name: name of the model.
        ops: operators; each reads inputs, parameters and outputs of earlier operators.
        size_bytes: value -> bytes.
        parameters: value -> whether it is trained.
        outputs: values that the program returns.
        reasons_of_guesses: op -> why its work is not fully counted.
        notes: further sentences about the estimate for the user.
        batch_bytes: bytes of the inputs, which the caller holds: temporary bytes of every op.
        holds_outputs: whether the caller holds the outputs until a training step ends.
    """

    name: str
    ops: tuple[ProgramOp, ...]
    size_bytes: Mapping[str, int]
    parameters: Mapping[str, bool]
    outputs: tuple[str, ...] = ()
    reasons_of_guesses: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    batch_bytes: int = 0
    holds_outputs: bool = False

    @cached_property
    def maker(self) -> dict[str, int]:
        """Value -> the op that makes it."""
        return {value: i for i, op in enumerate(self.ops) for value in op.makes}

    @cached_property
    def first_reader(self) -> dict[str, int]:
        """Parameter -> the first op that reads it; this op holds it."""
        first_readers: dict[str, int] = {}
        for i, op in enumerate(self.ops):
            for value in op.reads:
                if value in self.parameters:
                    first_readers.setdefault(value, i)
        return first_readers

    def microseconds(self, hardware: Hardware) -> list[float]:
        """Returns the estimated duration of each operator on the hardware."""
        rows = ((i, kernel) for i, op in enumerate(self.ops) for kernel in op.kernels)
        return [float(us) for us in estimated_us(work_of(len(self.ops), rows), hardware)]

    def in_precision(self, precision: Precision) -> Program:
        """Returns the program with products of float32 numbers as `precision` says."""
        ops = (replace(op, kernels=tuple(map(precision.kernel, op.kernels))) for op in self.ops)
        return replace(self, ops=tuple(ops))

    def graph(self, kinds: Mapping[str, Hardware], precision: Precision) -> OpGraph:
        """Builds the OpGraph with durations by device kind, the first being the reference; `precision` is that of the program."""
        by_kind = {kind: self.microseconds(hardware) for kind, hardware in kinds.items()}
        table = TensorTable()
        for i, op in enumerate(self.ops):
            for value in dict.fromkeys(op.reads):
                producer = self.maker.get(value, i)
                if producer != i:
                    table.add(producer, value, self.size_bytes.get(value, 0), [i])
        for i, op in enumerate(self.ops):
            for before in op.after:
                table.add(before, "control", CONTROL_BYTES, [i])
        # Readers of one parameter, and ops of one owner, share a device.
        members: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            for value in op.reads:
                if value in self.parameters:
                    members.setdefault(f"parameter {value}", []).append(i)
            if op.owner:
                members.setdefault(f"owner {op.owner}", []).append(i)
        group = {i: self.ops[group[0]].name for group in join_groups(len(self.ops), members.values()) for i in group}
        names = tuple(dict.fromkeys(group.values()))
        number = {name: k for k, name in enumerate(names)}
        persistent_bytes = [op.persistent_bytes for op in self.ops]
        allocates_gradients = precision.gradient_share == 1  # else they are kept from step to step
        reuse = [
            GROWS
            if allocates_gradients and op.forward_of >= 0 and op.persistent_bytes > 0
            else OWN
            if op.moves_data or not op.makes
            else VIEW
            for op in self.ops
        ]
        for value, i in self.first_reader.items():
            persistent_bytes[i] += self.size_bytes.get(value, 0)
        return OpGraph(
            names=tuple(op.name for op in self.ops),
            op_types=tuple(op.op_type for op in self.ops),
            duration_us=next(iter(by_kind.values())),  # type: ignore[arg-type]
            duration_by_kind=by_kind,  # type: ignore[arg-type]
            temp_bytes=[op.temp_bytes + self.batch_bytes for op in self.ops],  # type: ignore[arg-type]
            persistent_bytes=persistent_bytes,  # type: ignore[arg-type]
            colocation=[number[group[i]] if i in group else -1 for i in range(len(self.ops))],  # type: ignore[arg-type]
            colocation_names=names,
            reuse=np.array(reuse, dtype=np.int8) if any(kind != OWN for kind in reuse) else None,
            output_shapes=tuple(op.output_shapes for op in self.ops),
            forward_of=[op.forward_of for op in self.ops],  # type: ignore[arg-type]
            name=self.name,
            info={"estimate": estimate_record(kinds, precision, (k for op in self.ops for k in op.kernels))},
            **table.columns(),
        )


def size_of_open_dimension(
    label: str, value: str, position: int, batch_size: int | None, sizes: Mapping[str, int]
) -> int:
    """Returns the size of a dimension that a program leaves open: by its label, or the batch size for a first dimension.

    Raises:
        OpenBatchSize, InvalidInput: neither is given; the message names `value`, which has the dimension at `position`.
    """
    if label in sizes:
        return sizes[label]
    if position == 0 and batch_size is not None:
        return batch_size
    message = f"{value} has the open dimension {label!r:.80} at position {position}"
    if position == 0:
        raise OpenBatchSize(f"{message}; give batch_size (--batch-size)")
    raise InvalidInput(f"{message}; give sizes={{{label!r}: ...}} (-p {label}=...)")


def check_sizes(
    sizes: Mapping[str, int], open_dimensions: Iterable[str], batch_size: int | None, first_sizes: Iterable[int]
) -> None:
    """Rejects a size for a dimension that the program does not leave open, and a batch size that no first dimension has.

    `first_sizes`: the sizes of first dimensions, after open ones are replaced.
    """
    left_open = sorted(open_dimensions)
    for label in sizes:
        if label not in left_open:
            allowed = f"leaves open {', '.join(map(repr, left_open))}" if left_open else "leaves no dimension open"
            raise InvalidInput(f"sizes names {label!r:.80}; the program {allowed}")
    if batch_size is not None and batch_size not in (known_sizes := sorted(set(first_sizes))):
        size_list = ", ".join(map(str, known_sizes[:5])) or "none"
        raise InvalidInput(
            f"batch_size is {batch_size}; the program leaves no first dimension open for it, and first dimensions have the sizes "
            f"{size_list}: leave batch_size out, or make the program with an open first dimension"
        )
