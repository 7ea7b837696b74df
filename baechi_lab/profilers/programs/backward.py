"""A backward pass for any forward program, for estimates where the framework's own is not at hand.

For each op whose output's gradient is needed, in reverse order:

    product of an input and parameters      two ops with the FLOPs of the forward one: the input's gradient, which the op
                                            before it waits for, and the parameters' gradient, which nothing waits for but
                                            their update
    product of two inputs (attention)       an op of that FLOPs per input that needs a gradient
    product of more inputs (fused ones)     one op of twice the FLOPs
    anything else                           one op that moves the gradients and what the forward op saved
    parameters                              an update per forward op that holds some: it reads and writes parameters and
                                            states, and reads gradients

Ops that add or rearrange save nothing, those of `_SAVES_OUTPUT` their output, all others their inputs. Gradients of one
value from several readers are summed where they are read; that sum is not an op of its own. The gradient's size is its
value's. What an op without gradients makes (`no_grad`) gets none.

Gradients of parameters are persistent bytes of the backward op that is the first to make them, which `GROWS`; a later one,
of a parameter that several ops read, holds its own and the new sum while it runs. States are persistent bytes of the update.
Updates wait for all gradients of parameters, as an optimizer's `step` is called after the backward pass. So it is in the
graphs of PyTorch's layers.

Each backward op is colocated with its forward op, and waits for the loss: for all outputs of the program.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import CONTROL_BYTES
from ..roofline import Kernel
from .records import Program, ProgramOp

_SAVES_NOTHING = frozenset({
    "add", "sub", "sum", "mean", "neg", "cat", "concat", "pad", "slice", "split", "gather", "embedding", "copy", "clone",
    "reducesum", "reducemean", "globalaveragepool", "averagepool", "avg_pool2d", "adaptive_avg_pool2d", "cast", "to",
    "expand", "tile", "transpose", "resize", "constantofshape", "rsub", "index_select",
})  # fmt: skip
_SAVES_OUTPUT = frozenset({
    "relu", "sigmoid", "tanh", "softmax", "log_softmax", "logsoftmax", "exp", "sqrt", "reciprocal", "elu", "leakyrelu", "rsqrt",
    "leaky_relu", "hardtanh", "dropout", "clamp", "relu6",
})  # fmt: skip
_NO_GRADIENT = frozenset({
    "argmax", "argmin", "shape", "size", "equal", "eq", "ne", "lt", "le", "gt", "ge", "less", "greater", "lessorequal",
    "greaterorequal", "not", "and", "or", "logical_not", "nonzero", "onehot", "one_hot", "range", "arange", "isnan", "isinf",
    "zeros_like", "ones_like", "full", "sign", "floor", "ceil", "round", "detach", "constantofshape",
})  # fmt: skip


def plain_type(op_type: str) -> str:
    """`aten.relu_.default` and `Relu` are one kind of op.

    >>> plain_type("aten.relu_.default"), plain_type("LogSoftmax")
    ('relu', 'logsoftmax')
    """
    parts = op_type.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).lower().rstrip("_").lstrip("_")


def with_training(program: Program, optimizer_states: int = 0) -> Program:
    """The program, its backward pass, and an update of its trained parameters.

    Args:
        program: of one forward pass.
        optimizer_states: tensors of a parameter's size that the optimizer keeps (SGD 0, momentum 1, Adam 2).

    >>> product = ProgramOp("mm", "MatMul", (Kernel(flops=8.0, matrix=True),), ("x", "w"), ("y",))
    >>> program = Program("one", (product,), {"x": 8, "w": 16, "y": 8}, {"w": True}, ("y",))
    >>> [op.name for op in with_training(program).ops]    # nobody asks for the gradient of x
    ['mm', 'mm/backward/weight', 'mm/update']
    """
    needs = _needs_gradient(program)
    made = _Backward(program, needs)
    for i in reversed(range(len(program.ops))):
        made.mirror(i)
    for i, values in _trained(program).items():
        made.update(i, values, optimizer_states)
    made.updates_come_last()
    ops = tuple(replace(op, owner=op.owner or op.name) for op in program.ops)
    return replace(program, ops=(*ops, *made.ops), size_bytes=made.size_bytes)


def _trained(program: Program) -> dict[int, list[str]]:
    """Op -> the trained parameters that it holds."""
    found: dict[int, list[str]] = {}
    for value, i in program.home.items():
        if program.parameters[value]:
            found.setdefault(i, []).append(value)
    return found


def _needs_gradient(program: Program) -> set[str]:
    """Values that depend on a trained parameter, by way of ops that pass gradients on."""
    needs = {value for value, trained in program.parameters.items() if trained}
    for op in program.ops:
        if _passes_gradients(op) and needs & set(op.reads):
            needs |= set(op.makes)
    return needs


def _passes_gradients(op: ProgramOp) -> bool:
    return not op.detached and plain_type(op.op_type) not in _NO_GRADIENT


class _Backward:
    """Backward ops while they are made; `gradients` are those of each value that some reader has sent."""

    def __init__(self, program: Program, needs: set[str]):
        self.program, self.needs = program, needs
        self.ops: list[ProgramOp] = []
        self.size_bytes = dict(program.size_bytes)
        self.gradients: dict[str, list[str]] = {value: [] for value in program.outputs if value in needs}
        makers = {program.maker[v] for v in program.outputs if v in program.maker}
        self.loss = tuple(sorted(makers))

    def mirror(self, i: int) -> None:
        """The backward ops of op `i`, where a gradient of its outputs is needed and arrives."""
        op = self.program.ops[i]
        arriving = [v for v in op.makes if v in self.gradients and v in self.needs]
        wanted = [v for v in dict.fromkeys(op.reads) if v in self.needs]
        if not arriving or not wanted or not _passes_gradients(op):
            return
        upstream = [g for v in arriving for g in self.gradients[v]]
        after = self.loss if any(v in self.program.outputs for v in arriving) else ()
        weights = [v for v in wanted if v in self.program.parameters]
        inputs = [v for v in wanted if v not in self.program.parameters]
        if not op.is_product or len(inputs) > 2 or (len(inputs) == 2 and weights):
            kernels = self._twice(op) if op.is_product else self._moving(op, wanted)
            self._add(i, "backward", kernels, [*upstream, *self._saved(op)], inputs, weights, after)
            return
        if weights:
            others = [v for v in op.reads if v not in self.program.parameters]
            self._add(i, "backward/weight", op.kernels, [*upstream, *others], [], weights, after)
        for k, value in enumerate(inputs):
            label = "backward/input" if len(inputs) == 1 else f"backward/input{k}"
            others = [v for v in op.reads if v != value]
            self._add(i, label, op.kernels, [*upstream, *others], [value], [], after)

    def update(self, i: int, values: list[str], states: int) -> None:
        """The op that updates the parameters that op `i` holds."""
        op = self.program.ops[i]
        values = [v for v in values if v in self.gradients]
        read = [g for v in values for g in self.gradients[v]]
        if read:
            size = sum(self.program.size_bytes.get(v, 0) for v in values)
            kernel = Kernel(flops=size / 2.0 * (1 + states), moved_bytes=float(size * (3 + 2 * states)))
            self.ops.append(
                ProgramOp(
                    f"{op.name}/update",
                    "Update",
                    (kernel,),
                    tuple(read),
                    (),
                    owner=op.name,
                    persistent_bytes=size * states,
                )
            )

    def updates_come_last(self) -> None:
        """The update of the smallest parameters waits for all gradients of parameters, the others wait for that one.

        So there are as many control edges as ops; one from each gradient to each update would be their product.
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

    def _add(
        self, i: int, label: str, kernels: tuple[Kernel, ...], reads: list[str], inputs: list[str], weights: list[str],
        after: tuple[int, ...],
    ) -> None:  # fmt: skip
        op, makes, kept, temporary = self.program.ops[i], [], 0, 0
        for value in (*inputs, *weights):
            gradient, size = f"gradient of {value} by {op.name}", self.program.size_bytes.get(value, 0)
            self.size_bytes[gradient] = size if value in inputs else CONTROL_BYTES
            if value in weights and value in self.gradients:
                kernels, temporary = (*kernels, Kernel(moved_bytes=3.0 * size)), temporary + 2 * size
            elif value in weights:
                kept += size
            self.gradients.setdefault(value, []).append(gradient)
            makes.append(gradient)
        values = tuple(v for v in reads if v not in self.program.parameters)
        name, op_type = f"{op.name}/{label}", f"{op.op_type}Backward"
        made = ProgramOp(name, op_type, kernels, values, tuple(makes), after, i, op.name, temporary, kept)
        self.ops.append(made)

    def _saved(self, op: ProgramOp) -> tuple[str, ...]:
        kind = plain_type(op.op_type)
        if kind in _SAVES_NOTHING or not op.moves_data:
            return ()
        return op.makes if kind in _SAVES_OUTPUT else op.reads

    def _twice(self, op: ProgramOp) -> tuple[Kernel, ...]:
        return tuple(replace(k, flops=2 * k.flops, moved_bytes=2 * k.moved_bytes) for k in op.kernels)

    def _moving(self, op: ProgramOp, wanted: list[str]) -> tuple[Kernel, ...]:
        """Gradients in and out, and what was saved; as many FLOPs as forward."""
        if not op.moves_data:
            return (Kernel(metadata=True),)
        size = self.program.size_bytes
        moved = sum(size.get(v, 0) for v in (*op.makes, *wanted, *self._saved(op)))
        return (Kernel(flops=sum(k.flops for k in op.kernels), moved_bytes=float(moved)),)
