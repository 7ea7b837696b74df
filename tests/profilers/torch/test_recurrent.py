"""Recurrent modules are one kernel per layer and direction, whatever their kind, and their steps follow each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

torch = pytest.importorskip("torch")
from fewer import slow  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.graph.hardware import Hardware  # noqa: E402
from baechi_lab.profilers.kernel_model import kernel_us  # noqa: E402
from baechi_lab.profilers.torch.fake_tensors import use_fake_tensors  # noqa: E402
from baechi_lab.profilers.torch.layer_estimate import estimate_layers  # noqa: E402
from baechi_lab.profilers.torch.recurrent import pack_padded  # noqa: E402
from baechi_lab.profilers.work import Kernel, recurrent_kernel  # noqa: E402

STEPS, SAMPLES, WIDTH, HIDDEN = 10, 4, 6, 8
GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
OPTIONS = ({}, {"bidirectional": True, "num_layers": 2, "dropout": 0.5}, {"batch_first": True, "bias": False})


def test_bug_steps_of_a_recurrent_kernel_ran_at_once():
    """Each step waits for the one before it, so it takes at least a launch."""
    hardware = Hardware.named("a100")
    launches = [kernel_us(Kernel(flops=10.0, matrix=True, steps=steps), hardware) for steps in (100, 200)]
    assert launches[1] - launches[0] == pytest.approx(100 * hardware.launch_us)


def test_a_step_starts_its_products_and_its_gates_and_a_small_layer_is_one_kernel():
    """100 steps of 64 samples: two launches each, or 2.1 us each if 192 states of four gates stay in registers."""
    layer, hardware = Kernel(flops=10.0, matrix=True), Hardware.named("a100")
    small, large, half = (
        recurrent_kernel(replace(layer, precision=p), 100, 64, hidden, 4)
        for p, hidden in (("fp32", 192), ("fp32", 193), ("fp16", 192))
    )
    assert kernel_us(small, hardware) == pytest.approx(100 * 2.1)
    assert kernel_us(large, hardware) == kernel_us(half, hardware) == pytest.approx(200 * hardware.launch_us, rel=0.02)
    assert large.followed_by.moved_bytes == 4 * 100 * 64 * 193 * (4 + 4 + 1)
    assert recurrent_kernel(layer, 100, 64, 192, 4, backward=True).followed_by is not None


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", GATES)
def test_bug_only_lstms_were_one_kernel(kind, options):
    """Others, and LSTMs in bf16 on some processors, were a dozen kernels for every step, as a CPU runs them."""
    model, x = kind(WIDTH, HIDDEN, **options), torch.ones(STEPS, SAMPLES, WIDTH)
    steps, samples = (SAMPLES, STEPS) if options.get("batch_first") else (STEPS, SAMPLES)
    layers, directions = options.get("num_layers", 1), 1 + options.get("bidirectional", False)
    widths = [WIDTH] + [HIDDEN * directions] * (layers - 1)
    forward_flops = sum(2 * steps * samples * GATES[kind] * HIDDEN * (w + HIDDEN) * directions for w in widths)
    for precision, (mode, passes) in product(("fp32", "bf16"), (("inference", 1), ("training", 3))):
        kernels = [k for _, k in estimate_layers(model, x, mode=mode, precision=precision).kernels if k.matrix]
        assert sum(k.flops for k in kernels) == passes * forward_flops
        assert [k.steps for k in kernels] == [steps] * (layers * directions * (1 if passes == 1 else 2))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", GATES)
def test_shapes_are_those_of_pytorch(kind, options):
    model, x = kind(WIDTH, HIDDEN, **options), torch.ones(STEPS, SAMPLES, WIDTH)
    output, states = model(x)
    with use_fake_tensors(model, x) as fake:
        fake_output, fake_states = model(fake)
    assert fake_output.shape == output.shape
    shapes = [s.shape for s in (states if kind is nn.LSTM else [states])]
    assert [s.shape for s in (fake_states if kind is nn.LSTM else [fake_states])] == shapes
    assert torch._VF.gru == torch._C._VariableFunctions.gru, "afterwards PyTorch's own function runs again"
    torch.testing.assert_close(model.eval()(x)[0], model(x)[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow(GATES, nn.LSTM, nn.GRU))
def test_an_exported_program_takes_as_long(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(64, 512)

        def forward(self, x):
            return self.layer(x)[0]

    model, x = Model(), torch.ones(50, 8, 64)
    graph = bl.torch.profile(model, x, hardware="a100", mode="training")
    exported = bl.profile_program(torch.export.export(model.eval(), (x,)), hardware="a100")
    assert exported.duration_us.sum() == pytest.approx(graph.duration_us.sum(), rel=0.05)
    assert graph.duration_us.sum() > 4 * 50 * Hardware.named("a100").launch_us


def test_bug_the_first_estimate_of_an_lstm_copied_the_gradients_of_biases():
    """PyTorch copies a gradient only if somebody else holds it; its LSTM on a CPU gives each bias a gradient of its own."""
    layer, x = torch.nn.LSTM(24, 24, 2), torch.zeros(5, 3, 24)
    operators = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            operators.append(func)
            return func(*args, **(kwargs or {}))

    loss = layer(x)[0].sum()
    with Recorder():
        loss.backward()
    assert not [func for func in operators if func is torch.ops.aten.copy_.default]
    FakeTensorMode.cache_clear()
    first, second = (estimate_layers(layer, (x,), mode="training") for _ in range(2))
    assert [kernel for _, kernel in first.kernels] == [kernel for _, kernel in second.kernels]
    assert not [
        kernel for (direction, _), kernel in first.kernels if direction == "b" and kernel.moved_bytes == 2 * 4 * 4 * 24
    ]


LENGTHS = torch.tensor([6, 5, 5, 2])


class Packed(nn.Module):
    """A recurrent layer that runs no step of what is padded."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, states = self.layer(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        return padded, states[0] if isinstance(states, tuple) else states


@pytest.mark.parametrize("kind", slow([nn.LSTM, nn.GRU], nn.GRU))
def test_bug_packed_sequences_were_refused(kind):
    """As many products as tokens, 2 FLOPs per weight and token."""
    model, tokens = Packed(kind(8, 16, batch_first=True)), int(LENGTHS.sum())
    x = torch.ones(len(LENGTHS), 6, 8)
    weights = {name: p.numel() for name, p in model.named_parameters() if "weight" in name}
    of_inputs, of_states = (weights[f"layer.weight_{operand}_l0"] for operand in ("ih", "hh"))
    estimate = estimate_layers(model, (x, LENGTHS), mode="inference", on_cpu=True)
    (padding,) = (call for call in estimate.layers.trace.calls if call.key == "_pad_packed_sequence")
    assert padding.output_bytes == 4 * 6 * 16 * 4 + LENGTHS.nbytes
    assert estimate.flops == 2 * tokens * (of_inputs + of_states)
    # On a GPU as many equal sequences as have that many tokens: 18 in 6 steps are 3 sequences.
    assert estimate_layers(model, (x, LENGTHS), mode="inference").flops == 2 * 18 * (of_inputs + of_states)


@pytest.mark.parametrize("batch_first", [False, True])
def test_bug_packed_sequences_of_trained_layers_were_a_foreign_error(batch_first):
    """PyTorch reads values in the gradient of packing. Rows in the order of steps: 4 samples, 4, 3, 3, 3 and 1."""
    x = torch.arange(4 * 6 * 2.0).reshape(4, 6, 2) if batch_first else torch.arange(4 * 6 * 2.0).reshape(6, 4, 2)
    expected, received = (x.clone().requires_grad_() for _ in "ab")
    for padded, pack in ((expected, torch._VF._pack_padded_sequence), (received, pack_padded)):
        packed, batch_sizes = pack(padded, LENGTHS, batch_first)
        (packed * torch.arange(18.0)[:, None]).sum().backward()
        assert batch_sizes.tolist() == [4, 4, 3, 3, 3, 1]
    assert torch.equal(received.grad, expected.grad)
    model = nn.Sequential(nn.Linear(8, 8), nn.GRU(8, 4, batch_first=batch_first))
    model.forward = lambda x: model[1](nn.utils.rnn.pack_padded_sequence(model[0](x), LENGTHS, batch_first))[0].data
    rows = torch.ones(4, 6, 8) if batch_first else torch.ones(6, 4, 8)
    graph = bl.torch.profile(model, rows, mode="training", hardware="a100")
    assert {"0/backward", "1/backward"} <= set(graph.names)
