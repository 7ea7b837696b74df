"""Shared parts of the readers of `torch.export` programs: a builder of programs, and open dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ...torch_runtime.storage import storage_bytes, storage_key, tensor_bytes
from ...torch_runtime.tree import Args, Kwargs, map_tensors, tensors
from ...torch_steps.tracing import output_shapes
from ..programs.records import CallWork, Program, ProgramOp, check_sizes, size_of_open_dimension
from ..work import Kernel
from .fake_tensors import use_fused_kernels
from .memory import temporary_peak
from .operator_counter import Counter
from .recurrent import KINDS

if TYPE_CHECKING:
    from torch._ops import OpOverload


class _WorkRecorder(TorchDispatchMode):
    """Records the kernel of every operator that runs under it, and the memory that they allocate and free."""

    def __init__(self, on_cpu: bool) -> None:
        super().__init__()
        self.counter = Counter(on_cpu=on_cpu)
        self.counter.owner = "f", 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.counter.observe(func, args, kwargs or {}, out)
        return out


def _work(
    call: tuple[OpOverload | None, Args, Kwargs],
    outputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor] = (),
    on_cpu: bool = False,
) -> CallWork:
    """Returns the work of a call, or of the gradients of those of its arguments that are `targets`; none if it does not run.

    The call runs on fake tensors of the CPU, as a model does in an estimate, so that both count the same kernels: those of a
    CPU if `on_cpu`, else those of a GPU. Its `outputs` get the order in memory that these kernels write.
    """
    func, args, kwargs = call
    if func is None:
        return CallWork()
    twins: dict[int, torch.Tensor] = {}
    folded_weight = args[1] if func in _FOLDED_PRODUCTS and args[1].dim() == 2 else None
    reads_weight_only = folded_weight is not None and not any(target is folded_weight for target in targets)

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in twins:
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            is_needed = not targets or tensor is folded_weight or any(tensor is target for target in targets)
            twins[id(tensor)] = copy.requires_grad_(is_needed and tensor.is_floating_point())
        return twins[id(tensor)]

    kernels: list[Kernel] = []
    temp_bytes = saved_bytes = 0
    written_tensors: list[torch.Tensor] = []
    forward, backward = _WorkRecorder(on_cpu), _WorkRecorder(on_cpu)
    fake, training = FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(bool(targets))
    with (
        suppress(RuntimeError, TypeError, ValueError, IndexError, AssertionError),
        training,
        fake,
        use_fused_kernels(on_cpu),
    ):
        args, kwargs = map_tensors((args, kwargs), twin)
        with forward:
            out = (getattr(*_FUNCTIONS[func]) if func in _FUNCTIONS else func)(*args, **kwargs)
        written_tensors = list(tensors(out))
        temp_bytes = temporary_peak(forward.counter.changes)
        roots = [t for t in written_tensors if t.requires_grad]
        if targets:
            read_storages = {storage_key(t) for t in twins.values()}
            written_bytes = {storage_key(t): storage_bytes(t) for t in written_tensors}
            made_bytes = sum(size for key, size in written_bytes.items() if key not in read_storages)
            saved_bytes = max(sum(forward.counter.changes) - made_bytes, 0)
            saved_bytes = 0 if reads_weight_only else saved_bytes
            gradients = [torch.ones_like(t) for t in roots]
            with backward:
                input_gradients = torch.autograd.grad(
                    roots, [twins[id(t)] for t in targets], gradients, allow_unused=True
                )
            temp_bytes = temporary_peak(backward.counter.changes)
            del input_gradients
        recorder = backward if targets else forward
        kernels = [kernel for _, kernel in recorder.counter.rows] or [Kernel(metadata=True)]
    for output, tensor in zip(outputs, written_tensors, strict=False):
        output.data = torch.empty_strided(tensor.shape, tensor.stride(), dtype=output.dtype, device="meta")
    return CallWork(tuple(k for k in kernels if not k.metadata) or tuple(kernels[:1]), temp_bytes, saved_bytes)


_FOLDED_PRODUCTS = (torch.ops.aten.linear.default, torch.ops.aten.matmul.default)
"""Operators that PyTorch runs as one product of two matrices, not as a batch of them, where a weight gets a gradient."""
_FUNCTIONS = {
    torch.ops.aten.scaled_dot_product_attention.default: (functional, "scaled_dot_product_attention"),
    torch.ops.aten.dropout.default: (functional, "dropout"),
    torch.ops.aten.rms_norm.default: (functional, "rms_norm"),
    **{getattr(torch.ops.aten, kind).input: (torch._VF, kind) for kind in KINDS},
}
"""Operators that GPUs run as one kernel, and the functions that `use_fused_kernels` replaces: module and name."""


class ProgramBuilder:
    """Builds a program op by op."""

    def __init__(self, name: str, on_cpu: bool = False):
        self.name, self.on_cpu = name, on_cpu
        self.ops: list[ProgramOp] = []
        self.size: dict[str, int] = {}
        self.reasons_of_guesses: dict[int, str] = {}
        self.label_counts: dict[str, int] = {}

    def add(
        self,
        name: str,
        module: str,
        target: str,
        call: tuple[Any, Any, Any],
        reads: Mapping[str, Any],
        outputs: Mapping[str, Any],
        is_detached: bool = False,
    ) -> None:
        """Adds a call.

        `call` is (function or None, arguments, keywords), `reads` and `outputs` map values to meta tensors; see `ProgramOp`.
        """
        if not outputs:  # a check of shapes or types
            return
        output_tensors = list(outputs.values())
        work = _work(call, output_tensors, on_cpu=self.on_cpu)
        kernels = work.kernels
        if not kernels:
            self.reasons_of_guesses[len(self.ops)] = "an operator that does not run on meta tensors"
            kernels = (Kernel(moved_bytes=float(sum(map(tensor_bytes, tensors((call[1:], output_tensors)))))),)
        label = f"{module}/{name}" if module else name
        self.label_counts[label] = self.label_counts.get(label, 0) + 1
        label = label if self.label_counts[label] == 1 else f"{label}#{self.label_counts[label]}"
        op_type = target.removeprefix("torch.ops.")
        self.ops.append(
            ProgramOp(
                label,
                op_type,
                kernels,
                tuple(reads),
                tuple(outputs),
                output_shapes=output_shapes(output_tensors),
                is_detached=is_detached,
                temp_bytes=work.temp_bytes,
                gradients=lambda values: _work(call, (), [reads[value] for value in values], self.on_cpu),
            )
        )
        self.size.update({v: t.numel() * t.element_size() for v, t in outputs.items()})

    def program(self, parameters: Mapping[str, bool], outputs: Sequence[str]) -> Program:
        """Returns the program of the calls so far; `parameters` maps values to whether they are trained."""
        inputs = self.size.keys() - {value for op in self.ops for value in op.makes} - parameters.keys()
        return Program(
            self.name,
            tuple(self.ops),
            self.size,
            parameters,
            tuple(outputs),
            reasons_of_guesses=self.reasons_of_guesses,
            batch_bytes=sum(self.size[value] for value in inputs),
            holds_outputs=True,
        )


WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operators that run a graph of their own: the first graph among their arguments, on all arguments after it."""


def without_gradients(target: str, arguments: Sequence[object]) -> bool:
    """Whether a wrapper disables gradients, as `torch.no_grad` does."""
    return target.endswith(WRAPPERS[0]) and arguments[0] is False


class OpenSizes:
    """Open dimensions and the sizes that replace them, and the type that replaces floating-point types (None: as they are)."""

    def __init__(self, batch_size: int | None, sizes: Mapping[str, int], float_type: torch.dtype | None = None):
        self.batch_size, self.sizes, self.float_type = batch_size, dict(sizes), float_type
        self.size_of_symbol: dict[str, int] = {}
        self.first_sizes: set[int] = set()

    def meta(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor without data."""
        if self.float_type is not None and dtype.is_floating_point and dtype.itemsize > 1:
            dtype = self.float_type
        self.first_sizes.update(shape[:1])
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    def of(self, size: object, value: str, position: int) -> int:
        """Returns a whole number for a size that may be a symbol or an expression of several, that of `value` at `position`."""
        if isinstance(size, int):
            return size
        import sympy

        expression = sympy.sympify(size.node.expr if hasattr(size, "node") else size)
        return int(expression.subs({s: self.symbol(str(s), value, position) for s in expression.free_symbols}))

    def symbol(self, label: str, value: str, position: int) -> int:
        """Returns the size of a symbol: by name, else the batch size if its first occurrence is a first dimension."""
        if label not in self.size_of_symbol:
            description = f"value {value!r:.80}"
            size = size_of_open_dimension(label, description, position, self.batch_size, self.sizes)
            self.size_of_symbol[label] = size
        return self.size_of_symbol[label]

    def check(self) -> None:
        """Raises `InvalidInput` for a size that the program has no dimension for."""
        check_sizes(self.sizes, self.size_of_symbol, self.batch_size, self.first_sizes)


def innermost(stack: object) -> str:
    """Returns the innermost module of a call, by its path in the model.

    `stack` is what `torch.export` stores as `nn_module_stack`: a mapping in memory, and a text "id,path,class;..." in a file.
    """
    if isinstance(stack, Mapping) and stack:
        return str(list(stack.values())[-1][0])
    if isinstance(stack, str) and stack:
        last = stack.split(";")[-1].split(",")
        return last[1] if len(last) > 1 else ""
    return ""
