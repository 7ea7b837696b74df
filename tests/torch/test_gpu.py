"""The same model on one GPU seen as several stream groups, and on as many GPUs as are attached."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import ODD, SMALL, random_placement, train  # noqa: E402

from baechi_lab.graph import Cluster, Placement  # noqa: E402
from baechi_lab.torch.models import build  # noqa: E402
from baechi_lab.torch_runtime.optimizer_offload import OffloadedOptimizerState  # noqa: E402
from baechi_lab.torch_runtime.transport import StreamTransport  # noqa: E402
from baechi_lab.torch_steps.assigner import assign, distribution, gather  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch sees no GPU"),
    pytest.mark.filterwarnings("ignore:.*AccumulateGrad.*stream"),
]


@pytest.fixture(autouse=True)
def exact():
    """Full float32 and the same algorithms every time."""
    tf32, benchmark = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    cudnn32, fixed = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = cudnn32, fixed


def case(name):
    """In float64: batch norm over two values turns float32's rounding into differences of any size."""
    if name in SMALL:
        step = build(name, **SMALL[name])
        model, inputs = step.model(), step.inputs
    else:
        torch.manual_seed(0)
        make, inputs = ODD[name]
        model, inputs = make(), (inputs(),)
    return model.double().cuda(), tuple((t.double() if t.is_floating_point() else t).cuda() for t in inputs)


def close(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.cpu(), y.cpu(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [*SMALL, *ODD])
def test_fifty_random_placements_on_stream_groups(name):
    """2 to 4 stream groups on one GPU, half of the placements with a random order; dropout draws the same numbers."""
    model, inputs = case(name)
    traced = trace(model, inputs, atomic=("ConvBNReLU",))
    reference, rng = copy.deepcopy(model), np.random.default_rng(0)
    expected = [train(reference, inputs), train(reference, inputs)]
    threads = 0
    for k in range(50):
        groups, reorder = int(rng.integers(2, 5)), k % 2 == 1
        distributed_model = copy.deepcopy(model)
        placement = random_placement(traced, groups, rng, reorder=reorder)
        assign(distributed_model, traced, placement, Cluster.uniform(groups), devices=["cuda:0"] * groups)
        for values in expected[: 2 if reorder else 1]:
            close(train(distributed_model, inputs), values)
        threads += distribution(distributed_model).session.threads_started
        gather(distributed_model)
    assert threads > 0


@pytest.mark.parametrize("name", [*SMALL, *ODD])
def test_host_and_gpu_together(name):
    """Some layers on the CPU, some on the GPU: every input arrives where its layer is. Without dropout: the CPU and
    the GPU draw other numbers."""
    model, inputs = case(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    traced, rng = trace(model, inputs, atomic=("ConvBNReLU",)), np.random.default_rng(3)
    expected = train(copy.deepcopy(model), inputs)
    for k in range(6):
        distributed_model = copy.deepcopy(model)
        placement = random_placement(traced, 2, rng, reorder=bool(k % 2))
        assign(distributed_model, traced, placement, Cluster.uniform(2), devices=["cpu", "cuda:0"])
        close(train(distributed_model, inputs), expected)
        gather(distributed_model)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU is attached")
@pytest.mark.parametrize("name", [*SMALL, *ODD])
def test_a_model_on_several_gpus_trains_as_on_one(name):
    model, inputs = case(name)
    for module in model.modules():  # each GPU has its own generator
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    traced, rng = trace(model, inputs), np.random.default_rng(4)
    n = min(4, torch.cuda.device_count())
    expected = train(copy.deepcopy(model), inputs)
    for k in range(10):
        distributed_model = copy.deepcopy(model)
        assign(distributed_model, traced, random_placement(traced, n, rng, reorder=bool(k % 2)), Cluster.uniform(n))
        close(train(distributed_model, inputs), expected)
        gather(distributed_model)


class Race(nn.Module):
    """`a` is sent to the other stream group and dropped; `c` takes its memory while the copy still waits."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B, self.C = nn.Linear(256, 256), nn.Softplus(), nn.Linear(256, 256)

    def forward(self, x):
        b = self.B(self.A(x))
        return b, self.C(x)


def race(record: bool):
    """`B`'s output when the copy of `A`'s output is held up, and what it should be."""
    torch.manual_seed(0)
    model, x = Race().cuda(), torch.randn(4096, 256, device="cuda")
    with torch.no_grad():
        traced = trace(model, x)
        expected = model(x)[0].clone()
        assign(model, traced, Placement(device=[0, 1, 0]), Cluster.uniform(2), devices=["cuda:0", "cuda:0"])
        session = distribution(model).session

        class Slow(StreamTransport):
            def stream_pair(self, op, source, target):
                tx, rx = super().stream_pair(op, source, target)
                with torch.cuda.stream(rx):
                    torch.cuda._sleep(200_000_000)  # about 0.1 s: the host is long through with the forward
                return tx, rx

        session.transport = Slow(session.plan.devices, record=record)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        b, _ = model(x)
        torch.cuda.synchronize()
    return b, expected


def test_a_tensor_is_not_freed_while_it_is_being_sent():
    """The race of Shetty 2022, section 1.2.3: without `record_stream` in the transport this fails."""
    b, expected = race(record=True)
    torch.testing.assert_close(b, expected)


def test_the_race_is_there_without_record_stream():
    """The check above can fail: the same run without `record_stream` gives other numbers."""
    b, expected = race(record=False)
    assert not torch.allclose(b, expected)


def test_measured_timeline_and_peak():
    """CUDA events: rows follow the dependencies that streams impose; the allocator tells the peak."""
    from baechi_lab.executors.torch import execute
    from baechi_lab.profilers.torch.profile import profile

    step = build("transformer", **{**SMALL["transformer"], "batch_size": 8, "width": 64, "inner": 128, "length": 32})
    graph = profile(step, device="cuda:0")
    forward_ops = [i for i in range(graph.n) if graph.forward_of[i] < 0]
    device = np.zeros(graph.n, dtype=int)
    for i in forward_ops:
        device[i] = int(graph.names[i].startswith("decoder"))
    for i in range(graph.n):
        if graph.forward_of[i] >= 0:
            device[i] = device[graph.forward_of[i]]
    for group in range(len(graph.colocation_names)):
        members = np.flatnonzero(graph.colocation == group)
        device[members] = device[members[0]]
    run = execute(step, Placement(device=device), 3, cluster=Cluster.uniform(2), graph=graph, devices=["cuda:0"] * 2)
    timeline = run.timeline
    assert run.status == "ok" and timeline.info["clock"] == "cuda events"
    assert len(timeline.op) == graph.n and (timeline.end_us >= timeline.start_us).all()
    start = dict(zip(timeline.op.tolist(), timeline.start_us.tolist(), strict=True))
    end = dict(zip(timeline.op.tolist(), timeline.end_us.tolist(), strict=True))
    for a, b in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True):
        if graph.forward_of[a] < 0 and graph.forward_of[b] < 0:
            assert start[b] >= end[a] - 20.0, (graph.names[a], graph.names[b])  # event resolution
    single = execute(step, Placement(device=np.zeros(graph.n, dtype=int)), 3, graph=graph, devices=["cuda:0"])
    assert (
        single.timeline.info["peak"] == "allocator"
        and single.timeline.peak_bytes[0] >= graph.persistent_bytes.sum() / 2
    )
    for (a,), (b,) in zip(single.outputs, run.outputs, strict=True):
        assert a == pytest.approx(b, rel=1e-3)


def test_autocast_and_optimizer():
    """A training loop with autocast and AdamW, distributed and not, has the same losses."""
    losses = []
    for groups in (1, 3):
        step = build("bert", **SMALL["bert"])
        model = step.model().cuda()
        inputs, targets = tuple(t.cuda() for t in step.inputs), tuple(t.cuda() for t in step.targets)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if groups > 1:
            traced = trace(model, inputs)
            placement = random_placement(traced, groups, np.random.default_rng(0), reorder=True)
            assign(model, traced, placement, Cluster.uniform(groups), devices=["cuda:0"] * groups)
        torch.manual_seed(0)
        outputs = []
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = step.loss(model(*inputs), *targets)
            loss.backward()
            optimizer.step()
            outputs.append(float(loss.detach()))
        losses.append(outputs)
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)]
)
def test_optimizer_state_waits_on_the_host(make):
    """Weights as without; between steps nothing of the state is on the GPU, in a step a layer's alone."""
    torch.manual_seed(0)
    models = [nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [make(model.parameters()) for model in models]
    OffloadedOptimizerState(optimizers[1], [layer.parameters() for layer in models[1]])
    peak_bytes = []
    for _ in range(4):
        x = torch.randn(4, 512, device="cuda")
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            optimizer.step()
            peak_bytes.append((torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    states = [t for p in models[1].parameters() for t in optimizers[1].state[p].values() if t.numel() > 1]
    assert states and all(t.device.type == "cpu" and t.is_pinned() for t in states)
    layer, state_bytes = sum(t.nbytes for t in models[0][0].parameters()), sum(t.nbytes for t in states) // 8
    assert (
        peak_bytes[-1][0] <= state_bytes + 4 * layer and peak_bytes[-1][1] == 0
    )  # what the update of a layer takes besides
    restored_optimizer = make(models[1].parameters())
    restored_optimizer.load_state_dict(optimizers[1].state_dict())  # which are on the GPU again
    optimizers[1].load_state_dict(restored_optimizer.state_dict())
    optimizers[1].step()
    assert all(
        t.device.type == "cpu" for p in models[1].parameters() for t in optimizers[1].state[p].values() if t.numel() > 1
    )
