"""Recurrent modules as GPUs run them: one kernel per layer and direction over a whole sequence, of any kind.

PyTorch has such a kernel for LSTMs of float32 on a CPU. Other kinds run there operator by operator and step by step, and so do
LSTMs of 16-bit numbers, unless the processor has instructions for them. For fake tensors, which have no data, `recurrent_layer`
and `recurrent_layer_backward` stand for the kernel and its gradients. A CPU's estimate runs the operators of short sequences,
because the memory of each step counts; for long ones that would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch.autograd.function import FunctionCtx
from torch.nn import functional

T = TypeVar("T")

_PAGE, _LINE = 4096, 16
"""Bytes of a page of memory, and float32 numbers of a cache line."""

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions of `torch._VF` that `run_layers` stands for."""

PACK_PADDED = torch._VF._pack_padded_sequence
"""The function that `pack_padded` stands for."""

_MOST_STEPS = 256
"""Most steps, added up over layers and directions, that an estimate for a CPU runs operator by operator."""

torch.library.define(
    "baechi_lab::recurrent_layer",
    "(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor[] biases, Tensor state) -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "baechi_lab::recurrent_layer_backward",
    "(Tensor input, Tensor weight_ih, Tensor weight_hh, Tensor[] biases, Tensor state, Tensor output, Tensor workspace, "
    "Tensor output_gradient) -> (Tensor, Tensor, Tensor, Tensor[], Tensor)",
)


@torch.library.register_fake("baechi_lab::recurrent_layer")
def _layer(
    input: torch.Tensor,
    weight_ih: torch.Tensor,
    weight_hh: torch.Tensor,
    biases: list[torch.Tensor],
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output [steps, batch, hidden], last state [batch, hidden], and the gates of all steps, which the gradients read."""
    steps, batch, _ = input.shape
    gates, hidden = weight_hh.shape
    output = input.new_empty(steps, batch, hidden)
    return output, torch.empty_like(state), input.new_empty(steps, batch, gates)


@torch.library.register_fake("baechi_lab::recurrent_layer_backward")
def _layer_backward(
    input: torch.Tensor,
    weight_ih: torch.Tensor,
    weight_hh: torch.Tensor,
    biases: list[torch.Tensor],
    state: torch.Tensor,
    output: torch.Tensor,
    workspace: torch.Tensor,
    output_gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor]:
    like = torch.empty_like
    return like(input), like(weight_ih), like(weight_hh), [like(b) for b in biases], like(state)


def _save(
    ctx: FunctionCtx,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor],
    output: tuple[torch.Tensor, ...],
) -> None:
    sequence, weight_ih, weight_hh, biases, state = inputs
    ctx.save_for_backward(sequence, weight_ih, weight_hh, state, output[0], output[2], *biases)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # there are no zeros for the workspace


def _gradients(ctx: Any, output_gradient: torch.Tensor | None, *_: object) -> tuple[object, ...]:
    input, weight_ih, weight_hh, state, output, workspace, *biases = ctx.saved_tensors
    output_gradient = torch.zeros_like(output) if output_gradient is None else output_gradient
    return torch.ops.baechi_lab.recurrent_layer_backward(
        input, weight_ih, weight_hh, biases, state, output, workspace, output_gradient
    )


torch.library.register_autograd("baechi_lab::recurrent_layer", _gradients, setup_context=_save)


def lstm_workspace_bytes(input: torch.Tensor, hidden: int, on_cpu: bool) -> int:
    """Returns the bytes that an LSTM layer keeps for its backward pass: gates, and states of all steps.

    OneDNN keeps seven tensors, each in whole pages of memory: gates and results of all steps, and of all steps and the first
    state, for the layer and its input, two of states and three as wide as the wider of both; measured with PyTorch 2.13. A GPU
    keeps at least the cells.
    """
    steps, batch, width = input.shape
    if not on_cpu:
        return steps * batch * 5 * hidden * input.itemsize
    rows = 2 * (steps + 1) * batch
    gates, results = steps * batch * _padded_length(4 * hidden), steps * batch * _padded_length(hidden)
    tensors = gates, results, *(2 * [rows * hidden]), *(3 * [rows * _padded_length(max(width, hidden))])
    return sum(_in_pages(numbers * input.itemsize) for numbers in tensors)


def gru_workspace(output: torch.Tensor) -> torch.Tensor:
    """Returns what a GRU layer keeps on a CPU, operator by operator: three gates before and two after sigmoid, and two states."""
    return output.new_empty(*output.shape[:2], 7 * output.shape[2])


def lstm_scratch_bytes(
    input: torch.Tensor, weight_hh: torch.Tensor, output_gradient: torch.Tensor | None = None
) -> int:
    """Returns the bytes that oneDNN holds while an LSTM layer runs, or with `output_gradient` its backward pass.

    It holds the weights (or their gradients) in another order, the sum of the biases and gates of all steps. The backward pass
    also has the gradient of the outputs in one piece, gradients of the last states, and transposed weights, where their rows
    are not aligned.
    """
    steps, batch, width = input.shape
    gates, hidden = weight_hh.shape
    bias_bytes, size = gates * input.itemsize, input.itemsize
    scratch_bytes = (
        _in_pages(steps * batch * _padded_length(gates) * size)
        + 2 * _in_pages(batch * _padded_length(hidden) * size)
        + 2 * _PAGE
    )
    scratch_bytes += (width + hidden) * _padded_length(gates) * size + bias_bytes
    if output_gradient is None:
        return scratch_bytes
    scratch_bytes += 2 * batch * hidden * size + bias_bytes
    scratch_bytes += sum(gates * _padded_length(row) * size for row in (width, hidden) if _padded_length(row) != row)
    return scratch_bytes + output_gradient.nbytes * (not output_gradient.is_contiguous())


def _in_pages(size: int) -> int:
    """Returns the bytes of the pages that hold `size` bytes."""
    return -(-size // _PAGE) * _PAGE


def _padded_length(numbers: int) -> int:
    """Returns the length of a row in oneDNN's recurrent layers: whole cache lines, and one more against aliasing."""
    whole_lines = -(-numbers // _LINE) * _LINE
    return whole_lines + _LINE * (whole_lines % 256 == 0)


def run_layers(function: Callable[..., T], on_cpu: bool, *args: Any) -> T | tuple[torch.Tensor, ...]:
    """Runs a recurrent module's layers and directions, one kernel for each, on fake tensors.

    Args:
        function: PyTorch's own, for LSTMs of float32 and LSTMs with projections.
        on_cpu: run PyTorch's own function for short sequences too.
        args: input, first states (of an LSTM: of outputs and of cells), weights, whether there are biases, number of layers,
            dropout, training, bidirectional, batch first. Or, for packed sequences, those of `_run_packed`.
    """
    if not isinstance(args[3], bool):
        return _run_packed(function, on_cpu, *args)
    sequence, states, weights, has_biases, count, dropout, training, bidirectional, batch_first = args
    directions, per_direction = 1 + bidirectional, 4 if has_biases else 2
    has_cells = not isinstance(states, torch.Tensor)
    if has_cells:
        if sequence.dtype == torch.float32 or len(weights) != count * directions * per_direction:
            return function(*args)
        states = states[0]
    sequence = sequence.transpose(0, 1) if batch_first else sequence
    if on_cpu and len(sequence) * count * directions <= _MOST_STEPS:
        return function(*args)
    last_states = []
    for layer in range(count):
        outputs = []
        for k in range(layer * directions, (layer + 1) * directions):
            weight_ih, weight_hh, *biases = weights[k * per_direction : (k + 1) * per_direction]
            hidden, state, _ = torch.ops.baechi_lab.recurrent_layer(sequence, weight_ih, weight_hh, biases, states[k])
            outputs.append(hidden)
            last_states.append(state)
        sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and layer < count - 1:
            sequence = functional.dropout(sequence, dropout, training)
    output = sequence.transpose(0, 1) if batch_first else sequence
    last_state = torch.stack(last_states)
    return (output, last_state, torch.stack(last_states)) if has_cells else (output, last_state)


def _run_packed(function: Callable[..., T], on_cpu: bool, *args: Any) -> T | tuple[torch.Tensor, ...]:
    """Runs the layers over packed sequences: PyTorch's own function, or as many equal sequences as have that many numbers.

    `args` are the numbers of all steps, the number of sequences at each step, first states, weights, and as in `run_layers` from
    whether there are biases to bidirectional.
    """
    packed, batch_sizes, states, weights, has_biases, count, dropout, training, bidirectional = args
    steps = len(batch_sizes)
    if on_cpu and steps * count * (1 + bidirectional) <= _MOST_STEPS:
        return function(*args)
    samples = -(-len(packed) // steps)
    padded = functional.pad(packed, (0, 0, 0, steps * samples - len(packed))).view(steps, samples, -1)
    first = states[:, :samples] if isinstance(states, torch.Tensor) else tuple(state[:, :samples] for state in states)
    options = (has_biases, count, dropout, training, bidirectional, False)
    output, *last_states = run_layers(function, False, padded, first, weights, *options)  # type: ignore[misc]
    missing = (states if isinstance(states, torch.Tensor) else states[0]).shape[1] - samples
    return output.flatten(0, 1)[: len(packed)], *(functional.pad(state, (0, 0, 0, missing)) for state in last_states)


def pad_packed(
    packed: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns padded sequences and their lengths, as `torch._VF._pad_packed_sequence`, whose C++ code writes into memory."""
    sizes = batch_sizes.tolist()
    padded = packed.new_full((max(len(sizes), total_length), sizes[0], *packed.shape[1:]), padding)
    start = offset = 0
    for size, group in groupby(sizes):  # one copy for all steps of as many sequences
        steps = len(list(group))
        sequences = packed[offset : offset + steps * size].view(steps, size, *packed.shape[1:])
        padded[start : start + steps, :size].copy_(sequences)
        start, offset = start + steps, offset + steps * size
    lengths = torch.tensor([sum(size > k for size in sizes) for k in range(sizes[0])])
    return padded.transpose(0, 1) if batch_first else padded, lengths


def pack_padded(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns packed sequences and how many there are at each step, as `torch._VF._pack_padded_sequence`.

    The C++ code of that function's gradient reads values. Here the gradient is that of a selection of rows.
    """
    if not (padded.requires_grad and torch.is_grad_enabled()):
        return PACK_PADDED(padded, lengths, batch_first)  # type: ignore[no-any-return]
    samples, longest = padded.shape[:2] if batch_first else padded.shape[1::-1]
    _, batch_sizes = PACK_PADDED(padded.new_empty(padded.shape[:2]), lengths, batch_first)
    step_stride, sample_stride = (1, longest) if batch_first else (samples, 1)
    rows = [
        step * step_stride + k * sample_stride for step, size in enumerate(batch_sizes.tolist()) for k in range(size)
    ]
    return padded.flatten(0, 1).index_select(0, torch.tensor(rows)), batch_sizes


PACKING: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "_pack_padded_sequence": pack_padded,
    "_pad_packed_sequence": pad_packed,
}
"""Functions of `torch._VF`, by name, whose C++ code reads or writes memory, and what stands for them."""
