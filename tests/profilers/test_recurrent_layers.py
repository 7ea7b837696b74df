"""GRU and LSTM layers of Keras are one kernel per direction where cuDNN runs them, as in the estimates of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.tensorflow.op_work import count_work
from baechi_lab.profilers.tensorflow.recurrent_layers import fused_layers, is_fused
from baechi_lab.profilers.tensorflow.structure import read_structure
from baechi_lab.profilers.work import PERSISTENT_STEP_US

tf = pytest.importorskip("tensorflow")
keras = tf.keras

STEPS, SAMPLES, WIDTH, HIDDEN = 50, 8, 64, 96
LAUNCH_US = Hardware.named("a100").launch_us


def traced(layer):
    model = keras.Sequential([keras.Input((STEPS, WIDTH)), layer])
    model.compile("sgd", "mse")
    x = np.ones((SAMPLES, STEPS, WIDTH), np.float32)
    return bl.trace(model, x, np.ones(model(x).shape, np.float32))


def fused_loops(step):
    structure = read_structure(step)
    return structure, [i for i, node in enumerate(structure.nodes) if is_fused(node)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", fast(["GRU", "LSTM"], 1))
def test_bug_layers_that_a_gpu_runs_as_one_kernel_were_estimated_op_by_op(kind):
    """They took 13 times as long as PyTorch's."""
    step = traced(getattr(keras.layers, kind)(HIDDEN, return_sequences=True))
    structure, (forward, backward) = fused_loops(step)
    work = count_work(structure)
    kernels = [work.op.tolist().index(i) for i in (forward, backward)]
    gates = {"GRU": 3, "LSTM": 4}[kind]
    flops = 2 * STEPS * SAMPLES * gates * HIDDEN * (WIDTH + HIDDEN)
    assert work.flops[kernels].tolist() == [flops, 2 * flops]
    assert work.steps[kernels].tolist() == [STEPS, STEPS]
    graph = bl.profile(step, hardware="a100")
    inside = [
        i
        for i, name in enumerate(graph.names)
        if "sequential" in name and "loss" not in name and i not in (forward, backward)
    ]
    assert graph.duration_us[[forward, backward]].sum() == pytest.approx(2 * STEPS * PERSISTENT_STEP_US), (
        "states of float32 stay in registers"
    )
    assert graph.duration_us[inside].sum() < 2 * LAUNCH_US, (
        "what fills and empties the loop's lists is part of the kernel"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", fast(["GRU", "LSTM"], 1))
def test_the_readers_of_tensorflow_and_pytorch_agree(kind):
    """For a layer whose products take longer than launches."""
    torch = pytest.importorskip("torch")
    samples, width = 256, 512
    model = keras.Sequential(
        [keras.Input((STEPS, width)), keras.layers.Dense(width), getattr(keras.layers, kind)(width)]
    )
    model.compile("sgd", "mse")
    x = np.ones((samples, STEPS, width), np.float32)
    step = bl.trace(model, x, x[:, 0])
    _, loops = fused_loops(step)
    module = torch.nn.Sequential(torch.nn.Linear(width, width), getattr(torch.nn, kind)(width, width, batch_first=True))
    graph = bl.torch.profile(module, torch.ones(samples, STEPS, width), hardware="a100", mode="training")
    layers = [i for i, op in enumerate(graph.op_types) if op.startswith(kind)]
    loop_us = bl.profile(step, hardware="a100").duration_us[loops]
    assert loop_us.sum() == pytest.approx(graph.duration_us[layers].sum(), rel=0.05)
    assert loop_us[0] > 2 * STEPS * LAUNCH_US


@pytest.mark.parametrize(
    "options",
    [
        {"recurrent_dropout": 0.1},
        {"activation": "relu"},
        {"use_bias": False},
        {"reset_after": False},
        {"use_cudnn": False},
    ],
)
def test_options_that_cudnn_lacks_run_op_by_op(options):
    assert fused_layers([keras.layers.GRU(4)]) and not fused_layers([keras.layers.GRU(4, **options)])


@pytest.mark.slow
def test_other_cells_and_loops_run_op_by_op():
    class Cell(keras.layers.LSTM):
        def inner_loop(self, *args, **kwargs):
            return keras.layers.RNN.inner_loop(self, *args, **kwargs)

    assert not fused_layers([keras.layers.RNN(keras.layers.GRUCell(4)), keras.layers.SimpleRNN(4), Cell(4)])
    assert not fused_loops(traced(keras.layers.RNN(keras.layers.GRUCell(4))))[1]


@pytest.mark.slow
def test_directions_masks_dropout_and_half_precision_are_kernels_too():
    half = keras.mixed_precision.Policy("mixed_bfloat16") if hasattr(keras, "mixed_precision") else "mixed_bfloat16"
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(2, STEPS)),
            keras.layers.Embedding(10, 4, mask_zero=True, dtype=half),
            keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True, dropout=0.5, dtype=half)),
            keras.layers.GRU(4, stateful=True, dtype=half),
        ]
    )
    model.compile("sgd", "mse")
    step = bl.trace(model, np.ones((2, STEPS), np.int32), np.ones((2, 4), np.float32))
    structure, loops = fused_loops(step)
    work = count_work(structure)
    kernels = work.steps > 1
    assert len(loops) == 6 and work.op[kernels].tolist() == [op for op in loops for _ in ("products", "gates")]
    assert set(work.steps[kernels]) == {STEPS} and len(set(work.precision[kernels])) == 1
    precise = count_work(read_structure(step, "fp32"))
    precise_bytes = precise.moved_bytes[precise.matrix & (precise.steps > 1)]
    assert precise_bytes == pytest.approx(2 * work.moved_bytes[kernels & work.matrix])


@pytest.mark.slow
def test_a_layer_inside_a_loop_is_a_kernel_of_each_round():
    layer = keras.layers.GRU(4)
    layer.build((2, 5, 3))

    def step(x):
        loss = 0.0
        for _ in tf.range(7):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x))
            for weight, gradient in zip(
                layer.trainable_weights, tape.gradient(loss, layer.trainable_weights), strict=True
            ):
                weight.assign_sub(gradient)
        return loss

    structure, loops = fused_loops(bl.trace(step, np.ones((2, 5, 3), np.float32)))
    work = count_work(structure)
    assert not loops
    assert work.times[work.steps > 1].tolist() == [7, 7] and work.steps.max() == 5
