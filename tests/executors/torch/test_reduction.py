"""How micro-batches make up the step of the undivided batch: what their means divide by, and whether losses add up."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from addresses import free_port
from fewer import slow

torch = pytest.importorskip("torch")
from exported_script import run_torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_cases import SMALL  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import InvalidInput  # noqa: E402
from baechi_lab.executors.torch.reduction import reduction_of  # noqa: E402
from baechi_lab.torch_runtime.divisors import Divisor, replacements  # noqa: E402
from baechi_lab.torch_runtime.tree import split_batch  # noqa: E402
from baechi_lab.torch_steps.step import TorchStep  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402

ROWS, LENGTH, WORDS = 8, 4, 7
GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(WORDS, (ROWS, LENGTH), generator=GENERATOR)
LABELS = torch.randint(WORDS, (ROWS, LENGTH), generator=GENERATOR)
for row, short in enumerate([0, 0, 0, 0, 4, 4, 1, 2]):  # micro-batches of two rows: 8, 8, 0 and 5 labels count
    LABELS[row, LENGTH - short :] = -100
MASK = (LABELS >= 0).float()
WEIGHTS = torch.linspace(0.5, 2.0, WORDS)


class Tagger(nn.Module):
    """Words in, logits per word out, and logits per row where there are `heads`."""

    def __init__(self, heads: int = 1, drop: float = 0.0) -> None:
        super().__init__()
        self.embed, self.layer, self.drop = nn.Embedding(WORDS, 6), nn.Linear(6, 6), nn.Dropout(drop)
        self.head, self.row = nn.Linear(6, WORDS), nn.Linear(6, 2) if heads > 1 else None

    def forward(self, tokens):
        hidden = self.drop(torch.tanh(self.layer(self.embed(tokens))))
        return self.head(hidden) if self.row is None else (self.head(hidden), self.row(hidden[:, 0]))


class WithLoss(Tagger):
    """The model computes its loss itself, in a layer or in a function."""

    def __init__(self, layer: bool = False) -> None:
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(weight=WEIGHTS) if layer else F.cross_entropy

    def forward(self, tokens, labels):
        return {"loss": self.criterion(super().forward(tokens).flatten(0, 1), labels.flatten())}


def entropy(outputs, labels, **options):
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), **options)


def each(outputs, labels):
    return entropy(outputs, labels.clamp(min=0), reduction="none").view(labels.shape)


def as_step(loss, *targets, build=Tagger, inputs=(TOKENS,), **options):
    return TorchStep("tagger", build, inputs, loss, targets, **options)


def undivided(step):
    model = step.model()
    loss = step.run(model)
    return float(loss.detach()), {name: p.grad.numpy() for name, p in model.named_parameters()}


def in_micro_batches(step, schedule="gpipe", seed=1, **options):
    graph = bl.torch.profile(step.micro_batches(4)[0], warmup=0, runs=1)
    cluster = bl.Cluster.uniform(2, kind="cpu")
    placement = bl.place(graph, cluster, "random", seed=seed)
    options = {"micro_batches": 4, "schedule": schedule, "pipeline": False, "return_gradients": True, **options}
    return bl.torch.execute(step, placement, 1, warmup=0, graph=graph, cluster=cluster, **options)


def assert_undivided(step, run):
    loss, gradients = undivided(step)
    assert run.outputs[0][0] == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        assert run.info["gradients"][name] == pytest.approx(gradient, rel=1e-4, abs=1e-6), name


COUNTING = {
    "labels of -100": as_step(entropy, LABELS),
    "class weights": as_step(partial(entropy, weight=WEIGHTS, label_smoothing=0.1), LABELS),
    "another word is ignored": as_step(partial(entropy, ignore_index=3), LABELS.clamp(min=0)),
    "nll_loss": as_step(lambda o, t: F.nll_loss(o.log_softmax(-1).flatten(0, 1), t.flatten()), LABELS),
    "a masked mean": as_step(lambda o, t, m: (each(o, t) * m).sum() / m.sum(), LABELS, MASK),
    "a masked mean of one at least": as_step(
        lambda o, t, m: (each(o, t) * m).sum() / m.sum().clamp(min=1), LABELS, MASK
    ),
    "a mean over a mean": as_step(lambda o, t, m: (each(o, t) * m).mean() / m.mean(), LABELS, MASK),
    "a count as a number": as_step(lambda o, t, m: (each(o, t) * m).sum() / m.sum().item(), LABELS, MASK),
    "one over a count": as_step(lambda o, t, m: (each(o, t) * m).sum() * (1 / m.sum()), LABELS, MASK),
    "weights that add up to one": as_step(lambda o, t, m: (each(o, t) * (m / m.sum())).sum(), LABELS, MASK),
    "words that count alone": as_step(lambda o, t, m: each(o, t)[m.bool()].mean(), LABELS, MASK),
    "a mask on outputs": as_step(
        lambda o, t, m: F.mse_loss(o[m.bool()], F.one_hot(t[m.bool()], WORDS).float()), LABELS, MASK
    ),
    "and a penalty": as_step(lambda o, t: entropy(o, t) + 0.1 * o.square().mean(), LABELS),
    "half of two": as_step(lambda o, t: (entropy(o, t) + o.square().mean()) / 2, LABELS),
    "two counts": as_step(
        lambda o, t, rows: entropy(o[0], t) + F.cross_entropy(o[1], rows),
        LABELS,
        TOKENS[:, 0] % 2,
        build=partial(Tagger, 2),
    ),
    "a sum": as_step(partial(entropy, reduction="sum"), LABELS),
    "means of rows": as_step(lambda o, t, m: ((each(o, t) * m).sum(1) / m.sum(1).clamp(min=1)).mean(), LABELS, MASK),
    "in the model": as_step(None, build=WithLoss, inputs={"tokens": TOKENS, "labels": LABELS}),
    "in a layer": as_step(None, build=partial(WithLoss, True), inputs={"tokens": TOKENS, "labels": LABELS}),
}


FAST_COUNTING = ("labels of -100", "class weights", "a masked mean")


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(COUNTING, *(COUNTING.keys() - FAST_COUNTING)))
def test_micro_batches_average_over_what_counts_in_the_batch(name):
    """None of the third micro-batch's labels counts, whose mean alone would be no number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the loss of step")
        assert_undivided(COUNTING[name], in_micro_batches(COUNTING[name], "1f1b"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_in_the_model_averages_over_the_batch_on_one_device_and_where_calls_wait(seed):
    step = COUNTING["in a layer"]
    graph = bl.torch.profile(step.micro_batches(4)[0], warmup=0, runs=1)
    cluster = bl.Cluster.uniform(2 if seed else 1, kind="cpu")
    placement = bl.place(graph, cluster, "random" if seed else "single", **({"seed": seed} if seed else {}))
    placement = placement.replace(order=torch.randperm(graph.n).double().numpy(), priority=None)
    run = bl.torch.execute(
        step,
        placement,
        2,
        warmup=0,
        graph=graph,
        cluster=cluster,
        micro_batches=4,
        pipeline=False,
        return_gradients=True,
    )
    assert_undivided(step, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (
            lambda o, t: F.cross_entropy(o[:, 0] @ o[:, 1].T, torch.arange(len(o))),
            (LABELS,),
        ),  # negatives are the batch's
        (lambda o, t, m: (each(o, t).mean(1) * m.sum(1).softmax(0)).sum(), (LABELS, MASK)),  # the first two are alike
        (lambda o, t: entropy(o, t.clamp(min=0), reduction="sum") + o.square().mean(), (LABELS,)),
        (lambda o, t: entropy(o, t.clamp(min=0)).sqrt(), (LABELS,)),
    ],
)
def test_a_loss_that_does_not_add_up_is_warned_of(loss, targets):
    with pytest.warns(UserWarning, match="neither the mean nor the sum"):
        in_micro_batches(as_step(loss, *targets))


class Router(nn.Module):
    """Experts, and a small penalty on the mean choice of the batch. With `noise`, only in training, beside random numbers."""

    def __init__(self, noise: bool = False) -> None:
        super().__init__()
        self.noise, self.router, self.experts = noise, nn.Linear(6, 4), nn.Linear(6, 4)
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        choice = self.router(x + torch.randn_like(x) if self.noise and self.training else x).softmax(-1)
        penalty = 1e-3 * choice.mean(0).square().sum() if self.training else x.new_zeros(())
        return self.head(choice * self.experts(x)), penalty


class Clamped(nn.Sequential):
    """A hook limits the first layer's gradient."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self[0].weight.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))


def with_penalty(outputs, labels):
    return F.cross_entropy(outputs[0], labels) + outputs[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "loss", "message"),
    [
        (Router, with_penalty, "neither the mean nor the sum"),
        (partial(Router, True), with_penalty, "neither the mean nor the sum"),
        (Clamped, F.cross_entropy, "neither the mean nor the sum"),
        (lambda: Router().bfloat16(), with_penalty, "neither the mean nor the sum"),
        (Clamped, lambda o, t: F.cross_entropy(o, t) * 1e30 * 1e30, "a gradient of it is infinite or no number"),
    ],
)
def test_bug_gradients_of_early_layers_were_not_compared(build, loss, message):
    """Only the last four parameters were, and in evaluation if training draws random numbers."""
    inputs = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    dtype = next(build().parameters()).dtype
    step = as_step(loss, TOKENS[:, 0] % 3, build=build, inputs=(inputs.to(dtype),))
    model = step.model()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    with pytest.warns(UserWarning, match=message):
        reduction_of(step, model, layers, step.micro_batches(4))
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("loss", "bends"), [(lambda outputs, labels: (entropy(outputs, labels) - 0.5).abs() + 0.5, True), (entropy, False)]
)
def test_bug_nothing_warned_of_a_loss_that_bends_below_those_of_the_first_batch(loss, bends):
    """Flooding turns the loss round below 0.5, where no untrained model is; later micro-batches lie on both sides."""
    step = as_step(loss, LABELS.clamp(min=0))
    with warnings.catch_warnings(record=True) as caught:
        assert reduction_of(step, step.model(), ["layer", "head"], step.micro_batches(2)).mean
    assert ["bends at a value of the whole batch (abs)" in str(w.message) for w in caught] == [True] * bends


class AutocastRouter(Router):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@pytest.mark.slow
@pytest.mark.parametrize(("penalty", "kind"), [(0.0, "mean"), (0.3, "neither")])
def test_bug_autocast_hid_a_loss_that_couples_samples(penalty, kind):
    """Differences within the rounding of bfloat16 passed; now the step is compared without autocast, too."""
    inputs = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    step = as_step(
        lambda o, t: F.cross_entropy(o[0], t) + penalty * o[1], TOKENS[:, 0] % 3, build=AutocastRouter, inputs=(inputs,)
    )
    model = step.model()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reduction_of(step, model, layers, step.micro_batches(4))
    assert ["neither the mean nor the sum" in str(w.message) for w in caught] == [True] * (kind == "neither")
    assert not torch.is_autocast_enabled("cpu")


def hardest_half(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none").topk(len(outputs) // 2).values.mean()


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (hardest_half, "neither"),
        (F.cross_entropy, "mean"),
        (partial(F.cross_entropy, reduction="sum"), "sum"),
        (partial(F.cross_entropy, ignore_index=0), "mean"),  # of those that count
    ],
)
def test_bug_a_loss_that_selects_samples_was_the_mean_by_chance(loss, kind):
    """Half of each micro-batch's samples are among the hardest half of the batch, which other batches do not repeat."""
    model = nn.Linear(3, 3)
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 1, 0, 2, 1, 2])
    by_loss = F.cross_entropy(model(inputs), labels, reduction="none").argsort()
    rows = by_loss[[0, 4, 1, 5, 2, 6, 3, 7]]  # two easy and two hard samples in each micro-batch
    step = as_step(loss, labels[rows], build=lambda: model, inputs=(inputs[rows],))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reduction = reduction_of(step, model, [""], step.micro_batches(2))
    assert ["neither the mean nor the sum" in str(w.message) for w in caught] == [True] * (kind == "neither")
    assert reduction.mean == (kind != "sum")


class Noisy(Tagger):
    def forward(self, tokens):
        return super().forward(tokens) + torch.randn(())


@pytest.mark.slow
def test_a_loss_that_nothing_can_be_told_of_is_warned_of():
    with pytest.warns(UserWarning, match="draws random numbers or does not run .*, so nothing tells how its loss"):
        in_micro_batches(as_step(entropy, LABELS, build=Noisy))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* nothing tells")
        in_micro_batches(as_step(entropy, LABELS, build=Noisy), reduction="mean")


class NormWithActivation(nn.BatchNorm1d):
    """As the norms of timm."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, training=self.training).relu()


class Auxiliary(nn.Module):
    """As GoogLeNet: a second head in training only, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(6, 6), nn.Dropout(0.5)
        self.norm = nn.Sequential(nn.BatchNorm1d(6), NormWithActivation(6))
        self.main, self.aux = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        hidden = F.dropout(self.drop(self.norm(self.first(x))), 0.5, self.training)
        return (self.main(hidden), self.aux(hidden)) if self.training else self.main(hidden)


def both_heads(outputs, labels):
    return F.cross_entropy(outputs[0], labels) + 0.4 * F.cross_entropy(outputs[1], labels)


@pytest.mark.slow
def test_the_loss_is_tried_in_the_mode_of_the_step_and_leaves_the_model_as_it_was():
    x, labels = torch.randn(8, 6, generator=GENERATOR), TOKENS[:, 0] % 3
    step = as_step(both_heads, labels, build=Auxiliary, inputs=(x,))
    model, micro_steps = step.model(), step.micro_batches(4)
    model.main.weight.grad = torch.ones(3, 6)
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = reduction_of(step, model, trace(model, micro_steps[0].inputs).layers, micro_steps)
    assert traced.mean and traced.divisors == ({},) * 4
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random) and all(m.training for m in model.modules())
    assert torch.equal(model.main.weight.grad, torch.ones(3, 6)) and model.aux.weight.grad is None
    assert in_micro_batches(step).status == "ok"


def test_divisors_of_micro_batches():
    """A count of 8 + 8 + 0 + 4 = 20 is 5 each; a mean of 2, 2, 0 and 1 is 5 / 4; a temperature stays."""
    counts, means = [8.0, 8.0, 0.0, 4.0], [2.0, 2.0, 0.0, 1.0]
    batch_divisors = {"": [Divisor(20.0, True), Divisor(1.25, True), Divisor(0.07)]}
    micro_divisors = [
        {"": [Divisor(c, True), Divisor(m, True), Divisor(0.07)]} for c, m in zip(counts, means, strict=True)
    ]
    assert replacements(batch_divisors, micro_divisors) == [{"": [5.0, 1.25, None]}] * 4
    assert replacements(batch_divisors, [*micro_divisors[:3], {"": []}]) is None


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(
        InvalidInput, match=r"a tensor of shape \[7, 2\]; its first dimension must be a multiple of the 2"
    ):
        split_batch((torch.ones(7, 2),), 2)


class Wrapped(WithLoss):
    """Positional tensors, as a pipeline wants them, and the loss alone."""

    def forward(self, tokens, labels):
        return super().forward(tokens, labels)["loss"]


@pytest.mark.slow
def test_a_pipeline_whose_model_averages_over_what_counts_runs_in_the_session():
    step = as_step(lambda loss: loss, build=Wrapped, inputs=(TOKENS, LABELS))
    assert_undivided(step, in_micro_batches(step, "1f1b", pipeline=None))
    with pytest.raises(InvalidInput, match="'cross_entropy' averages over what counts in a micro-batch"):
        in_micro_batches(step, "1f1b", pipeline=True)


def script_losses(folder, count):
    """Losses that the script prints in `count` processes with the variables that torchrun sets."""
    variables = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    variables["MASTER_PORT"] = str(free_port())
    with ThreadPoolExecutor(count) as threads:
        processes = [
            threads.submit(run_torch, folder, "--steps", "2", RANK=str(k), LOCAL_RANK=str(k), **variables)
            for k in range(count)
        ]
    for process in processes:
        assert process.result().returncode == 0, process.result().stderr[-6000:]
    lines = [line for process in processes for line in process.result().stdout.splitlines()]
    return [float(line.split("loss ")[1].split(",")[0]) for line in lines if line.startswith("step ")]


def two_losses(step):
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    return [float(step.run(model, optimizer).detach()) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [False, True])
def test_an_exported_script_counts_in_every_batch(tmp_path, pipeline):
    """All labels count in the batch that is exported, and few in the batch that is trained."""
    step = bl.torch.models.build("gnmt", **{**SMALL["gnmt"], "batch_size": 4, "dropout": 0.0})
    cluster = bl.Cluster.uniform(2, kind="cpu")
    calls = len(trace(step.model(), step.micro_batches(2)[0].inputs).calls)
    placement = bl.Placement(device=[int(k >= calls // 2) for k in range(calls)])
    options = {"micro_batches": 2, "schedule": "1f1b", "pipeline": pipeline, "cluster": cluster}
    folder = bl.torch.export(step, placement, tmp_path / "out", **options)
    batch = torch.load(folder / "batch.pt")
    for labels in (batch["targets"][0], step.targets[0]):
        labels[:2] = -100
        labels[2, 1:] = -100
    torch.save(batch, folder / "batch.pt")
    if pipeline:
        assert json.loads((folder / "pipeline.json").read_text())["batch_shapes"] == [[[4, 4, 11], "float32"]]
    assert script_losses(folder, 2 if pipeline else 1) == pytest.approx(two_losses(step), rel=1e-5)


class Changing(nn.Module):
    """A layer whose forward pass changes something for the next one, in the `way` that is named."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.way, self.layer, self.head = kind, nn.Linear(6, 6), nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(6))
        self.last: torch.Tensor | None = None
        self.calls = 0
        if kind == "spectral norm":
            self.layer = nn.utils.parametrizations.spectral_norm(self.layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layer(x) - self.mean)
        self.calls += 1  # a count that nothing reads
        if self.way == "buffer in place":
            self.mean.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        elif self.way == "new buffer":
            self.mean = hidden.detach().mean(0)
        elif self.way == "attribute":
            hidden = hidden if self.last is None else hidden + self.last
            self.last = hidden.detach().mean(0)
        elif self.way == "parameter":
            with torch.no_grad():
                self.head.bias.mul_(0.5)
        elif self.way == "data":
            self.head.weight.data.clamp_(-0.1, 0.1)
        return self.head(hidden)


CHANGED = {
    "buffer in place": "changes 'mean'",
    "new buffer": "changes 'mean'",
    "parameter": "changes 'head.bias'",
    "data": "changes 'head.weight'",
    "spectral norm": "changes 'layer.parametrizations.weight.0._u'",
    "attribute": "changes attributes of the model",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow([*CHANGED, "nothing"], "new buffer", "data"))
def test_bug_what_a_forward_pass_changes_for_the_next_one_was_not_warned_of(kind: str) -> None:
    """Micro-batches change it one after the other; the undivided batch changes it once."""
    inputs, targets = torch.randn(8, 6, generator=GENERATOR), torch.randn(8, 2, generator=GENERATOR)
    step = TorchStep("changing", partial(Changing, kind), (inputs,), F.mse_loss, targets, mode="training")
    model = step.model()
    layers = [f"{name}" for name, _ in model.named_children() if name in ("layer", "head")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reduction_of(step, model, layers, step.micro_batches(4))
    messages = [str(warning.message) for warning in caught if "changes" in str(warning.message)]
    assert [CHANGED[kind] in message for message in messages] == ([True] if kind in CHANGED else [])
    assert model.calls == 0 and model.last is None and not model.mean.any()


class Waves(nn.Module):
    """Sparse gradients of a table and complex ones of a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 6, sparse=True), nn.Linear(6, 2)
        self.filter = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(self.table(tokens).mean(1)) * self.filter, n=6))


def test_bug_gradients_that_are_sparse_or_complex_were_not_returned_whole() -> None:
    """Sparse ones ended with a TypeError; of complex ones the imaginary part was lost."""
    step = TorchStep("waves", Waves, (TOKENS,), F.cross_entropy, LABELS.clamp(0, 1)[:, 0])
    gradients = in_micro_batches(step).info["gradients"]
    model = step.model()
    step.run(model)
    for name, parameter in model.named_parameters():
        expected = parameter.grad.to_dense().numpy()
        assert gradients[name].dtype == expected.dtype
        assert gradients[name] == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert abs(gradients["filter"].imag).max() > 0


def test_bug_a_micro_batch_without_a_gradient_was_a_foreign_error() -> None:
    """The loss adds up the rows that count, in Python; in the second micro-batch there are none, so it is 0 / 0."""

    def loss(outputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return sum(row.sum() for row, count in zip(outputs, counts, strict=True) if count) / counts.sum()

    step = TorchStep("rows", partial(nn.Linear, 2, 1), (torch.ones(4, 2),), loss, (torch.tensor([1.0, 1.0, 0.0, 0.0]),))
    model = step.model()
    with pytest.raises(InvalidInput, match="loss of micro-batch 1 of step 'rows' has no gradient"):
        reduction_of(step, model, trace(model, step.inputs).layers, step.micro_batches(2))
