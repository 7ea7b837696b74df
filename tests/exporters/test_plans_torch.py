"""Plans of a PyTorch model: accelerate and torch's own pipelining take what is written for them."""

import random

import pytest

import baechi_lab as bl

torch = pytest.importorskip("torch")


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.down = torch.nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Language(torch.nn.Module):
    """Embedding, three blocks, and a head that shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("steps", torch.zeros(1))
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 10)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


TOKENS = torch.tensor([[1, 2, 3]])
SPLIT = {"embed": 0, "layers.0": 0, "layers.1": 1, "layers.2": 1, "norm": 1, "head": 0}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Language().eval()


@pytest.fixture(scope="module")
def graph(model):
    return bl.torch.profile(model, (TOKENS,), mode="inference", warmup=0, runs=1)


def placed(graph, where):
    """Every op on the device of the first name that it begins with."""
    return bl.Placement(device=[next(d for m, d in where.items() if name.startswith(m)) for name in graph.names])


def test_a_module_that_is_whole_is_one_entry(model, graph):
    plan = bl.write_plan(graph, placed(graph, SPLIT), model=model)
    assert plan.value == {**SPLIT, "steps": 0}
    assert plan.lost == (  # the buffer is the root's own, and the root is not whole
        "accelerate places modules; 'steps' are parameters or buffers of modules over several devices",
    )
    whole = bl.write_plan(graph, bl.Placement(device=[1] * graph.n), model=model)
    assert whole.value == {"": 1}


def test_tied_weights_stay_whole(model, graph):
    plan = bl.write_plan(graph, placed(graph, {**SPLIT, "head": 1}), model=model)
    assert plan.value["head"] == plan.value["embed"] == 0
    assert plan.lost[0] == "'embed.weight' and 'head.weight' are one tensor, kept whole on 0"
    assert any("'head' on 0 instead of 1" in sentence for sentence in plan.lost)


def test_a_split_block_is_said_to_meet_tensors_of_two_devices(model, graph):
    where = {"layers.1.down": 1, "layers.1.up": 0, **SPLIT, "layers.2": 1}
    plan = bl.write_plan(graph, placed(graph, {**where, "layers.1": 0}), model=model)
    assert plan.value["layers.1.up"] == 0 and plan.value["layers.1.down"] == 1
    assert any("(layers.1/add)" in sentence for sentence in plan.lost)


def test_cpus_and_gpus_are_named_as_accelerate_does(model, graph):
    big = 1 << 34
    cluster = bl.Cluster((bl.Device("host", "cpu", big), bl.Device("card", "a100", big)), bl.Link(1, 0.001))
    plan = bl.write_plan(graph, placed(graph, SPLIT), model=model, cluster=cluster)
    assert plan.value["embed"] == "cpu" and plan.value["layers.1"] == 0
    assert any("runs them on a GPU" in sentence for sentence in plan.lost)
    two = bl.Cluster.uniform(2, kind="cpu")
    assert "cpu:0, cpu:1 are all 'cpu'" in bl.write_plan(graph, placed(graph, SPLIT), model=model, cluster=two).lost


@pytest.mark.filterwarnings("ignore:The following device_map keys")  # the buffer
def test_accelerate_takes_the_map_of_any_placement(model, graph):
    utils = pytest.importorskip("accelerate.utils")
    chance = random.Random(0)
    modules = dict(model.named_modules())
    for _ in range(50):
        plan = bl.write_plan(graph, bl.Placement(device=[chance.randrange(3) for _ in graph.names]), model=model)
        utils.check_device_map(model, plan.value)  # every parameter and buffer is covered
        assert {k for k in plan.value if k not in modules} <= {"steps"}
        home = [next(d for k, d in plan.value.items() if name == k or name.startswith(f"{k}.") or not k)
                for name in ("embed.weight", "head.weight")]  # fmt: skip
        assert home[0] == home[1]


@pytest.mark.filterwarnings("ignore:The following device_map keys")
def test_accelerate_runs_the_map(graph, tmp_path):
    """With no GPU here, the second device is a folder: its weights come from the disk at each call."""
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = Language().eval()
    expected = model(TOKENS)
    plan = bl.write_plan(graph, placed(graph, SPLIT), model=model)
    where = {name: "disk" if device else "cpu" for name, device in plan.value.items() if name != "steps"}
    spread = accelerate.dispatch_model(model, {**where, "steps": "cpu"}, offload_dir=tmp_path)
    assert spread.layers[1].up.weight.device.type == "meta" and spread.embed.weight.device.type == "cpu"
    assert torch.equal(spread(TOKENS), expected)


def test_torch_splits_where_the_plan_says(graph):
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    plan = bl.write_plan(graph, placed(graph, {**SPLIT, "head": 1}), "pipelining")
    assert plan.value == {"layers.1": "BEGINNING"}
    points = {name: getattr(pipelining.SplitPoint, point) for name, point in plan.value.items()}
    pipe = pipelining.pipeline(Language(), (TOKENS,), split_spec=points)
    assert pipe.num_stages == 2
    first = {name for name, _ in pipe.get_stage_module(0).named_parameters()}
    assert any("layers.0" in name for name in first) and not any("layers.1" in name for name in first)


def test_bug_torch_splits_before_the_first_of_a_list(graph):
    """The split was said to be before the `ModuleList`, which is never called: PyTorch made one stage, and said nothing."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    where = {"embed": 0, "layers.0": 1, "layers.1": 1, "layers.2": 1, "norm": 2, "head": 2}
    plan = bl.write_plan(graph, placed(graph, where), "pipelining")
    points = {name: getattr(pipelining.SplitPoint, point) for name, point in plan.value.items()}
    assert list(points) == ["layers.0", "norm"]
    assert pipelining.pipeline(Language(), (TOKENS,), split_spec=points).num_stages == 3


def test_the_model_of_another_graph_is_refused(graph):
    with pytest.raises(bl.InvalidInput, match=r"no module that is an op of the graph"):
        bl.write_plan(graph, placed(graph, SPLIT), model=torch.nn.Sequential(torch.nn.Linear(1, 1)))


def test_a_training_graph_and_a_model_that_runs_as_one(model):
    training = bl.torch.profile(model, (TOKENS,), mode="training", warmup=0, runs=1)
    plan = bl.write_plan(training, placed(training, SPLIT), model=model)
    assert plan.value == {**SPLIT, "steps": 0}
    assert not any("run elsewhere" in sentence for sentence in plan.lost)
    blocks = bl.torch.profile(model, (TOKENS,), mode="inference", atomic=[Block], warmup=0, runs=1)
    assert bl.write_plan(blocks, placed(blocks, SPLIT), model=model).value == {**SPLIT, "steps": 0}
    assert bl.write_plan(blocks, placed(blocks, {**SPLIT, "head": 1}), "vllm").value == "1,2"


def test_modules_that_never_run_are_covered_and_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    model.spare = torch.nn.Linear(2, 2, bias=False)
    plan = bl.write_plan(graph, bl.Placement(device=[1, 0]), model=model)
    assert plan.value == {"0": 1, "1": 0, "spare": 1}
    assert plan.lost == ("no op of the graph uses 'spare.weight'; they go with the first op",)


def test_a_model_that_is_one_op():
    model = torch.nn.Linear(2, 2)
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, bl.Placement(device=[1]), model=model)
    assert plan.value == {"": 1} and plan.lost == ()


def test_weights_tied_in_a_chain_follow_the_first():
    """a-b share a weight and b-c a bias: all three go where a is, in one plan."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    model[1].weight, model[2].bias = model[0].weight, model[1].bias
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, bl.Placement(device=[2, 1, 0]), model=model)
    assert plan.value == {"": 2}
    assert [sentence.split(" are ")[0] for sentence in plan.lost[:2]] == [
        "'0.weight' and '1.weight'", "'1.bias' and '2.bias'",
    ]  # fmt: skip


class Functional(torch.nn.Module):
    """Parameters used by calls of plain functions, none by a module."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2))
        self.body = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.body(torch.nn.functional.linear(x, self.weight))


def test_parameters_that_calls_use_are_where_the_calls_are():
    model = Functional()
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, placed(graph, {"linear": 1, "body": 0}), model=model)
    assert plan.value == {"weight": 1, "body": 0}
    assert bl.write_plan(graph, bl.Placement(device=[2] * graph.n), model=model).value == {"": 2}
