"""Code of strangers: batches as dicts, keywords beside positions, sparse products, image lists, vmap, models in eval()."""

from __future__ import annotations

import copy
import functools
import random
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import said_by, same  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import CodeOrderKept, RandomLayers, UncountedWork  # noqa: E402
from baechi_lab.profilers.torch.unused_parameters import UnusedParameters  # noqa: E402
from baechi_lab.torch_runtime.tree import as_arguments, tensors  # noqa: E402
from baechi_lab.torch_steps.assigner import distribution  # noqa: E402
from baechi_lab.torch_steps.snapshot import ModelSnapshot  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402

TWO = bl.Cluster.uniform(2, kind="cpu", link=bl.Link(1.0, 0.0001))


class Scaled(nn.Module):
    """Takes positions and keywords."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, scale, bias=None):
        y = self.b(torch.relu(self.a(x))) * scale
        return y if bias is None else y + bias


class Hops(nn.Module):
    """A graph convolution: two products with a sparse adjacency matrix."""

    def __init__(self, layout):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        matrix = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0], [0.0, 1.0, 0.0]])
        self.register_buffer("adjacency", getattr(matrix, layout)())

    def forward(self, x):
        return self.b(self.adjacency @ torch.relu(self.adjacency @ self.a(x)))


class Int8Weight(torch.Tensor):
    """A weight in 8 bits with a scale per row, as torchao's: a subclass without data of its own, for few operators."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype, device=numbers.device)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, tensors, context, size, stride):
        return cls(tensors["numbers"], tensors["scale"])

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)
        if operator not in (torch.ops.aten.t.default, torch.ops.aten.linear.default):
            raise NotImplementedError(str(operator))
        return operator(*(a.numbers * a.scale if isinstance(a, cls) else a for a in args), **(kwargs or {}))


def with_8_bits():
    """Two layers, the first of which has a frozen weight in 8 bits."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    weight = model[0].weight.data
    scale = weight.abs().amax(1, keepdim=True) / 127
    model[0].weight = nn.Parameter(Int8Weight((weight / scale).round().to(torch.int8), scale), requires_grad=False)
    return model


class ImageList:
    """As torchvision's: a plain object with a tensor, sizes, and `to`."""

    def __init__(self, tensors, image_sizes):
        self.tensors, self.image_sizes = tensors, image_sizes

    def to(self, device):
        return ImageList(self.tensors.to(device), self.image_sizes)


class Batch(nn.Module):
    def forward(self, images):
        return ImageList(torch.stack(images), [tuple(image.shape) for image in images])


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2)

    def forward(self, images):
        return self.a(images.tensors) * len(images.image_sizes)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.transform, self.head = Batch(), Head()

    def forward(self, images):
        return self.head(self.transform(images))


class PerRow(nn.Module):
    """Calls a layer under vmap."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return torch.vmap(lambda row: torch.sin(self.a(row)))(x)


def spread(model, inputs, **options):
    """`model` over two devices in turn."""
    calls = len(bl.torch.trace(model, inputs, atomic=options.get("atomic", ())).calls)
    return bl.torch.distribute(model, inputs, TWO, bl.Placement(device=np.arange(calls) % 2), **options)


def test_arguments_in_every_form():
    """A dict of two keywords, positions and keywords together; two positions stay two positions."""
    x, mask = torch.ones(2), torch.zeros(2)
    assert as_arguments(x) == ((x,), {}) and as_arguments({"x": x}) == ((), {"x": x})
    assert as_arguments(((x,), {"mask": mask})) == ((x,), {"mask": mask})
    assert as_arguments((x, {"mask": mask})) == ((x, {"mask": mask}), {})  # a dict as the second position
    with pytest.raises(bl.InvalidInput, match=r"is a int; .* or both as \(tuple, dict\)"):
        as_arguments(3)
    with pytest.raises(bl.InvalidInput, match="inputs of step 'bad' is a str; it must be a tensor"):
        bl.torch.TorchStep("bad", Scaled, "text")
    with pytest.raises(bl.InvalidInput, match="build of step 'bad' is a Linear; it must be what makes the model"):
        bl.torch.TorchStep("bad", nn.Linear(2, 2), x)
    with pytest.raises(bl.InvalidInput, match=r"hold no tensor: a tokenizer makes some with return_tensors='pt'"):
        bl.torch.trace(nn.Linear(2, 2), {"input": [1, 2]})


def test_bug_a_long_error_cut_off_the_advice_for_inputs_without_tensors():
    class Verbose(nn.Module):
        def forward(self, words):
            raise TypeError("no words are read here; " * 100)

    with pytest.raises(bl.InvalidInput, match=r"TypeError: no words .* \(they hold no tensor: a tokenizer makes some"):
        bl.torch.profile(Verbose(), [["some", "words"]], hardware="a100")


@pytest.mark.parametrize("kind", [list, tuple, dict.fromkeys])
def test_bug_several_optimizers_were_left_out_without_a_word(kind):
    """Profiles of a step of two optimizers had no update at all."""
    with pytest.raises(bl.InvalidInput, match=r"optimizer of step 'two' is a .*; it must be what makes the optimizer"):
        bl.torch.TorchStep("two", lambda: nn.Linear(2, 2), (torch.ones(1, 2),), optimizer=kind([torch.optim.SGD] * 2))


def test_one_target_needs_no_tuple():
    """Its rows were taken for targets of their own."""
    rows, classes = torch.ones(3, 2), torch.tensor([0, 1, 0])
    step = bl.torch.TorchStep("one", lambda: nn.Linear(2, 2), rows, nn.functional.cross_entropy, classes)
    model = step.model()
    assert torch.equal(step.run(model), nn.functional.cross_entropy(model(rows), classes))
    with pytest.raises(bl.InvalidInput, match=r"loss of step 'two' failed .* and 2 targets: ValueError: "):
        step = bl.torch.TorchStep("two", lambda: nn.Linear(2, 2), rows, lambda y, a, b: int("x"), (classes, classes))
        bl.torch.profile(step, runs=1, warmup=0)
    with pytest.raises(
        bl.InvalidInput, match="ValueError: no output is a tensor of real numbers; give the step a loss"
    ):
        bl.torch.TorchStep("boxes", lambda: nn.Linear(2, 2), rows).loss_of([{"boxes": rows}])
    with pytest.raises(bl.InvalidInput, match="targets of step 'three' is a dict; it must be a tensor or a tuple"):
        bl.torch.TorchStep("three", lambda: nn.Linear(2, 2), rows, targets={"y": classes})


@pytest.mark.slow
def test_positions_and_keywords_together_are_traced_profiled_and_run():
    inputs = ((torch.randn(6, 4),), {"scale": 2.0, "bias": torch.ones(6, 4)})
    model, plain = Scaled(), Scaled()
    plain.load_state_dict(model.state_dict())
    spread(model, inputs)
    args, kwargs = inputs
    assert torch.equal(model(*args, **kwargs), plain(*args, **kwargs))
    step = bl.torch.TorchStep("scaled", Scaled, inputs, optimizer=torch.optim.SGD)
    graph = bl.torch.profile(step, runs=1, warmup=0)
    placement = bl.Placement(device=[0] * graph.n)
    undivided_run, session_run, piped = (
        bl.torch.execute(step, placement, 2, graph=graph, micro_batches=m, pipeline=p)
        for m, p in ((None, None), (3, False), (3, True))
    )
    np.testing.assert_allclose(np.ravel(undivided_run.outputs), np.ravel(session_run.outputs), rtol=1e-5)
    np.testing.assert_allclose(
        np.ravel(undivided_run.outputs)[:5], np.ravel(piped.outputs), rtol=1e-5
    )  # no step is traced


@pytest.mark.slow
def test_the_exported_script_takes_keywords(tmp_path):
    step = bl.torch.TorchStep("attention", _attention, _QUERY, optimizer=torch.optim.SGD)
    _exported_losses(step, tmp_path)


_QUERY = ((torch.arange(24.0).reshape(2, 3, 4) / 24,) * 3, {"need_weights": False, "is_causal": False})
_attention = functools.partial(nn.MultiheadAttention, 4, 2, batch_first=True)


def _exported_losses(step, folder):
    """The losses of an exported script are those of `execute`."""
    graph = bl.torch.profile(step, runs=1, warmup=0)
    placement = bl.Placement(device=[0] * graph.n)
    exported = bl.torch.export(step, placement, folder / "placed", cluster=TWO, graph=graph)
    run = bl.torch.execute(step, placement, 1, warmup=0, cluster=TWO, graph=graph)
    losses = said_by(exported, "import train; print(train.train(2))")
    np.testing.assert_allclose(losses, np.ravel(run.outputs), rtol=1e-5)
    return exported


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_products_are_placed_and_train_as_before(layout):
    torch.manual_seed(0)
    model, plain = Hops(layout), Hops(layout)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "adjacency"}, strict=False)
    x = (torch.randn(3, 4),)
    graph = bl.torch.profile(model, x, runs=1, warmup=0)
    assert sum("matmul" in name or "mm" in name for name in graph.names) >= 2
    spread(model, x)
    for one in (model, plain):
        one(*x).square().sum().backward()
    assert same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_sparse_gradients_and_parameters_are_profiled():
    """A sparse gradient has no one storage, and a sparse parameter no `nbytes`."""
    words = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    graph = bl.torch.profile(words, torch.arange(6), hardware="a100")
    assert graph.names[-1] == "0/backward"
    holder = nn.Module()
    holder.w, holder.forward = nn.Parameter(torch.eye(4).to_sparse()), lambda x: torch.sparse.mm(holder.w, x)
    graph = bl.torch.profile(holder, torch.ones(4, 3), mode="inference", runs=1, warmup=0)
    assert graph.persistent_bytes.sum() == 4 * 4 + 2 * 4 * 8  # values, and two indices each


class SparseScores(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu().to_sparse()


def test_bug_sparse_outputs_were_a_foreign_error():
    """PyTorch has no sparse tensor of ones, and no mean of squares of one."""
    build, x = functools.partial(SparseScores, 4, 4), torch.ones(2, 4)
    names = bl.torch.profile(build(), x, warmup=0, runs=1).names
    assert names[-1].endswith("/backward")
    with pytest.raises(bl.InvalidInput, match=r"loss of step 'sparse' failed .* NotImplementedError"):
        bl.torch.profile(bl.torch.TorchStep("sparse", build, x), warmup=0, runs=1)


def test_a_wrapper_subclass_counts_as_the_tensors_within():
    step = bl.torch.TorchStep("8 bits", with_8_bits, (torch.ones(2, 64),))
    model, original = step.model(), step.model()
    trained = 64 * 4 + (64 + 1) * 64 * 4  # two biases and a weight, with gradients
    expected = 64 * 64 + 64 * 4 + 2 * trained
    measured = bl.torch.profile(model, step.inputs, mode="training", warmup=0, runs=1)
    estimated = bl.torch.profile(model, step.inputs, mode="training", hardware="cpu-core")
    assert measured.persistent_bytes.sum() == estimated.persistent_bytes.sum() == expected
    placement = bl.Placement(device=[int(name.startswith("2")) for name in measured.names])
    bl.torch.distribute(model, step.inputs, TWO, placement, graph=measured)
    assert torch.equal(step.run(model), step.run(original))
    assert torch.equal(model[2].weight.grad, original[2].weight.grad)
    before = model[0].weight.scale.clone()
    with ModelSnapshot(model):
        model[0].weight.scale *= 2
    assert torch.equal(model[0].weight.scale, before)


class LayerDrop(nn.Module):
    """Skips its second layer in training where `drops()`, as encoders of speech do."""

    def __init__(self, drops):
        super().__init__()
        self.a, self.b, self.drops = nn.Linear(4, 4), nn.Linear(4, 4), drops

    def forward(self, x):
        x = self.a(x)
        return x if self.training and self.drops() else self.b(x)


@pytest.mark.parametrize("drops", [lambda rate: torch.rand(1).item() < rate, lambda rate: torch.rand([]) < rate])
def test_a_profile_that_lacks_a_layer_that_was_dropped_says_so(drops):
    profile = functools.partial(bl.torch.profile, sample_inputs=torch.ones(2, 4), warmup=0, runs=1)
    with pytest.warns(RandomLayers, match="^LayerDrop draws which of its layers run .* skipped that of 'b.weight'"):
        profile(LayerDrop(functools.partial(drops, 1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RandomLayers)
        profile(LayerDrop(functools.partial(drops, 0.0)))
        profile(LayerDrop(functools.partial(drops, 1.0)).eval())
        profile(LayerDrop(lambda: True))


@pytest.mark.parametrize("draw", [lambda: torch.rand(1).item(), random.random], ids=["torch", "python"])
def test_bug_a_run_had_other_layers_than_the_profile_of_a_model_that_drops_layers(draw):
    """Each trace drew anew: a run ended with an IndexError, and passes that were measured had no dropped layer's memory."""
    layer_drop = functools.partial(LayerDrop, lambda: draw() < 0.5)
    step = bl.torch.TorchStep("drop", layer_drop, (torch.ones(2, 4),), mode="training")
    model, call_names = step.model(), set()
    for seed in range(6):
        torch.manual_seed(seed), random.seed(seed)
        call_names.add(tuple(call.key for call in bl.torch.trace(model, step.inputs).calls))
    assert len(call_names) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RandomLayers)
        graph = bl.torch.profile(step, warmup=0, runs=1)
    run = bl.torch.execute(step, bl.Placement(device=[0] * graph.n), 4, warmup=0, graph=graph)
    assert len(set(run.outputs)) == 2  # every step of the run draws for itself


class Borrower(nn.Module):
    """A layer that runs the layer that it is given, as that of DoRA in peft."""

    def forward(self, x, *, layer):
        return layer(x)


class Lender(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.borrower = nn.Linear(4, 4), nn.Linear(4, 4), Borrower()

    def forward(self, x):
        return self.borrower(self.a(x), layer=self.b)


def test_a_layer_uses_the_modules_that_it_takes():
    calls = trace(Lender(), torch.ones(2, 4)).calls
    assert [call.parameters for call in calls] == [("a.weight", "a.bias"), ("b.weight", "b.bias")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnusedParameters)
        graph = bl.torch.profile(Lender(), torch.ones(2, 4), mode="inference", hardware="cpu-core")
    assert graph.persistent_bytes.tolist() == [(4 + 1) * 4 * 4] * 2


def test_objects_of_tensors_between_layers():
    """A model as torchvision's detectors are: a list of images, a layer that returns an object, one that takes it."""
    model, plain = Detector(), Detector()
    plain.load_state_dict(model.state_dict())
    images = ([torch.randn(3, 4), torch.randn(3, 4)],)
    assert len(list(tensors(ImageList(torch.ones(2), [(2,)])))) == 1
    spread(model, images, atomic=(Batch, Head))
    assert torch.equal(model(*images), plain(*images))


class Detects(Detector):
    """As torchvision's own: a list of images, and targets in training."""

    def forward(self, images: list[torch.Tensor], targets: list | None = None):
        return super().forward(images)


class Unsaid(Detector):
    def forward(self, images, targets=None):
        return super().forward(images)


def test_a_list_of_images_is_one_argument():
    """It counted as positional arguments: the second image would have been the targets."""
    images = [torch.randn(3, 4), torch.randn(3, 4)]
    for kind in (Detector, Detects):
        model, plain = kind(), kind()
        plain.load_state_dict(model.state_dict())
        spread(model, images, atomic=(Batch, Head))
        assert torch.equal(model(images), plain(images))
    assert as_arguments(images[:1], Detects()) == ((images[:1],), {})
    assert as_arguments(images[:1], Detector()) == ((images[0],), {})  # one tensor in brackets
    assert as_arguments(images, nn.Bilinear(4, 4, 2)) == (tuple(images), {})
    step = bl.torch.TorchStep("detect", Detects, images, atomic=("Batch", "Head"), optimizer=torch.optim.SGD)
    graph = bl.torch.profile(step, runs=1, warmup=0)
    run = bl.torch.execute(step, bl.Placement(device=[0] * graph.n), 1, warmup=0, graph=graph)
    assert run.status == "ok" and bl.torch.profile(step, hardware="a100").names == graph.names
    with pytest.raises(
        bl.InvalidInput, match=r"may be the arguments images, targets of Unsaid or its images alone; write"
    ):
        bl.torch.trace(Unsaid(), images)
    assert bl.torch.trace(Unsaid(), (images,), atomic=(Batch, Head)).calls


def test_vmap_is_refused_between_layers_and_runs_in_one_that_is_kept_whole():
    model, x = nn.Sequential(PerRow(), nn.Linear(4, 4)), torch.randn(3, 4)
    with pytest.raises(bl.InvalidInput, match=r"torch\.vmap .* name its class in atomic="):
        bl.torch.trace(model, x)
    expected = model(x)
    assert torch.equal(spread(model, x, atomic=[PerRow])(x), expected)


def _left_in_eval():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()


def test_a_model_left_in_eval_is_planned_for_training_when_asked():
    x = torch.ones(2, 4)
    model = bl.torch.distribute(_left_in_eval(), x, TWO, "single", mode="training", runs=1, warmup=0)
    assert any(name.endswith("/backward") for name in distribution(model).graph.names) and not model.training
    step = bl.torch.TorchStep("asked", _left_in_eval, x, mode="training")
    assert step.model().training and not bl.torch.TorchStep("not", _left_in_eval, x).model().training
    assert any(name.endswith("/backward") for name in bl.torch.profile(step, runs=1, warmup=0).names)
    with pytest.raises(bl.InvalidInput, match="mode of step 'odd' is 'train'; it must be 'training' or None"):
        bl.torch.TorchStep("odd", _left_in_eval, x, mode="train")


def test_the_devices_that_torch_sees_are_the_default_cluster():
    cluster = bl.Cluster.from_torch(virtual=3, kind="cpu")
    assert cluster.names == ("cpu:0", "cpu:1", "cpu:2") and len(set(cluster.memory_bytes.tolist())) == 1
    assert bl.Cluster.from_torch(virtual=3, kind="CPU").names == cluster.names
    model = bl.torch.distribute(nn.Sequential(nn.Linear(4, 4)), torch.ones(1, 4), runs=1, warmup=0)
    assert len(distribution(model).plan.devices) == bl.Cluster.from_torch().n
    for options, message in (({"kind": "tpu"}, "kind is 'tpu'"), ({"virtual": 0, "kind": "cpu"}, "virtual is 0")):
        with pytest.raises(bl.InvalidInput, match=message):
            bl.Cluster.from_torch(**options)


def test_device_map_and_a_repr_of_a_few_lines():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    spread(model, torch.ones(1, 4))
    assert model.hf_device_map == {"": "cpu"}
    lines = repr(distribution(model)).splitlines()
    assert lines == [
        "<Distribution of 2 calls over 2 devices",
        "  0 on cpu: 1 calls, 2 parameters and buffers",
        "  1 on cpu: 1 calls, 2 parameters and buffers>",
    ]
    bl.torch.gather(model)
    assert not hasattr(model, "hf_device_map")


def test_device_map_names_the_largest_modules_on_one_device():
    from baechi_lab.torch_steps.devices import device_map

    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    model[1].to("meta")
    assert device_map(model) == {"0": "cpu", "1": "meta"}


def _llama(**changes):
    transformers = pytest.importorskip("transformers")
    config = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaConfig(**{**config, "vocab_size": 30, **changes}), transformers


@pytest.mark.slow
def test_hugging_face_batches_with_labels_train_and_are_exported(tmp_path):
    """A `BatchEncoding` with labels: the loss is the model's own; the class is imported where it is installed."""
    config, transformers = _llama()
    ids = torch.arange(8).reshape(2, 4)
    batch = transformers.BatchEncoding({"input_ids": ids, "labels": ids})
    build = functools.partial(transformers.LlamaForCausalLM, config)
    step = bl.torch.TorchStep("llama", build, batch, optimizer=torch.optim.SGD, mode="training")
    model = step.model()
    assert float(step.run(model).detach()) == float(model(**batch).loss.detach())
    losses = _exported_losses(step, tmp_path)
    assert (
        not list(losses.glob("model_modeling*"))
        and "Needs torch and transformers." in (losses / "README.md").read_text()
    )


@pytest.mark.slow
def test_generate_with_a_cache_gives_the_same_tokens():
    config, transformers = _llama()
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.ones(1, 3, dtype=torch.long)
    expected = model.generate(ids, max_new_tokens=3, do_sample=False)
    spread(model, {"input_ids": ids})
    assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), expected)


def _shuffled(graph):
    """The place of each op in an order that respects the edges and nothing else."""
    rng, waits, place = (
        np.random.default_rng(0),
        np.bincount(graph.consumers, minlength=graph.n),
        np.zeros(graph.n, int),
    )
    ready = np.flatnonzero(waits == 0).tolist()
    for k in range(graph.n):
        op = ready.pop(int(rng.integers(len(ready))))
        place[op] = k
        for reader in graph.consumers[graph.edge_source == op].tolist():
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    return place


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
def test_a_llama_that_recomputes_trains_bit_for_bit():
    """From the second step on layers would wait, were they not in checkpointed regions: a shuffled order asks them to."""
    config, transformers = _llama()
    model, ids = transformers.LlamaForCausalLM(config).train(), torch.arange(8).reshape(2, 4)
    model.gradient_checkpointing_enable()
    twin, graph = copy.deepcopy(model), bl.torch.profile(model, {"input_ids": ids}, warmup=0, runs=1)
    placement = bl.place(graph, TWO, "m-sct").replace(order=_shuffled(graph), priority=None)
    with pytest.warns(CodeOrderKept, match=r"checkpointing \(\d+"):
        bl.torch.distribute(model, {"input_ids": ids}, TWO, placement)
    for _ in range(3):
        losses = []
        for one in (model, twin):
            one.zero_grad()
            losses.append(one(input_ids=ids, labels=ids, use_cache=False).loss)
            losses[-1].backward()
            with torch.no_grad():
                [p.sub_(0.1 * p.grad) for p in one.parameters()]
        assert torch.equal(*losses)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.slow
def test_a_distributed_llama_may_be_compiled():
    """It runs uncompiled within, with the same outputs and gradients."""
    config, transformers = _llama()
    model, ids = transformers.LlamaForCausalLM(config), torch.arange(8).reshape(2, 4)
    twin = copy.deepcopy(model)
    spread(model, {"input_ids": ids})
    compiled = torch.compile(model, backend="aot_eager")
    for one in (compiled, twin):
        one(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(
    ("model", "inputs", "atomic"),
    [
        (nn.MultiheadAttention(4, 2, batch_first=True), (torch.ones(2, 3, 4),) * 3, ()),
        (Hops("to_sparse_coo"), torch.ones(3, 4), ("Hops",)),
    ],
)
def test_a_model_that_is_one_layer_is_one_call(model, inputs, atomic):
    """Previously such a call was not seen, and profiling ended with "zip() argument 2 is longer than argument 1"."""
    name = type(model).__name__
    estimated = bl.torch.profile(model, inputs, hardware="a100", atomic=atomic, mode="inference")
    measured = bl.torch.profile(model, inputs, atomic=atomic, mode="inference")
    parameter_bytes = sum(p.nbytes for p in model.parameters())
    for graph in (estimated, measured):
        assert graph.names == (name,) and graph.persistent_bytes.sum() >= parameter_bytes
    single = copy.deepcopy(model)
    distributed = bl.torch.distribute(model, inputs, TWO, "m-etf", atomic=atomic)
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    outputs, expected = (next(iter(tensors(m(*args)))) for m in (distributed, single))
    outputs.square().sum().backward(), expected.square().sum().backward()
    assert torch.equal(outputs, expected)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), single.parameters(), strict=True))


@pytest.mark.parametrize("model", [nn.Identity(), nn.Sequential(nn.Identity(), nn.Dropout(0.0))])
def test_a_model_that_computes_nothing_is_refused(model):
    for profile in (bl.torch.profile, lambda m, x: bl.torch.distribute(m, x, TWO, "single")):
        with pytest.raises(bl.InvalidInput, match=f"{type(model).__name__} computes nothing from the sample inputs"):
            profile(model.eval(), torch.ones(2))


class Cache:
    """Holds keys, as the cache of a language model does."""

    def __init__(self):
        self.keys = []


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.key, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        cache = Cache()
        h = torch.tanh(self.up(x))
        cache.keys.append(self.key(h))
        return self.head(h * cache.keys[0].sigmoid()), cache


def test_bug_calls_before_what_a_cache_keeps_counted_as_kept():
    """The cached tensor holds its autograd graph, and so what earlier calls have saved: recomputation kept all of it."""
    model = WithCache()
    traced = trace(model, torch.ones(3, 8))
    assert [traced.calls[i].key for i in traced.fixed] == ["key"]
    assert not any(p.grad is not None for p in model.parameters())


class TwoOptimizers(nn.Module):
    """A GAN in one module: its forward pass trains the discriminator, and its loss is the generator's."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        made = self.generator(x)
        self.discriminator(made.detach()).mean().backward()
        return self.discriminator(made)


@pytest.mark.parametrize("options", [{"hardware": "a100"}, {"warmup": 0, "runs": 1}], ids=["estimated", "measured"])
def test_a_backward_pass_within_the_forward_pass_is_warned_of(options):
    with pytest.warns(UncountedWork, match="TwoOptimizers calls backward in its forward pass"):
        bl.torch.profile(TwoOptimizers(), torch.ones(2, 4), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncountedWork)
        bl.torch.profile(nn.Linear(4, 4), torch.ones(2, 4), **options)
    assert torch.autograd.backward.__module__ == "torch.autograd"


class Sizes(tuple):
    """As the irreducible representations of e3nn: what its length would be is open."""

    def __len__(self):
        raise NotImplementedError


def test_bug_a_tuple_without_a_length_was_a_foreign_error():
    model = nn.Linear(2, 3)
    model.sizes = Sizes((2, torch.ones(3)))
    assert bl.torch.profile(model, torch.ones(1, 2), warmup=0, runs=1).n == 2


class Meets(nn.Module):
    """Says that its forward pass has begun, and waits for what another thread says, at most some seconds."""

    def __init__(self, begun, awaited, seconds):
        super().__init__()
        self.linear, self.begun, self.awaited, self.seconds = nn.Linear(2, 2), [begun], [awaited], seconds

    def forward(self, x):
        self.begun[0].set()
        self.awaited[0].wait(self.seconds)
        return self.linear(x)


def test_bug_two_threads_that_traced_at_once_left_a_function_in_pytorch():
    first_begins, first_ends, second_begins = (threading.Event() for _ in range(3))
    run_backward = torch.autograd.backward

    def trace_first():
        bl.torch.trace(Meets(first_begins, second_begins, 0.3), torch.ones(1, 2))
        first_ends.set()

    thread = threading.Thread(target=trace_first)
    thread.start()
    first_begins.wait(10)
    bl.torch.trace(Meets(second_begins, first_ends, 10), torch.ones(1, 2))
    thread.join()
    assert torch.autograd.backward is run_backward
