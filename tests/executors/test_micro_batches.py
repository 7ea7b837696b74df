"""Steps of several micro-batches in TensorFlow: the undivided batch's results, the schedule's order, the simulator's names."""

import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.inputs import split_batch
from baechi_lab.executors.tensorflow.gradient_sums import rows_tensors
from baechi_lab.executors.tensorflow.pipelined_step import pipelined_step
from baechi_lab.executors.tensorflow.session import parse_graph
from baechi_lab.executors.tensorflow.unrolled_step import control_dependencies
from baechi_lab.passes.roles import FORWARD, roles
from baechi_lab.profilers.programs.estimation import GuessedCosts
from baechi_lab.simulator.pipelined_graph import make_pipelined_graph
from baechi_lab.simulator.schedules import list_schedules

pytest.importorskip("tensorflow")

M = 4
SIZES = {
    "mlp": {"layers": 6, "units": 16},
    "gnmt": {"sequence_length": 2, "layers": 2, "units": 8, "vocabulary": 20},
    "transformer": {"layers": 1, "units": 8, "heads": 2, "inner": 16, "vocabulary": 30, "sequence_length": 4},
}


class Case:
    """A model as one micro-batch and as a whole batch, and what plain steps of the whole batch give."""

    def __init__(self, name, worker):
        self.whole = bl.models.build(name, batch_size=2 * M, **SIZES[name])
        self.step = bl.models.build(name, batch_size=2, **SIZES[name])
        self.graph = bl.profile(self.step, mode="estimated", hardware="cpu-core")
        self.worker = worker
        alone = bl.profile(self.whole, mode="estimated", hardware="cpu-core")
        self.expected = self.run(self.whole, bl.Placement(device=[0] * alone.n), graph=alone)

    def run(self, step, placement, **options):
        options = {"graph": self.graph, **options}
        return bl.execute(
            step,
            placement,
            steps=2,
            warmup=0,
            traced=1,
            kind="cpu",
            return_variables=True,
            worker=self.worker,
            progress=False,
            inputs=self.whole.example_inputs,
            **options,
        )

    def stages(self, devices):
        cluster = bl.Cluster.uniform(devices, kind="cpu", link=bl.Link(0.0, 0.0), comm="parallel")
        return bl.place(self.graph, cluster, "contiguous", objective="throughput")

    def placement(self, schedule):
        if schedule not in ("interleaved-1f1b", "zb-v"):
            return self.stages(2)
        cluster = bl.Cluster.uniform(2, kind="cpu", link=bl.Link(0.0, 0.0), comm="parallel")
        options = {"objective": "step", "micro_batches": M, "schedule": schedule}
        return bl.place(self.graph, cluster, "contiguous", **options)


@pytest.fixture(scope="module")
def cases(worker):
    cases_by_name = {}

    def case(name):
        if name not in cases_by_name:
            cases_by_name[name] = Case(name, worker)
        return cases_by_name[name]

    return case


@pytest.mark.parametrize(
    ("model", "schedule"),
    [("mlp", s) for s in (*list_schedules(), None)] + [("gnmt", "1f1b"), ("transformer", "zb-h1")],
)
def test_micro_batches_train_as_the_undivided_batch(cases, model, schedule):
    """Losses and variables of three steps, each micro-batch with its own data, to float32 rounding."""
    case = cases(model)
    run = _as_the_undivided(case, case.placement(schedule), schedule)
    assert set(run.info["variables"]) == set(case.expected.info["variables"])


@pytest.mark.parametrize(
    ("model", "devices", "replicas", "schedule"),
    [("mlp", [0, 2], [(0, 1)], "1f1b"), ("gnmt", [0, 0], [(0, 1, 2)], "gpipe")],  # a table's rows, and parts of three
)
def test_replicas_give_the_undivided_batch_and_stay_equal(cases, model, devices, replicas, schedule):
    case = cases(model)
    placement = bl.Placement(device=np.array(devices)[case.stages(2).device], replicas=replicas)
    run = _as_the_undivided(case, placement, schedule, devices=3)
    trained = run.info["variables"]
    copies = [name for name in trained if "/replica" in name]
    assert len(copies) >= len(replicas[0]) - 1
    for name in copies:
        first = name[: name.index("/replica")]
        np.testing.assert_array_equal(trained[name], trained[first if first in trained else f"{first}:0"], err_msg=name)


def _as_the_undivided(case, placement, schedule, devices=2):
    run = case.run(case.step, placement, micro_batches=M, schedule=schedule)
    assert run.status == "ok" and run.moved_ops == ()
    losses = [[float(o[0]) for o in r.outputs] for r in (run, case.expected)]
    assert len(set(losses[1])) == 3
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    for name, value in case.expected.info["variables"].items():
        np.testing.assert_allclose(run.info["variables"][name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    cluster = bl.Cluster.uniform(devices, kind="cpu")
    simulated = bl.simulate(case.graph, cluster, placement, micro_batches=M, schedule=schedule)
    assert run.timeline.op_names == simulated.op_names
    at = np.zeros(len(simulated.op), dtype=int)
    at[run.timeline.op] = run.timeline.device
    assert sorted(run.timeline.op) == sorted(simulated.op) and np.array_equal(
        at, simulated.device[np.argsort(simulated.op)]
    )
    if schedule is not None:
        assert run.timeline.schedule_lines == simulated.schedule_lines
        _in_order(run.timeline)
    return run


def _in_order(timeline):
    """No op of a unit starts before all ops of the units before it on its device have ended (1 us of the clock's ticks)."""
    unit = timeline.unit[timeline.op]
    for device in range(len(timeline.device_names)):
        rows = timeline.device == device
        for k in np.unique(unit[rows])[1:]:
            earlier = timeline.end_us[rows & (unit < k)].max()
            assert timeline.start_us[rows & (unit == k)].min() >= earlier - 1.0


def test_one_micro_batch_and_fewer_than_stages(cases):
    """Allowed, as in the simulator: one is the step itself; two on four stages leave a large bubble."""
    case = cases("mlp")
    for count in (1, 2):
        batch = split_batch(case.whole, 1, case.whole.example_inputs)
        half = tuple(value[: 2 * count] for value in batch)
        run = bl.execute(
            case.step,
            case.stages(4),
            steps=1,
            warmup=0,
            traced=1,
            inputs=half,
            micro_batches=count,
            schedule="1f1b",
            kind="cpu",
            graph=case.graph,
            worker=case.worker,
        )
        assert run.status == "ok"
        _in_order(run.timeline)


def test_compare_measures_the_same_step(cases):
    case = cases("mlp")
    cluster = bl.Cluster.uniform(2, kind="cpu", link=bl.Link(0.0, 0.0), comm="parallel")
    table = bl.compare(
        case.graph,
        cluster,
        [("contiguous", {"objective": "throughput"})],
        step=case.step,
        measure=True,
        steps=1,
        micro_batches=M,
        schedule="1f1b",
        batch_size=2 * M,
        progress=False,
    )
    assert (table["error"] == "").all() and table["measured_us"].iloc[0] > 0


def test_micro_batches_on_workers_train_as_the_undivided_batch(cases):
    """On a LocalCluster, and on the same workers as machines that one names by address."""
    case = cases("mlp")
    placement = case.placement("1f1b")
    replicated = bl.Placement(device=[0] * case.graph.n, replicas=[(0, 1)])
    with bl.LocalCluster(2, trusted_users=True) as local:
        shared = bl.execute(
            case.step,
            replicated,
            steps=2,
            warmup=0,
            traced=1,
            inputs=case.whole.example_inputs,
            micro_batches=M,
            schedule="1f1b",
            graph=case.graph,
            return_variables=True,
            cluster=local,
        )
        for name, value in case.expected.info["variables"].items():
            np.testing.assert_allclose(shared.info["variables"][name], value, rtol=1e-5, atol=1e-6)
        for target in ({"cluster": local}, {"cluster": local.cluster, "workers": local.addresses}):
            run = bl.execute(
                case.step,
                placement,
                steps=2,
                warmup=0,
                traced=1,
                inputs=case.whole.example_inputs,
                micro_batches=M,
                schedule="1f1b",
                graph=case.graph,
                return_variables=True,
                **target,
            )
            assert run.status == "ok" and run.timeline.device_names == local.cluster.names
            for name, value in case.expected.info["variables"].items():
                np.testing.assert_allclose(run.info["variables"][name], value, rtol=1e-5, atol=1e-6)
            simulated = bl.simulate(case.graph, local.cluster, placement, micro_batches=M, schedule="1f1b")
            assert run.timeline.op_names == simulated.op_names
            pairs = {(x, y) for x, y in zip(run.timeline.transfers.source, run.timeline.transfers.target, strict=True)}
            assert pairs == {(0, 1), (1, 0)}
            _in_order(run.timeline)


# -- what waits for what ---------------------------------------------------------------------------------------------


def test_gradients_of_weights_come_first_within_a_unit():
    """On device 1: forward 1, then B 2 which reads 1's output's gradient; W 3 reads the same and feeds nobody.

    Op 4 is device 0's backward op, for which device 1's op 2 is waited. So 2 waits for 3: op 3 is ready with it.
    """
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1, 1, 1],
        [(0, 1, 8), (1, 5, 8), (5, 2, 8), (5, 3, 8), (2, 4, 8)],
        forward_of=[-1, -1, 1, 1, 0, 1],
    )
    device = [0, 1, 1, 1, 0, 1]
    one = make_pipelined_graph(graph, bl.Cluster.uniform(2), bl.Placement(device=device), 1, "1f1b")
    assert control_dependencies(one) == {2: [3], 4: [0]}
    split = make_pipelined_graph(graph, bl.Cluster.uniform(2), bl.Placement(device=device), 1, "zb-h1")
    assert control_dependencies(split) == {3: [2], 4: [0]}


def test_without_a_schedule_nothing_waits():
    graph = bl.OpGraph.from_edges([1, 1], [(0, 1, 8)])
    pipe = make_pipelined_graph(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 1]), 2)
    assert control_dependencies(pipe) == {}


@pytest.mark.parametrize("seed", range(10))
def test_order_has_no_circle(seed):
    """Any chain of random layers on three devices, under every schedule: data and order together can be sorted."""
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(3, 8))
    forward, edges, pairs = list(range(layers)), [], [-1] * layers
    edges += [(k, k + 1, 8) for k in range(layers - 1)]
    before = layers - 1
    for k in reversed(range(layers)):
        gradient, weights = len(pairs), len(pairs) + 1
        pairs += [k, k]
        edges += [(before, gradient, 8), (before, weights, 8), (k, weights, 8)]
        before = gradient
    graph = bl.OpGraph.from_edges([1.0] * len(pairs), edges, forward_of=pairs)
    cut = np.sort(rng.choice(np.arange(1, layers), 2, replace=False))
    stage = np.searchsorted(cut, forward, side="right")
    device = [int(stage[k if k < layers else pairs[k]]) for k in range(len(pairs))]
    for schedule in ("gpipe", "1f1b", "zb-h1", "zb-h2"):
        pipe = make_pipelined_graph(graph, bl.Cluster.uniform(3), bl.Placement(device=device), 5, schedule)
        waits, unrolled = control_dependencies(pipe), pipe.graph
        arcs = list(zip(unrolled.edge_source.tolist(), unrolled.consumers.tolist(), strict=True))
        arcs += [(k, op) for op, predecessors in waits.items() for k in predecessors]
        joined = bl.OpGraph.from_edges([0.0] * unrolled.n, [(a, b, 4) for a, b in sorted(set(arcs))])  # or CycleError
        assert all(joined.position[a] < joined.position[b] for a, b in arcs)
        assert any(waits.values()), schedule


# -- what differs from micro-batch to micro-batch ------------------------------------------------------------------------


def test_batches_are_cut_where_they_are_longer(cases):
    step = cases("gnmt").step  # words are int32[steps, batch]: the batch is the second axis
    pieces = split_batch(step, M, cases("gnmt").whole.example_inputs)
    assert len(pieces) == M * len(step.inputs)
    assert [p.shape for p in pieces] == [s.shape for s in step.inputs] * M
    np.testing.assert_array_equal(
        np.concatenate(pieces[:: len(step.inputs)], axis=1), cases("gnmt").whole.example_inputs[0]
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(10, 32), (10,)], "has 10 along axis 0; it must be a multiple of micro_batches, which is 4"),
        ([(2, 32), (2,)], "has the shape .2, 32. of one micro-batch; a whole batch has 4 times as many samples"),
        ([(12, 32), (12,)], "has shape .12, 32.; 4 micro-batches of the step's .2, 32. make it longer along one axis"),
        ([(8, 32, 1), (8,)], "has shape .8, 32, 1.; 4 micro-batches"),
        ([(8, 32)], "takes 2 inputs; 1 were given"),
    ],
)
def test_batches_that_do_not_divide(cases, shapes, message):
    with pytest.raises(bl.InvalidInput, match=message):
        split_batch(cases("mlp").step, M, [np.zeros(shape, np.float32) for shape in shapes])


def test_bad_input_is_one_sentence(cases):
    case = cases("mlp")
    two = case.stages(2)
    for error, message, options in [
        (bl.UnknownNameError, "unknown schedule '1f2b'", {"schedule": "1f2b"}),
        (bl.InvalidInput, "micro_batches is 0; it must be a whole number of at least 1", {"micro_batches": 0}),
        (bl.InvalidInput, "form no pipeline with several stages on a device: stage 3 of 4", {"schedule": "zb-v"}),
        (bl.UnknownNameError, "unknown reduction 'max'", {"reduction": "max"}),
    ]:
        arguments = {"micro_batches": M, "schedule": "1f1b", **options}
        with pytest.raises(error, match=message):
            bl.execute(case.step, two, kind="cpu", graph=case.graph, **arguments)
    in_the_middle = [int("layer2" in name or "layer3" in name) for name in case.graph.names]
    with pytest.raises(bl.InvalidInput, match=r"form no pipeline: the forward tensor .* turns back from .* to "):
        bl.execute(
            case.step,
            bl.Placement(device=in_the_middle),
            kind="cpu",
            graph=case.graph,
            micro_batches=M,
            schedule="1f1b",
        )


def _unrolled(function, *inputs, devices=1, count=3, reduction="mean"):
    step = bl.trace(function, *inputs)
    graph = bl.profile(step, mode="estimated")
    return step, pipelined_step(step, bl.Placement(device=[0] * graph.n), None, graph, count, "gpipe", reduction)


def test_random_ops_draw_anew_for_every_micro_batch(worker):
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(3)

    def noise(x):
        return (
            tf.random.uniform([2], seed=5) + 0 * x[0],
            tf.random.stateless_uniform(x.shape, seed=[1, 2])[0],
            generator.uniform([2]) + 0 * x[0],
            tf.reduce_mean(x),
            tf.reduce_sum(tf.cast(x > 0, tf.int32)),
        )

    step, unrolled = _unrolled(noise, np.zeros((2, 2), np.float32))
    batch = np.array([[1, 2], [3, 4], [5, 6], [-1, -1], [7, 8], [9, 10]], np.float32)
    run = bl.execute(
        step,
        bl.Placement(device=[0] * len(bl.profile(step, mode="estimated").names)),
        steps=2,
        warmup=0,
        traced=0,
        inputs=(batch,),
        micro_batches=3,
        kind="cpu",
        worker=worker,
    )
    assert run.status == "ok"
    for drawn in run.outputs[0][:3]:
        assert drawn.shape == (3, 2) and len(np.unique(drawn)) == 6
    assert run.outputs[0][3] == pytest.approx(batch.mean())  # a float scalar is the mean of the micro-batches'
    assert run.outputs[0][4] == 10  # a count is their sum
    assert not np.array_equal(run.outputs[0][0], run.outputs[1][0])
    assert [s.shape for s in unrolled.step.outputs] == [(3, 2)] * 3 + [()] * 2


@pytest.mark.parametrize(
    "draw",
    [
        lambda tf, shape, seed: tf.random.stateless_normal(shape, [seed, 2]),
        lambda tf, shape, seed: tf.raw_ops.StatelessRandomUniform(shape=shape, seed=[seed, 2]),
        lambda tf, shape, seed: tf.random.stateless_normal(shape, tf.random.split([seed, 2], 2)[1]),
        lambda tf, shape, seed: tf.random.experimental.stateless_shuffle(
            tf.reshape(tf.linspace(-0.2, 0.3, np.prod(shape)), shape), [seed, 2]
        ),
    ],
)
def test_bug_noise_on_weights_from_a_seed_was_drawn_anew_for_every_micro_batch(worker, draw):
    """Here the undivided batch draws as many numbers, so the micro-batches draw the same ones; in each step other ones."""
    import tensorflow as tf

    w, count = tf.Variable(np.full((2, 2), 0.1, np.float32)), tf.Variable(3)

    def train(x):
        seed = count.read_value()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ (w + draw(tf, (2, 2), seed)) * draw(tf, (1, 2), seed + 1) - 1) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        count.assign_add(1)
        return loss

    batch = np.array([[1, 2], [3, 4], [5, 6], [-1, -1]], np.float32)
    step = bl.trace(train, batch[:2])
    placement = bl.Placement(device=[0] * bl.profile(step, mode="estimated").n)
    options = {"warmup": 0, "traced": 0, "kind": "cpu", "worker": worker}
    run = bl.execute(step, placement, 3, inputs=(batch,), micro_batches=2, **options)
    expected = [float(train(tf.constant(batch))) for _ in range(3)]
    assert len(set(expected)) == 3
    np.testing.assert_allclose([float(outputs[0]) for outputs in run.outputs], expected, rtol=1e-5)


def test_a_loss_that_is_a_sum(worker):
    """Gradients of a sum are added up: w - 0.1 * sum over 6 samples of x; a mean divides by the micro-batches."""
    import tensorflow as tf

    w = tf.Variable([1.0, 1.0], name="w")

    def fit(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    step = bl.trace(fit, x[:2])
    placement = bl.Placement(device=[0] * bl.profile(step, mode="estimated").n)

    def go(reduction):
        return bl.execute(
            step,
            placement,
            steps=1,
            warmup=0,
            traced=0,
            inputs=(x,),
            micro_batches=3,
            kind="cpu",
            worker=worker,
            reduction=reduction,
            return_variables=True,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = go("sum")
    assert float(run.outputs[0][0]) == 66.0
    np.testing.assert_allclose(run.info["variables"]["w"], [1 - 0.1 * 30, 1 - 0.1 * 36], rtol=1e-6)
    with pytest.warns(UserWarning, match="looks like a sum over the batch; .* give reduction='sum'"):
        run = go("mean")
    np.testing.assert_allclose(run.info["variables"]["w"], [1 - 0.1 * 10, 1 - 0.1 * 12], rtol=1e-6)


def test_rows_of_looked_up_tables_are_known_by_their_readers(cases):
    """GNMT scales the rows of its tables by the clipping factor, then subtracts them: rows, indices, nothing else."""
    step, graph = cases("gnmt").step, cases("gnmt").graph
    nodes = {node.name: node for node in parse_graph(step.graph_def).node}
    pipe = make_pipelined_graph(graph, bl.Cluster.uniform(1, kind="cpu"), bl.Placement(device=[0] * graph.n), 2)
    repeated = {name.rsplit("/mb", 1)[0] for name in pipe.graph.names if name.endswith("/mb0")}
    rows = rows_tensors(nodes, [n for n in nodes if n not in repeated], repeated)
    scatters = [n for n in nodes.values() if n.op == "ResourceScatterSub"]
    indices = {node.input[1].split(":")[0] for node in scatters}
    assert len(scatters) == 2 and indices <= {name for name, _ in rows} and len(rows) == 2 * len(scatters)


# -- the undivided batch, with other losses and updates -----------------------------------------------------------------

RNG = np.random.default_rng(0)
WORDS = RNG.normal(size=(8, 3, 4)).astype(np.float32)
LABELS = RNG.integers(0, 5, (8, 3)).astype(np.int32)
COUNTS = np.array([3, 3, 1, 2, 3, 1, 1, 3])[:, None] > np.arange(3)  # of each row the words that count


def _gradient_step(loss, update=None, autograph=False):
    """A step that trains one weight matrix by `loss(weight, *batch)`; `update(weight, gradient, loss)` writes it.

    Converting a function costs a quarter of tracing it: `autograph` where it has statements that depend on tensors.
    """
    import tensorflow as tf

    weight = tf.Variable(np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(4, 5), name="w")

    @tf.function(autograph=autograph)
    def step(*batch):
        with tf.GradientTape() as tape:
            value = loss(weight, *batch)
        gradient = tape.gradient(value, weight)
        if update is None:
            weight.assign_sub(0.5 * gradient)
        else:
            update(weight, gradient, value)
        return value

    return step


def _squares(weight, words, *_):
    import tensorflow as tf

    return tf.reduce_mean((words[:, 0] @ weight - 1.0) ** 2)


def _losses_of_words(weight, words, labels):
    import tensorflow as tf

    logits = tf.einsum("btc,cv->btv", words, weight)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _whole_and_divided(make, batch, worker, micro_batches=4, steps=3):
    """The undivided batch's run, and that of `micro_batches` micro-batches."""
    results = []
    for count in (1, micro_batches):
        step = bl.trace(make(), *(array[: len(array) // count] for array in batch))
        graph = bl.profile(step, mode="estimated", hardware="cpu-core")
        pipeline = {} if count == 1 else {"micro_batches": count, "schedule": "1f1b"}
        results.append(
            bl.execute(
                step,
                bl.Placement(device=[0] * graph.n),
                steps=steps,
                warmup=0,
                traced=0,
                inputs=batch,
                kind="cpu",
                worker=worker,
                graph=graph,
                return_variables=True,
                progress=False,
                **pipeline,
            )
        )
        assert results[-1].status == "ok"
    return results


def _assert_equal_steps(make, batch, worker, count=4, steps=3):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", GuessedCosts)
        whole_run, divided_run = _whole_and_divided(make, batch, worker, count, steps)
    losses = [[float(o[0]) for o in run.outputs] for run in (whole_run, divided_run)]
    assert len(set(losses[0])) > 1
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    values = [list(run.info["variables"].values()) for run in (whole_run, divided_run)]
    for one, divided_value in zip(*values, strict=True):
        np.testing.assert_allclose(divided_value, one, rtol=1e-4, atol=1e-6)


def _updates():
    import tensorflow as tf

    def descend(weight, gradient):
        weight.assign_sub(0.1 * gradient)

    def cond(weight, gradient, _):
        tf.cond(tf.reduce_all(tf.math.is_finite(gradient)), lambda: (descend(weight, gradient), 0)[1], lambda: 0)

    def nested_if(weight, gradient, loss):
        if not tf.reduce_any(tf.math.is_nan(loss)):
            if tf.norm(gradient) > 1e-3:
                descend(weight, gradient)
            else:
                weight.assign_sub(gradient)

    def loop(weight, gradient, _):
        for _ in tf.range(2):
            tf.function(descend)(weight, gradient)

    def switch_case(weight, gradient, _):
        tf.switch_case(tf.cast(tf.norm(gradient) > 0, tf.int32), [lambda: 0, lambda: (descend(weight, gradient), 0)[1]])

    def raw(weight, gradient, loss):
        if tf.math.is_finite(loss):
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.1, delta=gradient)

    def partial_update(weight, gradient, _):
        weight[:2].assign(weight[:2] - 0.1 * gradient[:2])

    return [cond, nested_if, loop, switch_case, raw, partial_update]


@pytest.mark.parametrize("kind", range(6), ids=["cond", "nested_if", "loop", "switch_case", "raw", "part"])
def test_a_conditional_update_reads_the_mean_gradient(kind, worker):
    _assert_equal_steps(lambda: _gradient_step(_squares, _updates()[kind], autograph=True), (WORDS,), worker)


def test_a_conditional_update_of_looked_up_rows(worker):
    """Rows and their indices are put one behind the other, also where only the body of a conditional scatters them."""
    import tensorflow as tf

    def make():
        table = tf.Variable(np.arange(15, dtype=np.float32).reshape(5, 3) / 15, name="table")

        @tf.function
        def step(rows):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.gather(table, rows) ** 2)
            gradient = tape.gradient(loss, table)
            if tf.reduce_all(tf.math.is_finite(gradient.values)):
                table.scatter_sub(tf.IndexedSlices(0.5 * gradient.values, gradient.indices))
            return loss

        return step

    _assert_equal_steps(make, (np.array([4, 1, 4, 0, 2, 2, 4, 1], np.int32),), worker)


@pytest.mark.parametrize("update", ["dense", "rows"])
def test_bug_rows_of_a_table_that_is_looked_up_twice_were_added_up(update, worker):
    """As in models that share a table between their inputs: gradients of all look-ups are put one behind the other."""
    import tensorflow as tf

    def make():
        table = tf.Variable(np.arange(33, dtype=np.float32).reshape(11, 3) / 33, name="table")

        @tf.function
        def step(rows):
            with tf.GradientTape() as tape:
                one, second = tf.gather(table, rows[:, 0]), tf.gather(table, rows[:, 1])
                loss = tf.reduce_mean(one * second) + (tf.reduce_sum(table**2) if update == "dense" else 0.0)
            gradient = tape.gradient(loss, table)
            if update == "dense":
                table.assign_sub(0.5 * gradient)
            else:
                table.scatter_sub(tf.IndexedSlices(0.5 * gradient.values, gradient.indices))
            return loss

        return step

    rows = np.array([[4, 1], [4, 0], [2, 2], [4, 1], [3, 9], [0, 10], [7, 4], [1, 1]], np.int32)
    _assert_equal_steps(make, (rows,), worker)


def test_bug_penalties_within_gradients_made_a_cycle(worker):
    """Ftrl adds a penalty on the weight to each gradient, behind the other weights' updates in the code."""
    import keras

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(5)])
        model.compile(keras.optimizers.Ftrl(0.1, l2_shrinkage_regularization_strength=0.1), "mse")
        return model

    _assert_equal_steps(make, (WORDS[:, 0], RNG.normal(size=(8, 5)).astype(np.float32)), worker)


@pytest.mark.parametrize("optimizer", ["accumulation", "both"])
def test_keras_optimizers_with_conditional_updates(optimizer, worker):
    import keras

    def make():
        keras.utils.set_random_seed(0)
        inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        model.compile(inner if optimizer == "accumulation" else keras.optimizers.LossScaleOptimizer(inner), "mse")
        return model

    _assert_equal_steps(make, (WORDS[:, 0], RNG.normal(size=(8, 5)).astype(np.float32)), worker, steps=4)


@pytest.mark.parametrize("kind", ["AdamOptimizer", "MomentumOptimizer"])
def test_bug_slots_that_only_an_update_uses_were_no_variables(kind, worker):
    """Optimizers of TensorFlow 1 and of legacy Keras read a slot by its handle alone. It was refused as a table."""
    import tensorflow as tf

    def make():
        options = {"momentum": 0.9} if kind == "MomentumOptimizer" else {}
        optimizer = getattr(tf.compat.v1.train, kind)(0.05, **options)

        def update(weight, gradient, _):
            optimizer.apply_gradients([(gradient, weight)])

        return _gradient_step(_squares, update)

    _assert_equal_steps(make, (WORDS,), worker)
    step = bl.trace(make(), WORDS[:2])
    assert set(step.slots.values()) == {"w"} and len(step.slots) == (2 if kind == "AdamOptimizer" else 1)


def test_updates_that_cannot_wait_for_all_gradients_are_refused():
    import tensorflow as tf

    def in_a_branch(weight, words):
        if tf.reduce_all(tf.math.is_finite(weight)):
            with tf.GradientTape() as tape:
                loss = _squares(weight, words)
            weight.assign_sub(tape.gradient(loss, weight))

    def sharpness_aware(weight, words):
        with tf.GradientTape() as tape:
            loss = _squares(weight, words)
        weight.assign_add(0.05 * tape.gradient(loss, weight))
        with tf.GradientTape() as tape:
            loss = _squares(weight, words)
        weight.assign_sub(tape.gradient(loss, weight))

    for train, message in [
        (in_a_branch, r"op 'cond' .*, which runs once per step, reads 'words', which has an entry per sample"),
        (sharpness_aware, "writes a variable that gradients of the same step wait for"),
    ]:
        weight = tf.Variable(np.ones((4, 5), np.float32), name="w")
        with pytest.raises(bl.InvalidInput, match=message):
            _unrolled(tf.function(partial(train, weight)), WORDS[:2])


def _masked_losses():
    import tensorflow as tf

    def number(mask):
        return tf.cast(mask, tf.float32)

    def over_labels(weight, words, labels, mask):
        labels = tf.where(mask, labels, -100)
        counted = number(labels != -100)
        total = tf.reduce_sum(_losses_of_words(weight, words, tf.maximum(labels, 0)) * counted)
        return tf.math.divide_no_nan(total, tf.reduce_sum(counted))

    def at_least_one(weight, words, labels, mask):
        total = tf.reduce_sum(_losses_of_words(weight, words, labels) * number(mask))
        return total / tf.cast(tf.maximum(tf.reduce_sum(tf.cast(mask, tf.int32)), 1), tf.float32)

    def weights_that_add_up_to_one(weight, words, labels, mask):
        shares = number(mask) / tf.reduce_sum(number(mask))
        return tf.reduce_sum(_losses_of_words(weight, words, labels) * shares) + 0.01 * tf.nn.l2_loss(weight)

    def quotient_of_means(weight, words, labels, mask):
        total = tf.reduce_mean(_losses_of_words(weight, words, labels) * number(mask))
        return total / tf.reduce_mean(number(mask)) + 0.1 * _squares(weight, words)

    def rare_classes(weight, words, labels, mask):
        positive = tf.reduce_sum(number(mask))
        ratio = tf.reduce_sum(1.0 - number(mask)) / positive
        logits = tf.reduce_sum(tf.einsum("btc,cv->btv", words, weight), -1)
        return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(number(mask), logits, ratio))

    return [over_labels, at_least_one, weights_that_add_up_to_one, quotient_of_means, rare_classes]


@pytest.mark.parametrize("kind", range(5), ids=["labels", "at_least_one", "shares", "means", "rare_classes"])
def test_a_divisor_that_the_inputs_tell_is_the_undivided_batchs(kind, worker):
    _assert_equal_steps(lambda: _gradient_step(_masked_losses()[kind]), (WORDS, LABELS, COUNTS), worker)


def test_keras_masks_are_those_of_the_undivided_batch(worker):
    """`Masking` and `mask_zero` divide by the number of words that count. Here the micro-batches have one sample."""
    import keras

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3, 4)), keras.layers.Masking(), keras.layers.Dense(5)])
        model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    _assert_equal_steps(make, (WORDS * COUNTS[..., None], LABELS), worker, 8)


def test_a_sum_is_added_up_and_its_penalty_counts_once(worker):
    """Without a word: the loss is a sum over the batch, and the penalty does not look at the batch."""
    import tensorflow as tf

    def loss(weight, words):
        return 0.15 * tf.reduce_sum((words[:, 0] @ weight - 1.0) ** 2) + 0.5 * tf.nn.l2_loss(weight)

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)
    _assert_equal_steps(lambda: _gradient_step(lambda w, x: loss(w, x) / 8.0), (WORDS,), worker)  # 8: the whole batch


def test_bug_a_sum_behind_a_loop_was_averaged(worker):
    """Ops behind a loop that fills lists for its gradient counted as backward ops, so nobody saw that the loss is a sum."""
    import tensorflow as tf

    def loss(weight, words):
        return tf.reduce_sum(tf.map_fn(lambda row: tf.reduce_mean((row @ weight) ** 2), words))

    graph = bl.profile(bl.trace(_gradient_step(loss), WORDS[:2]), hardware="cpu-core")
    role = dict(zip(graph.names, roles(graph).tolist(), strict=True))
    assert role["map/while"] == role["Sum"] == FORWARD
    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)


@pytest.mark.parametrize("factor", [1 / 10, 1 / 12, 7.0])
def test_a_constant_that_may_be_a_number_of_samples_is_warned_of(factor):
    """A micro-batch of 2 samples has 10 outputs; 12 may have been counted elsewhere; 7 is given as a divisor."""
    import tensorflow as tf

    def loss(weight, words):
        total = tf.reduce_sum((words[:, 0] @ weight - 1.0) ** 2)
        return total / factor if factor > 1 else total * factor

    with pytest.warns(
        UserWarning, match="divides a sum over the batch by (10|12|7), .* give reduction='mean' or 'sum'"
    ):
        _unrolled(_gradient_step(loss), WORDS[:2], reduction=None)


def test_a_sum_divided_by_the_number_of_samples_is_a_mean(worker):
    import tensorflow as tf

    def loss(weight, words):
        return tf.reduce_sum((words[:, 0] @ weight) ** 2) / tf.cast(tf.shape(words)[0], tf.float32)

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)


def test_a_branch_that_treats_all_samples_alike_is_no_mixture():
    import tensorflow as tf

    def loss(weight, words):
        outputs = words[:, 0] @ weight
        return tf.reduce_mean(
            tf.cond(tf.reduce_sum(weight) > 0, lambda: tf.nn.relu(outputs), lambda: tf.tanh(outputs)) ** 2
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _unrolled(_gradient_step(loss), WORDS[:2], reduction=None)


@pytest.mark.parametrize("kind", ["product", "penalty"])
def test_bug_a_mean_times_the_number_of_samples_was_taken_for_a_mean(kind, worker):
    import tensorflow as tf

    def loss(weight, words):
        size = tf.cast(tf.shape(words)[0], tf.float32)
        if kind == "product":
            return 0.1 * _squares(weight, words) * size
        return 0.01 * (tf.reduce_sum((words[:, 0] @ weight) ** 2) + size * tf.nn.l2_loss(weight))

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)


def test_bug_python_numbers_of_samples_were_those_of_a_micro_batch(worker):
    """Sizes, arrays with an entry per sample, and numbers within branches are constants of the graph."""
    import tensorflow as tf

    def loss(weight, words):
        size, (samples, *_) = words.shape[0], tf.unstack(tf.shape(words))
        squares = tf.reduce_sum((words[:, 0] @ weight - 1.0) ** 2, -1)
        squares = tf.where(tf.constant(np.ones(size, bool)), squares, np.zeros(size, np.float32))
        inverse = np.ones(size, np.float32) / size
        of_sizes = tf.reduce_sum(squares * inverse) * tf.cast(tf.size(words), tf.float32)
        in_branch = tf.cond(
            tf.reduce_sum(weight) > -1e9, lambda: tf.reduce_mean(squares) * size, lambda: 0.0 * of_sizes
        )
        return 0.01 * (of_sizes + in_branch + tf.reduce_mean(squares) * tf.cast(samples, tf.float32))

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)


def test_bug_a_branch_that_the_inputs_choose_was_that_of_a_micro_batch(worker):
    """As in the hinge loss of Keras: one of the two micro-batches has another sign than the undivided batch."""
    import tensorflow as tf

    def loss(weight, words):
        mean = _squares(weight, words)
        return tf.cond(tf.reduce_sum(words[:, 1, 0]) > 0, lambda: 2.0 * mean, lambda: mean)

    words = WORDS - WORDS[:, 1, 0].mean() + 0.01
    assert len({bool(part[:, 1, 0].sum() > 0) for part in np.split(words, 2)}) == 2
    _assert_equal_steps(lambda: _gradient_step(loss), (words,), worker, 2)


def test_bug_a_graph_with_other_ops_for_the_undivided_batch_went_unnoticed():
    def loss(weight, words):
        return sum(_squares(weight, words) for _ in range(words.shape[0]))

    with pytest.warns(UserWarning, match="depends on the number of samples: it has 2 ops of type 'MatMul', and 6 for"):
        _unrolled(_gradient_step(loss), WORDS[:2], reduction=None)


@pytest.mark.parametrize("kind", ["shape", "static shape", "rate", "static rate"])
def test_an_update_that_reads_the_number_of_samples_is_warned_of(kind):
    import tensorflow as tf

    counter = tf.Variable(0)

    def update(weight, words, gradient):
        size = words.shape[0] if "static" in kind else tf.shape(words)[0]
        weight.assign_sub(0.1 * gradient * (tf.cast(size, tf.float32) if "rate" in kind else 1.0))
        counter.assign_add(1 if "rate" in kind else size)

    def step(weight, words):
        with tf.GradientTape() as tape:
            loss = _squares(weight, words)
        update(weight, words, tape.gradient(loss, weight))
        return loss

    weight = tf.Variable(np.ones((4, 5), np.float32), name="w")
    with pytest.warns(UserWarning, match="reads the number of samples of a micro-batch, and runs once per step"):
        _unrolled(partial(step, weight), WORDS[:2], reduction=None)


def test_bug_a_constant_of_the_size_of_a_micro_batch_is_no_count_unless_it_is_added_to_the_variable():
    """Nadam computes with `iterations + 2`; micro-batches of 2 samples were warned of."""
    import tensorflow as tf

    iterations, power, weight = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(np.ones((4, 5), np.float32), name="w")

    def step(words):
        with tf.GradientTape() as tape:
            loss = _squares(weight, words)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        power.assign(iterations + 2.0)
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _unrolled(step, WORDS[:2], reduction=None)


def test_bug_a_mean_that_is_written_to_a_place_was_refused_by_tensorflow(worker):
    """The index is that of the step, for all micro-batches: losses are no rows to put one behind the other."""
    import tensorflow as tf

    def make():
        history = tf.Variable(tf.zeros([5]), name="history")

        def update(weight, gradient, loss):
            weight.assign_sub(0.1 * gradient)
            history.scatter_nd_update([[2]], [loss])

        return _gradient_step(_squares, update)

    _assert_equal_steps(make, (WORDS,), worker)


def _mixing_losses():
    import tensorflow as tf

    def contrast(weight, words):
        logits = (words[:, 0] @ weight) @ tf.transpose(words[:, 1] @ weight)
        labels = tf.range(tf.shape(words)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    def centred(weight, words):
        outputs = words[:, 0] @ weight
        return tf.reduce_mean((outputs - tf.reduce_mean(outputs, 0)) ** 2)

    def root(weight, words):
        return tf.sqrt(_squares(weight, words))

    def mean_and_sum(weight, words):
        return _squares(weight, words) + tf.reduce_sum((words[:, 1] @ weight) ** 2)

    def kept_entries(weight, words):
        return tf.reduce_mean(tf.boolean_mask(tf.einsum("btc,cv->btv", words, weight), words[..., 0] > 0) ** 2)

    def learned_divisor(weight, words):
        gate = tf.sigmoid(words[..., 0] * weight[0, 0])
        return tf.reduce_sum(tf.einsum("btc,cv->btv", words, weight) ** 2 * gate[..., None]) / tf.reduce_sum(gate)

    def drawn_divisor(weight, words):
        mask = tf.cast(tf.random.uniform(tf.shape(words)[:2], seed=1) < 0.7, tf.float32)
        return tf.reduce_sum(tf.einsum("btc,cv->btv", words, weight) ** 2 * mask[..., None]) / tf.reduce_sum(mask)

    def pairs(weight, words):
        outputs = words[:, 0] @ weight
        return tf.reduce_mean(tf.reduce_sum((outputs[:, None] - outputs[None]) ** 2, -1))

    def neighbours(weight, words):
        outputs = words[:, 0] @ weight
        return tf.reduce_mean((outputs[1:] - outputs[:-1]) ** 2)

    def first_half(weight, words):
        return tf.reduce_mean((words[:, 0] @ weight)[: tf.shape(words)[0] // 2] ** 2)

    def of_each_class(weight, words):
        classes = tf.cast(words[:, 0, 0] > 0, tf.int32)
        return tf.reduce_mean(tf.math.unsorted_segment_mean(words[:, 0] @ weight, classes, 2) ** 2)

    def scan(weight, words):
        return tf.reduce_mean(tf.scan(lambda before, row: before / 2 + row, words[:, 0] @ weight) ** 2)

    @tf.autograph.to_graph
    def rows(weight, words):
        total = 0.0
        for row in words:
            total += tf.reduce_mean((row @ weight) ** 2)
        return total

    def rounds(weight, words):
        return tf.reduce_sum(
            tf.map_fn(lambda x: x @ weight - tf.reduce_mean(words[:, 0]), tf.transpose(words, [1, 0, 2]))
        )

    def by_frequency(weight, words):
        classes = tf.cast(words[:, 0, 0] > 0, tf.int32)
        frequency = tf.cast(tf.gather(tf.math.bincount(classes, minlength=2), classes), tf.float32)
        return tf.reduce_mean(frequency * tf.reduce_sum((words[:, 0] @ weight) ** 2, -1))

    def shares_of_the_batch(weight, words):
        return tf.reduce_mean(tf.nn.softmax(words[:, 0] @ weight, axis=0) ** 2)

    def permuted(weight, words):
        return tf.reduce_mean(
            (words[:, 0] @ weight - tf.gather(words[:, 1] @ weight, tf.cast(words[:, 2, 0] > 0, tf.int32))) ** 2
        )

    def halves(weight, words):
        one, second_half = tf.split(words[:, 0] @ weight, 2, 0)
        return tf.reduce_mean((one - second_half) ** 2)

    def row_by_row(weight, words):
        one, *other_rows = tf.unstack(words[:, 0] @ weight)
        return sum(tf.reduce_mean((one - other_row) ** 2) for other_row in other_rows)

    def two_rows(weight, words):
        return tf.reduce_mean(tf.reduce_max(tf.reshape(words[:, :, :3] @ weight[:3, :3], [3, -1]), 1))

    def neighbours_of_a_kernel(weight, words):
        signal = tf.transpose(words[:, 0] @ weight)[..., None]
        return tf.reduce_mean(tf.nn.conv1d(signal, tf.ones([2, 1, 1]), 1, "SAME") ** 2)

    def singular_values(weight, words):
        return tf.reduce_sum(tf.linalg.svd(words[:, 0] @ weight, compute_uv=False))

    def shuffled(weight, words):
        return tf.reduce_mean((words[:, 0] @ weight - tf.random.shuffle(words[:, 1] @ weight, seed=1)) ** 2)

    def frequencies_over_samples(weight, words):
        return tf.reduce_mean(tf.abs(tf.signal.rfft(tf.transpose(words[:, 0] @ weight))))

    def later_samples_count_more(weight, words):
        size = tf.cast(tf.shape(words)[0], tf.float32)
        return tf.reduce_mean(tf.reduce_sum((words[:, 0] @ weight) ** 2, -1) * (1.0 + tf.range(size)))

    def penalty_by_number_of_samples(weight, words):
        return _squares(weight, words) + tf.nn.l2_loss(weight) / tf.cast(tf.shape(words)[0], tf.float32)

    def penalty_by_a_total(weight, words):
        return _squares(weight, words) + tf.nn.l2_loss(weight) / tf.reduce_sum(words**2)

    def centred_in_a_branch(weight, words):
        outputs = words[:, 0] @ weight
        centre = lambda: outputs - tf.reduce_mean(outputs, 0)  # noqa: E731
        return tf.reduce_mean(tf.cond(tf.reduce_sum(weight) > -1e9, centre, lambda: outputs) ** 2)

    def reversed_in_a_branch(weight, words):
        outputs = words[:, 0] @ weight
        reversed_outputs = tf.cond(tf.reduce_sum(weight) > -1e9, lambda: tf.reverse(outputs, [0]), lambda: outputs)
        return tf.reduce_mean((outputs - 2.0 * reversed_outputs) ** 2)

    def branch_by_the_batch(weight, words):
        outputs = words[:, 0] @ weight
        return tf.reduce_mean(tf.cond(tf.reduce_max(outputs) > 0, lambda: tf.nn.relu(outputs), lambda: outputs) ** 2)

    def weights_by_position(weight, words):
        return tf.reduce_mean(
            tf.reduce_sum(words[:, 0] @ weight, -1) * np.linspace(1, 2, words.shape[0], dtype=np.float32)
        )

    def root_of_the_number_of_samples(weight, words):
        return _squares(weight, words) * float(np.sqrt(words.shape[0]))

    def square_of_a_share(weight, words):
        return tf.reduce_sum(((words[:, 0] @ weight - 1.0) / tf.cast(tf.shape(words)[0], tf.float32)) ** 2)

    def curve_of_a_share(weight, words):
        return tf.reduce_sum(tf.exp(words[:, 0] @ weight / tf.cast(tf.shape(words)[0], tf.float32)))

    def input_gradient(weight, words, outputs_of):
        with tf.GradientTape() as tape:
            tape.watch(words)
            outputs = outputs_of(words[:, 0] @ weight)
        return tape.gradient(outputs, words)[:, 0]

    def gradient_penalty_of_the_batch(weight, words):
        return _squares(weight, words) + (tf.norm(input_gradient(weight, words, tf.tanh)) - 1.0) ** 2

    def gradient_penalty_of_a_mean(weight, words):
        gradient = input_gradient(weight, words, lambda outputs: tf.reduce_mean(tf.sin(outputs)))
        return _squares(weight, words) + tf.reduce_sum(gradient**2)

    def number_of_samples_in_rounds(weight, words):
        outputs = words[:, 0] @ weight
        rounds = lambda i, state: (i + 1, tf.tanh(state + outputs * words.shape[0]))  # noqa: E731
        return tf.reduce_mean(tf.while_loop(lambda i, _: i < 3, rounds, [0, tf.zeros([words.shape[0], 5])])[1] ** 2)

    def until_all_are_small(weight, words):
        return tf.reduce_mean(
            tf.while_loop(lambda x: tf.reduce_max(tf.abs(x)) > 1.0, lambda x: [0.7 * x], [3.0 * words[:, 0] @ weight])[
                0
            ]
        )

    def mean_of_the_words_that_count(weight, words):
        def add(t, total):
            counts = tf.cast(tf.gather(words, t, axis=1)[:, 0] > 0, tf.float32)
            squares = tf.reduce_sum((tf.gather(words, t, axis=1) @ weight) ** 2, 1)
            return t + 1, total + tf.reduce_sum(squares * counts) / tf.reduce_sum(counts)

        return tf.while_loop(lambda t, _: t < 3, add, [0, 0.0])[1]

    return {
        square_of_a_share: "combines the samples in another way",
        curve_of_a_share: "combines the samples in another way",
        gradient_penalty_of_the_batch: "op 'norm/Sqrt' is not linear",
        gradient_penalty_of_a_mean: "adds a sum over the batch to a mean over it",
        number_of_samples_in_rounds: "reads a value of the whole batch for each of its samples",
        weights_by_position: "reads positions of samples in the batch",
        root_of_the_number_of_samples: "reads a value of the whole batch for each of its samples",
        centred_in_a_branch: "reads a value of the whole batch for each of its samples",
        reversed_in_a_branch: "works along the samples",
        branch_by_the_batch: "chooses what to compute by a value of the batch",
        singular_values: "works along the samples",
        shuffled: "works along the samples",
        frequencies_over_samples: "works along the samples",
        later_samples_count_more: "reads positions of samples in the batch",
        penalty_by_number_of_samples: "adds a sum over the batch to a mean over it",
        penalty_by_a_total: "adds a sum over the batch to a mean over it",
        permuted: "takes samples by their indices",
        halves: "takes a part of the samples",
        row_by_row: "takes a part of the samples",
        two_rows: "divides the samples of the batch among rows",
        neighbours_of_a_kernel: "works along the samples",
        shares_of_the_batch: "works along the samples",
        contrast: "compares samples with each other",
        centred: "reads a value of the whole batch for each of its samples",
        root: "op 'Sqrt' is not linear",
        mean_and_sum: "adds a sum over the batch to a mean over it",
        kept_entries: "averages over a number of entries that depends on the data",
        learned_divisor: "is not linear",
        drawn_divisor: "is not linear",
        pairs: "compares samples with each other",
        neighbours: "takes a part of the samples",
        first_half: "takes a part of the samples",
        of_each_class: "counts or joins entries by their values",
        scan: "carries values from one sample to the next",
        rows: "carries values from one sample to the next",
        rounds: "reads a value of the whole batch for each of its samples",
        until_all_are_small: "chooses its number of iterations by a value of the batch",
        mean_of_the_words_that_count: "reads a value of the whole batch for each of its samples",
        by_frequency: "counts or joins entries by their values",
    }


@pytest.mark.parametrize("kind", range(39))
def test_a_loss_that_mixes_samples_is_warned_of_before_the_first_step(kind):
    loss, reason = list(_mixing_losses().items())[kind]
    with pytest.warns(
        UserWarning, match=f"neither the mean nor the sum of its micro-batches' losses, as .*{reason}.* may differ from"
    ):
        _unrolled(_gradient_step(loss), WORDS[:2], reduction=None)


@pytest.mark.parametrize("kind", ["means", "sums", "norm of each sample"])
def test_bug_gradient_penalties_were_warned_of(kind, worker):
    """The gradient of an inner tape leads to the loss, so it is a forward op."""
    import tensorflow as tf

    def loss(weight, words):
        with tf.GradientTape() as tape:
            tape.watch(words)
            outputs = tf.tanh(words[:, 0] @ weight)
        gradient = tape.gradient(outputs, words)[:, 0]
        if kind == "sums":
            return 0.15 * (tf.reduce_sum(gradient**2) + tf.reduce_sum(outputs**2))
        if kind == "means":
            return tf.reduce_mean(gradient**2) + tf.reduce_mean(outputs**2)
        return tf.reduce_mean((tf.norm(gradient + 1e-3, axis=1) - 1.0) ** 2) - tf.reduce_mean(outputs)

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)


def _losses_in_loops():
    import tensorflow as tf

    def over_words(term, weight, words):
        """The sum over words of `term`: of the outputs for one word of each sample."""
        add = lambda t, total: (t + 1, total + term(tf.gather(words, t, axis=1) @ weight))  # noqa: E731
        return tf.while_loop(lambda t, _: t < 3, add, [0, 0.0])[1]

    def mean(weight, words):
        return over_words(lambda outputs: tf.reduce_mean((outputs - 1.0) ** 2), weight, words) / 3.0

    def total(weight, words):
        return 0.07 * over_words(lambda outputs: tf.reduce_sum(tf.abs(outputs)), weight, words)

    def number_of_samples(weight, words):
        sums = over_words(lambda outputs: tf.reduce_sum((outputs - 1.0) ** 2), weight, words)
        return sums / tf.cast(tf.shape(words)[0], tf.float32)

    def longest(weight, words):
        """As many rounds as the longest sample of the batch has words; other micro-batches would need fewer."""
        longest = tf.reduce_max(tf.reduce_sum(tf.cast(words[:, :, 0] > 0, tf.int32), 1))
        next_state = lambda t, state: (t + 1, tf.tanh(state + tf.gather(words, t, axis=1) @ weight))  # noqa: E731
        first = [0, tf.zeros([tf.shape(words)[0], 5])]
        return tf.reduce_mean(tf.while_loop(lambda t, _: t < longest, next_state, first)[1] ** 2)

    def states(weight, words):
        inputs = tf.transpose(tf.einsum("btc,cv->btv", words, weight), [1, 0, 2])
        return tf.reduce_mean(tf.scan(lambda state, x: tf.tanh(state + x), inputs) ** 2)

    def list_of_means(weight, words):
        by_time = tf.transpose(words, [1, 0, 2])
        return tf.reduce_sum(tf.map_fn(lambda x: tf.reduce_mean((x @ weight - 1.0) ** 2), by_time))

    return [mean, total, number_of_samples, longest, states, list_of_means]


@pytest.mark.parametrize(
    "kind", range(6), ids=["mean", "sum", "number of samples", "longest", "states", "list of means"]
)
def test_bug_losses_in_loops_were_warned_of(kind, worker):
    """Means over the batch that the iterations of a loop add up are means, and sums are sums."""
    _assert_equal_steps(lambda: _gradient_step(_losses_in_loops()[kind]), (WORDS,), worker)


def test_bug_probabilities_of_dropout_were_warned_of():
    """Softmax works along outputs: 4 outputs of 4 samples, of which a layer with a random state drops some."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dropout(0.25), keras.layers.Softmax()]
    model = keras.Sequential(layers)
    model.compile("sgd", loss="mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _unrolled(model, WORDS[:4, 0], WORDS[:4, 1], count=2, reduction=None)
    assert tf.executing_eagerly()


def test_bug_an_unrolled_recurrent_layer_was_warned_of(worker):
    """Its gradient joins tensors of samples with sums over samples, in another order than the loss does."""
    import keras

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3, 4)), keras.layers.GRU(4, unroll=True), keras.layers.Dense(5)])
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    _assert_equal_steps(make, (WORDS, LABELS[:, 0]), worker)


def test_bug_connectionist_temporal_classification_was_warned_of(worker):
    """Its loss of each sample comes from loops over time, and from scattering by labels."""
    import keras

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6, 4)), keras.layers.Dense(6)])
        model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.CTC())
        return model

    _assert_equal_steps(make, (np.concatenate([WORDS, WORDS[::-1]], 1), LABELS[:, :2] + 1), worker)


def _update_if_small(threshold):
    """A step that updates where the loss of the batch is below a moving mean of losses, which starts at `threshold`."""
    import tensorflow as tf

    mean = tf.Variable(threshold, name="mean")

    def update(weight, gradient, loss):
        if tf.logical_and(loss < 1.02 * mean, tf.reduce_all(tf.math.is_finite(gradient))):
            weight.assign_sub(0.5 * gradient)
        mean.assign(0.5 * mean + 0.5 * loss)

    return _gradient_step(_squares, update, autograph=True)


@pytest.mark.parametrize("updates", [False, True])
def test_an_update_may_depend_on_the_loss_of_the_batch(updates, worker):
    """The batch's loss decides, where some micro-batches alone would decide otherwise."""
    weight = np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(4, 5)
    losses = ((WORDS[:, 0] @ weight - 1.0) ** 2).reshape(4, -1).mean(1)  # of each micro-batch
    threshold = losses.mean() / 1.02 * (1.001 if updates else 0.999)
    assert losses.min() < 1.02 * threshold < losses.max()
    _assert_equal_steps(lambda: _update_if_small(np.float32(threshold)), (WORDS,), worker)


@pytest.mark.parametrize("kind", ["any", "all"])
def test_an_update_may_depend_on_a_property_of_any_or_all_samples(kind, worker):
    """Only one sample of eight has it, or has it not: 0.5 below the largest first entry of the batch."""
    import tensorflow as tf

    limit = np.sort(WORDS[:, 0, 0])[-2:].mean()

    def make():
        def loss(weight, words):
            loss.large = words[:, 0, 0] > limit
            return _squares(weight, words)

        def update(weight, gradient, _):
            decides = tf.reduce_any(loss.large) if kind == "any" else tf.reduce_all(~loss.large)
            if decides:
                weight.assign_sub(0.1 * gradient)
            else:
                weight.assign_add(gradient)

        return _gradient_step(loss, update, autograph=True)

    _assert_equal_steps(make, (WORDS,), worker)


def test_bug_a_count_of_steps_was_taken_for_a_forward_op_and_added_up(worker):
    """The gradient of `reduce_max` has an op `gradient_tape/Cast_1`, as if it were that of the optimizer's `Cast_1`."""
    import tensorflow as tf

    def make():
        count = tf.Variable(0, dtype=tf.int64, name="count")

        def loss(weight, words):
            outputs = words[:, 0] @ weight
            return tf.reduce_mean(tf.reduce_max(outputs, 1) - tf.reduce_min(outputs, 1))

        def update(weight, gradient, _):
            for _ in range(2):
                count.assign(count + tf.cast(tf.constant(1), tf.int64))
            weight.assign_sub(0.1 * gradient)

        return _gradient_step(loss, update)

    step = bl.trace(make(), WORDS)
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    (first, *_) = counting = [name for name in graph.names if name.startswith("Cast")]
    assert len(counting) == 2 and f"gradient_tape/{first}" in graph.names
    assert graph.index[first] not in graph.forward_of
    whole_run, divided_run = _whole_and_divided(make, (WORDS,), worker)
    assert [run.info["variables"]["count"] for run in (whole_run, divided_run)] == [6, 6]  # 2 in each of 3 steps


@pytest.mark.filterwarnings("ignore:the estimate has loops")
def test_bug_updates_in_a_loop_over_a_data_set_ran_for_every_micro_batch():
    """The step divides its batch itself, and updates after 4 samples; micro-batches of 2 would update after 2, unnoticed."""
    import tensorflow as tf

    weight = tf.Variable(tf.ones([4, 5]), name="w")

    @tf.function
    def step(words):
        for four_samples in tf.data.Dataset.from_tensor_slices(words).batch(4):
            with tf.GradientTape() as tape:
                loss = _squares(weight, four_samples)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return tf.reduce_sum(weight)

    with pytest.raises(bl.InvalidInput, match="Dataset' of step 'step' writes a variable"):
        _unrolled(step, WORDS[:2])


def test_bug_gradients_were_clipped_in_micro_batches_if_their_norm_was_returned(worker):
    """The norm is that of the batch's gradient, above the limit, for the update and for who reads it."""
    import tensorflow as tf

    def make():
        weight = tf.Variable(np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(4, 5), name="w")

        @tf.function
        def step(words):
            with tf.GradientTape() as tape:
                loss = _squares(weight, words)
            (clipped,), norm = tf.clip_by_global_norm([tape.gradient(loss, weight)], 0.1)
            weight.assign_sub(clipped)
            return loss, norm

        return step

    _assert_equal_steps(make, (WORDS,), worker)
    whole_run, divided_run = _whole_and_divided(make, (WORDS,), worker)
    norms = [[float(outputs[1]) for outputs in run.outputs] for run in (whole_run, divided_run)]
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-5)
    assert min(norms[0]) > 0.1


def test_bug_rows_of_a_table_were_counted_as_samples(worker):
    """The table has 4 rows, as many as a micro-batch has samples, for the undivided batch as well."""
    import tensorflow as tf

    def loss(weight, words):
        return _squares(weight, words) * tf.cast(tf.shape(weight)[0], tf.float32)

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker, count=2)


@pytest.mark.parametrize("batched", [False, True])
def test_one_entry_of_each_sample_may_be_chosen(batched):
    """Without a word, as in Q-learning: the indices of samples are 0, 1, 2, ..."""
    import tensorflow as tf

    def loss(weight, words):
        outputs, label = words[:, 0] @ weight, tf.cast(words[:, 1, 0] > 0, tf.int32)
        if batched:
            values = tf.gather_nd(outputs, label[:, None], batch_dims=1)
        else:
            values = tf.gather_nd(outputs, tf.stack([tf.range(tf.shape(words)[0]), label], 1))
        return tf.reduce_mean((values - 1.0) ** 2)

    def update(weight, gradient, _):
        weight.assign_sub(0.5 * tf.convert_to_tensor(gradient))

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _unrolled(_gradient_step(loss, update), WORDS[:2], reduction=None)


def test_bug_gradients_of_a_variable_that_is_read_twice_were_averaged_in_a_sum(worker):
    """Tapes add them up by an op without a name; its constant part counts once."""
    import tensorflow as tf

    def make():
        weight = tf.Variable(np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4), name="w")
        log_variance = tf.Variable(0.5, name="s")

        @tf.function
        def step(words):
            with tf.GradientTape() as tape:
                outputs = tf.tanh(words[:, 0] @ weight) @ weight
                loss = tf.exp(-log_variance) * tf.reduce_sum(outputs**2) + log_variance
            for variable, gradient in zip(
                (weight, log_variance), tape.gradient(loss, (weight, log_variance)), strict=True
            ):
                variable.assign_sub(0.05 * gradient)
            return loss

        return step

    _assert_equal_steps(make, (WORDS,), worker)


def test_gradients_of_each_sample_are_refused():
    """As in private training: each is clipped before the mean. Previously the micro-batches' were added up and clipped."""
    import tensorflow as tf

    weight = tf.Variable(np.ones((4, 5), np.float32), name="w")

    def step(words):
        def gradient_of(row):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((row[None] @ weight) ** 2)
            gradient = tape.gradient(loss, weight)
            return gradient / tf.maximum(1.0, tf.norm(gradient))

        weight.assign_sub(tf.reduce_mean(tf.vectorized_map(gradient_of, words[:, 0]), 0))

    with pytest.raises(bl.InvalidInput, match=r"which runs once per step, reads .*, which has an entry per sample"):
        _unrolled(step, WORDS[:2])


def test_bug_dilated_convolutions_were_warned_of(worker):
    """They put blocks of space behind the samples (`SpaceToBatchND`), and back. Blocks of two sizes mix samples."""
    import tensorflow as tf

    kernels = np.random.default_rng(0).normal(size=(2, 3, 3, 1, 1)).astype(np.float32)
    images = np.random.default_rng(1).normal(size=(4, 8, 8, 1)).astype(np.float32)

    def make():
        weights = tf.Variable(kernels)

        def step(x):
            with tf.GradientTape() as tape:
                for weight in tf.unstack(weights):
                    x = tf.nn.convolution(x, weight, padding="SAME", dilations=2)
                loss = tf.reduce_mean(tf.tanh(x) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return step

    _assert_equal_steps(make, (images,), worker)

    def mix(x):
        blocks = tf.nn.conv2d(tf.space_to_batch(x, [2, 2], [[0, 0]] * 2), kernels[0], 1, "SAME")
        return tf.reduce_mean(tf.reduce_mean(tf.batch_to_space(blocks, [2, 1], [[0, 0]] * 2), (1, 2)) ** 2)

    weight = tf.Variable(1.0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = mix(x * weight)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    with pytest.warns(UserWarning, match="op 'BatchToSpaceND' works along the samples"):
        _unrolled(step, images[:2])


def test_states_with_an_entry_per_sample_are_refused():
    """As those of a recurrent layer with `stateful=True`."""
    import tensorflow as tf

    weight, state = tf.Variable(np.ones((4, 4), np.float32)), tf.Variable(np.ones((2, 4), np.float32))

    def step(words):
        with tf.GradientTape() as tape:
            activations = tf.tanh(words[:, 0] + state @ weight)
            loss = tf.reduce_mean(activations**2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        state.assign(activations)
        return loss

    with pytest.raises(
        bl.InvalidInput, match=r"an entry per sample, such as the state of a layer with `stateful=True`"
    ):
        _unrolled(step, WORDS[:2])


def test_halves_of_two_batches_behind_each_other_are_whole_batches(worker):
    """Two views of each sample, as in contrastive learning: micro-batches hold both views of theirs."""
    import tensorflow as tf

    def loss(weight, words):
        outputs = tf.concat([words[:, 0], words[:, 1]], 0) @ weight
        size = tf.shape(words)[0]
        return tf.reduce_mean((outputs[:size] - outputs[size:]) ** 2)

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS,), worker)


def test_a_backward_pass_that_mixes_samples_is_warned_of():
    """The loss is a mean; a custom gradient divides by the batch's norm, or the step adds the gradient of its gradient."""
    import tensorflow as tf

    @tf.custom_gradient
    def of_norm_one(outputs):
        return outputs, lambda gradient: gradient / tf.norm(gradient)

    def flat_minimum(weight, words):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = _squares(weight, words)
            gradient = tape.gradient(loss, weight)
            size = tf.reduce_sum(gradient**2)
        weight.assign_sub(gradient + outer.gradient(size, weight))
        return loss

    weight = tf.Variable(np.ones((4, 5), np.float32), name="w")
    for step in (
        _gradient_step(lambda weight, words: tf.reduce_mean(of_norm_one(words[:, 0] @ weight) ** 2)),
        tf.function(partial(flat_minimum, weight)),
    ):
        with pytest.warns(UserWarning, match="in the backward pass of step .* is not linear in what it reads"):
            _unrolled(step, WORDS[:2], reduction=None)


def test_bug_a_divisor_that_an_input_and_the_whole_batch_have_was_taken_for_the_whole_batchs():
    """8 is the number of entries of a micro-batch's input of [2, 4], and of the samples of four micro-batches."""
    import tensorflow as tf

    def loss(weight, words):
        return tf.reduce_sum((words @ weight) ** 2) / 8.0

    with pytest.warns(UserWarning, match="divides a sum over the batch by 8"):
        _unrolled(_gradient_step(loss), WORDS[:2, 0], count=4, reduction=None)


@pytest.mark.parametrize("reduce", ["reduce_mean", "reduce_sum"])
def test_a_sum_that_is_not_returned_is_warned_of(reduce):
    """Gradients are averaged, which is wrong for a sum. Of a mean they are the undivided batch's, and nothing is said."""
    import tensorflow as tf

    weight = tf.Variable(np.ones((4, 5), np.float32), name="w")

    def step(words):
        with tf.GradientTape() as tape:
            loss = getattr(tf, reduce)((words[:, 0] @ weight - 1.0) ** 2)
        weight.assign_sub(tape.gradient(loss, weight))

    message = "step 'step' does not say whether its loss is a mean or a sum .* give reduction='mean' or 'sum'"
    with pytest.warns(UserWarning, match=message) if reduce == "reduce_sum" else nullcontext():
        _unrolled(step, WORDS[:2], reduction=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _unrolled(step, WORDS[:2], reduction=reduce.removeprefix("reduce_"))


def _statistics():
    """Numbers of the batch that a step stores, and whether the mean of the micro-batches' numbers is the undivided batch's."""
    import tensorflow as tf

    return {
        "loss": (lambda loss, outputs: loss, True),
        "mean of each output": (lambda loss, outputs: tf.reduce_mean(outputs, 0), True),
        "count": (lambda loss, outputs: tf.reduce_sum(tf.cast(outputs > 0, tf.int32)), True),
        "sum": (lambda loss, outputs: tf.reduce_sum(tf.abs(outputs)), False),
        "maximum": (lambda loss, outputs: tf.reduce_max(outputs), False),
        "deviation": (lambda loss, outputs: tf.math.reduce_std(outputs), False),
        "root": (lambda loss, outputs: tf.sqrt(loss), False),
        "last sample": (lambda loss, outputs: outputs[-1, 0], False),
    }


@pytest.mark.parametrize("name", list(_statistics()))
def test_stored_numbers_that_are_no_means_are_warned_of(name):
    import tensorflow as tf

    statistic, proven = _statistics()[name]
    weight, dtype = tf.Variable(np.ones((4, 5), np.float32), name="w"), tf.int32 if name == "count" else tf.float32
    stored = tf.Variable(tf.zeros([5] if name == "mean of each output" else [], dtype))

    def step(words):
        with tf.GradientTape() as tape:
            outputs = words[:, 0] @ weight
            loss = tf.reduce_mean(outputs**2)
        weight.assign_sub(tape.gradient(loss, weight))
        stored.assign_add(statistic(loss, outputs))
        return loss

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _unrolled(step, WORDS[:2], reduction=None)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (not proven)
    assert proven or "which may be no mean over the batch" in messages[0]


@pytest.mark.parametrize(("trainable", "name"), [(True, None), (True, "bn"), (False, None), (False, "bn")])
def test_statistics_of_the_batch_are_warned_of_once(trainable, name):
    """Whatever the layer is called; a frozen layer normalises by stored statistics, and nothing is said."""
    import keras

    normalization = keras.layers.BatchNormalization(trainable=trainable, name=name)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), normalization, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        step = bl.trace(model, np.ones((2, 3), np.float32), np.zeros((2, 1), np.float32))
        graph = bl.profile(step, mode="estimated")
        pipelined_step(step, bl.Placement(device=[0] * graph.n), None, graph, 2, "gpipe", None)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == trainable
    assert not trainable or "batchnorm/Rsqrt' normalises by the statistics of its batch" in messages[0]


def test_counts_within_each_sample_are_no_mixture(worker):
    import tensorflow as tf

    def loss(weight, words, labels):
        counts = tf.cast(tf.math.bincount(labels, minlength=5, axis=-1), tf.float32)
        return tf.reduce_mean((counts - words[:, 0] @ weight) ** 2)

    _assert_equal_steps(lambda: _gradient_step(loss), (WORDS, LABELS), worker)


@pytest.mark.parametrize("is_scalar", [True, False])
def test_bug_constant_rows_at_the_indices_of_a_batch_were_refused_by_tensorflow(worker, is_scalar):
    """Words are counted beside the training: each of four micro-batches has a quarter of the undivided batch's words."""
    import tensorflow as tf

    def make():
        counts = tf.Variable(tf.zeros(5), name="counts", trainable=False)

        def count_words(weight, gradient, labels):
            weight.assign_sub(0.5 * gradient)
            ones = 1.0 if is_scalar else tf.ones(labels.shape[0] * 3)
            counts.scatter_add(tf.IndexedSlices(ones, tf.reshape(labels, [-1])))

        weight = tf.Variable(np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(4, 5), name="w")

        @tf.function
        def step(words, labels):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(_losses_of_words(weight, words, labels))
            count_words(weight, tape.gradient(value, weight), labels)
            return value

        return step

    if is_scalar:
        whole, divided = _whole_and_divided(make, (WORDS, LABELS), worker, steps=2)
        for run in (whole, divided):
            np.testing.assert_array_equal(run.info["variables"]["counts"], 2 * np.bincount(LABELS.ravel(), minlength=5))
        return
    with pytest.raises(bl.InvalidInput, match=r"writes 'ones.*' at the indices of all micro-batches"):
        _whole_and_divided(make, (WORDS, LABELS), worker)


def _center_step(centered):
    """A step that moves the center of each sample's class towards its output; `centered`: less the mean of all outputs."""
    import tensorflow as tf

    weight = tf.Variable(np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(4, 5), name="w")
    centers = tf.Variable(tf.ones((5, 5)), name="centers", trainable=False)

    @tf.function
    def step(words, labels):
        classes = labels[:, 0]
        with tf.GradientTape() as tape:
            outputs = words[:, 0] @ weight
            loss = tf.reduce_mean((outputs - tf.gather(centers, classes)) ** 2)
        gradient = tape.gradient(loss, weight)
        targets = outputs - tf.reduce_mean(outputs, 0) if centered else outputs
        centers.scatter_sub(tf.IndexedSlices(0.1 * (tf.gather(centers, classes) - targets), classes))
        weight.assign_sub(0.5 * gradient)
        return loss

    return step


def test_bug_rows_of_samples_were_divided_by_the_number_of_micro_batches(worker):
    _assert_equal_steps(lambda: _center_step(False), (WORDS, LABELS), worker)


def test_rows_that_depend_on_other_samples_are_warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _unrolled(_center_step(True), WORDS[:4], LABELS[:4])
    messages = [str(warning.message) for warning in caught if "micro-batch" in str(warning.message)]
    assert len(messages) == 1 and "may depend on other samples of the batch" in messages[0]


def test_what_cannot_be_added_up_is_refused():
    import tensorflow as tf

    flag = tf.Variable(False)
    with pytest.raises(bl.InvalidInput, match="of type bool, which differs from micro-batch to micro-batch"):
        _unrolled(lambda x: flag.assign((x > 0)[0]), np.zeros(2, np.float32))


def test_what_is_no_step_is_refused():
    with pytest.raises(bl.InvalidInput, match=r"give what bl\.trace returns"):
        bl.execute(object(), bl.Placement(device=[0]), micro_batches=2)


def test_bug_losses_of_several_outputs_gave_warnings_of_their_metrics(worker):
    """Keras keeps a running mean of each output's loss; metrics are left out."""
    import keras

    def make():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        model = keras.Model(inputs, [keras.layers.Dense(5)(inputs), keras.layers.Dense(2)(inputs)])
        model.compile(keras.optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[1.0, 0.5])
        return model

    model, outputs = make(), [RNG.normal(size=(8, 5)).astype(np.float32), RNG.normal(size=(8, 2)).astype(np.float32)]
    step = bl.trace(model, WORDS[:, 0], outputs)
    # Two kernels, two biases, the learning rate and the iteration; the model keeps its two metrics.
    assert len(step.variables) == 6 and len(model._compile_loss.metrics) == 2
    _assert_equal_steps(lambda: _on_flat_batches(make()), (WORDS[:, 0], *outputs), worker)


def _on_flat_batches(model):
    """The training step of a model with two outputs as a function of three arrays."""
    from baechi_lab.profilers.tensorflow.keras_step import training_step

    step = training_step(model, (WORDS[:, 0], [np.ones((8, 5), np.float32), np.ones((8, 2), np.float32)]))

    def train(x, first, second):
        return step(x, [first, second])

    return train
