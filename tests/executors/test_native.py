"""The undivided step as TensorFlow runs it: the caller's own function runs, and its state is as before."""

import copy
import dataclasses
import threading

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.native import Stop, native_runners
from baechi_lab.graph.step import NativeRun

tf = pytest.importorskip("tensorflow")


def counted():
    """A function that returns how often it has run, and doubles its input; its counter."""
    counter = tf.Variable(5, name="counter")

    def step(x):
        return counter.assign_add(1), 2.0 * x

    return step, counter


def test_the_users_function_runs_and_its_state_is_as_before():
    function, counter = counted()
    traced = tf.function(function)
    step = bl.trace(traced, np.float32(3.0))
    ((name, runner),) = native_runners(step, True).items()
    assert name == "tf.function"
    native_run = runner(steps=2, warmup=1)
    # Three steps from 5 on: 6 in the warm-up, 7 and 8 measured; the next run starts there again.
    assert [int(o[0]) for o in native_run.outputs] == [6, 7, 8] and [float(o[1]) for o in native_run.outputs] == [
        6.0
    ] * 3
    assert len(native_run.step_seconds) == 2 and (native_run.step_seconds > 0).all() and native_run.status == "ok"
    assert int(counter.numpy()) == 5
    assert [int(o[0]) for o in runner(steps=1, warmup=0).outputs] == [6]
    assert (
        native_run.name == "native (tf.function)"
        and native_run.info["device"].endswith(":0")
        and native_run.info["threads"] >= 1
    )
    # It is that very function: it has run eagerly when TensorFlow is told so.
    eager = []
    python = bl.trace(lambda x: eager.append(1) or x + 1.0, np.float32(0.0))
    once = len(eager)
    native_runners(python, "tf.function")["tf.function"](steps=3, warmup=0)
    assert len(eager) == once + 1  # a plain function is traced once more, not once per step


def test_a_placed_run_has_the_native_one_beside_it(step, placement, example_batch, unplaced_losses, worker):
    negated = tuple(-x for x in example_batch)
    run = bl.execute(step, placement, 3, warmup=1, traced=0, kind="cpu", native=True, progress=False, worker=worker)
    native_run = run.native["tf.function"]
    np.testing.assert_allclose([float(o[0]) for o in native_run.outputs], unplaced_losses[:4], rtol=1e-6)
    np.testing.assert_allclose([float(o[0]) for o in run.outputs], [float(o[0]) for o in native_run.outputs], rtol=1e-6)
    assert run.native_ratio == run.median_seconds / native_run.median_seconds
    batches = native_runners(step, True, inputs=[example_batch, negated])["tf.function"](steps=2, warmup=0)
    assert float(batches.outputs[0][0]) != float(batches.outputs[1][0])


def test_keras_trains_its_own_way_and_forgets_it():
    keras = pytest.importorskip("keras")
    # Positive weights: drawn ones leave every unit dead, and the loss 0, in one run of eight.
    one = {"kernel_initializer": "ones"}
    model = keras.Sequential([keras.layers.Dense(3, activation="relu", **one), keras.layers.Dense(1, **one)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    step = bl.trace(model, x, y)
    before = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    native_run = native_runners(step, True)["Keras train_step"](steps=2, warmup=1)
    assert native_run.status == "ok" and len(native_run.outputs) == 3
    assert {round(float(v), 4) for o in native_run.outputs for v in o} != {0.0}  # loss and metric
    assert model.train_function is None
    # Metrics that the first step made are reset, all others are as they were: Adam has counted no step.
    after = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    assert all((a == b).all() for a, b in zip(before, after, strict=True)) and int(model.optimizer.iterations) == 0
    assert all(float(np.sum(np.abs(v))) == 0 for v in model.metrics_variables)


def test_nests_and_values_that_are_no_tensors_reach_the_function():
    weight = tf.Variable(2.0)
    step = bl.trace(lambda batch, scale: {"loss": weight * batch["x"] * scale}, {"x": np.float32(4.0)}, 3)
    (native_run,) = [runner(steps=1, warmup=0) for runner in native_runners(step, True).values()]
    assert [float(x) for x in native_run.outputs[0]] == [2.0 * 4.0 * 3]


def test_benchmark_models_are_made_again():
    step = bl.models.build("mlp", batch_size=2)
    native_run = native_runners(step, True)["tf.function"](steps=2, warmup=0)
    assert len(native_run.step_seconds) == 2 and float(native_run.outputs[1][0]) < float(native_run.outputs[0][0])


def test_what_fails_while_it_runs_is_a_status():
    step = bl.trace(lambda x: tf.debugging.check_numerics(x, "no number"), np.float32(1.0))
    native_run = native_runners(step, True, inputs=(np.float32("nan"),))["tf.function"](steps=2)
    assert (
        native_run.status == "died"
        and native_run.message
        and not len(native_run.step_seconds)
        and np.isnan(native_run.median_seconds)
    )
    stop = threading.Event()
    stop.set()
    ended = native_runners(step, True)["tf.function"](2, 0, Stop(stop))
    assert (ended.status, ended.outputs) == ("cancelled", ())
    assert native_runners(step, True)["tf.function"](2, 0, Stop(deadline=0.0)).status == "timeout"


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        ("step", {"native": "eagre"}, "unknown native way 'eagre'"),
        ("step", {"native": 3}, "native is 3; it must be True, False or the name"),
        ("graph", {"native": True}, "step is a OpGraph"),
        ("sent", {"native": True}, "without the function it was traced from"),
        ("step", {"native": True, "micro_batches": 4}, "one of 4 micro-batches; trace the whole batch"),
        ("step", {"native": True, "inputs": (np.zeros(3),)}, "takes 2 inputs; 1 were given"),
    ],
)
def test_bad_input_is_one_sentence(step, case, options, message):
    graph = bl.OpGraph.from_edges([1.0])
    argument = {"step": step, "graph": graph, "sent": copy.copy(step)}[case]
    with pytest.raises(bl.InvalidInput, match=message):
        native_runners(argument, **options)
    assert native_runners(argument, False) == {}


def test_ratio_is_to_the_fastest_way():
    fast, slow = (NativeRun(name, np.array([seconds])) for name, seconds in (("eager", 0.5), ("torch.compile", 2.0)))
    run = bl.Run(None, np.array([1.0, 1.0]), (), native={"eager": fast, "torch.compile": slow})
    assert run.native_ratio == 2.0 and "500 ms" in repr(fast)
    failed = dataclasses.replace(fast, step_seconds=np.zeros(0), status="died")
    assert np.isnan(dataclasses.replace(run, native={"eager": failed}).native_ratio) and "died" in repr(failed)


@pytest.mark.slow
def test_a_comparison_has_rows_for_it(step):
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    cluster = bl.Cluster.uniform(2, kind="cpu", memory_bytes="1GB")
    table = bl.compare(graph, cluster, ["single"], step=step, native=True, steps=2, progress=False)
    assert table["placer"].tolist() == ["single", "native (tf.function)"]
    assert (table["measured_us"] > 0).all() and table["makespan_us"].isna().tolist() == [False, True]
    assert table["native_ratio"].tolist() == [table["measured_us"][0] / table["measured_us"][1], 1.0]
    assert table.attrs["notes"][-1].startswith("native (tf.function), undivided on one device, measured ")
    with pytest.raises(bl.InvalidInput, match="native=True needs the step to run: give step="):
        bl.compare(graph, cluster, ["single"], native=True)
