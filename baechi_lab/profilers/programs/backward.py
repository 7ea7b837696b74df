"""Adds a backward pass and updates to any forward program, for estimates without the framework's own backward pass.

For each op whose output's gradient is needed, in reverse order:

    product of an input and parameters      two ops, each with the FLOPs of the forward op: one for the input's gradient, for
                                            which the preceding op waits, and one for the parameters' gradient, for which
                                            only their update waits
    product of two inputs (attention)       one op with the forward FLOPs per input that needs a gradient
    product of more inputs (fused ops)      one op with twice the FLOPs
    any other op                            one op that moves the gradients and what the forward op saved
    parameters                              one update per forward op that holds some: it reads and writes parameters and
                                            states, and reads gradients

Ops that add or rearrange save nothing, ops in `_SAVES_OUTPUT` save their output, all others save their inputs. Gradients of
one value from several readers are added by the later ones of the ops that make them. A gradient has the size of its value.
If the reader of the program knows the operators of a gradient, the forward op also saves what these read of its own making,
such as copies in another order, and the backward op holds what they hold for a time. Where the caller holds the outputs, they
are temporary bytes of every backward op, as in the graphs of PyTorch's layers.
Outputs of an op without gradients (`no_grad`) get none.

Gradients of parameters are persistent bytes of the first backward op that makes them, whose reuse kind is `GROWS`. If several
ops read a parameter, each later backward op holds its own gradient and the new sum while it runs. States are persistent bytes
of the update. An exported program names no optimizer, so their number is given: each state is a tensor of its parameter's
size, and only that counts for the bytes and FLOPs of an update.

Updates wait for all gradients of parameters, because an optimizer's `step` is called after the backward pass, as in the graphs
of PyTorch's layers.

Each backward op is colocated with its forward op, and waits for the loss: for all outputs of the program.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import CONTROL_BYTES
from ..arithmetic import column_sum_us
from ..precision import Precision
from ..work import DEPTHWISE_GRADIENT, POSITIONS_SUM_US, Kernel
from .records import CallWork, Program, ProgramOp

_SAVES_NOTHING = frozenset(
    """
        add sub sum mean neg cat concat pad slice split gather embedding copy clone reducesum reducemean
        globalaveragepool averagepool avg_pool2d adaptive_avg_pool2d cast to expand tile transpose resize
        constantofshape rsub index_select
    """.split()
)
_SAVES_OUTPUT = frozenset(
    """
        relu sigmoid tanh softmax log_softmax logsoftmax exp sqrt reciprocal elu leakyrelu rsqrt leaky_relu hardtanh
        dropout clamp relu6
    """.split()
)
_NO_GRADIENT = frozenset(
    """
        argmax argmin shape size equal eq ne lt le gt ge less greater lessorequal greaterorequal not and or
        logical_not nonzero onehot one_hot range arange isnan isinf zeros_like ones_like full sign floor ceil round
        detach constantofshape
    """.split()
)


def normalize_type(op_type: str) -> str:
    """Returns the operator's type without namespace, overload, case and in-place mark, so that frameworks agree.

    >>> normalize_type("aten.relu_.default"), normalize_type("LogSoftmax")
    ('relu', 'logsoftmax')
    """
    names = op_type.split(".")
    return (names[1] if len(names) > 1 else names[0]).lower().rstrip("_").lstrip("_")


def add_backward_and_updates(
    program: Program, optimizer_states: int = 0, precision: Precision | None = None
) -> Program:
    """Returns the program with its backward pass and an update of its trained parameters.

    Args:
        program: a forward pass.
        optimizer_states: tensors of a parameter's size that the optimizer keeps (SGD 0, momentum 1, Adam 2).
        precision: of the program; mixed precision decides what gradients and the update's states take.
    """
    # The values that depend on a trained parameter through ops that pass gradients on.
    needs_gradient = {value for value, is_trained in program.parameters.items() if is_trained}
    for op in program.ops:
        if normalize_type(op.op_type) == "broadcast_tensors":  # each output is a view of one input
            needs_gradient |= {view for base, view in zip(op.reads, op.makes, strict=False) if base in needs_gradient}
        elif _passes_gradients(op) and needs_gradient & set(op.reads):
            needs_gradient |= set(op.makes)
    builder = _BackwardBuilder(program, needs_gradient, precision or Precision())
    for i in reversed(range(len(program.ops))):
        builder.add_backward(i)
    parameters_by_op: dict[int, list[str]] = {}
    for value, i in program.first_reader.items():
        if program.parameters[value]:
            parameters_by_op.setdefault(i, []).append(value)
    for i, values in parameters_by_op.items():
        builder.add_update(i, values, optimizer_states)
    builder.order_updates_last()
    ops = tuple(
        replace(op, owner=op.owner or op.name, makes=(*op.makes, *builder.saved_values.get(i, ())))
        for i, op in enumerate(program.ops)
    )
    return replace(program, ops=(*ops, *builder.ops), size_bytes=builder.size_bytes)


def _passes_gradients(op: ProgramOp) -> bool:
    return not op.is_detached and normalize_type(op.op_type) not in _NO_GRADIENT


class _BackwardBuilder:
    """Builds backward ops; `gradients` maps each value to the gradients that its readers have sent."""

    def __init__(self, program: Program, needs_gradient: set[str], precision: Precision):
        self.program, self.needs_gradient, self.precision = program, needs_gradient, precision
        self.ops: list[ProgramOp] = []
        self.size_bytes = dict(program.size_bytes)
        self.saved_values: dict[int, list[str]] = {}
        """Forward op -> what it makes and saves for backward ops only."""
        self.gradients: dict[str, list[str]] = {value: [] for value in program.outputs if value in needs_gradient}
        makers = {program.maker[v] for v in program.outputs if v in program.maker}
        self.loss_ops = tuple(sorted(makers))

    def add_backward(self, i: int) -> None:
        """Adds the backward ops of op `i` if a gradient of its outputs is needed and available."""
        op = self.program.ops[i]
        arriving = [v for v in op.makes if v in self.gradients and v in self.needs_gradient]
        gradient_targets = [v for v in dict.fromkeys(op.reads) if v in self.needs_gradient]
        if not arriving or not gradient_targets or not _passes_gradients(op):
            return
        upstream = [g for v in arriving for g in self.gradients[v]]
        after = self.loss_ops if any(v in self.program.outputs for v in arriving) else ()
        weights = [v for v in gradient_targets if v in self.program.parameters]
        inputs = [v for v in gradient_targets if v not in self.program.parameters]
        # Gradients go back through the steps of a recurrent layer together, and so through the two products of attention.
        together = any(k.steps > 1 or len(k.products) == 2 for k in op.kernels)
        if not op.is_product or together or len(inputs) > 2 or (len(inputs) == 2 and weights):
            default = self._doubled_kernels(op) if op.is_product else self._movement_kernels(op, gradient_targets)
            work = self._work(op, gradient_targets, default)
            self._add_op(i, "backward", work, [*upstream, *self._saved_values(op)], inputs, weights, after)
            return
        if weights:
            other_reads = [v for v in op.reads if v not in self.program.parameters]
            summed_bytes = float(self.program.size_bytes.get(op.makes[0], 0)) if len(weights) > 1 else 0.0
            work = self._work(op, weights, _gradient_kernels(op, weights[0], summed_bytes))
            self._add_op(i, "backward/weight", work, [*upstream, *other_reads], [], weights, after)
        for k, value in enumerate(inputs):
            label = "backward/input" if len(inputs) == 1 else f"backward/input{k}"
            other_reads = [v for v in op.reads if v != value]
            size = self.program.size_bytes
            number_share = size.get(value, 0) / size[op.makes[0]] if size.get(op.makes[0]) else 1.0
            work = self._work(op, [value], _gradient_kernels(op, value, number_share=number_share))
            self._add_op(i, label, work, [*upstream, *other_reads], [value], [], after)

    def add_update(self, i: int, values: list[str], states: int) -> None:
        """Adds the op that updates the parameters that op `i` holds."""
        op = self.program.ops[i]
        values = [v for v in values if v in self.gradients]
        gradients = [g for v in values for g in self.gradients[v]]
        if gradients:
            size = sum(self.program.size_bytes.get(v, 0) for v in values)
            moved_bytes = float(size * self.precision.update_share(states))
            kernel = Kernel(flops=size / 2.0 * (1 + states), moved_bytes=moved_bytes)
            state_bytes, name = size * self.precision.state_share(states), f"{op.name}/update"
            self.ops.append(
                ProgramOp(name, "Update", (kernel,), tuple(gradients), (), owner=op.name, persistent_bytes=state_bytes)
            )

    def order_updates_last(self) -> None:
        """Makes the update of the smallest parameters wait for all their gradients, and the other updates wait for that one.

        This needs as many control edges as ops; one from each gradient to each update would need their product.
        """
        first_backward = len(self.program.ops)
        updates = [k for k, op in enumerate(self.ops) if op.op_type == "Update"]
        if not updates:
            return
        read = {v for k in updates for v in self.ops[k].reads}
        makers = tuple(first_backward + k for k, op in enumerate(self.ops) if read & set(op.makes))
        smallest = min(updates, key=lambda k: self.ops[k].kernels[0].moved_bytes)
        for k in updates:
            after = makers if k == smallest else (first_backward + smallest,)
            self.ops[k] = replace(self.ops[k], after=after)

    def _add_op(
        self,
        i: int,
        label: str,
        work: CallWork,
        reads: list[str],
        inputs: list[str],
        weights: list[str],
        after: tuple[int, ...],
    ) -> None:
        op, makes, gradient_bytes, temporary = self.program.ops[i], [], 0, 0
        kernels = work.kernels
        for value in (*inputs, *weights):
            gradient, size = f"gradient of {value} by {op.name}", self.program.size_bytes.get(value, 0)
            self.size_bytes[gradient] = size if value in inputs else CONTROL_BYTES
            if value in weights and value in self.gradients:
                kernels, temporary = (*kernels, Kernel(moved_bytes=3.0 * size)), temporary + 2 * size
            elif value in inputs and self.gradients.get(value):
                kernels = (*kernels, Kernel(moved_bytes=3.0 * size))
            elif value in weights:
                gradient_bytes += size * self.precision.gradient_share
                temporary += size * (self.precision.gradient_share > 1)  # it is added to the gradient that is kept
            self.gradients.setdefault(value, []).append(gradient)
            makes.append(gradient)
        values = tuple(v for v in reads if v not in self.program.parameters)
        name, op_type = f"{op.name}/{label}", f"{op.op_type}Backward"
        if self.program.holds_outputs:
            outputs = {v for v in self.program.outputs if v in self.program.maker and v not in values}
            temporary += sum(self.program.size_bytes.get(value, 0) for value in outputs)
        if work.saved_bytes:
            saved_value = f"saved for {name}"
            self.size_bytes[saved_value] = work.saved_bytes
            self.saved_values.setdefault(i, []).append(saved_value)
            values = (*values, saved_value)
        self.ops.append(
            ProgramOp(
                name,
                op_type,
                kernels,
                reads=values,
                makes=tuple(makes),
                after=after,
                forward_of=i,
                owner=op.name,
                temp_bytes=temporary + work.temp_bytes,
                persistent_bytes=gradient_bytes,
            )
        )

    def _saved_values(self, op: ProgramOp) -> tuple[str, ...]:
        kind = normalize_type(op.op_type)
        if kind in _SAVES_NOTHING or not op.moves_data:
            return ()
        return op.makes if kind in _SAVES_OUTPUT else op.reads

    def _work(self, op: ProgramOp, values: list[str], default: tuple[Kernel, ...]) -> CallWork:
        """Returns the work of the gradients of `values`: what the reader of the program knows, else the kernels `default`."""
        work = op.gradients(values) if op.gradients is not None else CallWork()
        return replace(work, kernels=tuple(map(self.precision.kernel, work.kernels)) or default)

    def _doubled_kernels(self, op: ProgramOp) -> tuple[Kernel, ...]:
        kernels = []
        for kernel in op.kernels:
            gradients = tuple(g for p in kernel.products for g in (p.left_gradient, p.right_gradient))
            flops, moved_bytes = 2 * kernel.flops, 2 * kernel.moved_bytes
            kernels.append(replace(kernel, flops=flops, moved_bytes=moved_bytes, products=gradients))
        return tuple(kernels)

    def _movement_kernels(self, op: ProgramOp, gradient_targets: list[str]) -> tuple[Kernel, ...]:
        """Returns one kernel that moves the gradients and what was saved, with the FLOPs of the forward op."""
        if not op.moves_data:
            return (Kernel(metadata=True),)
        size = self.program.size_bytes
        moved_bytes = sum(size.get(v, 0) for v in (*op.makes, *gradient_targets, *self._saved_values(op)))
        return (Kernel(flops=sum(k.flops for k in op.kernels), moved_bytes=float(moved_bytes)),)


def _gradient_kernels(
    op: ProgramOp, value: str, summed_bytes: float = 0.0, number_share: float = 1.0
) -> tuple[Kernel, ...]:
    """Returns the kernels that make the gradient of one operand of a product: as many FLOPs, in other shapes.

    The gradient of a bias is the sum of the output's gradient, of `summed_bytes`. Convolutions wait for it. The gradient of a
    depthwise convolution's input computes `number_share` as many numbers as the forward pass. That of a convolution's input
    writes all positions, those that strides leave out among them.
    """
    side = "left_gradient" if op.reads and op.reads[0] == value else "right_gradient"
    vector_share = number_share * DEPTHWISE_GRADIENT  # no other product of two operands has FLOPs of vector units
    gradients = tuple(
        replace(
            k,
            products=tuple(getattr(p, side) for p in k.products),
            vector_flops=vector_share * k.vector_flops,
            wait_us=POSITIONS_SUM_US if summed_bytes and _is_convolution(k) else 0.0,
            layout_bytes=2.0 * k.moved_bytes if k.layout_bytes and side == "left_gradient" else k.layout_bytes,
            crossed=side == "right_gradient" and not _is_convolution(k),
            followed_by=None,
        )
        for k in op.kernels
    )
    if not summed_bytes or any(map(_is_convolution, op.kernels)):
        return gradients
    products = [product for k in op.kernels for product in k.products if product.count == 1]
    wait_us = column_sum_us(products[0].rows, products[0].columns) if products else 0.0
    return (*gradients, Kernel(moved_bytes=summed_bytes, wait_us=wait_us))


def _is_convolution(kernel: Kernel) -> bool:
    """Whether a product of two operands is a convolution. Of these, only depthwise ones have FLOPs of vector units."""
    return kernel.convolution or kernel.vector_flops > 0
